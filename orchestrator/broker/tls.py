"""TLS to a server: what the options of a URL say about certificates, and the context made of it.

The client library makes a context for every connection, which reads all authorities of the system anew: 20 ms
in which nothing else runs. Here all connections of a client share one, until one of its files changes. And
the library does not look whether a certificate is the server's own, unless it is told to.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrator.broker.errors import Misconfigured

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
