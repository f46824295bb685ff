"""The tokens of a response, as a server reports them, in the TokenUsage wire shape. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from orchestrator.core.frozen import record

MOST_TOKENS: Final = 10**12
"""More than any response has; a server that counts more, or less than none, is not believed."""


@record
class UsageNames:
    """The names that a wire format has for the counts."""

    input: str
    output: str
    input_details: str
    output_details: str

    def read(self, usage: Any) -> Mapping[str, int] | None:
        """The token usage; None where the server does not report it, or reports impossible figures.

        A request without usage counts as its reservation: never as less than nothing.
        """
        if not isinstance(usage, dict):
            return None
        try:
            input_tokens, output_tokens = _count(usage, self.input), _count(usage, self.output)
            cached = _count(usage.get(self.input_details) or {}, "cached_tokens")
            reasoning = _count(usage.get(self.output_details) or {}, "reasoning_tokens")
            total = _count(usage, "total_tokens") or input_tokens + output_tokens
        except (ValueError, OverflowError, TypeError, AttributeError):
            return None
        return {
            "input_tokens": input_tokens,
            "cached_input_tokens": min(cached, input_tokens),
            "output_tokens": output_tokens,
            "reasoning_output_tokens": reasoning,
            "total_tokens": total,
        }


def _count(counts: Any, name: str) -> int:
    """A number of tokens, 0 where it is left out; raises for what no response can have used."""
    value = counts.get(name) or 0
    if isinstance(value, bool) or int(value) != value or not 0 <= value <= MOST_TOKENS:
        raise ValueError(f"{name} is no number of tokens")
    return int(value)
