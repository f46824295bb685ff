"""Standard input and output for an event loop, without changing the terminal behind them.

A descriptor made non-blocking is so for every process that shares it: the shell, and our own
stdout. So reads wait in a thread of their own, and writes wait only where one would block.
"""

from __future__ import annotations

import asyncio
import os
import select
import threading
from contextlib import suppress

STDIN, STDOUT = 0, 1


async def read_stdin(limit: int) -> bytes:
    """The next bytes of standard input; empty at its end.

    The thread is a daemon: one that still waits for a line does not keep the process.
    """
    loop = asyncio.get_running_loop()
    result: asyncio.Future[bytes] = loop.create_future()

    def settle(data: bytes) -> None:
        if not result.done():
            result.set_result(data)

    def wait() -> None:
        try:
            data = os.read(STDIN, limit)
        except OSError:
            # A terminal that went away reads like one that ended.
            data = b""
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(settle, data)

    threading.Thread(target=wait, name="stdin", daemon=True).start()
    return await result


async def write_json(data: bytes) -> None:
    """Writes lines of JSON; raises BrokenPipeError when nobody reads any more."""
    if os.isatty(STDOUT):
        from orchestrator.cli.text import json_for_stdout

        data = json_for_stdout(data)
    await write_stdout(data)


async def write_stdout(data: bytes) -> None:
    """Writes all of it; raises BrokenPipeError when nobody reads any more."""
    # A pipe that is writable takes PIPE_BUF bytes at once (POSIX, write).
    if len(data) <= select.PIPE_BUF and select.select((), (STDOUT,), (), 0)[1]:
        write_all(data)
        return
    await asyncio.to_thread(write_all, data)


def write_all(data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(STDOUT, view) :]
