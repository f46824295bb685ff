"""Token arithmetic of the September 2025 specification."""

from __future__ import annotations

import pytest

from orchestrator.protocol.usage import BASELINE_TOKENS, TokenUsage


def test_cached_input_is_not_counted_in_the_blended_total() -> None:
    usage = TokenUsage(input_tokens=100, cached_input_tokens=40, output_tokens=7)
    assert usage.blended_total() == 67


def test_more_cached_than_sent_counts_as_no_input() -> None:
    assert TokenUsage(input_tokens=1, cached_input_tokens=5, output_tokens=2).blended_total() == 2


def test_usages_add_up_field_by_field() -> None:
    one = TokenUsage(
        input_tokens=1, cached_input_tokens=2, output_tokens=3, reasoning_output_tokens=4, total_tokens=5
    )
    assert one.plus(one) == TokenUsage(
        input_tokens=2, cached_input_tokens=4, output_tokens=6, reasoning_output_tokens=8, total_tokens=10
    )


@pytest.mark.parametrize(
    ("total", "reasoning", "left"),
    [(0, 0, 1.0), (BASELINE_TOKENS, 0, 1.0), (62_000, 0, 0.5), (62_000, 50_000, 1.0), (500_000, 0, 0.0)],
)
def test_the_context_left_sets_the_baseline_aside(total: int, reasoning: int, left: float) -> None:
    usage = TokenUsage(total_tokens=total, reasoning_output_tokens=reasoning)
    assert usage.context_left(112_000) == left


def test_a_window_smaller_than_the_baseline_has_nothing_left() -> None:
    assert TokenUsage().context_left(BASELINE_TOKENS) == 0.0
