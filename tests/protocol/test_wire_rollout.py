"""Response items and rollout lines."""

from __future__ import annotations

import orjson
import pytest

from orchestrator.protocol import items
from orchestrator.protocol.codec import DendroFact, UnknownRolloutItem, rollout_item
from orchestrator.protocol.events import AgentMessage, UnknownEvent
from orchestrator.protocol.ids import CallId
from tests.protocol.lines import (
    MalformedRolloutLine,
    RolloutLine,
    encode_payload,
    encode_rollout_line,
    parse_rollout_line,
    rollout_type,
)
from tests.protocol.wire_examples import Json, examples, ids

ITEMS = examples("items")
LINES = examples("rollout")


def rewritten(line: Json) -> Json:
    value: Json = orjson.loads(encode_rollout_line(parse_rollout_line(orjson.dumps(line))))
    return value


@pytest.mark.parametrize("item", ITEMS, ids=ids(ITEMS))
def test_an_item_is_written_as_it_was_read(item: Json) -> None:
    assert orjson.loads(encode_payload(rollout_item("response_item", item))) == item


@pytest.mark.parametrize("line", LINES, ids=ids(LINES))
def test_a_line_is_written_as_it_was_read(line: Json) -> None:
    assert rewritten(line) == line


def test_every_item_of_the_documents_has_an_example() -> None:
    documented = {
        "message", "reasoning", "local_shell_call", "function_call", "function_call_output",
        "custom_tool_call", "custom_tool_call_output", "web_search_call", "other",
        "ghost_snapshot", "compaction",
    }  # fmt: skip
    assert documented <= {item["type"] for item in ITEMS}


def test_an_item_of_an_unknown_kind_is_held_whole() -> None:
    item = rollout_item("response_item", {"type": "image_generation_call", "result": "AA=="})
    assert isinstance(item, items.UnknownItem)
    assert (item.type, rollout_type(item)) == ("image_generation_call", "response_item")


def test_an_event_of_an_unknown_kind_is_held_whole() -> None:
    item = rollout_item("event_msg", {"type": "hook_started"})
    assert isinstance(item, UnknownEvent)
    assert rollout_type(item) == "event_msg"


def test_a_compaction_is_read_under_its_former_name() -> None:
    item = rollout_item("response_item", {"type": "compaction_summary", "encrypted_content": "E"})
    assert item == items.Compaction(encrypted_content="E")


def test_a_time_limit_is_read_under_its_other_name() -> None:
    action = {"type": "exec", "command": ["ls"], "timeout": 9}
    item = rollout_item(
        "response_item", {"type": "local_shell_call", "status": "incomplete", "action": action}
    )
    assert isinstance(item, items.LocalShellCall)
    assert isinstance(item.action, items.LocalShellExec)
    assert item.action.timeout_ms == 9
    assert orjson.loads(encode_payload(item))["action"] == {
        "type": "exec",
        "command": ["ls"],
        "timeout_ms": 9,
    }


def test_an_mcp_output_joins_the_input_of_the_model() -> None:
    output = items.McpToolCallOutput(call_id=CallId("c"), result="gone")
    assert output.model_dump() == {"type": "mcp_tool_call_output", "call_id": "c", "result": "gone"}


def test_a_fact_of_our_own_carries_its_fields_beside_its_kind() -> None:
    line = RolloutLine("t", DendroFact("reservation", {"n": 2}), seq=4, epoch=1)
    assert orjson.loads(encode_rollout_line(line)) == {
        "timestamp": "t",
        "type": "dendro",
        "payload": {"kind": "reservation", "n": 2},
        "seq": 4,
        "epoch": 1,
    }


def test_own_fields_are_read_back() -> None:
    line = RolloutLine(
        "t", AgentMessage(message="m"), id="sub-1", seq=1, epoch=2, agent_id=0, salt="aa", chain="bb"
    )
    assert parse_rollout_line(encode_rollout_line(line)) == line


def test_a_foreign_line_that_does_not_fit_its_type_is_kept_whole() -> None:
    line = {"timestamp": "t", "type": "turn_context", "payload": {"cwd": 5}, "ordinal": 1}
    parsed = parse_rollout_line(orjson.dumps(line), foreign=True)
    assert parsed.item == UnknownRolloutItem("turn_context", {"cwd": 5})
    assert orjson.loads(encode_rollout_line(parsed)) == line


def test_a_peer_may_use_the_names_of_our_fields_for_something_else() -> None:
    line = {
        "timestamp": "t",
        "type": "compacted",
        "payload": {"message": "m"},
        "id": 7,
        "seq": 3,
        "chain": [],
    }
    parsed = parse_rollout_line(orjson.dumps(line), foreign=True)
    assert (parsed.id, parsed.seq, parsed.chain) == (None, 3, None)
    assert orjson.loads(encode_rollout_line(parsed)) == line


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (b"", "not JSON"),
        (b"3", "not a JSON object"),
        (b'{"timestamp":"t","type":"compacted"}', "timestamp, type and payload are required"),
        (b'{"type":"compacted","payload":{"message":""}}', "timestamp, type and payload are required"),
        (b'{"timestamp":"t","type":"compacted","payload":{"message":""},"seq":"1"}', "seq: int expected"),
        (
            b'{"timestamp":"t","type":"compacted","payload":{"message":""},"epoch":true}',
            "epoch: int expected",
        ),
        (b'{"timestamp":"t","type":"compacted","payload":{}}', r"payload\.message: required"),
        (b'{"timestamp":"t","type":"event_msg","payload":7}', "payload: type must be one of"),
        (b'{"timestamp":"t","type":"turn_context","payload":[]}', "payload: an object is required"),
        (
            b'{"timestamp":"t","type":"response_item","payload":{"type":"message","role":"user","content":[{}]}}',
            r"payload\.content\[0\]: type must be one of",
        ),
    ],
)
def test_a_line_of_our_own_that_does_not_fit_is_an_error(line: bytes, complaint: str) -> None:
    with pytest.raises(MalformedRolloutLine, match=complaint):
        parse_rollout_line(line)
