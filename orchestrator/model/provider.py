"""The use of a `[model_providers.NAME]` table: the server's URL, and the table's secrets.

Knows tables, not connections. Which variables of the environment hold the key and the extra headers is for
the settings to read: the table comes here with their values.
"""

from __future__ import annotations

from urllib.parse import urlencode, urlsplit

from orchestrator.tables import ProviderSettings


class InvalidProvider(ValueError):
    """The table cannot be used; the message names the provider, the key and what is expected."""


def require_proxy(provider: ProviderSettings) -> None:
    """Raises `InvalidProvider` for a proxy that is not spoken to; the environment may name such a one."""
    if provider.proxy is None or _is_http(provider.proxy):
        return
    # Not repeated: it may hold a password.
    raise InvalidProvider(
        f"model provider {provider.id}: its proxy must be an http:// or https:// URL, SOCKS is not "
        "spoken; set `proxy` in its table, or name its host in NO_PROXY"
    )


def place_of(provider: ProviderSettings) -> str:
    """The provider's place for error texts: its URL, and the proxy on the way."""
    if provider.proxy is None:
        return provider.base_url
    return f"{provider.base_url} through the proxy {urlsplit(provider.proxy).netloc.rpartition('@')[2]}"


def request_url(provider: ProviderSettings, path: str) -> str:
    """The URL that every request of this provider is posted to; `path` is its wire format's."""
    url = f"{provider.base_url}{path}"
    return f"{url}?{urlencode(provider.query_params)}" if provider.query_params else url


LEAST_SECRET = 4
"""Characters of the shortest key that is looked for: a shorter one stands in every text."""


def redacted(provider: ProviderSettings, text: str) -> str:
    """`text` without any of the provider's secrets: servers like to quote the key that they refuse."""
    for secret in (provider.api_key, *provider.secret_headers.values()):
        if len(secret or "") >= LEAST_SECRET:
            text = text.replace(str(secret), "[redacted]")
    return text


def _is_http(url: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme in ("http", "https") and bool(parts.hostname)
