"""The coalescing of output deltas."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.tools.exec.command import Stream
from orchestrator.tools.exec.output_deltas import (
    CHUNK_BYTES,
    COALESCE_S,
    DeltaCoalescer,
    OutputDelta,
    ShownOutput,
)


def test_small_pieces_wait_for_each_other_until_they_are_due() -> None:
    deltas = DeltaCoalescer()
    assert deltas.add("stdout", b"a", now=5.0) == []
    assert deltas.due_at == 5.0 + COALESCE_S
    assert deltas.add("stdout", b"b", now=5.01) == []
    assert deltas.flush() == [OutputDelta("stdout", b"ab")]
    assert deltas.due_at is None


def test_a_full_chunk_does_not_wait() -> None:
    deltas = DeltaCoalescer()
    ready = deltas.add("stderr", b"x" * (CHUNK_BYTES + 1), now=0.0)
    assert [len(delta.chunk) for delta in ready] == [CHUNK_BYTES]
    assert deltas.flush() == [OutputDelta("stderr", b"x")]


def test_output_that_comes_late_takes_what_waited_with_it() -> None:
    deltas = DeltaCoalescer()
    deltas.add("stdout", b"a", now=0.0)
    assert deltas.add("stdout", b"b", now=1.0) == [OutputDelta("stdout", b"ab")]


def test_past_the_limit_there_are_no_deltas_and_no_timer() -> None:
    deltas = DeltaCoalescer(limit=2)
    assert len(deltas.add("stdout", b"x" * CHUNK_BYTES * 3, now=0.0)) == 2
    assert deltas.add("stdout", b"more", now=0.0) == []
    assert deltas.flush() == []
    assert deltas.due_at is None


@given(
    st.lists(st.tuples(st.sampled_from(["stdout", "stderr"]), st.binary(max_size=9000))), st.floats(0, 0.01)
)
@settings(max_examples=50, deadline=None)
def test_no_byte_is_lost_or_reordered_within_its_stream(
    pieces: list[tuple[Stream, bytes]], pace: float
) -> None:
    deltas = DeltaCoalescer()
    out = [delta for n, (stream, data) in enumerate(pieces) for delta in deltas.add(stream, data, n * pace)]
    out += deltas.flush()
    for stream in ("stdout", "stderr"):
        sent = b"".join(data for name, data in pieces if name == stream)
        assert b"".join(delta.chunk for delta in out if delta.stream == stream) == sent
    assert all(0 < len(delta.chunk) <= CHUNK_BYTES for delta in out)


@pytest.mark.parametrize("limit", [1, 2, 3])
@pytest.mark.parametrize("together", [True, False])
def test_streams_of_one_call_share_its_number_of_deltas(limit: int, together: bool) -> None:
    deltas = DeltaCoalescer(limit)
    shown = []
    streams: tuple[Stream, ...] = ("stdout", "stderr", "stdout", "stderr")
    for number, stream in enumerate(streams):
        shown += deltas.add(stream, b"%d" % number, now=0.0)
        shown += [] if together and number < 3 else deltas.flush()
    pieces = [("stdout", b"02"), ("stderr", b"13")] if together else [
        ("stdout", b"0"), ("stderr", b"1"), ("stdout", b"2"), ("stderr", b"3")
    ]  # fmt: skip
    assert [(delta.stream, delta.chunk) for delta in shown] == pieces[:limit]
    assert deltas.due_at is None or len(shown) < limit


def test_what_waits_in_one_stream_stays_due_while_the_other_one_is_shown() -> None:
    deltas = DeltaCoalescer()
    deltas.add("stdout", b"a", now=0.0)
    ready = deltas.add("stderr", b"x" * CHUNK_BYTES, now=0.001)
    assert [(delta.stream, len(delta.chunk)) for delta in ready] == [("stderr", CHUNK_BYTES)]
    assert deltas.due_at == COALESCE_S, "since the first of it came"
    assert deltas.flush() == [OutputDelta("stdout", b"a")]


def test_whole_chunks_leave_nothing_that_is_due_and_what_comes_next_has_its_own_time() -> None:
    deltas = DeltaCoalescer()
    deltas.add("stdout", b"x", now=1.0)
    deltas.flush()
    assert len(deltas.add("stdout", b"x" * 2 * CHUNK_BYTES, now=5.0)) == 2
    assert deltas.due_at is None
    deltas.add("stdout", b"y", now=9.0)
    assert deltas.due_at == 9.0 + COALESCE_S


@pytest.mark.parametrize("early", [0.0, 0.001])
def test_output_is_due_at_its_time_and_not_before(early: float) -> None:
    deltas = DeltaCoalescer()
    deltas.add("stderr", b"a", now=1.0)
    shown = deltas.add("stdout", b"b", now=1.0 + COALESCE_S - early)
    both = [OutputDelta("stderr", b"a"), OutputDelta("stdout", b"b")]
    assert shown == ([] if early else both)
    assert deltas.flush() == (both if early else [])


class Events:
    """Takes the deltas of a call."""

    def __init__(self) -> None:
        self.shown: list[tuple[str, str, bytes]] = []

    def __call__(self, event: Any) -> None:
        chunk = base64.b64decode(event["chunk"])
        self.shown.append((event["call_id"], event["stream"], chunk))


async def test_output_that_waits_is_shown_before_its_end_and_nothing_behind_it() -> None:
    events = Events()
    one, other = ShownOutput("c1", events, 10), ShownOutput("c2", events, 10)
    one.add("stdout", b"a")
    other.add("stderr", b"b")
    one.close()
    one.add("stdout", b"late")
    one.flush()
    assert events.shown == [("c1", "stdout", b"a")]
    other.add("stderr", b"c")
    other.close()
    assert events.shown == [("c1", "stdout", b"a"), ("c2", "stderr", b"bc")]
