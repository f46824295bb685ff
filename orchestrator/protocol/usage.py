"""Tokens used and rate limits left, as `token_count` reports them."""

from __future__ import annotations

from orchestrator.protocol.wire import Int, Maybe, Number, Source, Uint, WireModel


class TokenUsage(WireModel):
    """Tokens of one response, or of a session's responses together."""

    input_tokens: Uint = 0
    cached_input_tokens: Uint = 0
    output_tokens: Uint = 0
    reasoning_output_tokens: Uint = 0
    total_tokens: Uint = 0


class TokenUsageInfo(WireModel):
    """The session's sum, the last response, and the window that they are measured against."""

    total_token_usage: TokenUsage
    last_token_usage: TokenUsage
    model_context_window: Uint | None = None


class RateLimitWindow(WireModel):
    """A window of a provider's rate limit."""

    stated_in = Source.RECORDED
    used_percent: Number
    window_minutes: Maybe[Uint] = None
    resets_in_seconds: Maybe[Uint] = None
    resets_at: Maybe[Int] = None


class RateLimitSnapshot(WireModel):
    """The provider's limits as its headers told them; both `null` without headers."""

    stated_in = Source.RECORDED
    primary: RateLimitWindow | None = None
    secondary: RateLimitWindow | None = None
