"""Figures about the whole deployment, asked of Redis when somebody scrapes.

Every worker tells the same figures of its pools: take their maximum. They are asked for at most every
`FRESH_S` seconds, however many scrape.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from orchestrator.broker.broker import Broker
from orchestrator.telemetry import catalogue as m
from orchestrator.telemetry.metrics import Metrics

FRESH_S = 2.0


class FleetMetrics:
    """The depth and age of each pool's queue, and the open requests."""

    def __init__(
        self, metrics: Metrics, broker: Broker, pools: Sequence[str], clock: Callable[[], float]
    ) -> None:
        self._metrics = metrics
        self._broker = broker
        self._pools = tuple(pools)
        self._clock = clock
        self._looked_at: float | None = None

    async def look(self) -> None:
        """Brings the figures up to date; raises `BrokerError` where Redis does not answer."""
        now = self._clock()
        if self._looked_at is not None and now - self._looked_at < FRESH_S:
            return
        for pool in self._pools:
            queue = await self._broker.claims.queue_of(pool)
            label = self._metrics.name(pool)
            self._metrics.gauge(m.QUEUE_DEPTH, label).set(queue.due)
            self._metrics.gauge(m.LEASED, label).set(queue.leased)
            self._metrics.gauge(m.QUEUE_AGE, label).set(queue.age_ms / 1000)
        self._metrics.gauge(m.OPEN_REQUESTS).set(await self._broker.requests.count_open_requests())
        self._looked_at = now
