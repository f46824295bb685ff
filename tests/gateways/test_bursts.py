"""Events that come together on a connection of lines: few writes, and never very large ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from dataclasses import dataclass, field
from typing import Any, cast

import orjson
import pytest

from orchestrator.broker.follow import BEGINNING, EqCursor
from orchestrator.broker.records import SessionHead, StoredEvent
from orchestrator.core.blobs import REFERENCE
from orchestrator.core.ids import SessionId
from orchestrator.gateways import ndjson
from orchestrator.gateways.bursts import BURST_BYTES, Burst, Messages, bursts_of, for_tenant
from orchestrator.gateways.client import Client
from orchestrator.gateways.ndjson import Ending, LineOptions, NdjsonConnection, Streams
from orchestrator.gateways.sq_eq import number_after
from orchestrator.gateways.wires.byte_wire import WireClosed
from orchestrator.views.event import Message
from tests.views.test_threads import head

SESSION = SessionId("01a1f8a1-c5d0-7001-97bc-c80be6a60f79")


@dataclass
class Told:
    """A client of a session whose events are all there at once, and which rests behind them."""

    count: int
    text: str = ""
    looks: int = 0
    """Looks at the session's head."""

    async def until(self, sessions: Collection[SessionId], look: Callable[[], Awaitable[bool]]) -> bool:
        while not await look():
            await asyncio.sleep(0)
        return True

    async def head(self, session: SessionId) -> SessionHead:
        self.looks += 1
        return head(session=session, eq_n=self.count + 1, status="idle")

    async def bursts(self, session: SessionId, cursor: EqCursor = BEGINNING) -> AsyncIterator[Burst]:
        said = [{"type": "agent_message", "message": f"{n} {self.text}"} for n in range(self.count)]
        payloads = [orjson.dumps({"id": "t", "msg": msg}) for msg in (*said, {"type": "shutdown_complete"})]
        found = tuple(StoredEvent(n, payload, n, "0" * 8) for n, payload in enumerate(payloads, 1))
        for burst in bursts_of(found, Message):
            yield burst


@dataclass
class Wire:
    """A client's end that keeps what it was sent; it is gone after so many writes."""

    writes: list[bytes] = field(default_factory=list)
    most: int = 1_000

    async def read(self, limit: int) -> bytes:
        await asyncio.Event().wait()
        return b""

    async def write(self, data: bytes) -> None:
        if len(self.writes) == self.most:
            raise WireClosed("the client has left")
        self.writes.append(data)


def connection(told: Told, wire: Wire) -> NdjsonConnection:
    return NdjsonConnection(cast(Client, told), SESSION, Streams(wire.read, wire.write), 1 << 20)


def said(wire: Wire) -> list[Any]:
    return [orjson.loads(line)["msg"] for line in b"".join(wire.writes).splitlines()]


async def test_events_that_come_together_leave_in_one_write_and_in_their_order() -> None:
    wire = Wire()
    assert await connection(Told(5), wire).serve() is Ending.SHUT_DOWN
    assert [message.get("message") for message in said(wire)] == ["0 ", "1 ", "2 ", "3 ", "4 ", None]
    assert len(wire.writes) == 1


async def test_client_that_missed_much_is_sent_it_in_pieces() -> None:
    wire = Wire()
    assert await connection(Told(500, "x" * 1_000), wire).serve() is Ending.SHUT_DOWN
    assert len(said(wire)) == 501
    assert max(map(len, wire.writes)) < BURST_BYTES + 2_000


async def test_connection_ends_with_a_client_that_leaves_in_the_middle() -> None:
    with pytest.raises(WireClosed):
        await connection(Told(500, "x" * 1_000), Wire(most=1)).serve()


async def test_connection_whose_input_has_ended_waits_for_a_reader_that_is_slow() -> None:
    told, taken, written = Told(200, "x" * 1_000), asyncio.Event(), list[bytes]()

    async def read(limit: int) -> bytes:
        return b""

    async def write(data: bytes) -> None:
        await taken.wait()
        written.append(data)

    one = NdjsonConnection(cast(Client, told), SESSION, Streams(read, write), 1 << 20)
    one._published_at -= 2 * ndjson.QUIET_S
    serving = asyncio.create_task(one.serve())
    for _ in range(50):
        await asyncio.sleep(0)
    assert told.looks > 1
    taken.set()
    assert await serving is Ending.SHUT_DOWN
    assert b"".join(written).count(b"\n") == 201


async def test_error_between_events_has_the_number_of_the_event_before_it() -> None:
    wire, taken = Wire(), asyncio.Event()
    lines = [b"no json\n"]

    async def read(limit: int) -> bytes:
        return lines.pop() if lines else await wire.read(limit)

    async def write(data: bytes) -> None:
        await taken.wait()
        await wire.write(data)

    options = LineOptions(number_after)
    one = NdjsonConnection(cast(Client, Told(3)), SESSION, Streams(read, write), 1 << 20, options)
    serving = asyncio.create_task(one.serve())
    # The error is there while the events are still being written.
    for _ in range(5):
        await asyncio.sleep(0)
    taken.set()
    await serving
    numbers = [orjson.loads(line)["seq"] for line in b"".join(wire.writes).splitlines()]
    assert len(numbers) == 5
    assert numbers == sorted(numbers)


def stored(n: int, text: str = "x", *, refers: bool = False) -> StoredEvent:
    message = {REFERENCE: "0" * 64, "bytes": 9} if refers else text
    payload = orjson.dumps({"id": "t", "msg": {"type": "agent_message", "message": message}})
    return StoredEvent(n, payload, n, "0" * 8)


def test_burst_is_bounded_and_an_event_whose_text_lies_elsewhere_is_one_of_its_own() -> None:
    large = "x" * (BURST_BYTES // 2)
    events = (stored(1), stored(2), stored(3, refers=True), *(stored(n, large) for n in (4, 5, 6)), stored(7))
    bursts = bursts_of(events, Message)
    numbers = [[event.cursor.n for event in burst.events if event.cursor] for burst in bursts]
    assert numbers == [[1, 2], [3], [4], [5], [6, 7]]
    assert [burst.refers for burst in bursts] == [False, True, False, False, False]


PLACES = "cannot reach http://10.1.2.3:6391/v1; see /home/ann/.dendro/config.toml"
TOLD = "cannot reach …; see …/config.toml"
OWN: dict[str, Any] = {"type": "agent_message", "message": PLACES}
WORDS_OF_DENDRO: list[dict[str, Any]] = [
    {"type": kind, "message": PLACES} for kind in ("error", "warning", "stream_error", "background_event")
]


@pytest.mark.parametrize("others", [1, 2, 3])
@pytest.mark.parametrize("at", range(4))
@pytest.mark.parametrize("said", WORDS_OF_DENDRO, ids=[each["type"] for each in WORDS_OF_DENDRO])
def test_each_event_of_a_burst_reaches_a_tenant_without_places_wherever_it_stands(
    said: dict[str, Any], at: int, others: int
) -> None:
    messages = [OWN] * others
    messages.insert(at, said)
    mixed = [*messages, *reversed(messages), *WORDS_OF_DENDRO, OWN]
    for each in (messages, messages[::-1], mixed):
        payloads = [orjson.dumps({"id": f"t{n}", "msg": msg}) for n, msg in enumerate(each)]
        stored = [StoredEvent(n, payload, n, "0" * 8, 0, n) for n, payload in enumerate(payloads, 1)]
        (burst,) = bursts_of(stored, Message)
        wanted = [msg if msg is OWN else {**msg, "message": TOLD} for msg in each]
        lines = for_tenant(burst).lines(number_after, 0).splitlines()
        assert [orjson.loads(line)["msg"] for line in lines] == wanted
        numbers = [orjson.loads(line)["seq"] for line in burst.lines(number_after, 0).splitlines()]
        assert [orjson.loads(line)["seq"] for line in lines] == numbers
        told, whole = for_tenant(burst).events, burst.events
        places = [(e.id, e.cursor, e.at_ms, e.seq) for e in told]
        assert places == [(e.id, e.cursor, e.at_ms, e.seq) for e in whole]
        assert [event.msg for event in burst.events] == each, "others share it, and get it whole"


def test_burst_that_tells_nothing_of_the_machine_is_the_one_that_all_share() -> None:
    (burst,) = bursts_of([stored(n) for n in (1, 2, 3)], Message)
    assert for_tenant(burst) is burst


@pytest.mark.parametrize("refers", [False, True])
def test_burst_for_a_tenant_has_its_large_texts_still_to_be_put_in(refers: bool) -> None:
    message = {REFERENCE: "0" * 64, "bytes": 9} if refers else PLACES
    payload = orjson.dumps({"id": "t", "msg": {"type": "warning", "message": message}})
    (burst,) = bursts_of([StoredEvent(1, payload, 1, "0" * 8)], Message)
    assert for_tenant(burst).refers is burst.refers is refers


def test_lines_of_an_answer_are_written_once_for_all_who_share_it() -> None:
    messages, answer = Messages(), (stored(1), stored(2))
    (burst,), (other,) = messages.bursts(answer), messages.bursts(answer)
    assert burst.lines(number_after, 0) is other.lines(number_after, 7)
    assert burst.lines(None, 0) is other.lines(None, 0)
    assert messages.bursts((stored(1), stored(2))) != messages.bursts(answer)


def test_answers_are_kept_up_to_a_bound_and_the_oldest_go_first() -> None:
    size = len(stored(1).payload)
    messages, answers = Messages(most_bytes=2 * size), [(stored(n),) for n in (1, 2, 3)]
    first, second = messages.bursts(answers[0]), messages.bursts(answers[1])
    assert messages.bursts(answers[0]) is first
    messages.bursts(answers[2])
    assert messages.bursts(answers[1]) is second
    assert messages.bursts(answers[0]) is not first
    large = (stored(4, "x" * 2 * size),)
    assert messages.bursts(large) is not messages.bursts(large)
