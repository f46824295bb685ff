"""Defects of what becomes of a submission that cannot be decided."""

from __future__ import annotations

from typing import Any

from orchestrator.core.decide.draft import Note
from orchestrator.runtime import runner, step
from sim.mutant import Mutant, both, swapped


def _claims_only(real: Any) -> Any:
    """The claim ends, however often the submission was tried."""
    return lambda max_tries: 10**6


def _nothing(real: Any) -> Any:
    return lambda command, error, state: Note()


DEFECTS = (
    Mutant(
        "a defect is tried for ever",
        "a submission whose decision raises goes from worker to worker, and its session is never at rest",
        both(swapped(step, "tries", _claims_only), swapped(runner, "tries", _claims_only)),
        "undecidable",
    ),
    Mutant(
        "a defect drops its submission",
        "a submission whose decision raises is consumed without an `error`",
        swapped(step, "instead_of", _nothing),
        "undecidable",
    ),
)
