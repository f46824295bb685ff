"""The launcher, from the driver's side: workers started, signalled, and waited for."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import orjson

from tests.crash.points import Point

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class WorkerProcess:
    """One worker."""

    pid: int
    point: Point | None
    ended: asyncio.Future[int]
    """Its exit code; negative is the signal that killed it."""

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def kill_group(self) -> None:
        """The worker and whatever of it has not made a session of its own."""
        # The launcher may have reaped it already, with the news still on its way to us.
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)


@dataclass
class Nursery:
    """Starts workers of one deployment."""

    process: asyncio.subprocess.Process
    cwd: Path
    environ: Mapping[str, str]
    log: Path
    _workers: dict[int, WorkerProcess] = field(default_factory=dict)
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    _started: asyncio.Queue[int] = field(default_factory=asyncio.Queue)
    _reader: asyncio.Task[None] | None = None

    @classmethod
    @asynccontextmanager
    async def open(cls, cwd: Path, environ: Mapping[str, str], log: Path) -> AsyncIterator[Self]:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.crash.launcher",
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        nursery = cls(process, cwd, environ, log)
        nursery._reader = asyncio.create_task(nursery._read())
        try:
            yield nursery
        finally:
            assert process.stdin is not None
            process.stdin.close()
            await process.wait()
            await nursery._reader

    async def start(self, point: Point | None = None, **environ: str) -> WorkerProcess:
        """Starts a worker; it claims as soon as it is up."""
        order = {
            "point": point.wire() if point else None,
            "cwd": str(self.cwd),
            "environ": {**self.environ, **environ},
            "log": str(self.log),
        }
        assert self.process.stdin is not None
        async with self._turn:
            self.process.stdin.write(orjson.dumps(order) + b"\n")
            await self.process.stdin.drain()
            pid = await self._started.get()
            worker = WorkerProcess(pid, point, asyncio.get_running_loop().create_future())
            self._workers[pid] = worker
        return worker

    async def _read(self) -> None:
        assert self.process.stdout is not None
        while line := await self.process.stdout.readline():
            fact = orjson.loads(line)
            if "status" not in fact:
                self._started.put_nowait(fact["pid"])
                continue
            async with self._turn:
                self._workers.pop(fact["pid"]).ended.set_result(fact["status"])
