"""Every request to people and to clients, whatever asks: its digest, its time, its signature."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import orjson
import pytest

from orchestrator.core import commands as c
from orchestrator.core import entries as e
from orchestrator.core.calls import ClientToolWork, Custom, Mcp, Merge, PlanWork, QuestionWork, UserInputWork
from orchestrator.core.commands import Signature
from orchestrator.core.commit_parts import OpenRequest
from orchestrator.core.ids import AgentId
from orchestrator.core.settings import Rules, Signing
from orchestrator.protocol.ids import SnapshotId
from orchestrator.protocol.ops import Op
from tests.core.driver import NOON_MS, RULES, WORKSPACE, Seen, Session, a_command, a_patch, op

OPTIONS = [{"label": "one", "description": "first"}, {"label": "two", "description": "second"}]
QUESTION = {"question": "Which?", "header": "Which", "options": OPTIONS, "multiSelect": False}
PLAN = {"title": "T", "summary": "S", "plan": {"plan": [{"step": "one", "status": "pending"}]}}
LIMIT_MS = 45_000


def approval(kind: str) -> Op:
    return op(f"{kind}_approval", id="c1", decision="approved")


def words(name: str, **response: Any) -> Op:
    return op(name, id="c1", response=response)


ASKED: Mapping[str, tuple[Any, Op]] = {
    "command": (a_command("rm", "-rf", "x", dangerous=True), approval("exec")),
    "patch": (a_patch("/etc/x", outside=("/etc/x",)), approval("patch")),
    "merge": (Merge(AgentId(1), None, SnapshotId("a" * 40), (), 1, ("a",)), approval("patch")),
    "custom tool": (Custom("deploy", {"to": "x"}, "deploys", WORKSPACE, ask="it is seen"), approval("exec")),
    "server's tool": (Mcp("files", "wipe", {"all": True}, WORKSPACE), approval("exec")),
    "question": (
        QuestionWork((QUESTION,)),
        words("resolve_ask_user_question", type="answered", answers={"Which": "one"}),
    ),
    "input": (
        UserInputWork(({"id": "q", "header": "Q", "question": "What?"},)),
        words("user_input_answer", answers={"q": {"answers": ["this"]}}),
    ),
    "plan": (PlanWork(PLAN), words("resolve_plan_approval", type="approved")),
    "client's tool": (
        ClientToolWork("look", "editor", LIMIT_MS, given="{}"),
        words("dynamic_tool_response", success=True, output="seen"),
    ),
    "elicitation": (
        Mcp("files", "wipe", {}, WORKSPACE, read_only=True),
        op("resolve_elicitation", server_name="files", request_id="c1-q1", decision="accept"),
    ),
}
OF_PEOPLE = [kind for kind in ASKED if kind != "client's tool"]


def asking(kind: str, **fields: Any) -> tuple[Session, Seen, str]:
    """A session that asks, the step that did, and the request's name."""
    session = Session(settings={"approval_policy": "untrusted"}, **fields)
    session.say("go", "u1")
    session.asks_for("c1")
    seen = session.assessed("c1", ASKED[kind][0])
    if kind != "elicitation":
        return session, seen, "c1"
    return session, session.happens(c.Elicited("c1", "c1-q1", "files", "May I?")), "c1-q1"


def is_open(session: Session) -> bool:
    return bool(session.task.requests or session.task.open_elicitations)


def digest_in_state(session: Session) -> str:
    return session.task.elicitations[0].request if session.task.elicitations else session.call("c1").request


def signed(session: Session, id: str, **fields: Any) -> Signature:
    about = {"call_id": id, "turn": "u1", "request": digest_in_state(session), **fields}
    return Signature(session.now_ms, "c2ln", "ada", **about)


@pytest.mark.parametrize("kind", ASKED)
def test_request_has_the_digest_of_its_line_in_the_state_and_in_the_queue(kind: str) -> None:
    session, seen, id = asking(kind)
    (told,) = [message for _, message in seen.events if "request" in message["type"]]
    queued = OpenRequest.read(orjson.loads(session.approvals[id].payload))
    assert queued.event == told
    assert {digest_in_state(session), queued.digest} == {e.request_digest("u1", told)}
    assert (queued.turn, queued.agent_id, queued.tree) == ("u1", 0, session.state.facts.tree_id)
    assert session.replayed() == session.state


def stops(session: Session) -> None:
    """Lets a task end that is being stopped: nothing of it runs any more."""
    if session.state.task is not None and session.task.stopping:
        session.stopped()


ENDS: Mapping[str, Callable[[Session, str], Any]] = {
    "answer": lambda session, kind: session.submit(ASKED[kind][1]),
    "interrupt": lambda session, kind: session.interrupt(),
    "input": lambda session, kind: session.say("other", "u2"),
    "time": lambda session, kind: session.fires(next(iter(session.timers))),
}


@pytest.mark.parametrize("ends", ENDS)
@pytest.mark.parametrize("kind", ASKED)
def test_request_is_before_people_for_its_time_and_no_longer_whatever_ends_it(kind: str, ends: str) -> None:
    session, _, id = asking(kind, facts={"approval_timeout_ms": 60_000})
    most_ms = LIMIT_MS if kind == "client's tool" else 60_000
    due = {name: timer.at_ms for name, timer in session.timers.items()}
    assert due == {f"approval:{id}": NOON_MS + most_ms}
    ENDS[ends](session, kind)
    stops(session)
    assert (session.timers, session.approvals) == ({}, {})
    assert (ends == "time") == ("timer" in [answer.who for answer in session.state.answers])
    assert session.replayed() == session.state


@pytest.mark.parametrize("kind", ASKED)
def test_request_that_nobody_limits_waits_for_ever_but_for_that_of_a_client(kind: str) -> None:
    session, _, _ = asking(kind)
    assert bool(session.timers) == (kind == "client's tool")


@pytest.mark.parametrize("kind", OF_PEOPLE)
def test_answer_of_a_person_counts_under_a_signature_of_this_very_request(kind: str) -> None:
    session, _, id = asking(kind, rules=replace(RULES, signed_answers="required"))
    answer = ASKED[kind][1]
    for given in (
        None,
        signed(session, id, request="0" * 64),
        signed(session, "c9"),
        signed(session, id, turn="u0"),
        signed(session, id, fault="the signature does not hold"),
    ):
        seen = session.submit(answer, signature=given)
        assert "it stays open" in seen.one("error")["message"]
        assert is_open(session)
    assert "error" not in session.submit(answer, signature=signed(session, id)).types
    assert not is_open(session)


@pytest.mark.parametrize("known", [None, False, True])
@pytest.mark.parametrize("kind", OF_PEOPLE)
def test_answer_of_a_person_counts_with_a_warning_where_a_known_key_is_wanted(
    kind: str, known: bool | None
) -> None:
    session, _, id = asking(kind, rules=replace(RULES, signed_answers="wanted"))
    given = None if known is None else signed(session, id, known=known)
    seen = session.submit(ASKED[kind][1], "a1", signature=given)
    told = [(id, m["message"]) for id, m in seen.events if m["type"] == "warning"]
    why = {None: "without a signature", False: "under a key that approvals.signers does not name"}
    assert [(at, why[known] in words) for at, words in told] == ([] if known else [("a1", True)])
    assert not is_open(session)


@pytest.mark.parametrize("signing", ["required", "wanted"])
def test_answer_of_a_clients_tool_is_a_programs_and_needs_no_signature(signing: Signing) -> None:
    session, _, _ = asking("client's tool", rules=Rules(signed_answers=signing))
    seen = session.submit(ASKED["client's tool"][1])
    assert {"error", "warning"}.isdisjoint(seen.types)
    assert not is_open(session)


@pytest.mark.parametrize("known", [None, False, True])
def test_approval_for_the_session_counts_as_signed_only_under_a_known_key(known: bool | None) -> None:
    session, _, id = asking("command", rules=replace(RULES, signed_answers="wanted"))
    given = None if known is None else signed(session, id, known=known)
    session.submit(op("exec_approval", id="c1", decision="approved_for_session"), signature=given)
    session.finishes("c1")
    session.rules = replace(RULES, signed_answers="required")
    session.asks_for("c2")
    session.assessed("c2", ASKED["command"][0])
    assert session.call("c2").phase == ("running" if known else "awaiting_approval")
