"""The SSE parser against the standard's rules, for every cutting of a stream."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.model.sse import SseEvent, SseEventTooLarge, SseParser
from tests.commit_seed import examples


def parse(*chunks: bytes, limit: int = 1 << 20) -> list[SseEvent]:
    parser = SseParser(limit)
    return [event for chunk in chunks for event in parser.feed(chunk)]


def cut(stream: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(stream) + 1) for place in places), len(stream)]
    return [stream[start:end] for start, end in itertools.pairwise(edges)]


fragments = st.lists(
    st.sampled_from(
        [
            b"data: one",
            b"data:two",
            b"data",
            b"data:  led",
            b"event: named",
            b"id: 7",
            b"id: no\0pe",
            b"retry: 250",
            b": comment",
            b"unknown: field",
            b"\n",
            b"\r",
            b"\r\n",
            b"\n\n",
            b"\r\n\r\n",
            b"\xef\xbb\xbf",
            "data: \u2028\u0085\x0b\x0c".encode(),
            b"data: \xff",
        ]
    ),
    max_size=30,
).map(b"".join)


@given(stream=fragments, places=st.lists(st.integers(0, 500), max_size=12))
@settings(max_examples=examples(150), deadline=None)
def test_parser_gives_the_same_events_however_the_stream_is_cut(stream: bytes, places: list[int]) -> None:
    assert parse(*cut(stream, places)) == parse(stream)


@given(stream=fragments)
@settings(max_examples=examples(100), deadline=None)
def test_parser_gives_the_same_events_byte_by_byte(stream: bytes) -> None:
    assert parse(*(bytes([byte]) for byte in stream)) == parse(stream)


names = st.text(st.characters(exclude_characters="\r\n\0", codec="utf-8"), min_size=1, max_size=10)
lines = st.text(st.characters(exclude_characters="\r\n", codec="utf-8"), max_size=20)


@given(
    written=st.lists(st.tuples(names, st.lists(lines, min_size=1, max_size=3)), max_size=6),
    end=st.sampled_from(["\n", "\r", "\r\n"]),
    places=st.lists(st.integers(0, 500), max_size=6),
)
@settings(max_examples=examples(100), deadline=None)
def test_parser_reads_back_what_a_server_wrote(
    written: list[tuple[str, list[str]]], end: str, places: list[int]
) -> None:
    text = "".join(
        f"event: {name}{end}" + "".join(f"data: {line}{end}" for line in data) + end for name, data in written
    )
    events = parse(*cut(text.encode(), places))
    assert [(event.name, event.data.decode()) for event in events] == [
        (name, "\n".join(data)) for name, data in written
    ]


def test_parser_takes_a_byte_order_mark_off_the_start_only() -> None:
    assert parse(b"\xef", b"\xbb", b"\xbfdata: a\n\n") == [SseEvent("message", b"a")]
    assert parse(b"data: a\n\n\xef\xbb\xbfdata: b\n\n") == [SseEvent("message", b"a")]


def test_parser_joins_data_lines_and_removes_one_leading_space_only() -> None:
    assert parse(b"data:  two\ndata:none\ndata\n\n") == [SseEvent("message", b" two\nnone\n")]


def test_parser_dispatches_nothing_without_data_and_forgets_the_name() -> None:
    assert parse(b"event: lonely\n\ndata: a\n\n") == [SseEvent("message", b"a")]


def test_parser_passes_over_ids_because_nothing_is_ever_resumed_by_them() -> None:
    events = parse(b"id: 1\ndata: a\n\nid: x\0\ndata: b\n\nid\ndata: c\n\n")
    assert [event.data for event in events] == [b"a", b"b", b"c"]


def test_parser_drops_an_event_that_the_stream_left_unfinished() -> None:
    assert parse(b"data: a\n\ndata: lost\n") == [SseEvent("message", b"a")]


def test_parser_does_not_end_lines_at_unicode_separators() -> None:
    data = "a\u2028b\u2029c\u0085d\x0be\x0cf\x1cg"
    assert parse(f"data: {data}\n\n".encode()) == [SseEvent("message", data.encode())]


@pytest.mark.parametrize("stream", [b"data: " + b"x" * 200, b"data: xxxxxxxxxxxxxxxxxxx\n" * 10])
def test_parser_refuses_an_event_over_its_limit_after_yielding_those_before(stream: bytes) -> None:
    parser = SseParser(max_event_bytes=100)
    events = parser.feed(b"data: fits\n\n" + stream)
    assert next(events) == SseEvent("message", b"fits")
    with pytest.raises(SseEventTooLarge, match="100 bytes"):
        list(events)


def test_parser_counts_what_it_holds_of_an_event_with_the_line_that_is_not_complete() -> None:
    begun = b"data: 123\ndata: 1"
    assert parse(begun + b"\n\n", limit=11) == [SseEvent("message", b"123\n1")]
    assert parse(begun, limit=11) == []
    for piece in (b"data: 12", b"event: x", b": words "):
        with pytest.raises(SseEventTooLarge):
            parse(b"data: 123\n", piece, limit=11)
    assert parse(b"data: 123\n\n", b"data: 12\n\n", limit=11) == [
        SseEvent("message", b"123"),
        SseEvent("message", b"12"),
    ], "an event that is complete counts no more"


def test_parser_takes_a_large_event_in_small_chunks_in_linear_time() -> None:
    stream = b"data: " + b"x" * 4_000_000 + b"\n\n"
    chunks = [stream[start : start + 1000] for start in range(0, len(stream), 1000)]
    assert len(parse(*chunks, limit=5_000_000)[0].data) == 4_000_000
