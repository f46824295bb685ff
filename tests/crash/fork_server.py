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
from tests.started import create_started

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class WorkerProcess:
    """A worker process."""

    pid: int
    point: Point | None
    ended: asyncio.Future[int]
    """The process's exit code; negative is the signal that killed it."""

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def kill_group(self) -> None:
        """The worker and whatever of it has not made a session of its own."""
        # The launcher may have reaped it already, with the news still on its way to us.
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)


@dataclass
class ForkServer:
    """Starts workers of one deployment."""

    process: asyncio.subprocess.Process
    cwd: Path
    environ: Mapping[str, str]
    log: Path
    _ends: dict[int, asyncio.Future[int]] = field(default_factory=dict)
    """Of the workers that are alive, as far as the launcher's news were read."""
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Starts are answered in their order."""
    _started: asyncio.Queue[tuple[int, asyncio.Future[int]]] = field(default_factory=asyncio.Queue)
    _reader: asyncio.Task[None] | None = None

    @classmethod
    @asynccontextmanager
    async def open(
        cls, cwd: Path, environ: Mapping[str, str], log: Path, *, servers: bool = False
    ) -> AsyncIterator[Self]:
        """The launcher, ready to start workers; with `servers` those have MCP servers."""
        process = await create_started(
            sys.executable,
            "-m",
            "tests.crash.launcher",
            *(["servers"] if servers else []),
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        fork_server = cls(process, cwd, environ, log)
        fork_server._reader = asyncio.create_task(fork_server._read())
        try:
            yield fork_server
        finally:
            assert process.stdin is not None
            process.stdin.close()
            await process.wait()
            await fork_server._reader

    async def start(self, point: Point | None = None, **environ: str) -> WorkerProcess:
        """Starts a worker; it claims as soon as it is up."""
        order = {
            "point": point.connection() if point else None,
            "cwd": str(self.cwd),
            "environ": {**self.environ, **environ},
            "log": str(self.log),
        }
        assert self.process.stdin is not None
        async with self._turn:
            self.process.stdin.write(orjson.dumps(order) + b"\n")
            await self.process.stdin.drain()
            pid, ended = await self._started.get()
        return WorkerProcess(pid, point, ended)

    async def emptied(self) -> list[int]:
        """Tells every worker that is alive to leave, and waits for it; answers their exit codes."""
        leaving = dict(self._ends)
        for pid in leaving:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        return await asyncio.gather(*leaving.values())

    async def _read(self) -> None:
        """Waits for nothing but news: one worker's end may stand before the start that another waits for."""
        assert self.process.stdout is not None
        while line := await self.process.stdout.readline():
            fact = orjson.loads(line)
            if "status" not in fact:
                ended = self._ends[fact["pid"]] = asyncio.get_running_loop().create_future()
                self._started.put_nowait((fact["pid"], ended))
            elif not (ended := self._ends.pop(fact["pid"])).done():
                # It is done where whoever waited for it was cancelled.
                ended.set_result(fact["status"])
