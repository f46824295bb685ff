"""Output of what runs, on its way to people: deltas that go to the EQ alone."""

from __future__ import annotations

import asyncio

from orchestrator.core.frozen import record
from orchestrator.protocol.events import ExecCommandOutputDelta
from orchestrator.protocol.ids import CallId
from orchestrator.protocol.scalars import OutputStream
from orchestrator.protocol.wire import written
from orchestrator.tools.exec.command import Stream
from orchestrator.tools.tool_context import DeltaSink


class ShownOutput:
    """Output on its way to `exec_command_output_delta` events, `limit` of them at most."""

    def __init__(self, call_id: str, sink: DeltaSink, limit: int) -> None:
        self._call_id = CallId(call_id)
        self._sink = sink
        self._coalescer = DeltaCoalescer(limit)
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def add(self, stream: Stream, data: bytes) -> None:
        if self._closed:
            # Its call has ended; deltas behind the end would be another's.
            return
        self._show(self._coalescer.add(stream, data, self._loop.time()))
        if self._timer is None and self._coalescer.due_at is not None:
            self._timer = self._loop.call_later(COALESCE_S, self.flush)

    def flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._show(self._coalescer.flush())

    def close(self) -> None:
        """Shows what waits; nothing is shown any more."""
        self.flush()
        self._closed = True

    def _show(self, deltas: list[OutputDelta]) -> None:
        for delta in deltas:
            stream = OutputStream(delta.stream)
            shown = ExecCommandOutputDelta(call_id=self._call_id, stream=stream, chunk=delta.chunk)
            self._sink(written(shown))


# ── deltas ────────────────────────────────────────────────────────────────────────────────────────
# Output deltas of one call: coalesced to 4 KB or 20 ms, and at most 10,000 of them.
#
# Pure: the caller brings the clock and the timer. Past the limit the deltas stop; the event that ends the
# call still carries the output.


MAX_DELTAS = 10_000
CHUNK_BYTES = 4096
COALESCE_S = 0.020


@record
class OutputDelta:
    """A piece of one stream, ready for an `exec_command_output_delta`."""

    stream: Stream
    chunk: bytes


class DeltaCoalescer:
    """Collects what the sink gets and gives it back in chunks worth an event."""

    __slots__ = ("_due_at", "_left", "_pending")

    def __init__(self, limit: int = MAX_DELTAS) -> None:
        self._left = limit
        self._pending: dict[Stream, bytearray] = {}
        self._due_at: float | None = None

    @property
    def due_at(self) -> float | None:
        """The time to call `flush`, by the clock that `add` was given; None while nothing waits."""
        return self._due_at

    def add(self, stream: Stream, data: bytes, now: float) -> list[OutputDelta]:
        """Takes output; returns the full chunks that it completes, or all that is pending if it is due."""
        if self._left <= 0 or not data:
            return []
        pending = self._pending.setdefault(stream, bytearray())
        pending += data
        if self._due_at is None:
            self._due_at = now + COALESCE_S
        if now >= self._due_at:
            return self.flush()
        ready = []
        while len(pending) >= CHUNK_BYTES:
            ready.append(OutputDelta(stream, bytes(pending[:CHUNK_BYTES])))
            del pending[:CHUNK_BYTES]
        return self._counted(ready)

    def flush(self) -> list[OutputDelta]:
        """Returns the pending output; to be called at `due_at`, and before the event that ends the call."""
        ready = []
        for stream, pending in self._pending.items():
            pieces = range(0, len(pending), CHUNK_BYTES)
            ready += [OutputDelta(stream, bytes(pending[at : at + CHUNK_BYTES])) for at in pieces]
        self._pending.clear()
        self._due_at = None
        return self._counted(ready)

    def _counted(self, ready: list[OutputDelta]) -> list[OutputDelta]:
        granted = ready[: self._left]
        self._left -= len(granted)
        if self._left <= 0:
            self._pending.clear()
            self._due_at = None
        elif not any(self._pending.values()):
            self._due_at = None
        return granted
