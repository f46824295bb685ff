"""`dendro budget`: what a tree may use, what it has used, and more of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.invocation import Invocation
from orchestrator.core.counts import counted
from orchestrator.terminal.faults import ExitCode, Fault

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orchestrator.broker.records import Registry

COUNTS = ("tokens", "requests", "slots", "spawned")
UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}
PLAIN_WIDTH = 400


def budget(
    ctx: typer.Context,
    id: Annotated[str, typer.Argument(metavar="ID", help="Any session of the tree, or a part of its id.")],
    add: Annotated[
        str | None,
        typer.Option(
            "--add",
            metavar="NAME=AMOUNT,…",
            help="tokens, cost (dollars), requests, wall (90m, 2h), slots, spawned.",
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Shows a tree's budgets and limits, and raises them.

    A tree that has paused because a budget was spent goes on at once. An
    amount below zero takes back. A budget that the tree did not have begins with
    what is used by now, and the amount is left. Costs are known as far as the
    workers that ran the requests had prices (`model_prices`).

    \b
    dendro budget 0199a2b4
    dendro budget 0199a2b4 --add tokens=500000,cost=2.50
    dendro budget 0199a2b4 --add wall=2h,cost=1.50
    """
    import asyncio

    asyncio.run(_budget(Invocation.of(ctx), id, amounts(add) if add is not None else {}, json=json))


def amounts(text: str) -> Mapping[str, int]:
    """The amounts to add, in the broker's units: millionths of a dollar, milliseconds, and counts."""
    found = {}
    for part in text.split(","):
        name, _, value = part.strip().partition("=")
        if name in found:
            raise Fault(f"--add names {name} twice: give one amount for it", ExitCode.USAGE)
        found[name] = _amount(name, value.strip())
    return found


def _amount(name: str, value: str) -> int:
    try:
        match name:
            case "cost":
                return round(float(value) * 1_000_000)
            case "wall":
                number, unit = (value, "") if value[-1:].isdigit() else (value[:-1], value[-1:])
                return round(float(number) * UNITS[unit] * 1000)
            case name if name in COUNTS:
                return int(value)
    except (ValueError, KeyError, OverflowError):
        raise Fault(
            f"--add {name}: {value!r} is no amount; try {name}={_example(name)}", ExitCode.USAGE
        ) from None
    known = ", ".join(("tokens", "cost", "requests", "wall", "slots", "spawned"))
    raise Fault(f"--add: there is no budget {name!r}; there are {known}", ExitCode.USAGE)


def _example(name: str) -> str:
    return {"cost": "2.50", "wall": "90m"}.get(name, "1000")


async def _budget(invocation: Invocation, text: str, add: Mapping[str, int], *, json: bool) -> None:
    from orchestrator.cli.invocation import opened
    from orchestrator.gateways.submit import raise_limits, require_limits, require_prices
    from orchestrator.views.tree import budget_value, uncounted

    async with opened(invocation.settings()) as found:
        tree = await found.find_tree(text)
        registry = await found.broker.trees.registry(tree)
        require_limits(registry, add)
        first_cost = "cost" in add and "cost" not in registry.limits
        if first_cost:
            await require_prices(found, registry, found.settings.model.prices)
        woken = await raise_limits(found, found.client(), registry, add) if add else 0
        registry = await found.broker.trees.registry(tree) if add else registry
    if json:
        import orjson

        from orchestrator.terminal.text import json_for_stdout

        typer.echo(json_for_stdout(orjson.dumps(budget_value(registry), option=orjson.OPT_INDENT_2)))
        return
    _show(registry)
    if first_cost and (unknown := uncounted(registry)):
        typer.echo(unknown)
    if woken:
        typer.echo(f"{counted(woken, 'agent')} waited for this, and look again")


def _show(registry: Registry) -> None:
    from rich.console import Console
    from rich.table import Table

    from orchestrator.views.tree import amount, used_of

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("", "used", "held", "limit", "left"):
        table.add_column(name, justify="left" if not name else "right")
    for kind, account in registry.budget.items():
        guessed = f" ({amount(kind, account.guessed)} by estimate)" if account.guessed else ""
        left = "" if account.limit is None else amount(kind, max(0, account.limit - account.spent))
        limit = "none" if account.limit is None else amount(kind, account.limit)
        held = amount(kind, account.held) if account.held else ""
        table.add_row(kind, used_of(registry, kind) + guessed, held, limit, left)
    for name in ("slots", "spawned"):
        used, most = registry.counters.get(name, 0), registry.limits.get(name)
        table.add_row(
            name,
            f"{used:,}",
            "",
            "none" if most is None else f"{most:,}",
            "" if most is None else f"{most - used:,}",
        )
    console = Console(highlight=False)
    (console if console.is_terminal else Console(width=PLAIN_WIDTH, highlight=False)).print(table)
    if registry.waiting:
        waiting = len(registry.waiting)
        typer.echo(f"{counted(waiting, 'agent')} {'waits' if waiting == 1 else 'wait'} for room in a budget")
