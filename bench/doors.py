"""The doors: what a connection costs, how soon it hears, how soon a client's own server answers."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from typing import Any

import orjson
from websockets.asyncio.client import connect

from bench.accounts import cpu_of, resident_mib
from bench.door_clients import INITIALIZE, MOST_LINE, Served, dendro, environ, gateway
from bench.door_logs import logs
from bench.door_turns import crowd, turns
from bench.figures import Figure, at_most, spread
from bench.lab import Fleet, Lab, fleet
from orchestrator.gateways.sq_eq import STEP
from orchestrator.protocol import ops
from orchestrator.protocol.ids import SubmissionId
from orchestrator.protocol.inputs import TextInput
from orchestrator.protocol.submission import Submission

TURNS = 20


async def run(lab: Lab, quick: bool, parts: Sequence[str] = ()) -> list[Figure]:
    """Measures with one gateway, one worker, and all clients in this process; `parts` alone, if any."""
    figures: list[Figure] = []
    async with fleet(lab, "echo") as running:
        running.hire(4)
        async with gateway(running) as served:
            for name in parts or PARTS:
                figures += await PARTS[name](running, served, quick)
    return figures


async def _idle(running: Fleet, served: Served, quick: bool) -> list[Figure]:
    count = 100 if quick else 1_000
    before = resident_mib(served.process.pid)
    async with AsyncExitStack() as stack:
        for _ in range(count):
            client = await stack.enter_async_context(connect(served.frames, compression=None))
            await client.send(orjson.dumps(INITIALIZE).decode())
            await client.recv()
        grown = resident_mib(served.process.pid) - before
    note = "WebSockets after `initialize`; Pss of the gateway, grown"
    return [Figure(f"{count} idle connections", grown, "MiB", at_most(100), note=note)]


async def _heard(running: Fleet, served: Served, quick: bool) -> list[Figure]:
    """Lateness of each connection behind a follower of Redis itself."""
    count = 20 if quick else 100
    session = await running.session()
    readers = [await served.lines(session) for _ in range(count)]
    direct: dict[int, float] = {}
    over = asyncio.Event()
    came: list[list[tuple[float, bytes]]] = [[] for _ in readers]

    async def listen(reader: asyncio.StreamReader, kept: list[tuple[float, bytes]]) -> None:
        # Lines are looked at afterwards: a hundred clients in one process would wait for each other.
        while data := await reader.read(MOST_LINE):
            kept.append((time.monotonic(), data))

    async def follow() -> None:
        async for event in running.client.follow(session):
            if event.cursor is not None:
                direct[event.cursor.n] = time.monotonic()
            if event.type == "task_complete":
                over.set()

    before = cpu_of(served.process.pid).own_s
    listening = [asyncio.create_task(listen(*each)) for each in zip(readers, came, strict=True)]
    following = asyncio.create_task(follow())
    for turn in range(TURNS):
        op = ops.UserInput(items=(TextInput(text="go"),))
        await running.client.submit(session, Submission(SubmissionId(f"t{turn}"), op))
        await over.wait()
        over.clear()
    # The last events are on their way to the connections.
    await asyncio.sleep(0.5)
    own_s = cpu_of(served.process.pid).own_s - before
    for task in (*listening, following):
        task.cancel()
    heard = _heard_at(came)
    late = [max(0.0, at - direct[n]) for n, times in heard.items() if n in direct for at in times]
    missing = sum(count - len(heard[n]) for n in direct if n > 1)
    name = f"an event at each of {count} connections of its session"
    note = f"behind a follower of Redis; clients in the bench's process; {missing} missing of {len(late)}"
    return [
        spread(name, late, at_most(10, p99=10), note),
        Figure("&emsp;CPU of the gateway for each of them", own_s / len(late) * 1e6, "µs"),
    ]


def _heard_at(came: list[list[tuple[float, bytes]]]) -> dict[int, list[float]]:
    """When each event's line was whole, at every connection."""
    heard: dict[int, list[float]] = defaultdict(list)
    for kept in came:
        rest = b""
        for at, data in kept:
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                heard[orjson.loads(line)["seq"] // STEP].append(at)
    return heard


async def _crowd(running: Fleet, _: Served, quick: bool) -> list[Figure]:
    return await crowd(running.lab, quick)


async def _starts(running: Fleet, _: Served, quick: bool) -> list[Figure]:
    took = [_start(running) for _ in range(3 if quick else 10)]
    name = "start of `dendro app-server` to the answer of `initialize`"
    return [spread(name, took, at_most(350), "a process with stdio, without a worker")]


def _start(running: Fleet) -> float:
    began = time.monotonic()
    with subprocess.Popen(
        dendro("app-server", "--no-worker"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environ(running),
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


PARTS: dict[str, Callable[[Fleet, Served, bool], Coroutine[Any, Any, list[Figure]]]] = {
    "idle": _idle,
    "events": _heard,
    "turns": turns,
    "logs": logs,
    "crowd": _crowd,
    "start": _starts,
}
"""The lines of the table by what they are of."""
