"""The processes of a worker: commands that go on behind the call that started them.

    start    a command begins, and is looked at until it ends or its call's time is over
    look     what it said since the last look; bounded, with its beginning and its end
    follow   returns at its end, with what nobody has looked at

A process belongs to a claim, as every command does: the supervisor kills it when the claim's deadline
passes. What a session knows of its processes is in its log; here is only what runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from orchestrator.core.calls.exec import cut_output, look_output
from orchestrator.core.commands import ProcessEnd
from orchestrator.core.state import Process
from orchestrator.protocol.events import ExecCommandEnd
from orchestrator.protocol.ids import CallId
from orchestrator.protocol.scalars import Duration, ExecCommandSource
from orchestrator.protocol.wire import JsonObject
from orchestrator.sandbox.probe import NoConfinement
from orchestrator.tools.exec.command import (
    Capture,
    Command,
    Finished,
    Grip,
    Stream,
    for_model,
    formatted_output,
)
from orchestrator.tools.exec.output_deltas import ShownOutput
from orchestrator.tools.exec.running_command import KEPT_BYTES
from orchestrator.tools.exec.supervisor import Supervisor, SupervisorLost

UNSEEN_S = 30 * 60.0
"""A process at which nobody looks for so long is killed."""
MOST_ON_WORKER = 128
"""Processes of all sessions that a worker keeps: each may hold megabytes of output."""


class LiveProcess:
    """A command that runs, and its output since the last look."""

    def __init__(self, supervisor: Supervisor, command: Command, shown: ShownOutput) -> None:
        self._loop = asyncio.get_running_loop()
        self._grip = Grip()
        self._shown = shown
        self._unread = Capture(KEPT_BYTES)
        self._looked_at = self._loop.time()
        self._looks = 0
        self._nobody_looks = asyncio.Event()
        self._nobody_looks.set()
        self.unseen = False
        """Whether it was killed because nobody looked."""
        self.tty = command.tty
        self._task = self._loop.create_task(self._run(supervisor, command), name=f"process:{command.call_id}")
        self._watch = self._loop.call_later(UNSEEN_S, self._forgotten)

    async def _run(self, supervisor: Supervisor, command: Command) -> Finished:
        try:
            return await supervisor.run(command, self._add, self._grip)
        except (NoConfinement, SupervisorLost, OSError) as error:
            # No terminal can be had, say: it never began.
            return Finished(exit_code=-1, error=str(error))
        finally:
            self._watch.cancel()
            self._shown.close()

    def _add(self, stream: Stream, data: bytes) -> None:
        self._unread.add(data)
        self._shown.add(stream, data)

    def _forgotten(self) -> None:
        left = self._looked_at + UNSEEN_S - self._loop.time()
        if self._looks or left > 0:
            self._watch = self._loop.call_later(max(left, 1.0), self._forgotten)
        else:
            self.unseen = True
            self.kill()

    @property
    def finished(self) -> Finished | None:
        """Its result; None while it runs."""
        return self._task.result() if self._task.done() else None

    async def wait(self, seconds: float) -> None:
        """Waits for its end, or until so many seconds have passed; both count as a look."""
        self._looks += 1
        self._nobody_looks.clear()
        try:
            await asyncio.wait([self._task], timeout=seconds)
        finally:
            self._looks -= 1
            self._looked_at = self._loop.time()
            if not self._looks:
                self._nobody_looks.set()

    async def ended(self) -> Finished:
        """Waits for its end; a look that is under way goes before.

        Being cancelled changes nothing for the process.
        """
        await asyncio.wait([self._task])
        await self._nobody_looks.wait()
        return self._task.result()

    def take(self) -> bytes:
        """Takes the output since the last time: its beginning and its end.

        While it runs, a letter of which only the first bytes came waits for the others.
        """
        said, self._unread = self._unread.kept(), Capture(KEPT_BYTES)
        whole = len(said) if self._task.done() else len(said) - _begun(said)
        self._unread.add(said[whole:])
        return said[:whole]

    def write(self, data: bytes) -> bool:
        """Types to its terminal; False, and nothing is typed, if too much of before still waits."""
        return self._grip.write(data)

    def kill(self) -> None:
        self._grip.kill()

    async def stop(self) -> None:
        """Kills it and returns when that is proved, through every cancellation."""
        self.kill()
        while not self._task.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([self._task])


def _begun(said: bytes) -> int:
    """The bytes at the end that begin a letter of UTF-8 and do not end it."""
    for number, byte in enumerate(said[:-4:-1], 1):
        if byte >= 0xC0:
            return number if byte <= 0xF4 and number < 2 + (byte >= 0xE0) + (byte >= 0xF0) else 0
        if byte < 0x80:
            return 0
    return 0


class LiveProcesses:
    """The processes of a worker, by claim and number."""

    def __init__(self) -> None:
        self._living: dict[tuple[str, int], LiveProcess] = {}
        self._starting = 0

    @property
    def full(self) -> bool:
        """Whether no command may begin that may become a process."""
        return len(self._living) + self._starting >= MOST_ON_WORKER

    @contextmanager
    def starting(self) -> Iterator[None]:
        """Holds a place for a command until it has ended or is a process."""
        self._starting += 1
        try:
            yield
        finally:
            self._starting -= 1

    def add(self, claim: str, number: int, process: LiveProcess) -> None:
        self._living[claim, number] = process

    def get(self, claim: str, number: int) -> LiveProcess | None:
        return self._living.get((claim, number))

    def remove(self, claim: str, number: int) -> None:
        self._living.pop((claim, number), None)

    async def abandon(self, claim: str) -> None:
        """Kills what is left of a claim, and returns when that is proved."""
        for key in [key for key in self._living if key[0] == claim]:
            await self._living.pop(key).stop()


# ── reports ───────────────────────────────────────────────────────────────────────────────────────
# Reports on a process: the looks that a model reads, and the event of its end for clients.


OUTPUT_TOKENS: Final = 10_000
"""The most output that the model reads of one look, and what it gets when it names no limit."""
YIELD: Final = "Milliseconds to wait for its end before the output so far is returned; "
MAX_TOKENS: Final[JsonObject] = {
    "type": "number",
    "description": f"The most output to return, in tokens; default and most {OUTPUT_TOKENS}.",
}
UNSEEN = f"killed: nobody looked at it for {UNSEEN_S / 60:g} minutes"
UNKNOWN = Finished(exit_code=-1, error="this worker does not keep the process")


def within(value: int, least: int, most: int) -> int:
    """The nearest number within the bounds."""
    return max(least, min(value, most))


def look_of(
    process: LiveProcess,
    seconds: float,
    max_tokens: int,
    *,
    running: int | None = None,
    finished: Finished | None = None,
) -> str:
    """The text of a look, which takes what the process has said since the last one."""
    said = process.take().decode("utf-8", "replace")
    if finished is not None and finished.error is not None:
        said = f"{finished.error}\n{said}"
    code = 0 if finished is None else finished.exit_code
    return look_output(cut_output(said, max_tokens), seconds, running=running, exit_code=code)


def unread_end(process: Process, living: LiveProcess, finished: Finished) -> ProcessEnd:
    """The end of a process at which no call looked, with what it said last."""
    said = for_model(living.take())
    notes = [note for note in (UNSEEN if living.unseen else None, finished.error, said) if note]
    end = process_end(process.call_id, process.number, finished, unseen=living.unseen)
    return ProcessEnd(process.number, end, "\n".join(notes))


def process_end(call_id: CallId, number: int, finished: Finished, *, unseen: bool = False) -> ExecCommandEnd:
    """The event of a process's end; `unseen`: it was killed because nobody looked."""
    return ExecCommandEnd(
        call_id=call_id,
        process_id=str(number),
        source=ExecCommandSource.UNIFIED_EXEC_STARTUP,
        stdout=finished.stdout.decode("utf-8", "replace"),
        stderr=UNSEEN if unseen else finished.stderr.decode("utf-8", "replace"),
        aggregated_output=finished.aggregated.decode("utf-8", "replace"),
        exit_code=finished.exit_code,
        duration=Duration.cut(finished.duration_s),
        formatted_output=formatted_output(finished),
    )


async def follow(processes: LiveProcesses, process: Process, claim: str) -> ProcessEnd:
    """Returns at the end of a process; cancelling it kills it and waits for the proof."""
    living = processes.get(claim, process.number)
    if living is None:
        return ProcessEnd(process.number, process_end(process.call_id, process.number, UNKNOWN))
    try:
        finished = await living.ended()
    except asyncio.CancelledError:
        await living.stop()
        raise
    finally:
        processes.remove(claim, process.number)
    return unread_end(process, living, finished)
