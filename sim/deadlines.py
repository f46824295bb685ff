"""Timers as the rules see them: who waits for one has it, and none ends anything before its time.

A session knows from its log what it waits for and under which generation. Redis knows when. Both are
looked at after every write, so a timer that was forgotten, or one that is left over, is
found in the commit that did it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from orchestrator.broker.redis_keys import Keys
from orchestrator.core.calls import AwaitWork, ClientToolWork, timer_of
from orchestrator.core.commit_parts import (
    BUDGET_TIMER,
    FOLDER_TIMER,
    REAP_BELOW_TIMER,
    RETRY_TIMER,
    approval_timer,
    wait_timer,
    watchdog_timer,
)
from orchestrator.core.entries import DENDRO, RESPONSE_ITEM, Entry
from orchestrator.core.state import State
from sim.commits import moment_ms
from sim.double import EPOCH_S, Double
from sim.reach import Reach

if TYPE_CHECKING:
    from sim.queued import Waiting
    from sim.seen import Seen

BARK = "watchdog:"
"""How the keys of a watchdog's letters begin; its generation follows the number of who set it."""
REPEATED = ("wait:", BARK)
"""Timers that must not be left behind: an await's would wake somebody for nothing, a watchdog's for ever."""
ROUNDED_MS = 2
"""A step's moment and a timer's are rounded, each to a millisecond."""


class Wanted(NamedTuple):
    """A timer that a state relies on; without a generation any of that name will do."""

    id: str
    generation: int | None
    at_ms: int | None = None
    after_ms: int | None = None
    """The time between the step that takes its generation and its moment."""


def wanted(state: State) -> Iterator[Wanted]:
    """Every deadline that the session waits for."""
    for dog in state.tree.watchdogs.values():
        yield Wanted(watchdog_timer(dog.agent_id), dog.generation, after_ms=dog.interval_ms)
    if state.workspace.unsaved is not None and not state.workspace.unsaved.trying:
        yield Wanted(FOLDER_TIMER, None)
    task = state.task
    if task is None or task.stopping:
        # A task that is being stopped waits for nothing any more; its end clears the timers that are left.
        return
    if state.tree.paused:
        yield Wanted(BUDGET_TIMER, None)
    if task.wait:
        yield Wanted(RETRY_TIMER, task.wait, task.not_before_ms)
    if task.waiting is not None and isinstance(wait := task.waiting.work, AwaitWork):
        yield Wanted(wait_timer(task.waiting.call_id), wait.timer, wait.until_ms)
    for call in task.requests:
        timer = timer_of(call.work)
        # People may be waited for without an end, a client that brings a tool never.
        if isinstance(work := call.work, ClientToolWork):
            yield Wanted(approval_timer(call.call_id), timer, after_ms=work.limit_ms)
        elif timer:
            yield Wanted(approval_timer(call.call_id), timer, after_ms=state.facts.approval_timeout_ms)
    for asked in task.open_elicitations:
        if asked.timer:
            yield Wanted(approval_timer(asked.id), asked.timer, after_ms=state.facts.approval_timeout_ms)


class Deadlines:
    """The rules of one simulation's timers."""

    def __init__(
        self,
        double: Double,
        keys: Keys,
        broken: Callable[[str, str], None],
        reach: Reach,
    ) -> None:
        self._reach = reach
        self._double = double
        self._keys = keys
        self._broken = broken
        self._stored: dict[str, dict[bytes, bytes]] = {}
        """Each session's timers as they were when it was looked at last."""
        self._armed: dict[tuple[str, int], float] = {}
        """When each generation of each session's timers is due, in Redis's milliseconds."""
        self._taken_ms: dict[tuple[str, int], float] = {}
        """When each was taken, by the step that did."""

    @property
    def now_ms(self) -> float:
        return self._double.now_s() * 1000

    def look(self, session: str, seen: Seen) -> None:
        """Every timer that the state waits for is set, and every set timer is waited for."""
        needs = {one.id: one for one in wanted(seen.state)}
        over = seen.state.closed or seen.state.tree.canceling
        if over and seen.state.tree.watchdogs:
            self._broken("watchdogs", f"{session} has ended, and its watchdogs have not")
        stored = self._double.hash(self._keys.timer(session))
        self._changed(session, seen, stored)
        for one in needs.values():
            self._set(session, seen, one, stored.get(one.id.encode()))
        if seen.state.workspace.unsaved is None and FOLDER_TIMER.encode() in stored:
            self._broken("timers", f"{session} has nothing unsaved, and its timer is set")
        for name, value in stored.items():
            id, generation = name.decode(), int(value.partition(b":")[0])
            stopping = seen.state.task is not None and seen.state.task.stopping
            if not id.startswith(REPEATED) or (stopping and not id.startswith(BARK)):
                continue
            if id not in needs or needs[id].generation != generation:
                self._broken("timers", f"{session}: {id} of generation {generation} is set for nobody")

    def _set(self, session: str, seen: Seen, one: Wanted, stored: bytes | None) -> None:
        generation = int(stored.partition(b":")[0]) if stored else None
        if generation is None or one.generation not in (None, generation):
            if not any(self._fired(entry, one) for entry in seen.queue):
                self._broken("timers", f"{session} waits for {one.id} ({one.generation}), which is not set")
            return
        due_ms = self._double.scored(self._keys.timers(self._keys.shard_of(session)), f"{session}:{one.id}")
        if due_ms is None or one.at_ms not in (None, int(due_ms)):
            self._broken("timers", f"{session}: {one.id} is due at {due_ms} instead of {one.at_ms}")
            return
        taken_ms = self._taken_ms.get((session, generation))
        if one.after_ms is not None and taken_ms is not None:
            self._reach.saw("intervals")
            if abs((lasts_ms := due_ms - taken_ms) - one.after_ms) > ROUNDED_MS:
                self._broken("timers", f"{session}: {one.id} is set for {lasts_ms} ms, not {one.after_ms}")
        self._armed[session, generation] = due_ms

    def _fired(self, entry: Waiting, one: Wanted) -> bool:
        named = entry.kind == "timer" and entry.id == one.id
        return named and one.generation in (None, entry.generation)

    def _changed(self, session: str, seen: Seen, stored: dict[bytes, bytes]) -> None:
        before, self._stored[session] = self._stored.get(session, stored), stored
        if before is stored:
            return
        fired = {entry.id for entry in seen.queue if entry.kind == "timer"}
        if any(name.decode() not in fired and stored.get(name) != was for name, was in before.items()):
            self._reach.saw("timers")

    def left(self, session: str, seen: Seen) -> set[str]:
        """Timers of a session at rest for which nothing waits."""
        # A look at agents below comes by itself, and ends.
        needs = {one.id for one in wanted(seen.state)} | {REAP_BELOW_TIMER}
        return {name.decode() for name in self._double.hash(self._keys.timer(session))} - needs

    def within(self, session: str, seconds: float) -> set[str]:
        """The session's timers that are due by then, and are not yet."""
        timers, now_ms = self._keys.timers(self._keys.shard_of(session)), self.now_ms
        ids = (name.decode() for name in self._double.hash(self._keys.timer(session)))
        due = ((id, self._double.scored(timers, f"{session}:{id}")) for id in ids)
        return {id for id, at in due if at is not None and now_ms < at < now_ms + seconds * 1000}

    # ── what deadlines end ────────────────────────────────────────────────────────────────────

    def entry(self, session: str, before: State, entry: Entry, line: bytes) -> None:
        """An entry of a log that says that a deadline has passed says so not before it has."""
        if entry.type == DENDRO and entry.payload["kind"] == "timer":
            self._taken_ms[session, entry.payload["generation"]] = moment_ms(line)
        if (generation := _ended_by_timer(before, entry)) is not None:
            self._reach.saw("early")
            if entry.type == RESPONSE_ITEM:
                self._reach.saw("awaits")
            elif entry.payload["kind"] == "answer":
                self._reach.saw("approval_expired")
            self._not_early(session, generation, str(entry.payload.get("kind", "an await")))

    def queued(self, entry: Waiting) -> None:
        """The same of a watchdog's letter."""
        if entry.kind == "mail" and entry.id.startswith(BARK):
            self._not_early(entry.sender, int(entry.id.rpartition(":")[2]), "a bark")

    def _not_early(self, session: str, generation: int, what: str) -> None:
        early_ms = self._armed.get((session, generation), 0.0) - self.now_ms
        if early_ms > 1.0 + 1000 * self._double.put_back_s:
            self._broken("early", f"{session}: {what} {early_ms:.0f} ms before its time")

    def overdue(self, state: State, peace_s: float) -> float:
        """For how many seconds an await should have ended by now, counted from the end of all faults."""
        for one in wanted(state):
            if one.id.startswith("wait:") and one.at_ms is not None:
                return self._double.clock_s - max(one.at_ms / 1000 - EPOCH_S, peace_s)
        return 0.0


def _ended_by_timer(before: State, entry: Entry) -> int | None:
    """The generation of the timer that an entry says has ended something."""
    task, payload = before.task, entry.payload
    if task is None:
        return None
    if entry.type == DENDRO and payload["kind"] == "retry_due":
        return task.wait
    if entry.type == DENDRO and payload["kind"] == "answer" and payload["who"] == "timer":
        call = task.call(payload["call_id"])
        return timer_of(call.work) if call is not None else None
    if entry.type == RESPONSE_ITEM and task.waiting is not None:
        timed_out = '"timed_out":true' in str(payload.get("output", ""))
        if timed_out and payload.get("call_id") == task.waiting.call_id:
            return timer_of(task.waiting.work)
    return None
