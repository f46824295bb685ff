"""`dendro apply`: a session's changes, merged into a folder of the person's."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.invocation import AGENT_HELP, ID_HELP, Invocation
from orchestrator.core.counts import counted
from orchestrator.terminal.faults import ExitCode, Fault

if TYPE_CHECKING:
    from orchestrator.folders.records import Conflicted, Merged, Planned
    from orchestrator.views.workspaces import FetchedFolder, Moment


def apply(
    ctx: typer.Context,
    id: Annotated[str, typer.Argument(metavar="ID", help=ID_HELP)],
    agent: Annotated[int | None, typer.Argument(metavar="AGENT", min=0, help=AGENT_HELP)] = None,
    to: Annotated[
        Path, typer.Option("--to", metavar="DIR", help="The folder, instead of this one.")
    ] = Path(),
    from_: Annotated[
        int | None,
        typer.Option("--from", metavar="SEQ", min=1, help="Only what was changed after this entry."),
    ] = None,
    at: Annotated[
        int | None, typer.Option("--at", metavar="SEQ", min=1, help="Only what was changed up to this entry.")
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Only say what would be done.")] = False,
) -> None:
    """Merges what a session changed in its portable folder into a folder of yours.

    By three ways: what the session began with, what it made of it, and what
    you have. Your own changes stay. Where both changed the same, nothing is
    written at all, and each conflict is named (exit code 1).

    \b
    dendro apply 0199a2b4
    dendro apply 0199a2b4 3 --to ~/project --check
    """
    import asyncio

    from orchestrator.folders.records import Conflicted

    folder = to.absolute()
    if not folder.is_dir():
        raise Fault(f"no folder {folder} to merge into; `dendro checkout` makes one", ExitCode.USAGE)
    result, moment = asyncio.run(_applied(Invocation.of(ctx), (id, agent), (from_, at), folder, check))
    if isinstance(result, Conflicted):
        _show_conflicts(result, folder)
        raise typer.Exit(1)
    _show_names(result)
    done = "would change" if check else "changed"
    typer.echo(f"{folder}: {_total(result)} {done}, as of entry {moment.seq}")
    if not check:
        typer.echo(f"for what the session changes from here on: dendro apply {id} --from {moment.seq}")


async def _applied(
    invocation: Invocation,
    whom: tuple[str, int | None],
    between: tuple[int | None, int | None],
    folder: Path,
    check: bool,
) -> tuple[Planned | Merged | Conflicted, Moment]:
    from orchestrator.cli.invocation import opened
    from orchestrator.views.agents import addressed
    from orchestrator.views.workspaces import fetched, folder_past, packs_of

    async with opened(invocation.settings()) as found:
        target = await addressed(found, *whom)
        past = await folder_past(found, target.head)
        base = past.base if between[0] is None else past.at(between[0])
        theirs = past.settled(between[1])
        packs = packs_of((base, theirs))
        async with fetched(found.packs(), target.tree, packs, found.folder_bounds(), folder) as copy:
            return await _merge(copy, base, theirs, check), theirs


async def _merge(
    copy: FetchedFolder, base: Moment, theirs: Moment, check: bool
) -> Planned | Merged | Conflicted:
    from orchestrator.folders.records import Conflicted

    plan = await copy.keeper.plan_merge(base.snapshot, theirs.snapshot, copy.packs)
    if check or isinstance(plan, Conflicted):
        return plan
    return await copy.keeper.write_merge(base.snapshot, theirs.snapshot, copy.packs, plan.digest)


# ── what is printed ───────────────────────────────────────────────────────────────────────────


def _show_conflicts(found: Conflicted, folder: Path) -> None:
    from orchestrator.terminal.text import one_line

    typer.echo(f"{folder}: nothing was written, {counted(found.all, 'conflict')}", err=True)
    for conflict in found.conflicts:
        typer.echo(f"  {one_line(conflict.path)}: {one_line(conflict.why)}", err=True)
    if found.all > len(found.conflicts):
        typer.echo(f"  and {found.all - len(found.conflicts)} more", err=True)
    typer.echo("`dendro checkout` gives you the session's side as a folder", err=True)


def _show_names(found: Planned | Merged) -> None:
    from orchestrator.terminal.text import one_line

    for name in found.names:
        typer.echo(f"  {one_line(name)}")
    if (more := _count(found) - len(found.names)) > 0:
        typer.echo(f"  and {more} more")


def _total(found: Planned | Merged) -> str:
    return counted(_count(found), "file")


def _count(found: Planned | Merged) -> int:
    return found.counts.added + found.counts.modified + found.counts.deleted
