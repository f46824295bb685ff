"""Writes that Redis lost: by going back to an earlier moment, or with a primary that was left.

A part of `Watch` (`sim/watch.py`), which reads everything anew behind such a moment.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable

from sim.loop import SimLoop
from sim.requests import LATE_S
from sim.rights import TRUST_S


class Branches:
    """The branches of the logs that were left, by their times."""

    _loop: SimLoop

    def __init__(self) -> None:
        super().__init__()
        self.rewinds: list[tuple[float, float]] = []
        """(to, at): what was written between is lost."""
        self.forgot_s = -100.0
        """When Redis last forgot what it may not, and claims were worth less than they seem; no failover does
        that."""
        self.parted: Callable[[str], bool] | None = None
        """While there is a second primary, which nobody looks at: who still reaches the old one."""
        self.was_parted = False

    @abstractmethod
    def _read_anew(self, to_s: float) -> None:
        """Forgets what was read of the branch that is left, and reads what Redis holds now."""

    @property
    def went_back_s(self) -> float:
        """When Redis was last put back to an earlier moment, or somebody wrote to a primary that was left."""
        if self.parted is not None:
            return self._loop.time()
        return self.rewinds[-1][1] if self.rewinds else -100.0

    @property
    def late_s(self) -> float:
        """Until when somebody may go by what a primary was told that was left."""
        return self.went_back_s + TRUST_S + LATE_S if self.was_parted else -1.0

    def kept(self, at_s: float) -> bool:
        """Whether Redis still has what it wrote then."""
        return not any(to < at_s <= at for to, at in self.rewinds)

    def parts(self, to_s: float, stays: Callable[[str], bool]) -> None:
        """A replica was promoted, with what was written until then; the old primary lives on for others."""
        self.parted, self.was_parted = stays, True
        self._leaves(to_s)

    def is_one_again(self) -> None:
        """Writes to the old primary are lost: one primary is left."""
        self.parted = None
        now_s = self._loop.time()
        self.rewinds.append((now_s, now_s))

    def went_back(self, to_s: float) -> None:
        """Redis holds what it held at `to_s`, and may have lost what it must not."""
        self.forgot_s = self._loop.time()
        self._leaves(to_s)

    def _leaves(self, to_s: float) -> None:
        self.rewinds.append((to_s, self._loop.time()))
        self._read_anew(to_s)
