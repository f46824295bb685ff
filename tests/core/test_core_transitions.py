"""The tables of states: what they lead to may happen, and nothing else."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from orchestrator.core import entries as e
from orchestrator.core import facts as f
from orchestrator.core.calls import Call, IllegalTransition, Phase
from orchestrator.core.commands import Moment
from orchestrator.core.decide.draft import Draft
from orchestrator.core.evolve import evolve
from orchestrator.core.state import AGENT, TASK, TaskPhase, task_phase
from orchestrator.protocol.ids import CallId
from tests.core.driver import Session, function_call
from tests.states_page import page

PROPOSED, AWAITING, WAITING, ASKING, RUNNING, DONE = Phase
LEGAL = {
    (PROPOSED, AWAITING),
    (PROPOSED, WAITING),
    (PROPOSED, ASKING),
    (PROPOSED, RUNNING),
    (PROPOSED, DONE),
    (AWAITING, RUNNING),
    (AWAITING, DONE),
    (WAITING, DONE),
    (ASKING, DONE),
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


def _draft(session: Session) -> Draft:
    return Draft(session.state, Moment(session.now_ms, session.epoch, session.seq))


def test_rule_that_begins_a_request_of_a_task_that_is_being_stopped_raises() -> None:
    session = Session()
    session.say("go")
    session.begin()
    session.interrupt()
    draft = _draft(session)
    draft.add(f.Ending("over"))
    with pytest.raises(IllegalTransition, match="a task is ending, it cannot become stopping"):
        draft.add(f.Ending(""))


def test_rule_that_starts_a_cancelled_agent_again_raises() -> None:
    draft = _draft(Session())
    draft.add(f.AgentChanged({"status": "canceled"}))
    with pytest.raises(IllegalTransition, match="an agent is canceled, it cannot become running"):
        draft.add(f.AgentChanged({"status": "running"}))


def test_every_phase_of_a_task_and_an_agent_can_be_reached_and_left() -> None:
    reached = {now for later in TASK.values() for now in later}
    assert reached == {None, *TaskPhase} == set(TASK)
    assert {now for later in AGENT.values() for now in later} | {"queued"} == set(AGENT)


def test_task_passes_through_the_phases_of_a_turn() -> None:
    session = Session()
    seen = [session.state.task]
    session.say("go")
    seen.append(session.state.task)
    session.begin()
    seen.append(session.state.task)
    session.item(function_call("c1"))
    session.ends()
    seen.append(session.state.task)
    session.runs("c1")
    session.finishes("c1")
    seen.append(session.state.task)
    phases = [None if task is None else task_phase(task) for task in seen]
    assert phases == [None, *(TaskPhase(name) for name in ("owing", "requesting", "calling", "turn_over"))]


def test_page_of_states_is_not_stale() -> None:
    docs = Path(__file__).parent.parent.parent / "docs"
    assert (docs / "states.md").read_text() == page(), "run: python -m tests.states_page > docs/states.md"
