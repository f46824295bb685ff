"""The core writes the protocol's messages: every event is a known one, every op gets an answer."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from orchestrator.core.blobs import resolve
from orchestrator.protocol.codec import UnknownRolloutItem, event_msg
from orchestrator.protocol.events import UnknownEvent
from orchestrator.protocol.ops import OPS
from tests.core.driver import Session, op, text
from tests.core.lives import LIVES
from tests.protocol.lines import encode_msg, parse_rollout_line
from tests.protocol.served import NEVER_SERVED

SERVED: dict[str, dict[str, Any]] = {
    "set_thread_name": {"name": "n"},
    "configure_session": {},
    "interrupt": {},
    "user_input": {"items": [text("hi")]},
    "user_turn": {
        "items": [text("hi")],
        "cwd": "/repo",
        "approval_policy": "never",
        "sandbox_policy": {"mode": "read-only"},
        "model": "gpt-5",
        "summary": "auto",
    },
    "override_turn_context": {},
    "exec_approval": {"id": "c1", "decision": "approved"},
    "patch_approval": {"id": "c1", "decision": "denied"},
    "get_path": {},
    "compact": {},
    "resolve_plan_approval": {"id": "p", "response": {"type": "rejected"}},
    "plan": {"plan_request": {"goal": "g"}},
    "review": {"review_request": {"prompt": "p", "user_facing_hint": "h"}},
    "message_agent": {"agent_id": 0, "text": "hi"},
    "cancel_agent": {"agent_id": 1},
    "add_to_history": {"text": "t"},
    "get_history_entry_request": {"offset": 0, "log_id": 0},
    "list_custom_prompts": {},
    "list_skills": {},
    "list_mcp_tools": {},
    "list_models": {},
    "run_user_shell_command": {"command": "ls"},
    "resolve_ask_user_question": {"id": "q", "response": {"type": "cancelled"}},
    "user_input_answer": {"id": "u1", "response": {"answers": {}}},
    "resolve_elicitation": {"server_name": "s", "request_id": "1", "decision": "accept"},
    "thread_rollback": {"num_turns": 1},
    "dynamic_tool_response": {"id": "d", "response": {"output": "", "success": True}},
    "remove_queued": {"submission_id": "u1"},
    "reorder_queue": {"submission_ids": ["u1"]},
    "update_queued": {"submission_id": "u1", "items": [text("t")]},
    "inject_items": {
        "items": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "t"}]}]
    },
    "shutdown": {},
}
NEVER: dict[str, dict[str, Any]] = {
    "undo": {},
    "refresh_mcp_servers": {"config": {"mcp_servers": {}, "mcp_oauth_credentials_store_mode": "auto"}},
}
"""Operations that no session will ever carry out."""


def test_every_op_of_the_protocol_is_listed_here_as_served_or_never_served() -> None:
    assert set(SERVED) | set(NEVER) == set(OPS)


@pytest.mark.parametrize("type", sorted(NEVER))
def test_op_of_other_programs_is_answered_without_a_promise(type: str) -> None:
    seen = Session().submit(op(type, **NEVER[type]), "o1")
    assert seen.one("error")["message"].startswith(f"this version does not serve {type}: ")
    assert set(NEVER) == NEVER_SERVED


def test_client_that_would_change_a_workers_servers_is_told_whose_they_are() -> None:
    session = Session()
    seen = session.submit(op("refresh_mcp_servers", **NEVER["refresh_mcp_servers"]), "o1")
    message = seen.one("error")["message"]
    assert message.endswith("MCP servers are the worker's settings, which no client changes")
    assert session.status == "idle"


@pytest.mark.parametrize("type", sorted(SERVED))
def test_op_that_is_served_never_says_otherwise(type: str) -> None:
    for busy in (False, True):
        session = Session()
        if busy:
            session.say("go")
        seen = session.submit(op(type, **SERVED[type]), "o1")
        assert not any("does not serve" in message.get("message", "") for _, message in seen.events)


@pytest.mark.parametrize("name", sorted(LIVES))
def test_every_event_is_one_of_the_protocol_and_loses_nothing_in_its_model(name: str) -> None:
    for _, message in LIVES[name]().events:
        wire = orjson.loads(orjson.dumps(message, default=dict))
        parsed = event_msg(wire)
        assert not isinstance(parsed, UnknownEvent), wire
        assert not parsed.model_extra, f"{wire['type']} has no field {sorted(parsed.model_extra or {})}"
        assert orjson.loads(encode_msg(parsed)) == wire


@pytest.mark.parametrize("name", sorted(LIVES))
def test_every_line_is_a_rollout_line_that_the_protocol_can_read(name: str) -> None:
    session = LIVES[name]()
    for line in session.lines:
        whole = orjson.dumps(resolve(orjson.loads(line), session.text_of))
        assert not isinstance(parse_rollout_line(whole).item, UnknownRolloutItem)


@pytest.mark.parametrize("name", sorted(LIVES))
def test_every_task_has_one_final_event_and_nothing_of_it_comes_later(name: str) -> None:
    session = LIVES[name]()
    told: dict[str, list[str]] = {}
    for id, message in session.events:
        told.setdefault(id, []).append(message["type"])
    running = session.state.task.id if session.state.task else None
    for id, kinds in told.items():
        finals = [kind for kind in kinds if kind in {"task_complete", "turn_aborted"}]
        expected = int("task_started" in kinds and id != running)
        assert len(finals) == expected, (id, kinds)
        assert finals in ([], kinds[-1:]), (id, kinds)


def test_lives_show_every_event_that_the_core_can_emit() -> None:
    emitted = {kind for live in LIVES.values() for kind in live().types}
    assert emitted == {
        "agent_message",
        "agent_reasoning",
        "agent_reasoning_raw_content",
        "apply_patch_approval_request",
        "context_compaction",
        "conversation_path",
        "error",
        "exec_approval_request",
        "exec_command_begin",
        "exec_command_end",
        "patch_apply_begin",
        "patch_apply_end",
        "session_configured",
        "shutdown_complete",
        "stream_error",
        "task_complete",
        "task_started",
        "token_count",
        "turn_aborted",
        "user_message",
        "warning",
        "web_search_begin",
        "web_search_end",
    }
