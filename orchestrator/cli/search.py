"""`dendro search`: sessions by their names, first words and folders, or by what was said in them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.faults import ExitCode, Fault
from orchestrator.cli.invocation import Invocation
from orchestrator.core.counts import counted

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from orchestrator.wiring.opening import Opened

LOOKED_THROUGH = 1_000
"""Conversations that are read, the newest, unless all are to be."""


def search(
    ctx: typer.Context,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="In any letters, large or small.")],
    content: Annotated[
        bool, typer.Option("--content", help="Read the conversations too: messages, answers, commands.")
    ] = False,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, help="Stop after so many.")] = 50,
    all: Annotated[
        bool, typer.Option("--all", help="With --content: read more than the newest 1,000 conversations.")
    ] = False,
) -> None:
    """Finds sessions whose name, first words, label or folder has the text; newest first.

    With --content the conversations of the newest 1,000 sessions are read, also
    from the archive, and matches are shown as they are found. Ctrl-C stops.

    \b
    dendro search parser
    dendro search "connection reset" --content
    """
    import uvloop

    if not text.strip():
        raise Fault("there is nothing to look for: the text is empty", ExitCode.USAGE)
    uvloop.run(_search(Invocation.of(ctx), text, limit, content=content, all=all))


async def _search(invocation: Invocation, text: str, limit: int, *, content: bool, all: bool) -> None:
    from orchestrator.cli.invocation import opened
    from orchestrator.cli.leaving import ctrl_c

    async with opened(invocation.settings()) as found:
        with ctrl_c() as left:
            await left.unless(_look(found, text, limit, content=content, all=all))


async def _look(found: Opened, text: str, limit: int, *, content: bool, all: bool) -> None:
    from orchestrator.views.search import matches
    from orchestrator.views.sessions import Filter, found_rows

    total, shown, looked = await found.broker.count_sessions(), 0, 0
    most = total if all or not content else LOOKED_THROUGH
    wanted = Filter(text)
    async for row, head in found_rows(found.broker, most):
        looked += 1
        lines = [line async for line in matches(found, head, text)] if content else []
        if lines or wanted.wants(row):
            _show(row, lines)
            shown += 1
            if shown == limit:
                typer.echo(f"stopped after {limit}: --limit {2 * limit} shows more", err=True)
                return
    if looked < total:
        typer.echo(
            f"read the newest {looked:,} of {counted(total, 'conversation')}: --all reads the others",
            err=True,
        )
    elif not shown:
        where = "" if content else "; --content looks into the conversations"
        typer.echo(f"nothing found among {counted(total, 'session')}{where}", err=True)


def _show(row: Mapping[str, Any], lines: list[str]) -> None:
    from orchestrator.cli.text import one_line
    from orchestrator.views.short_ids import short_id

    agent = f"agent {row['agent_id']}" + (f" ({row['label']})" if row["label"] else "")
    parts = (row["name"], row["title"], agent if row["agent_id"] else "", row["cwd"])
    typer.echo("  ".join([short_id(row["session_id"]), *(one_line(part) for part in parts if part)]))
    for line in lines:
        typer.echo(f"    {one_line(line)}")
