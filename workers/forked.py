"""A process forked from this one: it has what this one has imported, which would take another second.

Only for a process without threads and without an event loop: neither lives on in a fork.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

DONE, FAILED, INTERRUPTED = 0, 1, 130


@dataclass(slots=True)
class Forked:
    """A child process in a session of its own; nothing of this process's terminal or input reaches it."""

    pid: int
    _exit_code: int | None = None

    def wait(self, timeout_s: float | None = None) -> int:
        """The exit code, negative for a signal; raises `TimeoutError` if it does not come in time."""
        if self._exit_code is None:
            watch = os.pidfd_open(self.pid)
            try:
                waiting = select.poll()
                waiting.register(watch, select.POLLIN)
                if not waiting.poll(None if timeout_s is None else timeout_s * 1000):
                    raise TimeoutError(f"process {self.pid} has not ended")
            finally:
                os.close(watch)
            self._exit_code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self._exit_code

    def kill(self) -> None:
        if self._exit_code is None:
            os.kill(self.pid, signal.SIGKILL)


def forked(work: Callable[[], int], keep: int, report: Callable[[Exception], int]) -> Forked:
    """Begins `work` in a fork, which ends with its exit code; `report` tells a failure and gives its code.

    It begins when a byte comes in the pipe `keep`, and never if the pipe ends first. Of this process's
    descriptors the fork keeps that one and stderr.
    """
    # Else a search for cycles in the fork would copy every object of before.
    gc.freeze()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        _run(work, keep, report)
    return Forked(pid)


def _run(work: Callable[[], int], keep: int, report: Callable[[Exception], int]) -> NoReturn:
    code = FAILED
    try:
        os.setsid()
        _let_go(keep)
        code = work() if os.read(keep, 1) else DONE
    except KeyboardInterrupt:
        code = INTERRUPTED
    except Exception as error:
        code = report(error)
    finally:
        sys.stderr.flush()
        os._exit(code)


def _let_go(keep: int) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    for entry in list(Path("/proc/self/fd").iterdir()):
        if int(entry.name) not in (0, 1, 2, keep):
            # The listing's own is closed already.
            with suppress(OSError):
                os.close(int(entry.name))
