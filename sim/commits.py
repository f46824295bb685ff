"""Steps as Redis was given them: each once, and dated by Redis's own clock."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

from orchestrator.broker.scripts import load
from sim.double import EPOCH_S, Double
from sim.reach import Reach

_NAMES = [taken.name for taken in load("commit").takes.items]
ID, BASE, FIELDS, CLAIM = map(_NAMES.index, ("commit_id", "expect_commit", "fields", "claim"))
"""Places among the arguments of `commit`: its id, the id before it, the list behind the single values, and
the claim."""
DRIFT_S = 0.1
"""By so much two clocks may part while a machine is stopped, and hears nothing of Redis's time."""
LONG_S = 300.0
_STAMP = slice(len('{"timestamp":"'), len('{"timestamp":"2027-01-15T08:00:00.000Z'))


def arguments(args: Sequence[Any]) -> Sequence[Any]:
    """Arguments of a script, behind its keys."""
    return args[3 + int(args[2]) :]


def reply_fields(script: str, reply: Sequence[Any]) -> Any:
    """The fields of a script's reply by the names of its head."""
    return load(script).gives.read(reply)[1]


def commit_id(args: Sequence[Any]) -> str:
    return str(arguments(args)[ID])


def without_entries(args: Sequence[Any]) -> bool:
    """Whether a commit leaves the log as it is."""
    given = arguments(args)
    return int(given[FIELDS + 1 + 2 * int(given[FIELDS])]) == 0


class Commits:
    """The rules of what is committed, and when it says that it was.

    One answer no campaign came by, `FENCED head`: see `docs/simulator.md`.
    """

    def __init__(
        self, now_s: Callable[[], float], double: Double, broken: Callable[[str, str], None], reach: Reach
    ) -> None:
        self._now_s = now_s
        self._double = double
        self._broken = broken
        self._reach = reach
        self._accepted: defaultdict[str, list[tuple[float, str]]] = defaultdict(list)
        """The ids of each session's commits, in their order."""

    def judged(self, session: str, args: Sequence[Any], code: bytes) -> None:
        """A commit was written, refused or had lost texts: it was on top of the last one, or is the last."""
        known, identity = self._accepted[session], commit_id(args)
        last = known[-1][1] if known else ""
        if identity == last:
            return
        if (base := str(arguments(args)[BASE])) != last:
            told = f"commit {identity}, which follows {base!r}, was taken for one that follows {last!r}"
            self._broken("written_once", f"{session}: {told}")
        if code == b"OK":
            known.append((self._now_s(), identity))

    def went_back(self, to_s: float) -> None:
        """Forgets commits that were accepted since `to_s`; they may come again."""
        for session, known in self._accepted.items():
            self._accepted[session] = [one for one in known if one[0] <= to_s]

    def dated(self, session: str, seq: int, line: bytes) -> None:
        """An entry was written; its line begins with the time at which its step was decided."""
        at_s = _moment_s(line[_STAMP])
        now_s = self._double.clock_s
        if now_s > LONG_S:
            self._reach.saw("dated")
        if at_s > now_s + DRIFT_S + self._double.put_back_s:
            self._broken(
                "dated", f"{session}, entry {seq}: dated {at_s - now_s:.3f} s ahead of Redis's clock"
            )


def moment_ms(line: bytes) -> int:
    """The time at which the step of an entry's line was decided, as Redis's clock counts."""
    return round((_moment_s(line[_STAMP]) + EPOCH_S) * 1000)


@lru_cache(maxsize=16)  # all entries of a step are dated alike
def _moment_s(stamp: bytes) -> float:
    return datetime.fromisoformat(stamp.decode()).timestamp() - EPOCH_S
