"""Spans that workers tell of sessions, held against each other: traces are sent by many, and are one each.

A worker's observer is the product's own, with an exporter that keeps nothing. It reads logs beside the
simulation, as views do.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from orchestrator.broker.logs import Logs
from sim.observer import Observer

if TYPE_CHECKING:
    from orchestrator.telemetry.tracing import Tracing


class Spans:
    """The rule `span_once`."""

    def __init__(self, watch: Observer, logs: Logs) -> None:
        self._watch = watch
        self._logs = logs
        self._told: dict[tuple[int, int], str] = {}
        """The worker that told each span, by the trace and the id."""
        self._tell: defaultdict[int, set[str]] = defaultdict(set)
        """The workers that told spans of each tree, by its trace."""

    def of_worker(self, name: str, clock: Callable[[], float]) -> Tracing:
        """The observer of a worker that is about to start."""
        from opentelemetry.sdk.trace import SpanProcessor

        from orchestrator.telemetry.tracing import Tracing

        class Exporter(SpanProcessor):
            """Hears of each span when it is told."""

            def on_end(exporter, span: Any) -> None:  # noqa: N805
                self._hears(name, span.name, span.context.trace_id, span.context.span_id)

        return Tracing(cast(Any, Exporter()), self._logs, clock)

    def _hears(self, worker: str, name: str, trace: int, id: int) -> None:
        # What Redis has forgotten is done again, under the ids that it had.
        if self._watch.went_back_s > 0:
            return
        before = self._told.get((trace, id))
        if before is not None:
            self._watch.broken("span_once", f"{worker} tells {name} {id:x}, which {before} has told")
        self._told[trace, id] = worker
        if name != "claim":
            self._tell[trace].add(worker)
            if len(self._tell[trace]) > 1:
                self._watch.reach.saw("span_once")
