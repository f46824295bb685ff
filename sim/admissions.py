"""Requests admitted to a provider that allows so much a minute, counted for the whole fleet."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from orchestrator.model.prompt import Prompt
from sim.accounts import MODEL_SETTINGS, texts_in, written_in

MINUTE_S = 60.0
EARLY_S, MOST_EARLY = 0.2, 6
"""A lost answer makes a worker ask before the time; nothing makes it ask all the time."""
CLOCK_S = 0.001
"""Resolution of the clock that Redis shows: whole milliseconds."""


class Admissions:
    """Counts by the commands that took effect, not by what the scripts keep of them."""

    def __init__(self, now_s: Callable[[], float], broken: Callable[[str, str], None]) -> None:
        self._now_s = now_s
        self._broken = broken
        self._times: list[float] = []
        self._tokens: list[tuple[float, int]] = []
        """Time and tokens of each admission, and of each correction once the usage was known."""
        self.total = 0
        self._told: dict[str, tuple[float, int]] = {}
        """Until when each ticket is to wait, and how often it asked before that."""
        self._let_through: dict[str, int] = {}
        """The tokens for which each ticket was let through last."""

    def asked(self, args: Sequence[Any], wait_ms: int) -> None:
        """A call of `admit` took effect, and is to wait for so long; whoever has not heard it asks again."""
        ticket, now_s = str(args[3 + int(args[2])]), self._now_s()
        until_s, times = self._told.get(ticket, (0.0, 0))
        times += now_s < until_s - EARLY_S
        if times > MOST_EARLY:
            self._broken("limits", f"{ticket} asks again and again, and is to wait until {until_s:.1f}")
        self._told[ticket] = now_s + wait_ms / 1000, times

    def admitted(self, args: Sequence[Any]) -> None:
        """A call of `admit` was answered OK."""
        first, now_s = 3 + int(args[2]), self._now_s()
        tokens, requests_allowed, tokens_allowed = (int(arg) for arg in args[first + 1 : first + 4])
        self.total += 1
        self._let_through[str(args[first])] = tokens
        self._times.append(now_s)
        self._tokens.append((now_s, tokens))
        if requests_allowed:
            self._in_time(((began_s, 1) for began_s in self._times), requests_allowed, "requests")
        if tokens_allowed:
            # A request larger than a minute's worth goes when a whole minute is saved, and leaves a debt.
            self._in_time(self._tokens, tokens_allowed, "tokens", max(0, tokens - tokens_allowed))

    def sends(self, prompt: Prompt) -> None:
        """A request leaves that was let through with all that it says, and with a full answer."""
        tokens = self._let_through.pop(prompt.session_id, None)
        if tokens is None:
            return
        said, answer = (prompt.instructions, prompt.input, prompt.tools), MODEL_SETTINGS.max_output_tokens
        least, most = (sum(map(count, said)) // 4 + answer for count in (texts_in, written_in))
        if not least <= tokens <= most:
            told = f"{prompt.session_id} was let through with {tokens} tokens, of {least} to {most}"
            self._broken("limits", told)

    def settled(self, args: Sequence[Any]) -> None:
        """A call of `settle` was answered OK."""
        first = 3 + int(args[2])
        self._tokens.append((self._now_s(), int(args[first + 1]) - int(args[first])))

    def _in_time(self, amounts: Iterable[tuple[float, int]], allowed: int, what: str, debt: int = 0) -> None:
        """Whether no stretch of time up to now had more than its share, and a minute's worth saved before."""
        total, now_s = 0, self._now_s()
        for began_s, amount in reversed([*amounts]):
            total += amount
            lasted_s = now_s - began_s
            if total > allowed * (1.0 + (lasted_s + CLOCK_S) / MINUTE_S) + debt + 1e-3:
                told = f"{total} {what} in {lasted_s:.1f} s, where {allowed} a minute are allowed"
                self._broken("limits", told)

    def went_back(self) -> None:
        """Redis has forgotten some of what was let through."""
        self._times.clear()
        self._told.clear()
        self._let_through.clear()
        self._tokens.clear()
