"""Bounded capture of a command's output: keeps the beginning and the end, counts and drops the middle.

Pure. Memory is bounded whatever a command prints, and no code here makes the command wait.
"""

from __future__ import annotations


class Capture:
    """Keeps at most `limit` bytes of a stream: half from its start, half from its end."""

    __slots__ = ("_head", "_head_limit", "_tail", "_tail_limit", "dropped")

    def __init__(self, limit: int) -> None:
        self._head_limit = limit // 2
        self._tail_limit = limit - self._head_limit
        self._head = bytearray()
        self._tail = bytearray()
        self.dropped = 0
        """Bytes that are not kept."""

    def add(self, data: bytes) -> None:
        """Takes the next bytes of the stream."""
        room = self._head_limit - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        # Cut at twice the size: every byte is then moved at most once.
        if len(self._tail) > 2 * self._tail_limit:
            self._trim()

    def kept(self) -> bytes:
        """Head and tail; between them, if bytes were dropped, a line that says how many."""
        self._trim()
        if not self.dropped:
            return bytes(self._head + self._tail)
        return b"%b\n[... %d bytes dropped ...]\n%b" % (bytes(self._head), self.dropped, bytes(self._tail))

    def _trim(self) -> None:
        excess = len(self._tail) - self._tail_limit
        if excess > 0:
            del self._tail[:excess]
            self.dropped += excess
