"""Jobs for peers that dispatch alone: a job notes when it began. Each has a Redis and a worker of its own."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from peers.wire import Peer, folder, variant

STARTS = "starts"
SLEEP_S = 300.0


def address() -> str:
    """The socket of the Redis."""
    return f"{folder()}/redis.sock"


def short() -> bool:
    """Whether the shortest times to recovery are asked for, and not those that the peer comes with."""
    return variant() == "shortest"


def begun(id: str) -> float:
    """Notes that a job has begun; answers for how many seconds it is to sleep."""
    with (folder() / STARTS).open("a") as starts:
        starts.write(f"{id} {time.monotonic()}\n")
    return SLEEP_S if id.startswith("sleep") else 0.0


def _listens() -> bool:
    """Whether the Redis takes connections: its socket is there a moment before that."""
    with socket.socket(socket.AF_UNIX) as tried:
        return tried.connect_ex(address()) == 0


@contextmanager
def redis() -> Iterator[None]:
    """The Redis: AOF everysec on a unix socket, on what an earlier one has left in the folder."""
    program = shutil.which("redis-server") or shutil.which("valkey-server")
    if program is None:
        raise RuntimeError("no Redis is installed (Debian's package redis-server)")
    place = ["--port", "0", "--unixsocket", address(), "--dir", str(folder()), "--save", ""]
    durable = ["--appendonly", "yes", "--appendfsync", "everysec"]
    process = subprocess.Popen([program, *place, *durable], stdout=subprocess.DEVNULL)
    while not _listens():
        if process.poll() is not None:
            raise RuntimeError("Redis did not start")
        time.sleep(0.01)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


class Queue(Peer):
    """A queue whose worker is a process group of its own, started by `argv` of the interpreter."""

    argv: tuple[str, ...] = ()

    async def put(self, id: str) -> Any:
        """Enqueues a job."""
        raise NotImplementedError

    async def enqueue(self, prefix: str, count: int) -> float:
        """Enqueues so many jobs one after the other; the time before the first, on CLOCK_MONOTONIC."""
        began = time.monotonic()
        for number in range(count):
            await self.put(f"{prefix}-{number}")
        return began

    async def restart(self) -> None:
        argv = [sys.executable, "-P", *self.argv]
        self._worker = subprocess.Popen(argv, start_new_session=True)

    async def kill(self) -> bool:
        os.killpg(self._worker.pid, signal.SIGKILL)
        self._worker.wait()
        return True
