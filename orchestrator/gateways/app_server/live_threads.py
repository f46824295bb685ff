"""Sessions that connections of this process hear, each followed once and projected once for all of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from typing import Any, Protocol

import orjson

from orchestrator.broker.errors import BrokerError, OutOfMemory, SessionHeld, Unavailable, UnknownSession
from orchestrator.broker.follow import BEGINNING, EqCursor, hash8_of
from orchestrator.broker.notices import until
from orchestrator.broker.open_requests import TooManyNotes
from orchestrator.broker.records import AT_REST, SessionHead
from orchestrator.core.blobs import references, resolve
from orchestrator.core.commit_parts import WITHDRAWN
from orchestrator.core.frozen import record, replace
from orchestrator.core.ids import SessionId
from orchestrator.core.tree import ROOT
from orchestrator.gateways.app_server.door_ports import Ports
from orchestrator.gateways.app_server.messages import RpcError, notification, unreadable
from orchestrator.gateways.client import RETRY_S, Client, is_rewound
from orchestrator.gateways.submit import new_submission_id
from orchestrator.protocol.agents import LifecycleChange, SubagentStatus, SubagentSummary
from orchestrator.protocol.events import TURN_ENDS, EventMsg, SubagentLifecycle, TaskStarted
from orchestrator.protocol.ids import SubmissionId
from orchestrator.protocol.ops import Interrupt
from orchestrator.protocol.submission import Submission
from orchestrator.protocol.wire import JsonObject
from orchestrator.rollouts import ArchiveUnavailable, BrokenArchive
from orchestrator.rollouts.log_source import LogSource
from orchestrator.views.event import Event, for_tenant
from orchestrator.views.thread_log import begun_since, turn_at
from orchestrator.views.threads import Thread, threads
from orchestrator.views.turns.log_events import told_by
from orchestrator.views.turns.projector import Projector
from orchestrator.views.turns.turn_records import Change, ItemDelta, RequestResolved

log = logging.getLogger("dendro.app_server")

FAULT = "it cannot be followed any further; the server's log says why"


@record
class Line:
    """A notification, written once for all who hear it."""

    method: str
    params: JsonObject
    data: bytes
    at_ms: int
    merges: tuple[object, ...] | None = None
    """Pieces of one text have one key: waiting ones may be merged."""


@record
class Told:
    """An event of a session with what follows from it."""

    session: SessionId
    event: Event
    changes: tuple[tuple[Change, tuple[Line, ...]], ...]


Write = Callable[[SessionId, Change, str | None], Iterable[tuple[str, JsonObject]]]
"""How a change of a session is told: the methods and parameters of its notifications.

Of an agent the turn of the root comes along in which its own one was begun.
"""


class Listener(Protocol):
    """A connection that hears a session."""

    def hear(self, told: Told) -> None:
        """Takes the next event; must not wait."""

    def takes(self, session: SessionId) -> bool:
        """Whether it wants to hear an agent below a session that it hears."""

    def adopt(self, live: LiveThread, thread: Thread) -> None:
        """Hears such an agent: a new one from its first event on."""

    def lose(self, session: SessionId, fault: str = "") -> None:
        """Is told that nothing more will come: the session is gone, or a `fault` keeps it from being read."""


class LiveThread:
    """A session with those who hear it."""

    def __init__(
        self,
        ports: Ports,
        write: Write,
        client: Client,
        session: SessionId,
        born: Callable[[LiveThread, SessionId, bool], None],
        root: SessionId | None = None,
    ) -> None:
        """`root`: the root of an agent's tree; None for a root."""
        self.session = session
        self._root = root
        self._root_turn: str | None = None
        self.projector = Projector(session)
        self.listeners: list[Listener] = []
        self.ephemeral = False
        """Whether the session is deleted when nobody hears it any more, whoever made it."""
        self.marking: asyncio.Task[None] | None = None
        """Says to other gateways that an ephemeral session is heard here."""
        self.seq = 0
        """The place in the log up to which listeners have been told; that of before, while a gap is told."""
        self._whole = asyncio.Event()
        self._whole.set()
        self._ports = ports
        self._write = write
        self.client = client
        self._born = born
        self.is_cut_off = False
        """Whether it can be followed no further: who comes then needs another one."""
        self._following: asyncio.Task[None] | None = None
        self._cursor = BEGINNING

    async def read(self, head: SessionHead) -> None:
        """Reads the running turn from the log, so that what follows is understood."""
        for event in await events_of_running_turn(self._ports.found, head):
            self.projector.receive(event)
        if (turn := self.projector.turn) is not None:
            await self._begins(turn.started_ms)
        self.seq, self._cursor = head.seq, EqCursor.at(head)

    def follow(self, *, newborn: bool = False) -> None:
        """Begins to follow: from the first event, or from the place up to which the log was read."""
        self._following = asyncio.create_task(self._follow(newborn))

    async def whole(self) -> None:
        """Waits while listeners are told of a gap: who comes would hear the rest, and not that it is one."""
        await self._whole.wait()

    @property
    def is_whole(self) -> bool:
        return self._whole.is_set()

    @property
    def place(self) -> EqCursor:
        """The place up to which listeners have been told, to come back to."""
        return self._cursor

    async def missed(self, head: SessionHead, cursor: EqCursor) -> list[tuple[int, tuple[Line, ...]]] | None:
        """The notifications between a place of the log and `seq`, each with its entry, without their deltas.

        None where they cannot be told: the log has no such place any more, or too much comes behind it.
        """
        upto, after = self.seq, cursor.seq
        if after > upto or upto - after > MOST_MISSED:
            return None
        reach = max(0, after - MOST_MISSED)
        events, known = [], after == 0
        async for stored in self._ports.found.log(head.session, upto, reach):
            known = known or (stored.seq == after and hash8_of(stored.chain) == cursor.hash8)
            if (event := told_by(stored)) is not None:
                events.append(await whole_event(self._ports.found, head, event))
        begin = _begin_of_turn(events, after, reach)
        if begin is None or not known:
            return None
        projector, lines = Projector(self.session), []
        for event in events[begin:]:
            changes = projector.receive(event)
            if event.seq > after:
                told = [line for each in changes for line in self._lines(each, event.at_ms)[1]]
                lines.append((event.seq, tuple(told)))
        return lines

    def _gap(self, behind: EqCursor | None) -> None:
        if behind is None:
            self._whole.clear()
        else:
            self.seq, self._cursor = behind.seq, behind
            self._whole.set()

    async def _follow(self, newborn: bool) -> None:
        try:
            events = self.client.follow(self.session, self._cursor, newborn=newborn, on_gap=self._gap)
            async for event in events:
                if event.kind is TaskStarted:
                    await self._begins(event.at_ms)
                try:
                    self._take(event)
                except Exception:
                    # An event that nobody foresaw must not silence all that follow.
                    log.exception("session %s: an event could not be told", self.session)
        except UnknownSession:
            # It is deleted, and its listeners are told so once.
            self._cut_off()
        except Exception as error:
            # Who heard nothing more would wait for ever, and so would all who come later.
            log.exception("session %s: it cannot be followed any further", self.session)
            self._cut_off(words_of(error))
        finally:
            self._whole.set()

    def _cut_off(self, fault: str = "") -> None:
        self.is_cut_off, self.ephemeral = True, False
        if self.marking is not None:
            self.marking.cancel()
        for listener in tuple(self.listeners):
            listener.lose(self.session, fault)

    async def _begins(self, at_ms: int | None) -> None:
        """Finds the turn of the root in which a turn of its agent begins."""
        if self._root is None:
            return
        self._root_turn, at_ms = None, at_ms or self._ports.now_ms()
        with suppress(BrokerError):
            root = await self.client.head(self._root)
            begun = [] if root is None else await begun_since(self._ports.found, root, at_ms)
            self._root_turn = turn_at(begun, at_ms)

    def _take(self, event: Event) -> None:
        if event.cursor is not None:
            self.seq, self._cursor = event.cursor.seq, event.cursor
        gone: tuple[Change, ...] = ()
        if is_rewound(event):
            # What is open still is asked anew.
            gone = withdrawn(self.projector)
            self.projector = Projector(self.session)
        at_ms = event.at_ms or self._ports.now_ms()
        changes = tuple(self._lines(change, at_ms) for change in (*gone, *self.projector.receive(event)))
        told = Told(self.session, event, changes)
        for listener in tuple(self.listeners):
            listener.hear(told)
        if event.kind is SubagentLifecycle:
            self._of_agent(event.told)

    def _of_agent(self, told: EventMsg) -> None:
        """Lets who hears the session hear an agent that was made, or that begins to work again.

        One that was at rest when they came was not heard with the session, and may ask them now; it may be
        at rest again where word of it comes late.
        """
        match told:
            case SubagentLifecycle(event=LifecycleChange.CREATED, subagent=SubagentSummary(session_id=id)):
                self._born(self, SessionId(id), True)
            case SubagentLifecycle(status=SubagentStatus.RUNNING, session_id=str(id)):
                self._born(self, SessionId(id), False)
            case _:
                pass

    def _lines(self, change: Change, at_ms: int) -> tuple[Change, tuple[Line, ...]]:
        return change, tuple(
            Line(
                method, params, notification(method, params, at_ms), at_ms, _key(self.session, change, params)
            )
            for method, params in self._write(self.session, change, self._root_turn)
        )

    async def close(self) -> None:
        """Follows no more."""
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)
            # A task that was cancelled knows where, and so this thread and all that was read of it.
            self._following = None


def _begin_of_turn(events: Sequence[Event], after: int, reach: int) -> int | None:
    """The first event that a projector needs for those behind an entry; None: it is not among these."""
    begin = next((at for at, event in enumerate(events) if event.seq > after), len(events))
    for at in reversed(range(begin)):
        if events[at].kind in TURN_ENDS:
            return begin
        if events[at].kind is TaskStarted:
            return at
    return begin if reach == 0 else None


def words_of(error: Exception) -> str:
    """Why a session can be followed no further, for those who heard it."""
    match error:
        case ArchiveUnavailable() | BrokenArchive():
            return unreadable(error)
        case BrokerError():
            return str(error)
        case _:
            return FAULT


class _Answer:
    """The listener of a call that waits for an event, and hears nothing else."""

    def __init__(self, accepts: Callable[[Event], bool]) -> None:
        self.told: asyncio.Future[Event | None] = asyncio.get_running_loop().create_future()
        """The event; None if the session is gone."""
        self._accepts = accepts

    def hear(self, told: Told) -> None:
        if not self.told.done() and self._accepts(told.event):
            self.told.set_result(told.event)

    def takes(self, session: SessionId) -> bool:
        return False

    def adopt(self, live: LiveThread, thread: Thread) -> None:
        """Takes none."""

    def lose(self, session: SessionId, fault: str = "") -> None:
        if self.told.done():
            return
        if fault:
            self.told.set_exception(RpcError(fault))
        else:
            self.told.set_result(None)


def withdrawn(projector: Projector) -> tuple[Change, ...]:
    """The end of each request that a projector knows to be open."""
    return tuple(RequestResolved(each.turn, each.item, WITHDRAWN) for each in projector.waiting)


def _come(parent: LiveThread, child: SessionId, live: LiveThread | None) -> list[Listener]:
    """Those who hear a session, and not yet the agent below it."""
    heard = live.listeners if live is not None else ()
    return [each for each in parent.listeners if each not in heard and each.takes(child)]


def _key(session: SessionId, change: Change, params: JsonObject) -> tuple[object, ...] | None:
    if isinstance(change, ItemDelta) and "delta" in params:
        # Clients choose the ids of turns: several sessions may have the same.
        return session, change.turn, change.item, change.kind, change.index
    return None


class LiveThreads:
    """All sessions that this process follows."""

    def __init__(self, ports: Ports, write: Write) -> None:
        self._ports = ports
        self._write = write
        self._live: dict[SessionId, LiveThread] = {}
        self._opening = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    async def hear(
        self,
        session: SessionId,
        client: Client,
        listener: Listener,
        *,
        newborn: bool = False,
        seen: SessionHead | None = None,
    ) -> LiveThread:
        """Adds a listener, and follows the session if nobody did; raises `UnknownSession`.

        A `newborn` session was made by this client a moment ago: it is there, and nothing of it was told.
        `seen` is the session's head, if this client has just read it.
        """
        while True:
            async with self._opening:
                # Somebody else may hear a session that this client may not see.
                head = None if newborn else seen or await client.head(session)
                if head is None and not newborn:
                    raise UnknownSession(session)
                live = self.of(session)
                if live is None:
                    live = self._made(session, client, head)
                    if head is not None:
                        await live.read(head)
                        live.ephemeral = await self._is_ephemeral(head)
                    self._live[session] = live
                    live.follow(newborn=newborn)
                    if live.ephemeral:
                        self.keep(live)
                if listener in live.listeners:
                    return live
                if live.is_whole:
                    live.listeners.append(listener)
                    return live
            await live.whole()

    async def answer(
        self,
        head: SessionHead,
        client: Client,
        accepts: Callable[[Event], bool],
        submit: Callable[[], Awaitable[object]],
        patience_s: float,
    ) -> Event | None:
        """Submits, and returns the first event of the session that `accepts`; None if none came in time.

        `head` is what the client has just read of the session. Raises `UnknownSession` where the session is
        deleted meanwhile, and what `submit` raises.
        """
        waiting = _Answer(accepts)
        await self.hear(head.session, client, waiting, seen=head)
        try:
            await submit()
            await asyncio.wait((waiting.told,), timeout=patience_s)
        finally:
            self.leave(head.session, waiting)
        if not waiting.told.done():
            return None
        if (event := waiting.told.result()) is None:
            raise UnknownSession(head.session)
        return event

    def _made(self, session: SessionId, client: Client, head: SessionHead | None) -> LiveThread:
        root = None if head is None or head.agent_id == ROOT else SessionId(head.tree)
        return LiveThread(self._ports, self._write, client, session, self._born, root)

    def _born(self, parent: LiveThread, child: SessionId, newborn: bool) -> None:
        self.begin(self._adopt(parent, child, newborn))

    async def _adopt(self, parent: LiveThread, child: SessionId, newborn: bool) -> None:
        """The same as `_adopt_now`, until Redis answers: nothing tells of the agent's birth again."""
        while True:
            try:
                gap = await self._adopt_now(parent, child, newborn)
                if gap is None:
                    return
                await gap.whole()
            except Unavailable:
                await asyncio.sleep(RETRY_S)

    async def _adopt_now(self, parent: LiveThread, child: SessionId, newborn: bool) -> LiveThread | None:
        """Lets all who hear a session hear an agent below it: a new one from its first event on.

        Answers the agent if others are told of a gap in it: then nobody is added yet.
        """
        async with self._opening:
            head = await parent.client.head(child)
            live = self.of(child)
            if head is None or (head.status == "closed" and live is None and not newborn):
                return None
            if not _come(parent, child, live):
                return None
            if live is not None and not live.is_whole:
                return live
            (thread,) = await threads(self._ports.found.broker, [head])
            known, live = live is not None, live or self._made(child, parent.client, head)
            if not (known or newborn):
                await live.read(head)
            for listener in _come(parent, child, live):
                live.listeners.append(listener)
                listener.adopt(live, thread)
            if not known and live.listeners:
                self._live[child] = live
                live.follow()
            return None

    def begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Does some work beside all connections, which does not end with one."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def keep(self, live: LiveThread) -> None:
        """Says to other gateways, as long as somebody hears an ephemeral session here, that it is heard."""
        live.marking = self.begin(self._marks(live.session))

    async def _marks(self, session: SessionId) -> None:
        while True:
            try:
                await marked(self._ports, session, hears=True)
            except (Unavailable, OutOfMemory):
                await asyncio.sleep(RETRY_S)
                continue
            except BrokerError as error:
                log.info("session %s: nothing says that it is heard here: %s", session, error)
                return
            await asyncio.sleep(MARK_S)

    async def _is_ephemeral(self, head: SessionHead) -> bool:
        """Whether it ends when nobody hears it, as far as the gateway of its maker says who does."""
        if head.agent_id != ROOT or not head.labels.ephemeral:
            return False
        (note,) = await self._ports.found.broker.requests.notes(HEARD, [head.session])
        if not note:
            return False
        try:
            await marked(self._ports, head.session, hears=True)
        except TooManyNotes:
            return False
        return True

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("work beside connections failed", exc_info=error)

    def leave(self, session: SessionId, listener: Listener) -> None:
        """Removes a listener; with the last one the following ends, and so does an ephemeral session."""
        live = self._live.get(session)
        if live is None or listener not in live.listeners:
            return
        live.listeners.remove(listener)
        if live.listeners:
            return
        del self._live[session]
        self.begin(live.close())
        if live.ephemeral:
            self.begin(self._delete(live, listener))

    async def _delete(self, live: LiveThread, last: Listener) -> None:
        """Deletes a session as the client that made it would, and tells who left it last.

        Unless it is heard through another gateway: that one deletes it then.
        """
        if live.marking is not None:
            live.marking.cancel()
        if await self._is_heard(live.session):
            return
        if await delete(self._ports.found, live.client, live.session):
            last.lose(live.session)

    async def _is_heard(self, session: SessionId) -> bool:
        try:
            others = await unmarked(self._ports, session)
            if others:
                # One that died deletes nothing, and says nothing any more.
                left_ms = max(others.values()) - self._ports.found.broker.now_ms()
                await asyncio.sleep(max(0, left_ms) / 1000)
                others = await unmarked(self._ports, session)
        except BrokerError:
            # It is gone, or has so many notes that nobody could say that it is heard.
            others = {}
        return bool(others) or session in self._live

    def of(self, session: SessionId) -> LiveThread | None:
        """The session as it is followed here."""
        live = self._live.get(session)
        return None if live is None or live.is_cut_off else live

    async def close(self) -> None:
        """Follows nothing more."""
        for live in tuple(self._live.values()):
            await live.close()
        self._live.clear()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


# ── ephemeral ─────────────────────────────────────────────────────────────────────────────────────
# Sessions for one question: they are in no list, and are deleted when nobody hears them any more.
#
# Each gateway knows its own clients, and says in a note about the session that it is heard there, again and
# again: the mark of one that died ends by itself.


PATIENCE_S = 5.0
HEARD = "heard"
"""The note's name: until when which gateways hear the session, by their ids, in Redis's time."""
HEARD_MS = 90_000
MARK_S = 30.0
MOST_MARKS = 64


async def marked(ports: Ports, session: SessionId, *, hears: bool) -> dict[str, int]:
    """Says whether this gateway hears a session; the marks of the others. Raises as `Notes.note`."""
    broker = ports.found.broker
    (note,) = await broker.requests.notes(HEARD, [session])
    while True:
        now = broker.now_ms()
        others = {name: ms for name, ms in _of_note(note).items() if name != ports.server_id and ms > now}
        others = dict(sorted(others.items(), key=lambda mark: mark[1])[-MOST_MARKS:])
        wanted = orjson.dumps({**others, **({ports.server_id: now + HEARD_MS} if hears else {})})
        stands = await broker.requests.note(session, HEARD, wanted, note)
        if stands == wanted:
            return others
        note = stands


def _of_note(note: bytes) -> dict[str, int]:
    marks: dict[str, int] = orjson.loads(note) if note else {}
    return marks


async def unmarked(ports: Ports, session: SessionId) -> dict[str, int]:
    """Says that this gateway hears a session no more, until Redis takes it; the marks of the others."""
    while True:
        try:
            return await marked(ports, session, hears=False)
        except (Unavailable, OutOfMemory):
            await asyncio.sleep(RETRY_S)


async def delete(found: LogSource, client: Client, session: SessionId) -> bool:
    """Stops what runs in a session, and deletes it; False if a worker kept it, for retention to delete."""
    with suppress(UnknownSession):
        head = await client.head(session)
        if head is not None and head.status not in AT_REST:
            await client.submit(session, Submission(SubmissionId(new_submission_id()), Interrupt()))
        with suppress(BrokerError):
            return bool(await until(found.broker, [session], lambda: _deleted(found, session), PATIENCE_S))
        return False
    return True


async def _deleted(found: LogSource, session: SessionId) -> bool:
    """Deletes a session; False while a worker holds it."""
    with suppress(UnknownSession):
        try:
            await found.broker.trees.delete_session(session, owed=True)
        except SessionHeld:
            return False
    return True


# ── running turn ──────────────────────────────────────────────────────────────────────────────────
# The events of a session's running turn, from its log: what a connection that comes later starts from.


MOST_MISSED = 4_096
"""Entries that are told again to who comes back to a place of the log, and as many before it."""
LOOK_BACK = 512
"""Entries of the first look; a longer turn is looked for in eight times as many."""


async def events_of_running_turn(found: LogSource, head: SessionHead) -> list[Event]:
    """The events from the begin of the running turn to the head; none if no turn runs."""
    if head.status in AT_REST:
        return []
    reach = LOOK_BACK
    while True:
        events = await events_of_log(found, head, max(0, head.seq - reach))
        begin = max((at for at, event in enumerate(events) if event.kind is TaskStarted), default=None)
        if begin is not None:
            return events[begin:]
        if reach >= head.seq:
            return []
        reach *= 8


async def events_of_log(found: LogSource, head: SessionHead, after: int) -> list[Event]:
    """The events of a session's log behind an entry, up to the head, with their large texts."""
    events = []
    async for stored in found.log(head.session, head.seq, after):
        event = told_by(stored)
        if event is not None:
            events.append(await whole_event(found, head, event))
    return events


async def whole_event(found: LogSource, head: SessionHead, event: Event) -> Event:
    """An event of a log with its large texts, as clients of the session's namespace get it."""
    texts = await found.large_texts(head.tree, references(event.msg))
    told = resolve(event.msg, texts.get)
    return replace(event, msg=for_tenant(told) if head.labels.namespace else told)
