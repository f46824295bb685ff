"""A planning session outlives every process, and its plan reaches the turn that follows, once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.allowances import Message
from tests.acceptance.conversation import scene
from tests.acceptance.test_questions import CONFIG, event, kill_all, output_of, says

pytestmark = pytest.mark.slow

STEPS = [{"step": "Read", "status": "pending"}, {"step": "Write", "status": "pending"}]


def proposes(call_id: str, title: str) -> Message:
    proposal = {"title": title, "summary": "Adds it.", "plan": {"plan": STEPS}}
    return {"items": [{"call": "approve_plan", "args": {"proposal": proposal}, "call_id": call_id}]}


def submission(id: str, op: Message) -> bytes:
    return json.dumps({"id": id, "op": op}).encode() + b"\n"


def decides(id: str, **response: Any) -> bytes:
    return submission(id, {"type": "resolve_plan_approval", "id": "p1", "response": response})


def texts(request: Message, role: str) -> list[str]:
    said = [item for item in request["input"] if item.get("role") == role]
    return ["".join(part.get("text", "") for part in item["content"]) for item in said]


async def test_planning_session_outlives_every_process_and_its_plan_reaches_the_next_turn(
    tmp_path: Path,
) -> None:
    answers = [{"items": [{"text": text}]} for text in ("went", "summary", "and on")]
    model = [proposes("c1", "Draft"), proposes("c2", "Login"), *answers]
    async with scene(tmp_path, CONFIG, model) as place:
        async with place.proto(preloaded=False) as first:
            await first.until([event("session_configured", "")])
            await first.say(submission("p1", {"type": "plan", "plan_request": {"goal": "Add login"}}))
            await first.until([event("entered_plan_mode", "p1"), event("plan_approval_request", "p1")])
            session = first.events[0]["msg"]["session_id"]
            kill_all(place.setup.data)
        async with place.proto("--resume", session) as second:
            await second.until([event("session_configured", ""), event("plan_approval_request", "p1")])
            await second.say(decides("a1", type="revised", feedback="shorter"))
            await second.until([event("plan_approval_request", "p1")] * 2)
            await second.say(decides("a2", type="approved"))
            await second.until([event("task_complete", "p1")])
            await second.say(says("s1", "go"))
            await second.until([event("task_complete", "s1", last_agent_message="went")])
            await second.say(submission("k1", {"type": "compact"}))
            await second.until([event("task_complete", "k1")])
            await second.say(says("s2", "on"))
            await second.until([event("task_complete", "s2")])
            await second.say(b'{"id":"bye","op":{"type":"shutdown"}}\n')
            assert await second.left() == 0
            told = [each["msg"]["type"] for each in second.events if each["id"] == "p1"]
            told.remove("request_resolved")
            told.remove("request_resolved")
    ends = ["plan_update", "token_count", "exited_plan_mode", "agent_message", "task_complete"]
    assert told[-6:] == ["background_event", *ends]
    requests = place.held.requests
    assert "shorter" in output_of(requests[1], "c1")
    shown = [text for text in texts(requests[2], "developer") if "<approved_plan>" in text]
    assert len(shown) == 1
    assert "Login" in shown[0]
    assert any(text.startswith("Login\n") for text in texts(requests[2], "assistant"))
    assert not [text for text in texts(requests[-1], "developer") if "<approved_plan>" in text]
