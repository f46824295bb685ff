"""`dendro rm`: a tree of sessions is deleted: Redis, archive, and the files that were written of it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.invocation import Invocation
from orchestrator.core.counts import counted
from orchestrator.home import without_links
from orchestrator.terminal.faults import ExitCode, Fault

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from orchestrator.broker.records import SessionHead
    from orchestrator.wiring.open_deployment import Opened


def rm(
    ctx: typer.Context,
    ids: Annotated[list[str], typer.Argument(metavar="ID…", help="Root sessions, or parts of their ids.")],
    force: Annotated[
        bool,
        typer.Option("--force", help="Also trees that work or wait for a person; what runs is ended first."),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask at the terminal.")] = False,
) -> None:
    """Deletes whole trees: logs, queues, large texts, archived parts, and rollout files of this machine.

    Nothing brings them back but a file that was exported elsewhere. A tree that
    works, has something queued, or waits for a person needs --force.

    \b
    dendro rm 7c1e95aa
    dendro rm 7c1e95aa 90b3d0f2 --force --yes
    """
    import uvloop

    uvloop.run(_rm(Invocation.of(ctx), ids, force=force, ask=not yes and sys.stdin.isatty()))


async def _rm(invocation: Invocation, ids: Sequence[str], *, force: bool, ask: bool) -> None:
    from orchestrator.cli.invocation import opened

    async with opened(invocation.settings()) as found:
        roots = {root.session: root for id in ids for root in [await _root(found, id)]}
        if not force:
            # One that is not done refuses the whole command, before another is removed.
            for root in roots.values():
                await _require_done(found, await _members(found, root))
        for root in roots.values():
            await _remove(found, root, force=force, ask=ask)


async def _root(found: Opened, id: str) -> SessionHead:
    from orchestrator.views.find import short_id

    head = await found.find(id)
    if head.agent_id:
        raise Fault(
            f"{head.session} is agent {head.agent_id} of a tree, and a tree is removed as a whole: "
            f"dendro rm {short_id(head.tree)}",
            ExitCode.USAGE,
        )
    return head


async def _remove(found: Opened, root: SessionHead, *, force: bool, ask: bool) -> None:
    members = await _members(found, root)
    if not force:
        await _require_done(found, members)
    if ask and not typer.confirm(f"remove {_described(members)}?"):
        typer.echo("nothing was removed")
        return
    if ask and force:
        # What began while the person was asked is ended as well.
        members = await _members(found, root)
    if busy := [head for head in members if not _quiet(head)]:
        # What a worker is doing may take its time to end: somebody waits here meanwhile.
        typer.echo(f"ending first what is at work: {', '.join(map(_part, busy))}")
        await _end(found, members[-1])
        members = await _members(found, root)
    files = _files(found, members)
    await _delete(found, members, force=force)
    for file in files:
        file.unlink(missing_ok=True)
    written = f", {counted(len(files), 'rollout file')}" if files else ""
    typer.echo(f"removed {_described(members)}{written}")


async def _require_done(found: Opened, members: Sequence[SessionHead]) -> None:
    if why := await _at_work(found, members):
        session = members[-1].session
        raise Fault(f"session {session} is not done: {why}; --force ends and removes it", ExitCode.USAGE)


async def _members(found: Opened, root: SessionHead) -> list[SessionHead]:
    """All sessions of the tree, the root last."""
    members = await found.broker.logs.heads_of_tree(root.tree)
    others = [head for head in members if head.session != root.session]
    current = await found.broker.logs.head(root.session)
    return [*others, current or root]


async def _at_work(found: Opened, members: Sequence[SessionHead]) -> str:
    """The reason why a tree is not done; empty if it is. Its deletion looks again by itself."""
    from orchestrator.broker.records import AT_REST
    from orchestrator.wiring.cancelling import agents_at_work

    for head in reversed(members):
        if head.quarantined:
            return f"{_part(head)} is quarantined"
        if head.status not in AT_REST:
            return f"{_part(head)} is {head.status.replace('_', ' ')}"
        if not _quiet(head):
            return f"{_part(head)} " + ("is held by a worker" if head.holder else "has unread input")
    sessions, shard = {head.session for head in members}, found.broker.keys.shard_of(members[-1].session)
    if any(asked.session in sessions for asked in await found.broker.requests.approvals_of([shard])):
        return "it waits for a person"
    if left := await agents_at_work(found, members[-1].tree):
        return f"{', '.join(f'agent {number}' for number in left)} at work"
    return ""


def _quiet(head: SessionHead) -> bool:
    """Whether nothing is to be ended; of what no worker may take nothing can be."""
    return head.quarantined or (head.parked and head.status != "running")


def _part(head: SessionHead) -> str:
    return f"agent {head.agent_id}" if head.agent_id else "the root"


def _described(members: Sequence[SessionHead]) -> str:
    from orchestrator.terminal.text import one_line
    from orchestrator.views.find import short_id

    root = members[-1]
    agents = f" and its {counted(len(members) - 1, 'agent')}" if len(members) > 1 else ""
    return short_id(root.session) + (f" ({one_line(root.title)})" if root.title else "") + agents


async def _end(found: Opened, root: SessionHead) -> None:
    """Closes the root, and its tree before it; raises `Fault` if something still runs."""
    from orchestrator.views.find import Addressed
    from orchestrator.wiring.cancelling import end_tree

    left = await end_tree(found, Addressed(root), typer.echo)
    if left:
        raise Fault(f"not removed: still at work: {', '.join(left)}; `dendro cancel {root.session} --force`")


def _files(found: Opened, members: Sequence[SessionHead]) -> list[Path]:
    """Rollout files in this data folder; a path elsewhere is not ours to delete, whoever wrote it down."""
    from pathlib import Path

    folder = without_links(found.settings.home / "sessions")
    files = []
    for head in members:
        named = head.summary.get("rollout_path")
        path = without_links(Path(named)) if named else None
        if path is not None and path.is_relative_to(folder) and head.session in path.name and path.is_file():
            files.append(path)
    return files


async def _delete(found: Opened, members: Sequence[SessionHead], *, force: bool) -> None:
    from orchestrator.gateways.principals import machine_user
    from orchestrator.rollouts.archive import Storage
    from workers.upkeep_retention import delete_tree

    storage = Storage(found.broker, found.deployment.blobs, found.archive(), found.secret)
    if not await delete_tree(storage, members, owed=force, by=machine_user().name):
        raise Fault(f"not removed: a session of {members[-1].session} was taken by a worker meanwhile; again")
