"""`dendro checkout`, `dendro push` and `dendro apply`: the folder of a session, as it was at any entry of its
log: as a folder, as a branch of the person's repository, or merged into a folder of the person's.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.invocation import AGENT_HELP, ID_HELP, Invocation
from orchestrator.core.counts import counted
from orchestrator.core.frozen import record
from orchestrator.terminal.faults import ExitCode, Fault

if TYPE_CHECKING:
    from orchestrator.broker.records import SessionHead
    from orchestrator.folders.outcomes import Conflicted, Made, Merged, Planned
    from orchestrator.views.workspaces import FetchedFolder, Moment
    from orchestrator.wiring.open_deployment import Opened
    from orchestrator.workspaces.branches import Pushed

AT_HELP = "As it was at this entry of the log."


def checkout(
    ctx: typer.Context,
    id: Annotated[str, typer.Argument(metavar="ID", help=ID_HELP)],
    where: Annotated[
        list[str],
        typer.Argument(metavar="[AGENT] DIR", help="An agent's number; a folder that is not there."),
    ],
    at: Annotated[int | None, typer.Option("--at", metavar="SEQ", min=1, help=AT_HELP)] = None,
) -> None:
    """Makes a session's portable folder as a new folder of yours.

    DIR must not be there, or be empty. Files that the session's folder
    ignores are not recorded, so they are not in it.

    \b
    dendro checkout 0199a2b4 ../review
    dendro checkout 0199a2b4 3 ../of-agent-3 --at 240
    """
    import asyncio

    agent, folder = _place(where)
    made, moment = asyncio.run(_make(Invocation.of(ctx), (id, agent), folder, at))
    typer.echo(f"{folder}: {counted(made.files, 'file')}, as of entry {moment.seq}")


def _place(where: list[str]) -> tuple[int | None, Path]:
    if len(where) > 2 or (len(where) == 2 and not where[0].isdecimal()):
        raise Fault("give an ID, perhaps an agent's number, and a folder", ExitCode.USAGE)
    folder = Path(where[-1]).absolute()
    if folder.is_symlink() or (folder.exists() and (not folder.is_dir() or any(folder.iterdir()))):
        raise Fault(f"{folder} is there, and not an empty folder: nothing is written over; name another one")
    if not folder.parent.is_dir():
        raise Fault(f"no folder {folder.parent} to make {folder.name} in")
    return (int(where[0]) if len(where) == 2 else None), folder


async def _make(
    invocation: Invocation, whom: tuple[str, int | None], folder: Path, at: int | None
) -> tuple[Made, Moment]:
    import asyncio

    from orchestrator.cli.invocation import opened
    from orchestrator.views.find import addressed
    from orchestrator.views.workspaces import fetched, folder_past

    async with opened(invocation.settings()) as found:
        target = await addressed(found, *whom)
        moment = (await folder_past(found, target.head)).settled(at)
        near, bounds = folder.parent, found.folder_bounds()
        async with fetched(found.packs(), target.tree, moment.packs, bounds, near=near) as copy:
            made = await copy.keeper.make(copy.packs, moment.snapshot)
            # Whole or not at all, and never over what came there meanwhile.
            await asyncio.to_thread(copy.folder.rename, folder)
            return made, moment


# ── push ──────────────────────────────────────────────────────────────────────────────────────────


def push(
    ctx: typer.Context,
    id: Annotated[str, typer.Argument(metavar="ID", help=ID_HELP)],
    agent: Annotated[int | None, typer.Argument(metavar="AGENT", min=0, help=AGENT_HELP)] = None,
    branch: Annotated[
        str | None, typer.Option("--branch", metavar="NAME", help="Instead of dendro/ and the session's id.")
    ] = None,
    at: Annotated[int | None, typer.Option("--at", metavar="SEQ", min=1, help=AT_HELP)] = None,
) -> None:
    """Makes a branch of your repository from a session's portable folder.

    One commit, on the commit that the session began with; again, one on top.
    Nothing is checked out, and your files, index and other branches stay as
    they are. `git push` sends it on.

    \b
    dendro push 0199a2b4
    dendro push 0199a2b4 3 --branch fix-parser
    git diff main...fix-parser
    """
    import asyncio

    done = asyncio.run(_pushed(Invocation.of(ctx), (id, agent), branch, at))
    typer.echo(f"{done.branch}: {done.commit[:12]}{'' if done.new else ', which has it already'}")


async def _pushed(
    invocation: Invocation, whom: tuple[str, int | None], branch: str | None, at: int | None
) -> Pushed:
    import asyncio

    from orchestrator.cli.invocation import opened
    from orchestrator.views.find import addressed, short_id
    from orchestrator.views.workspaces import fetched, folder_past
    from orchestrator.workspaces.branches import Repository, Work

    settings = invocation.settings()
    repository = Repository.at(Path.cwd(), settings.host.environ)
    async with opened(settings) as found:
        target = await addressed(found, *whom)
        name = branch or f"dendro/{short_id(target.session)}"
        repository.check(name)
        moment = (await folder_past(found, target.head)).settled(at)
        async with fetched(found.packs(), target.tree, moment.packs, found.folder_bounds()) as copy:
            made = await copy.keeper.make(copy.packs, moment.snapshot)
            work = Work(target.session, target.name, moment.snapshot, made.head)
            return await asyncio.to_thread(repository.push, name, copy.folder, work)


# ── apply ─────────────────────────────────────────────────────────────────────────────────────────


def apply(
    ctx: typer.Context,
    id: Annotated[str, typer.Argument(metavar="ID", help=ID_HELP)],
    agent: Annotated[int | None, typer.Argument(metavar="AGENT", min=0, help=AGENT_HELP)] = None,
    to: Annotated[
        Path | None,
        typer.Option("--to", metavar="DIR", help="The folder, instead of the checkout that you are in."),
    ] = None,
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

    if from_ is not None and at is not None and from_ >= at:
        raise Fault(
            f"--from {from_} is not before --at {at}: nothing was changed between them", ExitCode.USAGE
        )
    wanted = Wanted(to.absolute() if to is not None else top_of(Path.cwd()), from_, at, check)
    if not wanted.folder.is_dir():
        raise Fault(f"no folder {to} to merge into; `dendro checkout` makes one", ExitCode.USAGE)
    if not asyncio.run(_apply(Invocation.of(ctx), (id, agent), wanted)):
        raise typer.Exit(1)


def top_of(folder: Path) -> Path:
    """The top of the checkout that a folder is in, where a portable copy of it begins; else the folder."""
    from orchestrator.sandbox.git import GitFailed, work_tree

    try:
        return work_tree(folder) or folder
    except (GitFailed, OSError, ValueError):
        return folder


@record
class Wanted:
    """The changes that are wanted, and where."""

    folder: Path
    after: int | None = None
    """The entry from which on they are wanted; None: from the first one."""
    until: int | None = None
    check: bool = False


async def _apply(invocation: Invocation, whom: tuple[str, int | None], wanted: Wanted) -> bool:
    from orchestrator.cli.invocation import opened
    from orchestrator.views.find import addressed

    async with opened(invocation.settings()) as found:
        return await applied(found, (await addressed(found, *whom)).head, wanted, typer.echo)


async def applied(found: Opened, head: SessionHead, wanted: Wanted, say: Callable[[str], object]) -> bool:
    """Merges a session's changes and tells of it; False if a conflict kept it from that."""
    from orchestrator.folders.outcomes import Conflicted
    from orchestrator.views.workspaces import fetched, folder_past, packs_of

    past = await folder_past(found, head)
    base = past.base if wanted.after is None else past.at(wanted.after)
    theirs = past.settled(wanted.until)
    packs = packs_of((base, theirs))
    async with fetched(found.packs(), head.tree, packs, found.folder_bounds(), wanted.folder) as copy:
        result = await _merge(copy, base, theirs, wanted.check)
    if isinstance(result, Conflicted):
        _show_conflicts(result, wanted.folder)
        return False
    _show_names(result, say)
    done = "would change" if wanted.check else "changed"
    say(f"{wanted.folder}: {counted(_count(result), 'file')} {done}, as of entry {theirs.seq}")
    if not wanted.check:
        say(f"for what the session changes from here on: dendro apply {head.session} --from {theirs.seq}")
    return True


async def _merge(
    copy: FetchedFolder, base: Moment, theirs: Moment, check: bool
) -> Planned | Merged | Conflicted:
    from orchestrator.folders.outcomes import Conflicted

    plan = await copy.keeper.plan_merge(base.snapshot, theirs.snapshot, copy.packs)
    if check or isinstance(plan, Conflicted):
        return plan
    return await copy.keeper.write_merge(base.snapshot, theirs.snapshot, copy.packs, plan.digest)


def _show_conflicts(found: Conflicted, folder: Path) -> None:
    from orchestrator.terminal.text import one_line

    typer.echo(f"{folder}: nothing was written, {counted(found.all, 'conflict')}", err=True)
    for conflict in found.conflicts:
        typer.echo(f"  {one_line(conflict.path)}: {one_line(conflict.why)}", err=True)
    if found.all > len(found.conflicts):
        typer.echo(f"  and {found.all - len(found.conflicts)} more", err=True)
    typer.echo("`dendro checkout` gives you the session's side as a folder", err=True)


def _show_names(found: Planned | Merged, say: Callable[[str], object]) -> None:
    from orchestrator.terminal.text import one_line

    for name in found.names:
        say(f"  {one_line(name)}")
    if (more := _count(found) - len(found.names)) > 0:
        say(f"  and {more} more")


def _count(found: Planned | Merged) -> int:
    return found.counts.added + found.counts.modified + found.counts.deleted
