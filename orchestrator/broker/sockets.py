"""Single connections to a server: how one is made, used cheaply, and given up when it leads to the wrong one.

Knows no scripts and maps no errors; what is raised is the client library's.
"""

from __future__ import annotations

import asyncio
import math
import re
import ssl
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast
from urllib.parse import SplitResult, parse_qsl, quote, urlencode, urlsplit

import hiredis
from redis import exceptions as foreign
from redis.asyncio import Connection, ConnectionPool, Redis, SSLConnection, UnixDomainSocketConnection

from orchestrator.broker.errors import Misconfigured
from orchestrator.config_keys import KIB
from orchestrator.core.frozen import record

_DEMOTED = re.compile(r"\b(READONLY|UNBLOCKED|MASTERDOWN)\b")


@dataclass(slots=True)
class Era:
    """A count of how often a client has found that its connections lead to a former primary."""

    number: int = 0


class _Lean:
    """The library's Python work for every command of every connection, done cheaper.

    A commit has a hundred arguments, and packing them cost more than all else that the client does. And
    before each command the library reads with a deadline of zero, which takes a turn of the event loop, to
    see whether the server has hung up; the loop has noted that long before, if it has happened.
    """

    _reader: asyncio.StreamReader | None
    _writer: asyncio.StreamWriter | None
    socket_timeout: float | None
    client_name: str | None

    def __init__(self, *, era: Era, shown_name: str = "", **options: Any) -> None:
        super().__init__(**options)
        self._era = era
        self._made_in = era.number
        self._shown_name = shown_name

    async def on_connect(self) -> None:
        self._made_in = self._era.number
        await super().on_connect()  # type: ignore[misc]
        # A name in the URL was set by the library; ours is worth no failure.
        if self._shown_name and not self.client_name:
            await self._set_name()

    async def _set_name(self) -> None:
        """Names the connection in `CLIENT LIST`, where the server knows names and the user may set them."""
        await self.send_command("CLIENT SETNAME", self._shown_name)  # type: ignore[attr-defined]
        try:
            await self.read_response()
        except foreign.ResponseError as error:
            if not isinstance(error, foreign.NoPermissionError) and "unknown" not in str(error).lower():
                raise

    def pack_command(self, *args: Any) -> list[bytes]:
        return [_packed(args)]

    async def can_read_destructive(self) -> bool:
        if self._reader is None or self._reader.at_eof():
            raise foreign.ConnectionError("the server closed the connection")
        if not self.is_of_this_era:
            raise foreign.ConnectionError("the server is no primary any more")
        return False

    async def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        # The library's own deadline is `asyncio.wait_for`, which up to Python 3.11 forgets a cancellation
        # that meets the end of what it waits for: a task that was told to stop would go on for ever.
        deadline_s, self.socket_timeout = self.socket_timeout, None
        try:
            async with asyncio.timeout(deadline_s):
                await super().send_packed_command(command, check_health)  # type: ignore[misc]
        except TimeoutError:
            raise foreign.TimeoutError("the server takes no more commands") from None
        except RuntimeError as error:
            # uvloop's word for a transport that has closed, and has not told so yet.
            raise foreign.ConnectionError(str(error)) from None
        finally:
            self.socket_timeout = deadline_s

    async def read_response(self, *args: Any, **options: Any) -> Any:
        try:
            return await super().read_response(*args, **options)  # type: ignore[misc]
        except foreign.ResponseError as error:
            if _says_demoted(error):
                await self._leave()
            raise

    async def _leave(self) -> None:
        """A primary that was demoted keeps its connections, and answers reads with what it still hears.

        So all of them end, each when it is to be used next. New ones ask their way again, through the name
        service or the Sentinels.
        """
        self.end_era()
        await self.disconnect(nowait=True)  # type: ignore[attr-defined]

    @property
    def is_of_this_era(self) -> bool:
        """Whether nobody has found since it was made that the server is no primary any more."""
        return self._made_in == self._era.number

    def end_era(self) -> None:
        """Notes that the server is no primary any more."""
        if self.is_of_this_era:
            self._era.number += 1


class _LeanTcp(_Lean, Connection):
    pass


class _Tls(_Lean):
    """TLS by contexts of our own making."""

    ssl_context: Any

    def __init__(self, *, tls: Tls, **options: Any) -> None:
        super().__init__(**options)
        self.ssl_context = tls

    async def on_connect(self) -> None:
        if self.ssl_context.identified:
            await super().on_connect()
            return
        try:
            await super().on_connect()
            # By TLS 1.3 a server that misses a certificate says so when the handshake is over: in the place
            # of its first answer. To HELLO everybody gets one.
            await self.send_command("HELLO")  # type: ignore[attr-defined]
            await self.read_response()
        except foreign.AuthenticationError:
            raise
        except foreign.ConnectionError as error:
            why = "the server may want a certificate (ssl_certfile, ssl_keyfile)"
            raise foreign.ConnectionError(f"{error}; {why}") from None


class _LeanTls(_Tls, SSLConnection):
    pass


class _LeanUnix(_Lean, UnixDomainSocketConnection):
    pass


_LEAN: Mapping[type, type] = {
    Connection: _LeanTcp,
    SSLConnection: _LeanTls,
    UnixDomainSocketConnection: _LeanUnix,
}


class _Led(_Lean):
    """Asks the Sentinels before it connects, and the server itself whether it is what they say."""

    host: str
    port: int

    def __init__(self, *, primary: Primary, **options: Any) -> None:
        super().__init__(**options)
        self._primary = primary

    async def _connect(self) -> None:
        self.host, self.port = await self._primary.address()
        try:
            await super()._connect()  # type: ignore[misc]
        except (OSError, TimeoutError):
            self._primary.doubt()
            raise

    async def on_connect(self) -> None:
        await super().on_connect()
        # HELLO tells the role too, and unlike ROLE it is open to everybody who may connect.
        await self.send_command("HELLO")  # type: ignore[attr-defined]
        said = await self.read_response()
        if dict(zip(said[::2], said[1::2], strict=True))[b"role"] != b"master":
            self._primary.doubt()
            raise foreign.ReadOnlyError(f"{self.host}:{self.port} is no primary, the Sentinels say it is")


class _LedTcp(_Led, Connection):
    pass


class _LedTls(_Led, _Tls, SSLConnection):
    pass


_LED: Mapping[type, type] = {Connection: _LedTcp, SSLConnection: _LedTls}


def _says_demoted(error: foreign.ResponseError) -> bool:
    """Whether a server says that it is a replica now; 6.2 wraps that in a sentence about the script."""
    return isinstance(error, foreign.ReadOnlyError) or bool(_DEMOTED.search(str(error)))


def connection_pool(url: str, era: Era, options: Mapping[str, Any]) -> ConnectionPool:
    """A pool to whatever the URL names. Opens no connection.

    Raises ValueError for a URL that names nothing, `Misconfigured` for one with a wrong option.
    """
    watched = SentinelUrl.parse(url)
    pool = ConnectionPool.from_url(watched.server if watched else url, era=era, **options)
    if pool.connection_class is SSLConnection:
        _share_tls(pool.connection_kwargs)
    if watched is None:
        pool.connection_class = _LEAN[pool.connection_class]
    else:
        pool.connection_class = _LED[pool.connection_class]
        pool.connection_kwargs["primary"] = Primary(watched, lambda sentinel: _sentinel(sentinel, options))
    try:
        pool.connection_class(**pool.connection_kwargs)
    except TypeError as error:
        # What the URL's query says becomes an argument of every connection.
        option = str(error).rpartition("argument ")[2]
        raise Misconfigured(f"redis.url has the option {option}, which is not known") from None
    return pool


def _share_tls(arguments: dict[str, Any]) -> None:
    """Puts one maker of contexts in the place of what the URL says of TLS."""
    said = [name for name in arguments if name.startswith(PREFIX)]
    arguments["tls"] = Tls({name.removeprefix(PREFIX): arguments.pop(name) for name in said})


def _sentinel(url: str, options: Mapping[str, Any]) -> Redis:
    patience = {"socket_timeout": options["socket_connect_timeout"]}
    return Redis.from_pool(connection_pool(url, Era(), {**options, **patience}))


# ── one connection for all commands ───────────────────────────────────────────────────────────────
# What a process asks of a server goes over one connection: the commands of a turn of the event loop in one
# write, their replies in the order of the commands. The library takes a connection of its pool for each
# command, and a task's turn for each step of it: twice the time (docs/decisions/one-wire.md). Connections are
# still made by the library, with all that is above; then their bytes are ours.


SMALL_BYTES = 256 * KIB
"""Commands that are longer go over connections of the pool: they would hold up all that come behind."""


class Wire:
    """A client of one server. Commands that block others (BLPOP, WAIT) are not for it: see `library`."""

    def __init__(self, library: Redis, reply_timeout_s: float) -> None:
        """Opens no connection. A reply that is late for so long fails all that waits on its connection."""
        self.library = library
        """The client of the same server that takes a connection of the pool for each command."""
        self._timeout_s = reply_timeout_s
        self._parsed = cast(Mapping[str, Callable[..., Any]], dict(library.response_callbacks))
        self._link: _Link | None = None
        self._opening: asyncio.Task[_Link] | None = None

    @property
    def connection_pool(self) -> ConnectionPool:
        """The pool of `library`, which makes the connections."""
        return self.library.connection_pool

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        """Runs a command; raises the client library's errors."""
        packed = _packed(args)
        if len(packed) > SMALL_BYTES:
            return await cast(Any, self.library).execute_command(*args, **options)
        link = self._link
        if link is None or not link.serves:
            link = await self._open()
        reply = await link.send(packed)
        parsed = self._parsed.get(args[0])
        return reply if parsed is None else parsed(reply, **options)

    async def execute_all(self, rows: Sequence[Sequence[Any]]) -> list[Any]:
        """Runs several commands, in their order; errors of the server stand among the replies.

        Raises the library's errors about the connection.
        """
        packed = [_packed(args) for args in rows]
        if sum(map(len, packed)) > SMALL_BYTES:
            async with self.library.pipeline(transaction=False) as pipe:
                for args in rows:
                    pipe.execute_command(*args)
                return list(await pipe.execute(raise_on_error=False))
        link = await self._open()
        sent = [link.send(one) for one in packed]
        replies = await asyncio.gather(*sent, return_exceptions=True)
        for at, (args, reply) in enumerate(zip(rows, replies, strict=True)):
            parsed = self._parsed.get(args[0])
            if isinstance(reply, foreign.ConnectionError | foreign.TimeoutError):
                raise reply
            if parsed is not None and not isinstance(reply, BaseException):
                replies[at] = parsed(reply)
        return replies

    async def aclose(self) -> None:
        if self._opening is not None:
            self._opening.cancel()
        if self._link is not None:
            self._link.end(foreign.ConnectionError("the client was closed"))
        await self.library.aclose()

    async def _open(self) -> _Link:
        """The connection; a new one where the last has ended, or leads to a former primary."""
        if self._link is not None and self._link.serves:
            return self._link
        # All that wait share one attempt, and one failure.
        if self._opening is None:
            self._opening = asyncio.create_task(self._opened())
        return await asyncio.shield(self._opening)

    async def _opened(self) -> _Link:
        try:
            if self._link is not None:
                self._link.leave()
            self._link = await _Link.opened(self.library, self._timeout_s)
            return self._link
        finally:
            self._opening = None


class Waits:
    """A client of one server for commands that block, whose replies may come at any time.

    Each has a connection of its own until it is answered; who gives one up ends its connection.
    """

    def __init__(self, library: Redis) -> None:
        """Opens no connection. `library` is the client whose pool makes them."""
        self._library = library
        self._parsed = cast(Mapping[str, Callable[..., Any]], dict(library.response_callbacks))
        self._idle: list[_Link] = []
        self._busy: set[_Link] = set()

    async def execute_command(self, *args: Any) -> Any:
        """Runs a command; raises the client library's errors."""
        link = await self._free()
        self._busy.add(link)
        answered = False
        try:
            reply = await link.send(_packed(args))
            answered = True
        except foreign.ResponseError:
            answered = True
            raise
        finally:
            self._busy.discard(link)
            if answered and link.serves:
                self._idle.append(link)
            else:
                # Its answer, if one still comes, would be taken for another's.
                link.end(foreign.ConnectionError("the command was given up"))
        parsed = self._parsed.get(args[0])
        return reply if parsed is None else parsed(reply)

    async def _free(self) -> _Link:
        while self._idle:
            link = self._idle.pop()
            if link.serves:
                return link
            link.end(foreign.ConnectionError("the server is no primary any more"))
        return await _Link.opened(self._library, None)

    async def aclose(self) -> None:
        for link in (*self._idle, *self._busy):
            link.end(foreign.ConnectionError("the client was closed"))


class _Link(asyncio.Protocol):
    """An open connection, taken over from the library, and the commands whose replies are awaited."""

    @classmethod
    async def opened(cls, library: Redis, timeout_s: float | None) -> _Link:
        """A new connection; raises the library's errors."""
        pool = library.connection_pool
        connection = pool.connection_class(**pool.connection_kwargs)
        await connection.connect()  # type: ignore[no-untyped-call]
        return cls(cast(_Lean, connection), timeout_s)

    def __init__(self, connection: _Lean, timeout_s: float | None) -> None:
        self._connection = connection
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._reader = hiredis.Reader(
            protocolError=foreign.InvalidResponse,
            replyError=connection._parser.parse_error,  # type: ignore[attr-defined]
        )
        self._awaited: deque[tuple[asyncio.Future[Any], float]] = deque()
        self._unsent: list[bytes] = []
        self._watch: asyncio.TimerHandle | None = None
        self._leaving = False
        self._error: Exception | None = None
        reader, writer = connection._reader, connection._writer
        assert reader is not None
        assert writer is not None
        self._transport = cast(asyncio.Transport, writer.transport)
        self._transport.set_protocol(self)
        if reader.at_eof():
            self.end(foreign.ConnectionError("the server closed the connection"))

    @property
    def serves(self) -> bool:
        """Whether it takes another command: it is open, and leads to no former primary."""
        return self._error is None and not self._leaving and self._connection.is_of_this_era

    def send(self, packed: bytes) -> asyncio.Future[Any]:
        """Sends a command with all others of this turn of the loop; its reply, or the error that it is."""
        reply: asyncio.Future[Any] = self._loop.create_future()
        if self._error is not None:
            reply.set_exception(self._error)
            return reply
        if not self._unsent:
            self._loop.call_soon(self._flush)
        self._unsent.append(packed)
        if self._timeout_s is None:
            self._awaited.append((reply, math.inf))
            return reply
        self._awaited.append((reply, self._loop.time() + self._timeout_s))
        if self._watch is None:
            self._watch = self._loop.call_later(self._timeout_s, self._look)
        return reply

    def leave(self) -> None:
        """Takes no more commands, and closes behind the last reply."""
        self._leaving = True
        if not self._awaited:
            self.end(foreign.ConnectionError("the server is no primary any more"))

    def end(self, error: Exception) -> None:
        """Closes it; what waits fails with the error."""
        if self._error is not None:
            return
        self._error = error
        if self._watch is not None:
            self._watch.cancel()
        self._unsent.clear()
        self._transport.abort()
        # The library warns of connections that are dropped open.
        self._connection._reader = self._connection._writer = None
        while self._awaited:
            reply, _ = self._awaited.popleft()
            if not reply.done():
                reply.set_exception(error)

    def _flush(self) -> None:
        unsent, self._unsent = self._unsent, []
        if not unsent:
            return
        try:
            self._transport.writelines(unsent)
        except RuntimeError as error:
            # As in `_Lean`: it is closed.
            self.end(foreign.ConnectionError(str(error)))

    def _look(self) -> None:
        """Fails the connection if its oldest command waits for too long, else looks again when it would."""
        self._watch = None
        if not self._awaited:
            return
        due = self._awaited[0][1]
        if due <= self._loop.time():
            self.end(foreign.TimeoutError("the server does not answer"))
        else:
            self._watch = self._loop.call_at(due, self._look)

    # ── the event loop's ──────────────────────────────────────────────────────────────────────

    def data_received(self, data: bytes) -> None:
        try:
            self._reader.feed(data)
            while (reply := self._reader.gets()) is not False:
                self._received(reply)
        except foreign.InvalidResponse as error:
            self.end(foreign.ConnectionError(f"the server does not speak Redis's protocol: {error}"))

    def _received(self, reply: Any) -> None:
        if not self._awaited:
            # An error that the server says before it hangs up, or what no command has asked for.
            told = reply if isinstance(reply, Exception) else "a reply to no command"
            self.end(foreign.ConnectionError(str(told)))
            return
        awaited, _ = self._awaited.popleft()
        if not awaited.done():
            if isinstance(reply, Exception):
                awaited.set_exception(reply)
            else:
                awaited.set_result(reply)
        if isinstance(reply, foreign.ConnectionError):
            self.end(reply)
        elif isinstance(reply, foreign.ResponseError) and _says_demoted(reply):
            self._connection.end_era()
            self._leaving = True
        if self._leaving and not self._awaited:
            self.end(foreign.ConnectionError("the server is no primary any more"))

    def eof_received(self) -> bool:
        self.end(foreign.ConnectionError("the server closed the connection"))
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        told = f": {exc}" if exc is not None else ""
        self.end(foreign.ConnectionError(f"the server closed the connection{told}"))


def _packed(args: Sequence[Any]) -> bytes:
    # The library's own habit: `SCRIPT LOAD` is two words on the wire.
    packed: bytes = hiredis.pack_command((*args[0].split(), *args[1:]))
    return packed


# ── tls ───────────────────────────────────────────────────────────────────────────────────────────
# TLS to a server: what the options of a URL say about certificates, and the context made of it.
#
# The client library makes a context for every connection, which reads all authorities of the system anew:
# 20 ms in which nothing else runs. Here all connections of a client share one, until one of its files
# changes. And the library does not look whether a certificate is the server's own, unless it is told to.


PREFIX = "ssl_"
OPTIONS = frozenset({"ca_certs", "certfile", "keyfile", "check_hostname", "cert_reqs"})


class Tls:
    """Makes contexts; stands where the library's connection keeps its own maker of them."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        """`options` are those of a URL without their prefix; raises `Misconfigured` for a wrong one."""
        known = ", ".join(f"{PREFIX}{name}" for name in sorted(OPTIONS))
        if not options.keys() <= OPTIONS:
            raise Misconfigured(f"redis.url has a TLS option that is not known; there are {known}")
        if options.get("cert_reqs") not in (None, "none", "required"):
            raise Misconfigured("redis.url: ssl_cert_reqs is required, or none")
        self._authorities = options.get("ca_certs")
        self._certificate = options.get("certfile")
        self._key = options.get("keyfile")
        self._checked = options.get("cert_reqs") != "none"
        self._named = self._checked and options.get("check_hostname", True)
        self._context: ssl.SSLContext | None = None
        self._read: tuple[int, ...] = ()

    @property
    def identified(self) -> bool:
        """Whether this client has a certificate of its own to show."""
        return self._certificate is not None

    def get(self) -> ssl.SSLContext:
        """The context for the next connection; raises `Misconfigured` if a file cannot be read."""
        try:
            stamps = tuple(Path(file).stat().st_mtime_ns for file in self._files())
            if self._context is None or stamps != self._read:
                self._context, self._read = self._made(), stamps
        except (OSError, ValueError) as error:
            # Files that are being renewed may not fit for a moment; those before them did.
            if self._context is None:
                named = ", ".join(self._files())
                raise Misconfigured(f"redis.url: TLS cannot use {named}: {error}") from error
        return self._context

    def _files(self) -> list[str]:
        return [file for file in (self._authorities, self._certificate, self._key) if file]

    def _made(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = bool(self._named)
        context.verify_mode = ssl.CERT_REQUIRED if self._checked else ssl.CERT_NONE
        if self._authorities:
            context.load_verify_locations(self._authorities)
        elif self._checked:
            context.load_default_certs()
        if self._certificate:
            context.load_cert_chain(self._certificate, self._key)
        return context


_OTHER = {"redis": "rediss", "rediss": "redis"}


async def other_scheme(url: str, patience_s: float) -> str:
    """The words about a server that speaks TLS where its URL does not say so, or the reverse; "" if unknown.

    By what either of them does with the other's first bytes it cannot be told from one that starts or leaves,
    so it is asked in the other way: by a handshake, or by a PING that names nobody.
    """
    parts = urlsplit(url)
    if parts.scheme not in _OTHER:
        return ""
    context = None
    if parts.scheme == "redis":
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    place = f"{parts.hostname or 'localhost'}:{parts.port or 6379}"
    try:
        async with asyncio.timeout(patience_s):
            opening = asyncio.open_connection(parts.hostname or "localhost", parts.port or 6379, ssl=context)
            reader, writer = await opening
            try:
                if context is None:
                    writer.write(b"PING\r\n")
                    if await reader.read(1) not in (b"+", b"-"):
                        return ""
            finally:
                writer.transport.abort()
    except (OSError, TimeoutError):
        return ""
    speaks = "TLS, and redis.url says redis://" if context else "no TLS, and redis.url says rediss://"
    return f"the server at {place} speaks {speaks}: write {_OTHER[parts.scheme]}:// (DENDRO_REDIS_URL)"


# ── sentinels ─────────────────────────────────────────────────────────────────────────────────────
# Finding the primary behind Sentinels: what a `redis+sentinel://` URL says, and whom to ask.
#
# Sentinels watch a primary and its replicas, and put a replica in the place of a primary that died. So a
# client is given the Sentinels' addresses and a name, and asks before each connection who has the name
# now. What they answer may be old: whoever connects also asks the server itself whether it is a primary
# (`sockets`). Knows nothing of commands, and keeps no connection to a Sentinel: it is asked once in a
# server's life.


SCHEMES = {"redis+sentinel": "redis", "rediss+sentinel": "rediss"}
DEFAULT_PORT = 26379
_OWN = "sentinel_"
"""Options of the URL's query that begin with it are for the Sentinels; all others for the server."""

Address = tuple[str, int]


@record
class SentinelUrl:
    """`redis+sentinel://user:password@host,host:port/name/0`; with `rediss+sentinel`, TLS to all of them."""

    sentinels: tuple[str, ...] = field(repr=False)
    """A URL for each, with what it takes to be let in."""
    service: str
    server: str = field(repr=False)
    """The URL of the primary, all but its address."""

    @classmethod
    def parse(cls, url: str) -> SentinelUrl | None:
        """None if the URL is of another kind; raises ValueError for a wrong one."""
        parts = urlsplit(url)
        if parts.scheme not in SCHEMES:
            return None
        who, _, hosts = parts.netloc.rpartition("@")
        service, _, database = parts.path.strip("/").partition("/")
        if not service or not hosts:
            raise ValueError("a Sentinel URL names at least one host, and the service")
        own, other = _options_of(parts)
        scheme = SCHEMES[parts.scheme]
        addresses = [_address(host) for host in hosts.split(",")]
        return cls(
            tuple(_sentinel_url(scheme, address, own, other) for address in addresses),
            service,
            f"{scheme}://{who}@/{database}?{urlencode(other)}",
        )


def _options_of(parts: SplitResult) -> tuple[dict[str, str], dict[str, str]]:
    """The options of the URL's query, those for the Sentinels and those for the server."""
    said = dict(parse_qsl(parts.query, strict_parsing=bool(parts.query)))
    own = {name.removeprefix(_OWN): value for name, value in said.items() if name.startswith(_OWN)}
    if not own.keys() <= {"username", "password"}:
        raise ValueError("of a Sentinel, sentinel_username and sentinel_password can be said")
    return own, {name: value for name, value in said.items() if not name.startswith(_OWN)}


def _address(text: str) -> Address:
    parts = urlsplit(f"//{text}")
    if not parts.hostname:
        raise ValueError("a Sentinel's address is a host, or host:port")
    return parts.hostname, parts.port or DEFAULT_PORT


def _sentinel_url(scheme: str, address: Address, own: Mapping[str, str], server: Mapping[str, str]) -> str:
    host, port = address
    shown = f"[{host}]" if ":" in host else host
    options = {name: value for name, value in server.items() if name.startswith("ssl_")} | dict(own)
    return f"{scheme}://{shown}:{port}?{urlencode(options, quote_via=quote)}"


class Primary:
    """The primary of one service, as its Sentinels name it now."""

    def __init__(self, url: SentinelUrl, dial: Callable[[str], Redis]) -> None:
        """`dial` makes a client of a Sentinel from its URL."""
        self._service = url.service
        self._order: Sequence[str] = url.sentinels
        self._dial = dial

    async def address(self) -> Address:
        """Asks one Sentinel after the other; raises `Misconfigured`, or the library's ConnectionError."""
        silent = []
        for sentinel in tuple(self._order):
            try:
                found = await self._ask(sentinel)
            except (foreign.AuthenticationError, foreign.NoPermissionError) as error:
                raise Misconfigured(
                    f"the Sentinel at {_place(sentinel)} refused: {error}; "
                    "give sentinel_username and sentinel_password in the query of redis.url"
                ) from error
            except (foreign.RedisError, OSError) as error:
                silent.append(f"{_place(sentinel)}: {error}")
                self.doubt()
                continue
            if found is not None:
                return found
            silent.append(f"{_place(sentinel)}: knows no {self._service!r}")
            self.doubt()
        raise foreign.ConnectionError(f"no Sentinel tells where {self._service!r} is ({'; '.join(silent)})")

    def doubt(self) -> None:
        """Moves the Sentinel asked first to the end: it does not know the primary, or named a wrong one."""
        first, *others = self._order
        self._order = (*others, first)

    async def _ask(self, sentinel: str) -> Address | None:
        client: Any = self._dial(sentinel)
        try:
            found = await client.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._service)
        finally:
            await client.aclose()
        return None if found is None else (found[0].decode(), int(found[1]))


def _place(sentinel: str) -> str:
    return urlsplit(sentinel).netloc
