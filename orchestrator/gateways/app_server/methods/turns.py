"""Methods of a thread at work: begin it, speak to it, steer and stop its turns."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from orchestrator.broker.errors import Corrupt, SubmissionConflict, UnknownSession
from orchestrator.broker.records import SessionHead, Submitted
from orchestrator.broker.script_requests import queue_number
from orchestrator.core.birth import ForkedFrom
from orchestrator.core.client_tools import MOST_TOOLS, BadTool, ClientTool, client_tool
from orchestrator.core.entries import read_event, stored_kind
from orchestrator.core.ids import SessionId
from orchestrator.core.modes import settings_named
from orchestrator.core.registry import projected
from orchestrator.core.settings import TurnSettings
from orchestrator.core.tree import ROOT
from orchestrator.gateways.app_server.door import Door, session_of
from orchestrator.gateways.app_server.door_ports import BadSetting, Born, NewThread
from orchestrator.gateways.app_server.messages import Code, RpcError, bad_params, no_rollout
from orchestrator.gateways.app_server.method import Method, Params, Result
from orchestrator.gateways.app_server.methods.threads import (
    TreePlace,
    all_turns,
    as_it_was,
    head_to_read,
    thread_of,
)
from orchestrator.gateways.app_server.turn_params import (
    Mode,
    NamedSettings,
    Reviewer,
    Said,
    TurnSettingsParams,
    input_items,
    session_json,
    settings_json,
)
from orchestrator.gateways.app_server.write_items import notifications, thread_json
from orchestrator.gateways.fork import fork_at, to_fork
from orchestrator.gateways.principals import Scope
from orchestrator.gateways.submit import unread
from orchestrator.protocol import ops
from orchestrator.protocol.events import TURN_ENDS, InputAccepted, TaskStarted, TokenCount
from orchestrator.protocol.ids import SubmissionId
from orchestrator.protocol.inputs import ImageInput, LocalImageInput, TextInput
from orchestrator.protocol.ops import WorkspaceSource
from orchestrator.protocol.scalars import Delivery
from orchestrator.protocol.submission import Submission
from orchestrator.protocol.wire import written
from orchestrator.views import ViewError
from orchestrator.views.event import Event
from orchestrator.views.sessions import unserved
from orchestrator.views.thread_log import Stretch, ThreadLog
from orchestrator.views.thread_pages import end_of
from orchestrator.views.threads import settings_of, thread
from orchestrator.views.turns.log_events import told_by
from orchestrator.views.turns.projector import Projector
from orchestrator.views.turns.turn_records import TokenUsageUpdated, Turn, TurnId, UserMessage

STEERED = frozenset[type[InputAccepted | TaskStarted]]({InputAccepted, TaskStarted})
"""The events by which a session tells where input went."""
INTERRUPT_S = 30.0
"""Commands get ten seconds to end."""
MOST_LATELY = 16
"""The thread's last turns among which that of a message is looked for that its client sends again."""


# ── brought tools ─────────────────────────────────────────────────────────────────────────────────
# Tools that a client brings with `thread/start`, as it describes them.


class FunctionGiven(Params):
    """A tool; one whose loading is deferred is offered to a model that has searched for it."""

    type: Literal["function"] = "function"
    name: str
    description: str
    input_schema: Any
    defer_loading: bool = False


class NamespaceGiven(Params):
    """Tools whose names begin with one name."""

    type: Literal["namespace"]
    name: str
    description: str
    tools: Annotated[tuple[FunctionGiven, ...], Field(max_length=MOST_TOOLS)]


ToolGiven = Annotated[FunctionGiven | NamespaceGiven, Field(discriminator="type")]


def tools_of(given: Sequence[FunctionGiven | NamespaceGiven]) -> tuple[ClientTool, ...]:
    """The tools that models are offered; raises `RpcError` for one that cannot be."""
    try:
        return tuple(_tools(given))
    except BadTool as error:
        raise bad_params(f"dynamicTools: {error}") from None


def _tools(given: Sequence[FunctionGiven | NamespaceGiven]) -> Iterator[ClientTool]:
    for each in given:
        inside = each.tools if isinstance(each, NamespaceGiven) else (each,)
        namespace = each.name if isinstance(each, NamespaceGiven) else None
        for tool in inside:
            yield client_tool(
                namespace, tool.name, tool.description, tool.input_schema, deferred=tool.defer_loading
            )


# ── threads ───────────────────────────────────────────────────────────────────────────────────────


class ThreadStartParams(NamedSettings):
    """The settings of a new thread, as far as its client names them."""

    model_provider: str | None = None
    approvals_reviewer: Reviewer | None = None
    sandbox: Mode | None = None
    config: dict[str, Any] | None = None
    base_instructions: str | None = None
    developer_instructions: str | None = None
    personality: Literal["none", "friendly", "pragmatic"] | None = None
    ephemeral: bool | None = None
    thread_source: str | None = None
    dynamic_tools: tuple[ToolGiven, ...] | None = None
    workspace: dict[str, Any] | None = None
    """Dendro's own: the first content of a portable folder, as in `configure_session`."""

    def by_keys(self) -> dict[str, Any]:
        """The same; what version 2 calls the developer's instructions are the user's here."""
        own = (
            {} if self.developer_instructions is None else {"user_instructions": self.developer_instructions}
        )
        return {**super().by_keys(), **own}


async def thread_start(door: Door, params: ThreadStartParams) -> Result:
    """Makes a session, and hears it from its first event on."""
    workspace = _workspace(params.workspace)
    brought = tools_of(params.dynamic_tools or ())
    wish = NewThread(
        params.cwd,
        params.by_keys(),
        params.config or {},
        bool(params.ephemeral),
        workspace,
        brought,
        door.info.name if door.info is not None else "",
    )
    try:
        born = await door.ports.create(door.client, door.principal, wish)
    except BadSetting as error:
        raise bad_params(str(error)) from None
    await _hear_new(door, born, params, wish)
    started = thread_json(thread(born.head))
    door.notify("thread/started", {"thread": started})
    _tell_warnings(door, born, wish)
    return {"thread": started, **session_json(born.settings)}


async def _hear_new(door: Door, born: Born, params: ThreadStartParams, wish: NewThread) -> None:
    """Hears a thread that the client has made, from its first event on."""
    subscription = await door.subscribe(born.head.session, newborn=True)
    subscription.asks = asks_of(door, params.approvals_reviewer)
    subscription.live.ephemeral = wish.ephemeral
    if wish.ephemeral:
        door.threads.keep(subscription.live)


def _tell_warnings(door: Door, born: Born, wish: NewThread) -> None:
    """Tells the client what of its settings is not acted on; of a thread for one question nothing."""
    for warning in () if wish.ephemeral else born.warnings:
        door.notify("configWarning", {"summary": warning, "details": None})


def _workspace(given: dict[str, Any] | None) -> WorkspaceSource | None:
    if given is None:
        return None
    try:
        return WorkspaceSource.model_validate(given)
    except ValidationError as error:
        raise bad_params(f"workspace: {error.errors()[0]['msg']}") from None


def asks_of(door: Door, reviewer: Reviewer | None) -> bool:
    """Whether a client that names such a reviewer is asked, or the people at the fleet's queue are."""
    return reviewer in (None, "user") or door.ports.asks_auto_review


class ThreadParams(Params):
    """A thread."""

    thread_id: str


async def thread_unsubscribe(door: Door, params: ThreadParams) -> Result:
    """Hears a thread no more; what runs in it goes on."""
    head = await door.client.head(session_of(params.thread_id))
    if head is None:
        return {"status": "notLoaded"}
    return {"status": "unsubscribed" if door.part_with(head.session) else "notSubscribed"}


async def compact_start(door: Door, params: ThreadParams) -> Result:
    """Has the conversation summed up, in a turn of its own."""
    head = await door.head(params.thread_id)
    await door.client.submit(head.session, Submission(door.new_turn_id(), ops.Compact()))
    return {}


# ── turns ─────────────────────────────────────────────────────────────────────────────────────────


class TurnStartParams(TurnSettingsParams):
    """Words for a thread, and the settings that change with it."""

    thread_id: str
    input: tuple[Said, ...]
    client_user_message_id: str | None = None
    approvals_reviewer: Reviewer | None = None
    output_schema: Any = None

    def op(self) -> ops.UserInput:
        """The words as an operation; raises `RpcError`."""
        return ops.UserInput(
            items=input_items(self.input),
            final_output_json_schema=self.output_schema,
            delivery=Delivery.STEER,
            client_user_message_id=self.client_user_message_id,
            overrides=self.override(),
        )


async def turn_start(door: Door, params: TurnStartParams) -> Result:
    """Hands a person's words to a thread; the answer is sent when they are kept.

    While a turn runs they join it, and the answer names that turn. A message that its client names
    (`clientUserMessageId`) and sends again, since a server died before it answered, is kept once.
    """
    head, said = await door.head(params.thread_id), params.op()
    if (joined := await _joined_before(door, head, said)) is not None:
        return {"turn": started_turn(joined)}
    if head.session in door.subscriptions and params.approvals_reviewer is not None:
        door.put_requests(head.session, asks_of(door, params.approvals_reviewer))
    changed = await _changed(door, head, said.overrides)
    await door.goes_on(head)
    turn = door.words_id(head.session, params.client_user_message_id)
    try:
        turn, kept = await _handed_in(door, head, said, turn)
    except SubmissionConflict:
        # Its client has given two messages one name.
        turn, kept = await _handed_in(door, head, said, door.new_turn_id())
    if changed is not None:
        tell_settings(door, head.session, changed)
    warn_where_unserved(door, head, kept)
    return {"turn": started_turn(turn)}


async def _joined_before(door: Door, head: SessionHead, said: ops.UserInput) -> TurnId | None:
    """The running turn, if the very same message stands in it."""
    live = door.threads.of(head.session)
    if live is not None:
        turn = live.projector.turn
        return turn.id if turn is not None and _stands_in(turn, said) else None
    return None if head.at_rest else await _turn_with(door, head, said, 1)


async def _turn_with(door: Door, head: SessionHead, said: ops.UserInput, most: int) -> TurnId | None:
    """The one of so many of the thread's last turns in which the very same message stands."""
    if said.client_user_message_id is None:
        return None
    log, looked = await ThreadLog.of(door.ports.found, head), 0
    async for stretch in log.back():
        if looked == most or log.legs[stretch.leg].session != head.session:
            # What a fork has from its source was never said to it.
            break
        turn = await log.turn(stretch)
        if turn is not None and _stands_in(turn, said):
            return turn.id
        looked += 1
    return None


def _stands_in(turn: Turn, said: ops.UserInput) -> bool:
    """Whether a message that its client has named stands in a turn."""
    if said.client_user_message_id is None:
        return False
    words = [item.text for item in said.items if isinstance(item, TextInput)]
    images = [written(item) for item in said.items if isinstance(item, ImageInput | LocalImageInput)]
    messages = (item for item in turn.items if isinstance(item, UserMessage))
    told = [item.content for item in messages if item.client_id == said.client_user_message_id]
    return any(
        [part["text"] for part in parts if "text" in part] == words
        and [part for part in parts if "text" not in part] == images
        for parts in told
    )


async def _handed_in(
    door: Door, head: SessionHead, said: ops.UserInput, turn: SubmissionId
) -> tuple[SubmissionId, Submitted | None]:
    """The turn that the words begin, or join, and how they were kept, if they are to begin one.

    A worker that decides too late about words that may join a turn leaves them under their own id.
    """
    if head.at_rest:
        kept = await door.words.submit(head, Submission(turn, said))
        joined = await _turn_with(door, head, said, MOST_LATELY) if kept.duplicate else None
        return SubmissionId(joined or turn), kept
    told = await door.decided(head, said, STEERED, words=turn)
    if told is None:
        # Sent again, it is decided already, and nothing tells so anew.
        if (joined := await _turn_with(door, head, said, MOST_LATELY)) is not None:
            return SubmissionId(joined), None
        await _tell_unserved(door, head)
    return SubmissionId(told.turn_id) if isinstance(told, InputAccepted) else turn, None


async def _changed(
    door: Door, head: SessionHead, override: ops.OverrideTurnContext | None
) -> TurnSettings | None:
    """The settings of a thread after a change; None if it changes nothing."""
    if override is None:
        return None
    now = await settings_of(door.ports.found, head)
    after = settings_after(now, override)
    return None if settings_json(after) == settings_json(now) else after


def settings_after(now: TurnSettings, override: ops.OverrideTurnContext) -> TurnSettings:
    """The settings as the core makes them of a change."""
    return now.changed(settings_named(override) or {})


def tell_settings(door: Door, session: SessionId, settings: TurnSettings) -> None:
    """Tells all who hear a thread here of its settings."""
    told = {"threadId": session, "threadSettings": settings_json(settings)}
    door.tell_all(session, "thread/settings/updated", told)


def warn_where_unserved(door: Door, head: SessionHead, kept: Submitted | None) -> None:
    """Sees to it that the client is told, if no worker has taken its words after a while."""
    if kept is not None and kept.holder is None:
        door.threads.begin(warn_unserved(door, head, kept.sq_id))


async def warn_unserved(door: Door, head: SessionHead, sq_id: str) -> None:
    """Tells the client that no worker has taken its words, if none has after a while."""
    await asyncio.sleep(door.ports.unserved_s)
    now = await door.client.head(head.session)
    # Words that somebody else handed in behind these are no reason to warn.
    if now is not None and queue_number(now.cursor) < queue_number(sq_id):
        _warn(door, now)


async def _tell_unserved(door: Door, head: SessionHead) -> None:
    """The same at once, of words that were waited for already."""
    if (now := await door.client.head(head.session)) is not None:
        _warn(door, now)


def _warn(door: Door, head: SessionHead) -> None:
    if warning := unserved(head):
        door.notify("warning", {"threadId": head.session, "message": warning})


def started_turn(turn: str) -> dict[str, Any]:
    """A turn that was handed in, and of which nothing else is known yet."""
    return {
        "id": turn,
        "rootTurnId": turn,
        "items": [],
        "itemsView": "notLoaded",
        "status": "inProgress",
        "error": None,
        "startedAt": None,
        "completedAt": None,
        "durationMs": None,
    }


class TurnSteerParams(Params):
    """Words for the turn that runs, and for no other."""

    thread_id: str
    input: tuple[Said, ...]
    expected_turn_id: str
    client_user_message_id: str | None = None


async def turn_steer(door: Door, params: TurnSteerParams) -> Result:
    """Adds words to a running turn; the thread decides whether it is the one."""
    head = await door.head(params.thread_id)
    if head.at_rest:
        raise RpcError("no active turn to steer")
    said = ops.UserInput(
        items=input_items(params.input),
        delivery=Delivery.STEER,
        expected_turn_id=params.expected_turn_id,
        client_user_message_id=params.client_user_message_id,
    )
    told = await door.decided(head, said, STEERED)
    if told is None:
        raise RpcError(unread(head), Code.INTERNAL)
    return {"turnId": told.turn_id if isinstance(told, InputAccepted) else params.expected_turn_id}


class TurnInterruptParams(Params):
    """A turn to stop; `tree` stops the turns of all agents below as well."""

    thread_id: str
    turn_id: str
    tree: bool = False


async def turn_interrupt(door: Door, params: TurnInterruptParams) -> Result:
    """Stops a turn; the answer is sent when it has stopped."""
    head = await door.head(params.thread_id)
    if head.at_rest:
        raise RpcError("no active turn to interrupt")
    stop = ops.Interrupt(tree=params.tree, expected_turn_id=params.turn_id)
    told = await door.decided(head, stop, TURN_ENDS, turn=params.turn_id, patience_s=INTERRUPT_S)
    if told is None:
        raise RpcError(unread(head), Code.INTERNAL)
    return {}


# ── fork ──────────────────────────────────────────────────────────────────────────────────────────
# A thread that goes on where another one stands, or where a turn of it ended.


class ThreadFork(ThreadStartParams):
    """A thread, the place in it, and the settings that are to be others."""

    thread_id: str
    last_turn_id: str | None = None
    before_turn_id: str | None = None
    at: TreePlace | None = None
    """The last turn that had ended then is the last one that is taken."""
    exclude_turns: bool = False


async def thread_fork(door: Door, params: ThreadFork) -> Result:
    """Makes a thread that begins with another one's turns, and hears it; the other stays as it is."""
    head = await head_to_read(door, params.thread_id)
    if sum(place is not None for place in (params.last_turn_id, params.before_turn_id, params.at)) > 1:
        raise bad_params(
            "lastTurnId, beforeTurnId, at: give one of them, or none for the thread as it stands"
        )
    wish = NewThread(params.cwd, params.by_keys(), params.config or {}, bool(params.ephemeral))
    try:
        born = await door.ports.fork(door.client, door.principal, await _source(door, head, params), wish)
    except BadSetting as error:
        raise bad_params(str(error)) from None
    except ViewError as error:
        raise RpcError(str(error)) from None
    with door.heard_if_answered():
        await _hear_new(door, born, params, wish)
        turns = [] if params.exclude_turns else await all_turns(door, born.head)
        started = await thread_of(door, born.head, turns)
    door.notify("thread/started", {"thread": {**started, "turns": []}})
    _tell_warnings(door, born, wish)
    return {"thread": started, **session_json(born.settings), **_cursors(born.head)}


def _cursors(head: SessionHead) -> dict[str, Any]:
    return {
        "turnsBackwardsCursor": str(end_of(head, "turns")),
        "itemsBackwardsCursor": str(end_of(head, "items")),
    }


async def _source(door: Door, head: SessionHead, params: ThreadFork) -> ForkedFrom:
    """The place to go on from; raises `RpcError`, `ViewError`."""
    turn = params.last_turn_id or params.before_turn_id
    if params.at is not None:
        place = await _last_ended(door, await as_it_was(door, head, params.at))
        if place is None:
            raise RpcError(f"at: no turn of this thread had ended at entry {params.at}: name a later one")
        return place
    if turn is None:
        return await to_fork(door.ports.found, head.session, None)
    log = await ThreadLog.of(door.ports.found, head)
    async for stretch in log.back(left_too=True):
        if stretch.turn != turn:
            continue
        if params.last_turn_id is not None:
            return await _at(door, log, stretch)
        # What it went back behind does not come before it.
        place = await _last_ended(door, replace(await _told_in(door, log, stretch), seq=stretch.start))
        if place is None:
            raise RpcError(f"nothing comes before turn {turn}: begin a new thread")
        return place
    raise RpcError(f"turn not found: {turn[:100]}")


async def _last_ended(door: Door, head: SessionHead) -> ForkedFrom | None:
    """The end of the last turn that had ended as of a head, and that its conversation still had."""
    log = await ThreadLog.of(door.ports.found, head)
    async for stretch in log.back():
        if await log.end_of(stretch) is not None:
            return await _at(door, log, stretch)
    return None


async def _at(door: Door, log: ThreadLog, stretch: Stretch) -> ForkedFrom:
    ended = await log.end_of(stretch)
    if ended is None:
        raise RpcError(f"turn {stretch.turn} has not ended: wait for its end, or interrupt it")
    return await fork_at(door.ports.found, await _told_in(door, log, stretch), ended)


async def _told_in(door: Door, log: ThreadLog, stretch: Stretch) -> SessionHead:
    """The session in whose log a turn stands."""
    session = log.legs[stretch.leg].session
    source = await door.ports.found.broker.logs.head(session)
    if source is None:
        raise no_rollout(session)
    return source


FORKS: Mapping[str, Method] = {"thread/fork": Method(ThreadFork, thread_fork, Scope.SUBMIT)}


# ── resume ────────────────────────────────────────────────────────────────────────────────────────
# The way back to a thread: hear it from a place in its log, and read the log up to that very place.
#
# The subscription comes first. What the thread does while its log is read is told behind the answer, so
# nothing is missing and nothing comes twice, whether a worker runs it or not.


TOKENS_WITHIN = (64, 512)
"""Entries from the end among which the last count of tokens is looked for; each request has one."""
MOST_AGENTS = 200
"""Running agents of a thread that are heard with it."""


class ThreadResume(NamedSettings):
    """A thread to come back to, and settings for its next turn."""

    thread_id: str
    exclude_turns: bool = False
    approvals_reviewer: Reviewer | None = None
    personality: str | None = None


async def thread_resume(door: Door, params: ThreadResume) -> Result:
    """A thread with its turns, heard from the end of them on."""
    head = await head_to_read(door, params.thread_id)
    with door.heard_if_answered():
        return await _resumed(door, head, params)


async def _resumed(door: Door, head: SessionHead, params: ThreadResume) -> Result:
    try:
        subscription = await door.subscribe(head.session)
    except UnknownSession:
        raise no_rollout(params.thread_id) from None
    subscription.came_with = None
    door.put_requests(head.session, asks_of(door, params.approvals_reviewer))
    seen = await _seen(door, head, subscription.live.seq)
    answer = await _answer(door, seen, params)
    await _tell_tokens(door, seen)
    for session in (head.session, *await _running_below(door, head, subscription.asks)):
        door.ask_again(session)
    return answer


async def _seen(door: Door, head: SessionHead, seq: int) -> SessionHead:
    """The thread as of the place from which it is heard."""
    now = await door.client.head(head.session) or head
    if seq in (0, now.seq):
        return now
    async for stored in door.ports.found.log(head.session, seq, seq - 1):
        return replace(now, seq=seq, head=stored.chain)
    return now


async def _answer(door: Door, seen: SessionHead, params: ThreadResume) -> Result:
    settings = await settings_of(door.ports.found, seen)
    override = params.override()
    if override is not None:
        id = SubmissionId(f"{door.new_turn_id()}-settings")
        await door.client.submit(seen.session, Submission(id, override))
        before, settings = settings, settings_after(settings, override)
        if settings_json(before) != settings_json(settings):
            tell_settings(door, seen.session, settings)
    turns = [] if params.exclude_turns else await all_turns(door, seen)
    return {
        "thread": await thread_of(door, seen, turns),
        **session_json(settings),
        "turnsBackwardsCursor": str(end_of(seen, "turns")),
        "itemsBackwardsCursor": str(end_of(seen, "items")),
        "initialTurnsPage": None,
    }


async def _tell_tokens(door: Door, seen: SessionHead) -> None:
    """Tells the client how many tokens the thread has used, as its last response did."""
    event = await _last_count(door, seen)
    if event is None:
        return
    projector = Projector(seen.session)
    projector.receive(Event(event.id, written(TaskStarted())))
    for change in projector.receive(event):
        if isinstance(change, TokenUsageUpdated):
            for method, params in notifications(seen.session, change):
                door.notify(method, params)


async def _last_count(door: Door, seen: SessionHead) -> Event | None:
    for within in TOKENS_WITHIN:
        read = door.ports.found.log(seen.session, seen.seq, max(0, seen.seq - within))
        counted = [stored async for stored in read if stored_kind(stored.payload) is TokenCount]
        for event in filter(None, map(told_by, reversed(counted))):
            if isinstance(count := read_event(event.msg), TokenCount) and count.info is not None:
                return event
    return None


async def _running_below(door: Door, head: SessionHead, asks: bool) -> list[SessionId]:
    """The agents below a thread that are at work; they are heard from now on."""
    agents = projected(await door.ports.found.broker.trees.agents(head.tree)).agents.values()
    below = [agent for agent in agents if head.agent_id == ROOT or agent.below(head.agent_id)]
    running = [SessionId(agent.session) for agent in below if agent.at_work][:MOST_AGENTS]
    for session in running:
        # One that is gone or damaged must not keep the client from the thread, and from the others.
        with suppress(UnknownSession, Corrupt):
            if session not in door.subscriptions:
                await _hear_agent(door, session, head.session, asks)
    return running


async def _hear_agent(door: Door, session: SessionId, above: SessionId, asks: bool) -> None:
    """Tells the client of an agent's thread, as at its birth: it drops requests of a thread unknown to it."""
    head = await door.client.head(session)
    if head is None:
        return
    told = await thread_of(door, head)
    if session in door.subscriptions:
        return
    subscription = await door.subscribe(session)
    subscription.asks, subscription.came_with = asks, above
    # With nothing waited for in between: its first event is told behind this.
    door.notify("thread/started", {"thread": told})


METHODS: Mapping[str, Method] = {
    "thread/start": Method(
        ThreadStartParams,
        thread_start,
        Scope.SUBMIT,
        experimental_fields=frozenset(
            {"dynamicTools", "environments", "permissions", "selectedCapabilityRoots", "multiAgentMode"}
        ),
    ),
    "thread/unsubscribe": Method(ThreadParams, thread_unsubscribe, Scope.READ, of_connection=True),
    "thread/compact/start": Method(ThreadParams, compact_start, Scope.SUBMIT),
    "turn/start": Method(
        TurnStartParams,
        turn_start,
        Scope.SUBMIT,
        experimental_fields=frozenset({"environments", "permissions", "multiAgentMode", "collaborationMode"}),
    ),
    "thread/resume": Method(ThreadResume, thread_resume, Scope.READ, of_connection=True),
    "turn/steer": Method(TurnSteerParams, turn_steer, Scope.SUBMIT, waits=True),
    "turn/interrupt": Method(TurnInterruptParams, turn_interrupt, Scope.SUBMIT, waits=True),
}
