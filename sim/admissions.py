"""What was let through to a provider that allows so much a minute, to the whole fleet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

MINUTE_S = 60.0


class Admissions:
    """Counts by the commands that took effect, not by what the scripts keep of them."""

    def __init__(self, now_s: Callable[[], float], broken: Callable[[str, str], None]) -> None:
        self._now_s = now_s
        self._broken = broken
        self._times: list[float] = []
        self.total = 0

    def admitted(self, args: Sequence[Any]) -> None:
        """A call of `admit` was answered OK."""
        first = 3 + int(args[2])
        allowed, now_s = int(args[first + 2]), self._now_s()
        self.total += 1
        self._times.append(now_s)
        if not allowed:
            return
        for count, began_s in enumerate(reversed(self._times), 1):
            # A minute's worth may have been saved up.
            most = allowed * (1.0 + (now_s - began_s) / MINUTE_S)
            if count > most + 1e-3:
                told = f"{count} requests in {now_s - began_s:.1f} s, where {allowed} a minute are allowed"
                self._broken("limits", told)

    def went_back(self) -> None:
        """Redis has forgotten some of what was let through."""
        self._times.clear()
