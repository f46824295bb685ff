"""Addresses to listen on, as people write them: `tcp://`, `tcps://`, `ws://`, `wss://`, `unix://`, `stdio://`.

Whatever leaves this machine is encrypted: `tcp://` and `ws://` are for loopback.
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from orchestrator.core.frozen import record
from orchestrator.gateways.wires.http_rules import is_loopback

SCHEMES = ("tcp", "tcps", "ws", "wss", "unix", "stdio")
ENCRYPTED = {"tcp": "tcps", "ws": "wss"}
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
