"""Questions of MCP servers in the middle of a call: asked, decided, withdrawn, and never left behind."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.core import commands as c
from orchestrator.core.calls import Mcp, Phase
from orchestrator.core.commit_parts import approval_timer
from orchestrator.core.decide import IllegalCommand
from orchestrator.core.frozen import replace
from orchestrator.core.outstanding import AnswerServer
from orchestrator.core.settings import Rules
from orchestrator.core.snapshot import decode, digest, encode
from orchestrator.protocol.ids import CallId
from tests.core.driver import Seen, Session, op
from tests.core.tree_driver import Agent, a_tree, told_by

ASKED = {"type": "elicitation_request", "server_name": "files", "id": "c1-q1", "message": "May I?"}
TOOL = Mcp("files", "wipe", {}, "/repo", read_only=False)


def calling(session: Session) -> None:
    """A tool of a server runs."""
    session.say("go", "u1")
    session.asks_for("c1", name="mcp__files__wipe")
    session.assessed("c1", TOOL)


def asks(session: Session, n: int = 1) -> Seen:
    return session.happens(c.Elicited("c1", f"c1-q{n}", "files", "May I?"))


def resolves(
    session: Session, decision: str, id: Any = "c1-q1", server: str = "files", **fields: Any
) -> Seen:
    answer = op("resolve_elicitation", server_name=server, request_id=id, decision=decision)
    return session.submit(answer, **fields)


def replayed(session: Session) -> bool:
    return digest(session.replayed()) == session.digest == digest(decode(encode(session.state)))


def test_server_asks_and_hears_the_decision_while_its_call_runs() -> None:
    session = Session()
    calling(session)
    seen = asks(session)
    ((submission, told),) = seen.events
    event = dict(told)
    reach = event.pop("reach")
    assert (submission, event) == ("u1", ASKED)
    assert reach["text"].startswith("OUTSIDE THE SANDBOX, in /repo")
    assert "the MCP server files works: an answer goes to it" in reach["text"]
    assert session.status == "awaiting_answer"
    assert list(session.approvals) == ["c1-q1"]
    assert session.call("c1").phase is Phase.RUNNING
    assert replayed(session)
    seen = resolves(session, "accept", client="other", who="anna@host")
    assert AnswerServer("c1-q1", "accept") in session.owes()
    assert session.approvals == {}
    assert session.status == "running"
    assert (session.state.answers[-1].decision, session.state.answers[-1].who) == ("accept", "anna@host")
    assert replayed(session)
    session.finishes("c1", "wiped")
    assert not [work for work in session.owes() if isinstance(work, AnswerServer)]
    assert session.task.elicitations == ()
    assert replayed(session)


def test_decision_for_a_server_counts_under_a_signature_where_answers_have_to_be_signed() -> None:
    session = Session(rules=Rules(signed_answers="required"))
    calling(session)
    asks(session)
    task = session.state.task
    assert task is not None
    (asked,) = task.elicitations
    assert "have to be signed here" in resolves(session, "accept").one("error")["message"]
    other = c.Signature(session.now_ms, "c2ln", "ada", call_id="c1-q1", turn="u1", request="ab" * 32)
    seen = resolves(session, "accept", signature=other)
    assert "its signature is for another request; it stays open" in seen.one("error")["message"]
    resolves(session, "accept", signature=replace(other, request=asked.request))
    assert AnswerServer("c1-q1", "accept") in session.owes()
    assert replayed(session)


@pytest.mark.parametrize("signed", ["by nobody", "by a stranger", "by ada"])
@pytest.mark.parametrize("wanted", [False, True])
def test_decision_for_a_server_counts_with_a_warning_where_a_known_signature_is_wanted(
    signed: str, wanted: bool
) -> None:
    session = Session(rules=Rules(signed_answers="wanted" if wanted else "off"))
    calling(session)
    asks(session)
    (asked,) = session.task.elicitations
    given = c.Signature(session.now_ms, "c2ln", "ada", call_id="c1-q1", turn="u1", request=asked.request)
    given = replace(given, known=signed == "by ada")
    seen = resolves(session, "decline", signature=None if signed == "by nobody" else given)
    assert AnswerServer("c1-q1", "decline") in session.owes()
    warned = [event["message"] for _, event in seen.events if event["type"] == "warning"]
    assert ["c1-q1 was decided " in said for said in warned] == (
        [True] if wanted and signed != "by ada" else []
    )


def test_second_answer_is_held_against_the_first() -> None:
    session = Session()
    calling(session)
    asks(session)
    resolves(session, "decline", who="anna@host")
    assert resolves(session, "decline").events == []
    seen = resolves(session, "accept")
    assert seen.one("error")["message"] == "c1-q1 was already decided: decline, by anna@host"


def test_answer_names_the_question_and_its_server() -> None:
    session = Session()
    calling(session)
    asks(session)
    assert (
        "asks, not 'web'; it stays open" in resolves(session, "accept", server="web").one("error")["message"]
    )
    assert "open are c1-q1" in resolves(session, "accept", id=7).one("error")["message"]
    assert "open are c1-q1" in resolves(session, "accept", id="c1").one("error")["message"]
    seen = session.submit(op("exec_approval", id="c1-q1", decision="approved"))
    assert seen.one("error")["message"] == (
        "c1-q1 is a question of an MCP server: answer it with resolve_elicitation"
    )
    assert session.task.open_elicitations


def test_question_that_nobody_answers_in_time_is_cancelled() -> None:
    session = Session(facts={"approval_timeout_ms": 5_000})
    calling(session)
    asks(session)
    session.fires(approval_timer("c1-q1"))
    assert AnswerServer("c1-q1", "cancel") in session.owes()
    assert session.state.answers[-1].who == "timer"
    assert session.fires(approval_timer("c1-q1"), 1).events == [], "a stale timer says nothing"


def test_call_that_ends_withdraws_its_question() -> None:
    session = Session(facts={"approval_timeout_ms": 5_000})
    calling(session)
    asks(session)
    session.finishes("c1", "it did not wait")
    assert (session.approvals, session.timers) == ({}, {})
    assert "no request is open under 'c1-q1'" in resolves(session, "accept").one("error")["message"]
    assert replayed(session)


@pytest.mark.parametrize("decided", [1, 2])
def test_call_that_ends_withdraws_those_of_its_questions_that_are_not_decided(decided: int) -> None:
    session = Session()
    calling(session)
    for number in (1, 2):
        asks(session, number)
    resolves(session, "accept", f"c1-q{decided}", client="a-client")
    seen = session.finishes("c1", "it did not wait for the other")
    part = seen.decision.tree
    told = [told_by(event) for event in part.events] if part else []
    assert [(m["call_id"], m["decision"]) for m in told] == [(f"c1-q{3 - decided}", "withdrawn")]
    assert replayed(session)


def test_call_that_ends_leaves_the_question_of_another_that_runs_beside_it() -> None:
    session = Session(rules=Rules(parallel_safe=frozenset({"mcp__files__wipe"})))
    session.say("go", "u1")
    session.asks_for("c1", "c2", name="mcp__files__wipe")
    for call_id in ("c1", "c2"):
        session.assessed(call_id, TOOL)
        session.happens(c.Elicited(call_id, f"{call_id}-q1", "files", "May I?"))
    session.finishes("c1", "it did not wait")
    assert [asked.id for asked in session.task.open_elicitations] == ["c2-q1"]
    assert list(session.approvals) == ["c2-q1"]
    resolves(session, "accept", "c2-q1")
    assert AnswerServer("c2-q1", "accept") in session.owes()
    assert replayed(session)


def test_question_that_its_server_takes_back_is_withdrawn() -> None:
    session = Session()
    calling(session)
    asks(session)
    part = session.happens(c.ElicitationDropped("c1-q1")).decision.tree
    told = [told_by(event) for event in part.events] if part else []
    assert [(m["call_id"], m["decision"]) for m in told] == [("c1-q1", "withdrawn")]
    assert session.approvals == {}
    assert session.status == "running"
    session.happens(c.ElicitationDropped("c1-q1"))
    assert asks(session, 2).types == ["elicitation_request"]


@pytest.mark.parametrize("ending", ["interrupt", "killed"])
def test_end_of_the_turn_or_of_the_worker_withdraws_the_question(ending: str) -> None:
    session = Session(facts={"approval_timeout_ms": 5_000})
    calling(session)
    asks(session)
    if ending == "killed":
        session.is_taken_over()
        assert "in doubt" in session.output_of("c1")
    else:
        session.interrupt()
        session.stopped(c1=1.0)
        assert session.status == "idle"
    assert (session.approvals, session.timers) == ({}, {})
    assert replayed(session)


def test_stopping_task_asks_and_answers_no_more() -> None:
    session = Session()
    calling(session)
    asks(session)
    session.interrupt()
    assert "no request is open" in resolves(session, "accept").one("error")["message"]
    with pytest.raises(IllegalCommand):
        asks(session, 2)


def test_question_of_a_call_that_is_over_is_not_asked() -> None:
    session = Session()
    calling(session)
    session.finishes("c1", "done")
    with pytest.raises(IllegalCommand):
        asks(session)


def an_agent_that_asks() -> tuple[Any, Agent]:
    tree = a_tree()
    child = tree.root.spawns("look")
    tree.settle()
    child.begin()
    child.calls("c1", name="mcp__files__wipe")
    child.ends()
    child.assessed("c1", TOOL)
    child.happens(c.Elicited("c1", "c1-q1", "files", "May I?"))
    return tree, child


def test_agents_server_is_answered_at_the_root() -> None:
    tree, child = an_agent_that_asks()
    pending = c.PendingBelow(child.id, child.sid, "c1-q1", child.task.id, kind="elicitation")  # type: ignore[arg-type]
    answer = op("resolve_elicitation", server_name="files", request_id="c1-q1", decision="accept")
    tree.root.submit(answer, client="c", who="anna@host", below=(pending,))
    tree.settle()
    assert AnswerServer("c1-q1", "accept") in child.owes()
    assert child.state.answers[-1].who == "anna@host"


def test_answer_to_an_agents_question_names_its_server_at_the_root_too() -> None:
    tree, child = an_agent_that_asks()
    child.happens(c.Elicited("c1", "c1-q2", "files", "And now?"))
    pending = tuple(
        c.PendingBelow(child.id, child.sid, CallId(id), child.task.id, kind="elicitation")
        for id in ("c1-q1", "c1-q2")
    )
    for id in ("c1-q2", "c1-q1"):
        for server in ("mail", "files"):
            answer = op("resolve_elicitation", server_name=server, request_id=id, decision="accept")
            tree.root.submit(answer, client="c", who="anna@host", below=pending)
            tree.settle()
            assert (AnswerServer(id, "accept") in child.owes()) == (server == "files")
    told = [fact.message["message"] for fact in tree.log if fact.message["type"] == "error"]
    assert told == [
        f"{id} of agent 1 was not answered: the MCP server files asks, not 'mail'; it stays open"
        for id in ("c1-q2", "c1-q1")
    ]


def test_root_is_told_that_an_agents_turn_ended_before_its_servers_question_was_answered() -> None:
    tree, child = an_agent_that_asks()
    child.interrupt()
    child.stopped(c1=1.0)
    tree.settle()
    told = [fact.message for fact in tree.log if fact.message["type"] == "request_resolved"]
    assert [(m["agent_id"], m["call_id"], m["decision"]) for m in told] == [(child.id, "c1-q1", "withdrawn")]


def test_time_of_the_second_question_ends_that_one_alone() -> None:
    session = Session(facts={"approval_timeout_ms": 5_000})
    calling(session)
    asks(session)
    asks(session, 2)
    session.fires(approval_timer("c1-q2"))
    assert [asked.id for asked in session.task.open_elicitations] == ["c1-q1"]
    session.happens(c.ElicitationDropped("c1-q1"))
    assert session.task.open_elicitations == ()
    assert replayed(session)
