"""Plans put to a person: the decision in any turn, and what it does to a planning session."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import orjson
import pytest

from orchestrator.core import commands as c
from orchestrator.core.calls import PlanWork
from orchestrator.core.calls.ask import APPROVED
from orchestrator.core.context import environment_context
from orchestrator.core.decide.call import NOT_RUN
from orchestrator.core.entries import item
from orchestrator.core.history import message_text
from orchestrator.core.modes import PLAN_TAG
from orchestrator.core.outstanding import OweRequest
from orchestrator.core.settings import Rules
from orchestrator.core.snapshot import decode, encode
from orchestrator.rollouts.session_summary import title
from orchestrator.runtime.model_request import build_prompt, known_response
from tests.core.driver import Seen, Session, assistant, op
from tests.core.test_core_branch import LEFT, planning, plans, purpose
from tests.core.test_core_earlier_turns import past
from tests.core.tree_driver import a_family, answers

STEPS = [{"step": "Read", "status": "pending"}, {"step": "Write", "status": "pending"}]
PLAN: Mapping[str, Any] = {"explanation": "Because.", "plan": STEPS}
PROPOSAL: Mapping[str, Any] = {"title": "Login", "summary": "Adds it.", "plan": PLAN}
TEXT = "Login\n\nAdds it.\n\nBecause.\n\n1. Read\n2. Write"


def proposes(session: Session, call_id: str = "c1") -> Seen:
    """A response that puts the plan to the person."""
    session.asks_for(call_id, name="approve_plan")
    return session.assessed(call_id, PlanWork(dict(PROPOSAL)))


def says(session: Session, type: str, target: str = "c1", client: str = "", **fields: Any) -> Seen:
    response = {"type": type, **fields}
    return session.submit(op("resolve_plan_approval", id=target, response=response), client=client)


def proposed(**fields: Any) -> Session:
    """A turn of the conversation whose plan waits for the person."""
    session = Session(**fields)
    session.say("go", "u1")
    proposes(session)
    return session


def proposed_beside(**fields: Any) -> Session:
    """A planning session whose plan waits for the person."""
    session = planning(**fields)
    proposes(session)
    return session


def output(session: Session, call_id: str = "c1") -> Any:
    return orjson.loads(session.output_of(call_id))


def pinned(session: Session) -> Any:
    return session.task.pinned


# ── the decision, in any turn ─────────────────────────────────────────────────────────────────


def test_plan_is_shown_and_nothing_is_owed_while_it_waits() -> None:
    session = proposed()
    request = session.seen[-1].one("plan_approval_request")
    assert (request["call_id"], request["proposal"]) == ("c1", dict(PROPOSAL))
    assert session.status == "awaiting_answer"
    assert session.owes() == ()
    assert orjson.loads(session.approvals["c1"].payload)["kind"] == "plan"
    assert decode(encode(session.state)) == session.state == session.replayed()


@pytest.mark.parametrize("target", ["c1", "u1"])
def test_approved_plan_is_shown_as_the_plan_in_force_and_the_turn_goes_on(target: str) -> None:
    session = proposed()
    seen = says(session, "approved", target)
    assert seen.types == ["background_event", "plan_update", "token_count"]
    assert seen.one("background_event")["message"] == APPROVED
    assert seen.one("plan_update") == {"type": "plan_update", "explanation": APPROVED, "plan": STEPS}
    assert output(session) == {"response": {"type": "approved"}}
    assert (session.owes(), session.approvals) == ((OweRequest(),), {})
    assert session.state.pinned is None, "only a planning session's plan is pinned"


def test_feedback_reaches_the_model_and_the_turn_goes_on() -> None:
    session = proposed()
    seen = says(session, "revised", feedback="shorter")
    assert seen.types == ["token_count"]
    assert output(session) == {"response": {"type": "revised", "feedback": "shorter"}}


@pytest.mark.parametrize(
    ("feedback", "told"),
    [(" \n", "feedback: it is blank; say what is to be changed"), ("x" * 40_000, "at most 32,768")],
)
def test_revision_that_says_nothing_or_too_much_leaves_the_plan_open(feedback: str, told: str) -> None:
    session = proposed()
    assert told in says(session, "revised", feedback=feedback).one("error")["message"]
    assert session.status == "awaiting_answer"


def test_other_op_is_told_the_right_one() -> None:
    session = proposed()
    told = session.decides("c1", "approved").one("error")["message"]
    assert told == "c1 is a plan: answer it with resolve_plan_approval"


def test_second_decision_that_differs_is_told_who_decided() -> None:
    session = proposed()
    says(session, "approved", client="ann")
    assert says(session, "approved").types == []
    assert "approved, by ann" in says(session, "rejected").one("error")["message"]


def test_plan_that_nobody_decides_on_in_time_is_rejected() -> None:
    session = proposed(facts={"approval_timeout_ms": 1_000})
    session.fires("approval:c1")
    assert output(session) == {"response": {"type": "rejected"}}
    assert session.state.answers[-1].who == "timer"


# ── the decision in a planning session ────────────────────────────────────────────────────────


def test_approved_plan_ends_the_session_and_joins_the_conversation() -> None:
    session = proposed_beside()
    seen = says(session, "approved", "p1")
    assert seen.types == [
        "background_event",
        "plan_update",
        "token_count",
        "exited_plan_mode",
        "agent_message",
        "task_complete",
    ]
    assert seen.one("exited_plan_mode")["plan_output"] == dict(PROPOSAL)
    assert seen.one("agent_message")["message"] == TEXT == seen.one("task_complete")["last_agent_message"]
    assert session.owes() == ()
    told, plan = [message_text(said) for said in session.state.history][-2:]
    assert told.startswith("The user ran a planning session for: Add login\n\nResult: the user approved")
    assert plan == TEXT
    assert session.state == session.replayed()
    assert decode(encode(session.state)) == session.state


def test_rejected_plan_ends_the_session_with_the_models_last_words() -> None:
    session = planning()
    session.begin()
    session.item(assistant("here is a plan"))
    session.calls("c1", name="approve_plan")
    session.ends()
    session.assessed("c1", PlanWork(dict(PROPOSAL)))
    seen = says(session, "rejected")
    assert seen.types == ["token_count", "exited_plan_mode", "task_complete"]
    assert seen.one("exited_plan_mode")["plan_output"] is None
    assert seen.one("task_complete")["last_agent_message"] == "here is a plan"
    assert session.texts()[-1] == LEFT
    assert session.state.pinned is None


def test_revised_plan_goes_on_with_the_feedback() -> None:
    session = proposed_beside()
    says(session, "revised", feedback="shorter")
    assert session.owes() == (OweRequest(),)
    proposes(session, "c2")
    assert "exited_plan_mode" in says(session, "approved", "c2").types


def test_call_behind_a_decided_plan_is_not_run() -> None:
    session = planning()
    session.begin()
    session.calls("c1", name="approve_plan")
    session.calls("c2")
    session.ends()
    session.assessed("c1", PlanWork(dict(PROPOSAL)))
    assert "exited_plan_mode" not in says(session, "approved").types
    before = session.state
    seen = session.runs("c2", "ls")
    assert seen.types[-1] == "task_complete"
    assert before.task is not None
    assert NOT_RUN in [joined.get("output") for joined in _joined(seen)]


def test_decision_while_the_response_streams_ends_the_session_behind_it() -> None:
    session = planning()
    session.begin()
    session.calls("c1", name="approve_plan")
    session.assessed("c1", PlanWork(dict(PROPOSAL)))
    says(session, "approved")
    assert session.ends().types[-1] == "task_complete"


@pytest.mark.parametrize("breaks", ["stream", "fatal", "limited", "worker"])
def test_response_that_breaks_behind_the_decision_is_not_asked_for_again(breaks: str) -> None:
    session = planning()
    session.begin()
    session.calls("c1", name="approve_plan")
    session.assessed("c1", PlanWork(dict(PROPOSAL)))
    says(session, "approved")
    seen = session.is_taken_over() if breaks == "worker" else session.breaks(breaks, delay_ms=60_000)
    assert seen.types == ["token_count", "exited_plan_mode", "agent_message", "task_complete"]
    assert session.timers == {}


def test_response_that_broke_before_the_decision_is_not_asked_for_again() -> None:
    session = planning()
    session.begin()
    session.calls("c1", name="approve_plan")
    session.assessed("c1", PlanWork(dict(PROPOSAL)))
    session.breaks("limited", delay_ms=60_000)
    assert says(session, "approved").types[-1] == "task_complete"
    assert (session.timers, session.owes()) == ({}, ())


def test_interrupt_behind_an_approval_does_not_lose_the_plan() -> None:
    session = planning()
    session.begin()
    session.calls("c1", name="approve_plan")
    session.assessed("c1", PlanWork(dict(PROPOSAL)))
    says(session, "approved")
    session.interrupt()
    seen = session.stopped()
    assert seen.types == ["exited_plan_mode", "agent_message", "turn_aborted"]
    assert session.state.pinned == dict(PROPOSAL)


def test_interrupt_while_the_plan_waits_withdraws_it() -> None:
    session = proposed_beside()
    seen = session.interrupt()
    assert seen.types == ["exited_plan_mode", "turn_aborted"]
    assert (session.approvals, session.state.pinned) == ({}, None)


# ── the pin ───────────────────────────────────────────────────────────────────────────────────


def approved(**fields: Any) -> Session:
    session = proposed_beside(**fields)
    says(session, "approved")
    return session


def test_plan_is_shown_to_the_next_task_of_a_person_until_that_ends() -> None:
    session = approved()
    session.say("go", "u2")
    assert pinned(session) == dict(PROPOSAL)
    assert session.state.pinned is None
    session.asks_for("c9")
    session.is_taken_over()
    assert pinned(session) == dict(PROPOSAL)
    assert decode(encode(session.state)) == session.state == session.replayed()
    session.assessed("c9", c.Immediate("ok"))
    session.answers("done")
    session.say("more", "u3")
    assert pinned(session) is None


def test_compaction_neither_takes_the_plan_nor_loses_it() -> None:
    session = approved()
    session.compact("k1")
    assert pinned(session) is None
    session.begin()
    session.item(assistant("sum"))
    session.ends()
    assert session.state.pinned == dict(PROPOSAL)
    session.say("go", "u2")
    assert pinned(session) == dict(PROPOSAL)


def test_plan_outlives_a_compaction_of_the_turn_that_it_is_shown_to() -> None:
    session = approved()
    session.rules = Rules(auto_compact_limit=100)
    session.say("go", "u2")
    session.begin()
    assert purpose(session) == "compact"
    assert not [text for text in _shown(session) if text.startswith(PLAN_TAG)], "it needs no summary"
    session.item(assistant("sum"))
    session.ends()
    assert pinned(session) == dict(PROPOSAL)


def test_plan_is_shown_behind_a_compaction_and_a_turn_of_mail_that_the_person_goes_on_from() -> None:
    tree, (child,) = a_family()
    root = tree.root
    root.answers("they work on it")
    plans(root)
    proposes(root)
    says(root, "approved")
    root.compact("k1")
    root.answers("sum")
    answers(child)
    tree.settle()
    root.answers("I see", "resp-mail")
    assert root.state.pinned == dict(PROPOSAL)
    root.say("go", "u9", last_response_id="resp-mail")
    assert pinned(root) == dict(PROPOSAL)


def test_input_that_is_replaced_at_once_takes_no_plan() -> None:
    session = approved()
    plans(session, id="p2")
    session.begin()
    session.say("one", "u2")
    session.say("two", "u3")
    session.stopped()
    while session.task.id != "u3":
        session.ends_all()
        session.stopped()
    assert pinned(session) == dict(PROPOSAL)


def test_second_plan_replaces_the_first() -> None:
    session = approved()
    plans(session, id="p2")
    session.asks_for("c2", name="approve_plan")
    session.assessed("c2", PlanWork({**PROPOSAL, "title": "Other"}))
    says(session, "approved", "c2")
    assert session.state.pinned is not None
    assert session.state.pinned["title"] == "Other"


def _back(session: Session) -> None:
    session.submit(op("thread_rollback", num_turns=1))


def _to_the_turn_before(session: Session) -> None:
    session.say("again", "u2", last_response_id="resp-hello")


@pytest.mark.parametrize("goes_back", [_back, _to_the_turn_before])
def test_conversation_that_goes_back_behind_a_plan_leaves_it(goes_back: Callable[[Session], None]) -> None:
    session = approved()
    goes_back(session)
    if session.state.task is None:
        session.say("go", "u3")
    assert pinned(session) is None
    assert TEXT not in session.texts()


def test_conversation_that_goes_back_to_before_a_compaction_leaves_the_plan_behind() -> None:
    session = approved()
    session.compact("k1")
    session.begin()
    session.item(assistant("sum"))
    session.ends()
    assert session.state.pinned == dict(PROPOSAL)
    session.say("instead", "u2", last_response_id="resp-hello")
    session.happens(c.LookedUp("|u2", past=past(session, "resp-hello")))
    assert session.task.id == "u2"
    assert pinned(session) is None


def _shown(session: Session) -> list[str]:
    """The texts of the request that is in flight."""
    assert session.task.request is not None
    prompt = build_prompt(session.state, session.task.request, (), session.text_of)
    return [message_text(shown) for shown in prompt.input]


def test_every_turn_of_the_task_shows_the_plan_behind_the_first_context_and_no_other_does() -> None:
    session = Session()
    session.record(item(environment_context({"cwd": "/repo"})))
    session.say("hello", "u1")
    session.answers("hi", "resp-1")
    plans(session)
    proposes(session)
    says(session, "approved")
    session.say("go", "u2")
    session.begin()
    assert session.task.request is not None
    assert known_response(session.state, session.task.request) is None
    first = _shown(session)
    assert first[1].startswith(f"{PLAN_TAG}\nThe user approved this plan")
    assert TEXT in first[1]
    assert first[2:] == ["hello", "hi", *first[4:6], "go"]
    session.calls("c9")
    session.ends("resp-2")
    session.assessed("c9", c.Immediate("ok"))
    session.begin()
    assert _shown(session)[1] == first[1]
    session.answers_now("done", "resp-3")
    session.say("more", "u3")
    session.begin()
    assert not [text for text in _shown(session) if text.startswith(PLAN_TAG)]
    known = known_response(session.state, session.task.request)
    assert known is not None
    assert known.id == "resp-1", "no provider has a conversation with the plan in it"


def _joined(seen: Seen) -> list[Mapping[str, Any]]:
    return [entry.payload for entry in seen.entries if entry.type == "response_item"]


def test_session_that_only_planned_is_listed_by_its_goal() -> None:
    session = Session()
    plans(session, "Add login\n\nResult: a page")
    session.answers("no plan")
    assert title(session.state) == "Add login Result: a page"
