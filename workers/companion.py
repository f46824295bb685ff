"""The worker that a command brings along: a fork of the command that ends when the command does."""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from workers.forked import Forked, forked

if TYPE_CHECKING:
    from orchestrator.settings import Settings

T = TypeVar("T")

WORKER_NAME = "dendro-worker"
LEAVE_S = 15.0
"""A worker that is told to leave gives running commands 10 s; then it is no use to wait for it."""


class LostWorker(Exception):
    """The worker of a command ended before the command did."""

    def __init__(self, code: int, how_to_go_on: str) -> None:
        super().__init__(f"the worker of this command ended with {code}; {how_to_go_on}")


@dataclass(slots=True)
class Companion:
    """A child worker. `dismiss` tells it to leave; leaving the context waits until it has."""

    _process: Forked
    _pipe: int
    _started: bool = False
    _abandoned: bool = False

    @classmethod
    def forked(
        cls, settings: Callable[[], Settings], report: Callable[[Exception], int], *, imported: bool = True
    ) -> Companion:
        """A worker that waits to be started; this process has no thread yet and no loop.

        It reads its settings itself, and `report` tells its failure. What it needs is imported here, unless
        this process has to answer before that is done.
        """
        if imported:
            import workers.turns  # noqa: F401

        theirs, ours = os.pipe()

        def serve() -> int:
            from workers.turns import run_turns

            # `ps` shows it beside the command that both are forks of.
            Path("/proc/self/comm").write_text(WORKER_NAME)
            return run_turns(settings(), theirs)

        try:
            return cls(forked(serve, theirs, report), ours)
        finally:
            os.close(theirs)

    def is_named(self, name: str) -> bool:
        """Whether a worker's name (`worker_name`) is that of this one."""
        return name.split("-")[-2:-1] == [str(self._process.pid)]

    def start(self) -> None:
        """Starts the worker, once."""
        if not self._started:
            self._started = True
            # It may have been killed: whoever waits for its end learns that.
            with suppress(BrokenPipeError):
                os.write(self._pipe, b"\n")

    def dismiss(self) -> None:
        """Drains the worker without waiting for its end."""
        self._abandoned = True
        self._close()

    def kill(self) -> None:
        """Ends the worker at once, and with it what it runs."""
        self._process.kill()

    def _close(self) -> None:
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1

    async def ended(self) -> int:
        """Returns the worker's exit code when it has ended."""
        import asyncio

        loop, done = asyncio.get_running_loop(), asyncio.Event()
        watch = os.pidfd_open(self._process.pid)
        loop.add_reader(watch, done.set)
        try:
            await done.wait()
        finally:
            loop.remove_reader(watch)
            os.close(watch)
        return self._process.wait()

    async def outliving(self, work: Coroutine[Any, Any, T], how_to_go_on: str) -> T:
        """The result of `work`; raises `LostWorker` if the worker ends first: perhaps no other serves it."""
        import asyncio

        working, dying = asyncio.create_task(work), asyncio.create_task(self.ended())
        try:
            await asyncio.wait({working, dying}, return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                raise LostWorker(dying.result(), how_to_go_on)
            return working.result()
        finally:
            for task in (working, dying):
                task.cancel()
            await asyncio.gather(working, dying, return_exceptions=True)

    def leave(self) -> None:
        """Closes the pipe and waits for the end, unless it was abandoned."""
        self._close()
        if self._abandoned:
            return
        try:
            self._process.wait(LEAVE_S)
        except TimeoutError:
            self._process.kill()
            self._process.wait()


@contextmanager
def companion(
    settings: Callable[[], Settings],
    report: Callable[[Exception], int],
    *,
    wanted: bool = True,
    imported: bool = True,
) -> Iterator[Companion | None]:
    """A worker under these settings, to be started beside this process; or none."""
    worker = Companion.forked(settings, report, imported=imported) if wanted else None
    try:
        yield worker
    finally:
        if worker is not None:
            worker.leave()
