"""`dendro sessions`, `dendro search`, `dendro name`: what there is, found and named."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli.invocation import ID_HELP, Invocation
from orchestrator.core.counts import age, change_size, counted
from orchestrator.core.frozen import record
from orchestrator.home import without_links
from orchestrator.terminal.faults import ExitCode, Fault

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from orchestrator.views.event import Event
    from orchestrator.views.sessions import Filter, ListedTree, Listing
    from orchestrator.wiring.open_deployment import Opened

COLUMNS = ("id", "status", "age", "agents", "tokens", "left", "change", "model", "holder", "folder", "title")
DROPPED = ("holder", "left", "model", "tokens", "folder", "change", "agents", "age")
"""Columns that a narrow terminal leaves out, the first of them first. No figure is ever cut."""
TITLE_LEAST = 16
FOLDER_MOST = 32
GAP = 2
PLAIN_WIDTH = 400
"""Columns where no terminal sets any: nothing is cut off for a pipe."""
LOOKED_THROUGH = 1_000
"""Conversations that are read, the newest, unless all are to be."""


def sessions(
    ctx: typer.Context,
    text: Annotated[
        str, typer.Argument(metavar="TEXT", help="Only those whose name, title, label or folder has it.")
    ] = "",
    status: Annotated[
        list[str] | None,
        typer.Option("--status", metavar="STATUS", help="Only those that stand so; may be repeated."),
    ] = None,
    folder: Annotated[
        Path | None, typer.Option("--folder", metavar="DIR", help="Only those that work in it or below it.")
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="A JSON array of single sessions instead of a table.")
    ] = False,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, help="At most so many.")] = 100,
    all: Annotated[bool, typer.Option("--all", help="All that there are.")] = False,
) -> None:
    """Lists trees of sessions, those that changed last first.

    A line is a tree: its root, and how many agents it has and how they stand
    (queued, running, ready, failed, canceled …). A filter shows a tree if its
    root or one of its agents fits.
    due: it has work, and no worker has taken it; lost: its worker is gone;
    process_running: it is idle, and a process that it started lives on.
    Sessions that were opened, and no word said, are shown with --all alone, as
    are trees that a client has put away (archived).
    A narrow terminal is not shown holder, left, model, tokens, folder, change,
    agents, age: the first of them first, and no figure is cut.

    \b
    dendro sessions
    dendro sessions flaky --status awaiting_approval --status running
    dendro sessions --folder . --all
    dendro sessions --json | jq -r '.[] | select(.status == "awaiting_approval") | .session_id'
    """
    import asyncio

    from orchestrator.views.sessions import STATUSES, Filter

    if unknown := sorted({*(status or ())} - {*STATUSES}):
        known = ", ".join(dict.fromkeys(map(str, STATUSES)))
        named = ", ".join(unknown)
        raise Fault(f"--status {named}: no session stands so at any time; there are {known}", ExitCode.USAGE)
    below = str(without_links(folder)) if folder is not None else ""
    wanted = Filter(text, frozenset(status or ()), below)
    listing = asyncio.run(_listing(Invocation.of(ctx), wanted, limit, all=all, json=json))
    if json:
        import orjson

        from orchestrator.terminal.text import json_for_stdout

        typer.echo(json_for_stdout(orjson.dumps(listing.rows, option=orjson.OPT_INDENT_2)))
        return
    from rich.console import Console

    console = Console(highlight=False)
    render(listing, console if console.is_terminal else Console(width=PLAIN_WIDTH, highlight=False))


async def _listing(invocation: Invocation, wanted: Filter, limit: int, *, all: bool, json: bool) -> Listing:
    from orchestrator.cli.invocation import opened
    from orchestrator.views.sessions import sessions_listed, trees_listed

    async with opened(invocation.settings()) as found:
        return await (sessions_listed if json else trees_listed)(found.broker, wanted, limit, all=all)


# ── drawing ───────────────────────────────────────────────────────────────────────────────────────


def render(listing: Listing, console: Console, now_ms: float | None = None) -> None:
    """A table as wide as the terminal, and what it does not show."""
    if not listing.total:
        console.print('no sessions yet: `dendro run "…"` makes one')
        return
    now = time.time() * 1000 if now_ms is None else now_ms
    if listing.trees:
        width = console.width if console.is_terminal else None
        console.print(_table(_lines(listing.trees, now), width))
    for remark in _remarks(listing):
        console.print(remark, soft_wrap=True, style="dim", markup=False)


def _lines(trees: Sequence[ListedTree], now_ms: float) -> list[Mapping[str, str]]:
    from orchestrator.core.ids import SessionId
    from orchestrator.terminal.text import one_line
    from orchestrator.views.find import short_ids

    shorts = short_ids(SessionId(tree.root["session_id"]) for tree in trees)
    rows = [_cells(tree, now_ms) | {"id": shorts[SessionId(tree.root["session_id"])]} for tree in trees]
    return [{name: one_line(cell) for name, cell in cells.items()} for cells in rows]


def _cells(tree: ListedTree, now_ms: float) -> dict[str, str]:
    root = tree.root
    left, tokens = root["context_left"], root["blended_total"]
    return {
        "status": root["status"],
        "age": age((now_ms - (root["updated_ms"] or root["created_ms"])) / 1000),
        "agents": _agents(tree.agents),
        "tokens": f"{tokens:,}" if tokens is not None else "",
        "left": f"{left:.0%}" if left is not None else "",
        "change": change_size(**found) if (found := root.get("change")) else "",
        "model": root["model"] or "",
        "holder": root["holder"] or "",
        "folder": root["cwd"] or "",
        "title": _title(root),
    }


def _title(root: Mapping[str, Any]) -> str:
    """The name or the first words; of a fork, where it comes from; and whether a client put it away."""
    from orchestrator.views.find import short_id

    source = root.get("forked_from")
    fork = f"(fork of {short_id(source)})" if source else ""
    away = "(archived)" if root.get("put_away") else ""
    return " ".join(filter(None, (root["name"] or root["title"], fork, away)))


def _agents(statuses: Mapping[str, int]) -> str:
    """The number of agents, and the number at each status."""
    if not statuses:
        return ""
    parts = ", ".join(f"{count} {status}" for status, count in sorted(statuses.items()))
    return f"{sum(statuses.values())}: {parts}"


@record
class _Layout:
    """The columns that are shown, and how wide they are."""

    widths: Mapping[str, int]

    @classmethod
    def of(cls, lines: Sequence[Mapping[str, str]], width: int | None) -> _Layout:
        from rich.cells import cell_len

        needed = {name: max(len(name), *(cell_len(line[name]) for line in lines)) for name in COLUMNS}
        if not any(line["change"] for line in lines):
            # Only portable folders have one.
            del needed["change"]
        if width is None:
            return cls(needed)
        needed["folder"] = min(needed["folder"], FOLDER_MOST)
        title = needed.pop("title")
        least = min(title, TITLE_LEAST)
        for name in DROPPED:
            if cls._taken(needed) + least <= width:
                break
            needed.pop(name, None)
        room = width - cls._taken(needed)
        return cls(needed if room < len("title") else {**needed, "title": min(title, room)})

    @staticmethod
    def _taken(widths: Mapping[str, int]) -> int:
        return sum(width + GAP for width in widths.values())


def _table(lines: Sequence[Mapping[str, str]], width: int | None) -> Table:
    from rich.table import Table
    from rich.text import Text

    layout = _Layout.of(lines, width)
    table = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False, header_style="bold")
    for name, wide in layout.widths.items():
        justify = "right" if name in ("tokens", "left") else "left"
        table.add_column(name, no_wrap=True, width=wide, overflow="ellipsis", justify=justify)  # type: ignore[arg-type]
    for line in lines:
        cells = (_end_of(line[n], w) if n == "folder" else line[n] for n, w in layout.widths.items())
        table.add_row(*map(Text, cells))
    return table


def _end_of(folder: str, width: int) -> str:
    """The end of a path says more than its beginning."""
    return folder if len(folder) <= width else "…" + folder[len(folder) - width + 1 :]


def _remarks(listing: Listing) -> Iterator[str]:
    if listing.unspoken:
        those = counted(listing.unspoken, "session")
        yield f"{those} in which nobody has said anything yet: --all shows them too"
    if listing.shelved:
        yield f"{counted(listing.shelved, 'tree')} put away (archived) by a client: --all shows them too"
    if not (listing.trees or listing.unspoken or listing.shelved):
        yield "no session fits; without TEXT, --status and --folder all are meant"
    unserved = [tree.root["pool"] for tree in listing.trees if tree.root["nobody_serves"]]
    for pool in sorted(set(unserved)):
        yield nobody_serves(pool)
    for tree in listing.trees:
        if tree.root["nobody_serves"] and tree.root["unsaved_on"]:
            yield unsaved_there(tree.root["session_id"], tree.root["unsaved_on"])
    if not listing.whole:
        shown = counted(len(listing.trees), "tree")
        yield (
            f"{shown}; looked at {listing.looked:,} of {counted(listing.total, 'session')}, the newest: "
            "the others with --all or a filter (TEXT, --status, --folder)"
        )


def unsaved_there(session: str, machine: str) -> str:
    """The remedy for a session whose folder's last changes are on one machine alone."""
    from orchestrator.terminal.text import plain

    return plain(
        f"{session} waits for a worker on machine {machine}: the last changes of its folder are there alone. "
        f"Start `dendro worker` there; or give them up: dendro revoke {session} --abandon-unsaved"
    )


def nobody_serves(pool: str) -> str:
    """The remedy for sessions that are due or lost."""
    from orchestrator.terminal.text import plain

    where = "on their machine" if pool.startswith("host:") else "where their folders are"
    return plain(f"due or lost: no worker serves them now; start `dendro worker` {where} (pool {pool})")


# ── search ────────────────────────────────────────────────────────────────────────────────────────


def search(
    ctx: typer.Context,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="In any letters, large or small.")],
    content: Annotated[
        bool, typer.Option("--content", help="Read the conversations too: messages, answers, commands.")
    ] = False,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, help="Stop after so many.")] = 50,
    all: Annotated[
        bool,
        typer.Option(
            "--all",
            help="Ephemeral sessions and those put away (archived), too; with --content more than the newest "
            "1,000 conversations.",
        ),
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
    from orchestrator.terminal.streams import ctrl_c

    async with opened(invocation.settings()) as found:
        with ctrl_c() as left:
            await left.unless(_search_each(found, text, limit, content=content, all=all))


async def _search_each(found: Opened, text: str, limit: int, *, content: bool, all: bool) -> None:
    from orchestrator.views.search import matches
    from orchestrator.views.sessions import Filter, found_rows, listed_rows

    total, shown = await found.broker.logs.count_sessions(), 0
    most = total if all or not content else LOOKED_THROUGH
    wanted = Filter(text)
    async for row, head in (found_rows if all else listed_rows)(found.broker, most):
        if head.labels.ephemeral and not all:
            continue
        lines = [line async for line in matches(found, head, text)] if content else []
        if lines or wanted.wants(row):
            _show(row, lines)
            shown += 1
            if shown == limit:
                typer.echo(f"stopped after {limit}: --limit {2 * limit} shows more", err=True)
                return
    # Those whose keys are damaged are in no list, and no option reads them.
    if most < total:
        typer.echo(
            f"read the newest {most:,} of {counted(total, 'conversation')}: --all reads the others",
            err=True,
        )
    elif not shown:
        where = "" if content else "; --content looks into the conversations"
        typer.echo(f"nothing found among {counted(total, 'session')}{where}", err=True)


def _show(row: Mapping[str, Any], lines: list[str]) -> None:
    from orchestrator.terminal.text import one_line
    from orchestrator.views.find import short_id

    agent = f"agent {row['agent_id']}" + (f" ({row['label']})" if row["label"] else "")
    parts = (row["name"], row["title"], agent if row["agent_id"] else "", row["cwd"])
    typer.echo("  ".join([short_id(row["session_id"]), *(one_line(part) for part in parts if part)]))
    for line in lines:
        typer.echo(f"    {one_line(line)}")


# ── names ─────────────────────────────────────────────────────────────────────────────────────────


def name(
    ctx: typer.Context,
    id: Annotated[str, typer.Argument(metavar="ID", help=ID_HELP)],
    text: Annotated[str, typer.Argument(metavar="NAME", help="At most 200 characters, on one line.")],
) -> None:
    """Names a session; lists show the name instead of its first words.

    The name is an entry of the session's log, with who gave it. Where no
    worker serves the session, this command reads the name in by itself; it
    begins nothing else.

    \b
    dendro name 7c1e95aa "Parser for the new format"
    """
    import asyncio

    asyncio.run(_name(Invocation.of(ctx), id, text))


async def _name(invocation: Invocation, id: str, text: str) -> None:
    from orchestrator.cli.invocation import opened
    from orchestrator.gateways.submit import unread
    from orchestrator.protocol.events import ThreadNameUpdated
    from orchestrator.protocol.ops import SetThreadName
    from orchestrator.terminal.text import one_line
    from orchestrator.views.find import short_id
    from orchestrator.wiring.embedded_worker import submit_to_parked

    async with opened(invocation.settings()) as found:
        head = await found.find(id)
        told = await submit_to_parked(found, head, SetThreadName(name=text), _named)
    match told.answer and told.answer.told:
        case ThreadNameUpdated(thread_name=name):
            typer.echo(f"{short_id(head.session)} is named {one_line(name or '')}")
        case _:
            typer.echo(unread(head))


def _named(event: Event, id: str) -> bool:
    from orchestrator.protocol.events import ThreadNameUpdated

    return event.kind is ThreadNameUpdated and event.id == id
