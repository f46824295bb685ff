"""A rule about the commands that begin with certain words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from orchestrator.core.frozen import record

Decision = Literal["allow", "prompt", "forbidden"]


@record
class PrefixRule:
    """A rule; each place of its pattern has the words that fit there.

    `confined`: a command that it allows is not asked about, and stays in its sandbox.
    """

    pattern: tuple[frozenset[str], ...]
    decision: Decision = "allow"
    justification: str = ""
    confined: bool = False

    def means(self, words: Sequence[str]) -> bool:
        """Whether a command begins with the pattern."""
        if len(words) < len(self.pattern):
            return False
        return all(word in fitting for word, fitting in zip(words, self.pattern, strict=False))
