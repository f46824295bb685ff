"""`dendro sessions`: what there is, who holds it, and how far it got."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli.invocation import Invocation

if TYPE_CHECKING:
    from rich.console import Console

    from orchestrator.broker.broker import Broker
    from orchestrator.broker.records import SessionHead
    from orchestrator.broker.serving import Serving
    from orchestrator.core.ids import SessionId

COLUMNS = ("session", "status", "age", "model", "tokens", "left", "holder", "cwd", "title")
PLAIN_WIDTH = 400
"""Columns where no terminal sets any: nothing is cut off for a pipe."""


def sessions(
    ctx: typer.Context,
    json: Annotated[bool, typer.Option("--json", help="A JSON array instead of a table.")] = False,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, help="At most so many.")] = 100,
) -> None:
    """Lists sessions, those that changed last first.

    An agent's status is its tree's word for it: queued, ready, failed, canceled …
    due: no worker has taken it yet; lost: its worker is gone, and no other came.

    \b
    dendro sessions
    dendro sessions --json | jq -r '.[] | select(.status == "awaiting_approval") | .session_id'
    """
    import asyncio

    rows = asyncio.run(_rows(Invocation.of(ctx), limit))
    if json:
        import orjson

        typer.echo(orjson.dumps(rows, option=orjson.OPT_INDENT_2).decode())
        return
    from rich.console import Console

    console = Console()
    render(rows, console if console.is_terminal else Console(width=PLAIN_WIDTH), time.time() * 1000)


async def _rows(invocation: Invocation, limit: int) -> list[dict[str, Any]]:
    from orchestrator.cli.opening import opened

    async with opened(invocation.settings()) as found:
        heads = await found.broker.sessions(limit)
        served = await found.broker.serving(heads)
        stands = await _standings(found.broker, heads)
    return [row(head, served[head.session], stands.get(head.session, "")) for head in heads]


async def _standings(broker: Broker, heads: Sequence[SessionHead]) -> dict[SessionId, str]:
    """Where those that are agents stand in their trees; who was pruned is on no list."""
    from orchestrator.core.registry import fields_of, projected

    agents = [head for head in heads if head.agent_id]
    found = await broker.agents_among([(head.tree, fields_of(head.agent_id)) for head in agents])
    known = (
        (head, projected(fields).agents.get(head.agent_id))
        for head, fields in zip(agents, found, strict=True)
    )
    return {head.session: agent.status for head, agent in known if agent is not None}


def row(head: SessionHead, serving: Serving, standing: str) -> dict[str, Any]:
    """One session for programs; figures that only a rest records are null before the first one."""
    import orjson

    from orchestrator.cli.standing import status_of

    meta = orjson.loads(head.meta) if head.meta else {}
    names = (
        "title",
        "cwd",
        "model",
        "blended_total",
        "context_left",
        "updated_ms",
        "outcome",
        "rollout_path",
    )
    return {
        "session_id": head.session,
        "tree_id": head.tree,
        "status": status_of(head, serving, standing),
        "created_ms": head.created_ms,
        **{name: meta.get(name) for name in names},
        "pool": head.pool,
        "holder": head.holder,
        "seq": head.seq,
    }


def render(rows: Sequence[dict[str, Any]], console: Console, now_ms: float) -> None:
    """A table; the id is never cut, so that it can be copied."""
    from rich.table import Table

    from orchestrator.cli.text import shown

    if not rows:
        console.print('no sessions yet: `dendro run "…"` makes one', highlight=False)
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in COLUMNS:
        fixed = name in ("session", "status", "age", "tokens", "left")
        right = name in ("tokens", "left")
        table.add_column(
            name, no_wrap=True, min_width=36 if name == "session" else None,
            overflow="ignore" if fixed else "ellipsis", justify="right" if right else "left",
        )  # fmt: skip
    for found in rows:
        left = found["context_left"]
        cells = (
            found["session_id"],
            found["status"],
            age((now_ms - found["created_ms"]) / 1000),
            found["model"] or "",
            f"{found['blended_total']:,}" if found["blended_total"] is not None else "",
            f"{left:.0%}" if left is not None else "",
            found["holder"] or "",
            found["cwd"] or "",
            found["title"] or "",
        )
        table.add_row(*(shown(cell) for cell in cells))
    console.print(table)


def age(seconds: float) -> str:
    """A duration in its largest unit: `42s`, `7m`, `3h`, `12d`."""
    for limit, unit, size in ((60, "s", 1), (3600, "m", 60), (86_400, "h", 3600)):
        if seconds < limit:
            return f"{max(0, int(seconds)) // size}{unit}"
    return f"{int(seconds) // 86_400}d"
