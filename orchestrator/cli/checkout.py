"""`dendro checkout` and `dendro push`: the folder of a session, as it was at any entry of its log, as a
folder or as a branch of the person's repository.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.invocation import AGENT_HELP, ID_HELP, Invocation
from orchestrator.core.counts import counted
from orchestrator.terminal.faults import ExitCode, Fault

if TYPE_CHECKING:
    from orchestrator.folders.outcomes import Made
    from orchestrator.views.workspaces import Moment
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
