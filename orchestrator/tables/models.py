"""Settings of models: their providers, their prices, and what a worker knows of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from orchestrator.tables.base import Secret, Table, conflict, named, setting, unfit
from orchestrator.tables.sessions import Effort


class ProviderSettings(Table):
    """A model provider: a table `[model_providers.NAME]`. Never leaves the worker."""

    id: str

    name: str = setting("")
    """Name for people."""

    base_url: str = setting("", checked=True)
    """Root of the API, with its version: `https://host/v1`. Required; `OPENAI_BASE_URL` sets that of
    `openai`."""

    env_key: str | None = setting(None, shown_default="none: no key is sent")
    """Environment variable that holds the API key."""

    env_key_instructions: str = setting("")
    """The text for a person when that variable is empty."""

    auth: Literal["env", "login"] = setting("env")
    """`"env"`: the key of the variable `env_key`. `"login"`: that of the sign-in which the worker's user made
    through a door (`account/login/start`), whatever the environment holds."""

    wire_api: Literal["responses", "chat"] = setting("responses")
    """Protocol: the Responses API (`POST {base_url}/responses`), or chat completions (`POST
    {base_url}/chat/completions`), which most servers of open models speak."""

    query_params: Mapping[str, str] = setting({}, hidden=True)
    """Added to every URL."""

    http_headers: Mapping[str, str] = setting({}, hidden=True)
    """Added to every request."""

    env_http_headers: Mapping[str, str] = setting({})
    """Header → environment variable that holds its value; left out when that is empty."""

    request_max_retries: int = setting(4, at_least=0, at_most=100)
    """Repetitions of an HTTP request after 429, 5xx or a failed connection, silent."""

    stream_max_retries: int = setting(5, at_least=0, at_most=100)
    """Repetitions after a stream that broke off, each announced by `stream_error`."""

    stream_idle_timeout_s: float = setting(300.0, "stream_idle_timeout_ms", milliseconds=True, at_least=0.001)
    """Milliseconds without a byte after which a stream counts as broken."""

    max_response_bytes: int = setting(64 << 20, at_least=1 << 20)
    """Longest stream that one request may bring, in bytes. A longer one is cut off and fails its task: it
    is not tried again, because it would be paid for again."""

    connect_timeout_s: float = setting(15.0, at_least=0.1)
    """Seconds to wait for a connection."""

    proxy: str | None = setting(
        None, hidden=True, shown_default="`HTTPS_PROXY`, `HTTP_PROXY`, unless `NO_PROXY` says so"
    )
    """HTTP proxy on the way, `http://` or `https://`. Those of the environment are not used for loopback
    addresses."""

    ca_file: Path | None = setting(None, shown_default="`SSL_CERT_FILE`, else the built-in authorities")
    """PEM file of the authorities to trust, for the provider and for a proxy that is reached by `https://`."""

    previous_response_id: bool = setting(False)
    """Send only what is new and name the response before. Only for providers that store responses."""

    supports_reasoning_effort: bool = setting(False)
    """With `wire_api = "chat"`: send `model_reasoning_effort` as `reasoning_effort`. Off, because servers
    whose model does not reason refuse it."""

    developer_role: Literal["system", "developer", "user"] = setting("system")
    """With `wire_api = "chat"`: the role of the messages that are neither the person's nor the model's, such
    as an agent's part in its tree. `"user"` for models whose template takes one system message alone."""

    parallel_tool_calls: bool = setting(False)
    """Let the model ask for several calls in one response: for trees that make many agents at once. Off, as
    with the recorded Codex; not every model of a provider takes it."""

    requests_per_minute: int | None = setting(None, at_least=1, shown_default="no limit")
    """Requests per minute of the whole fleet."""

    tokens_per_minute: int | None = setting(None, at_least=1, shown_default="no limit")
    """Tokens per minute of the whole fleet."""

    api_key: Secret | None = Field(None, repr=False)
    """Value of the variable that `env_key` names."""

    secret_headers: Mapping[str, str] = Field({}, repr=False)
    """Resolved `env_http_headers`."""

    @field_validator("base_url")
    @classmethod
    def _is_url(cls, url: str) -> str:
        try:
            parts = urlsplit(url)
            usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            usable = False
        if not usable:
            raise unfit("an http:// or https:// URL")
        return url.rstrip("/")

    @model_validator(mode="after")
    def _keeps_what_it_names(self) -> Self:
        if self.wire_api == "chat" and self.previous_response_id:
            allowed = 'false with wire_api = "chat": chat completions keep no responses'
            raise conflict(f"model_providers.{self.id}.previous_response_id", "true", allowed)
        return self


class ModelPrice(Table):
    """The cost of a model: a table `[model_prices."NAME"]`, in dollars per million tokens."""

    input: float = setting(0.0, at_least=0)
    """Input tokens that were not cached."""

    cached_input: float = setting(0.0, at_least=0)
    """Cached input tokens."""

    output: float = setting(0.0, at_least=0)
    """Output tokens, reasoning included."""


class ModelSettings(Table):
    """Models: what the worker knows of them and of their providers."""

    context_window: int | None = setting(
        None,
        "model_context_window",
        folder="free",
        at_least=1,
        shown_default="272,000 for `gpt-5*`, 200,000 for `codex-mini-latest`, `o3*` and `o4-mini*`, "
        "1,047,576 for `gpt-4.1*`, 128,000 for `gpt-4o*`",
    )
    """Tokens that the configured model can read. Unknown models have none: no share of it is shown, and
    nothing is compacted automatically."""

    auto_compact_token_limit: int | None = setting(
        None, "model_auto_compact_token_limit", folder="free", at_least=1, shown_default="90 % of the window"
    )
    """Tokens of a turn after which the history is compacted."""

    max_output_tokens: int = setting(16_000, "model_max_output_tokens", folder="up", at_least=1)
    """Tokens reserved for an answer when a budget is checked before the request."""

    plan_model: str | None = setting(None, "plan_model", folder="free", shown_default="the session's model")
    """Model of planning sessions (`plan`), and of the helpers that draft variants for them."""

    plan_effort: Effort | None = setting(
        None, "plan_reasoning_effort", folder="free", shown_default="the session's"
    )
    """How much that model thinks."""

    show_raw_reasoning: bool = setting(False, "show_raw_agent_reasoning", folder="free")
    """Tell clients the raw reasoning of models that give it away (`agent_reasoning_raw_content`)."""

    review_model: str | None = setting(None, "review_model", folder="free", shown_default="the session's")
    """Model of code reviews."""

    model: str = "gpt-5"
    provider: str = "openai"
    providers: Mapping[str, ProviderSettings] = {}
    prices: Mapping[str, ModelPrice] = {}

    _named = field_validator("plan_model", "review_model")(named)
