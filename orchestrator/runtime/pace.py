"""How fast a worker works: claims, turns and tokens of each pool over the last minute, for its heartbeat."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from orchestrator.broker.records import Settlement
from orchestrator.broker.worker_state import Pace

OVER_S = 60.0


@dataclass(slots=True)
class _Counted:
    claims: int = 0
    turns: int = 0
    tokens: int = 0


@dataclass(slots=True)
class Paces:
    """The counts of one worker, by pool."""

    clock: Callable[[], float]
    _counts: dict[str, _Counted] = field(default_factory=dict)
    _marks: deque[tuple[float, dict[str, _Counted]]] = field(default_factory=deque)
    """Counts between marks, with the time when each mark was set."""

    def __post_init__(self) -> None:
        self._marks.append((self.clock(), self._counts))

    def claimed(self, pool: str) -> None:
        self._of(pool).claims += 1

    def settled(self, pool: str, settlements: Sequence[Settlement]) -> None:
        """Counts model requests that have ended; one whose end nobody saw has no tokens that are known."""
        counted = self._of(pool)
        counted.turns += len(settlements)
        counted.tokens += sum(one.used.tokens for one in settlements if one.used is not None)

    def _of(self, pool: str) -> _Counted:
        return self._counts.setdefault(pool, _Counted())

    def take(self) -> dict[str, Pace]:
        """The paces of the pools that had any work within the last minute or so; begins a new mark."""
        now = self.clock()
        while len(self._marks) > 1 and self._marks[1][0] <= now - OVER_S:
            self._marks.popleft()
        over_s = max(now - self._marks[0][0], 1.0)
        paces = {pool: self._pace(pool, over_s) for _, counts in self._marks for pool in counts}
        self._counts = {}
        self._marks.append((now, self._counts))
        return paces

    def _pace(self, pool: str, over_s: float) -> Pace:
        found = [counts[pool] for _, counts in self._marks if pool in counts]
        return Pace(
            claims_per_s=round(sum(one.claims for one in found) / over_s, 2),
            turns_per_s=round(sum(one.turns for one in found) / over_s, 2),
            tokens_per_min=round(sum(one.tokens for one in found) * 60 / over_s),
        )
