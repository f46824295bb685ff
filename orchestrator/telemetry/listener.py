"""A port of its own for health and metrics: HTTP on the process's event loop.

On the loop, because a loop that does not turn must not be called healthy. It reads no body and takes GET and
HEAD alone; connections are few and short.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import field

import uvicorn
from starlette.types import Receive, Scope, Send

from orchestrator.broker.errors import BrokerError
from orchestrator.core.frozen import record
from orchestrator.telemetry.metrics import Metrics

# ── health ────────────────────────────────────────────────────────────────────────────────────────
# The answers to `/healthz`, `/readyz` and `/metrics`, whatever serves them.
#
#     /healthz   200 while this process answers at all: a stuck loop does not, and is to be restarted
#     /readyz    200, or 503 with the reason while it can take no work
#     /metrics   Prometheus's text format
#
# None of them says anything of a session, and none of them asks who asks.


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


# ── listener ──────────────────────────────────────────────────────────────────────────────────────


MOST_CONNECTIONS = 32
_NOT_FOUND = HealthAnswer(404, TEXT, b"there are /healthz, /readyz and /metrics\n")
_NOT_ALLOWED = HealthAnswer(405, TEXT, b"only GET and HEAD\n")


class PortTaken(OSError):
    """The port for metrics cannot be listened on."""


class _Server(uvicorn.Server):
    """Leaves signals to the program around it."""

    def capture_signals(self) -> contextlib.AbstractContextManager[None]:  # type: ignore[override]
        return contextlib.nullcontext()


@contextlib.asynccontextmanager
async def listening(health: Health, host: str, port: int) -> AsyncIterator[str]:
    """Serves the three paths while the block lasts; answers the URL. Port 0 takes a free one.

    Raises `PortTaken`.
    """
    listener = _listener(host, port)
    server = _Server(
        uvicorn.Config(
            _App(health),
            http="httptools",
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="critical",
            access_log=False,
            limit_concurrency=MOST_CONNECTIONS,
            timeout_keep_alive=5,
            timeout_graceful_shutdown=0,
        )
    )
    serving = asyncio.create_task(server.serve(sockets=[listener]), name="metrics")
    bound = listener.getsockname()
    try:
        yield f"http://{f'[{bound[0]}]' if ':' in bound[0] else bound[0]}:{bound[1]}"
    finally:
        server.should_exit = True
        await serving


def _listener(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(MOST_CONNECTIONS)
    except OSError as error:
        listener.close()
        raise PortTaken(f"metrics cannot be served at {host}:{port}: {error.strerror or error}") from error
    return listener


class _App:
    """The ASGI application."""

    def __init__(self, health: Health) -> None:
        self._health = health

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = _NOT_ALLOWED
        if scope["method"] in ("GET", "HEAD"):
            answer = await self._health.answer(scope["path"]) or _NOT_FOUND
        headers = [
            (b"content-type", answer.content_type.encode()),
            (b"content-length", str(len(answer.body)).encode()),
        ]
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        body = b"" if scope["method"] == "HEAD" else answer.body
        await send({"type": "http.response.body", "body": body})
