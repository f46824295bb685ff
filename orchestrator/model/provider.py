"""Where a model is served: the values of one `[model_providers.NAME]` table.

Only values: which variables of the environment hold the key and the extra headers is
written here by name, but they are read by the settings and handed to the client as
`ProviderSecrets`. A session names its provider; the table itself never travels with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from urllib.parse import urlencode, urlsplit


class InvalidProvider(ValueError):
    """The table cannot be used; the message names the provider, the key and what is expected."""


@dataclass(frozen=True, slots=True)
class Provider:
    """One server of the Responses API and how patient to be with it."""

    name: str
    """The table's name, as it stands in settings and in error texts."""
    base_url: str
    """Up to and without `/responses`, for example `https://api.openai.com/v1`."""
    env_key: str | None = None
    """Name of the environment variable with the API key; None for a server that wants none."""
    wire_api: Literal["responses"] = "responses"
    query_params: Mapping[str, str] = field(default_factory=dict)
    http_headers: Mapping[str, str] = field(default_factory=dict)
    env_http_headers: Mapping[str, str] = field(default_factory=dict)
    """Header name -> name of the environment variable that holds its value."""
    request_max_retries: int = 4
    """HTTP failures passed over in silence, counted once for a whole model request."""
    stream_max_retries: int = 5
    """Broken streams that the caller may start again, each announced by a `stream_error`."""
    stream_idle_timeout_s: float = 300.0
    """Longest silence between two events of a stream."""
    connect_timeout_s: float = 15.0
    proxy: str | None = None
    """URL of an HTTP proxy; None connects directly."""
    ca_file: Path | None = None
    """PEM file of the authorities to trust instead of the built-in bundle."""
    max_connections: int = 1024
    """Sockets open to this provider at once; a streaming session holds one."""
    max_response_bytes: int = 64 << 20
    """The longest stream that one request may bring; a longer one fails the task."""

    def __post_init__(self) -> None:
        if not _is_http(self.base_url):
            raise InvalidProvider(
                f"model provider {self.name}: base_url must be an http or https URL, not {self.base_url!r}"
            )
        if self.proxy is not None and not _is_http(self.proxy):
            # Not repeated: it may hold a password.
            raise InvalidProvider(
                f"model provider {self.name}: its proxy must be an http:// or https:// URL, SOCKS is not "
                "spoken; set `proxy` in its table, or name its host in NO_PROXY"
            )
        if self.stream_idle_timeout_s <= 0:
            raise InvalidProvider(f"model provider {self.name}: stream_idle_timeout_ms must be above 0")
        if self.wire_api != "responses":
            raise InvalidProvider(
                f'model provider {self.name}: wire_api must be "responses", not {self.wire_api!r}'
            )

    @property
    def place(self) -> str:
        """Where it is, for error texts: its URL, and the proxy on the way."""
        if self.proxy is None:
            return self.base_url
        return f"{self.base_url} through the proxy {urlsplit(self.proxy).netloc.rpartition('@')[2]}"

    @property
    def responses_url(self) -> str:
        """The URL that every request of this provider is posted to."""
        url = f"{self.base_url.rstrip('/')}/responses"
        return f"{url}?{urlencode(self.query_params)}" if self.query_params else url


def _is_http(url: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme in ("http", "https") and bool(parts.hostname)


@dataclass(frozen=True, slots=True)
class ProviderSecrets:
    """Values that must not be printed: the key, and headers that came from the environment."""

    api_key: str | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)

    def redact(self, text: str) -> str:
        """`text` without any of the secrets: servers like to quote the key that they refuse."""
        for secret in (self.api_key, *self.headers.values()):
            if secret:
                text = text.replace(secret, "[redacted]")
        return text
