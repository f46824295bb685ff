"""Token accounting: what a response used, what a session used, how much of the window is left."""

from __future__ import annotations

from orchestrator.core.frozen import record
from orchestrator.protocol.events import TokenUsage
from orchestrator.protocol.wire import JsonMapping, JsonObject

BASELINE_TOKENS = 12_000
"""Tokens that every request spends on instructions and tools (the September 2025 specification)."""

AUTO_COMPACT_FRACTION = 0.9


@record
class Usage:
    """Tokens of one response, or the sum over a session."""

    input_tokens: int = 0
    cached_input_tokens: int = 0
    output_tokens: int = 0
    reasoning_output_tokens: int = 0
    total_tokens: int = 0

    @classmethod
    def of(cls, wire: JsonMapping) -> Usage:
        """From the wire's TokenUsage; absent counts are zero."""
        get = wire.get
        return cls(
            int(get("input_tokens") or 0),
            int(get("cached_input_tokens") or 0),
            int(get("output_tokens") or 0),
            int(get("reasoning_output_tokens") or 0),
            int(get("total_tokens") or 0),
        )

    def plus(self, other: Usage) -> Usage:
        return Usage(
            self.input_tokens + other.input_tokens,
            self.cached_input_tokens + other.cached_input_tokens,
            self.output_tokens + other.output_tokens,
            self.reasoning_output_tokens + other.reasoning_output_tokens,
            self.total_tokens + other.total_tokens,
        )

    def wire(self) -> TokenUsage:
        return TokenUsage(**self.counts())

    def counts(self) -> dict[str, int]:
        """The five counts by their names, as `wire` is written."""
        return {
            "input_tokens": self.input_tokens,
            "cached_input_tokens": self.cached_input_tokens,
            "output_tokens": self.output_tokens,
            "reasoning_output_tokens": self.reasoning_output_tokens,
            "total_tokens": self.total_tokens,
        }

    @property
    def blended_total(self) -> int:
        """Input that was not cached, plus output (the September 2025 specification)."""
        return max(0, self.input_tokens - self.cached_input_tokens) + self.output_tokens


@record
class Price:
    """The cost of one response, and the prices that it was reckoned by: dollars per million tokens.

    A response whose model had no price has none: its cost is unknown, and never zero.
    """

    cost_micro: int
    """Millionths of a dollar, rounded up."""
    input: float
    """Of input tokens that were not cached."""
    cached_input: float
    output: float

    @classmethod
    def read(cls, wire: JsonMapping | None) -> Price | None:
        """From the log's JSON; a price in whole dollars may stand there as an integer."""
        if wire is None:
            return None
        rates = (float(wire[name]) for name in ("input", "cached_input", "output"))
        return cls(int(wire["cost_micro"]), *rates)

    def wire(self) -> JsonObject:
        return {
            "cost_micro": self.cost_micro,
            "input": self.input,
            "cached_input": self.cached_input,
            "output": self.output,
        }


@record
class Served:
    """The server of a response, by the provider's own words; empty where it says nothing."""

    origin: str = ""
    """Scheme, host and port that the request went to: this is known, and not the provider's word."""
    model: str = ""
    """The model that answered, as a rule a dated version of the one that was asked for."""
    request_id: str = ""
    """The provider's id of the request, which its support asks for."""
    fingerprint: str = ""
    """The `system_fingerprint` of the provider's machines and settings."""

    @classmethod
    def read(cls, wire: JsonMapping | None) -> Served | None:
        """From the log's JSON."""
        if wire is None:
            return None
        get = wire.get
        return cls(*(str(get(name) or "") for name in ("origin", "model", "request_id", "fingerprint")))

    def wire(self) -> JsonObject:
        told = {
            "origin": self.origin,
            "model": self.model,
            "request_id": self.request_id,
            "fingerprint": self.fingerprint,
        }
        return {name: value for name, value in told.items() if value}


@record
class TokenInfo:
    """The session's sum and the last response's share of it."""

    total: Usage
    last: Usage

    def written(self, window: int | None) -> JsonObject:
        """The `TokenUsageInfo` of a model with this window, as JSON."""
        return {
            "total_token_usage": self.total.counts(),
            "last_token_usage": self.last.counts(),
            "model_context_window": window,
        }


def counted(info: TokenInfo | None, usage: Usage) -> TokenInfo:
    """The accounts after one more response."""
    return TokenInfo(info.total.plus(usage) if info else usage, usage)


def lost(info: TokenInfo | None, usage: Usage) -> TokenInfo:
    """The accounts after a response that failed: it used tokens, and tells nothing of the window."""
    return TokenInfo(info.total.plus(usage), info.last) if info else TokenInfo(usage, Usage())


def context_left(info: TokenInfo | None, window: int | None) -> float | None:
    """The share of the window that is still free, 0..1, the baseline not counted on either side."""
    if window is None or window <= BASELINE_TOKENS:
        return None
    used = max(0, (info.last.total_tokens if info else 0) - BASELINE_TOKENS)
    return max(0.0, 1.0 - used / (window - BASELINE_TOKENS))


def must_compact(info: TokenInfo | None, window: int | None, limit: int | None) -> bool:
    """Whether the last response filled the window up to the limit (default 90 % of it)."""
    if limit is None and window is not None:
        limit = int(window * AUTO_COMPACT_FRACTION)
    return info is not None and limit is not None and info.last.total_tokens >= limit
