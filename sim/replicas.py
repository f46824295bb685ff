"""The primary's replica, and the primary that lives on when it is promoted.

Only in seeds where replicas are asked (`effects = "wait"`). What a replica has confirmed it has; of what was
written later it may lack everything. A failover promotes it: the double goes back to what it has, and is the
primary from then on. For a while the old one lives on in a second double, with the machines that still reach
it: it confirms nothing to them, and what they write is lost. Nobody looks at it but they.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from sim.double import Double

PEOPLE_STAY = 0.25
"""How likely somebody who is no worker still reaches the old primary."""


class Replicas:
    """Confirmations of writes, and the primary that each machine reaches."""

    def __init__(self, double: Double, now_s: Callable[[], float], rng: Random, likely: float) -> None:
        self._double = double
        self._now_s = now_s
        self._rng = rng
        self._likely = likely
        """How likely a write is confirmed in time."""
        self.has_s = 0.0
        """The time until which all writes were confirmed."""
        self._era = 0
        """Grows when servers take each other's places: no answer is owed from before."""
        self.left: Double | None = None
        """The primary that was cut off from its replica, while it lives."""
        self._stay: dict[str, bool] = {}

    def server(self, machine: str) -> Double:
        """The primary that a machine reaches."""
        return self.left if self.left is not None and self.stays(machine) else self._double

    def stays(self, machine: str) -> bool:
        """Whether a machine reaches the old primary, and not the new one."""
        if self.left is None:
            return False
        if machine not in self._stay:
            self._stay[machine] = machine[0] == "p" and self._rng.random() < PEOPLE_STAY
        return self._stay[machine]

    def asked(self, server: Double, wanted: int, patience_s: float) -> tuple[Callable[[], int], float]:
        """WAIT: what is to be answered (called then), and after how many seconds."""
        wrote_s, era = self._now_s(), self._era
        if server is self.left or self._rng.random() >= self._likely:
            return lambda: 0, patience_s

        def confirms() -> int:
            if era != self._era:
                return 0
            self.has_s = max(self.has_s, wrote_s)
            return wanted

        return confirms, self._rng.choice((0.001, 0.05, 0.5)) * self._rng.random()

    def went_back(self, to_s: float) -> None:
        """Primary and replica have an older copy."""
        self.has_s = min(self.has_s, to_s)
        self._era += 1

    def fails_over(self, stay: dict[str, bool], behind_s: float) -> float:
        """The replica is promoted, which is so far behind; the old primary serves those that stay.

        Returns until when all that was written is there.
        """
        to_s = max(self.has_s, self._now_s() - behind_s)
        self.left, self._stay = self._double.second(), dict(stay)
        self._double.restore(sum(at <= to_s for at, _ in self._double.journal))
        self._era += 1
        return to_s

    def heals(self) -> None:
        """The old primary is a replica of the new one from now on, and what was written to it is gone."""
        self.left = None
        self._stay = {}
        self._era += 1
