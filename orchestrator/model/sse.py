"""Server-Sent Events, parsed without I/O (WHATWG HTML, section 9.2, "Interpreting an event stream").

Bytes go in as they arrive, events come out. It knows nothing of HTTP, of JSON or of
what the events mean. Lines end at CR, LF or CRLF and nowhere else: text libraries also
split at U+2028 and its kin, which are ordinary characters inside a model's JSON.
"""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.core.frozen import record

MAX_EVENT_BYTES = 32 * 1024 * 1024
"""The largest event taken: a whole response with inline images fits, a runaway server does not."""

_BOM = b"\xef\xbb\xbf"


class SseEventTooLarge(ValueError):
    """An event outgrew the parser's limit; the stream cannot be read any further."""


@record
class SseEvent:
    """A dispatched event; `data` stays bytes because the JSON decoder wants bytes."""

    name: str
    """The `event` field, `message` when the stream named none."""
    data: bytes
    """The `data` lines joined by LF, as received: not yet checked to be UTF-8."""


class SseParser:
    """Feeds on any cutting of the stream; one parser per stream.

    `id` and `retry` are passed over: a stream of a response is never taken up again.
    """

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._limit = max_event_bytes
        self._head: bytes | None = b""  # the first bytes, until it is known whether they are a BOM
        self._after_cr = False
        self._partial: list[bytes] = []
        self._partial_size = 0
        self._name = ""
        self._data: list[bytes] = []
        self._data_size = 0

    def feed(self, chunk: bytes) -> Iterator[SseEvent]:
        """Yields the events that this chunk completes; exhaust it before feeding the next one.

        Raises `SseEventTooLarge` after the events that were complete before the oversized one.
        """
        for line in self._lines(self._without_bom(chunk)):
            if line:
                self._take_field(line)
            elif event := self._dispatch():
                yield event
        self._check_size(self._data_size + self._partial_size)

    def _without_bom(self, chunk: bytes) -> bytes:
        if self._head is None:
            return chunk
        start = self._head + chunk
        if len(start) < len(_BOM) and _BOM.startswith(start):
            self._head = start
            return b""
        self._head = None
        return start.removeprefix(_BOM)

    def _lines(self, chunk: bytes) -> list[bytes]:
        """Complete lines without their ends; an unfinished one is kept in pieces, joined once."""
        if b"\r" in chunk or self._after_cr:
            chunk = self._with_lf_ends(chunk)
        if b"\n" not in chunk:
            self._keep(chunk)
            return []
        lines = chunk.split(b"\n")
        if self._partial:
            lines[0] = b"".join((*self._partial, lines[0]))
            self._partial.clear()
            self._partial_size = 0
        self._keep(lines.pop())
        return lines

    def _with_lf_ends(self, chunk: bytes) -> bytes:
        # A CR at the end of a chunk already ended its line; the LF of the same CRLF may
        # come first in the next chunk and must not end an empty line, which would dispatch.
        if not chunk:
            return chunk
        if self._after_cr:
            chunk = chunk.removeprefix(b"\n")
        self._after_cr = chunk.endswith(b"\r")
        return chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _keep(self, piece: bytes) -> None:
        if piece:
            self._partial.append(piece)
            self._partial_size += len(piece)

    def _take_field(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        if value.startswith(b" "):
            value = value[1:]
        if name == b"data":
            self._data.append(value)
            self._data_size += len(value) + 1
            if self._data_size > self._limit:
                self._check_size(self._data_size)
        elif name == b"event":
            self._name = value.decode("utf-8", "replace")

    def _dispatch(self) -> SseEvent | None:
        name, data = self._name, self._data
        self._name, self._data, self._data_size = "", [], 0
        if not data:
            return None
        return SseEvent(name or "message", b"\n".join(data))

    def _check_size(self, size: int) -> None:
        if size > self._limit:
            raise SseEventTooLarge(f"an event of the stream is larger than {self._limit} bytes")
