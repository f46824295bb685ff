"""Cutting a byte stream into lines."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.protocol.codec import DEFAULT_LIMIT, HEAD_BYTES, Frame, Line, LineSplitter, OverlongLine
from tests.commit_seed import examples


def split(chunks: Iterable[bytes], limit: int = DEFAULT_LIMIT) -> list[Frame]:
    splitter = LineSplitter(limit)
    frames = [frame for chunk in chunks for frame in splitter.feed(chunk)]
    return [*frames, *splitter.close()]


def test_lines_come_with_their_position() -> None:
    assert split([b"a\nb\n"]) == [Line(1, b"a"), Line(2, b"b")]


def test_a_line_may_arrive_in_pieces() -> None:
    assert split([b"a", b"", b"b\nc", b"\n"]) == [Line(1, b"ab"), Line(2, b"c")]


def test_a_carriage_return_before_the_newline_is_dropped() -> None:
    assert split([b"a\r", b"\nb\rc\r\n"]) == [Line(1, b"a"), Line(2, b"b\rc")]


def test_blank_lines_are_skipped_and_counted() -> None:
    assert split([b"\n \t\n\r\na\n"]) == [Line(4, b"a")]


def test_separators_of_other_standards_do_not_end_a_line() -> None:
    text = "a\u2028b\x85c\x0bd".encode()
    assert split([text + b"\n"]) == [Line(1, text)]


def test_the_rest_without_a_newline_is_a_line_at_the_end() -> None:
    splitter = LineSplitter()
    assert list(splitter.feed(b"a\nb")) == [Line(1, b"a")]
    assert list(splitter.close()) == [Line(2, b"b")]
    assert list(splitter.close()) == []


def test_an_overlong_line_is_reported_once_and_skipped_to_its_newline() -> None:
    frames = split([b"abcd", b"efgh", b"ijkl", b"mn\nok\n"], limit=4)
    assert frames == [OverlongLine(1, 4), Line(2, b"ok")]


def test_an_overlong_line_is_reported_before_it_ends() -> None:
    splitter = LineSplitter(4)
    assert list(splitter.feed(b"abcdef")) == [OverlongLine(1, 4)]
    assert list(splitter.feed(b"abcdef")) == []
    assert list(splitter.close()) == []


@pytest.mark.parametrize("limit", [4, HEAD_BYTES - 1, HEAD_BYTES, HEAD_BYTES + 1, 1_000])
@pytest.mark.parametrize("more", [1, 2, 3, 500])
@pytest.mark.parametrize("piece", [1, 3, 7, 255, 256, 257, 10_000])
def test_the_beginning_of_an_overlong_line_is_told_however_it_came(limit: int, more: int, piece: int) -> None:
    line = (b"0123456789abcdef" * 100)[: limit + more]
    data = b"ok\n" + line + b"\nok\n"
    frames = split([data[at : at + piece] for at in range(0, len(data), piece)], limit)
    heads = [(frame.number, frame.head) for frame in frames if isinstance(frame, OverlongLine)]
    known = [(2, line[:HEAD_BYTES])]
    if piece < len(data):
        # As much as had come when it was clear that the line is too long.
        known = [
            (2, head) for _, head in heads if line.startswith(head) and len(head) >= min(limit, HEAD_BYTES)
        ]
        assert all(len(head) <= HEAD_BYTES for _, head in heads)
    assert heads == known
    assert [frame.number for frame in frames] == [1, 2, 3]


def test_lines_are_counted_anew_behind_the_end() -> None:
    splitter = LineSplitter(first=5)
    assert [frame.number for frame in splitter.feed(b"a\nb\nc")] == [5, 6]
    assert list(splitter.close()) == [Line(7, b"c")]
    assert [*splitter.feed(b"d\ne"), *splitter.close()] == [Line(1, b"d"), Line(2, b"e")]


def test_an_overlong_line_is_not_kept_in_memory() -> None:
    splitter = LineSplitter(1000)
    for _ in range(100):
        list(splitter.feed(b"x" * 1000))
    assert not splitter._pending


@pytest.mark.parametrize("ending", [b"\n", b"\r\n", b"", b"\r"])
def test_a_line_of_exactly_the_limit_fits(ending: bytes) -> None:
    assert split([b"abcd" + ending], limit=4) == [Line(1, b"abcd")]


@pytest.mark.parametrize("ending", [b"\n", b"\r\n", b"", b"\r"])
def test_a_line_of_one_byte_more_does_not(ending: bytes) -> None:
    assert split([b"abcde" + ending], limit=4) == [OverlongLine(1, 4)]


def test_a_limit_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one byte"):
        LineSplitter(0)


streams = st.lists(st.sampled_from([b"\n", b"\r", b"a", b"bc", b" ", b"defgh", b"\xff"])).map(b"".join)


@settings(max_examples=examples(300), deadline=None)
@given(streams, st.lists(st.integers(0, 60)), st.integers(1, 9))
def test_it_does_not_matter_how_the_bytes_were_cut(data: bytes, cuts: list[int], limit: int) -> None:
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    chunks = [data[start:end] for start, end in pairwise(edges)]
    assert split(chunks, limit) == split([data], limit)


@settings(max_examples=examples(200), deadline=None)
@given(streams, st.integers(1, 9))
def test_every_line_is_delivered_reported_or_blank(data: bytes, limit: int) -> None:
    expected: list[Frame] = []
    for number, raw in enumerate(data.split(b"\n"), start=1):
        content = raw.removesuffix(b"\r")
        if len(content) > limit:
            expected.append(OverlongLine(number, limit))
        elif content.strip():
            expected.append(Line(number, content))
    assert split([data], limit) == expected
