"""Tokens used and rate limits left, as `token_count` reports them."""

from __future__ import annotations

from orchestrator.protocol.wire import Int, Maybe, Number, Source, Uint, WireModel

BASELINE_TOKENS = 12_000
"""The tokens of the fixed prompt in every window; not counted as used by the person."""


class TokenUsage(WireModel):
    """Tokens of one response, or of a session's responses together."""

    input_tokens: Uint = 0
    cached_input_tokens: Uint = 0
    output_tokens: Uint = 0
    reasoning_output_tokens: Uint = 0
    total_tokens: Uint = 0

    def plus(self, other: TokenUsage) -> TokenUsage:
        """Both together, field by field."""
        return TokenUsage(
            input_tokens=self.input_tokens + other.input_tokens,
            cached_input_tokens=self.cached_input_tokens + other.cached_input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            reasoning_output_tokens=self.reasoning_output_tokens + other.reasoning_output_tokens,
            total_tokens=self.total_tokens + other.total_tokens,
        )

    def blended_total(self) -> int:
        """Input that was not cached, and output: what a person is shown as the cost."""
        return max(0, self.input_tokens - self.cached_input_tokens) + self.output_tokens

    def context_left(self, window: int) -> float:
        """The share of the window still free, 0..1, `BASELINE_TOKENS` left out on both sides.

        Reasoning is not sent back to the model, so it takes no room.
        """
        room = window - BASELINE_TOKENS
        if room <= 0:
            return 0.0
        used = max(0, self.total_tokens - self.reasoning_output_tokens - BASELINE_TOKENS)
        return max(0, room - used) / room


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
