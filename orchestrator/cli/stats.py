"""`dendro stats`: what waits in the pools of a deployment, and what was spent, by day, model and person."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.invocation import Invocation
from orchestrator.core.counts import age, counted
from orchestrator.terminal.faults import ExitCode, Fault

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from orchestrator.views.spend import SpendTable
    from orchestrator.views.workers import FleetStats, PoolStats

PLAIN_WIDTH = 400
COLUMNS = (
    "pool", "due", "oldest", "held", "slots", "workers", "claims/s", "turns/s", "tokens/min", "parked",
)  # fmt: skip


def stats(
    ctx: typer.Context,
    by: Annotated[
        list[str] | None,
        typer.Option(
            "--by", metavar="WHAT", help="The spend by day, model, who or namespace instead; several times."
        ),
    ] = None,
    days: Annotated[int, typer.Option("--days", min=1, max=400, help="With --by: days up to today.")] = 30,
    json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Shows how much there is to do, pool by pool, and who does it.

    due: sessions with work that no worker has; oldest: how long it has waited.
    held: by workers of the pool. parked: what the others wait for. Rates are
    those of the last minute, as the workers tell them every 5 s. With --by:
    what was spent, on days in UTC.

    \b
    dendro stats
    dendro stats --by day --by model --days 7
    dendro stats --json | jq '.pools[] | select(.pool == "default") | .due'
    """
    import asyncio

    if by:
        _spent(Invocation.of(ctx), by, days, json)
        return
    found = asyncio.run(_fleet(Invocation.of(ctx)))
    if json:
        import orjson

        from orchestrator.terminal.text import json_for_stdout

        typer.echo(json_for_stdout(orjson.dumps(_for_programs(found), option=orjson.OPT_INDENT_2)))
        return
    _draw(found)


def _spent(invocation: Invocation, wanted: Sequence[str], days: int, json: bool) -> None:
    import asyncio

    from orchestrator.cli.invocation import opened
    from orchestrator.views import ViewError
    from orchestrator.views.spend import GROUPS, spend_of

    by = [name for name in GROUPS if name in wanted]
    if unknown := [name for name in wanted if name not in GROUPS]:
        raise Fault(f"--by {unknown[0]}: one of {', '.join(GROUPS)} is meant", ExitCode.USAGE)

    async def found() -> SpendTable:
        async with opened(invocation.settings()) as deployment:
            return await spend_of(deployment.broker, days, by)

    try:
        table = asyncio.run(found())
    except ViewError as error:
        raise Fault(str(error)) from None
    if json:
        import orjson

        from orchestrator.terminal.text import json_for_stdout

        rows = [
            {
                **{name: getattr(row, name) for name in by},
                "tokens": row.spend.tokens,
                "cost_micro": row.spend.cost,
                "requests": row.spend.requests,
            }
            for row in table.rows
        ]
        told = {"from": table.first, "to": table.last, "spend": rows}
        typer.echo(json_for_stdout(orjson.dumps(told, option=orjson.OPT_INDENT_2)))
        return
    _draw_spent(table, by)


def _draw_spent(found: SpendTable, by: Sequence[str]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from orchestrator.broker.records import Spend
    from orchestrator.terminal.text import one_line
    from orchestrator.views.tree import money

    console = Console(highlight=False)
    wide = console if console.is_terminal else Console(width=PLAIN_WIDTH, highlight=False)
    if not found.rows:
        wide.print(f"Nothing was spent from {found.first} to {found.last}.")
        return
    table = Table(*by, box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("cost", "tokens", "requests"):
        table.add_column(name, justify="right")
    for row in found.rows:
        figures = (f"{row.spend.tokens:,}", f"{row.spend.requests:,}")
        cost = money(row.spend.cost) if row.spend.cost else ""
        names = (one_line(getattr(row, name)) or "-" for name in by)
        table.add_row(*map(Text, (*names, cost, *figures)))
    wide.print(table)
    total = sum((row.spend for row in found.rows), start=Spend())
    cost = f"{money(total.cost)}, " if total.cost else ""
    said = (
        f"{found.first} to {found.last}: {cost}{total.tokens:,} tokens, {counted(total.requests, 'request')}"
    )
    wide.print(said, soft_wrap=True, style="dim")


async def _fleet(invocation: Invocation) -> FleetStats:
    from orchestrator.cli.invocation import opened
    from orchestrator.views.workers import fleet_stats

    async with opened(invocation.settings()) as found:
        return await fleet_stats(found.broker)


def _for_programs(found: FleetStats) -> dict[str, object]:
    from dataclasses import asdict

    pools = [
        {
            "pool": one.pool,
            "due": one.queue.due,
            "oldest_s": one.queue.age_ms / 1000,
            "held": one.queue.leased,
            "slots": one.slots,
            "workers": one.workers,
            **asdict(one.pace),
            "parked": one.parked,
        }
        for one in found.pools
    ]
    return {**asdict(found), "pools": pools}


def _draw(found: FleetStats) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    wide = console if console.is_terminal else Console(width=PLAIN_WIDTH, highlight=False)
    if found.pools:
        table = Table(*COLUMNS, box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for one in found.pools:
            table.add_row(*map(Text, _cells(one)))
        wide.print(table)
    wide.print(_summary(found), soft_wrap=True, style="dim")
    for line in _waiting(found):
        wide.print(line, soft_wrap=True, markup=False)


def _cells(one: PoolStats) -> tuple[str, ...]:
    from orchestrator.terminal.text import one_line

    parked = ", ".join(f"{count:,} {status}" for status, count in one.parked.items())
    return (
        one_line(one.pool),
        f"{one.queue.due:,}",
        age(one.queue.age_ms / 1000) if one.queue.due else "",
        f"{one.queue.leased:,}",
        f"{one.slots:,}",
        f"{one.workers:,}",
        f"{one.pace.claims_per_s:.1f}",
        f"{one.pace.turns_per_s:.1f}",
        f"{one.pace.tokens_per_min:,}",
        parked,
    )


def _waiting(found: FleetStats) -> Iterator[str]:
    """A line for each machine that sessions wait for."""
    from orchestrator.terminal.text import one_line
    from orchestrator.views.workers import waits_for

    for machine, sessions in found.waiting.items():
        yield one_line(". ".join(text[0].upper() + text[1:] for text in waits_for(machine, sessions)))


def _summary(found: FleetStats) -> str:
    parts = [counted(found.workers, "worker")]
    parts += [f"{found.silent} silent"] if found.silent else []
    parts += [f"{found.draining} draining"] if found.draining else []
    parts += [f"{counted(found.open_requests, 'request')} waiting for a person"]
    parts += [counted(found.sessions, "session")]
    if found.looked < found.sessions:
        parts.append(f"parked is counted among the newest {found.looked:,}")
    return "; ".join(parts)
