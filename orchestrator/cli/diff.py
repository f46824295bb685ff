"""`dendro diff`: the changes that a session made in its portable folder, between two entries of its log."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.invocation import AGENT_HELP, ID_HELP, Invocation
from orchestrator.core.counts import change_size, counted

if TYPE_CHECKING:
    from rich.text import Text

    from orchestrator.folders.outcomes import Difference
    from orchestrator.views.workspaces import FolderPast

NAMES_SHOWN = 5
STYLES = (("+++", "bold"), ("---", "bold"), ("@@", "cyan"), ("diff ", "bold"), ("+", "green"), ("-", "red"))


def diff(
    ctx: typer.Context,
    id: Annotated[str, typer.Argument(metavar="ID", help=ID_HELP)],
    agent: Annotated[int | None, typer.Argument(metavar="AGENT", min=0, help=AGENT_HELP)] = None,
    from_: Annotated[
        int | None, typer.Option("--from", metavar="SEQ", min=1, help="As it was at this entry of the log.")
    ] = None,
    to: Annotated[
        int | None, typer.Option("--to", metavar="SEQ", min=1, help="Up to this entry, instead of now.")
    ] = None,
    stat: Annotated[bool, typer.Option("--stat", help="Files and figures, without their text.")] = False,
    entries: Annotated[
        bool, typer.Option("--entries", help="The entries that changed the folder, with what they changed.")
    ] = False,
) -> None:
    """Shows what a session changed in its portable folder, as `git diff` does.

    Without --from, since the session began. The store has all of it: no
    worker is needed, and nobody is disturbed. To a pipe it is a patch.

    \b
    dendro diff 0199a2b4
    dendro diff 0199a2b4 3 --stat
    dendro diff 0199a2b4 --entries
    dendro diff 0199a2b4 --from 118 --to 240 > changes.patch
    """
    import asyncio

    if entries:
        _show_entries(asyncio.run(_past(Invocation.of(ctx), (id, agent))))
        return
    found = asyncio.run(_difference(Invocation.of(ctx), (id, agent), (from_, to), stat))
    if stat:
        _show_figures(found)
    else:
        _show_text(found)


async def _difference(
    invocation: Invocation, whom: tuple[str, int | None], between: tuple[int | None, int | None], stat: bool
) -> Difference:
    from orchestrator.cli.invocation import opened, print_on_stderr
    from orchestrator.views.find import addressed
    from orchestrator.views.workspaces import fetched, folder_past, packs_of

    async with opened(invocation.settings()) as found:
        target = await addressed(found, *whom)
        past = await folder_past(found, target.head)
        before = past.base if between[0] is None else past.at(between[0])
        after = past.at(between[1])
        if past.unsaved is not None and past.lacks(between[1]):
            machine = past.unsaved.machine
            print_on_stderr(f"the newest changes are on machine {machine} only, and not in this")
        packs = packs_of((before, after))
        async with fetched(found.packs(), target.tree, packs, found.folder_bounds()) as copy:
            return await copy.keeper.diff(before.snapshot, after.snapshot, copy.packs, stat=stat)


async def _past(invocation: Invocation, whom: tuple[str, int | None]) -> FolderPast:
    from orchestrator.cli.invocation import opened
    from orchestrator.views.find import addressed
    from orchestrator.views.workspaces import folder_past

    async with opened(invocation.settings()) as found:
        return await folder_past(found, (await addressed(found, *whom)).head)


# ── what is printed ───────────────────────────────────────────────────────────────────────────────


def _show_figures(found: Difference) -> None:
    from orchestrator.terminal.text import one_line

    for file in found.files:
        change = "binary" if file.binary else f"+{file.insertions:,} −{file.deletions:,}"
        typer.echo(f"{change:>14}  {one_line(file.path)}")
    total = found.counts.added + found.counts.modified + found.counts.deleted
    if len(found.files) < total:
        typer.echo(f"and {counted(total - len(found.files), 'file')} more")
    typer.echo(change_size(found.insertions, found.deletions, total))


def _show_entries(past: FolderPast) -> None:
    from datetime import datetime

    from orchestrator.terminal.text import one_line

    width = len(str(past.moments[-1].seq))
    for moment in past.moments:
        at = datetime.fromtimestamp(moment.at_ms / 1000).strftime("%Y-%m-%d %H:%M:%S")
        names = ", ".join(map(one_line, moment.names[:NAMES_SHOWN]))
        more = moment.files - min(len(moment.names), NAMES_SHOWN)
        what = f"{names}{f' and {more} more' if more > 0 else ''}" if moment.files else "it began so"
        typer.echo(f"{moment.seq:>{width}}  {at}  {what}")


def _show_text(found: Difference) -> None:
    """A program gets the very bytes; a terminal gets nothing that it would obey."""
    import sys

    if sys.stdout.isatty():
        from rich.console import Console

        Console(highlight=False, soft_wrap=True).print(*_styled(found.text), sep="\n")
    else:
        sys.stdout.buffer.write(found.text.encode("utf-8", "surrogateescape"))
        sys.stdout.buffer.flush()
    if found.truncated:
        typer.echo("dendro: the text is cut off here: it is too long; --stat shows all files", err=True)


def _styled(text: str) -> Iterator[Text]:
    from orchestrator.terminal.text import shown

    for line in text.split("\n"):
        style = next((style for begin, style in STYLES if line.startswith(begin)), "")
        yield shown(line.replace("\r", "␍"), style)
