"""The table of a call's phases: what it leads to may happen, and nothing else."""

from __future__ import annotations

from itertools import product

import pytest

from orchestrator.core import entries as e
from orchestrator.core import facts as f
from orchestrator.core.evolve import evolve
from orchestrator.core.state import Call, IllegalTransition, Phase
from orchestrator.protocol.ids import CallId
from tests.core.driver import Session, function_call

PROPOSED, AWAITING, WAITING, RUNNING, DONE = Phase
LEGAL = {
    (PROPOSED, AWAITING),
    (PROPOSED, WAITING),
    (PROPOSED, RUNNING),
    (PROPOSED, DONE),
    (AWAITING, RUNNING),
    (AWAITING, DONE),
    (WAITING, DONE),
    (RUNNING, AWAITING),
    (RUNNING, PROPOSED),
    (RUNNING, DONE),
}


@pytest.mark.parametrize(("before", "after"), [*product(Phase, Phase)])
def test_call_moves_by_the_table_only(before: Phase, after: Phase) -> None:
    call = Call(CallId("c1"), "shell", function_call("c1"), before)
    if (before, after) in LEGAL:
        assert call.moved(after, {}).phase is after
        return
    with pytest.raises(IllegalTransition, match=f"{before}, it cannot become {after}"):
        call.moved(after, {})
    assert call.phase is before


def test_entry_that_the_table_forbids_does_not_fold() -> None:
    session = Session()
    session.say("go")
    session.asks_for("c1")
    session.runs("c1")
    before = session.state
    with pytest.raises(IllegalTransition):
        evolve(session.state, e.fact(f.CallMoved(CallId("c1"), Phase.RUNNING)), 99)
    assert session.state == before


def test_entry_of_a_task_where_none_holds_the_session_does_not_fold() -> None:
    with pytest.raises(ValueError, match="no task holds the session"):
        evolve(Session().state, e.fact(f.CallMoved(CallId("c1"), Phase.RUNNING)), 99)
