"""Questions to a person: what an answer has to be like, who may give it, and what settles an ask."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
import pytest

from orchestrator.core import commands as c
from orchestrator.core.calls import CallWork, Phase, QuestionWork, UserInputWork
from orchestrator.core.calls.ask import CANCELLED, MOST_TEXT_BYTES, DoesNotAnswer, digest_of
from orchestrator.core.outstanding import OweRequest
from orchestrator.core.settings import Rules
from orchestrator.core.snapshot import decode, encode
from orchestrator.protocol.ids import CallId
from tests.core.driver import Seen, Session, a_command, a_patch, op, text
from tests.core.tree_driver import Agent, a_family

AUTH: Mapping[str, Any] = {
    "question": "Which one?",
    "header": "Auth",
    "options": [{"label": "A", "description": "a"}, {"label": "B", "description": "b"}],
    "multiSelect": False,
}
TOGETHER = Rules(parallel_safe=frozenset({"ask_user_question", "request_user_input"}))


def questions(*headers: str) -> QuestionWork:
    return QuestionWork(tuple({**AUTH, "header": header} for header in headers or ("Auth",)))


def inputs(*ids: str) -> UserInputWork:
    shown = {"header": "Where", "question": "Where to?", "isOther": True, "isSecret": False}
    return UserInputWork(tuple({"id": id, **shown} for id in ids or ("place",)))


def asking(work: CallWork | None = None, client: str = "", **fields: Any) -> Session:
    """A session whose call `c1` of task `u1` waits for words of a person."""
    session = Session(**fields)
    session.submit(op("user_input", items=[text("go")]), "u1", client=client)
    session.asks_for("c1", name="ask_user_question")
    asked = work or questions()
    assert isinstance(asked, QuestionWork | UserInputWork)
    session.assessed("c1", asked)
    return session


def replies(session: Session, target: str, answers: Mapping[str, str], **fields: Any) -> Seen:
    response = {"type": "answered", "answers": answers}
    return session.submit(op("resolve_ask_user_question", id=target, response=response), **fields)


def cancels(session: Session, target: str = "c1", **fields: Any) -> Seen:
    response = {"type": "cancelled"}
    return session.submit(op("resolve_ask_user_question", id=target, response=response), **fields)


def puts_in(session: Session, target: str, answers: Mapping[str, list[str]], **fields: Any) -> Seen:
    response = {"answers": {id: {"answers": texts} for id, texts in answers.items()}}
    return session.submit(op("user_input_answer", id=target, response=response), **fields)


def output(session: Session, call_id: str = "c1") -> str:
    found: str = session.output_of(call_id)
    return found


def test_questions_are_shown_with_the_calls_id_in_camel_case_and_nothing_is_owed_meanwhile() -> None:
    session = asking()
    request = session.seen[-1].one("ask_user_question_request")
    assert (request["callId"], request["questions"]) == ("c1", [dict(AUTH)])
    assert session.status == "awaiting_answer"
    assert session.owes() == ()
    assert orjson.loads(session.approvals["c1"].payload)["kind"] == "question"


@pytest.mark.parametrize("target", ["c1", "u1"])
def test_answer_by_call_id_or_turn_id_is_the_calls_output_in_the_order_of_the_questions(target: str) -> None:
    session = asking(questions("Auth", "Store"))
    replies(session, target, {"Store": "B", "Auth": "A, my own"})
    assert output(session) == '{"answers":{"Auth":"A, my own","Store":"B"}}'
    assert session.owes() == (OweRequest(),)
    assert session.approvals == {}
    assert session.state == session.replayed()


def test_cancelled_questions_tell_the_model_so_and_the_turn_goes_on() -> None:
    session = asking()
    cancels(session)
    assert output(session) == CANCELLED
    assert session.owes() == (OweRequest(),)


@pytest.mark.parametrize(
    ("answers", "told"),
    [
        ({}, "no answer to 'Auth'"),
        ({"Auth": "A", "Autor": "B"}, "nothing was asked under 'Autor'"),
        ({"Auth": " \n"}, "the answer to 'Auth' is empty"),
        ({"Auth": "x" * (MOST_TEXT_BYTES + 1)}, "at most 32,768"),
    ],
)
def test_answer_that_does_not_fit_is_an_error_and_the_ask_stays_open(
    answers: Mapping[str, str], told: str
) -> None:
    session = asking()
    seen = replies(session, "c1", answers)
    assert told in seen.one("error")["message"]
    assert "it stays open" in seen.one("error")["message"]
    assert session.status == "awaiting_answer"
    assert not session.state.answers
    replies(session, "c1", {"Auth": "x" * MOST_TEXT_BYTES})
    assert session.state.answers[-1].decision == "answered"


def test_answers_of_more_bytes_in_all_than_a_message_carries_are_refused() -> None:
    headers = [f"h{n}" for n in range(5)]
    session = asking(questions(*headers))
    seen = replies(session, "c1", dict.fromkeys(headers, "x" * MOST_TEXT_BYTES))
    assert "the answers have 163,840 bytes; at most 131,072" in seen.one("error")["message"]


def test_request_for_input_names_its_turn_and_its_answer_has_every_id() -> None:
    session = asking(inputs("place", "time"))
    request = session.seen[-1].one("request_user_input")
    assert (request["call_id"], request["turn_id"]) == ("c1", "u1")
    assert request["questions"][0]["isOther"] is True
    puts_in(session, "u1", {"time": ["now", "soon"]})
    assert orjson.loads(output(session)) == {
        "answers": {"place": {"answers": []}, "time": {"answers": ["now", "soon"]}}
    }


@pytest.mark.parametrize(("count", "taken"), [(1, True), (16, True), (17, False)])
def test_question_takes_so_many_texts(count: int, taken: bool) -> None:
    work = UserInputWork(({"id": "q", "header": "Q", "question": "What?"},))
    response = {"answers": {"q": {"answers": ["x"] * count}}}
    if taken:
        assert orjson.loads(str(work.settled(response).output)) == response
    else:
        with pytest.raises(DoesNotAnswer, match="'q' has 17 answers; at most 16 are taken"):
            work.settled(response)


def test_declined_request_for_input_has_no_answers() -> None:
    session = asking(inputs())
    puts_in(session, "c1", {})
    assert output(session) == '{"answers":{}}'
    assert session.state.answers[-1].decision == "cancelled"


@pytest.mark.parametrize(
    ("answers", "told"),
    [
        ({"plaice": ["x"]}, "nothing was asked under 'plaice'"),
        ({"place": ["x"] * 17}, "at most 16"),
        ({"place": [""]}, "is empty"),
    ],
)
def test_input_that_does_not_fit_is_an_error_and_the_request_stays_open(
    answers: Mapping[str, list[str]], told: str
) -> None:
    session = asking(inputs())
    assert told in puts_in(session, "c1", answers).one("error")["message"]
    assert session.status == "awaiting_answer"


def test_op_of_another_kind_is_told_the_right_one() -> None:
    session = asking()
    told = session.decides("c1", "approved").one("error")["message"]
    assert told == "c1 is a question: answer it with resolve_ask_user_question"
    told = puts_in(session, "c1", {}).one("error")["message"]
    assert told == "c1 is a question: answer it with resolve_ask_user_question"
    assert session.status == "awaiting_answer"


def test_command_and_patch_are_each_approved_by_their_own_op() -> None:
    session = Session(rules=Rules(parallel_safe=frozenset({"shell"})))
    session.say("go", "u1")
    session.asks_for("c1", "p1")
    session.assessed("c1", a_command("rm", "a", dangerous=True))
    session.assessed("p1", a_patch("/etc/x", outside=("/etc/x",)))
    told = session.decides("c1", "approved", kind="patch").one("error")["message"]
    assert told == "c1 is a command: answer it with exec_approval"
    told = session.decides("p1", "approved").one("error")["message"]
    assert told == "p1 is a patch: answer it with patch_approval"
    assert cancels(session, "p1").one("error")["message"] == "p1 is a patch: answer it with patch_approval"
    # Under the turn's id each op means the one request of its kind.
    session.decides("u1", "denied", kind="patch")
    assert session.call("p1").phase is Phase.DONE
    assert session.call("c1").phase is Phase.AWAITING_APPROVAL


def test_same_second_answer_is_ignored_and_another_is_told_who_answered() -> None:
    session = asking()
    replies(session, "c1", {"Auth": "A"}, who="ann")
    assert replies(session, "c1", {"Auth": "A"}, who="bob").types == []
    told = replies(session, "c1", {"Auth": "B"}, who="bob").one("error")["message"]
    assert told == "c1 was already decided: answered, by ann"
    assert "by ann" in cancels(session, who="bob").one("error")["message"]


def test_answer_by_turn_id_is_refused_while_two_asks_are_open() -> None:
    session = Session(rules=TOGETHER)
    session.say("go", "u1")
    session.asks_for("c1", "c2", name="ask_user_question")
    session.assessed("c1", questions())
    session.assessed("c2", questions())
    told = replies(session, "u1", {"Auth": "A"}).one("error")["message"]
    assert "c1" in told
    assert "c2" in told
    replies(session, "c2", {"Auth": "B"})
    replies(session, "u1", {"Auth": "A"})
    assert (output(session, "c1"), output(session, "c2")) == (
        '{"answers":{"Auth":"A"}}',
        '{"answers":{"Auth":"B"}}',
    )


def test_answer_by_turn_id_counts_only_for_an_ask_that_stood_when_it_was_sent() -> None:
    session = Session(rules=TOGETHER)
    session.say("go", "u1")
    session.asks_for("c1", name="ask_user_question")
    before = session.seq
    session.assessed("c1", questions())
    assert replies(session, "u1", {"Auth": "A"}, seq=before).one("error")
    assert session.status == "awaiting_answer"


def test_questions_that_nobody_answers_in_time_are_cancelled_by_the_timer() -> None:
    session = asking(facts={"approval_timeout_ms": 60_000})
    seen = session.fires("approval:c1")
    assert output(session) == CANCELLED
    assert session.state.answers[-1].who == "timer"
    assert seen.decision.tree is not None
    told = [orjson.loads(b"0".join(event.parts))["msg"] for event in seen.decision.tree.events]
    assert [message["decision"] for message in told] == ["cancelled"]


def test_answer_clears_the_timer_and_a_stale_one_does_nothing() -> None:
    session = asking(facts={"approval_timeout_ms": 60_000})
    stale = session.timers["approval:c1"].generation
    replies(session, "c1", {"Auth": "A"})
    assert session.timers == {}
    assert session.fires("approval:c1", stale).types == []
    assert output(session) == '{"answers":{"Auth":"A"}}'


def test_interrupt_withdraws_the_questions_and_their_timer() -> None:
    session = asking(facts={"approval_timeout_ms": 60_000})
    session.interrupt()
    assert output(session) == "aborted by user"
    assert (session.approvals, session.timers) == ({}, {})
    assert session.seen[-1].types[-1] == "turn_aborted"
    assert replies(session, "c1", {"Auth": "A"}).one("error")


def test_input_that_steers_joins_the_turn_and_leaves_the_questions_open() -> None:
    session = asking(facts={"on_user_input": "steer"})
    seen = session.say("and hurry", "u2")
    assert seen.events == [("u1", {"type": "user_message", "message": "and hurry", "kind": "plain"})]
    assert (session.status, list(session.approvals)) == ("awaiting_answer", ["c1"])
    replies(session, "c1", {"Auth": "A"})
    session.begin()
    assert session.texts()[-1] == "and hurry"


def test_questions_are_asked_under_the_policy_never_too() -> None:
    assert asking(settings={"approval_policy": "never"}).status == "awaiting_answer"


def test_client_that_gave_the_task_and_answers_it_is_told_nothing() -> None:
    session = asking(client="me")
    assert replies(session, "c1", {"Auth": "A"}, client="me").decision.tree is None


def test_snapshot_of_open_questions_and_of_answers_is_read_again_as_it_was() -> None:
    session = asking()
    assert decode(encode(session.state)) == session.state
    replies(session, "c1", {"Auth": "A"})
    assert session.state.answers[-1].digest
    assert decode(encode(session.state)) == session.state


def test_worker_that_takes_over_leaves_the_questions_open() -> None:
    session = asking()
    session.is_taken_over()
    assert session.status == "awaiting_answer"
    replies(session, "c1", {"Auth": "A"})
    assert output(session) == '{"answers":{"Auth":"A"}}'


# ── agents ────────────────────────────────────────────────────────────────────────────────────


def child_asks(child: Agent) -> None:
    child.asks_for("c1", name="ask_user_question")
    child.assessed("c1", questions())


def below(agent: Agent) -> tuple[c.PendingBelow, ...]:
    return (c.PendingBelow(agent.id, agent.sid, CallId("c1"), agent.task.id, None, "question"),)


def test_childs_questions_surface_at_the_root_and_are_answered_there() -> None:
    tree, (child,) = a_family()
    child_asks(child)
    asked = tree.log[-1].message
    assert (asked["type"], asked["callId"], asked["agent_id"]) == ("ask_user_question_request", "c1", 1)
    response = {"type": "answered", "answers": {"Auth": "A"}}
    shown = {"text": "Which one?", "surface": "window", "opened_ms": 7}
    answer = op("resolve_ask_user_question", id="c1", response=response, shown=shown)
    tree.root.submit(answer, below=below(child), who="ann")
    tree.settle()
    assert child.output_of("c1") == '{"answers":{"Auth":"A"}}'
    assert child.state.answers[-1].who == "ann"
    entries = [entry.payload for seen in child.seen for entry in seen.entries]
    [fact] = [payload for payload in entries if payload.get("kind") == "answer"]
    assert (fact["shown"], fact["surface"], fact["opened_ms"]) == ("Which one?", "window", 7)
    assert [fact.message["decision"] for fact in tree.log if fact.message["type"] == "request_resolved"] == [
        "answered"
    ]


def test_answer_at_the_root_that_does_not_fit_the_childs_questions_is_told_there() -> None:
    tree, (child,) = a_family()
    child_asks(child)
    replies(tree.root, "c1", {"Outh": "A"}, below=below(child), id="r1")
    tree.settle()
    told = next(fact.message for fact in reversed(tree.log) if fact.message["type"] == "error")
    assert "c1 of agent 1 was not answered: no answer to 'Auth'" in told["message"]
    assert child.status == "awaiting_answer"


def test_second_answer_at_the_root_is_held_against_what_the_child_was_told() -> None:
    tree, (child,) = a_family()
    child_asks(child)
    replies(child, "c1", {"Auth": "A"}, who="ann")
    tree.settle()
    resolved = next(fact for fact in tree.log if fact.message["type"] == "request_resolved")
    decided = c.DecidedBelow(
        child.id, CallId("c1"), child.task.id, "answered", "ann", resolved.about["response"]
    )
    assert replies(tree.root, "c1", {"Auth": "A"}, decided=(decided,)).types == []
    told = replies(tree.root, "c1", {"Auth": "B"}, decided=(decided,)).one("error")["message"]
    assert told == "c1 of agent 1 was already decided: answered, by ann"


def test_second_answer_at_the_root_is_held_against_the_child_and_not_against_what_was_sent_on() -> None:
    """Somebody answered at the agent before the root's answer came there."""
    tree, (child,) = a_family()
    child_asks(child)
    replies(tree.root, "c1", {"Auth": "B"}, below=below(child), who="bob")
    decided = c.DecidedBelow(
        child.id, CallId("c1"), child.task.id, "answered", "ann", digest_of({"answers": {"Auth": "A"}})
    )
    told = replies(tree.root, "c1", {"Auth": "B"}, decided=(decided,)).one("error")["message"]
    assert told == "c1 of agent 1 was already decided: answered, by ann"


def test_answer_at_the_root_by_the_wrong_op_is_told_the_right_one() -> None:
    tree, (child,) = a_family()
    child_asks(child)
    seen = tree.root.submit(op("exec_approval", id="c1", decision="approved"), below=below(child))
    assert seen.one("error")["message"] == "c1 is a question: answer it with resolve_ask_user_question"


@pytest.mark.parametrize("asker", [0, 1])
def test_answer_that_names_another_agent_is_told_nothing_of_the_op_for_the_one_that_asks(asker: int) -> None:
    tree, (child, other) = a_family(2)
    child_asks(tree.agents[asker])
    seen = tree.root.submit(
        op("exec_approval", id="c1", decision="approved", agent_id=other.id if asker else child.id),
        below=below(child) if asker else (),
    )
    told = seen.one("error")["message"]
    assert told.startswith(f"no request is open under 'c1' of agent {other.id if asker else child.id}:")
