"""Addresses to listen on, as people write them: `tcp://`, `tcps://`, `ws://`, `wss://`, `http://`, `https://`,
`unix://`, `stdio://`.

Whatever leaves this machine is encrypted: `tcp://`, `ws://` and `http://` are for loopback.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

from orchestrator.core.frozen import record

# ── http rules ────────────────────────────────────────────────────────────────────────────────────
# The rules for an HTTP request at a door: its `Host`, its `Origin`, its token; health checks beside.
#
# A web page may make a browser open a WebSocket to any address, with the browser's own reach: `Origin`
# stops it. It may give its own name the address of this machine (DNS rebinding): `Host` stops that. Pure:
# a request's headers in, an answer out.


LOOPBACK_NAMES = frozenset({"localhost", "localhost."})


@record
class HttpRules:
    """The requests that a listener takes."""

    hosts: frozenset[str] = frozenset()
    """Names of this service beside those of loopback, in lower case."""
    origins: frozenset[str] = frozenset()
    """Web origins whose pages may connect (`https://dendro.example`)."""
    any_host: bool = False
    """On a unix socket no browser and no name leads here."""


@record
class Answer:
    """An HTTP answer in place of a WebSocket."""

    status: HTTPStatus
    text: str


def refusal(rules: HttpRules, headers: Mapping[str, Sequence[str]], local_host: str) -> Answer | None:
    """The answer to a request that may not become a WebSocket; None where nothing speaks against it.

    `headers` are keyed in lower case; `local_host` is the address that the client reached.
    """
    origins = headers.get("origin", ())
    for origin in origins:
        if origin.strip().lower() not in rules.origins:
            return Answer(HTTPStatus.FORBIDDEN, _foreign(origin))
    if rules.any_host:
        return None
    hosts = headers.get("host", ())
    if len(hosts) != 1:
        return Answer(HTTPStatus.BAD_REQUEST, "one Host header is required\n")
    if not _known_host(rules, hosts[0], local_host):
        text = (
            f"this service is not known as {_shown(hosts[0])}: whoever runs it can add the name to "
            "gateway.hosts\n"
        )
        return Answer(HTTPStatus.MISDIRECTED_REQUEST, text)
    return None


def _foreign(origin: str) -> str:
    return (
        f"pages of {_shown(origin)} may not connect: whoever runs this gateway can add the origin to "
        "gateway.allowed_origins\n"
    )


def _known_host(rules: HttpRules, given: str, local_host: str) -> bool:
    name = host_name(given)
    if name is None:
        return False
    # An address that was typed in is no name that somebody else may have set up.
    return name in rules.hosts or is_loopback(name) or (name == local_host and _is_address(name))


def host_name(given: str) -> str | None:
    """The name or address in a `Host` header, in lower case and without its port; None for anything else."""
    try:
        parts = urlsplit(f"//{given.strip()}")
        _ = parts.port
    except ValueError:
        return None
    if parts.hostname is None or "@" in given or parts.path or parts.query or parts.fragment:
        return None
    return parts.hostname


def is_loopback(name: str) -> bool:
    """Whether a name or an address leads to this machine alone."""
    if name in LOOPBACK_NAMES:
        return True
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def bearer(headers: Mapping[str, Sequence[str]]) -> str | None:
    """The token of an `Authorization` header; None without one, and empty for one that holds no token.

    A client that shows something else than a token is not one without a token: it may stand behind a proxy.
    """
    given = headers.get("authorization")
    for value in given or ():
        scheme, _, token = value.strip().partition(" ")
        if scheme.lower() == "bearer" and token.strip():
            return token.strip()
    return None if given is None else ""


def _shown(text: str) -> str:
    """The text of a stranger in an answer: printable, and short."""
    return "".join(char if char.isprintable() else "?" for char in text[:200])


# ── addresses ─────────────────────────────────────────────────────────────────────────────────────


SCHEMES = ("tcp", "tcps", "ws", "wss", "http", "https", "unix", "stdio")
ENCRYPTED = {"tcp": "tcps", "ws": "wss", "http": "https"}
HTTP = ("http", "https")
"""The schemes of the window."""
MOST_UNIX_PATH = 107
"""Bytes of a unix socket's path (unix(7): 108 with the last zero)."""


class BadAddress(ValueError):
    """Text that is no address to listen on, or one that may not be; the message says why."""


@record
class Address:
    """A place to listen on."""

    scheme: str
    host: str = ""
    port: int = 0
    """0 takes a free one."""
    path: Path | None = None

    @property
    def is_encrypted(self) -> bool:
        """Whether TLS is spoken there."""
        return self.scheme in ENCRYPTED.values()

    def __str__(self) -> str:
        if self.path is not None:
            return f"unix://{self.path}"
        if self.scheme == "stdio":
            return "stdio://"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"


def parse_address(text: str, usual_socket: Path | None = None) -> Address:
    """Reads an address; raises `BadAddress` for one that is none, or that would go unencrypted.

    `unix://` alone means `usual_socket`.
    """
    scheme, separator, rest = text.partition("://")
    if not separator or scheme not in SCHEMES:
        raise BadAddress(f"{text!r} is no address to listen on: tcp://HOST:PORT, ws://HOST:PORT, unix://PATH")
    if scheme == "stdio":
        return Address(scheme)
    if scheme == "unix":
        return _unix(text, rest or str(usual_socket or ""))
    return _network(text, scheme)


def _unix(text: str, rest: str) -> Address:
    try:
        path = Path(rest).expanduser()
    except (RuntimeError, ValueError):
        raise BadAddress(
            f"{text!r} begins with a user that this machine has not: name the whole path"
        ) from None
    if not rest or not path.name:
        raise BadAddress(f"{text!r} names no file: unix:///run/user/1000/dendro.sock, for instance")
    path = path.absolute()
    if len(bytes(path)) > MOST_UNIX_PATH:
        raise BadAddress(
            f"{path} is longer than the {MOST_UNIX_PATH} bytes that a unix socket's path may have"
        )
    return Address("unix", path=path)


def _network(text: str, scheme: str) -> Address:
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise BadAddress(f"{text!r}: {error}") from None
    if not host or port is None:
        raise BadAddress(f"{text!r} lacks its host or its port: {scheme}://127.0.0.1:4500, for instance")
    if parts.username or parts.path not in ("", "/") or parts.query or parts.fragment:
        raise BadAddress(f"{text!r} says more than a host and a port")
    if scheme in ENCRYPTED and not is_loopback(host):
        raise BadAddress(
            f"{text!r} would send what agents see and do over the network unencrypted: listen on "
            f"{ENCRYPTED[scheme]}://{parts.netloc} with gateway.tls_certificate and gateway.tls_key, or on "
            "127.0.0.1 behind a proxy that speaks TLS"
        )
    return Address(scheme, host, port)
