"""Single connections to a server: how one is made, used cheaply, and given up when it leads to the wrong one.

Knows no scripts and maps no errors; what is raised is the client library's.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import hiredis
from redis import exceptions as foreign
from redis.asyncio import Connection, ConnectionPool, Redis, SSLConnection, UnixDomainSocketConnection

from orchestrator.broker.errors import Misconfigured
from orchestrator.broker.sentinels import Primary, SentinelUrl
from orchestrator.broker.tls import PREFIX, Tls

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
        # The library's own habit: `SCRIPT LOAD` is two words on the wire.
        return [hiredis.pack_command((*args[0].split(), *args[1:]))]

    async def can_read_destructive(self) -> bool:
        if self._reader is None or self._reader.at_eof():
            raise foreign.ConnectionError("the server closed the connection")
        if self._made_in != self._era.number:
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
        if self._made_in == self._era.number:
            self._era.number += 1
        await self.disconnect(nowait=True)  # type: ignore[attr-defined]


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
