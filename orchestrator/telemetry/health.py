"""The answers to `/healthz`, `/readyz` and `/metrics`, whatever serves them.

    /healthz   200 while this process answers at all: a stuck loop does not, and is to be restarted
    /readyz    200, or 503 with the reason while it can take no work
    /metrics   Prometheus's text format

None of them says anything of a session, and none of them asks who asks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import field

from orchestrator.broker.errors import BrokerError
from orchestrator.core.frozen import record
from orchestrator.telemetry.metrics import Metrics

PATIENCE_S = 2.0
"""The time that Redis gets to answer one of these requests."""
TEXT = "text/plain; charset=utf-8"
PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
PATHS = frozenset({"/healthz", "/readyz", "/metrics"})


@record
class HealthAnswer:
    """An answer, as every HTTP server can give it."""

    status: int
    content_type: str
    body: bytes


async def _nothing() -> None:
    """Looks at nothing."""


@record
class Health:
    """The state of a process, as it says so itself."""

    metrics: Metrics
    fault: Callable[[], Awaitable[str]]
    """The reason why the process can take no work now; empty if it can."""
    look: Callable[[], Awaitable[None]] = field(default=_nothing)
    """Brings the figures up to date that are not counted as they happen."""

    async def answer(self, path: str) -> HealthAnswer | None:
        """The answer to a GET of `path`; None for a path that is none of these."""
        match path:
            case "/healthz":
                return HealthAnswer(200, TEXT, b"ok\n")
            case "/readyz":
                return await self._ready()
            case "/metrics":
                return await self._figures()
            case _:
                return None

    async def _ready(self) -> HealthAnswer:
        try:
            async with asyncio.timeout(PATIENCE_S):
                fault = await self.fault()
        except TimeoutError:
            fault = f"Redis did not answer within {PATIENCE_S:g} s"
        except BrokerError as error:
            fault = str(error)
        return HealthAnswer(503 if fault else 200, TEXT, f"{fault or 'ready'}\n".encode())

    async def _figures(self) -> HealthAnswer:
        # Without Redis the process's own figures are the ones that tell of it.
        try:
            async with asyncio.timeout(PATIENCE_S):
                await self.look()
        except (TimeoutError, BrokerError):
            pass
        return HealthAnswer(200, PROMETHEUS, self.metrics.page())
