"""Lines as messages, however the bytes are cut."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.gateways.principals import Principal
from orchestrator.gateways.wires.byte_wire import LineWire, StandardStreams, WireClosed
from orchestrator.protocol.codec import OverlongLine

ANNA = Principal("anna")


class Pieces:
    """A byte stream that gives what it was made with, piece by piece."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self.pieces = list(pieces)
        self.written: list[bytes] = []
        self.is_closed = False

    async def read(self, limit: int) -> bytes:
        return self.pieces.pop(0) if self.pieces else b""

    async def write(self, data: bytes) -> None:
        self.written.append(data)

    async def close(self) -> None:
        self.is_closed = True


async def received(wire: LineWire) -> list[bytes]:
    found = []
    while (message := await wire.receive()) is not None:
        found.append(message)
    return found


def cut(data: bytes, places: Sequence[int]) -> list[bytes]:
    edges = sorted({place % (len(data) + 1) for place in places})
    ends = [*edges, len(data)]
    return [piece for start, end in zip([0, *edges], ends, strict=True) if (piece := data[start:end])]


@given(
    st.lists(st.binary(max_size=30).filter(lambda line: b"\n" not in line and b"\r" not in line), max_size=9),
    st.lists(st.integers(0, 500), max_size=9),
)
def test_client_gets_its_lines_wherever_the_network_cuts_them(lines: list[bytes], places: list[int]) -> None:
    wire = LineWire(Pieces(cut(b"\n".join(lines), places)), ANNA)
    assert asyncio.run(received(wire)) == [line for line in lines if line.strip()]


async def test_line_over_the_limit_is_skipped_and_reported_and_the_next_one_counts() -> None:
    reported: list[int] = []

    async def report(line: OverlongLine) -> None:
        reported.append(line.number)

    wire = LineWire(Pieces([b"a\n", b"b" * 50, b"b" * 50 + b"\nc\n"]), ANNA, 20, report)
    assert await received(wire) == [b"a", b"c"]
    assert reported == [2]


async def test_closed_wire_gives_nothing_more() -> None:
    stream = Pieces([b"a\nb\n", b"c\n"])
    wire = LineWire(stream, ANNA)
    assert await wire.receive() == b"a"
    await wire.close()
    assert await wire.receive() is None
    assert stream.is_closed


async def test_answers_of_many_tasks_are_whole_lines() -> None:
    stream = Pieces([])
    wire = LineWire(stream, ANNA)
    await asyncio.gather(*(wire.send(b"%d" % n) for n in range(100)))
    assert sorted(stream.written) == sorted(b"%d\n" % n for n in range(100))


async def test_reader_that_left_standard_output_is_a_closed_wire() -> None:
    async def gone(data: bytes) -> None:
        raise BrokenPipeError

    wire = LineWire(StandardStreams(Pieces([]).read, gone), ANNA)
    with pytest.raises(WireClosed):
        await wire.send(b"{}")
