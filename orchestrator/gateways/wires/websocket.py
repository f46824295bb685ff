"""WebSockets as wires: one message a text frame, over TCP, TLS and unix sockets.

The protocol itself is the library's (`websockets`). Here are its bounds, the rules of the handshake,
and the health checks that the same port answers.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import lru_cache
from http import HTTPStatus
from typing import Any, cast

from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from orchestrator.gateways.principals import Principal
from orchestrator.gateways.wires.addresses import Answer, HttpRules, bearer, refusal
from orchestrator.gateways.wires.authentication import Authentication, Unauthenticated
from orchestrator.gateways.wires.wire import (
    HANDSHAKE_S,
    MESSAGE_LIMIT,
    PING_S,
    STALL_S,
    CloseCode,
    TooSlow,
    WireClosed,
    keep_alive,
)
from orchestrator.tables import KIB

WHOLE_TEXT = 0x81
"""The first byte of a text frame that is a whole message."""
KEPT_FRAMES = 64
KEPT_BYTES = 32 * KIB
CLOSE_S = 5.0
WRITE_BUFFER = 64 * KIB
"""Bytes behind which `send` waits. What waits beyond is the door's, which can merge and drop it."""
MOST_REASON = 120
"""Bytes of a close frame's reason (RFC 6455, section 5.5, leaves 123)."""
BOUNDS: Mapping[str, Any] = {
    "compression": None,
    "max_size": MESSAGE_LIMIT,
    "max_queue": 4,
    "write_limit": WRITE_BUFFER,
    "open_timeout": HANDSHAKE_S,
    "ping_interval": PING_S,
    "ping_timeout": PING_S,
    "close_timeout": CLOSE_S,
    "server_header": None,
}
"""Arguments of `websockets.asyncio.server.serve`. Without compression: it costs each idle connection some
hundred kilobytes, and a small message could unpack into a large one."""


def text_frame(message: bytes) -> bytes:
    """The frame of a message (RFC 6455, section 5.2); that of a short one is kept for the next connection."""
    return _kept_frame(message) if len(message) <= KEPT_BYTES else _frame(message)


def _frame(message: bytes) -> bytes:
    size = len(message)
    if size < 126:
        return struct.pack("!BB", WHOLE_TEXT, size) + message
    if size <= 0xFFFF:
        return struct.pack("!BBH", WHOLE_TEXT, 126, size) + message
    return struct.pack("!BBQ", WHOLE_TEXT, 127, size) + message


_kept_frame = lru_cache(maxsize=KEPT_FRAMES)(_frame)


class DoorConnection(ServerConnection):
    """A connection whose handshake says who it is."""

    principal: Principal | None = None

    async def send_texts(self, messages: Sequence[bytes]) -> None:
        """Sends a text frame for each; raises `ConnectionClosed`.

        A server's frames are unmasked, and without extensions: those of one message are the same for all.
        """
        async with self.send_context():
            self.protocol.writes += map(text_frame, messages)

    def send_data(self) -> None:
        """Hands the frames to the kernel in one call: the library makes one for each."""
        frames = self.protocol.writes
        # An empty one is the library's mark of the end.
        if len(frames) > 1 and all(frames):
            self.transport.write(b"".join(self.protocol.data_to_send()))
        else:
            super().send_data()


class WebSocketWire:
    """A wire over an open WebSocket."""

    def __init__(self, connection: DoorConnection) -> None:
        assert connection.principal is not None, "the handshake has found one"
        self.principal = connection.principal
        self._connection = connection

    async def receive(self) -> bytes | None:
        """The next text frame; binary ones are no messages and are passed over."""
        while True:
            try:
                message = await self._connection.recv()
            except ConnectionClosed:
                return None
            if isinstance(message, str):
                return message.encode()

    async def send(self, *messages: bytes) -> None:
        """Sends a text frame for each; raises `WireClosed`, `TooSlow` for a client that reads nothing."""
        transport = self._connection.transport
        sending: Callable[[], Awaitable[None]] = lambda: self._connection.send_texts(messages)  # noqa: E731
        waiting = transport.get_write_buffer_size() + sum(map(len, messages))
        while True:
            try:
                async with asyncio.timeout(STALL_S):
                    await sending()
                return
            except ConnectionClosed as error:
                raise WireClosed("the client has left") from error
            except TimeoutError:
                if transport.get_write_buffer_size() < waiting:
                    # The frames are in the buffer already, and the client takes some of them.
                    waiting, sending = transport.get_write_buffer_size(), self._connection.drain
                    continue
            await self.close(CloseCode.TOO_SLOW, "nothing was read; come back, and go on where you were")
            raise TooSlow(f"the client has read nothing for {STALL_S:g} s")

    async def close(self, code: CloseCode = CloseCode.DONE, reason: str = "") -> None:
        """Sends a close frame, and waits for the client's at most `CLOSE_S`."""
        await close(self._connection, code, reason)


async def close(connection: ServerConnection, code: CloseCode, reason: str = "") -> None:
    """Ends a WebSocket. The library waits without end for a client that reads nothing; this does not."""
    try:
        async with asyncio.timeout(CLOSE_S):
            await connection.close(code, reason.encode()[:MOST_REASON].decode(errors="ignore"))
    except TimeoutError:
        connection.transport.abort()


class Handshake:
    """Judges every request that comes to a WebSocket's port."""

    def __init__(
        self, rules: HttpRules, authentication: Authentication, is_ready: Callable[[], bool]
    ) -> None:
        self._rules = rules
        self._authentication = authentication
        self._is_ready = is_ready

    async def __call__(self, connection: ServerConnection, request: Request) -> Response | None:
        """None lets the WebSocket open; the principal is the connection's then."""
        answer = self._health(request) or await self._judged(cast(DoorConnection, connection), request)
        if answer is None:
            keep_alive(connection.transport.get_extra_info("socket"))
            return None
        response = connection.respond(answer.status, answer.text)
        if answer.status is HTTPStatus.UNAUTHORIZED:
            response.headers["WWW-Authenticate"] = "Bearer"
        return response

    def _health(self, request: Request) -> Answer | None:
        path = request.path.partition("?")[0]
        if path == "/healthz" or (path == "/readyz" and self._is_ready()):
            return Answer(HTTPStatus.OK, "ok\n")
        if path == "/readyz":
            return Answer(HTTPStatus.SERVICE_UNAVAILABLE, "Redis does not answer\n")
        return None

    async def _judged(self, connection: DoorConnection, request: Request) -> Answer | None:
        headers = headers_of(request)
        local = connection.local_address
        refused = refusal(self._rules, headers, local[0] if isinstance(local, tuple) else "")
        if refused is not None:
            return refused
        try:
            connected = connection.transport.get_extra_info("socket")
            connection.principal = await self._authentication.principal(bearer(headers), connected)
        except Unauthenticated as error:
            return Answer(HTTPStatus.UNAUTHORIZED, f"{error}\n")
        return None


def headers_of(request: Request) -> Mapping[str, Sequence[str]]:
    """The headers of a request, all values of each under its name in lower case."""
    found: dict[str, list[str]] = {}
    for name, value in request.headers.raw_items():
        found.setdefault(name.lower(), []).append(value)
    return found
