"""The states that workers hold and that snapshots keep are the folds of their logs."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.broker.redis_keys import Keys
from orchestrator.core.snapshot import decode_snapshot, encode, encode_snapshot
from orchestrator.core.state import State
from orchestrator.runtime.runner import Runner
from sim.double import Double
from sim.observer import TreeObserver


class LiveState:
    """The states of sessions outside of their logs."""

    def __init__(self, watch: TreeObserver, double: Double, keys: Keys) -> None:
        self._watch = watch
        self._double = double
        self._keys = keys

    def snapshot(self, session: str) -> None:
        """The snapshot that a resume would begin with is the fold of the log up to the snapshot."""
        watch, seen = self._watch, self._watch.sessions[session]
        data = self._double.look("GET", self._keys.snapshot(session))
        # The canonical form decides: one of this version is compared as it was written.
        if data == encode_snapshot(seen.state, seen.seq, seen.head, watch.secret):
            watch.reach.saw("snapshot_compared")
            return
        try:
            found = decode_snapshot(data, watch.secret)
        except ValueError as error:
            watch.broken("live_state", f"{session}: its snapshot is of no use: {error}")
            return
        if found is None or found[1] != seen.seq:
            return
        if found[2] != seen.head or not _same(found[0], seen.state):
            watch.broken("live_state", f"{session}: the snapshot at {seen.seq} is not the log's state")
        watch.reach.saw("snapshot_compared")

    def worker_ends(self, runners: Sequence[Runner]) -> None:
        """A worker is about to die, or the simulation to end: the states of its runners are compared."""
        for runner in runners:
            self.compare(runner)

    def compare(self, runner: Runner) -> None:
        """The runner's state is the log's, if the runner knows as much as the log says by now."""
        position = getattr(runner._journal, "position", None)
        session = str(runner.claim.session)
        seen = self._watch.sessions.get(session)
        if position is None or seen is None or (position.seq, position.head) != (seen.seq, seen.head):
            return
        self._watch.reach.saw("live_state")
        if not _same(position.state, seen.state):
            self._watch.broken("live_state", f"{session} at {seen.seq}: the worker's state is not the log's")


def _same(one: State, other: State) -> bool:
    # The canonical form decides; mostly it need not be asked.
    return one == other or encode(one) == encode(other)
