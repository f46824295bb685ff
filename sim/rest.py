"""A simulation's director asks: which sessions rest, which are waited for, what happens next by itself.

A part of `Watch` (`sim/watch.py`), which knows the sessions.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import orjson

from orchestrator.broker.redis_keys import Keys
from orchestrator.broker.replies import number_of
from sim.deadlines import Deadlines
from sim.double import EPOCH_S, Double
from sim.loop import SimLoop

if TYPE_CHECKING:
    from sim.archive_moves import ArchiveMoves
    from sim.jobs import Jobs
    from sim.seen import Seen


A = TypeVar("A")


class Rest:
    """Questions about sessions and timers as Redis has them now."""

    sessions: dict[str, Seen]
    keys: Keys
    peace_s: float
    deadlines: Deadlines
    archive_moves: ArchiveMoves
    jobs: Jobs
    _double: Double
    _loop: SimLoop

    def __init__(self) -> None:
        super().__init__()
        self._answers: dict[str, tuple[int, object, Any]] = {}
        """Answers by their question, each with the writes and the sessions that it was true of."""

    @property
    @abstractmethod
    def redis_s(self) -> float:
        """The time that Redis's clock shows, counted from the beginning."""

    def _of_writes(self, question: str, answered: Callable[[], A]) -> A:
        """An answer that nothing but a write to Redis changes: the same one until there is one."""
        known = self._answers.get(question)
        if known is None or known[0] != self._double.writes or known[1] is not self.sessions:
            known = self._answers[question] = self._double.writes, self.sessions, answered()
        answer: A = known[2]
        return answer

    def quarantined(self) -> list[str]:
        """Sessions that nobody may hold until somebody readmits them."""
        return [
            session
            for session in self.sessions
            if self._double.hash(self.keys.session(session)).get(b"quarantined") == b"1"
        ]

    def leased(self) -> bool:
        """Whether anybody holds a session, or does a job."""
        return bool(self.jobs.left()) or any(
            self._double.scored(self.keys.leases(self.keys.shard_of(session), seen.pool), session) is not None
            for session, seen in self.sessions.items()
        )

    def keeps_all_events(self, session: str) -> bool:
        """Whether the session's event queue still begins with its first event."""
        kept = self._double.stream_after(self.keys.eq(session), 0)
        return bool(kept) and number_of(kept[0][0]) == 1

    def idle(self) -> bool:
        """Whether nobody holds a session and none is due: whatever happens next is a timer or a person."""
        return self._of_writes("idle", self._is_idle)

    def _is_idle(self) -> bool:
        return not self.leased() and not any(
            self._double.scored(self.keys.due(self.keys.shard_of(session), seen.pool), session) is not None
            for session, seen in self.sessions.items()
        )

    def next_deadline_s(self) -> float | None:
        """The simulated time of the earliest timer that is set."""
        shards = range(self.keys.shards)
        set_ms = [at for shard in shards for at in self._double.members(self.keys.timers(shard)).values()]
        wrong_s = self.redis_s - self._loop.time()
        return min(set_ms) / 1000 - EPOCH_S - wrong_s if set_ms else None

    def latest_timer_s(self) -> float:
        """How long ago the earliest timer should have fired."""
        deadline_s = self.next_deadline_s()
        return 0.0 if deadline_s is None else self._loop.time() - max(deadline_s, self.peace_s)

    def late_awaits(self) -> list[str]:
        """Sessions with an await that has outlived its deadline, though all faults are over.

        One that is due, or was just taken, waited for a worker with room, whose commands may take long.
        """
        return [
            f"{session}: an await is {late_s:.0f} s behind its deadline"
            for session, seen in self.sessions.items()
            if not seen.queue
            and (late_s := self.deadlines.overdue(seen.state, self.peace_s)) > 30.0
            and self._double.scored(self.keys.due(self.keys.shard_of(session), seen.pool), session) is None
        ]

    def resting(self) -> list[str]:
        """Sessions that are not at rest, each with the reason."""
        return [*self.archive_moves.left(), *self.jobs.left(), *self._of_writes("resting", self._unfinished)]

    def _unfinished(self) -> list[str]:
        found = [f"{session} is quarantined" for session in self.quarantined()]
        for session, seen in self.sessions.items():
            shard = self.keys.shard_of(session)
            for place in ("due", "leases"):
                key = getattr(self.keys, place)(shard, seen.pool)
                if self._double.scored(key, session) is not None:
                    found.append(f"{session} is in {place}")
            if seen.state.tree.watchdogs:
                found.append(f"{session} keeps watchdogs")
            told = orjson.loads(self._double.hash(self.keys.session(session)).get(b"meta") or b"{}")
            if told.get("seq", seen.seq) != seen.seq:
                found.append(
                    f"{session} is listed as it was at {told['seq']}, and its log ends at {seen.seq}"
                )
            if seen.state.workspace.unsaved is not None:
                found.append(f"{session} has a folder whose changes are not stored")
            if seen.state.task is not None:
                found.append(f"{session} has the task {seen.state.task.id} ({seen.state.status})")
        return found
