"""HTTP requests on a listener: uvicorn's protocol within the bounds of a gateway, and judged before a door.

A request gets so long for its head, and so many bytes; `Host`, `Origin` and the health checks are those of
WebSockets. The door is an ASGI application.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import field, replace
from email.utils import formatdate
from http import HTTPStatus
from typing import Any, Protocol

import orjson
import uvicorn
from starlette.responses import PlainTextResponse, Response
from starlette.types import Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from orchestrator.config_keys import KIB
from orchestrator.core.frozen import record
from orchestrator.gateways.wires.addresses import Answer, HttpRules, refusal
from orchestrator.gateways.wires.byte_wire import HANDSHAKE_S, keep_alive

HEAD_BYTES = 64 * KIB
"""The most that a request's line and headers may be."""
IDLE_S = 65.0
"""A connection without a request is closed after so long."""
REFUSED = -32600
"""The code of JSON-RPC for a request that is refused."""
LEAVE_S = 5.0
"""The time for answers that are under way when the gateway leaves."""


class HttpDoor(Protocol):
    """An ASGI application that can be told to leave."""

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """The headers of every answer, also of those that the door never sees."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...

    def leave(self) -> None:
        """Ends the answers that would go on for ever."""


@record
class HttpBounds:
    """The rules and bounds of one listener."""

    rules: HttpRules
    tls: ssl.SSLContext | None
    most_connections: int
    is_ready: Callable[[], bool]
    connection: Callable[[], AbstractContextManager[None]] = field(default=nullcontext)
    """Counts a connection while it is open."""


@asynccontextmanager
async def answering(listener: socket.socket, door: HttpDoor, bounds: HttpBounds) -> AsyncIterator[None]:
    """Answers requests while the block lasts; its end waits for answers that are under way, for `LEAVE_S`."""
    loop = asyncio.get_running_loop()
    config = uvicorn.Config(
        _Judged(door, bounds),
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="critical",
        access_log=False,
        timeout_keep_alive=int(IDLE_S),
    )
    config.load()
    state = ServerState()
    state.default_headers = door.headers
    handshake = HANDSHAKE_S if bounds.tls else None
    server = await loop.create_server(
        lambda: _Connection(config, state, bounds),
        sock=listener,
        ssl=bounds.tls,
        ssl_handshake_timeout=handshake,
    )
    try:
        yield
    finally:
        server.close()
        door.leave()
        for connection in tuple(state.connections):
            connection.shutdown()
        if state.tasks:
            await asyncio.wait(tuple(state.tasks), timeout=LEAVE_S)
        for connection in tuple(state.connections):
            connection.transport.abort()
        await server.wait_closed()


class _Connection(HttpToolsProtocol):
    """A connection whose requests may not begin for ever."""

    def __init__(
        self,
        config: uvicorn.Config,
        state: ServerState,
        bounds: HttpBounds,
    ) -> None:
        super().__init__(config, state, {})
        self._counted = bounds.connection()
        self._most = bounds.most_connections
        self._head = 0
        """The bytes that came since the last request, or its last piece."""
        self._fields = 0
        """The bytes of the headers of the request that comes."""
        self._patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self._most:
            # Its request is answered by 503, and ends it; those before it are served as ever.
            self.limit_concurrency = 0
        self._counted.__enter__()
        keep_alive(transport.get_extra_info("socket"))
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._begun()
        super().connection_lost(exc)
        self._counted.__exit__(None, None, None)

    def _wait(self) -> None:
        self._patience = self.loop.call_later(HANDSHAKE_S, self.transport.abort)

    def _begun(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def data_received(self, data: bytes) -> None:
        self._head += len(data)
        super().data_received(data)
        if self._head > HEAD_BYTES and not self.transport.is_closing():
            self.transport.abort()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._fields = 0
        # For an answer that nobody reads: `close` would wait until it is read.
        self.scope["state"]["abort"] = self.transport.abort
        if self._patience is None:
            self._wait()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._fields += len(name) + len(value)
        if self._fields > HEAD_BYTES:
            # The parser makes an invalid request of it, which is answered by 400.
            raise ValueError("the head of the request is too long")
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._begun()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._head = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._head = 0
        super().on_message_complete()


class _Judged:
    """The application in front of a door: health, `Host` and `Origin`."""

    def __init__(self, door: HttpDoor, bounds: HttpBounds) -> None:
        self._door = door
        self._bounds = bounds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def dated(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"date", formatdate(usegmt=True).encode())]
            await send(message)

        answer = self._health(scope["path"]) or self._refused(scope)
        if answer is None:
            await self._door(scope, receive, dated)
        else:
            headers = {"cache-control": "no-store"}
            told = {"error": {"code": REFUSED, "message": answer.text.strip()}}
            response = (
                PlainTextResponse(answer.text, answer.status, headers)
                if answer.status in (HTTPStatus.OK, HTTPStatus.SERVICE_UNAVAILABLE)
                else Response(orjson.dumps(told), answer.status, headers, "application/json")
            )
            await response(scope, receive, dated)

    def _health(self, path: str) -> Answer | None:
        if path == "/healthz" or (path == "/readyz" and self._bounds.is_ready()):
            return Answer(HTTPStatus.OK, "ok\n")
        if path == "/readyz":
            return Answer(HTTPStatus.SERVICE_UNAVAILABLE, "Redis does not answer\n")
        return None

    def _refused(self, scope: Scope) -> Answer | None:
        headers: dict[str, list[str]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.decode("latin-1"), []).append(value.decode("latin-1"))
        own = own_origin(scope["scheme"], headers)
        rules = replace(self._bounds.rules, origins=self._bounds.rules.origins | {own})
        server: Any = scope.get("server")
        return refusal(rules, headers, str(server[0]) if server else "")


def own_origin(scheme: str, headers: dict[str, list[str]]) -> str:
    """The origin of the pages that are served under a request's `Host`; refused with it where it is none."""
    hosts = headers.get("host", ())
    return f"{scheme}://{hosts[0].strip().lower()}" if len(hosts) == 1 else ""
