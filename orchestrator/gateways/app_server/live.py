"""Sessions that connections of this process hear, each followed once and projected once for all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from orchestrator.broker.errors import UnknownSession
from orchestrator.broker.follow import BEGINNING, EqCursor
from orchestrator.broker.records import SessionHead
from orchestrator.core.ids import SessionId
from orchestrator.gateways.app_server.messages import notification
from orchestrator.gateways.app_server.ports import Ports
from orchestrator.gateways.app_server.running_turn import events_of_running_turn
from orchestrator.gateways.client import GAP_TEXTS, Client
from orchestrator.protocol.wire import JsonObject
from orchestrator.views.event import Event
from orchestrator.views.turns.projector import Projector
from orchestrator.views.turns.records import Change, ItemDelta


@dataclass(frozen=True, slots=True)
class Line:
    """A notification, written once for all who hear it."""

    method: str
    params: JsonObject
    data: bytes
    at_ms: int
    merges: tuple[object, ...] | None = None
    """Pieces of one text have one key: waiting ones may be merged."""


@dataclass(frozen=True, slots=True)
class Told:
    """An event of a session with what follows from it."""

    session: SessionId
    event: Event
    changes: tuple[tuple[Change, tuple[Line, ...]], ...]


Write = Callable[[SessionId, Change], Iterable[tuple[str, JsonObject]]]
"""How a change of a session is told: the methods and parameters of its notifications."""


class Listener(Protocol):
    """A connection that hears a session."""

    def hear(self, told: Told) -> None:
        """Takes the next event; must not wait."""

    def lose(self, session: SessionId) -> None:
        """Is told that the session is gone: nothing more will come."""


class LiveThread:
    """A session with those who hear it."""

    def __init__(self, ports: Ports, write: Write, client: Client, session: SessionId) -> None:
        self.session = session
        self.projector = Projector(session)
        self.listeners: list[Listener] = []
        self.seq = 0
        """The place in the log up to which listeners have been told."""
        self._ports = ports
        self._write = write
        self._client = client
        self._following: asyncio.Task[None] | None = None
        self._cursor = BEGINNING

    async def open(self, *, newborn: bool) -> None:
        """Begins to follow: from the first event, or from now with the running turn read from the log."""
        head = await self._client.head(self.session)
        if head is None:
            raise UnknownSession(self.session)
        if not newborn:
            await self._read(head)
        self._following = asyncio.create_task(self._follow())

    async def _read(self, head: SessionHead) -> None:
        for event in await events_of_running_turn(self._ports.found, head):
            self.projector.receive(event)
        self.seq, self._cursor = head.seq, EqCursor.at(head)

    async def _follow(self) -> None:
        try:
            async for event in self._client.follow(self.session, self._cursor):
                self._take(event)
        except UnknownSession:
            for listener in tuple(self.listeners):
                listener.lose(self.session)

    def _take(self, event: Event) -> None:
        if event.cursor is not None:
            self.seq, self._cursor = event.cursor.seq, event.cursor
        if event.type == "warning" and event.msg.get("message") == GAP_TEXTS["rewound"]:
            # The log begins again: what was told of it never happened.
            self.projector = Projector(self.session)
        told = Told(self.session, event, tuple(map(self._lines, self.projector.receive(event))))
        for listener in tuple(self.listeners):
            listener.hear(told)

    def _lines(self, change: Change) -> tuple[Change, tuple[Line, ...]]:
        written = []
        for method, params in self._write(self.session, change):
            now = self._ports.now_ms()
            written.append(Line(method, params, notification(method, params, now), now, _key(change, method)))
        return change, tuple(written)

    async def close(self) -> None:
        """Follows no more."""
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)


def _key(change: Change, method: str) -> tuple[object, ...] | None:
    return (
        (change.turn, change.item, change.kind, change.index, method)
        if isinstance(change, ItemDelta)
        else None
    )


class LiveThreads:
    """All sessions that this process follows."""

    def __init__(self, ports: Ports, write: Write) -> None:
        self._ports = ports
        self._write = write
        self._live: dict[SessionId, LiveThread] = {}
        self._opening = asyncio.Lock()
        self._closing: set[asyncio.Task[None]] = set()

    async def hear(
        self, session: SessionId, client: Client, listener: Listener, *, newborn: bool = False
    ) -> LiveThread:
        """Adds a listener, and follows the session if nobody did; raises `UnknownSession`."""
        async with self._opening:
            live = self._live.get(session)
            if live is None:
                live = LiveThread(self._ports, self._write, client, session)
                await live.open(newborn=newborn)
                self._live[session] = live
            if listener not in live.listeners:
                live.listeners.append(listener)
            return live

    def leave(self, session: SessionId, listener: Listener) -> bool:
        """Removes a listener; whether it was the last one, with whom the following ends."""
        live = self._live.get(session)
        if live is None or listener not in live.listeners:
            return False
        live.listeners.remove(listener)
        if live.listeners:
            return False
        del self._live[session]
        task = asyncio.create_task(live.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
        return True

    def of(self, session: SessionId) -> LiveThread | None:
        """The session as it is followed here."""
        return self._live.get(session)

    async def close(self) -> None:
        """Follows nothing more."""
        for live in tuple(self._live.values()):
            await live.close()
        self._live.clear()
        await asyncio.gather(*self._closing, return_exceptions=True)
