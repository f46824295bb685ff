"""The coalescing of output deltas."""

from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.tools.exec.command import Stream
from orchestrator.tools.exec.output_deltas import CHUNK_BYTES, COALESCE_S, DeltaCoalescer, OutputDelta


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
