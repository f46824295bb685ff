"""Events that came together, with what all connections of a process make of them, made once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from orchestrator.broker.follow import EqCursor
from orchestrator.broker.records import StoredEvent
from orchestrator.config_keys import KIB
from orchestrator.core.blobs import may_refer
from orchestrator.core.frozen import replace
from orchestrator.protocol.events import ExecCommandEnd, ShutdownComplete
from orchestrator.recent import Recent
from orchestrator.views.asked_requests import TELLING
from orchestrator.views.event import CHANGED, Event, Message
from orchestrator.views.event import for_tenant as message_for_tenant

BURST_BYTES = 64 * KIB
"""Bytes of payloads behind which another burst begins."""
NOTED = TELLING | {ExecCommandEnd, ShutdownComplete}
"""Events from which a connection of lines learns more than its client."""

Numbers = Callable[[Event, int], int]
"""The `seq` of an event on a line, from that of the event before."""

NOT_ON_A_LINE: Final = frozenset({"context_compaction", "raw_response_item"})
"""Events for doors that draw items: recorded clients of the SQ and EQ are served without them."""


class Burst:
    """Events of one session that are told together; connections share it, and none may change it."""

    __slots__ = ("_lines", "_noted", "events", "refers")

    def __init__(self, events: tuple[Event, ...], *, refers: bool = False) -> None:
        self.events = events
        self.refers = refers
        """Whether it is an event whose large texts are still to be put in."""
        self._lines: dict[Numbers | None, bytes] = {}
        self._noted: tuple[Event, ...] | None = None

    def lines(self, numbers: Numbers | None, number: int) -> bytes:
        """A line for each event that is told on lines, with its number if there are `numbers`."""
        if self.events[0].cursor is None:
            return self._written(numbers, number)
        # Numbers of events that have a place are the same for every connection.
        found = self._lines.get(numbers)
        if found is None:
            found = self._lines[numbers] = self._written(numbers, number)
        return found

    def _written(self, numbers: Numbers | None, number: int) -> bytes:
        lines = []
        for event in self.events:
            number = numbers(event, number) if numbers is not None else 0
            if event.type not in NOT_ON_A_LINE:
                line = event.line()
                lines.append(line if numbers is None else b'%b,"seq":%d}' % (line[:-1], number))
        return b"\n".join((*lines, b"")) if lines else b""

    def number(self, numbers: Numbers | None, number: int) -> int:
        """The `seq` of its last event, for a connection whose last one was `number`."""
        return number if numbers is None else numbers(self.events[-1], number)

    def noted(self) -> tuple[Event, ...]:
        """Its events of the kinds `NOTED`."""
        if self._noted is None:
            self._noted = tuple(event for event in self.events if event.kind in NOTED)
        return self._noted


def for_tenant(burst: Burst) -> Burst:
    """A burst as the tenant of a namespace gets it."""
    if not any(event.type in CHANGED for event in burst.events):
        return burst
    told = (replace(event, msg=message_for_tenant(event.msg), shared=None) for event in burst.events)
    return Burst(tuple(told), refers=burst.refers)


def bursts_of(found: Iterable[StoredEvent], read: Callable[[bytes], Message]) -> tuple[Burst, ...]:
    """Events of a queue as bursts of at most `BURST_BYTES`, or of one event; `read` reads a payload."""
    bursts: list[Burst] = []
    together: list[Event] = []
    size = 0
    for stored in found:
        event = _event(stored, read(stored.payload))
        refers = may_refer(stored.payload)
        if together and (refers or size + len(stored.payload) > BURST_BYTES):
            bursts.append(Burst(tuple(together)))
            together, size = [], 0
        if refers:
            bursts.append(Burst((event,), refers=True))
        else:
            together.append(event)
            size += len(stored.payload)
    return (*bursts, Burst(tuple(together))) if together else tuple(bursts)


def _event(stored: StoredEvent, read: Message) -> Event:
    return Event(read.id, read.msg, EqCursor.behind(stored), stored.at_ms, stored.seq, read)


# ── messages ──────────────────────────────────────────────────────────────────────────────────────
# Events that many connections of one process follow, each read and written once for all of them.


MOST_BYTES = 512 * KIB
"""Payloads that are kept; read, they take some ten times as much."""


class Messages:
    """The messages of the payloads that were read last, and the bursts of the answers that they came in."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._messages = Recent[bytes, Message](most_bytes)
        self._answers = Recent[int, tuple[tuple[StoredEvent, ...], tuple[Burst, ...]]](most_bytes)
        """Bursts by the identity of their answer, which is kept beside them and so stays its own."""

    def bursts(self, answer: tuple[StoredEvent, ...]) -> tuple[Burst, ...]:
        """The bursts of a reader's answer; the same ones for all who share the answer, soon behind it."""
        found = self._answers.get(id(answer))
        if found is not None:
            return found[1]
        bursts = bursts_of(answer, self.of)
        self._answers.put(id(answer), (answer, bursts), sum(len(event.payload) for event in answer))
        return bursts

    def of(self, payload: bytes) -> Message:
        """The message of a payload; what comes soon behind it finds the same one."""
        found = self._messages.get(payload)
        if found is None:
            found = Message(payload)
            self._messages.put(payload, found, len(payload))
        return found
