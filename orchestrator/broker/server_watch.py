"""A watch over the private server's process: its users start it again when it ends under them.

Knows a process id and what to call, no files and no locks. It waits in a thread of its own, because the
server's end is heard by `poll` on a pidfd, and starting the server again blocks.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable

from orchestrator.core.frozen import record

AGAIN_S = 1.0
"""Between two attempts to start a server that does not come up, or to find one that has no pid yet."""


@record
class Reviver:
    """How a server is found and started again. Both are called in the watch's thread."""

    pid: Callable[[], int | None]
    """The process id of the living server, None if it cannot be told."""
    revive: Callable[[], None]
    """Sees to it that a server runs; raises whatever keeps it from that."""
    failed: Callable[[Exception], None]


class ServerWatch:
    """A thread that revives the server until it is stopped."""

    def __init__(self, reviver: Reviver) -> None:
        self._reviver = reviver
        self._stopped = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._thread = threading.Thread(target=self._run, name="dendro-private-redis", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Revives nothing from here on; waits for an attempt that is under way."""
        os.eventfd_write(self._stopped, 1)
        self._thread.join()
        os.close(self._stopped)

    def _run(self) -> None:
        while self._outlived(self._reviver.pid()):
            try:
                self._reviver.revive()
            except Exception as error:
                self._reviver.failed(error)
                if self._wait(None, AGAIN_S):
                    return

    def _outlived(self, pid: int | None) -> bool:
        """Waits for the server's end; False if the watch was stopped before it."""
        try:
            server = None if pid is None else os.pidfd_open(pid)
        except ProcessLookupError:
            return not self._wait(None, 0)
        if server is None:
            return not self._wait(None, AGAIN_S)
        try:
            return not self._wait(server, None)
        finally:
            os.close(server)

    def _wait(self, server: int | None, seconds: float | None) -> bool:
        """Whether the watch was stopped before the server ended, or before the time was over."""
        poll = select.poll()
        poll.register(self._stopped, select.POLLIN)
        if server is not None:
            poll.register(server, select.POLLIN)
        ready = dict(poll.poll(None if seconds is None else seconds * 1000))
        return self._stopped in ready
