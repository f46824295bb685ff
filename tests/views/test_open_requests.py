"""Requests that are open for a client, by the events that the client receives."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.core.ids import SessionId
from orchestrator.requests import request_of
from orchestrator.views.asked_requests import OpenRequests
from orchestrator.views.event import Event
from tests.requests.test_answers import ASKS

ROOT = SessionId("root")


def heard(*messages: dict[str, Any]) -> OpenRequests:
    found = OpenRequests(ROOT)
    for message in messages:
        found.receive(Event("u1", message))
    return found


def asks(call: str, **agent: Any) -> dict[str, Any]:
    return {"type": "exec_approval_request", "call_id": call, "command": ["ls"], "cwd": "/", **agent}


def resolved(call: str, session: str) -> dict[str, Any]:
    return {"type": "request_resolved", "call_id": call, "session_id": session, "decision": "denied"}


def test_requests_of_two_agents_with_one_calls_name_stand_side_by_side() -> None:
    found = heard(asks("c1", agent_id=1, session_id="a"), asks("c1", agent_id=2, session_id="b"))
    assert [request.agent_id for request in found] == [1, 2]
    found.receive(Event("u1", resolved("c1", "a")))
    assert [request.agent_id for request in found] == [2]


def test_end_of_the_roots_task_withdraws_its_own_requests_alone() -> None:
    found = heard(asks("c1"), asks("c2", agent_id=1, session_id="a"), {"type": "turn_aborted"})
    assert [request.call_id for request in found] == ["c2"]


@pytest.mark.parametrize("begins", ["exec_command_begin", "mcp_tool_call_begin", "patch_apply_begin"])
def test_call_that_begins_is_asked_about_no_more(begins: str) -> None:
    found = heard(asks("c1"), asks("c2"), {"type": begins, "call_id": "c1"})
    assert found.first is not None
    assert found.first.call_id == "c2"
    assert found.take_first().call_id == "c2"
    assert not found


@pytest.mark.parametrize("ends", ["task_complete", "turn_aborted"])
def test_request_that_was_read_before_its_events_outlives_the_end_of_the_turn_before(ends: str) -> None:
    found = heard(asks("c1", turn_id="u2"), {"type": ends})
    assert found.first is not None
    found.receive(Event("u2", {"type": ends}))
    assert not found


EVERY = {kind: event for kind, event in ASKS.items() if kind != "client_tool"}
WITH_CALLS = {"choices", "input", "plan", "elicitation"}
"""Kinds of which no event tells that their own call begins: they are over when the turn's calls are."""
COUNTED = {"type": "token_count", "info": None, "rate_limits": None}
AGENT = {"agent_id": 1, "session_id": "a"}


@pytest.mark.parametrize("kind", EVERY)
@pytest.mark.parametrize("turn", [None, "now", "later"])
@pytest.mark.parametrize("agent", [{}, AGENT])
@pytest.mark.parametrize(
    "happens",
    [
        *({"type": begins} for begins in ("exec_command_begin", "mcp_tool_call_begin", "patch_apply_begin")),
        {"type": "request_resolved", "decision": "denied"},
        COUNTED,
        {"type": "task_complete"},
        {"type": "turn_aborted", "reason": "interrupted"},
        {"type": "agent_message", "message": "so"},
    ],
    ids=lambda happens: str(happens["type"]),
)
def test_request_of_every_kind_is_closed_by_what_ends_it_and_by_nothing_else(
    kind: str, turn: str | None, agent: dict[str, Any], happens: dict[str, Any]
) -> None:
    """Beside it one of another agent is open under the same id, and one of the same agent under another."""
    asking = {**EVERY[kind], **({} if turn is None else {"turn_id": turn})}
    name = "id" if kind == "elicitation" else "callId" if "callId" in asking else "call_id"
    stranger = {"agent_id": 2, "session_id": "b"}
    found = OpenRequests(ROOT)
    for message in ({**asking, **agent}, {**asking, **stranger}, {**asking, **agent, name: "other"}):
        found.receive(Event("now", message))
    named = happens["type"] not in ("token_count", "task_complete", "turn_aborted", "agent_message")
    found.receive(Event("now", {**happens, **(agent | {"call_id": "c"} if named else {})}))
    own_turn = not agent and turn in (None, "now")
    over = {
        "token_count": own_turn and kind in WITH_CALLS,
        "task_complete": own_turn,
        "turn_aborted": own_turn,
        "agent_message": False,
    }.get(happens["type"], True)
    left = [(request.session, request.call_id) for request in found]
    session = agent.get("session_id", "")
    first, beside = [(session, "c")], [(session, "other")]
    others = [] if over and not named else beside
    assert left == [*([] if over else first), ("b", "c"), *others]


@pytest.mark.parametrize("agent", [{}, AGENT])
@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("turn", [None, "u1"])
def test_request_that_was_listed_and_is_told_by_its_event_too_stays_the_one_that_it_is(
    turn: str | None, place: int, agent: dict[str, Any]
) -> None:
    """With its answers so far, and its place among the others."""
    calls = [f"c{number}" for number in range(3)]
    events = [asks(call, **({"turn_id": turn} if turn else {}), **agent) for call in calls]
    found = OpenRequests(ROOT)
    for event in events:
        found.add(request_of(event))
    before = list(found)
    found.receive(Event("u1", dict(events[place])))
    assert len(found) == 3
    assert all(now is then for now, then in zip(found, before, strict=True))
    found.receive(Event("u2", {**events[place], "turn_id": "u2"}))
    others = [call for call in calls if call != calls[place]]
    assert [one.call_id for one in found] == [*others, calls[place]], "a later one of its name comes last"
    assert [one.turn_id for one in found][-1] == "u2"
