"""`dendro push`: a session's folder as a branch of the person's repository."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.invocation import AGENT_HELP, ID_HELP, Invocation

if TYPE_CHECKING:
    from orchestrator.workspaces.branches import Pushed


def push(
    ctx: typer.Context,
    id: Annotated[str, typer.Argument(metavar="ID", help=ID_HELP)],
    agent: Annotated[int | None, typer.Argument(metavar="AGENT", min=0, help=AGENT_HELP)] = None,
    branch: Annotated[
        str | None, typer.Option("--branch", metavar="NAME", help="Instead of dendro/ and the session's id.")
    ] = None,
    at: Annotated[
        int | None, typer.Option("--at", metavar="SEQ", min=1, help="As it was at this entry of the log.")
    ] = None,
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
    from orchestrator.views.agents import addressed
    from orchestrator.views.short_ids import short_id
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
