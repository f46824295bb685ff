"""Feeds: the state of a topic as it is and as it changes, read once for all windows that show it.

A topic is one generator of updates, and its place in `TOPICS`. It runs while somebody listens: a gateway
without an open window follows nothing.

    async def workers(ports, namespace, named) -> AsyncIterator[Update]:
        yield Update(rows, whole=True)          all that there is, at first and whenever it begins anew
        while True:
            yield Update(changed, gone)         what is another now, by the keys of the rows
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import field
from typing import Final, Protocol, TypeAlias

from orchestrator.broker.broker import Broker
from orchestrator.broker.errors import Unavailable, UnknownSession
from orchestrator.broker.notices import Listener
from orchestrator.broker.open_requests import Opened, Settled
from orchestrator.broker.records import AT_REST, Deleted
from orchestrator.core.frozen import record
from orchestrator.core.ids import SessionId, TreeId
from orchestrator.core.tree import ROOT
from orchestrator.gateways.app_server.door import head_of, session_of
from orchestrator.gateways.app_server.door_ports import Ports
from orchestrator.gateways.app_server.messages import NotThere, no_rollout
from orchestrator.gateways.app_server.methods.approvals import answered_json, request_id, request_row
from orchestrator.gateways.app_server.methods.fleet import tree_json, tree_row, worker_json
from orchestrator.gateways.principals import Principal, Scope
from orchestrator.protocol.wire import JsonMapping, JsonObject
from orchestrator.views.approvals import asked_of, needed
from orchestrator.views.decided_requests import decided_call
from orchestrator.views.fleet import Fleet
from orchestrator.views.readable import readable_head
from orchestrator.views.tree import TreePicture, TreeReader
from orchestrator.views.workers import workers_of

IDLE_S: Final = 5.0
NOW_S: Final = 0.001
RETRY_S: Final = 0.5
LOOKED_AT: Final = 1_024
"""Entries of a session among which the decision is looked for that ended a request."""
log = logging.getLogger("dendro.window")


@record
class Update:
    """A change of a topic, by the keys of its rows."""

    changed: Mapping[str, JsonObject] = field(default_factory=dict)
    gone: Mapping[str, JsonObject] = field(default_factory=dict)
    """Rows that are not there any more, with what is told of their end."""
    whole: bool = False
    """Whether `changed` is all that there is: what was told before is nothing any more."""
    beside: JsonMapping = field(default_factory=dict)
    """Members that stand beside the rows, as counts: those of the last update count."""


Feed: TypeAlias = Callable[[Ports, str, str], AsyncIterator[Update]]
"""Makes a feed, for a namespace and for what the topic names (`ID` of `tree:ID`); it ends with the thing."""


def _as_it_is(row: JsonObject, reader: Principal) -> JsonObject:
    return row


async def _all_may(ports: Ports, reader: Principal, named: str) -> None:
    if named:
        raise NotThere("this topic names nothing behind a colon")


@record
class Topic:
    """A kind of topic."""

    feed: Feed
    drawn: Callable[[JsonObject, Principal], JsonObject] = field(default=_as_it_is)
    """A row as this reader gets it; feeds are shared by all readers of a namespace."""
    check: Callable[[Ports, Principal, str], Awaitable[None]] = field(default=_all_may)
    """Raises `NotThere` where there is no such topic for the reader."""
    of_person: bool = False
    """Whether each person has rows of their own: its feed is given the person in the place of a name."""


class Gone(UnknownSession):
    """The thing that a topic is about is gone; `told` says what is known of that."""

    def __init__(self, session: SessionId, told: JsonObject) -> None:
        super().__init__(session)
        self.told = told


def deleted_json(found: Deleted) -> JsonObject:
    """The end of a session, for a reader of its namespace."""
    return {"deletedBy": found.who or None, "deletedAtMs": found.at_ms}


class Seat(Protocol):
    """A stream that hears a feed."""

    def take(self, update: Update) -> None:
        """Takes an update; must not wait."""

    def end(self, told: JsonObject) -> None:
        """Is told that what the topic is about is gone, and what is known of that; nothing more will come."""


class Shared:
    """A feed that runs for all who hear it."""

    def __init__(self, updates: Callable[[], AsyncIterator[Update]]) -> None:
        self._updates = updates
        self._rows: dict[str, JsonObject] = {}
        self._beside: JsonMapping = {}
        self._whole = False
        self._seats: list[Seat] = []
        self._ended: JsonObject | None = None
        self._task: asyncio.Task[None] | None = None

    def join(self, seat: Seat) -> None:
        """Lets a stream hear all that is there, and then each change."""
        self._seats.append(seat)
        if self._ended is not None:
            seat.end(self._ended)
        elif self._whole:
            seat.take(Update(dict(self._rows), whole=True, beside=self._beside))
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    def leave(self, seat: Seat) -> bool:
        """Lets a stream hear no more; whether it was the last one."""
        self._seats.remove(seat)
        return not self._seats

    async def close(self) -> None:
        """Follows no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        ended: JsonObject = {}
        while True:
            try:
                async with aclosing(self._updates()) as updates:  # type: ignore[type-var]
                    async for update in updates:
                        self._tell(update)
            except Gone as gone:
                ended = gone.told
            except UnknownSession:
                pass
            except Unavailable:
                await asyncio.sleep(RETRY_S)
                continue
            except Exception:
                log.exception("a topic of the window failed: it begins anew")
                await asyncio.sleep(RETRY_S)
                continue
            self._ended = ended
            for seat in tuple(self._seats):
                seat.end(ended)
            return

    def _tell(self, update: Update) -> None:
        if update.whole:
            self._rows, self._whole = {}, True
        for key in update.gone:
            self._rows.pop(key, None)
        self._rows.update(update.changed)
        self._beside = update.beside or self._beside
        for seat in tuple(self._seats):
            seat.take(update)


class Feeds:
    """The feeds that somebody hears now."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._shared: dict[tuple[str, str, str], Shared] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def join(self, name: str, named: str, reader: Principal, seat: Seat) -> Callable[[], None]:
        """Lets a stream hear a topic; the answer ends that."""
        topic = TOPICS[name]
        named = reader.name if topic.of_person else named
        key = name, named, reader.namespace
        shared = self._shared.get(key)
        if shared is None:
            shared = self._shared[key] = Shared(lambda: topic.feed(self._ports, reader.namespace, named))
        shared.join(seat)

        def leave() -> None:
            if shared.leave(seat) and self._shared.get(key) is shared:
                del self._shared[key]
                closing = asyncio.create_task(shared.close())
                self._closing.add(closing)
                closing.add_done_callback(self._closing.discard)

        return leave

    @property
    def open(self) -> int:
        """The feeds that run."""
        return len(self._shared)


# ── needs ─────────────────────────────────────────────────────────────────────────────────────────


async def needs(ports: Ports, namespace: str, named: str) -> AsyncIterator[Update]:
    """The requests that wait for people, as `approval/list` has them, and how each of them ends."""
    feed = ports.found.broker.requests.request_feed(namespace)
    whole = True
    try:
        while True:
            changes = await feed.changes(NOW_S if whole else IDLE_S)
            if changes or whole:
                opened = [change.request for change in changes if isinstance(change, Opened)]
                settled = [change for change in changes if isinstance(change, Settled)]
                asked = [one for each in opened if (one := await asked_of(ports.found, each)) is not None]
                rows = [request_row(one, NOBODY) for one in await needed(ports.found, asked)]
                gone = [await _ended(ports, change.session, change.key) for change in settled]
                yield Update(
                    {str(row["requestId"]): row for row in rows},
                    {str(row["requestId"]): row for row in gone},
                    whole,
                )
                whole = False
    finally:
        await feed.aclose()


NOBODY: Final = Principal("", scope=Scope.READ)
"""The reader of a row that is drawn for nobody yet."""


async def _ended(ports: Ports, session: SessionId, call: str) -> JsonObject:
    named: JsonObject = {"requestId": request_id(session, call), "threadId": session, "callId": call}
    head = await readable_head(ports.found.broker.logs, session)
    found = None if head is None else await decided_call(ports.found, head, call, LOOKED_AT)
    return {**named, **answered_json(found)}


def _may_answer(row: JsonObject, reader: Principal) -> JsonObject:
    return {**row, "mayAnswer": reader.may(Scope.APPROVE)}


# ── fleet ─────────────────────────────────────────────────────────────────────────────────────────
# Trees and agents are looked at when a script names them; what changes with time alone (a lease that runs
# out, a heartbeat) is looked at every few seconds.


MOST_ROWS: Final = 500
"""Trees that the topic begins with: those used last; others come as they change, and by `fleet/list`."""
MOST_AGENTS: Final = 64
"""Agents of a tree whose events wake its topic, those at work first; others do as their status changes."""
LOOK_S: Final = 0.25
"""Between two looks at what changes all the time."""


async def fleet(ports: Ports, namespace: str, person: str) -> AsyncIterator[Update]:
    """The trees that were used last, as this person's lists have them, and each that changes."""
    trees = Fleet(ports.found.broker, namespace)
    told: dict[str, JsonObject] = {}
    counts: JsonObject = {}
    looked_s = 0.0
    try:
        while True:
            changed = await trees.follow(IDLE_S)
            roots = set(trees.newest(MOST_ROWS) if changed is None else changed)
            if time.monotonic() - looked_s >= IDLE_S:
                # A lease that runs out is told by nobody, however much else is.
                roots |= {root for root in trees.busy() if root in told}
                looked_s = time.monotonic()
            there = await trees.rows([root for root in roots if trees.lists(root)], person)
            rows = {str(row.tree): tree_row(row) for row in there}
            counted: JsonObject = {"counts": dict(await trees.counts(person)), "damaged": trees.damaged}
            if changed is None:
                told, counts = rows, counted
                yield Update(dict(rows), whole=True, beside=counted)
                continue
            gone = [root for root in roots if root in told and not trees.lists(root)]
            news = _changed(rows, told)
            if news or gone or counted != counts:
                for root in gone:
                    del told[root]
                told |= news
                counts = counted
                yield Update(news, {root: {"treeId": root} for root in gone}, beside=counted)
                await asyncio.sleep(LOOK_S)
    finally:
        await trees.aclose()


def _changed(rows: Mapping[str, JsonObject], told: Mapping[str, JsonObject]) -> dict[str, JsonObject]:
    """The rows that are others than was told."""
    return {key: row for key, row in rows.items() if told.get(key) != row}


async def _gone(broker: Broker, root: SessionId, namespace: str) -> Gone:
    """The end of a tree's topic: who deleted it is for its own namespace."""
    found = await broker.trees.deletion_of(root)
    return Gone(root, deleted_json(found) if found is not None and found.namespace == namespace else {})


async def tree(ports: Ports, namespace: str, named: str) -> AsyncIterator[Update]:
    """The agents of a tree, with its budgets beside them; it ends with the tree."""
    broker, root = ports.found.broker, session_of(named)
    reader, listener = TreeReader(broker, TreeId(root)), broker.listener()
    shard = broker.keys.shard_of(root)
    shared = [broker.keys.changed(shard), broker.keys.released(shard), broker.keys.asked(shard)]
    feed = broker.fleet_feed(namespace)
    told: dict[str, JsonObject] = {}
    beside: JsonObject = {}
    cursors: Mapping[str, str] = {}
    whole = True
    try:
        # It has the scripts tell of changes; the streams are read here, with those of the tree's events.
        await feed.changes()
        while True:
            head = await broker.logs.head(root)
            if head is None:
                raise UnknownSession(root)
            picture = await _picture(reader, root)
            streams = [*shared, broker.keys.tree(root), *_events(broker, picture)]
            missing = [key for key in streams if key not in cursors]
            if missing:
                # Their ends are known before the look that counts: at the tree's agents, and at its root.
                cursors = {**cursors, **await listener.tips(missing)}
                picture, head = await _picture(reader, root), await broker.logs.head(root) or head
            drawn = tree_json(head, picture)
            rows = {str(row["agentId"]): row for row in drawn["agents"]}
            header = {name: value for name, value in drawn.items() if name not in ("agents", "atMs")}
            news = _changed(rows, told)
            gone = {key: {"agentId": int(key)} for key in told if key not in rows}
            if whole or news or gone or header != beside:
                yield Update(rows if whole else news, gone, whole, {**header, "atMs": picture.now_ms})
            told, beside, whole = rows, header, False
            await asyncio.sleep(LOOK_S)
            cursors = await _woken(listener, {key: cursors[key] for key in streams})
            await feed.keep_watching()
    except UnknownSession:
        raise await _gone(broker, root, namespace) from None
    finally:
        await feed.aclose()
        await listener.aclose()


def _events(broker: Broker, picture: TreePicture) -> list[str]:
    """The event queues of the tree's agents, those at work first."""
    agents = sorted(picture.agents.values(), key=lambda one: (one.status in AT_REST, one.agent_id))
    return [broker.keys.eq(one.session) for one in agents[:MOST_AGENTS]]


async def _picture(reader: TreeReader, root: SessionId) -> TreePicture:
    try:
        return await reader.picture()
    except UnknownSession:
        raise UnknownSession(root) from None


async def _woken(listener: Listener, cursors: Mapping[str, str]) -> Mapping[str, str]:
    found = await listener.read(cursors, IDLE_S)
    return {**cursors, **{key: entries[-1][0].decode() for key, entries in found.items()}}


async def workers(ports: Ports, namespace: str, named: str) -> AsyncIterator[Update]:
    """The workers, as their heartbeats come; a namespace's client learns of none."""
    told: dict[str, JsonObject] = {}
    whole = True
    while True:
        seen = [] if namespace else await workers_of(ports.found.broker.claims)
        rows = {one.name: worker_json(one) for one in seen}
        news = {key: row for key, row in rows.items() if told.get(key) != row}
        gone = {key: {"worker": key} for key in told if key not in rows}
        if whole or news or gone:
            yield Update(rows if whole else news, gone, whole)
        told, whole = rows, False
        await asyncio.sleep(IDLE_S)


async def _a_tree(ports: Ports, reader: Principal, named: str) -> None:
    """Raises `NotThere` for what is no root of the reader's namespace."""
    head = await head_of(ports.client(reader, "window"), named, no_rollout)
    if head.agent_id != ROOT:
        raise no_rollout(named)


TOPICS: Mapping[str, Topic] = {
    "needs": Topic(needs, _may_answer),
    "fleet": Topic(fleet, of_person=True),
    "tree": Topic(tree, check=_a_tree),
    "workers": Topic(workers),
}
"""The topics of state, by the names that streams ask for; a new one is a line here."""
