"""Open connections to one provider, by aiohttp: its pool, its sockets, its TLS and its proxies.

A pool that looks at every connection whenever a request begins or ends costs most of a turn's CPU with
hundreds of sessions; aiohttp's looks at the one that it hands out. This module knows connections, not the
traffic on them.
"""

from __future__ import annotations

import io
import ssl
from collections.abc import Mapping
from urllib.parse import urlencode, urlsplit

import aiohttp
import httpx
from yarl import URL

from orchestrator import config_keys
from orchestrator.config_keys import ProviderSettings, is_address, stated_secrets

MAX_CONNECTIONS = 1024
"""Sockets open to one provider at once; a streaming session holds one."""
_KEEPALIVE_S = 30.0
"""Below what servers commonly keep an idle connection for: who closes first must be us."""
_MAX_HEADER = 64 << 10
"""Bytes of one header of an answer; proxies and providers send long ones."""
_ONE_PIECE = 1 << 20
"""Bytes of a body that is handed to the socket at once; of a longer one it gets pieces."""
_OWN_HEADERS = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")
"""Headers that aiohttp would add: a request has those of its provider's table and format, and no others."""

BROKEN = (aiohttp.ClientError, OSError)
"""The errors of a connection, whatever broke it; time-outs are among them."""
UNREACHED = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.ClientHttpProxyError)
"""Those of a connection that never stood: no byte of the request has left."""


class Connections:
    """The sockets of one provider; bound to one event loop."""

    def __init__(self, provider: ProviderSettings, most: int = MAX_CONNECTIONS) -> None:
        self._most = max(1, most)
        self._connect_s = provider.connect_timeout_s
        self._verified = verification(provider)
        proxy = httpx.Proxy(provider.proxy) if provider.proxy else None
        # Without its user, for errors repeat it.
        self._proxy = None if proxy is None else url_of(str(proxy.url))
        user = {} if proxy is None or proxy.auth is None else _named(*proxy.auth)
        tunnelled = urlsplit(provider.base_url).scheme == "https"
        self._to_tunnel, self._beside = (user, {}) if tunnelled else ({}, user)
        """The headers that a proxy is told: when it opens a tunnel, or beside the request's own."""
        self._session: aiohttp.ClientSession | None = None
        self._answers: set[aiohttp.ClientResponse] = set()
        """Those that are still read."""

    async def post(self, url: URL, headers: Mapping[str, str], content: bytes) -> aiohttp.ClientResponse:
        """Sends a request, as soon as a connection is free, and returns the head of its answer.

        Raises one of `BROKEN`. The caller says when it has read enough of the answer: `release`.
        """
        answer = await self._opened().post(
            url,
            data=content if len(content) <= _ONE_PIECE else io.BytesIO(content),
            headers={**headers, **self._beside} if self._beside else headers,
            proxy=self._proxy,
            proxy_headers=self._to_tunnel or None,
            allow_redirects=False,
        )
        self._answers.add(answer)
        return answer

    def release(self, answer: aiohttp.ClientResponse) -> None:
        """Gives the answer's connection back, or closes it if the body was not read to its end."""
        self._answers.discard(answer)
        answer.release()

    async def aclose(self) -> None:
        """Closes all of them; an answer that is still read breaks off."""
        for answer in self._answers:
            # By itself, for the session would leave its reader waiting.
            answer.close()
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def _opened(self) -> aiohttp.ClientSession:
        # Made by the first request: aiohttp binds it to the loop that runs.
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit=self._most, keepalive_timeout=_KEEPALIVE_S, ssl=self._verified
                ),
                # What a silence is and when it is over, the client says.
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._connect_s),
                cookie_jar=aiohttp.DummyCookieJar(),
                skip_auto_headers=_OWN_HEADERS,
                auto_decompress=False,
                max_line_size=_MAX_HEADER,
                max_field_size=_MAX_HEADER,
            )
        return self._session


def url_of(url: str) -> URL:
    """A URL that aiohttp sends as it stands; a host beyond ASCII in punycode."""
    return URL(str(httpx.URL(url)), encoded=True)


def _named(user: str, password: str) -> dict[str, str]:
    """The header that names the user to a proxy."""
    return {"Proxy-Authorization": aiohttp.encode_basic_auth(user, password)}


def verification(provider: ProviderSettings) -> ssl.SSLContext:
    """The TLS context of all connections: reading the authorities takes tens of milliseconds.

    Raises `InvalidProvider` if the authorities cannot be read.
    """
    if urlsplit(provider.base_url).scheme == "http" and provider.proxy is None:
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if provider.ca_file is None:
        return httpx.create_ssl_context(trust_env=False)
    try:
        return ssl.create_default_context(cafile=provider.ca_file)
    except OSError as error:
        raise InvalidProvider(
            f"model provider {provider.id}: the authorities in {provider.ca_file} cannot be read: "
            f"{error.strerror or error}; correct ca_file in its table, or SSL_CERT_FILE"
        ) from error


# ── provider ──────────────────────────────────────────────────────────────────────────────────────
# The use of a `[model_providers.NAME]` table: the server's URL, and the table's secrets.
#
# Knows tables, not connections. Which variables of the environment hold the key and the extra headers is for
# the settings to read: the table comes here with their values.


class InvalidProvider(ValueError):
    """The table cannot be used; the message names the provider, the key and what is expected."""


def require_proxy(provider: ProviderSettings) -> None:
    """Raises `InvalidProvider` for a proxy that is not spoken to; the environment may name such a one."""
    if provider.proxy is None or is_address(provider.proxy):
        return
    # Not repeated: it may hold a password.
    raise InvalidProvider(
        f"model provider {provider.id}: its proxy must be an http:// or https:// URL, its user without a "
        "colon, and SOCKS is not spoken; set `proxy` in its table, or name its host in NO_PROXY"
    )


def place_of(provider: ProviderSettings) -> str:
    """The provider's place for error texts: its URL, and the proxy on the way."""
    parts = urlsplit(provider.base_url)
    place = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
    if provider.proxy is None:
        return place
    return f"{place} through the proxy {urlsplit(provider.proxy).netloc.rpartition('@')[2]}"


def request_url(provider: ProviderSettings, path: str) -> str:
    """The URL that every request of this provider is posted to; `path` is its wire format's."""
    url = f"{provider.base_url}{path}"
    return f"{url}?{urlencode(provider.query_params)}" if provider.query_params else url


def redacted(provider: ProviderSettings, text: str) -> str:
    """`text` without any of the provider's secrets: servers like to quote the key that they refuse."""
    stated = stated_secrets((provider.base_url, provider.proxy), provider.query_params, provider.http_headers)
    given = (provider.api_key, *provider.secret_headers.values(), *stated)
    return config_keys.redacted(text, given)
