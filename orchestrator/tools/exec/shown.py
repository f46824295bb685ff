"""Output of what runs, on its way to people: deltas that go to the EQ alone."""

from __future__ import annotations

import asyncio

from orchestrator.protocol.events import ExecCommandOutputDelta
from orchestrator.protocol.ids import CallId
from orchestrator.protocol.scalars import OutputStream
from orchestrator.protocol.wire import written
from orchestrator.tools.exec.command import Stream
from orchestrator.tools.exec.deltas import COALESCE_S, DeltaCoalescer, OutputDelta
from orchestrator.tools.site import DeltaSink


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
