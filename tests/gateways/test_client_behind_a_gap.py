"""A client whose place the event queue has lost: what it is told of the log instead."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any, cast

from orchestrator.broker.errors import Unavailable
from orchestrator.broker.follow import EqCursor
from orchestrator.broker.records import SessionHead, StoredEntry, StoredEvent
from orchestrator.core import entries as e
from orchestrator.core import facts as f
from orchestrator.core.entries import Entry, encode_entry
from orchestrator.core.ids import SessionId
from orchestrator.gateways.client import GAP_TEXTS, Client, ClientPorts
from orchestrator.gateways.sq_eq import STEP, cursor_of
from orchestrator.protocol.ids import CallId, SubmissionId
from orchestrator.views.event import Event
from tests.views.test_threads import ROOT, head

SPAWN = {"type": "function_call", "name": "subagent_spawn", "arguments": "{}", "call_id": "a1"}
MADE = {"type": "function_call_output", "call_id": "a1", "output": '{"session_id":"child"}'}
LOG = (
    Entry(e.EVENT_MSG, {"type": "task_started"}, "t"),
    Entry(e.RESPONSE_ITEM, SPAWN),
    Entry(e.RESPONSE_ITEM, {"type": "message", "role": "user", "content": []}),
    e.fact(f.Answered(CallId("c1"), SubmissionId("t"), "approved", "ann", 5, None)),
    Entry(e.RESPONSE_ITEM, MADE),
    Entry(e.EVENT_MSG, {"type": "task_complete"}, "t"),
)


class Trimmed:
    """A session's log, and an event queue that has lost all but its numbers."""

    def __init__(self) -> None:
        self.log = [
            StoredEntry(seq, 1, encode_entry(entry, 1_000 * seq, {}).line, b"", bytes(32))
            for seq, entry in enumerate(LOG, 1)
        ]

    async def head(self, session: SessionId) -> SessionHead:
        return head(session=session, seq=len(self.log), head=bytes(32), eq_n=9)

    async def read_eq(self, *place: Any) -> tuple[StoredEvent, ...]:
        return ()

    async def wait_eq(self, *place: Any) -> tuple[StoredEvent, ...]:
        raise AssertionError("the end of the log was read")

    async def read_rollout(
        self, session: SessionId, after: int = 0, count: int = 9
    ) -> tuple[StoredEntry, ...]:
        return tuple(self.log[after : after + count])


class GoesBackAndForth(Trimmed):
    """A log that seems shorter than the client's place, until its first reading has failed."""

    failed = False

    async def head(self, session: SessionId) -> SessionHead:
        return head(session=session, seq=6 if self.failed else 1, head=bytes(32), eq_n=9)

    async def read_eq(self, *place: Any) -> tuple[StoredEvent, ...]:
        return (StoredEvent(9, b"", 6, "0" * 8, 0, 0),) if self.failed else ()

    async def read_rollout(
        self, session: SessionId, after: int = 0, count: int = 9
    ) -> tuple[StoredEntry, ...]:
        if not self.failed:
            self.failed = True
            raise Unavailable("the connection was lost")
        return await super().read_rollout(session, after, count)


async def test_client_that_was_told_that_redis_went_back_gets_the_log_also_after_a_failure() -> None:
    back_and_forth = cast(Any, GoesBackAndForth())
    ports = ClientPorts(cast(Any, None), cast(Any, None), bytes, at_once, events=back_and_forth)
    following = Client(ports, "client").follow(ROOT, EqCursor(9, 6, "0" * 8))
    heard = [await anext(following) for _ in range(3)]
    await cast(AsyncGenerator[Event], following).aclose()
    assert [event.type for event in heard] == ["warning", "warning", "task_started"]


class CutOffInTheMiddle(Trimmed):
    """A log that is read in pages of three entries; the connection is cut at the second."""

    cut = False

    async def read_rollout(
        self, session: SessionId, after: int = 0, count: int = 9
    ) -> tuple[StoredEntry, ...]:
        if after == 3 and not self.cut:
            self.cut = True
            raise Unavailable("the connection was lost")
        return (await super().read_rollout(session, after, count))[: 3 if not self.cut else count]


class PutBackMeanwhile(CutOffInTheMiddle):
    """The same of a server that comes back with another log."""

    async def read_rollout(
        self, session: SessionId, after: int = 0, count: int = 9
    ) -> tuple[StoredEntry, ...]:
        if self.cut:
            self.log = [replace(entry, chain=b"\1" * 32) for entry in self.log]
        return await super().read_rollout(session, after, count)


async def at_once(seconds: float) -> None:
    """Sleeps not at all."""


async def heard_of(reader: Trimmed, count: int) -> list[Event]:
    """Events that a client is told behind the begin; it comes back by itself where it was cut off."""
    ports = ClientPorts(cast(Any, None), cast(Any, None), bytes, at_once, events=cast(Any, reader))
    following = Client(ports, "client").follow(ROOT, EqCursor(2, 0, "0" * 8))
    heard = [await anext(following) for _ in range(count)]
    await cast(AsyncGenerator[Event], following).aclose()
    return heard


async def test_client_that_is_cut_off_while_a_gap_is_filled_is_told_no_entry_twice() -> None:
    heard = await heard_of(CutOffInTheMiddle(), 7)
    told = [(event.type, event.msg.get("message")) for event in heard]
    gap = ("warning", GAP_TEXTS["trimmed"])
    item = ("raw_response_item", None)
    decided, ended = ("request_resolved", None), ("task_complete", None)
    assert told == [gap, ("task_started", None), item, gap, decided, item, ended]


async def test_client_that_is_cut_off_in_a_gap_is_told_if_the_log_is_another_one_by_then() -> None:
    heard = await heard_of(PutBackMeanwhile(), 5)
    assert heard[3].msg["message"] == GAP_TEXTS["rewound"]
    assert heard[4].type == "task_started"


async def test_client_behind_a_gap_hears_of_calls_about_agents_and_of_decisions_in_their_place() -> None:
    """A request that was refused is told of by nothing else: it would stay open."""
    heard = await heard_of(Trimmed(), 6)
    assert [event.type for event in heard] == [
        "warning",
        "task_started",
        "raw_response_item",
        "request_resolved",
        "raw_response_item",
        "task_complete",
    ]
    assert [heard[at].msg["item"]["call_id"] for at in (2, 4)] == ["a1", "a1"]
    assert (heard[3].msg["call_id"], heard[3].msg["decision"], heard[3].cursor) == ("c1", "approved", None)
    assert [event.at_ms for event in heard[1:]] == [1_000, 2_000, 4_000, 5_000, 6_000]


async def test_client_of_lines_behind_a_gap_is_told_events_of_the_log_alone() -> None:
    ports = ClientPorts(cast(Any, None), cast(Any, None), bytes, at_once, events=cast(Any, Trimmed()))
    following = Client(ports, "client").bursts(ROOT, EqCursor(2, 0, "0" * 8))
    heard = [await anext(following) for _ in range(5)]
    await cast(AsyncGenerator[Any], following).aclose()
    told = [event.type for burst in heard for event in burst.events]
    assert told == ["warning", "task_started", "raw_response_item", "raw_response_item", "task_complete"]


class OfLostDeltas(Trimmed):
    """A log that is whole, and a queue that has lost its last events, which no entry has."""

    async def read_rollout(
        self, session: SessionId, after: int = 0, count: int = 9
    ) -> tuple[StoredEntry, ...]:
        return ()


async def test_client_that_saw_lost_deltas_is_told_of_a_gap_and_of_no_other_log() -> None:
    ports = ClientPorts(cast(Any, None), cast(Any, None), bytes, events=cast(Any, OfLostDeltas()))
    following = Client(ports, "client").follow(ROOT, EqCursor(12, 6, "0" * 8))
    heard = await anext(following)
    await cast(AsyncGenerator[Event], following).aclose()
    assert heard.msg["message"] == GAP_TEXTS["trimmed"]


class OfANumberGivenAnew(OfLostDeltas):
    """A queue that has lost its last event, and given its number to one of the next entry."""

    async def read_eq(self, *place: Any) -> tuple[StoredEvent, ...]:
        return (StoredEvent(9, b"", 6, "0" * 8, 0, 0),)


async def test_client_whose_last_event_was_lost_and_its_number_given_anew_is_told_of_a_gap() -> None:
    ports = ClientPorts(cast(Any, None), cast(Any, None), bytes, events=cast(Any, OfANumberGivenAnew()))
    following = Client(ports, "client").follow(ROOT, EqCursor(9, 0, "0" * 8))
    heard = await anext(following)
    await cast(AsyncGenerator[Event], following).aclose()
    assert heard.msg["message"] == GAP_TEXTS["trimmed"]


class OfANumberGivenAnewMeanwhile(OfLostDeltas):
    """The same queue, whose next entry comes while a follower looks at it."""

    looked_at = False

    async def read_eq(self, session: SessionId, after_n: int = 0, count: int = 9) -> tuple[StoredEvent, ...]:
        there = [StoredEvent(n, b"", 6, "0" * 8, 0, 0) for n in (9, 10) if self.looked_at and n > after_n]
        self.looked_at = True
        return tuple(there[:count])


async def test_client_whose_last_events_number_is_given_anew_while_it_looks_is_told_of_a_gap() -> None:
    reader = cast(Any, OfANumberGivenAnewMeanwhile())
    ports = ClientPorts(cast(Any, None), cast(Any, None), bytes, events=reader)
    following = Client(ports, "client").follow(ROOT, EqCursor(9, 0, "0" * 8))
    heard = await anext(following)
    await cast(AsyncGenerator[Event], following).aclose()
    assert heard.msg["message"] == GAP_TEXTS["trimmed"]


class OfAnotherLog(Trimmed):
    """A log that went back, and is longer again: its tenth event belongs to an entry before the fifth."""

    def __init__(self) -> None:
        super().__init__()
        self.log = [replace(entry, chain=b"\1" * 32) for entry in self.log]

    async def read_eq(self, session: SessionId, after_n: int = 0, count: int = 9) -> tuple[StoredEvent, ...]:
        there = [StoredEvent(n, b"", seq, "0" * 8, 0, 0) for n, seq in ((9, 3), (10, 4)) if n > after_n]
        return tuple(there[:count])


async def test_client_of_lines_whose_number_names_an_earlier_entry_now_is_told_that_redis_went_back() -> None:
    reader = cast(Any, OfAnotherLog())
    now = head(session=ROOT, seq=len(LOG), head=bytes(32), eq_n=10)
    cursor = await cursor_of(reader, now, 9 * STEP + 5)
    following = Client(ClientPorts(cast(Any, None), cast(Any, None), bytes, events=reader), "client").follow(
        ROOT, cursor
    )
    heard = await anext(following)
    await cast(AsyncGenerator[Event], following).aclose()
    assert heard.msg["message"] == GAP_TEXTS["rewound"]


class OfALaterEventsNumber(OfAnotherLog):
    """A queue that has lost its last events, and given their numbers to those of later entries."""

    async def read_eq(self, session: SessionId, after_n: int = 0, count: int = 9) -> tuple[StoredEvent, ...]:
        return tuple(StoredEvent(n, b"", 6, "0" * 8, 0, 0) for n in (9, 10) if n > after_n)[:count]


async def test_number_that_another_event_has_by_now_means_the_clients_entry_and_not_that_event() -> None:
    now = head(session=ROOT, seq=len(LOG), head=bytes(32), eq_n=10)
    cursor = await cursor_of(cast(Any, OfALaterEventsNumber()), now, 9 * STEP + 5)
    assert cursor == EqCursor(9, 5, "01" * 4)
