"""Methods about the folder of a portable thread: which files it changed, when, and the lines of one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from orchestrator.broker.records import SessionHead
from orchestrator.core.ids import SessionId
from orchestrator.core.registry import projected
from orchestrator.core.tree import ROOT
from orchestrator.gateways.app_server.door import Door
from orchestrator.gateways.app_server.messages import RpcError, bad_params
from orchestrator.gateways.app_server.method import Method, Params, Result
from orchestrator.gateways.app_server.methods.threads import tree_entry_at
from orchestrator.gateways.principals import Scope
from orchestrator.protocol.bounds import PATH_BYTES
from orchestrator.protocol.wire import JsonObject
from orchestrator.views import ViewError
from orchestrator.views.readable import readable

if TYPE_CHECKING:
    from orchestrator.folders.outcomes import JoinedFile
    from orchestrator.views.workspaces import FolderDiffs, FolderPast, Member, Moment

MOST_MOMENTS = 1_000
KINDS: Mapping[str, str] = {"A": "add", "M": "update", "D": "delete"}
Seq = Annotated[int, Field(ge=1, le=1 << 53)]


class Between(Params):
    """Two entries of a thread's log: from its first one up to now, if they are not named.

    `at` is an entry of the tree's log instead: as the folder was at its time.
    """

    thread_id: str
    from_: Annotated[Seq | None, Field(alias="from")] = None
    to: Seq | None = None
    at: Seq | None = None


class Changed(Between):
    """The same; with `below` also of all agents below the thread's, as if all were merged into its folder."""

    below: bool = False


class OneFile(Between):
    """Two entries, and one file, as `workspace/changes` names it."""

    path: Annotated[str, Field(min_length=1, max_length=4 * PATH_BYTES)]


async def changes(door: Door, params: Changed) -> Result:
    """The files that differ, and the entries at which the folder changed."""
    from orchestrator.views.workspaces import recorded_past

    head = await door.head(params.thread_id)
    if params.below:
        return await _joined(door, head, params)
    past = await recorded_past(door.ports.found, head)
    if past is None:
        return {"portable": False, "files": [], "moments": [], "from": None, "to": None, "more": 0}
    before, after = await _moments(door, head, past, params)
    try:
        found = await _diffs(door).between(head.tree, before, after)
    except ViewError as error:
        raise RpcError(str(error)) from None
    files = [
        {
            "path": file.path,
            "oldPath": None,
            "kind": KINDS[file.what],
            "added": file.insertions,
            "removed": file.deletions,
            "binary": file.binary and not file.too_large,
            "tooLarge": file.too_large,
            "agentId": None,
        }
        for file in found.files
    ]
    total = found.counts.added + found.counts.modified + found.counts.deleted
    return {
        "portable": True,
        "files": files,
        "more": total - len(files),
        "added": found.insertions,
        "removed": found.deletions,
        "from": before.seq,
        "to": after.seq,
        "moments": [
            {"seq": moment.seq, "atMs": moment.at_ms, "files": moment.files}
            for moment in past.moments[-MOST_MOMENTS:]
        ],
        "unsaved": _unsaved(past, after, params.to),
    }


def _unsaved(past: FolderPast, after: Moment, to: int | None) -> str | None:
    """The machine that alone has changes of the folder as it was at a place."""
    if past.unsaved is None or after is not past.moments[-1] or not past.lacks(to):
        return None
    return past.unsaved.machine


async def _joined(door: Door, head: SessionHead, params: Changed) -> Result:
    """The files that the agents below a thread's and it have changed, and which of them changed which."""
    if params.from_ is not None or params.to is not None:
        raise bad_params("below: from and to are entries of one log; at says up to where")
    at_ms = None if params.at is None else (await tree_entry_at(door, head, params.at)).at_ms
    try:
        found = await _diffs(door).of_tree(door.ports.found, await _members(door, head), at_ms)
    except ViewError as error:
        raise RpcError(str(error)) from None
    ids = [None if one is None else one.agent_id for one in found.agents]
    top = ids[0] if ids[0] is not None else int(head.agent_id)
    files = [
        _joined_file(file, [top, *(it for it in ids[1:] if it is not None)]) for file in found.joined.files
    ]
    return {
        "portable": any(one is not None for one in found.agents),
        "files": files,
        "more": found.joined.all - len(files),
        "added": found.joined.insertions,
        "removed": found.joined.deletions,
        "conflicts": found.joined.conflicts,
        "from": None,
        "to": None,
        "moments": [],
        "unsaved": next((one.unsaved for one in found.agents if one is not None and one.unsaved), None),
        "agents": [
            {
                "agentId": one.agent_id,
                "threadId": one.head.session,
                "from": one.base.seq,
                "to": one.now.seq,
                "unsaved": one.unsaved or None,
            }
            for one in found.agents
            if one is not None
        ],
        "moreAgents": found.left_out,
    }


async def _members(door: Door, head: SessionHead) -> list[Member]:
    """The thread's agent and those below it whose folders go along with them, each behind those above it."""
    from orchestrator.views.workspaces import Member

    broker, top = door.ports.found.broker, int(head.agent_id)
    _, fields = await broker.trees.projection(head.tree)
    agents = projected(fields).agents
    below = {
        number: tuple(int(one) for one in agent.path.split("/")[:-1])
        for number, agent in agents.items()
        if number != top and (top == ROOT or agent.below(top))
    }
    order = sorted(below, key=lambda number: (len(below[number]), number))
    heads = {
        int(one.agent_id): one
        for one in await readable(broker.logs, [SessionId(agents[it].session) for it in order])
    }
    rows = [Member(it, heads[it], below[it]) for it in order if it in heads and heads[it].portable]
    return [Member(top, head), *rows]


def _joined_file(file: JoinedFile, ids: Sequence[int]) -> JsonObject:
    between = None if file.between is None else [ids[branch] for branch in file.between]
    shares = [
        {
            "agentId": ids[share.branch],
            "kind": KINDS[share.what],
            "added": share.insertions,
            "removed": share.deletions,
        }
        for share in file.shares
    ]
    return {
        "path": file.path,
        "oldPath": None,
        "kind": KINDS[file.what],
        "added": file.insertions,
        "removed": file.deletions,
        "binary": file.binary and not file.too_large,
        "tooLarge": file.too_large,
        "agentId": shares[0]["agentId"] if file.of == 1 else None,
        "agents": shares,
        "of": file.of,
        "conflict": None if between is None else {"agents": between, "reason": file.conflict},
    }


async def diff(door: Door, params: OneFile) -> Result:
    """The lines by which a file differs."""
    from orchestrator.views.workspaces import folder_past, hunks

    head = await door.head(params.thread_id)
    try:
        past = await folder_past(door.ports.found, head)
        before, after = await _moments(door, head, past, params)
        found = await _diffs(door).between(head.tree, before, after, params.path)
    except ViewError as error:
        raise RpcError(str(error)) from None
    if not found.files:
        raise bad_params(f"path: {params.path[:200]!r} is no file that differs between these entries")
    told = [
        {"oldStart": hunk.old_start, "newStart": hunk.new_start, "lines": [list(line) for line in hunk.lines]}
        for hunk in hunks(found.text)
    ]
    return {"hunks": told, "truncated": found.truncated}


async def _moments(door: Door, head: SessionHead, past: FolderPast, params: Between) -> tuple[Moment, Moment]:
    """The snapshots to compare; raises `RpcError`."""
    if params.at is not None and params.to is not None:
        raise bad_params("at, to: one of them says up to where")
    try:
        before = past.base if params.from_ is None else past.at(params.from_)
        if params.at is None:
            return before, past.at(params.to)
    except ViewError as error:
        raise bad_params(str(error)) from None
    entry = await tree_entry_at(door, head, params.at)
    if entry.session == head.session:
        # Its own names its place, which no clock could tell from others of that moment.
        then = [moment for moment in past.moments if moment.seq <= entry.seq]
    else:
        then = [moment for moment in past.moments if moment.at_ms <= entry.at_ms]
    return (before, then[-1]) if then else (past.base, past.base)


def _diffs(door: Door) -> FolderDiffs:
    if door.ports.folder_diffs is None:
        raise RpcError("this server compares no folders: dendro diff does")
    return door.ports.folder_diffs()


METHODS: Mapping[str, Method] = {
    "workspace/changes": Method(Changed, changes, Scope.READ, waits=True),
    "workspace/diff": Method(OneFile, diff, Scope.READ, waits=True),
}
