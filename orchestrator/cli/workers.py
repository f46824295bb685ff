"""`dendro workers`: who serves which pools, and `drain` of one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.invocation import Group, Invocation
from orchestrator.core.counts import age, counted
from orchestrator.terminal.faults import ExitCode, Fault

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.views.workers import SeenWorker

HEARTBEAT_S = 5
PLAIN_WIDTH = 400
COLUMNS = ("worker", "status", "pools", "slots", "load", "up", "heard", "version")

workers = typer.Typer(
    cls=Group,
    rich_markup_mode=None,
    name="workers",
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@workers.callback()
def listed(
    ctx: typer.Context, json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False
) -> None:
    """Lists the workers: machine, pools, slots used, load, and what is wrong.

    A worker that leaves is gone from the list; one that was lost stays for a
    day, as silent. Its sessions are taken over by others of its pools.

    \b
    dendro workers
    dendro workers drain build-3-4711-2f
    dendro workers --json | jq '.[] | select(.status == "silent") | .worker'
    """
    if ctx.invoked_subcommand is not None:
        return
    import asyncio

    found, now_ms = asyncio.run(_found(Invocation.of(ctx)))
    if json:
        import orjson

        from orchestrator.terminal.text import json_for_stdout

        rows = [_for_programs(worker) for worker in found]
        typer.echo(json_for_stdout(orjson.dumps(rows, option=orjson.OPT_INDENT_2)))
        return
    _draw(found, now_ms)


@workers.command()
def drain(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="A worker's name, or its beginning.")],
    wait: Annotated[bool, typer.Option("--wait", help="Return when it has left.")] = False,
) -> None:
    """Lets a worker leave: it claims nothing more, and gives its sessions back.

    It hears of it within 5 s. A model's response is seen to its end, a running
    command gets its grace; other workers of its pools go on with the sessions.

    \b
    dendro workers drain build-3 --wait
    """
    import asyncio

    asyncio.run(_drain(Invocation.of(ctx), name, wait=wait))


async def _found(invocation: Invocation) -> tuple[list[SeenWorker], int]:
    from orchestrator.cli.invocation import opened
    from orchestrator.views.workers import workers_of

    async with opened(invocation.settings()) as found:
        return await workers_of(found.broker.claims), found.broker.now_ms()


async def _drain(invocation: Invocation, name: str, *, wait: bool) -> None:
    from orchestrator.cli.invocation import opened
    from orchestrator.gateways.pool_jobs import drain, until_left

    async with opened(invocation.settings()) as found:
        worker = await drain(found.broker.claims, name)
        if worker is None:
            typer.echo(f"{name} has left already", err=True)
            return
        # Nobody waits for one that is silent: the error says how it stands.
        if not (wait and worker.silent):
            typer.echo(_told(worker), err=True)
        if wait and (silent := await until_left(found.broker.claims, worker)) is not None:
            raise Fault(f"{worker.name} has not left: {silent.remarks[0]}", ExitCode.FAILED)


def _told(worker: SeenWorker) -> str:
    """The moment at which a worker hears that it is to drain."""
    if worker.silent:
        return f"{worker.name} is told to drain if it comes back: {worker.remarks[0]}"
    held = f"; it gives {counted(worker.state.held, 'session')} back" if worker.state.held else ""
    return f"{worker.name} is told within {HEARTBEAT_S} s to drain{held}"


def _for_programs(worker: SeenWorker) -> dict[str, object]:
    from dataclasses import asdict

    state, facts = worker.state, worker.state.facts
    return {
        "worker": worker.name,
        "status": worker.status,
        "pools": state.pools,
        "held": state.held,
        "room": state.room,
        "heard_ms": worker.heard_ms,
        **(asdict(facts) if facts is not None else {}),
        "remarks": worker.remarks,
    }


def _draw(found: Sequence[SeenWorker], now_ms: int) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from orchestrator.terminal.text import one_line

    console = Console(highlight=False)
    if not found:
        console.print("no worker is there: `dendro worker` starts one")
        return
    table = Table(*COLUMNS, box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for worker in found:
        state, facts = worker.state, worker.state.facts
        cells = (
            worker.name,
            worker.status,
            ", ".join(state.pools),
            f"{state.held}/{state.room}",
            f"{facts.load:.2f}" if facts else "",
            age((now_ms - facts.started_ms) / 1000) if facts else "",
            age((now_ms - worker.heard_ms) / 1000),
            facts.version if facts else "",
        )
        table.add_row(*(Text(one_line(cell)) for cell in cells))
    wide = console if console.is_terminal else Console(width=PLAIN_WIDTH, highlight=False)
    wide.print(table)
    for worker in found:
        for remark in worker.remarks:
            wide.print(one_line(f"{worker.name}: {remark}"), soft_wrap=True, markup=False)
