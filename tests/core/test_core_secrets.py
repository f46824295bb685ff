"""Secret answers: what the log has of them, who still needs their texts, and when nobody does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.core import commands as c
from orchestrator.core import facts as f
from orchestrator.core.calls import UserInputWork
from orchestrator.core.secrets import (
    NOT_KEPT,
    SecretAnswer,
    hidden,
    put_back,
    secret_name,
    set_apart,
    with_secrets,
)
from orchestrator.core.settings import Rules
from orchestrator.core.snapshot import decode, encode
from orchestrator.protocol.ids import CallId
from orchestrator.runtime.model_request import build_prompt
from tests.core.driver import Seen, Session, op, text
from tests.core.tree_driver import Agent, a_family

SECRET = "hunter2-hunter2"
SHOWN = {"header": "Where", "question": "Where to?", "isOther": True}
WORK = UserInputWork(
    ({"id": "token", **SHOWN, "isSecret": True}, {"id": "place", **SHOWN, "isSecret": False})
)


def asking() -> Session:
    session = Session()
    session.submit(op("user_input", items=[text("go")]), "u1")
    session.asks_for("c1", name="request_user_input")
    session.assessed("c1", WORK)
    return session


def puts_in(session: Session, answers: dict[str, list[str]], name: str = "n1", **fields: Any) -> Seen:
    response = {"answers": {id: {"answers": texts} for id, texts in answers.items()}}
    return session.submit(op("user_input_answer", id="c1", response=response), secret=name, **fields)


def dropped(seen: Seen) -> tuple[str, ...]:
    return () if seen.decision.tree is None else seen.decision.tree.secrets_dropped


def logged(session: Session) -> str:
    return b"".join(session.lines).decode()


def test_log_has_a_note_in_the_place_of_a_secret_text_and_the_others_as_they_are() -> None:
    session = asking()
    seen = puts_in(session, {"token": [SECRET], "place": ["home"]})
    assert orjson.loads(session.output_of("c1")) == {
        "answers": {"token": {"answers": [NOT_KEPT]}, "place": {"answers": ["home"]}}
    }
    assert SECRET not in logged(session)
    assert session.task.secrets == (SecretAnswer(CallId("c1"), "n1"),)
    assert dropped(seen) == (), "requests of the task need the texts"
    assert session.state == session.replayed() == decode(encode(session.state))


@settings(max_examples=25)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 2)), min_size=1, max_size=3))
def test_log_has_no_text_of_any_secret_question_and_all_of_the_others(asked: list[tuple[bool, int]]) -> None:
    """Of each question whether it is secret, and how many texts are given."""
    session = Session()
    session.submit(op("user_input", items=[text("go")]), "u1")
    session.asks_for("c1", name="request_user_input")
    questions = ({"id": f"q{at}", **SHOWN, "isSecret": secret} for at, (secret, _) in enumerate(asked))
    session.assessed("c1", UserInputWork(tuple(questions)))
    given_ = {f"q{at}": [f"w{at}-{n}-words" for n in range(number)] for at, (_, number) in enumerate(asked)}
    puts_in(session, given_)
    for at, (secret, _) in enumerate(asked):
        there = [words in logged(session) for words in given_[f"q{at}"]]
        assert there == [not secret] * len(there)
    needed = any(secret and number for secret, number in asked)
    assert bool(session.task.secrets) == needed
    assert session.state == session.replayed() == decode(encode(session.state))


def test_log_has_nothing_by_which_a_secret_could_be_guessed() -> None:
    session = asking()
    puts_in(session, {"token": [SECRET]})
    assert session.state.answers[-1].digest == ""
    told = puts_in(session, {"token": [SECRET]}, "n2", who="eve")
    assert "was already decided: answered, by" in told.one("error")["message"]
    assert dropped(told) == ("n2",)


@pytest.mark.parametrize(
    ("answers", "outcome"),
    [({"place": ["home"]}, "answered"), ({"tokn": [SECRET]}, ""), ({"token": [" "]}, "")],
)
def test_texts_that_no_request_needs_go_with_the_answer(answers: dict[str, list[str]], outcome: str) -> None:
    session = asking()
    seen = puts_in(session, answers)
    assert dropped(seen) == ("n1",)
    assert [answer.decision for answer in session.state.answers] == ([outcome] if outcome else [])
    assert session.task.secrets == ()
    assert SECRET not in logged(session)


@pytest.mark.parametrize("end", ["completed", "interrupted"])
def test_texts_go_in_the_commit_that_ends_the_task(end: str) -> None:
    session = asking()
    puts_in(session, {"token": [SECRET]})
    seen = session.interrupt() if end == "interrupted" else session.answers("done")
    assert session.state.outcome == end
    assert dropped(seen) == ("n1",)


def test_texts_of_each_secret_of_a_task_go_with_its_end() -> None:
    session = Session()
    session.submit(op("user_input", items=[text("go")]), "u1")
    for number in (1, 2, 3):
        session.asks_for(f"c{number}", name="request_user_input")
        session.assessed(f"c{number}", WORK)
        response = {"answers": {"token": {"answers": [SECRET]}, "place": {"answers": ["home"]}}}
        session.submit(op("user_input_answer", id=f"c{number}", response=response), secret=f"n{number}")
    assert dropped(session.answers("done")) == ("n1", "n2", "n3")


def test_client_that_hands_a_secret_in_in_clear_is_warned() -> None:
    session = asking()
    assert "in clear" in puts_in(session, {"token": [SECRET]}, in_clear=True).one("warning")["message"]
    assert SECRET not in logged(session)
    plain = asking()
    assert "warning" not in puts_in(plain, {"place": ["home"]}, in_clear=True).types


# ── agents ────────────────────────────────────────────────────────────────────────────────────


def child_asks(child: Agent) -> tuple[c.PendingBelow, ...]:
    child.asks_for("c1", name="request_user_input")
    child.assessed("c1", WORK)
    kind = (None, "user_input", True)
    return (c.PendingBelow(child.id, child.sid, CallId("c1"), child.task.id, *kind),)


def arrives(child: Agent, response: dict[str, Any] | None) -> Seen:
    """The answer that the root has sent on, with what its receiver has found under its name."""
    mail = {"call_id": "c1", "turn": child.task.id if child.state.task else "t", "id": "r1", "secret": "n1"}
    payload = {**mail, "decision": "answered", "who": "ann", "response": response}
    return child.happens(c.MailArrived("answer", payload, "k", 1))


RESPONSE = {"answers": {"token": {"answers": [SECRET]}}}


@pytest.mark.parametrize("secret", [True, False])
def test_root_sends_texts_that_stand_apart_on_by_their_name_alone(secret: bool) -> None:
    tree, (child,) = a_family()
    below = tuple(replace(asked, secret=secret) for asked in child_asks(child))
    seen = puts_in(tree.root, {"token": [SECRET]}, below=below, who="ann")
    (mail,) = seen.decision.tree.outbox if seen.decision.tree else ()
    sent = orjson.loads(mail.payload)
    assert (sent["secret"], "response" in sent) == ("n1", False)
    assert SECRET not in logged(tree.root)
    assert dropped(seen) == ()
    assert tree.root.state.answers[-1].digest == ""


@pytest.mark.parametrize("asked_for_one", [True, False])
@pytest.mark.parametrize("in_clear", [True, False])
def test_client_is_warned_of_a_secret_in_clear_that_the_root_sends_on(
    asked_for_one: bool, in_clear: bool
) -> None:
    tree, (child,) = a_family()
    below = tuple(replace(asked, secret=asked_for_one) for asked in child_asks(child))
    seen = puts_in(tree.root, {"token": [SECRET]}, below=below, who="ann", in_clear=in_clear)
    assert ("warning" in seen.types) == (asked_for_one and in_clear)


def test_agent_settles_the_secret_that_was_sent_on_and_keeps_it_to_its_end() -> None:
    _, (child,) = a_family()
    child_asks(child)
    seen = arrives(child, RESPONSE)
    assert (child.task.secrets[0].name, dropped(seen)) == ("n1", ())
    assert SECRET not in logged(child)
    assert "response" not in str([event.about for event in seen.decision.tree.events if event.about])  # type: ignore[union-attr]


def test_answer_whose_texts_are_gone_leaves_the_question_open() -> None:
    tree, (child,) = a_family()
    child_asks(child)
    seen = arrives(child, None)
    assert child.status == "awaiting_answer"
    told = next(fact.message for fact in reversed(tree.log) if fact.message["type"] == "error")
    assert "its texts are not kept any more: answer again" in told["message"]
    assert dropped(seen) == ("n1",)


def test_secret_that_comes_too_late_goes_at_once() -> None:
    _, (child,) = a_family()
    child_asks(child)
    child.interrupt()
    assert dropped(arrives(child, RESPONSE)) == ("n1",)


def test_second_secret_that_was_sent_on_is_told_who_answered_be_it_the_same() -> None:
    tree, (child,) = a_family()
    child_asks(child)
    arrives(child, RESPONSE)
    seen = arrives(child, RESPONSE)
    assert dropped(seen) == ("n1",)
    late = [fact.message["message"] for fact in tree.log if fact.message["type"] == "error"]
    assert late == ["c1 of agent 1 was already decided: answered, by ann"]


# ── the texts and their places ────────────────────────────────────────────────────────────────


def output(call_id: str, *texts: str) -> dict[str, Any]:
    told = orjson.dumps({"answers": {"token": {"answers": texts}}}).decode()
    return {"type": "function_call_output", "call_id": call_id, "output": told}


def test_model_reads_the_secret_in_the_calls_last_output_only() -> None:
    items = [output("c1", NOT_KEPT), output("c2", NOT_KEPT), output("c1", NOT_KEPT)]
    shown = with_secrets(items, [("c1", RESPONSE)])
    assert shown == [items[0], items[1], output("c1", SECRET)]
    assert items[2] == output("c1", NOT_KEPT), "the conversation itself stays as it is"


def test_compaction_is_shown_no_secret_that_requests_of_its_turn_are() -> None:
    session = asking()
    puts_in(session, {"token": [SECRET]})
    read = {}
    for purpose in ("turn", "compact"):
        session.rules = Rules(auto_compact_limit=None if purpose == "turn" else 1)
        session.begin()
        request = session.task.request
        assert request is not None
        read[request.purpose] = str(
            build_prompt(session.state, request, (), session.text_of, None, [("c1", RESPONSE)])
        )
        session.calls("c2")
        session.ends("r1", {"input_tokens": 100, "total_tokens": 100})
        if purpose == "turn":
            session.assessed("c2", c.Immediate("ok"))
    assert SECRET in read["turn"]
    assert SECRET not in read["compact"]
    assert NOT_KEPT in read["compact"]


@pytest.mark.parametrize("said", [NOT_KEPT, f'["{NOT_KEPT}"]', f'{{"answers":"{NOT_KEPT}"}}', 7])
def test_output_of_another_call_under_that_id_stays_as_it_is(said: Any) -> None:
    item = {"type": "function_call_output", "call_id": "c1", "output": said}
    assert with_secrets([item], [("c1", RESPONSE)]) == [item]


def test_submission_without_its_texts_is_refused_by_who_knows_none_apart_and_is_whole_with_them() -> None:
    payload = orjson.dumps(
        {"id": "a1", "op": {"type": "user_input_answer", "id": "c1", "response": RESPONSE}}
    )
    left, texts = set_apart(payload, b"key")
    assert SECRET.encode() not in left
    assert "answers" not in orjson.loads(left)["op"]["response"]
    assert orjson.loads(put_back(left, texts)) == orjson.loads(payload)
    assert set_apart(payload, b"key") == (left, texts)
    assert set_apart(payload, b"other")[0] != left


def test_name_of_a_secret_tells_clients_and_submissions_apart() -> None:
    assert len({secret_name("a", "bc"), secret_name("ab", "c"), secret_name("", "abc")}) == 3


def test_error_of_a_provider_does_not_quote_a_secret() -> None:
    assert hidden(f"bad input: {SECRET!r}", [("c1", RESPONSE)]) == f"bad input: {NOT_KEPT!r}"
    longer = {"answers": {"token": {"answers": [f"{SECRET}-and-more"]}}}
    quoted = f"bad input: {SECRET!r}, '{SECRET}-and-more'"
    told = hidden(quoted, [("c1", RESPONSE), ("c2", longer)])
    assert told == f"bad input: {NOT_KEPT!r}, {NOT_KEPT!r}"
    for secret, quoted in (("a", "a"), ("day", "day"), ("days", NOT_KEPT), ("day 7", NOT_KEPT)):
        short = {"answers": {"pin": {"answers": [secret]}}}
        assert hidden(f"a bad {secret}", [("c1", short)]) == f"a bad {quoted}"


def test_fact_of_an_answer_without_a_secret_is_what_it_was() -> None:
    fact = f.Answered(CallId("c1"), "u1", "answered", "me", 1)  # type: ignore[arg-type]
    assert "secret" not in f.encode(fact)
