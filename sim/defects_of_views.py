"""Defects of meaning in what people are shown, and in what comes of a submission."""

from __future__ import annotations

from typing import Any

from orchestrator.core.decide import agent_calls, call, ops
from orchestrator.views import thread_pages
from orchestrator.views.turns.open_turn import OpenTurn
from orchestrator.views.turns.projector import Projector
from sim.mutant import Mutant, text


def _of(name: str, wrong: str, workload: str, plant: Any, test: str = "") -> Mutant:
    return Mutant(name, wrong, plant, workload, test)


DEFECTS = (
    _of(
        "words in front of earlier ones",
        "words that join a turn between two calls are shown before those that joined while the first one ran",
        "texts",
        text(OpenTurn, "hears", "if self.held or any(", "if any("),
        test="tests/views/turns/test_projector.py"
        "::test_words_that_join_between_calls_stand_behind_those_that_joined_while_one_ran",
    ),
    _of(
        "interrupted is told as failed",
        "the calls of a turn that was interrupted are told as failed ones",
        "turns",
        text(
            Projector,
            "_ends",
            "r.ItemStatus.INTERRUPTED if status is r.TurnStatus.INTERRUPTED else r.ItemStatus.FAILED",
            "r.ItemStatus.FAILED",
        ),
    ),
    _of(
        "pages of items repeat one",
        "the page that begins at an item's place has that item again",
        "turns",
        text(thread_pages, "_behind", '(cursor.side == "before") == (asked.direction == "asc")', "True"),
    ),
    _of(
        "late answers meet silence",
        "who answers what is not open any more is told nothing",
        "approvals",
        text(call, "_hold_against_earlier", "if earlier != reply.said:", "if False:"),
    ),
    _of(
        "a name that was never given",
        "clients are told a session's name as it was typed, and lists show it trimmed",
        "single",
        text(ops, "_set_name", "thread_name=shown", 'thread_name=f"{name} "'),
    ),
    _of(
        "grandchildren of nobody",
        "an agent's own agents are told another agent as the one above their maker",
        "tree",
        text(
            agent_calls,
            "_child_session",
            "grandparent_session=draft.state.facts.parent_session",
            "grandparent_session=draft.state.facts.grandparent_session",
        ),
    ),
)
