"""`dendro search`: sessions by their names, first words and folders, or by what was said in them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.faults import ExitCode, Fault
from orchestrator.cli.invocation import Invocation
from orchestrator.core.counts import counted

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from typing import Any

    from orchestrator.broker.records import SessionHead
    from orchestrator.cli.opening import Opened

LOOKED_THROUGH = 1_000
"""Conversations that are read, the newest, unless all are to be."""
LINES = 3
"""Of one session."""
AROUND = 40
"""Characters shown before a match; behind it, twice as many."""


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
    from orchestrator.cli.leaving import ctrl_c
    from orchestrator.cli.opening import opened

    async with opened(invocation.settings()) as found:
        with ctrl_c() as left:
            await left.unless(_look(found, text, limit, content=content, all=all))


async def _look(found: Opened, text: str, limit: int, *, content: bool, all: bool) -> None:
    from orchestrator.cli.session_list import Filter, found_rows

    total, shown, looked = await found.broker.count_sessions(), 0, 0
    most = total if all or not content else LOOKED_THROUGH
    wanted = Filter(text)
    async for row, head in found_rows(found.broker, most):
        looked += 1
        lines = [line async for line in _lines(found, head, text)] if content else []
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
    from orchestrator.cli.short_ids import short_id
    from orchestrator.cli.text import one_line

    agent = f"agent {row['agent_id']}" + (f" ({row['label']})" if row["label"] else "")
    parts = (row["name"], row["title"], agent if row["agent_id"] else "", row["cwd"])
    typer.echo("  ".join([short_id(row["session_id"]), *(one_line(part) for part in parts if part)]))
    for line in lines:
        typer.echo(f"    {one_line(line)}")


async def _lines(found: Opened, head: SessionHead, text: str) -> AsyncIterator[str]:
    """The first matches of a conversation, each with what stands around it."""
    from orchestrator.broker.errors import BrokerError
    from orchestrator.core.blobs import references, resolve
    from orchestrator.core.entries import EVENT_MSG
    from orchestrator.core.stored import decode_entry
    from orchestrator.runtime.objects import ArchiveUnavailable
    from orchestrator.runtime.segments import BrokenArchive

    count, wanted = 0, re.compile(re.escape(text), re.IGNORECASE)
    try:
        async for stored in found.log(head.session, head.seq):
            if not any(kind in stored.payload for kind in _SAYING):
                continue
            entry = decode_entry(stored.payload)
            if entry.type != EVENT_MSG:
                continue
            message = dict(entry.payload)
            if digests := set(references(message)):
                message = resolve(message, (await found.large_texts(head.tree, digests)).get)
            said = _said(message)
            if match := wanted.search(said):
                yield excerpt(said, *match.span())
                count += 1
                if count == LINES:
                    return
    except (ArchiveUnavailable, BrokenArchive, BrokerError) as error:
        yield f"[not read to its end: {error}]"


_SAYING = (b'"user_message"', b'"agent_message"', b'"exec_command_begin"')


def _said(message: Mapping[str, Any]) -> str:
    from orchestrator.cli.live import command_text

    match message.get("type"):
        case "user_message" | "agent_message":
            return str(message.get("message", ""))
        case "exec_command_begin":
            return f"$ {command_text(list(message['command']))}"
        case _:
            return ""


def excerpt(text: str, start: int, end: int) -> str:
    """A match with what stands around it."""
    first, last = max(0, start - AROUND), end + 2 * AROUND
    return ("…" if first else "") + text[first:last].strip() + ("…" if last < len(text) else "")
