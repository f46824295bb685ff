"""An absence of Redis, told once when it begins and once when it is over.

Everything that asks Redis meets the absence by itself, many times a second. The connections of a process
tell this record of failures and answers, from any thread; people get two lines.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

QUIET_S = 5.0
"""Seconds after an absence in which the next is not reported: a connection that comes and goes is no news."""


@dataclass(slots=True)
class Outage:
    """The absence of one deployment, as far as its connections met it."""

    say: Callable[[str], None]
    monotonic: Callable[[], float]
    until: str = "until it answers"
    """The time for which requests are repeated, in the words of the first line."""
    missing: dict[str, float] = field(default_factory=dict)
    """Parts that do not answer (the one server, or slots of a cluster by their tag), and since when."""
    told: bool = False
    """Whether the absence was reported, so that nothing else needs to report it."""
    _over_at: float = float("-inf")
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def lost(self, part: str, error: Exception) -> None:
        """Notes that a request was not answered."""
        now = self.monotonic()
        with self._lock:
            self.missing.setdefault(part, now)
            if self.told or now - self._over_at < QUIET_S:
                return
            self.told = True
        self.say(f"Redis is away ({error}); asking again {self.until}")

    def back(self, part: str) -> None:
        """Notes that a request was answered. Called for each answer while something is missing."""
        now = self.monotonic()
        with self._lock:
            since = self.missing.pop(part, None)
            if since is None or self.missing:
                return
            told, self.told, self._over_at = self.told, False, now
        if told:
            self.say(f"Redis is back, after {now - since:.0f} s")
