"""Copies of a session beside its log: snapshots, and the rollout's file.

Both follow the log and can be made again from it. The runner decides when one is due, and what becomes of
the claim when a snapshot shows that it is over.
"""

from __future__ import annotations

from pathlib import Path

from orchestrator.broker.records import Fenced, Stored, StoredEntry
from orchestrator.core.snapshot import encode_snapshot
from orchestrator.rollouts.objects import ArchiveUnavailable
from orchestrator.rollouts.rollout_file import RolloutFile
from orchestrator.rollouts.segments import BrokenArchive
from orchestrator.runtime.journal import Step
from orchestrator.runtime.loader import Loaded, Weight
from orchestrator.runtime.log import log
from orchestrator.runtime.runner_context import RunnerContext


class Copies:
    """How far the copies of one session have come, and what of its log they still lack."""

    def __init__(self, context: RunnerContext) -> None:
        self._context = context
        self._snapshot_seq = context.claimed.snapshot_seq
        self._unexported: list[StoredEntry] = []
        self._weight: Weight | None = None

    def begin(self, loaded: Loaded) -> None:
        self._unexported = list(loaded.unexported)
        self._weight = loaded.weight
        if not loaded.snapshot_used:
            self._snapshot_seq = 0

    def committed(self, step: Step) -> None:
        """Notes the entries of a step that is in the log now, and in no copy."""
        epoch, first = self._context.claim.epoch, step.base.seq + 1
        self._unexported += [
            StoredEntry(seq, epoch, entry.payload, entry.salt, entry.chain)
            for seq, entry in enumerate(step.entries, first)
        ]
        if self._weight is not None:
            more = sum(len(entry.payload) for entry in step.entries)
            self._weight = Weight(self._weight.counted, self._weight.since + more)

    def left(self) -> Loaded:
        """The position that the session's next runner may begin with, if it runs in this process."""
        return Loaded(self._context.journal.position, tuple(self._unexported), weight=self._weight)

    def snapshot_due(self, seq: int) -> bool:
        return seq - self._snapshot_seq >= self._context.config.log.snapshot_every

    async def snapshot(self) -> bool:
        """Stores a snapshot; False if the claim is over, or Redis went back behind its last commit."""
        context, position = self._context, self._context.journal.position
        claim, broker = context.claim, context.ports.broker
        seq = position.seq
        key = context.config.chain_key
        data = encode_snapshot(position.state, seq, position.head, key.secret if key else b"")
        stored = await context.writing.insist(lambda: broker.commits.snapshot(claim, seq, data))
        if isinstance(stored, Stored):
            self._snapshot_seq = seq
        elif stored is not None and (isinstance(stored, Fenced) or stored.reason == "ahead"):
            log.warning("session %s was lost: its snapshot of entry %d was refused", claim.session, seq)
            return False
        return True

    async def export(self) -> str | None:
        """Brings the rollout's file to where the log stands; answers why it could not.

        The session goes on without its file: the log has everything, and the next attempt writes the rest.
        """
        position, claim = self._context.journal.position, self._context.claim
        path = position.state.facts.rollout_path
        if not path or not position.state.native:
            self._unexported.clear()
            return None
        key = self._context.config.chain_key
        file = RolloutFile(Path(path), claim.session, claim.tree, key.secret if key else b"")
        try:
            through = await file.bring_up_to(self._context.ports, position, self._unexported)
        except (OSError, BrokenArchive, ArchiveUnavailable) as error:
            log.warning("session %s: its file was not brought up to date: %s", claim.session, error)
            # It may be long until it can be; what it lacks is read from the log then.
            self._unexported.clear()
            return str(error)
        self._unexported = [entry for entry in self._unexported if entry.seq > through]
        return None
