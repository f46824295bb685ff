"""Defects of commands that go on behind their calls."""

from __future__ import annotations

from orchestrator.core import outstanding
from orchestrator.core.decide import process, takeover, task_end
from sim.mutant import Mutant, text

DEFECTS = (
    Mutant(
        "an interrupt leaves processes alone",
        "what goes on behind its call is not killed with the turn",
        text(task_end, "stop", "if reason in KILLING:", "if False:"),
        "processes",
    ),
    Mutant(
        "processes of a lost worker live on",
        "a take-over does not record that the processes are gone",
        text(
            takeover,
            "took_over",
            "lose(draft, processes, WORKER_LOST, shown=command.shown)",
            "pass",
        ),
        "processes",
    ),
    Mutant(
        "a session is given back over its process",
        "a session with a process owes nothing, and its claim is released",
        text(outstanding, "_owed", "for one in state.processes.living", "for one in ()"),
        "processes",
    ),
    Mutant(
        "an end is told to the turn that runs",
        "the end of a process comes under the id of the task that meets it",
        text(process, "_over", "e.event(process.turn, over.end)", "e.event(draft.task_id, over.end)"),
        "processes",
    ),
)
