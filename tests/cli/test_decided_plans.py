"""Plans before a person: at a terminal, in the list of what waits, and decided from the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli.approvals import Words
from orchestrator.core.frozen import replace
from orchestrator.core.ids import SessionId, TreeId
from orchestrator.protocol.codec import parse_submission
from orchestrator.protocol.policy import ReviewDecision
from orchestrator.protocol.wire import written
from orchestrator.requests import request_of
from orchestrator.terminal.faults import Fault
from orchestrator.terminal.watched_turn import PLANNED, Prompt
from orchestrator.views.approvals import Asked
from orchestrator.views.asked_requests import OpenRequests
from orchestrator.views.event import Event
from tests.cli.machine import Machine

STEPS = [{"step": "Read the code", "status": "pending"}, {"step": "Write it", "status": "pending"}]
PROPOSAL = {"title": "A login", "summary": "Adds it.", "plan": {"explanation": "Why.", "plan": STEPS}}
PROPOSED = {"items": [{"call": "approve_plan", "args": {"proposal": PROPOSAL}, "call_id": "p1"}]}
REQUEST = {"type": "plan_approval_request", "call_id": "p1", "proposal": PROPOSAL}
NEVER = ("-c", "approval_policy=never")


def typed(line: str) -> Any:
    """The response that a line comes to; None if more is to be typed."""
    op = Prompt(request_of(REQUEST)).take(line)
    return None if op is None else written(op)["response"]


@pytest.mark.parametrize(
    ("line", "response"),
    [
        ("y", {"type": "approved"}),
        (" YES ", {"type": "approved"}),
        ("n", {"type": "rejected"}),
        ("ok", {"type": "approved"}),
        ("ok, but shorter", {"type": "revised", "feedback": "ok, but shorter"}),
        ("shorter, please", {"type": "revised", "feedback": "shorter, please"}),
        (" ", None),
    ],
)
def test_line_decides_on_a_plan_or_says_what_is_to_be_changed(line: str, response: Any) -> None:
    assert typed(line) == response


@pytest.mark.parametrize("line", ["a", "q", "2", "?"])
def test_single_letter_that_decides_nothing_is_no_feedback_on_a_plan(line: str) -> None:
    prompt = Prompt(request_of(REQUEST))
    assert prompt.take(line) is None
    assert prompt.fault == f"{line!r} is no answer to a plan: y, n, or what is to be changed, in words"


def test_feedback_that_is_too_long_says_so_and_asks_again() -> None:
    prompt = Prompt(request_of(REQUEST))
    assert prompt.take("x" * 40_000) is None
    assert "at most 32,768" in prompt.fault
    assert prompt.text == PLANNED
    assert not prompt.answers("/stop")


def test_plan_is_open_until_its_turn_goes_on() -> None:
    requests = OpenRequests(SessionId("s"))
    requests.receive(Event("u1", dict(REQUEST)))
    assert len(requests) == 1
    requests.receive(Event("u1", {"type": "token_count"}))
    assert not requests


def test_person_at_a_terminal_plans_and_approves(machine: Machine) -> None:
    again = {"items": [{**PROPOSED["items"][0], "call_id": "p2"}]}
    with (
        machine.model(PROPOSED, again) as user,
        user.terminal("run", "--plan", "add a login", *NEVER) as person,
    ):
        shown = person.wait_for(r"Follow this plan\?")
        assert "plans add a login" in shown
        assert "1. Read the code" in shown
        person.type("shorter\n")
        person.wait_for(r"Follow this plan\?")
        person.type("y\n")
        person.wait_for("Plan approved")
        assert person.exit_code() == 0


def asked(call_id: str, request: dict[str, Any]) -> Asked:
    session = SessionId("s")
    return Asked(session, TreeId("s"), 0, "0", call_id, 0, request_of({**request, "call_id": call_id}), 1)


def test_words_of_the_command_line_mean_a_plan_by_its_call() -> None:
    waiting = [asked("p1", REQUEST), asked("c1", {"type": "exec_approval_request", "command": ["ls"]})]
    # Another tree's call may have the same name.
    waiting.append(replace(waiting[1], tree=TreeId("t"), call_id="p1"))
    ((one, plan, text),) = Words.of((), (), revised=["0:p1 shorter, please"]).meant_plans(waiting)
    assert (one.call, text) == ("0:p1", "shorter, please")
    assert written(plan.revised(text))["response"] == {"type": "revised", "feedback": text}
    with pytest.raises(Fault, match="no open plan is meant by '0:c1'"):
        Words.of((), (), revised=["0:c1 shorter"]).meant_plans(waiting)
    with pytest.raises(Fault, match="say 'CALL TEXT'"):
        Words.of((), (), revised=["0:p1"])


@pytest.mark.parametrize("calls", [["0:p1", "0:p1"], ["0:p2", "0:p1", "0:p1"], ["0:p1", "0:p2", "0:p1"]])
@pytest.mark.parametrize("texts", [["shorter"], ["shorter", "longer", "other"]])
def test_plan_that_is_sent_back_twice_at_once_is_refused(calls: list[str], texts: list[str]) -> None:
    said = [f"{call} {texts[place % len(texts)]}" for place, call in enumerate(calls)]
    with pytest.raises(Fault, match="0:p1 is revised twice: say all of it in one text"):
        Words.of(revised=said)
    assert Words.of(revised=[f"0:p{n} shorter" for n in range(3)]).calls == ("0:p0", "0:p1", "0:p2")


def test_plan_is_approved_by_its_call_and_by_no_pattern() -> None:
    plan = asked("p1", REQUEST)
    assert plan.meant_by("0:p1", ReviewDecision.APPROVED)
    assert not plan.meant_by("*", ReviewDecision.APPROVED)
    assert not plan.meant_by("*", ReviewDecision.DENIED)


def test_plan_without_a_terminal_parks_and_is_approved_from_the_command_line(machine: Machine) -> None:
    with machine.model(PROPOSED) as user:
        parked = user.run("run", "--plan", "add a login", *NEVER)
        assert (parked.returncode, "waiting for an approval; go on with: " in parked.stderr) == (3, True)
        (session,) = user.session_ids()
        assert user.sessions()[0]["status"] == "awaiting_answer"
        listed = user.run("approvals").stdout
        assert "0:p1  approve the plan A login" in listed
        assert "Read the code" in listed
        lasting = user.run("approvals", session, "--for-session", "0:p1")
        assert (lasting.returncode, "holds for no session" in lasting.stderr) == (1, True)
        assert "handed in" in user.run("approvals", session, "--allow", "0:p1").stdout
        done = user.run("run", "--resume", session, *NEVER)
        assert done.returncode == 0
        assert "2. Write it" in done.stdout
        assert "request p1 was approved by" in user.run("logs", session).stdout


def test_page_of_plans_shows_what_the_model_and_the_client_say() -> None:
    page = (Path(__file__).parents[2] / "docs" / "plans.md").read_text()
    blocks = [json.loads(block.split("```")[0]) for block in page.split("```json\n")[1:]]
    begins, request, submission = blocks
    assert parse_submission(json.dumps(begins).encode()).op.type == "plan"
    op = Prompt(request_of(request)).take("Begin with the session.")
    assert op is not None
    assert written(op) == submission["op"]
