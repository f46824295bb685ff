"""Redis's clock, borne out by this process's own: how much time has certainly passed for a lease.

A lease is counted by the clock of the server that gave it. That clock may be set while leases run (NTP
steps it, a replica with another one is promoted), and a lease would seem to have run out before its holder
stops. So a process believes only what its own clock bears out: Redis's time is at most this clock's plus
the smallest difference of the two that it has seen in the last `memory_s`, which covers a lease. A step
forward thus delays, by as much and for that long, what is taken because of an expiry. A process that has
watched for a shorter time takes nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

NEVER_BOUNDED = (1 << 53) - 1
"""Later than any clock shows."""
_APART_S = 0.5
"""Looks that are nearer to each other count as one."""


class Witness:
    """The readings of one server's clock that one process took."""

    def __init__(self, monotonic: Callable[[], float], memory_s: float) -> None:
        self._monotonic = monotonic
        self._memory_s = memory_s
        self._seen: deque[tuple[float, float]] = deque()
        """(when, by how much Redis's clock was ahead at least), the first from before what is remembered."""

    def note(self, now_ms: int) -> None:
        """Notes the time that an answer of Redis carried: it was read before this moment."""
        if not self._memory_s:
            return
        at = self._monotonic()
        ahead = now_ms / 1000 - at
        if self._seen and at - self._seen[-1][0] < _APART_S:
            when, before = self._seen[-1]
            self._seen[-1] = when, min(before, ahead)
        else:
            self._seen.append((at, ahead))
        while len(self._seen) > 1 and self._seen[1][0] <= at - self._memory_s:
            self._seen.popleft()

    def certain_ms(self) -> int:
        """The time by Redis's clock up to which leases have certainly run out; 0 if nothing is certain."""
        if not self._memory_s:
            return NEVER_BOUNDED
        at = self._monotonic()
        if not self._seen or at - self._seen[0][0] < self._memory_s:
            return 0
        return int((at + min(ahead for _, ahead in self._seen)) * 1000)
