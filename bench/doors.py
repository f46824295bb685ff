"""The doors: what a connection costs, how soon it hears, how soon a client's own server answers."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
from websockets.asyncio.client import ClientConnection, connect

from bench.accounts import resident_mib
from bench.figures import Figure, at_most, spread
from bench.lab import Fleet, Lab, fleet
from orchestrator.core.ids import SessionId
from orchestrator.protocol import ops
from orchestrator.protocol.ids import SubmissionId
from orchestrator.protocol.inputs import TextInput
from orchestrator.protocol.submission import Submission

INITIALIZE = {"id": 0, "method": "initialize", "params": {"clientInfo": {"name": "bench", "version": "1"}}}
MOST_LINE = 1 << 24
TURNS = 20


async def run(lab: Lab, quick: bool) -> list[Figure]:
    """Measures with one gateway, one worker, and all clients in this process."""
    idle, listeners = (100, 20) if quick else (1_000, 100)
    async with fleet(lab, "echo") as running:
        running.hire(4)
        async with gateway(running) as served:
            return [
                *await _idle(served, idle),
                await _heard(running, served, listeners),
                await _turns(served),
                spread(
                    "start of `dendro app-server` to the answer of `initialize`",
                    [_start(running) for _ in range(3 if quick else 10)],
                    at_most(350),
                    "a process with stdio, without a worker",
                ),
            ]


class Served:
    """A gateway's process and its two addresses."""

    def __init__(self, process: asyncio.subprocess.Process, lines: str, frames: str) -> None:
        self.process = process
        self.frames = frames
        self.host, self.port = lines.removeprefix("tcp://").rsplit(":", 1)

    async def lines(self, session: SessionId) -> asyncio.StreamReader:
        """A connection of lines that is attached to a session; its greeting is read."""
        reader, writer = await asyncio.open_connection(self.host, int(self.port), limit=MOST_LINE)
        op = {"type": "configure_session", "session_id": session}
        writer.write(orjson.dumps({"id": "1", "op": op, "with_seq": True}) + b"\n")
        await reader.readline()
        _KEPT.append(writer)
        return reader


_KEPT: list[asyncio.StreamWriter] = []
"""Writers of open connections: one that is forgotten is closed."""


@asynccontextmanager
async def gateway(running: Fleet) -> AsyncIterator[Served]:
    """`dendro serve` as its users start it."""
    process = await asyncio.create_subprocess_exec(
        *_dendro("serve", "--listen", "tcp://127.0.0.1:0", "--listen", "ws://127.0.0.1:0"),
        stderr=asyncio.subprocess.PIPE,
        env=_environ(running),
        cwd=running.lab.workspace,
    )
    assert process.stderr is not None
    try:
        said = [(await process.stderr.readline()).decode().split()[-1] for _ in range(2)]
        yield Served(process, *said)
    finally:
        for writer in _KEPT:
            writer.close()
        _KEPT.clear()
        process.terminate()
        await process.wait()


async def _idle(served: Served, count: int) -> list[Figure]:
    before = resident_mib(served.process.pid)
    async with AsyncExitStack() as stack:
        for _ in range(count):
            client = await stack.enter_async_context(connect(served.frames, compression=None))
            await _call(client, INITIALIZE)
        grown = resident_mib(served.process.pid) - before
    note = "WebSockets after `initialize`; Pss of the gateway, grown"
    return [Figure(f"{count} idle connections", grown, "MiB", at_most(100), note=note)]


async def _heard(running: Fleet, served: Served, count: int) -> Figure:
    """Lateness of each connection behind a follower of Redis itself."""
    session = await running.session()
    readers = [await served.lines(session) for _ in range(count)]
    direct: dict[int, float] = {}
    over = asyncio.Event()
    heard: dict[int, list[float]] = defaultdict(list)

    async def listen(reader: asyncio.StreamReader) -> None:
        while line := await reader.readline():
            heard[orjson.loads(line)["seq"] // 100_000_000].append(time.monotonic())

    async def follow() -> None:
        async for event in running.client.follow(session):
            if event.cursor is not None:
                direct[event.cursor.n] = time.monotonic()
            if event.type == "task_complete":
                over.set()

    listening = [asyncio.create_task(listen(reader)) for reader in readers]
    following = asyncio.create_task(follow())
    for turn in range(TURNS):
        op = ops.UserInput(items=(TextInput(text="go"),))
        await running.client.submit(session, Submission(SubmissionId(f"t{turn}"), op))
        await over.wait()
        over.clear()
    # The last events are on their way to the connections.
    await asyncio.sleep(0.5)
    for task in (*listening, following):
        task.cancel()
    late = [max(0.0, at - direct[n]) for n, times in heard.items() if n in direct for at in times]
    missing = sum(count - len(heard[n]) for n in direct if n > 1)
    name = f"an event at each of {count} connections of its session"
    note = f"behind a follower of Redis; clients in the bench's process; {missing} missing of {len(late)}"
    return spread(name, late, at_most(10, p99=10), note)


async def _turns(served: Served) -> Figure:
    took = []
    async with connect(served.frames, compression=None, max_size=None) as client:
        await _call(client, INITIALIZE)
        started = await _call(client, {"id": 1, "method": "thread/start", "params": {}})
        thread = started["thread"]["id"]
        for number in range(TURNS):
            params = {"threadId": thread, "input": [{"type": "text", "text": "go"}]}
            began = time.monotonic()
            await client.send(
                orjson.dumps({"id": number + 2, "method": "turn/start", "params": params}).decode()
            )
            while orjson.loads(await client.recv()).get("method") != "turn/completed":
                pass
            took.append(time.monotonic() - began)
    return spread(
        "`turn/start` to `turn/completed`", took[1:], None, "one text of the stub, over a WebSocket"
    )


def _start(running: Fleet) -> float:
    began = time.monotonic()
    with subprocess.Popen(
        _dendro("app-server", "--no-worker"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=_environ(running),
        cwd=running.lab.workspace,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(orjson.dumps(INITIALIZE) + b"\n")
        process.stdin.flush()
        process.stdout.readline()
        took = time.monotonic() - began
        process.stdin.close()
    return took


async def _call(client: ClientConnection, request: dict[str, Any]) -> dict[str, Any]:
    """The result of a request; what comes before it is passed over."""
    await client.send(orjson.dumps(request).decode())
    while True:
        message = orjson.loads(await client.recv())
        if message.get("id") == request["id"] and "method" not in message:
            result: dict[str, Any] = message["result"]
            return result


def _dendro(*words: str) -> list[str]:
    return [sys.executable, "-P", "-m", "orchestrator.cli.main", *words]


def _environ(running: Fleet) -> dict[str, str]:
    here = str(Path(__file__).resolve().parents[1])
    return {**running.lab.environ(OPENAI_BASE_URL=running.base_url), "PYTHONPATH": here}
