"""Clients that mean harm, or nothing, at a real gateway: it lives, and nobody else notices them."""

from __future__ import annotations

import asyncio
import json
import random
import struct
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

import pytest
from websockets.asyncio.client import ClientConnection, connect

from bench.accounts import resident_mib
from tests.cli.machine import PATIENCE_S, Machine, dendro
from tests.doors.clients.conftest import machine, redis_server
from tests.started import Started

__all__ = ["machine", "redis_server"]
pytestmark = [pytest.mark.realredis, pytest.mark.slow]

SILENT = 1_000
ROUNDS = 300
SLOW = 4
MOST_MIB = 150.0
"""The most that all of them together may cost the gateway: 100 KiB for each silent one, and what waits."""
GREETING = {"id": 0, "method": "initialize", "params": {"clientInfo": {"name": "a", "version": "1"}}}


@dataclass(frozen=True)
class Gateway:
    """A gateway's process and its two ports."""

    process: subprocess.Popen[str]
    lines: int
    frames: int


@pytest.fixture
def gateway(machine: Machine) -> Iterator[Gateway]:
    words = ("serve", "--listen", "tcp://127.0.0.1:0", "--listen", "ws://127.0.0.1:0")
    process = Started(
        dendro(*words), stderr=subprocess.PIPE, text=True, cwd=machine.folder, env=machine.environ
    )
    assert process.stderr is not None
    try:
        ports = [int(process.stderr.readline().rsplit(":", 1)[1]) for _ in range(2)]
        yield Gateway(process, *ports)
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


# ── what they send ────────────────────────────────────────────────────────────────────────────

Draw = random.Random


def noise(draw: Draw) -> bytes:
    return draw.randbytes(draw.randrange(1, 5_000))


def half_a_greeting(draw: Draw) -> bytes:
    whole = json.dumps(GREETING).encode() + b"\n"
    return whole[: draw.randrange(1, len(whole))]


def giant_id(draw: Draw) -> bytes:
    id = draw.choice(["x" * draw.randrange(1, 1 << 20), int("9" * draw.randrange(1, 4_000)), -1, 0.5, None])
    return json.dumps({"id": id, "method": draw.choice(["initialize", "thread/list"]), "params": {}}).encode()


def deep(draw: Draw) -> bytes:
    return draw.choice([b"[", b'{"id":']) * draw.randrange(1, 200_000)


def almost_a_message(draw: Draw) -> bytes:
    whole = bytearray(json.dumps(GREETING).encode())
    for _ in range(draw.randrange(1, 6)):
        whole[draw.randrange(len(whole))] = draw.randrange(256)
    return bytes(whole)


def unasked_answers(draw: Draw) -> bytes:
    return b"\n".join(json.dumps({"id": n, "result": {}}).encode() for n in range(draw.randrange(1, 500)))


SAYS: tuple[Callable[[Draw], bytes], ...] = (
    noise,
    half_a_greeting,
    giant_id,
    deep,
    almost_a_message,
    unasked_answers,
)


def line(draw: Draw) -> bytes:
    """A line, or a piece of one."""
    return draw.choice(SAYS)(draw) + draw.choice([b"\n", b""])


def upgrade(draw: Draw) -> bytes:
    """A request for a WebSocket: whole, cut, of a foreign host, or with something strange in it."""
    host = draw.choice(["127.0.0.1", "127.0.0.1", "evil.example", ""])
    head = f"GET / HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    strange = draw.choice(["", "", f"X: {'y' * 20_000}\r\n", "no header\r\n"])
    keys = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    whole = (head + strange + keys).encode()
    return draw.choice([whole, whole, whole, whole[: draw.randrange(len(whole))]])


def frame(draw: Draw) -> bytes:
    """A frame of any kind: not masked, not ended, longer than it says, or longer than any may be."""
    said = draw.choice(SAYS)(draw)
    first = draw.choice([0x81, 0x81, 0x81, 0x01, 0x80, 0x82, 0x88, 0x89, 0x8F, 0xF1])
    told = draw.choice([len(said), len(said), len(said) + 9, 1 << 30, (1 << 64) - 1])
    length = bytes([0xFF]) + struct.pack("!Q", told)
    return bytes([first]) + draw.choice([length + bytes(4), length + bytes(4), b"\x7e\x00"]) + said


async def attack(gateway: Gateway, seed: int) -> None:
    """A connection that says something of this, and leaves, properly or not."""
    draw = random.Random(seed)
    over_lines = seed % 2 == 0
    with suppress(ConnectionError):
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", gateway.lines if over_lines else gateway.frames
        )
        if over_lines:
            writer.write(b"".join(line(draw) for _ in range(draw.randrange(1, 4))))
        else:
            writer.write(upgrade(draw) + b"".join(frame(draw) for _ in range(draw.randrange(4))))
        await writer.drain()
        if draw.random() < 0.5:
            try:
                writer.write_eof()
            except OSError:
                # The gateway has ended the connection meanwhile.
                return
            async with asyncio.timeout(PATIENCE_S):
                await reader.read()
        writer.transport.abort() if draw.random() < 0.5 else writer.close()


# ── the test ──────────────────────────────────────────────────────────────────────────────────


async def call(wire: ClientConnection, id: int, method: str, **params: object) -> None:
    await wire.send(json.dumps({"id": id, "method": method, "params": params}))
    async with asyncio.timeout(PATIENCE_S):
        while json.loads(await wire.recv()).get("id") != id:
            pass


async def slow(gateway: Gateway) -> ClientConnection:
    """A client that asks for much and reads none of it."""
    wire = await connect(f"ws://127.0.0.1:{gateway.frames}", compression=None, max_queue=1)
    await wire.send(json.dumps(GREETING))
    for id in range(1, 400):
        await wire.send(json.dumps({"id": "x" * 1_000 + str(id), "method": "no/method", "params": {}}))
    return wire


async def test_a_client_is_served_among_a_thousand_silent_and_hundreds_of_hostile_ones(
    gateway: Gateway,
) -> None:
    wire = await connect(f"ws://127.0.0.1:{gateway.frames}", compression=None, max_size=None)
    await wire.send(json.dumps(GREETING))
    await call(wire, 1, "thread/list")
    before = resident_mib(gateway.process.pid)
    silent = [
        await asyncio.open_connection("127.0.0.1", gateway.lines if n % 2 else gateway.frames)
        for n in range(SILENT)
    ]
    slow_ones = [await slow(gateway) for _ in range(SLOW)]
    attacks = [asyncio.create_task(attack(gateway, seed)) for seed in range(ROUNDS)]
    for id in range(2, 30):
        await call(wire, id, "thread/list")
    await asyncio.gather(*attacks)
    await call(wire, 30, "thread/list")
    grown = resident_mib(gateway.process.pid) - before
    assert gateway.process.poll() is None
    assert grown < MOST_MIB
    for _, writer in silent:
        writer.transport.abort()
    for each in (*slow_ones, wire):
        each.transport.abort()
