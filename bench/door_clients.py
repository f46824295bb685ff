"""A gateway as its users start it, and clients of it: what every bench of doors is made of."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
from websockets.asyncio.client import ClientConnection, connect

from bench.lab import Fleet
from orchestrator.core.ids import SessionId

INITIALIZE = {"id": 0, "method": "initialize", "params": {"clientInfo": {"name": "bench", "version": "1"}}}
MOST_LINE = 1 << 24


class Served:
    """A gateway's process and its two addresses."""

    def __init__(self, process: asyncio.subprocess.Process, lines: str, frames: str) -> None:
        self.process = process
        self.frames = frames
        self.host, self.port = lines.removeprefix("tcp://").rsplit(":", 1)
        self._kept: list[asyncio.StreamWriter] = []
        """Writers of open connections: one that is forgotten is closed."""

    async def lines(self, session: SessionId, last_event: int | None = None) -> asyncio.StreamReader:
        """A connection of lines that is attached to a session; its greeting is read."""
        reader, writer = await asyncio.open_connection(self.host, int(self.port), limit=MOST_LINE)
        op = {"type": "configure_session", "session_id": session}
        place = {} if last_event is None else {"last_event": last_event}
        writer.write(orjson.dumps({"id": "1", "op": op, "with_seq": True} | place) + b"\n")
        await reader.readline()
        self._kept.append(writer)
        return reader

    async def end(self) -> None:
        """Closes the connections and stops the gateway."""
        for writer in self._kept:
            writer.close()
        self.process.terminate()
        await self.process.wait()


@asynccontextmanager
async def gateway(running: Fleet) -> AsyncIterator[Served]:
    """`dendro serve` as its users start it."""
    process = await asyncio.create_subprocess_exec(
        *dendro("serve", "--listen", "tcp://127.0.0.1:0", "--listen", "ws://127.0.0.1:0"),
        stderr=asyncio.subprocess.PIPE,
        env=environ(running),
        cwd=running.lab.workspace,
    )
    assert process.stderr is not None
    said = [(await process.stderr.readline()).decode().split()[-1] for _ in range(2)]
    served = Served(process, *said)
    try:
        yield served
    finally:
        await served.end()


class Caller:
    """A client over a WebSocket that has greeted."""

    def __init__(self, wire: ClientConnection) -> None:
        self._wire = wire
        self._next = 0

    async def send(self, method: str, **params: Any) -> int:
        """Sends a request; its id."""
        self._next += 1
        message = {"id": self._next, "method": method, "params": params}
        await self._wire.send(orjson.dumps(message).decode())
        return self._next

    async def until(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The next message that is wanted; what comes before it is passed over."""
        while True:
            message: dict[str, Any] = orjson.loads(await self._wire.recv())
            if wanted(message):
                return message

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        """The result of a request."""
        id = await self.send(method, **params)
        answer = await self.until(lambda message: message.get("id") == id and "method" not in message)
        result: dict[str, Any] = answer["result"]
        return result


@asynccontextmanager
async def caller(served: Served) -> AsyncIterator[Caller]:
    """A client, until the block ends."""
    async with connect(served.frames, compression=None, max_size=None) as wire:
        await wire.send(orjson.dumps(INITIALIZE).decode())
        await wire.recv()
        yield Caller(wire)


def go(text: str = "go") -> list[dict[str, str]]:
    """The input of a turn."""
    return [{"type": "text", "text": text}]


def dendro(*words: str) -> list[str]:
    """The command as a process of its own."""
    return [sys.executable, "-P", "-m", "orchestrator.cli.main", *words]


def environ(running: Fleet) -> dict[str, str]:
    """The environment of the command."""
    here = str(Path(__file__).resolve().parents[1])
    return {**running.lab.environ(OPENAI_BASE_URL=running.base_url), "PYTHONPATH": here}
