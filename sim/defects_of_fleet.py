"""Defects of what a session's and a root's hash say for lists."""

from __future__ import annotations

from orchestrator.runtime import journal
from sim.mutant import Mutant, text

DEFECTS = (
    Mutant(
        "turn that was stopped counts as going on",
        "a session's hash names the last turn that was completed, and none that was aborted behind it",
        text(
            journal.Step,
            "_append",
            'encoded.entry.payload["type"] in _TURN_ENDS',
            'encoded.entry.payload["type"] == "task_complete"',
        ),
        "single",
    ),
    Mutant(
        "turn's end is the end of its step",
        "a session's hash names the last entry of the step in which its turn ended",
        text(journal.Step, "_append", "self.ended_seq = seq", "self.ended_seq = seq + 1"),
        "single",
    ),
)
