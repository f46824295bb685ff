"""The worker that `run` and `proto` bring along: a child process that ends when they do.

It is a worker like any other: what it leaves undone, another one takes on. It runs in a
session of its own, so that a Ctrl-C at the terminal reaches only the process that knows
what it means. The pipe tells it of our end, however we end.

It starts when it is told to. A command that goes on with a session looks at it first: a worker
that is quicker would be done with what was queued, and the command would not know what it missed.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from orchestrator.cli.faults import worker_ended
from orchestrator.cli.invocation import Invocation

T = TypeVar("T")

LEAVE_S = 15.0
"""A worker that is told to leave gives running commands 10 s; then it is no use to wait for it."""


@dataclass(slots=True)
class Companion:
    """A child worker. `dismiss` tells it to leave; leaving the context waits until it has."""

    invocation: Invocation
    abandoned: bool = False
    _process: subprocess.Popen[bytes] | None = None
    _pipe: int = -1

    def start(self) -> None:
        """Starts the worker, once."""
        if self._process is not None:
            return
        theirs, self._pipe = os.pipe()
        try:
            self._process = subprocess.Popen(
                self.invocation.command("worker", "--parent-pipe", str(theirs)),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs,),
                start_new_session=True,
            )
        finally:
            os.close(theirs)

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The worker's process; it was started before."""
        assert self._process is not None, "nobody has started it"
        return self._process

    def dismiss(self) -> None:
        """The worker drains, and nobody waits for it."""
        self.abandoned = True
        self._close()

    def _close(self) -> None:
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1

    async def ended(self) -> int:
        """Returns the worker's exit code when it has ended."""
        loop, done = asyncio.get_running_loop(), asyncio.Event()
        watch = os.pidfd_open(self.process.pid)
        loop.add_reader(watch, done.set)
        try:
            await done.wait()
        finally:
            loop.remove_reader(watch)
            os.close(watch)
        return self.process.wait()

    async def outliving(self, work: Coroutine[Any, Any, T], how_to_go_on: str) -> T:
        """What `work` gives; raises `Fault` if the worker ends before: who else serves the session?"""
        working, dying = asyncio.create_task(work), asyncio.create_task(self.ended())
        try:
            await asyncio.wait({working, dying}, return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                raise worker_ended(dying.result(), how_to_go_on)
            return working.result()
        finally:
            for task in (working, dying):
                task.cancel()
            await asyncio.gather(working, dying, return_exceptions=True)

    def leave(self) -> None:
        """Closes the pipe and waits for the end, unless it was abandoned."""
        self._close()
        if self.abandoned or self._process is None:
            return
        try:
            self.process.wait(LEAVE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@contextmanager
def companion(invocation: Invocation, wanted: bool = True) -> Iterator[Companion | None]:
    """A worker under the same settings, to be started beside this process; or none."""
    worker = Companion(invocation) if wanted else None
    try:
        yield worker
    finally:
        if worker is not None:
            worker.leave()
