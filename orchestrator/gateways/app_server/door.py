"""A connection as the methods see it: who speaks, what it hears, what it is told."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Protocol, TypeVar, assert_never
from uuid import UUID, uuid5
from weakref import proxy

import orjson

from orchestrator.broker.errors import BrokerError, Corrupt
from orchestrator.broker.records import Deleted, SessionHead
from orchestrator.core.frozen import record
from orchestrator.core.ids import MAX_SHARDS, InvalidSessionId, SessionId, new_session_id, parse_session_id
from orchestrator.core.record_json import whole
from orchestrator.core.sender import Via
from orchestrator.core.tree import ROOT
from orchestrator.gateways.app_server.door_ports import Ports
from orchestrator.gateways.app_server.live_threads import Line, LiveThread, LiveThreads, Told
from orchestrator.gateways.app_server.messages import (
    Answer,
    NotThere,
    RequestId,
    RpcError,
    not_found,
    notification,
    request,
)
from orchestrator.gateways.app_server.outbox import Outbox
from orchestrator.gateways.app_server.write_items import camel, read_state_json, thread_json
from orchestrator.gateways.app_server.write_requests import NO_ROOM, Asks
from orchestrator.gateways.client import RETRY_MAX_S, Client, is_rewound
from orchestrator.gateways.principals import Principal, Scope
from orchestrator.gateways.resume import open_requests
from orchestrator.gateways.submit import OpRefused, new_submission_id
from orchestrator.protocol import events as ev
from orchestrator.protocol.events import TURN_ENDS, Error, EventModel
from orchestrator.protocol.ids import SubmissionId
from orchestrator.protocol.ops import Op
from orchestrator.protocol.policy import ReviewDecision
from orchestrator.protocol.submission import MalformedSubmission, Submission
from orchestrator.protocol.wire import JsonMapping, JsonObject, written
from orchestrator.requests import (
    ChoicesRequest,
    ClientToolRequest,
    CommandRequest,
    InputRequest,
    KnownRequest,
    PatchRequest,
    PlanDecisionRequest,
    ServerRequest,
    call_id_of,
    known_request_of,
)
from orchestrator.requests.approvals import shown_as
from orchestrator.views.event import Event, without_places
from orchestrator.views.threads import Thread, read_state
from orchestrator.views.turns.turn_records import RequestOpened, RequestResolved

E = TypeVar("E", bound=EventModel)
DECIDED_S = 5.0
"""A worker decides within milliseconds."""
_WORDS: Final = UUID("6f2f9c0e-54d1-4c1b-9a55-2f0d8a3c7e11")
"""The space of the ids that words get by their client's id for them."""


@record
class ClientInfo:
    """The words of the client about itself in the handshake."""

    name: str
    version: str
    experimental: bool = False
    opted_out: frozenset[str] = frozenset()
    """Notifications that it does not want."""


@dataclass(slots=True)
class Subscription:
    """A thread that the connection hears."""

    live: LiveThread
    asks: bool = True
    """Whether its requests are put to this connection."""
    came_with: SessionId | None = None
    """The thread above with which an agent's came; None if the client asked for it by itself."""


@dataclass
class Door:
    """A connection's side of the server."""

    ports: Ports
    threads: LiveThreads
    principal: Principal
    outbox: Outbox
    info: ClientInfo | None = None
    subscriptions: dict[SessionId, Subscription] = field(default_factory=dict)
    tells_read_states: bool = False
    """Whether the client has asked for a read state: such a one is told of changes."""
    via: Via = "app-server"
    _clients: list[Client] = field(default_factory=list)
    _left: set[SessionId] = field(default_factory=set)
    """Threads that the client has left: it hears them again when it asks for them."""
    _late: set[RequestId] = field(default_factory=set)
    """Requests whose answers wait until their sessions' queues have room."""
    _held: list[Told | Line] | None = None
    _begun: list[SessionId] = field(default_factory=list)
    """Threads that were subscribed to since a request was begun which may fail."""

    def __post_init__(self) -> None:
        self.client = self.new_client()
        self.asks = Asks(self.new_client())
        # Not held by what it holds: a connection that ends leaves its memory at once.
        self.conversations = Conversations(proxy(self))

    def new_client(self) -> Client:
        """Another client of this connection, to which sessions tell what the first one did."""
        client = self.ports.client(self.principal, self.via)
        if self.info is not None:
            client.calling_itself(self.info.name)
        self._clients.append(client)
        return client

    def introduced(self, info: ClientInfo) -> None:
        """Notes what the client says about itself."""
        self.info = info
        for client in self._clients:
            client.calling_itself(info.name)

    # ── finding threads ───────────────────────────────────────────────────────────────────────

    async def head(self, thread: str) -> SessionHead:
        """The session of a thread that this principal may see; raises `RpcError`."""
        return await head_of(self.client, thread, not_found)

    def new_turn_id(self) -> SubmissionId:
        """An id under which a turn is submitted: a UUIDv7, as threads have."""
        noise = int.from_bytes(self.ports.random_bytes(10), "big")
        return SubmissionId(new_session_id(self.ports.now_ms(), noise & (MAX_SHARDS - 1), noise >> 12))

    def words_id(self, session: SessionId, message_id: str | None) -> SubmissionId:
        """The id for a person's words: the same one for the same message, whichever server it comes to."""
        if message_id is None:
            return self.new_turn_id()
        return SubmissionId(str(uuid5(_WORDS, f"{self._person}\0{session}\0{message_id}")))

    @property
    def words(self) -> Client:
        """The client for words that may be sent again, to this server or to another one."""
        return self.client.known_as(str(uuid5(_WORDS, self._person)))

    @property
    def _person(self) -> str:
        return f"{self.principal.namespace}\0{self.principal.name}"

    async def goes_on(self, head: SessionHead) -> None:
        """Brings a tree that was put away back into the lists, as a person speaks in it again."""
        root: SessionHead | None = head
        if head.agent_id != ROOT:
            with suppress(Corrupt):
                root = await self.client.head(SessionId(head.tree))
        if root is not None and root.shelved:
            await self.ports.found.broker.trees.enlist(root.session, shelve=False)
            self.tell_all(root.session, "thread/unarchived", {"threadId": root.session})

    async def decided(
        self,
        head: SessionHead,
        op: Op,
        by: Collection[type[E]],
        *,
        turn: str | None = None,
        patience_s: float | None = None,
        words: SubmissionId | None = None,
    ) -> E | None:
        """Submits an op, and returns the event of the kinds `by` that tells what became of it.

        It bears the op's id, or that of the `turn` that the op is about. None if none came in time; raises
        `OpRefused` with the session's words. `words`: the id of a person's words, which may be sent again.
        """
        client, own = (self.words, words) if words else (self.client, SubmissionId(new_submission_id()))

        def tells(event: Event) -> bool:
            refused = event.kind is Error and event.id == own
            return refused or (event.id == (turn or own) and event.kind in by)

        def submit() -> Awaitable[object]:
            return client.submit(head, Submission(own, op))

        event = await self.threads.answer(head, client, tells, submit, patience_s or DECIDED_S)
        told = None if event is None else event.told
        if isinstance(told, Error):
            raise OpRefused(whole(told.message))
        return next((told for kind in by if isinstance(told, kind)), None)

    # ── hearing ───────────────────────────────────────────────────────────────────────────────

    async def subscribe(self, session: SessionId, *, newborn: bool = False) -> Subscription:
        """Hears a thread from now on; a second time changes nothing. Raises `UnknownSession`.

        `live.seq` of the subscription is the place in the log from which on it is told.
        """
        found = self.subscriptions.get(session)
        if found is None:
            self._left.discard(session)
            live = await self.threads.hear(session, self.client, self, newborn=newborn)
            found = self.subscriptions[session] = Subscription(live)
            self._begun.append(session)
        return found

    def unsubscribe(self, session: SessionId) -> bool:
        """Hears a thread no more; False if it was not heard."""
        found = self.subscriptions.pop(session, None)
        if found is None:
            return False
        # What waits behind the response would be told to who has left.
        self.drop_held((session,))
        for heard in self.subscriptions.values():
            if heard.came_with == session:
                heard.came_with = found.came_with
        self.threads.leave(session, self)
        self.asks.left(session)
        return True

    def put_requests(self, session: SessionId, asks: bool) -> None:
        """Notes whether this connection is asked what a thread asks, and the agents that came with it."""
        self.subscriptions[session].asks = asks
        for agent, heard in self.subscriptions.items():
            if heard.came_with == session:
                self.put_requests(agent, asks)

    def part_with(self, session: SessionId) -> bool:
        """The same by the client's own wish: an agent's thread is not heard with its root any more."""
        heard = self.unsubscribe(session)
        if heard:
            self._left.add(session)
        return heard

    def hear(self, told: Told) -> None:
        """Tells the client an event of a thread that it hears, or keeps it until a response is out."""
        if self._held is not None:
            self._held.append(told)
            return
        for change, lines in told.changes:
            match change:
                case RequestOpened(session=None) if self._is_put(told.session, change):
                    self._ask(told.session, change)
                case RequestResolved(session=None):
                    self._settled(told.session, self.asks.resolved(told.session, change))
                case _:
                    pass
            for line in lines:
                self._put(line)
        if self.tells_read_states and told.event.kind in TURN_ENDS:
            self.threads.begin(self._tell_read_state(told.session))

    async def _tell_read_state(self, session: SessionId) -> None:
        """Tells the client how far its person has read a thread; it comes beside what the thread tells."""
        head = await self.client.head(session)
        if head is not None and session in self.subscriptions:
            state = await read_state(self.ports.found, head, self.principal.name)
            told = {"threadId": session, "readState": read_state_json(state)}
            self.notify("thread/readState/changed", told)

    def _is_put(self, session: SessionId, opened: RequestOpened) -> bool:
        """Whether a request is put to this client; a call of a tool, to the program that brings it."""
        found = self.subscriptions.get(session)
        request = opened.request
        if found is None or not isinstance(request, ClientToolRequest):
            return found is not None and found.asks and self.principal.may(Scope.APPROVE)
        ours = self.info is not None and self.info.name == request.client
        return ours and self.principal.may(Scope.SUBMIT)

    def _ask(self, session: SessionId, opened: RequestOpened) -> None:
        asked = self.asks.open(session, opened, self.ports.now_ms())
        if asked is not None:
            self.outbox.put(request(asked.id, asked.method, asked.params))

    def _settled(self, session: SessionId, ids: list[int]) -> None:
        for id in ids:
            self.notify("serverRequest/resolved", {"threadId": session, "requestId": id})

    async def answered(self, answer: Answer) -> None:
        """Takes the client's answer to a request of a thread, or of a conversation of version 1.

        A client answers once and gets no error: where the session's queue or Redis is full, the answer is
        handed in again until there is room, or until the request is not this client's any more.
        """
        if answer.id in self._late:
            return
        try:
            await self._hand_in(answer)
        except NO_ROOM:
            self._late.add(answer.id)
            self.threads.begin(self._hand_in_late(answer))

    async def _hand_in_late(self, answer: Answer) -> None:
        try:
            while True:
                await asyncio.sleep(RETRY_MAX_S)
                with suppress(*NO_ROOM):
                    return await self._hand_in(answer)
        finally:
            self._late.discard(answer.id)

    async def _hand_in(self, answer: Answer) -> None:
        """Hands an answer in; one to a request that is not open says nothing. Raises `NO_ROOM`."""
        if await self.conversations.answered(answer):
            return
        ended = await self.asks.answer(answer)
        if ended is not None:
            self._settled(ended.session, [ended.id])

    def takes(self, session: SessionId) -> bool:
        """Whether an agent is to be heard with its root: the client has not left it."""
        return session not in self._left

    def adopt(self, live: LiveThread, thread: Thread) -> None:
        """Tells the client of an agent's thread, which it hears from now on, and what it asks already."""
        above = SessionId(thread.spawned.parent if thread.spawned else thread.root)
        # An agent above that is at rest, or was left, need not be heard: then the root is asked.
        above = above if above in self.subscriptions else SessionId(thread.root)
        parent = self.subscriptions.get(above)
        asks = parent.asks if parent is not None else all(each.asks for each in self.subscriptions.values())
        self.subscriptions[live.session] = Subscription(live, asks, above)
        self.notify("thread/started", {"thread": thread_json(thread)})
        self.ask_again(live.session)

    def ask_again(self, session: SessionId) -> None:
        """Puts the open requests of a thread to the client; one that it has already is left out.

        They are those that are open where the thread is told: what settles them is told behind them.
        """
        found = self.subscriptions.get(session)
        for opened in found.live.projector.waiting if found is not None else ():
            self.hear(Told(session, Event("", dict(opened.request.event)), ((opened, ()),)))

    def lose(self, session: SessionId, fault: str = "") -> None:
        """Tells the client that a thread is gone, or why nothing more of it can be told."""
        if fault:
            why = without_places(fault) if self.principal.is_tenant else fault
            self.notify("warning", {"threadId": session, "message": why})
        self.unsubscribe(session)
        self.notify("thread/closed", {"threadId": session})

    # ── telling ───────────────────────────────────────────────────────────────────────────────

    def notify(self, method: str, params: Mapping[str, object]) -> None:
        """Tells the client something of which no log has an event."""
        whole: JsonObject = dict(params)
        at_ms = self.ports.now_ms()
        self.tell(Line(method, whole, notification(method, whole, at_ms), at_ms))

    def tell_all(self, session: SessionId, method: str, params: Mapping[str, object]) -> None:
        """The same for all connections of this process that hear a thread, and for this one."""
        whole: JsonObject = dict(params)
        at_ms = self.ports.now_ms()
        line = Line(method, whole, notification(method, whole, at_ms), at_ms)
        for door in self.doors_of(session):
            door.tell(line)

    def doors_of(self, session: SessionId) -> list[Door]:
        """This connection, and all others of this process that hear a thread."""
        live = self.threads.of(session)
        hears = [each for each in live.listeners if isinstance(each, Door)] if live is not None else []
        return hears if self in hears else [self, *hears]

    def tell(self, line: Line) -> None:
        """Sends a line, or keeps it until a response is out."""
        if self._held is not None:
            self._held.append(line)
        else:
            self._put(line)

    def _put(self, line: Line) -> None:
        if self.info is not None and line.method in self.info.opted_out:
            return
        if line.merges is None:
            self.outbox.put(line.data)
        else:
            self.outbox.put_delta(line.data, line.merges, line.method, line.params, line.at_ms)

    @contextmanager
    def response_first(self) -> Iterator[None]:
        """Keeps what is told meanwhile, and tells it at the end, behind the response."""
        self._held = []
        try:
            yield
        finally:
            held, self._held = self._held, None
            for each in held:
                if isinstance(each, Line):
                    self._put(each)
                else:
                    self.hear(each)

    @contextmanager
    def heard_if_answered(self) -> Iterator[None]:
        """Takes subscriptions back that were made meanwhile, with what is held of them, where it fails.

        A client that is answered by an error does not expect to hear the thread, or to be asked by it.
        """
        self._begun.clear()
        try:
            yield
        except BaseException:
            for session in self._begun:
                self.unsubscribe(session)
            raise

    def drop_held(self, gone: Collection[str]) -> None:
        """Tells nothing of these threads that waits for a response to be out."""
        if self._held is not None:
            self._held = [each for each in self._held if _session_of(each) not in gone]

    def leave(self) -> None:
        """Ends all subscriptions; what runs goes on."""
        self.conversations.leave()
        for session in tuple(self.subscriptions):
            self.unsubscribe(session)


class WasDeleted(NotThere):
    """The thread was there, and the client might have seen it."""

    def __init__(self, message: str, found: Deleted) -> None:
        super().__init__(message)
        self.found = found


def session_of(thread: str) -> SessionId:
    """The id of a thread; raises `NotThere` for what is none."""
    try:
        return parse_session_id(thread)
    except InvalidSessionId:
        raise NotThere(f"invalid thread id: {thread[:100]}") from None


async def head_of(client: Client, thread: str, absent: Callable[[str], RpcError]) -> SessionHead:
    """The session of a thread that the client may see.

    Raises `NotThere`: with the words of `absent`, and behind them who deleted the thread, and when, if that
    is known.
    """
    session = session_of(thread)
    head = await client.head(session)
    if head is None:
        found = await client.deletion(session)
        # Not by a name: an error that its own frame names stays until cycles are looked for.
        raise absent(thread) if found is None else _was_deleted(absent(thread).message, found)
    return head


def _was_deleted(absent: str, found: Deleted) -> WasDeleted:
    at = datetime.fromtimestamp(found.at_ms / 1000, UTC)
    who = f"it was deleted by {found.who}" if found.who else "its time was over, and it was deleted"
    return WasDeleted(f"{absent}: {who} at {at:%Y-%m-%d %H:%M:%S} UTC", found)


def _session_of(held: Told | Line) -> str:
    """The thread or conversation that something is told of, or ""."""
    if isinstance(held, Told):
        return held.session
    named = held.params
    found = named.get("threadId") or named.get("conversationId") or (named.get("thread") or {}).get("id")
    return found if isinstance(found, str) else ""


# ── conversations ─────────────────────────────────────────────────────────────────────────────────
# Conversations that a client of version 1 listens to: their events as they are, and what it is asked.
#
# An approval is an event first and a request then. What the client answers goes to the session; a
# malformed answer denies, and an error leaves the request to others: the fleet's queue has it.


MOST_LISTENERS: Final = 1_000
MOST_WARNED: Final = 16
"""Conversations, the newest, whose warnings wait for a listener."""
MOST_WARNINGS: Final = 100
WARNING_CHARS: Final = 1_000
PREFIX: Final = "conversation-"


class Place(Protocol):
    """The connection that the listeners belong to."""

    ports: Ports
    threads: LiveThreads
    principal: Principal
    client: Client

    def new_client(self) -> Client:
        """Another client of the connection."""

    def tell(self, line: Line) -> None:
        """Sends a line, or keeps it until a response is out."""

    def drop_held(self, gone: Collection[str]) -> None:
        """Tells nothing of these conversations that waits for a response to be out."""


@record
class Put:
    """A request that is put to the client, and open."""

    session: SessionId
    request: KnownRequest
    at_ms: int
    """Since when the client has it."""

    @property
    def name(self) -> tuple[str, int]:
        """Its name among those of the conversation."""
        return _name(self.request.event)

    @property
    def agent(self) -> int:
        """The agent that asks."""
        return agent_of(self.request.event)


@dataclass(slots=True)
class Conversations:
    """The listeners of one connection."""

    door: Place
    _listening: dict[str, SessionId] = field(default_factory=dict)
    """Conversations by the listener's id."""
    _asked: dict[str, Put] = field(default_factory=dict)
    """Requests that are open, by their ids."""
    _given: set[str] = field(default_factory=set)
    """Those that the client has answered: their events may come later, and are not asked about again."""
    _numbers: int = 0
    _ends: dict[SessionId, list[asyncio.Future[str]]] = field(default_factory=dict)
    _told_meanwhile: dict[SessionId, set[tuple[str, int]]] = field(default_factory=dict)
    """Requests that were told, or settled, while a conversation's open ones are read."""
    _warnings: dict[SessionId, tuple[str, ...]] = field(default_factory=dict)
    """Of conversations that the client has made, and has not listened to."""
    _answers: Client = field(init=False)
    """Not the client that begins turns: a session does not tell others that one of its own answers."""

    def __post_init__(self) -> None:
        self._answers = self.door.new_client()

    @property
    def full(self) -> bool:
        """Whether the connection has as many listeners as it may."""
        return len(self._listening) >= MOST_LISTENERS

    def hears(self, session: SessionId) -> bool:
        """Whether a conversation has a listener here."""
        return session in self._listening.values()

    def warn(self, session: SessionId, warnings: Sequence[str]) -> None:
        """Keeps what is to be told of a new conversation for its first listener here."""
        if kept := tuple(warning[:WARNING_CHARS] for warning in warnings[:MOST_WARNINGS]):
            self._warnings[session] = kept
            while len(self._warnings) > MOST_WARNED:
                del self._warnings[next(iter(self._warnings))]

    async def listen(self, head: SessionHead) -> str:
        """Adds a listener from now on; what is open is asked again. Raises `UnknownSession`."""
        session, id = head.session, str(uuid.uuid4())
        if not self.hears(session):
            await self.door.threads.hear(session, self.door.client, self)
        known = self.hears(session)
        self._listening[id] = session
        self._told_meanwhile[session] = set()
        try:
            requests = await open_requests(self.door.ports.found, head)
        except BaseException:
            # A client that is answered by an error does not expect to be told of the conversation.
            self.stop(id)
            if not known:
                self.door.drop_held((session,))
            raise
        finally:
            told = self._told_meanwhile.pop(session)
        for warning in self._warnings.pop(session, ()):
            self._tell(session, "", written(ev.WarningEvent(message=warning)))
        for opened in requests:
            if _name(opened.event) not in told:
                # Events are told once for a connection; what it has left open is asked again.
                self._ask_of(session, opened.event) if known else self._tell(session, "", opened.event)
        return id

    def stop(self, id: str) -> bool:
        """Removes a listener; False for one that there is not."""
        session = self._listening.pop(id, None)
        if session is None:
            return False
        if not self.hears(session):
            self.door.threads.leave(session, self)
            self._forget(lambda asked: asked.session == session)
        return True

    def leave(self) -> None:
        """Removes all listeners."""
        for id in tuple(self._listening):
            self.stop(id)

    def end_of_turn(self, session: SessionId) -> asyncio.Future[str]:
        """The type of the event that ends the running turn, once it was told."""
        ending: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._ends.setdefault(session, []).append(ending)
        return ending

    # ── what sessions tell ────────────────────────────────────────────────────────────────────

    def hear(self, told: Told) -> None:
        """Tells the client an event."""
        if not self.hears(told.session):
            return
        event = told.event
        if is_rewound(event):
            # What is open still is asked anew.
            self._forget(lambda asked: asked.session == told.session)
        if event.kind is not ev.RequestResolved or event.cursor is not None:
            # A decision that the log has is no event of it.
            self._tell(told.session, event.id, event.msg)
        if event.kind is ev.RequestResolved:
            self._settled(told.session, event.msg)
        if event.kind in TURN_ENDS:
            # What was read of the queue is asked before the events behind which it stands are told.
            of = (None, event.id)
            self._forget(
                lambda asked: (
                    asked.session == told.session and not asked.agent and asked.request.turn_id in of
                )
            )
            for ending in self._ends.pop(told.session, ()):
                if not ending.done():
                    ending.set_result(event.type)

    def takes(self, session: SessionId) -> bool:
        """Leaves agents' own events alone: what concerns people is told by their root."""
        return False

    def adopt(self, live: LiveThread, thread: Thread) -> None:
        """Takes none."""

    def lose(self, session: SessionId, fault: str = "") -> None:
        """Removes the listeners of a conversation that is gone, or of which nothing more can be told."""
        for id in [id for id, heard in self._listening.items() if heard == session]:
            self.stop(id)

    def _tell(self, session: SessionId, id: str, message: Mapping[str, Any]) -> None:
        kind = message["type"]
        params = {"id": id, "msg": message, "conversationId": session}
        self._put(f"codex/event/{kind}", params)
        self._ask_of(session, message)

    def _ask_of(self, session: SessionId, message: Mapping[str, Any]) -> None:
        request = known_request_of(message)
        if request is not None and self.door.principal.may(Scope.APPROVE):
            self._ask(session, request)

    def _ask(self, session: SessionId, request: KnownRequest) -> None:
        method, name = request_method(request), _name(request.event)
        if method is None or any(one.session == session and one.name == name for one in self._asked.values()):
            # None of version 1; or told again behind a gap, or asked ahead of its event.
            return
        self._note_told(session, request.event)
        id = f"{PREFIX}{self._numbers}"
        self._numbers += 1
        self._asked[id] = Put(session, request, self.door.ports.now_ms())
        params = request_params(session, request)
        data = orjson.dumps({"id": id, "method": method, "params": params})
        self.door.tell(Line(method, params, data, self.door.ports.now_ms()))

    def _put(self, method: str, params: JsonObject) -> None:
        now = self.door.ports.now_ms()
        self.door.tell(Line(method, params, notification(method, params, now), now))

    def _settled(self, session: SessionId, message: JsonMapping) -> None:
        """Forgets a request that somebody else has answered."""
        self._note_told(session, message)
        meant = (session, _name(message))
        self._forget(lambda asked: (asked.session, asked.name) == meant)

    def _note_told(self, session: SessionId, message: JsonMapping) -> None:
        if session in self._told_meanwhile:
            self._told_meanwhile[session].add(_name(message))

    def _forget(self, gone: Callable[[Put], bool]) -> None:
        """Forgets requests: an answer that comes later is one to nothing."""
        self._asked = {id: asked for id, asked in self._asked.items() if not gone(asked)}
        self._given &= self._asked.keys()

    # ── what the client answers ───────────────────────────────────────────────────────────────

    async def answered(self, answer: Answer) -> bool:
        """Hands an answer to its session; whether it is one to a request of a conversation.

        Raises `NO_ROOM`: the request is open still.
        """
        if not isinstance(answer.id, str) or not answer.id.startswith(PREFIX):
            return False
        found = self._asked.get(answer.id)
        if found is None or answer.id in self._given:
            return True
        self._given.add(answer.id)
        if answer.result is None:
            # It stays open: who listens later is asked anew, this client, too.
            self._forget(lambda asked: asked is found)
        else:
            handed = orjson.dumps(request_params(found.session, found.request)).decode()
            shown = shown_as(handed, "app-server v1", found.at_ms)
            op = found.request.decided(_decision(answer.result), shown)
            id = SubmissionId(f"answer-{uuid.uuid4().hex[:12]}")
            try:
                await self._answers.submit(found.session, Submission(id, op))
            except NO_ROOM:
                self._given.discard(answer.id)
                raise
            except (BrokerError, MalformedSubmission):
                # Its session is gone: no error ends a connection.
                self._given.discard(answer.id)
        return True


def _name(message: JsonMapping) -> tuple[str, int]:
    """The name of a request among those of a conversation."""
    return call_id_of(message), agent_of(message)


def agent_of(message: JsonMapping) -> int:
    """The agent that an event is about; the root's own requests name none."""
    return message.get("agent_id") or ROOT


def _decision(result: JsonMapping) -> ReviewDecision:
    """The client's decision; what is none denies."""
    said = result.get("decision")
    return ReviewDecision(said) if said in tuple(ReviewDecision) else ReviewDecision.DENIED


def request_method(request: KnownRequest) -> str | None:
    """The method of the server's request; None for a kind that version 1 puts to nobody."""
    match request:
        case CommandRequest():
            return "execCommandApproval"
        case PatchRequest():
            return "applyPatchApproval"
        case (
            ChoicesRequest() | InputRequest() | PlanDecisionRequest() | ServerRequest() | ClientToolRequest()
        ):
            return None
        case _:
            assert_never(request)


def request_params(session: SessionId, request: KnownRequest) -> JsonObject:
    """The parameters of a request, each name in both cases: older clients read one, newer the other."""
    event = request.event
    rest: Iterable[tuple[str, Any]] = ((k, v) for k, v in event.items() if k not in ("type", "changes"))
    params: JsonObject = {"conversationId": session, "conversation_id": session, **dict(rest)}
    params["reason"] = request.told
    if "changes" in event:
        params["fileChanges"] = params["file_changes"] = event["changes"]
    params.update({camel(name): value for name, value in tuple(params.items()) if "_" in name})
    return params
