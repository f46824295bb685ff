"""Text that a worker types to a program's terminal, and the program does not read at once."""

from __future__ import annotations

import asyncio
import os
import tty

from orchestrator.tools.exec.running_command import WAITING_BYTES, Terminal


async def test_text_that_a_terminal_does_not_take_at_once_is_typed_to_its_end() -> None:
    """The kernel holds some 14 KB for a program that does not read."""
    loop, read, text = asyncio.get_running_loop(), bytearray(), os.urandom(WAITING_BYTES)
    terminal, whole = Terminal(loop), asyncio.Event()
    tty.setraw(terminal.other)

    def reads() -> None:
        read.extend(os.read(terminal.other, WAITING_BYTES))
        if len(read) >= len(text):
            whole.set()

    try:
        assert terminal.write(text)
        assert terminal.waiting < len(text)
        loop.add_reader(terminal.other, reads)
        async with asyncio.timeout(20):
            await whole.wait()
        assert (bytes(read), terminal.waiting) == (text, 0)
    finally:
        loop.remove_reader(terminal.other)
        terminal.closed()
        os.close(terminal.descriptor)
        os.close(terminal.other)
