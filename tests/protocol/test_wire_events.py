"""Events: every one is read and written as its documents say."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from orchestrator.protocol import events as ev
from orchestrator.protocol.codec import event_of
from orchestrator.protocol.commands import AddFile, UpdateFile
from orchestrator.protocol.events import CodexErrorKind
from orchestrator.protocol.ids import CallId, SubmissionId
from orchestrator.protocol.mcp import CallToolResult
from orchestrator.protocol.scalars import Duration, OutputStream
from orchestrator.protocol.submission import Event
from tests.protocol.lines import MalformedEvent, encode_event, parse_event
from tests.protocol.wire_examples import Json, examples, ids

EVENTS = examples("events")


def read(msg: Json) -> ev.EventMsg:
    return parse_event(orjson.dumps({"id": "sub-1", "msg": msg})).msg


def written(msg: ev.EventMsg) -> Json:
    frame: Json = orjson.loads(encode_event(Event(SubmissionId("sub-1"), msg)))
    value: Json = frame["msg"]
    return value


@pytest.mark.parametrize("msg", EVENTS, ids=ids(EVENTS))
def test_an_event_is_written_as_it_was_read(msg: Json) -> None:
    parsed = read(msg)
    assert type(parsed) is ev.EVENTS[msg["type"]]
    assert written(parsed) == msg


def test_every_event_has_an_example() -> None:
    assert {msg["type"] for msg in EVENTS} == set(ev.EVENTS)


DOCUMENTED = """
    error task_started task_complete token_count turn_aborted shutdown_complete stream_error
    background_event agent_message agent_message_delta user_message agent_reasoning
    agent_reasoning_delta agent_reasoning_raw_content agent_reasoning_raw_content_delta
    agent_reasoning_section_break plan_update session_configured conversation_path
    get_history_entry_response mcp_tool_call_begin mcp_tool_call_end mcp_list_tools_response
    list_custom_prompts_response web_search_begin web_search_end exec_command_begin
    exec_command_output_delta exec_command_end exec_approval_request patch_apply_begin
    patch_apply_end apply_patch_approval_request turn_diff entered_review_mode exited_review_mode
    warning subagent_lifecycle agent_inbox ask_user_question_request plan_approval_request
    sub_agent_tool_call_begin sub_agent_tool_call_end sub_agent_tool_call_activity
    sub_agent_tool_call_tokens entered_plan_mode exited_plan_mode list_skills_response
    agent_message_content_delta plan_delta request_user_input item_started item_completed
"""


def test_every_event_of_the_documents_is_known() -> None:
    assert set(DOCUMENTED.split()) <= set(ev.EVENTS)


@pytest.mark.parametrize(
    ("newer", "older"), [("turn_started", "task_started"), ("turn_complete", "task_complete")]
)
def test_a_turn_tag_is_read_and_a_task_tag_written(newer: str, older: str) -> None:
    assert written(read({"type": newer}))["type"] == older
    assert type(event_of({"type": newer})) is ev.EVENTS[older], "an event of a log or a queue, too"


def test_a_file_change_is_read_with_its_tag_outside() -> None:
    changes = {"/a": {"add": {"content": "x"}}, "/b": {"update": {"unified_diff": "@@", "move_path": None}}}
    begin = read({"type": "patch_apply_begin", "call_id": "p", "auto_approved": False, "changes": changes})
    assert isinstance(begin, ev.PatchApplyBegin)
    assert begin.changes == {"/a": AddFile(content="x"), "/b": UpdateFile(unified_diff="@@")}
    assert written(begin)["changes"]["/b"] == {"type": "update", "unified_diff": "@@", "move_path": None}


@pytest.mark.parametrize(
    ("msg", "nulls"),
    [
        (ev.TaskStarted(), ["model_context_window"]),
        (ev.TaskComplete(), ["last_agent_message"]),
        (ev.TokenCount(), ["info", "rate_limits"]),
        (ev.ExitedReviewMode(), ["review_output"]),
        (ev.ExitedPlanMode(), ["plan_output"]),
        (ev.PlanUpdate(plan=()), ["explanation"]),
        (ev.Error(message="m"), ["codex_error_info"]),
        (ev.StreamError(message="m"), ["codex_error_info", "additional_details"]),
    ],
    ids=lambda value: getattr(value, "type", ""),
)
def test_what_is_always_there_is_written_as_null(msg: ev.EventMsg, nulls: list[str]) -> None:
    assert [key for key, value in written(msg).items() if value is None] == nulls


@pytest.mark.parametrize(
    "msg",
    [
        ev.TurnAborted.model_validate({"reason": "interrupted"}),
        ev.UserMessage(message="m"),
        ev.WarningEvent(message="m"),
        ev.ExecApprovalRequest(call_id=CallId("c"), command=("ls",), cwd="/", reason=None),
        ev.SessionConfigured(session_id="s", model="m"),
    ],
    ids=lambda value: value.type,
)
def test_options_without_a_value_are_left_out(msg: ev.EventMsg) -> None:
    assert None not in written(msg).values()


def test_output_is_base64_on_the_wire_and_bytes_in_code() -> None:
    delta = ev.ExecCommandOutputDelta(call_id=CallId("c"), stream=OutputStream.STDOUT, chunk=b"\xff\xfe>")
    assert written(delta)["chunk"] == "//4+"
    assert read(written(delta)) == delta


def test_output_that_is_not_base64_is_refused() -> None:
    with pytest.raises(MalformedEvent, match=r"msg\.chunk: not base64"):
        read({"type": "exec_command_output_delta", "call_id": "c", "stream": "stdout", "chunk": "ab-_cd"})


def test_a_duration_reads_back_as_seconds() -> None:
    assert Duration(secs=2, nanos=500_000_000).seconds == 2.5


def test_a_tool_result_is_read_in_the_wrapped_form_too() -> None:
    common: dict[str, Any] = {
        "type": "mcp_tool_call_end",
        "call_id": "c",
        "invocation": {"server": "s", "tool": "t"},
        "duration": {"secs": 0, "nanos": 0},
    }
    answered = read({**common, "result": {"Ok": {"content": [], "isError": True}}})
    failed = read({**common, "result": {"Err": "gone"}})
    assert isinstance(answered, ev.McpToolCallEnd)
    assert isinstance(failed, ev.McpToolCallEnd)
    assert answered.result == CallToolResult(is_error=True)
    assert failed.result == "gone"


def test_a_known_fault_is_an_enumeration_member() -> None:
    error = read({"type": "error", "message": "m", "codex_error_info": "unauthorized"})
    assert isinstance(error, ev.Error)
    assert error.codex_error_info is CodexErrorKind.UNAUTHORIZED


def test_a_field_that_a_newer_peer_added_is_kept() -> None:
    msg = {"type": "agent_message", "message": "m", "phase": "commentary", "memory_citation": None}
    assert written(read(msg)) == msg


def test_a_field_beside_the_message_is_kept() -> None:
    frame = {"id": "x", "msg": {"type": "shutdown_complete"}, "trace": {"a": 1}}
    assert orjson.loads(encode_event(parse_event(frame))) == frame


@pytest.mark.parametrize(
    ("frame", "complaint"),
    [
        (b"{", "not JSON"),
        (b"[]", "not a JSON object"),
        (b'{"msg":{"type":"shutdown_complete"}}', "id: a string is required"),
        (b'{"id":"x"}', "msg: type must be one of"),
        (b'{"id":"x","msg":{"message":"m"}}', "msg: type must be one of"),
        (b'{"id":"x","msg":{"type":["error"]}}', "msg: type must be one of"),
        (b'{"id":"x","msg":{"type":"error"}}', r"msg\.message: required"),
        (b'{"id":"x","msg":{"type":"agent_inbox","agent_id":-1}}', r"msg\.agent_id: "),
    ],
)
def test_a_frame_that_is_no_event_is_refused(frame: bytes, complaint: str) -> None:
    with pytest.raises(MalformedEvent, match=complaint):
        parse_event(frame)
