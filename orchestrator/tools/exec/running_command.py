"""A running command as the worker sees it: two output pipes and the channel to its shim.

Reads everything as it comes and keeps a bounded part; decides when the output has drained.
Knows nothing of claims.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket
import struct
import termios

from orchestrator.core.frozen import record
from orchestrator.tools.exec.command import Capture, OutputSink, Stream

KEPT_BYTES = 1024 * 1024
_READ_BYTES = 64 * 1024


@record
class Exit:
    """How the main process ended."""

    code: int
    why: str = "itself"
    """`itself`, `timeout` or `killed`."""


class Running:
    """The worker's end of one command."""

    def __init__(self, output: OutputSink, loop: asyncio.AbstractEventLoop, *, tty: bool = False) -> None:
        self._loop = loop
        self._tty = tty
        self.terminal: Terminal | None = None
        """The command's terminal, if it is to have one and was opened."""
        self._output = output
        self._captures: dict[Stream, Capture] = {"stdout": Capture(KEPT_BYTES), "stderr": Capture(KEPT_BYTES)}
        self._aggregated = Capture(KEPT_BYTES)
        self._pipes: dict[Stream, int] = {}
        self._channel: socket.socket | None = None
        self._received = b""
        self._activity = asyncio.Event()
        self.exit: Exit | None = None
        self.failure: tuple[str, int] | None = None
        """The step of the start that failed, and its errno."""
        self.survivors = 0
        self.ran_out_of_memory = False
        self._supervisor_lost = False
        self.ended = asyncio.Event()
        """The main process is over, or never was; set at the latest with `gone`."""
        self.gone = asyncio.Event()
        """Set when the shim or the supervisor has reported that no process of the command is left."""

    def open(self) -> tuple[int, int, int]:
        """Makes pipes and channel and starts reading; returns the shim's ends: channel, stdout, stderr."""
        opened: list[int] = []
        try:
            streams: tuple[Stream, ...] = () if self._tty else ("stdout", "stderr")
            if self._tty:
                self.terminal = Terminal(self._loop)
                self._pipes["stdout"] = self.terminal.descriptor
                opened += [self.terminal.other, os.dup(self.terminal.other)]
            for stream in streams:
                reading, writing = os.pipe2(os.O_CLOEXEC)
                opened.append(writing)
                os.set_blocking(reading, False)
                self._pipes[stream] = reading
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        except OSError:
            for descriptor in opened:
                os.close(descriptor)
            self.close()
            raise
        ours.setblocking(False)
        self._channel = ours
        self._loop.add_reader(ours, self._read_channel)
        for stream, descriptor in self._pipes.items():
            self._loop.add_reader(descriptor, self._read_pipe, stream, descriptor)
        return theirs.detach(), opened[0], opened[1]

    async def drain(self, quiet_s: float, grace_s: float) -> bool:
        """Waits until both pipes are closed, or nothing came for `quiet_s`, or `grace_s` have passed.

        A background process that outlives its parent may hold the pipes for ever. Returns whether they are
        closed.
        """
        until = self._loop.time() + grace_s
        while self._pipes and (left := until - self._loop.time()) > 0:
            self._activity.clear()
            try:
                # Not `wait_for`: up to Python 3.11 it forgets a cancellation that meets the end of the wait.
                async with asyncio.timeout(min(quiet_s, left)):
                    await self._activity.wait()
            except TimeoutError:
                return False
        return not self._pipes

    def lose_shim(self, survivors: int = 0) -> None:
        """Records that the shim is gone, as the supervisor reported or since the supervisor is lost."""
        self.survivors = survivors
        self.ended.set()
        self.gone.set()

    def lose_supervisor(self) -> None:
        """Records that the supervisor cannot sweep: if the shim ends without proof, no report will come."""
        self._supervisor_lost = True
        if self._channel is None:
            self._give_up_proof()

    def _give_up_proof(self) -> None:
        if not self.gone.is_set():
            self.failure = ("proof", 0)
            self.lose_shim()

    def kept(self, stream: Stream) -> bytes:
        """Returns the captured part of a stream."""
        return self._captures[stream].kept()

    def aggregated(self) -> bytes:
        """Returns the captured part of both streams, in order of arrival."""
        return self._aggregated.kept()

    def close(self) -> None:
        """Takes what is still in the pipes, closes all; to a shim it means: kill what is left."""
        for stream, descriptor in list(self._pipes.items()):
            for _ in range(KEPT_BYTES // _READ_BYTES):
                if not self._read_pipe(stream, descriptor):
                    break
            self._close_pipe(stream)
        self._close_channel()

    def _read_pipe(self, stream: Stream, descriptor: int) -> bool:
        """Reads once; returns whether there may be more."""
        try:
            data = os.read(descriptor, _READ_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            # A terminal whose other end nobody has any more.
            data = b""
        self._activity.set()
        if not data:
            self._close_pipe(stream)
            return False
        self._captures[stream].add(data)
        self._aggregated.add(data)
        self._output(stream, data)
        return True

    def _close_pipe(self, stream: Stream) -> None:
        descriptor = self._pipes.pop(stream, None)
        if descriptor is not None:
            self._loop.remove_reader(descriptor)
            if self.terminal is not None:
                self.terminal.closed()
            os.close(descriptor)

    def _read_channel(self) -> None:
        assert self._channel is not None
        try:
            data = self._channel.recv(4096)
        except BlockingIOError:
            return
        except ConnectionResetError:
            data = b""
        if not data:
            self._close_channel()
            if self._supervisor_lost:
                self._give_up_proof()
            return  # else, without a `gone`, the supervisor has to speak
        *lines, self._received = (self._received + data).split(b"\n")
        for line in lines:
            self._receive(line.decode())

    def _receive(self, line: str) -> None:
        match line.split(" "):
            case ["exited", code, why]:
                self.exit = self.exit or Exit(int(code), why)
                self.ended.set()
            case ["failed", what, number]:
                self.failure = (what, int(number))
                self.ended.set()
            case ["memory"]:
                self.ran_out_of_memory = True
            case ["gone", survivors]:
                self.lose_shim(int(survivors))

    def _close_channel(self) -> None:
        if self._channel is not None:
            self._loop.remove_reader(self._channel)
            self._channel.close()
            self._channel = None


# ── terminal ──────────────────────────────────────────────────────────────────────────────────────
# A terminal that a command gets, from the worker's end: what is typed goes in, what it prints comes out.
#
# The command has the other end for its input and both outputs. A program that does not read leaves what
# was typed waiting here, up to a bound; nothing here waits for the program.


ROWS, COLUMNS = 24, 80
WAITING_BYTES = 64 * 1024
"""Bytes that may wait for a program that does not read."""


class Terminal:
    """A pseudo-terminal; `other` is the command's end, to be closed when the command has it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.descriptor, self.other = os.openpty()
        """The worker's end is closed by whoever reads it, with `closed`."""
        os.set_blocking(self.descriptor, False)
        for end in (self.descriptor, self.other):
            os.set_inheritable(end, False)
        fcntl.ioctl(self.other, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        self._waiting = bytearray()
        self._open = True

    def write(self, data: bytes) -> bool:
        """Types to the program; False, and nothing is typed, if too much of before still waits."""
        if len(self._waiting) + len(data) > WAITING_BYTES:
            return False
        if self._open and data:
            self._waiting += data
            self._send()
        return True

    @property
    def waiting(self) -> int:
        """Bytes that the program has not taken yet."""
        return len(self._waiting)

    def closed(self) -> None:
        """Notes that the worker's end is about to be closed."""
        if self._open:
            self._open = False
            self._loop.remove_writer(self.descriptor)
            self._waiting.clear()

    def _send(self) -> None:
        try:
            written = os.write(self.descriptor, self._waiting)
        except BlockingIOError:
            written = 0
        except OSError:
            # The program has ended: nobody reads any more.
            self._waiting.clear()
            written = 0
        del self._waiting[:written]
        if self._waiting:
            self._loop.add_writer(self.descriptor, self._send)
        else:
            self._loop.remove_writer(self.descriptor)
