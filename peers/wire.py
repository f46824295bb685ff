"""The wire of an adapter: orders are lines of JSON on its standard input, answers are lines on its output.

An adapter is one process, and every server that its peer needs is below it. It answers orders side by side,
and ends with its input. It imports nothing of Dendro's but this file and `peers.work`.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

MOST_LINE = 1 << 24


class Peer:
    """A runtime of agents, as the harness knows it."""

    async def turn(self, id: str, text: str) -> str:
        """Takes a turn to its end, in a new conversation if `id` is empty; answers the conversation's id."""
        raise NotImplementedError

    async def resume(self, id: str) -> int:
        """Reads a conversation of an earlier process; answers how many items it has.

        A turn that was interrupted goes on from here, in the background, where the peer has a way for that.
        """
        raise NotImplementedError

    async def enqueue(self, prefix: str, count: int) -> float:
        """Enqueues so many jobs (`peers.jobs`); the time before the first one, on CLOCK_MONOTONIC."""
        raise NotImplementedError

    async def kill(self) -> bool:
        """Kills the process that runs commands, with SIGKILL; False if that is this one."""
        return False

    async def restart(self) -> None:
        """Starts again what `kill` has killed, as a service manager would."""


Open = Callable[[], AbstractAsyncContextManager[Peer]]


def folder() -> Path:
    """The folder for everything that the peer keeps; it outlives the adapter."""
    return Path(os.environ["PEER_FOLDER"])


def model() -> str:
    """The base URL of the model stub."""
    return os.environ["PEER_MODEL"]


def variant() -> str:
    """Which kind of the peer is asked for, as `sqlite` or `confined`."""
    return os.environ["PEER_VARIANT"]


def serve(opened: Open) -> None:
    """Runs an adapter until its input ends."""
    asyncio.run(_serve(opened))


async def _serve(opened: Open) -> None:
    lines = asyncio.StreamReader(limit=MOST_LINE)
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(lines), os.fdopen(os.dup(0), "rb")
    )
    # What a library prints must not come between the answers, and no server may hold the orders open.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    async with opened() as peer:
        print(json.dumps({"n": 0, "result": None}), file=answers)
        running: set[asyncio.Task[None]] = set()
        while line := await lines.readline():
            task = asyncio.create_task(_carry_out(peer, json.loads(line), answers))
            running.add(task)
            task.add_done_callback(running.discard)
        for task in running:
            task.cancel()


async def _carry_out(peer: Peer, order: dict[str, Any], answers: Any) -> None:
    try:
        result = await getattr(peer, order["op"])(*order["args"])
        answer = {"n": order["n"], "result": result}
    except Exception as error:
        answer = {"n": order["n"], "error": f"{type(error).__name__}: {error}"}
        print(answer["error"], file=sys.stderr)
    print(json.dumps(answer), file=answers)
