"""Requests that are open for a client, by the events that the client receives."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.core.ids import SessionId
from orchestrator.views.asked_requests import OpenRequests
from orchestrator.views.event import Event

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
