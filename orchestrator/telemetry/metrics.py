"""The metrics of one process: a registry of its own, and instruments that are found by a dictionary.

Imports `prometheus_client`, so it is imported only where metrics are on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from orchestrator.telemetry import metric_names
from orchestrator.telemetry.metric_names import Metric

MOST_NAMES = 100
"""Different values that a label from outside may have; those that come later are `other`."""
OTHER = "other"
_NAME = re.compile(r"[\w.:/@+ -]{1,64}")


_USUAL = tuple(metric for metric in metric_names.ALL if metric not in metric_names.NOTARY)


class Metrics:
    """The counters, gauges and histograms of a process; safe in any thread."""

    def __init__(self, version: str, metrics: Iterable[Metric] = _USUAL) -> None:
        self._registry = CollectorRegistry()
        self._made = {metric: _made(metric, self._registry) for metric in metrics}
        self._labelled: dict[tuple[Metric, tuple[str, ...]], Any] = {}
        self._names: dict[str, str] = {}
        self.gauge(metric_names.BUILD, version).set(1)

    def counter(self, metric: Metric, *labels: str) -> Counter:
        """The counter with these labels, in the order in which the metric names them."""
        return self._of(metric, labels)  # type: ignore[no-any-return]

    def gauge(self, metric: Metric, *labels: str) -> Gauge:
        return self._of(metric, labels)  # type: ignore[no-any-return]

    def histogram(self, metric: Metric, *labels: str) -> Histogram:
        return self._of(metric, labels)  # type: ignore[no-any-return]

    def _of(self, metric: Metric, labels: tuple[str, ...]) -> Any:
        found = self._labelled.get((metric, labels))
        if found is None:
            made = self._made[metric]
            found = self._labelled[metric, labels] = made.labels(*labels) if labels else made
        return found

    def name(self, text: str) -> str:
        """The label for a name from outside: itself while it is short, plain and one of few, else `other`."""
        known = self._names.get(text)
        if known is not None:
            return known
        if len(self._names) >= MOST_NAMES or not _NAME.fullmatch(text):
            return OTHER
        return self._names.setdefault(text, text)

    def page(self) -> bytes:
        """All of it in Prometheus's text format."""
        return generate_latest(self._registry)


def _made(metric: Metric, registry: CollectorRegistry) -> Counter | Gauge | Histogram:
    common: dict[str, Any] = {"labelnames": metric.labels, "registry": registry}
    text = metric.text.replace("`", "")
    match metric.kind:
        case "counter":
            return Counter(metric.name, text, **common)
        case "gauge":
            return Gauge(metric.name, text, **common)
        case "histogram":
            return Histogram(metric.name, text, buckets=metric.buckets, **common)
