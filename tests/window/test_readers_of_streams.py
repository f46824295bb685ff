"""Streams whose window does not read: dropped for what waits over all topics, and for no less."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from orchestrator.core.ids import SessionId
from orchestrator.gateways.app_server.live_threads import Line
from orchestrator.gateways.window.stream import LogChannel, Stream, ThreadSeat, TooMuch
from orchestrator.gateways.wires.byte_wire import OUTGOING_LIMIT

LIMIT = 1_000


def line(size: int) -> Line:
    return Line("item/completed", {"text": "x" * size}, b"x" * size, 5)


@pytest.mark.parametrize("topics", [1, 2, 3])
async def test_window_that_does_not_read_is_dropped_when_too_much_waits_in_its_topics_together(
    topics: int,
) -> None:
    assert OUTGOING_LIMIT == 8 << 20
    stream, sending = Stream(asyncio.get_running_loop().time, LIMIT), asyncio.Event()

    async def blocked(data: bytes) -> None:
        sending.set()
        await asyncio.Event().wait()

    channels = [LogChannel(f"thread:{number}", stream.news) for number in range(topics)]
    for channel in channels:
        stream.add(channel)
    running = asyncio.ensure_future(stream.run(blocked))
    channels[0].put("1", line(1))
    async with asyncio.timeout(20):
        await sending.wait()
        for number in range(10):
            channels[number % topics].put("2", line(LIMIT // 10))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not running.done()
        channels[-1].put("3", line(1))
        with pytest.raises(TooMuch):
            await running


async def test_window_that_reads_has_nothing_that_waits_counted_against_it() -> None:
    stream, told = Stream(asyncio.get_running_loop().time, LIMIT), list[bytes]()

    async def reads(data: bytes) -> None:
        told.append(data)

    channel = LogChannel("thread:x", stream.news)
    stream.add(channel)
    running = asyncio.ensure_future(stream.run(reads))
    for number in range(30):
        channel.put(str(number), line(LIMIT // 2))
        async with asyncio.timeout(20):
            while b"".join(told).count(b"event: thread:x\n") <= number:
                await asyncio.sleep(0)
        assert channel.waiting == 0
    assert not running.done()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


@pytest.mark.parametrize("text", ["x" * 12, "é" * 6, "字" * 4, "😀" * 3, "\ud800" * 4])
@pytest.mark.parametrize("merged", [True, False])
async def test_bytes_of_a_text_wait_and_not_its_characters(text: str, merged: bool) -> None:
    stream, sending = Stream(asyncio.get_running_loop().time, 10 * 12), asyncio.Event()

    async def blocked(data: bytes) -> None:
        sending.set()
        await asyncio.Event().wait()

    def piece(number: int) -> Line:
        key = ("k",) if merged else ("k", number)
        data = text.encode("utf-8", "surrogatepass")
        return Line("item/agentMessage/delta", {"delta": text}, data, 5, key)

    channel = LogChannel("thread:x", stream.news)
    stream.add(channel)
    running = asyncio.ensure_future(stream.run(blocked))
    channel.put("0", line(1))
    async with asyncio.timeout(20):
        await sending.wait()
        for number in range(10):
            channel.put("1", piece(number))
        for _ in range(20):
            await asyncio.sleep(0)
        assert (channel.waiting, running.done()) == (120, False)
        channel.put("1", piece(10))
        with pytest.raises(TooMuch):
            await running


def test_stream_that_hears_a_thread_takes_no_agent_below_it() -> None:
    seat = ThreadSeat(LogChannel("thread:x", lambda: None), cast(Any, None))
    assert not seat.takes(SessionId("0199a2b4-0000-7000-8000-000000000002"))
