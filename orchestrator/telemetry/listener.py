"""A port of its own for health and metrics: HTTP on the process's event loop.

On the loop, because a loop that does not turn must not be called healthy. It reads no body and takes GET and
HEAD alone; connections are few and short.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import uvicorn
from starlette.types import Receive, Scope, Send

from orchestrator.telemetry.health import TEXT, Health, HealthAnswer

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
