"""Methods that change a thread beside its turns: settings, rollback, deletion, a command, a review."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import orjson
from pydantic import Field, ValidationError

from orchestrator.broker.errors import SessionHeld
from orchestrator.broker.notices import until
from orchestrator.broker.open_requests import MOST_NOTE_BYTES
from orchestrator.broker.records import AT_REST, SessionHead
from orchestrator.core.tree import ROOT
from orchestrator.gateways.app_server.door import Door
from orchestrator.gateways.app_server.messages import RpcError, bad_params, invalid
from orchestrator.gateways.app_server.method import Method, Params, Result
from orchestrator.gateways.app_server.methods.threads import head_to_read, thread_of
from orchestrator.gateways.app_server.methods.turns import (
    ThreadParams,
    settings_after,
    started_turn,
    tell_settings,
)
from orchestrator.gateways.app_server.turn_params import TurnSettingsParams
from orchestrator.gateways.app_server.write_items import GIT, read_state_json
from orchestrator.gateways.principals import Scope
from orchestrator.gateways.submit import unread
from orchestrator.protocol import ops
from orchestrator.protocol.events import EventModel, ItemsInjected, ThreadRolledBack
from orchestrator.protocol.review import ReviewRequest
from orchestrator.protocol.submission import Submission
from orchestrator.rollouts.deletion import NotDeleted
from orchestrator.rollouts.object_store import ArchiveUnavailable
from orchestrator.views import SetAside
from orchestrator.views.thread_log import ThreadLog
from orchestrator.views.thread_pages import end_of
from orchestrator.views.threads import StaleReadState, mark_read, settings_of, thread

TAKEN = "messages of text are taken, no calls, outputs or reasoning: they belong to the model that made them"
MOST_COMMAND = 64 << 10
REST_S = 2.0
"""A worker lets go of a thread within milliseconds of its turn's end."""


# ── settings ──────────────────────────────────────────────────────────────────────────────────────


class SettingsUpdate(TurnSettingsParams):
    """Settings of the turns to come."""

    thread_id: str


async def settings_update(door: Door, params: SettingsUpdate) -> Result:
    """Changes a thread's settings, for its next turn on, and tells them."""
    head = await door.head(params.thread_id)
    override = params.override()
    settings = await settings_of(door.ports.found, head)
    if override is not None:
        await door.client.submit(head.session, Submission(door.new_turn_id(), override))
        settings = settings_after(settings, override)
    tell_settings(door, head.session, settings)
    return {}


# ── going back ────────────────────────────────────────────────────────────────────────────────────


class Revert(Params):
    """The turn before which a thread is to go on."""

    thread_id: str
    before_turn_id: str


async def revert(door: Door, params: Revert) -> Result:
    """Takes the conversation back to before a turn; files stay as they are."""
    head = await door.head(params.thread_id)
    said = await _said_since(door, head, params.before_turn_id)
    await _decided(door, head, ops.ThreadRollback(num_turns=said), ThreadRolledBack)
    now = await door.head(params.thread_id)
    if head.session not in door.subscriptions:
        door.notify("thread/reverted", {"threadId": head.session})
    return {
        "thread": await thread_of(door, now),
        "turnsBackwardsCursor": str(end_of(now, "turns")),
        "itemsBackwardsCursor": str(end_of(now, "items")),
    }


async def _said_since(door: Door, head: SessionHead, turn: str) -> int:
    """The messages of people from a turn's first on; raises `RpcError`."""
    said, log = 0, await ThreadLog.of(door.ports.found, head)
    async for stretch in log.back(left_too=True):
        named = stretch.turn == turn
        # Of several messages the log does not tell which had been read where input went on.
        if (named and stretch.left) or (stretch.goes_on_at and stretch.said > 1):
            raise RpcError(
                f"turn {turn} lies before input that went on from an earlier turn: thread/fork with "
                "beforeTurnId goes on from before it"
            )
        said += 0 if stretch.left else stretch.said
        if named:
            if said:
                return said
            raise RpcError(f"nobody spoke in turn {turn}, or since: there is nothing to take back")
    raise RpcError(f"turn not found: {turn[:100]}")


async def _decided(door: Door, head: SessionHead, op: ops.Op, event: type[EventModel]) -> None:
    """Submits an op, and waits until the session has done it; raises `RpcError`, `OpRefused`."""
    if await door.decided(head, op, {event}) is None:
        raise RpcError(unread(head))


# ── put away, and brought back ────────────────────────────────────────────────────────────────────


async def archive(door: Door, params: ThreadParams) -> Result:
    """Puts a thread away from the lists; its log stays. One that is at work is refused."""
    head = await _root(door, params.thread_id)
    await tree_at_rest(door, head)
    await door.ports.found.broker.trees.enlist(head.session, shelve=True)
    door.notify("thread/status/changed", {"threadId": head.session, "status": {"type": "notLoaded"}})
    door.tell_all(head.session, "thread/archived", {"threadId": head.session})
    return {}


async def unarchive(door: Door, params: ThreadParams) -> Result:
    """Brings a thread back into the lists."""
    head = await _root(door, params.thread_id)
    await door.ports.found.broker.trees.enlist(head.session, shelve=False)
    door.tell_all(head.session, "thread/unarchived", {"threadId": head.session})
    return {"thread": await thread_of(door, await door.head(params.thread_id))}


async def _root(door: Door, thread: str) -> SessionHead:
    """The root that a thread is; raises `RpcError` for an agent's."""
    head = await head_to_read(door, thread)
    if head.agent_id != ROOT:
        raise RpcError(f"an agent's thread goes with its tree: name that of its root, {head.tree}")
    return head


# ── the end of a thread ───────────────────────────────────────────────────────────────────────────


async def delete(door: Door, params: ThreadParams) -> Result:
    """Deletes a thread with its agents, for good; one that is at work is refused."""
    head = await _root(door, params.thread_id)
    try:
        await door.ports.delete(await tree_at_rest(door, head), door.principal.name)
    except SessionHeld as error:
        raise RpcError(f"{error}: interrupt it, and delete it then") from None
    except NotDeleted as error:
        raise RpcError(str(error)) from None
    except ArchiveUnavailable as error:
        if await door.client.head(head.session) is not None:
            raise RpcError(f"{error}: nothing was deleted; try again when the archive answers") from None
    door.unsubscribe(head.session)
    door.notify("thread/deleted", {"threadId": head.session})
    return {}


async def tree_at_rest(door: Door, root: SessionHead) -> list[SessionHead]:
    """All sessions of a tree, once a worker has let go of them; raises `RpcError` if they are at work."""
    members = await _members(door, root)

    async def let_go() -> bool:
        nonlocal members
        members = await _members(door, root)
        busy = next((one for one in members if one.status not in AT_REST), None)
        if busy is not None:
            raise _at_work(busy)
        return all(one.let_go for one in members)

    names = [one.session for one in members]
    if not await until(door.ports.found.broker, names, let_go, REST_S):
        raise _at_work(next(one for one in members if not one.let_go))
    return members


def _at_work(member: SessionHead) -> RpcError:
    if member.quarantined:
        return RpcError(f"{SetAside(member.session)}; `dendro rm --force` removes it as it is")
    return RpcError(f"thread {member.session} is at work: interrupt it first")


async def _members(door: Door, root: SessionHead) -> list[SessionHead]:
    """All sessions of a tree."""
    return list(await door.ports.found.broker.logs.heads_of_tree(root.tree))


# ── turns of another kind ─────────────────────────────────────────────────────────────────────────


class ShellCommand(Params):
    """A command line that a person typed."""

    thread_id: str
    command: Annotated[str, Field(min_length=1, max_length=MOST_COMMAND)]


async def shell_command(door: Door, params: ShellCommand) -> Result:
    """Runs a person's command line in the thread's folder, as a turn of its own."""
    head = await door.head(params.thread_id)
    op = ops.RunUserShellCommand(command=params.command)
    await door.goes_on(head)
    await door.client.submit(head.session, Submission(door.new_turn_id(), op))
    return {}


class ReviewStart(Params):
    """The subject of a review."""

    thread_id: str
    target: dict[str, Any]
    delivery: Literal["inline"] | None = None


async def review_start(door: Door, params: ReviewStart) -> Result:
    """Begins a review in the thread itself."""
    head = await door.head(params.thread_id)
    try:
        request = ReviewRequest.model_validate({"target": params.target})
    except ValidationError as error:
        raise invalid(error) from None
    turn = door.new_turn_id()
    await door.goes_on(head)
    await door.client.submit(head.session, Submission(turn, ops.Review(review_request=request)))
    return {"turn": started_turn(turn), "reviewThreadId": head.session}


class InjectItems(Params):
    """Messages for a thread's conversation, in the form of the Responses API."""

    thread_id: str
    items: list[Any]


async def inject_items(door: Door, params: InjectItems) -> Result:
    """Adds messages to the conversation, and begins no turn; the answer is sent when they are in it."""
    head = await door.head(params.thread_id)
    try:
        op = ops.InjectItems.model_validate({"items": params.items}, extra="ignore")
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise bad_params(f"{where}: {first['msg']}; {TAKEN}") from None
    await _decided(door, head, op, ItemsInjected)
    return {}


METHODS: Mapping[str, Method] = {
    "thread/settings/update": Method(SettingsUpdate, settings_update, Scope.SUBMIT),
    "thread/revert": Method(Revert, revert, Scope.SUBMIT, waits=True),
    "thread/archive": Method(ThreadParams, archive, Scope.SUBMIT),
    "thread/unarchive": Method(ThreadParams, unarchive, Scope.SUBMIT),
    "thread/delete": Method(ThreadParams, delete, Scope.ADMIN),
    "thread/shellCommand": Method(ShellCommand, shell_command, Scope.APPROVE),
    "review/start": Method(ReviewStart, review_start, Scope.SUBMIT),
    "thread/inject_items": Method(InjectItems, inject_items, Scope.SUBMIT, waits=True),
}


# ── marks ─────────────────────────────────────────────────────────────────────────────────────────
# Methods that note something about a thread beside its log: how far it was read, what its repository is.


MOST_TEXT = 1_024
MOST_REVISION = 100
TRIES = 5
"""Attempts at a note that others change at the same moment."""


class Operation(Params):
    """The new state of a thread."""

    type: Literal["read", "unread"]


class ReadStateUpdate(Params):
    """A thread, what its person made of it, and the state that the client knows."""

    thread_id: str
    operation: Operation
    expected_revision: Annotated[str, Field(max_length=MOST_REVISION)]


async def read_state_update(door: Door, params: ReadStateUpdate) -> Result:
    """Marks a thread as read or unread for this principal, at all of its clients."""
    head = await head_to_read(door, params.thread_id)
    read = params.operation.type == "read"
    found, person = door.ports.found, door.principal.name
    try:
        state = await mark_read(found, head, person, params.expected_revision, read=read)
    except StaleReadState as error:
        raise RpcError(str(error)) from None
    except ValueError as error:
        raise bad_params(f"expectedRevision: {error}") from None
    door.tells_read_states = True
    told = {"threadId": head.session, "readState": read_state_json(state)}
    for each in door.doors_of(head.session):
        if each.principal.name == person and each.tells_read_states:
            each.notify("thread/readState/changed", told)
    return {"readState": read_state_json(state)}


Text = Annotated[str, Field(min_length=1, max_length=MOST_TEXT)]


class GitInfo(Params):
    """Facts of a repository: null takes one away, one that is left out stays."""

    sha: Text | None = None
    branch: Text | None = None
    origin_url: Text | None = None


class MetadataUpdate(Params):
    """A thread, and what a client knows better of it."""

    thread_id: str
    git_info: GitInfo | None = None
    project_id: str | None = None
    daybreak_enabled: bool | None = None


async def metadata_update(door: Door, params: MetadataUpdate) -> Result:
    """Notes what a client tells of a thread's repository; its log, and what the model is told, stay."""
    head = await head_to_read(door, params.thread_id)
    if params.project_id is not None:
        raise bad_params("projectId: there are no projects here: threads are found by folder, name and tree")
    if params.git_info is not None:
        head = await _with_git(door, head, params.git_info)
    return {"thread": await thread_of(door, head)}


async def _with_git(door: Door, head: SessionHead, told: GitInfo) -> SessionHead:
    """The head with the note; changes of others to other members stay."""
    broker = door.ports.found.broker
    for _ in range(TRIES):
        changed = {
            GIT[name]: value for name, value in told.model_dump(by_alias=True, exclude_unset=True).items()
        }
        known = {**(thread(head).git or {}), **changed}
        note = orjson.dumps({name: value for name, value in known.items() if value is not None})
        if len(note) > MOST_NOTE_BYTES:
            raise bad_params(f"gitInfo: at most {MOST_NOTE_BYTES:,} bytes in all, these are {len(note):,}")
        kept = await broker.requests.note(head.session, "git", note, head.git_note)
        head = await door.head(head.session)
        if kept == note:
            return head
    raise RpcError("others change this thread's metadata at the same moment: try again")


MARKS: Mapping[str, Method] = {
    "thread/readState/update": Method(ReadStateUpdate, read_state_update, Scope.READ),
    "thread/metadata/update": Method(MetadataUpdate, metadata_update, Scope.SUBMIT),
}
