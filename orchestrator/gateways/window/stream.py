"""The stream of one window: server-sent events of the topics that it asked for.

Topics of state begin with all of it and go on with what changes, merged: at once, and four times a second
while much changes for long. Topics of a log tell each notification, with pieces of one text merged while they
wait. A window that does not read is dropped, and comes back with its cursors.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Protocol

import orjson

from orchestrator.broker.errors import BrokerError
from orchestrator.broker.follow import EqCursor
from orchestrator.broker.records import SessionHead
from orchestrator.core.frozen import record
from orchestrator.core.ids import SessionId
from orchestrator.gateways.app_server.live_threads import Line, LiveThread, LiveThreads, Told
from orchestrator.gateways.client import Client, is_rewound
from orchestrator.gateways.principals import Principal
from orchestrator.gateways.window.feeds import TOPICS, Topic, Update, deleted_json
from orchestrator.gateways.wires.byte_wire import OUTGOING_LIMIT, STALL_S
from orchestrator.protocol.wire import JsonMapping, JsonObject
from orchestrator.rollouts import ArchiveUnavailable, BrokenArchive
from orchestrator.views.event import without_places
from orchestrator.views.threads import Thread

BEAT_S: Final = 10.0
"""Between two comments of a stream that tells nothing."""
PACE_S: Final = 0.25
"""Between two events of one topic of state, on an average of `AHEAD` events."""
GAP_S: Final = 0.04
AHEAD: Final = 40
"""Events of it that may come with `GAP_S` between them, before those behind them wait for the pace."""
BURST_BYTES: Final = 64 << 10
BEAT: Final = b": \n\n"
THREAD: Final = "thread"
"""The topic of a log: `thread:ID`."""
MOST_TOPICS, MOST_NAME = 32, 256


class TooMuch(Exception):
    """More waits for a window than may: it does not read."""


def event(topic: str, cursor: str, data: JsonMapping) -> bytes:
    """A server-sent event. JSON has no line breaks of its own, and a topic none, either."""
    return b"event: %s\nid: %s\ndata: %s\n\n" % (topic.encode(), cursor.encode(), orjson.dumps(data))


class Channel(Protocol):
    """A topic of a stream: what waits of it."""

    def due_s(self, now: float) -> float | None:
        """The seconds until something may be sent; None while nothing waits."""

    def taken(self, now: float) -> Iterator[bytes]:
        """The events that may be sent now."""

    @property
    def waiting(self) -> int:
        """The bytes that wait, as far as they are counted."""


@dataclass
class StateChannel:
    """A topic of state: rows that are another, the last one of each key."""

    topic: str
    kind: Topic
    reader: Principal
    news: Callable[[], None]
    _changed: dict[str, JsonObject] = field(default_factory=dict)
    _gone: dict[str, JsonObject] = field(default_factory=dict)
    _beside: JsonMapping = field(default_factory=dict)
    _whole: bool = False
    _ended: JsonObject | None = None
    _waits: bool = False
    _not_before: float = 0.0
    _paced: float = 0.0
    """The time at which the events that were sent would be over, each `PACE_S` behind the one before it."""
    _told: int = 0

    def take(self, update: Update) -> None:
        """Takes an update of the feed."""
        if update.whole:
            self._changed, self._gone, self._whole = {}, {}, True
        for key, row in update.gone.items():
            self._changed.pop(key, None)
            self._gone[key] = row
        for key, row in update.changed.items():
            self._gone.pop(key, None)
            self._changed[key] = row
        self._beside = update.beside or self._beside
        self._waits = True
        self.news()

    def end(self, told: JsonObject) -> None:
        """Is told that the topic is gone, and what is known of that."""
        self._ended, self._waits = told, True
        self.news()

    def due_s(self, now: float) -> float | None:
        return max(0.0, self._not_before - now) if self._waits else None

    def taken(self, now: float) -> Iterator[bytes]:
        if not self._waits or now < self._not_before:
            return
        self._paced = max(self._paced, now) + PACE_S
        self._waits, self._not_before = False, max(now + GAP_S, self._paced - AHEAD * PACE_S)
        self._told += 1
        if self._ended is not None:
            yield event(self.topic, str(self._told), {"type": "gone", **self._ended})
            return
        rows = [self.kind.drawn(row, self.reader) for row in self._changed.values()]
        if self._whole:
            told: JsonObject = {"type": "all", "data": rows}
        else:
            told = {"type": "changed", "changed": rows, "gone": list(self._gone.values())}
        self._changed, self._gone, self._whole = {}, {}, False
        yield event(self.topic, str(self._told), {**told, **self._beside})

    @property
    def waiting(self) -> int:
        # One row of each key, which all windows share.
        return 0


@dataclass(slots=True)
class _Waiting:
    """A notification that waits; its text may grow."""

    cursor: str
    line: Line
    size: int
    delta: str | None = None


@dataclass
class LogChannel:
    """A topic of a log: everything in its order."""

    topic: str
    news: Callable[[], None]
    _waiting: deque[_Waiting | bytes] = field(default_factory=deque)
    _bytes: int = 0

    def put(self, cursor: str, line: Line) -> None:
        """Adds a notification, or its piece of text to the one that waits last."""
        size = len(line.data)
        last = self._waiting[-1] if self._waiting else None
        if line.merges is not None and isinstance(last, _Waiting) and last.line.merges == line.merges:
            before = last.line.params["delta"] if last.delta is None else last.delta
            last.delta, last.cursor = before + line.params["delta"], cursor
            size = len(line.params["delta"].encode("utf-8", "surrogatepass"))
            last.size += size
        else:
            self._waiting.append(_Waiting(cursor, line, size))
        self._bytes += size
        self.news()

    def say(self, cursor: str, data: JsonMapping) -> None:
        """Adds words about the topic itself."""
        told = event(self.topic, cursor, data)
        self._waiting.append(told)
        self._bytes += len(told)
        self.news()

    def clear(self) -> None:
        """Drops what waits: it is told anew."""
        self._waiting.clear()
        self._bytes = 0

    def due_s(self, now: float) -> float | None:
        return 0.0 if self._waiting else None

    def taken(self, now: float) -> Iterator[bytes]:
        while self._waiting:
            one = self._waiting.popleft()
            self._bytes -= len(one) if isinstance(one, bytes) else one.size
            if isinstance(one, bytes):
                yield one
                continue
            params = one.line.params if one.delta is None else {**one.line.params, "delta": one.delta}
            told = {"method": one.line.method, "params": params, "emittedAtMs": one.line.at_ms}
            yield event(self.topic, one.cursor, told)

    @property
    def waiting(self) -> int:
        return self._bytes


class Stream:
    """The events for one window, until it leaves."""

    def __init__(self, clock: Callable[[], float], limit: int = OUTGOING_LIMIT) -> None:
        self._clock = clock
        self._limit = limit
        self._news = asyncio.Event()
        self._channels: list[Channel] = []

    def news(self) -> None:
        """Is told that something waits."""
        self._news.set()

    def add(self, channel: Channel) -> None:
        """Adds a topic."""
        self._channels.append(channel)

    async def run(self, send: Callable[[bytes], Awaitable[None]]) -> None:
        """Sends what waits, for ever; raises `TooMuch` for a window that does not read."""
        sent_at = self._clock()
        while True:
            self._news.clear()
            now = self._clock()
            if burst := self._burst(now):
                await self._sent(send, burst)
                sent_at = self._clock()
                continue
            due = [left for each in self._channels if (left := each.due_s(now)) is not None]
            left = min([sent_at + BEAT_S - now, *due])
            if left <= 0:
                await self._sent(send, BEAT)
                sent_at = self._clock()
                continue
            try:
                async with asyncio.timeout(left):
                    await self._news.wait()
            except TimeoutError:
                pass

    def _burst(self, now: float) -> bytes:
        found: list[bytes] = []
        size = 0
        for channel in self._channels:
            for told in channel.taken(now):
                found.append(told)
                size += len(told)
                if size >= BURST_BYTES:
                    return b"".join(found)
        return b"".join(found)

    async def _sent(self, send: Callable[[bytes], Awaitable[None]], data: bytes) -> None:
        """Sends; raises `TooMuch` where nothing is read, or too much comes to wait meanwhile."""
        task = asyncio.ensure_future(send(data))
        clock, begun = asyncio.get_running_loop().time, asyncio.get_running_loop().time()
        try:
            while not task.done():
                if sum(each.waiting for each in self._channels) > self._limit:
                    raise TooMuch
                left = begun + STALL_S - clock()
                if left <= 0:
                    raise TooMuch
                news = asyncio.ensure_future(self._news.wait())
                await asyncio.wait((task, news), timeout=left, return_when=asyncio.FIRST_COMPLETED)
                news.cancel()
                self._news.clear()
            task.result()
        finally:
            task.cancel()


# ── threads ───────────────────────────────────────────────────────────────────────────────────────


class ThreadSeat:
    """A stream that hears a thread, and no agent below it: each is a topic of its own."""

    def __init__(self, channel: LogChannel, client: Client) -> None:
        self._channel = channel
        self._client = client
        self._ending: asyncio.Task[None] | None = None
        self._held: list[Told] | None = []
        """The events that come while those before them are read."""
        self._cursor = ""

    async def begin(self, threads: LiveThreads, head: SessionHead, cursor: EqCursor | None) -> None:
        """Hears a thread from a place in its log, or from now on; raises `UnknownSession`.

        Where nobody knows any more what came behind the place, the window is told to read anew.
        """
        live = await threads.hear(head.session, self._client, self)
        place = live.place
        missed = None
        if cursor is not None:
            # What the archive does not give is read anew, as far as it can be.
            with suppress(ArchiveUnavailable, BrokenArchive):
                missed = await live.missed(head, cursor)
        if cursor is not None and missed is None:
            self._channel.say(str(place), {"type": "reset"})
        else:
            self._cursor = str(place if cursor is None else cursor)
            self._channel.say(self._cursor, {"type": "begun", "resumed": cursor is not None})
            for _, lines in missed or ():
                for line in lines:
                    self._channel.put(self._cursor, line)
        self._cursor = str(place)
        held, self._held = self._held or [], None
        for told in held:
            self.hear(told)

    def hear(self, told: Told) -> None:
        """Takes an event."""
        if self._held is not None:
            self._held.append(told)
            return
        after = str(told.event.cursor) if told.event.cursor is not None else self._cursor
        if is_rewound(told.event):
            self._channel.clear()
            self._channel.say(after, {"type": "reset"})
        lines = [line for _, lines in told.changes for line in lines]
        for at, line in enumerate(lines):
            # Who is cut off between two lines of one event gets both again.
            self._channel.put(after if at == len(lines) - 1 else self._cursor, line)
        self._cursor = after

    def takes(self, session: SessionId) -> bool:
        return False

    def adopt(self, live: LiveThread, thread: Thread) -> None:
        """Takes none."""

    def lose(self, session: SessionId, fault: str = "") -> None:
        """Tells that the thread is gone, and who deleted it; or the fault that ends what is told of it."""
        if fault:
            why = without_places(fault) if self._client.namespace else fault
            self._channel.say("", {"type": "error", "error": {"message": why}})
        else:
            self._ending = asyncio.create_task(self._ends(session))

    async def _ends(self, session: SessionId) -> None:
        told: JsonObject = {}
        with suppress(BrokerError):
            found = await self._client.deletion(session)
            told = deleted_json(found) if found is not None else {}
        self._channel.say("", {"type": "gone", **told})

    def leave(self) -> None:
        """Tells nothing more."""
        if self._ending is not None:
            self._ending.cancel()


# ── topics that are asked for ─────────────────────────────────────────────────────────────────────


@record
class Asked:
    """A topic that is asked for: `NAME` or `NAME:NAMED`, with `@CURSOR` behind it where one comes back."""

    topic: str
    name: str
    named: str
    cursor: str

    @property
    def place(self) -> EqCursor | None:
        """The place of a log to come back to; None: from now on. Raises `ValueError` for none."""
        return EqCursor.parse(self.cursor) if self.cursor else None

    @classmethod
    def of(cls, text: str) -> Asked:
        """Raises `ValueError` for a topic that there is not."""
        topic, _, cursor = text.partition("@")
        name, colon, named = topic.partition(":")
        if name != THREAD and name not in TOPICS:
            raise ValueError(f"topic: {', '.join((*TOPICS, THREAD))} are there; {text[:100]!r} is none")
        if colon and not named:
            raise ValueError(f"topic: {text[:100]!r} names nothing behind its colon")
        if not topic.isascii() or not topic.isprintable() or not cursor.isascii():
            raise ValueError(f"topic: {text[:100]!r} has characters that none has")
        found = cls(topic, name, named, cursor)
        try:
            _ = found.place if name == THREAD else None
        except ValueError:
            raise ValueError(f"topic: {cursor[:100]!r} is no cursor that the stream gave") from None
        return found


def topics_of(given: Sequence[str]) -> list[Asked]:
    """The topics of a request; raises `ValueError`."""
    if not 1 <= len(given) <= MOST_TOPICS:
        raise ValueError(f"topic: 1 to {MOST_TOPICS} are expected")
    if any(len(text) > MOST_NAME for text in given):
        raise ValueError(f"topic: at most {MOST_NAME} characters each")
    asked = [Asked.of(text) for text in given]
    if len({each.topic for each in asked}) < len(asked):
        raise ValueError("topic: one of them is there twice")
    return asked
