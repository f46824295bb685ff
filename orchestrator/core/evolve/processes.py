"""`evolve` for what a session knows of its processes."""

from __future__ import annotations

from typing import assert_never

from orchestrator.core import facts as f
from orchestrator.core.frozen import replace
from orchestrator.core.processes import MOST_PROCESSES, EndedProcess, Process, Processes


def evolve_processes(known: Processes, fact: f.ProcessFact) -> Processes:
    """The processes after a fact about one of them."""
    match fact:
        case f.ProcessNumbered(number):
            return replace(known, taken=max(known.taken, number))
        case f.ProcessKept():
            return replace(known, living=(*known.living, _begun(fact)))
        case f.ProcessesStopping(numbers):
            named = frozenset(numbers)
            marked = (replace(one, stopping=True) if one.number in named else one for one in known.living)
            return replace(known, living=tuple(marked))
        case f.ProcessOver(number, exit_code, unread):
            left = known.without(number)
            if exit_code is None:
                return left
            ended = (*left.ended, EndedProcess(number, exit_code, unread))[-MOST_PROCESSES:]
            return replace(left, ended=ended)
        case f.ProcessRead(number):
            return replace(known, ended=tuple(one for one in known.ended if one.number != number))
        case _:
            assert_never(fact)


def _begun(fact: f.ProcessKept) -> Process:
    return Process(
        fact.number,
        fact.call_id,
        fact.turn,
        fact.command,
        fact.cwd,
        fact.epoch,
        fact.rights,
        fact.tty,
        fact.sandboxed,
    )
