"""Finding the primary behind Sentinels: what a `redis+sentinel://` URL says, and whom to ask.

Sentinels watch a primary and its replicas, and put a replica in the place of a primary that died. So a client
is given the Sentinels' addresses and a name, and asks before each connection who has the name now. What they
answer may be old: whoever connects also asks the server itself whether it is a primary (`sockets`).
Knows nothing of commands, and keeps no connection to a Sentinel: it is asked once in a server's life.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any
from urllib.parse import SplitResult, parse_qsl, quote, urlencode, urlsplit

from redis import exceptions as foreign
from redis.asyncio import Redis

from orchestrator.broker.errors import Misconfigured
from orchestrator.core.frozen import record

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
