"""`dendro stats`: what waits, what is held, what is parked and why, by pool."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.invocation import Invocation
from orchestrator.core.counts import age, counted

if TYPE_CHECKING:
    from orchestrator.views.stats import FleetStats, PoolStats

PLAIN_WIDTH = 400
COLUMNS = ("pool", "due", "oldest", "held", "slots", "workers", "claims/s", "turns/s", "tokens/min", "parked")


def stats(ctx: typer.Context, json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False) -> None:
    """Shows how much there is to do, pool by pool, and who does it.

    due: sessions with work that no worker has; oldest: how long it has waited.
    held: by workers of the pool. parked: what the others wait for. Rates are
    those of the last minute, as the workers tell them every 5 s.

    \b
    dendro stats
    dendro stats --json | jq '.pools[] | select(.pool == "default") | .due'
    """
    import asyncio

    found = asyncio.run(_found(Invocation.of(ctx)))
    if json:
        import orjson

        from orchestrator.cli.terminal import json_for_stdout

        typer.echo(json_for_stdout(orjson.dumps(_for_programs(found), option=orjson.OPT_INDENT_2)))
        return
    _draw(found)


async def _found(invocation: Invocation) -> FleetStats:
    from orchestrator.cli.invocation import opened
    from orchestrator.views.stats import fleet_stats

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

    console = Console(highlight=False)
    wide = console if console.is_terminal else Console(width=PLAIN_WIDTH, highlight=False)
    if found.pools:
        table = Table(*COLUMNS, box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for one in found.pools:
            table.add_row(*_cells(one))
        wide.print(table)
    wide.print(_summary(found), soft_wrap=True, style="dim")


def _cells(one: PoolStats) -> tuple[str, ...]:
    from orchestrator.cli.terminal import one_line

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


def _summary(found: FleetStats) -> str:
    parts = [counted(found.workers, "worker")]
    parts += [f"{found.silent} silent"] if found.silent else []
    parts += [f"{found.draining} draining"] if found.draining else []
    parts += [f"{counted(found.open_requests, 'request')} waiting for a person"]
    parts += [counted(found.sessions, "session")]
    if found.looked < found.sessions:
        parts.append(f"parked is counted among the newest {found.looked:,}")
    return "; ".join(parts)
