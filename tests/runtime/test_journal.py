"""Steps of several decisions, and drafts of several wishes: the last word counts."""

from __future__ import annotations

import pytest

from orchestrator.core.chain import GENESIS
from orchestrator.core.commands import Moment
from orchestrator.core.commit_parts import Approval, Timer
from orchestrator.core.decide.draft import Decision, Draft, Metered
from orchestrator.core.entries import EVENT_MSG, Entry, encode_entry
from orchestrator.core.facts import RequestDelayed, RequestFailed, RequestStopped
from orchestrator.core.state import State
from orchestrator.protocol import events
from orchestrator.protocol.wire import JsonObject
from orchestrator.rollouts.session_summary import Position
from orchestrator.runtime.journal import Step, Writer
from tests.core.driver import USAGE

NOON_MS = 1_800_000_000_000
STATE = State()
BARK = Timer("watchdog:1", 1, NOON_MS + 2_000)

ASKED = Approval("c1", b'{"call_id":"c1","turn":"u1"}')


def a_step(*decisions: Decision) -> Step:
    step = Step(Position(STATE, 0, GENESIS), Writer(1, bytes), NOON_MS)
    for decision in decisions:
        step.take(decision)
    return step


def test_step_does_not_set_a_timer_that_a_later_decision_of_it_clears() -> None:
    step = a_step(Decision(STATE, timers_set=(BARK,)), Decision(STATE, timers_clear=(BARK.id,)))
    assert step.timers_set == []
    assert step.timers_clear == [BARK.id], "one of an earlier step may still be there"


def test_step_sets_a_timer_that_an_earlier_decision_of_it_cleared() -> None:
    step = a_step(Decision(STATE, timers_clear=(BARK.id,)), Decision(STATE, timers_set=(BARK,)))
    assert step.timers_set == [BARK]


def test_step_does_not_ask_people_what_a_later_decision_of_it_has_settled() -> None:
    step = a_step(Decision(STATE, approvals_open=(ASKED,)), Decision(STATE, approvals_close=("c1",)))
    assert step.approvals_open == []
    assert step.approvals_close == ["c1"], "one of an earlier step may still be there"


def test_step_asks_people_again_what_an_earlier_decision_of_it_has_settled() -> None:
    step = a_step(Decision(STATE, approvals_close=("c1",)), Decision(STATE, approvals_open=(ASKED,)))
    assert [asked.key for asked in step.approvals_open] == ["c1"]


def test_step_settles_each_request_that_its_decisions_have_ended() -> None:
    ends = (RequestStopped(1, usage=USAGE), RequestFailed(2), RequestDelayed(3))
    step = a_step(
        Decision(STATE, requests=tuple(Metered(end, STATE) for end in ends[:2])),
        Decision(STATE, requests=(Metered(ends[2], STATE),)),
    )
    assert step.budget is not None
    assert [settled.request for settled in step.budget.settlements] == ["1", "2", "3"]


def test_draft_does_not_set_a_timer_that_it_clears_afterwards() -> None:
    draft = Draft(STATE, Moment(NOON_MS, 1, 0))
    draft.set_timer(BARK.id, BARK.at_ms)
    draft.clear_timer(BARK.id)
    decision = draft.decision()
    assert decision.timers_set == ()
    assert decision.timers_clear == (BARK.id,)


@pytest.mark.parametrize(
    "end", [events.task_complete("done"), {"type": "turn_aborted", "reason": "interrupted"}]
)
def test_step_names_its_last_entry_that_ends_a_turn(end: JsonObject) -> None:
    said = encode_entry(Entry(EVENT_MSG, {"type": "agent_message", "message": "done"}, "t1"), NOON_MS, {})
    ended = encode_entry(Entry(EVENT_MSG, end, "t1"), NOON_MS, {})
    assert a_step(Decision(STATE, entries=(said,))).ended_seq is None
    step = a_step(Decision(STATE, entries=(said, ended)), Decision(STATE, entries=(ended, said)))
    assert (step.ended_seq, step.position.seq) == (3, 4)
