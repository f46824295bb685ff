"""A server's question whose processes are all killed ends with its call; the next one is answered once."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.acceptance.allowances import Message
from tests.acceptance.conversation import scene
from tests.acceptance.test_questions import event, kill_all, output_of, says

pytestmark = pytest.mark.slow

SERVER = Path(__file__).parents[1] / "mcp" / "bad_server.py"
CONFIG = (
    'model = "gpt-5"\napproval_policy = "never"\nsandbox_mode = "danger-full-access"\n'
    f"[mcp_servers.s]\ncommand = {json.dumps(sys.executable)}\n"
    f"args = ['-I', {json.dumps(str(SERVER))}, 'good']\n"
)


def asks(call_id: str) -> Message:
    return {"items": [{"call": "mcp__s__ask", "args": {}, "call_id": call_id}]}


def decides(id: str, request: str, decision: str) -> bytes:
    op = {"type": "resolve_elicitation", "server_name": "s", "request_id": request, "decision": decision}
    return json.dumps({"id": id, "op": op}).encode() + b"\n"


async def test_servers_question_ends_with_its_killed_worker_and_the_next_one_is_answered_once(
    tmp_path: Path,
) -> None:
    model = [asks("c1"), asks("c2"), {"items": [{"text": "done"}]}]
    async with scene(tmp_path, CONFIG, model) as place:
        async with place.proto(preloaded=False) as first:
            await first.until([event("session_configured", "")])
            await first.say(says("s1", "go"))
            await first.until([event("elicitation_request")])
            session = first.events[0]["msg"]["session_id"]
            kill_all(place.setup.data)
        async with place.proto("--resume", session) as second:
            # The lost question may be told again before the next worker withdraws it.
            asked_anew = [event("mcp_tool_call_begin"), event("elicitation_request")]
            await second.until([event("session_configured", ""), *asked_anew])
            await second.say(decides("a1", "c1-q1", "accept"))
            await second.until([event("error", "a1")])
            await second.say(decides("a2", "c2-q1", "decline") + decides("a3", "c2-q1", "decline"))
            await second.until([event("task_complete", last_agent_message="done")])
            told = [each["msg"] for each in second.events]
            await second.say(b'{"id":"bye","op":{"type":"shutdown"}}\n')
            assert await second.left() == 0
    ends = [msg["call_id"] for msg in told if msg["type"] == "mcp_tool_call_end"]
    assert sorted(ends) == ["c1", "c2"], "each call ends once"
    assert [msg["id"] for msg in told if msg["type"] == "elicitation_request"].count("c2-q1") == 1
    resolved = [(msg["call_id"], msg["decision"]) for msg in told if msg["type"] == "request_resolved"]
    assert resolved[0] == ("c1-q1", "withdrawn")
    assert len([msg for msg in told if msg["type"] == "error"]) == 1, "the same decision again is none"
    assert len(place.held.requests) == 3
    assert "in doubt" in output_of(place.held.requests[1], "c1")
    assert '"action": "decline"' in output_of(place.held.requests[2], "c2").replace('\\"', '"')
