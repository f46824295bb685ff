"""Listeners: sockets that wait for clients, and hand each connection to the door that it asks for.

A WebSocket goes to `Doors.messages`, a stream of lines to `Doors.lines`, a request of a browser to
`Doors.pages`. A unix socket takes the first two: an HTTP request begins with a capital letter, a line of
JSON does not.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import ssl
import stat
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import field, replace
from functools import lru_cache
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from orchestrator.config_keys import KIB
from orchestrator.core.frozen import record
from orchestrator.gateways.principals import Principal
from orchestrator.gateways.wires import byte_wire
from orchestrator.gateways.wires.addresses import (
    HTTP,
    Address,
    Answer,
    BadAddress,
    HttpRules,
    bearer,
    refusal,
)
from orchestrator.gateways.wires.authentication import Authentication, NotServed, TokenWatch, Unauthenticated
from orchestrator.private_files import FILE, make_folder

if TYPE_CHECKING:
    from orchestrator.gateways.wires.http_requests import HttpDoor

LEAVING = "this gateway leaves: come back, to it or to another one"
BACKLOG = 1024
"""A thousand clients may come back at once when a gateway has died."""


async def _nobody(wire: byte_wire.Wire) -> None:
    pass


LinesDoor = Callable[[byte_wire.SocketStream], Coroutine[Any, Any, None]]


@record
class Doors:
    """The servers of a listener's connections."""

    messages: Callable[[byte_wire.Wire], Coroutine[Any, Any, None]] = _nobody
    lines: LinesDoor | None = None
    """Its first line says who it is, so it authenticates itself."""
    pages: HttpDoor | None = None
    """Its requests say who they are: the kernel's word counts for no browser."""
    page_connection: Callable[[], AbstractContextManager[None]] = field(default=nullcontext)
    """Counts a connection for pages while it is open."""


@record
class ListenerConfig:
    """The rules that hold for all listeners of a gateway."""

    authentication: Authentication
    rules: HttpRules = field(default_factory=HttpRules)
    tls: ssl.SSLContext | None = None
    most_connections: int = 4096
    """Connections of one listener, those in their handshake included; more are closed at once."""
    is_ready: Callable[[], bool] = lambda: True
    watch: TokenWatch | None = None
    bounds: byte_wire.StreamBounds = field(default_factory=byte_wire.StreamBounds)


def tls_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """The server's side of TLS, 1.2 or later; raises `BadAddress` for files that do not fit."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise BadAddress(
            f"gateway.tls_certificate ({certificate}) and gateway.tls_key ({key}) cannot be used: "
            f"{error.strerror or error}; they are two PEM files, the certificate with its chain and its own "
            "key without a password"
        ) from error
    return context


@asynccontextmanager
async def listening(
    addresses: Sequence[Address], doors: Doors, config: ListenerConfig
) -> AsyncIterator[tuple[Address, ...]]:
    """Listens on all of them; gives the addresses with their real ports. Its end closes every connection.

    Raises `BadAddress` for one that cannot be listened on.
    """
    async with contextlib.AsyncExitStack() as stack:
        found = [await stack.enter_async_context(_listener(each, doors, config)) for each in addresses]
        yield tuple(found)


@asynccontextmanager
async def _listener(address: Address, doors: Doors, config: ListenerConfig) -> AsyncIterator[Address]:
    if address.is_encrypted and config.tls is None:
        raise BadAddress(f"{address} needs a certificate: set gateway.tls_certificate and gateway.tls_key")
    if address.scheme in HTTP and doors.pages is None:
        raise BadAddress(f"{address} is for the window: dendro serve, or dendro window")
    streams = _Streams(doors.lines, config)
    with _bound(address) as listener:
        actual = address if address.path else replace(address, port=listener.getsockname()[1])
        opening = _websockets(address, listener, doors, config, streams)
        if address.scheme in ("tcp", "tcps"):
            opening = _lines(listener, streams, config.tls if address.is_encrypted else None)
        elif address.scheme in HTTP:
            opening = _pages(address, listener, doors, config)
        async with opening:
            yield actual


@contextlib.contextmanager
def _bound(address: Address) -> Iterator[socket.socket]:
    """A socket that is bound; a unix socket's file is removed at the end."""
    try:
        if address.path is None:
            family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
            listener = socket.create_server((address.host, address.port), family=family, backlog=BACKLOG)
        else:
            listener = _bound_unix(address.path)
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else str(error)
        if error.errno == errno.EADDRINUSE:
            why = f"a program, or a file, has it already: end that, or {_another(address)}"
        raise BadAddress(f"{address} cannot be listened on: {why}") from error
    listener.setblocking(False)
    made = address.path.stat() if address.path else None
    try:
        yield listener
    finally:
        listener.close()
        if address.path is not None and made is not None:
            _remove(address.path, made)


def _another(address: Address) -> str:
    return "take another port (0 is a free one)" if address.path is None else "take another path"


def _bound_unix(path: Path) -> socket.socket:
    """A unix socket that only its user may connect to; a file that nobody listens behind makes way."""
    make_folder(path.parent)
    if path.exists() and stat.S_ISSOCK(path.stat().st_mode) and not _answers(path):
        path.unlink()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # The file gets the socket's mode: between bind and chmod anyone could connect, and the umask is that
        # of all threads of the process.
        os.fchmod(listener.fileno(), FILE)
        listener.bind(str(path))
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def _remove(path: Path, made: os.stat_result) -> None:
    """Removes a socket's file, unless another gateway has put its own there."""
    with contextlib.suppress(FileNotFoundError):
        if path.stat().st_ino == made.st_ino:
            path.unlink()


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return False
        except OSError:
            return True
    return True


class _Streams:
    """The connections of lines of one listener."""

    def __init__(self, door: LinesDoor | None, config: ListenerConfig) -> None:
        self._door = door
        self._config = config
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def open(self) -> int:
        """The connections that are served."""
        return len(self._tasks)

    def protocol(self) -> asyncio.StreamReaderProtocol:
        """The asyncio protocol of a new connection."""
        reader = asyncio.StreamReader(limit=byte_wire.READ_BYTES)
        return asyncio.StreamReaderProtocol(reader, self._connected)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._door is None or self.open >= self._config.most_connections:
            writer.transport.abort()
            return
        task = asyncio.create_task(self._serve(byte_wire.SocketStream(reader, writer, self._config.bounds)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, stream: byte_wire.SocketStream) -> None:
        assert self._door is not None
        try:
            await self._door(stream)
        finally:
            await stream.close()

    async def close(self) -> None:
        """Ends them all."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def _lines(
    listener: socket.socket, streams: _Streams, tls: ssl.SSLContext | None
) -> AsyncIterator[None]:
    loop = asyncio.get_running_loop()
    patience = byte_wire.HANDSHAKE_S if tls else None
    server = await loop.create_server(
        streams.protocol, sock=listener, backlog=BACKLOG, ssl=tls, ssl_handshake_timeout=patience
    )
    try:
        yield
    finally:
        server.close()
        await streams.close()
        await server.wait_closed()


@asynccontextmanager
async def _pages(
    address: Address, listener: socket.socket, doors: Doors, config: ListenerConfig
) -> AsyncIterator[None]:
    # A gateway without a window does not load the library.
    from orchestrator.gateways.wires.http_requests import HttpBounds, answering

    assert doors.pages is not None
    tls = config.tls if address.is_encrypted else None
    bounds = HttpBounds(config.rules, tls, config.most_connections, config.is_ready, doors.page_connection)
    async with answering(listener, doors.pages, bounds):
        yield


@asynccontextmanager
async def _websockets(
    address: Address, listener: socket.socket, doors: Doors, config: ListenerConfig, streams: _Streams
) -> AsyncIterator[None]:
    # A command that listens nowhere does not load the library.
    from websockets.asyncio.server import Server, serve

    async def handle(connection: ServerConnection) -> None:
        assert isinstance(connection, DoorConnection)
        wire = WebSocketWire(connection)
        serving = doors.messages(wire)
        try:
            await (config.watch.serve(wire.principal, serving) if config.watch else serving)
        except NotServed as error:
            await wire.close(byte_wire.CloseCode.NOT_PERMITTED, str(error))

    silent: set[asyncio.Protocol] = set()

    def connected(protocol: Any, server: Server, **bounds: Any) -> asyncio.Protocol:
        def has_place() -> bool:
            # All of one socket count together, whatever they speak, or before they say so.
            return len(server.handler_tasks) + streams.open + len(silent) < config.most_connections

        def websocket() -> asyncio.Protocol:
            return DoorConnection(protocol, server, **bounds)

        return _Arriving(
            has_place, lambda: _Sniffing(websocket, streams, silent) if address.path else websocket()
        )

    rules = replace(config.rules, any_host=address.path is not None)
    handshake = Handshake(rules, config.authentication, config.is_ready)
    place: dict[str, Any] = {"unix": True} if address.path else {}
    server = await serve(
        handle,
        sock=listener,
        ssl=config.tls if address.is_encrypted else None,
        process_request=handshake,
        create_connection=connected,  # type: ignore[arg-type]
        backlog=BACKLOG,
        **place,
        **BOUNDS,
    )
    try:
        yield
    finally:
        server.server.close()
        open_ones = [close(each, byte_wire.CloseCode.GOING_AWAY, LEAVING) for each in server.connections]
        await asyncio.gather(streams.close(), *open_ones)
        server.close()
        await server.wait_closed()


class _Arriving(asyncio.Protocol):
    """A connection that has no place yet.

    Those that come together have their protocols made before the first of them is connected, and counts: so
    each is judged where it begins to count.
    """

    def __init__(self, has_place: Callable[[], bool], served: Callable[[], asyncio.Protocol]) -> None:
        self._has_place = has_place
        self._served = served

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A transport of uvloop is none by its class.
        arrived = cast(asyncio.Transport, transport)
        if not self._has_place():
            arrived.abort()
            return
        served = self._served()
        arrived.set_protocol(served)
        served.connection_made(arrived)


class _Sniffing(asyncio.Protocol):
    """A connection to a unix socket whose first byte says what it speaks."""

    def __init__(
        self, websocket: Callable[[], asyncio.Protocol], streams: _Streams, silent: set[asyncio.Protocol]
    ) -> None:
        self._websocket = websocket
        self._streams = streams
        silent.add(self)
        self._silent = silent
        """Those that have sent nothing yet."""
        self._transport: asyncio.Transport | None = None
        self._patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A transport of uvloop is none by its class.
        self._transport = cast(asyncio.Transport, transport)
        self._patience = asyncio.get_running_loop().call_later(byte_wire.HANDSHAKE_S, self._transport.abort)

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        assert self._patience is not None
        self._patience.cancel()
        self._silent.discard(self)
        chosen: asyncio.Protocol = self._websocket() if data[:1].isupper() else self._streams.protocol()
        self._transport.set_protocol(chosen)
        chosen.connection_made(self._transport)
        chosen.data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._silent.discard(self)
        if self._patience is not None:
            self._patience.cancel()


# ── websocket ─────────────────────────────────────────────────────────────────────────────────────
# WebSockets as wires: one message a text frame, over TCP, TLS and unix sockets.
#
# The protocol itself is the library's (`websockets`). Here are its bounds, the rules of the handshake,
# and the health checks that the same port answers.


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
    "max_size": byte_wire.MESSAGE_LIMIT,
    "max_queue": 4,
    "write_limit": WRITE_BUFFER,
    "open_timeout": byte_wire.HANDSHAKE_S,
    "ping_interval": byte_wire.PING_S,
    "ping_timeout": byte_wire.PING_S,
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
                async with asyncio.timeout(byte_wire.STALL_S):
                    await sending()
                return
            except ConnectionClosed as error:
                raise byte_wire.WireClosed("the client has left") from error
            except TimeoutError:
                if transport.get_write_buffer_size() < waiting:
                    # The frames are in the buffer already, and the client takes some of them.
                    waiting, sending = transport.get_write_buffer_size(), self._connection.drain
                    continue
            await self.close(
                byte_wire.CloseCode.TOO_SLOW, "nothing was read; come back, and go on where you were"
            )
            raise byte_wire.TooSlow(f"the client has read nothing for {byte_wire.STALL_S:g} s")

    async def close(self, code: byte_wire.CloseCode = byte_wire.CloseCode.DONE, reason: str = "") -> None:
        """Sends a close frame, and waits for the client's at most `CLOSE_S`."""
        await close(self._connection, code, reason)


async def close(connection: ServerConnection, code: byte_wire.CloseCode, reason: str = "") -> None:
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
            byte_wire.keep_alive(connection.transport.get_extra_info("socket"))
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
