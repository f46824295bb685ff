"""Programs that serve the worker over their pipes, under its supervisor: they end with the worker.

Not a command of an agent: no claim of a session is over it, and it is not confined. The worker extends its
life again and again, so that a worker that stands still loses its programs, too.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

from orchestrator.boottime import boottime
from orchestrator.core.frozen import record
from orchestrator.sandbox.policy import Confinement
from orchestrator.sandbox.trusted_files import find_named_program, not_found
from orchestrator.tools.exec.command import Command, Finished, Stream
from orchestrator.tools.exec.supervisor import Supervisor, SupervisorLost

LIFE_S = 60.0
"""A program outlives a worker that stands still for so long at most."""
END_S = 2.0
"""For a program to end by itself when its input has ended."""
ERROR_BYTES, ERROR_S = 16 << 20, 10.0
"""Standard error within so many seconds; a program that writes more of it is ended: reading it is work."""
_WITH_INPUT = 'exec "$@" <"$0"'
"""A shell's line: opens its input and becomes the program."""


@record
class Program:
    """A program to start."""

    argv: tuple[str, ...]
    cwd: Path
    env: Mapping[str, str]
    unread_bytes: int
    """Output that may wait to be read; a program that writes more is ended."""
    stderr_bytes: int
    """The end of the standard error that is kept."""


class RunningProgram:
    """A program that runs, and its pipes."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._parts: list[bytes] = []
        self._unread = 0
        self._news = asyncio.Event()
        self._ended = False
        self._stderr = b""
        self._errors, self._errors_since = 0, 0.0
        self._why = ""
        self._input = -1
        self._room = asyncio.Event()
        self._writing = asyncio.Lock()
        self._flood = asyncio.Event()

    async def read(self) -> bytes:
        """The next part of its standard output; empty when there will be no more."""
        while not self._parts and not self._ended:
            self._news.clear()
            await self._news.wait()
        data, self._parts, self._unread = b"".join(self._parts), [], 0
        return data

    async def write(self, data: bytes) -> None:
        """Writes to its standard input, in order; raises `OSError` when it does not read any more."""
        async with self._writing:
            view = memoryview(data)
            while view:
                if self._input < 0:
                    raise BrokenPipeError("its input is closed")
                try:
                    view = view[os.write(self._input, view) :]
                except BlockingIOError:
                    await self._writable()

    async def _writable(self) -> None:
        loop, descriptor = asyncio.get_running_loop(), self._input
        self._room.clear()
        loop.add_writer(descriptor, self._room.set)
        try:
            await self._room.wait()
        finally:
            if self._input == descriptor:
                loop.remove_writer(descriptor)

    def last_words(self) -> str:
        """Why it ended, as far as it can be told, and the end of its standard error."""
        said = self._stderr[-self._program.stderr_bytes :].decode("utf-8", "replace").strip()
        return "; its last words: ".join(each for each in (self._why or "it still runs", said) if each)

    def receive(self, stream: Stream, data: bytes) -> None:
        """Takes a part of its output."""
        if stream == "stderr":
            self._receive_error(data)
            return
        if self._flood.is_set():
            return
        self._unread += len(data)
        if self._unread > self._program.unread_bytes:
            self._end_flood(f"it wrote more than {self._program.unread_bytes:,} bytes that were not read yet")
            return
        self._parts.append(data)
        self._news.set()

    def _receive_error(self, data: bytes) -> None:
        self._stderr = (self._stderr + data)[-self._program.stderr_bytes :]
        now = time.monotonic()
        if now - self._errors_since > ERROR_S:
            self._errors, self._errors_since = 0, now
        self._errors += len(data)
        if self._errors > ERROR_BYTES:
            self._end_flood(f"it wrote more than {ERROR_BYTES:,} bytes of errors within {ERROR_S:g} s")

    def _end_flood(self, why: str) -> None:
        self._why = self._why or why
        self._flood.set()

    async def _run(self, supervisor: Supervisor, claim: str, source: str) -> None:
        """Runs it to its end, and to the end of all that it started."""
        program = self._program
        command = Command(
            claim=claim,
            call_id=claim,
            argv=("/bin/sh", "-c", _WITH_INPUT, source, *program.argv),
            cwd=program.cwd,
            env=program.env,
            confinement=Confinement("danger-full-access", program.cwd),
            timeout_s=None,
        )
        running = asyncio.ensure_future(supervisor.run(command, self.receive))
        flood = asyncio.ensure_future(self._flood.wait())
        try:
            await asyncio.wait({running, flood}, return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                self._why = self._why or _end(running.result())
        except SupervisorLost as lost:
            self._why = str(lost)
        finally:
            for task in (running, flood):
                task.cancel()
                with suppress(asyncio.CancelledError, SupervisorLost):
                    await task
            self._ended = True
            self._close_input()
            self._news.set()

    @asynccontextmanager
    async def kept(self, supervisor: Supervisor) -> AsyncIterator[None]:
        """Runs it until the end of the context: its input ends, it has a moment to end, then it is killed."""
        claim = f"program-{secrets.token_hex(8)}"
        reading, self._input = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._input, False)
        supervisor.extend(claim, _deadline())
        # The program opens the pipe through the worker's own descriptor: a crash leaves no file behind.
        source = f"/proc/{os.getpid()}/fd/{reading}"
        running = asyncio.ensure_future(self._run(supervisor, claim, source))
        living = asyncio.ensure_future(_extend(supervisor, claim))
        try:
            yield
        finally:
            self._close_input()
            os.close(reading)
            await asyncio.wait({running}, timeout=END_S)
            for task in (running, living):
                task.cancel()
            await asyncio.wait({running, living})

    def _close_input(self) -> None:
        if self._input >= 0:
            asyncio.get_running_loop().remove_writer(self._input)
            os.close(self._input)
            self._input = -1
            self._room.set()


async def _extend(supervisor: Supervisor, claim: str) -> None:
    while True:
        await asyncio.sleep(LIFE_S / 3)
        supervisor.extend(claim, _deadline())


def _deadline() -> float:
    return boottime() + LIFE_S


def _end(finished: Finished) -> str:
    """How it ended, for people."""
    if finished.error is not None:
        return finished.error
    if finished.killed:
        return "it was killed"
    return f"it ended with the code {finished.exit_code}"


@asynccontextmanager
async def running_program(supervisor: Supervisor, program: Program) -> AsyncIterator[RunningProgram]:
    """The program, running; at the end of the context no process of it is left.

    Raises `FileNotFoundError` if there is no such program, `NotADirectoryError` if there is no such folder.
    """
    if not program.cwd.is_dir():
        raise NotADirectoryError(f"its folder {program.cwd} is not there")
    found = _found(program)
    running = RunningProgram(replace(program, argv=(found, *program.argv[1:])))
    async with running.kept(supervisor):
        yield running


def _found(program: Program) -> str:
    """The path of the program; raises `FileNotFoundError`."""
    name = program.argv[0]
    if "/" in name:
        found = shutil.which(program.cwd / name)
    else:
        found = find_named_program(name, program.env.get("PATH", os.defpath), (program.cwd,))
    if found is None:
        remedy = "" if "/" in name else ": install it, or name it by its path"
        raise FileNotFoundError(f"the program {name} {not_found(name)}{remedy}")
    return str(found)
