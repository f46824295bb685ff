"""Errors of a client in a submission, and the answers that it gets."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.protocol.bounds import SCHEMA_DEPTH
from orchestrator.protocol.codec import MAX_DEPTH, MESSAGE_LIMIT, encode_submission, parse_submission
from orchestrator.protocol.submission import MalformedSubmission, UnknownOp
from tests.commit_seed import examples

MALFORMED = [
    (b"", "", "not JSON"),
    (b"hello", "", "not JSON"),
    (b'{"id":"a","op":', "", "not JSON"),
    (b'{"id":"\xff","op":{"type":"interrupt"}}', "", "not JSON"),
    (b'{"id":"\\ud800","op":{"type":"interrupt"}}', "", "not JSON"),
    (b'{"id":"a","op":{"type":"interrupt"},"n":NaN}', "", "not JSON"),
    (b"null", "", "not a JSON object"),
    (b'["id"]', "", "not a JSON object"),
    (b"{}", "", "id: a string is required"),
    (b'{"id":7,"op":{"type":"interrupt"}}', "", "id: a string is required"),
    (b'{"id":"","op":{"type":"shutdown"}}', "", "id: at least one character is required"),
    (b'{"id":"a"}', "a", "op: an object is required"),
    (b'{"id":"a","op":"interrupt"}', "a", "op: an object is required"),
    (b'{"id":"a","op":{}}', "a", "op.type: a string is required"),
    (b'{"id":"a","op":{"type":{}}}', "a", "op.type: a string is required"),
    (b'{"id":"a","op":{"type":"user_input"}}', "a", "op.items: required"),
    (b'{"id":"a","op":{"type":"user_input","items":{}}}', "a", "op.items: an array is required"),
    (b'{"id":"a","op":{"type":"user_input","items":[5]}}', "a", "op.items[0]: type must be one of"),
    (
        b'{"id":"a","op":{"type":"user_input","items":[{"type":"text","text":"x"},{"type":"text","text":1}]}}',
        "a",
        "op.items[1].text: a string is required",
    ),
    (b'{"id":"a","op":{"type":"exec_approval","id":"c","decision":"maybe"}}', "a", "op.decision: "),
    (b'{"id":"a","op":{"type":"exec_approval","id":"c","decision":null}}', "a", "op.decision: "),
    (b'{"id":"a","op":{"type":"thread_rollback","num_turns":true}}', "a", "op.num_turns: an integer is"),
    (b'{"id":"a","op":{"type":"thread_rollback","num_turns":"1"}}', "a", "op.num_turns: an integer is"),
    (b'{"id":"a","op":{"type":"thread_rollback","num_turns":-1}}', "a", "op.num_turns: "),
    (b'{"id":"a","op":{"type":"thread_rollback","num_turns":1.0}}', "a", "op.num_turns: an integer is"),
    (b'{"id":"a","op":{"type":"list_skills","force_reload":1}}', "a", "op.force_reload: a boolean is"),
    (b'{"id":"a","op":{"type":"plan","plan_request":"goal"}}', "a", "op.plan_request: an object is"),
    (
        b'{"id":"a","op":{"type":"override_turn_context","sandbox_policy":{"mode":"root"}}}',
        "a",
        "op.sandbox_policy: mode must be one of danger-full-access, external-sandbox, read-only",
    ),
    (
        b'{"id":"a","op":{"type":"override_turn_context","sandbox_policy":{"type":"external-sandbox"}}}',
        "a",
        "op.sandbox_policy: external-sandbox is not served",
    ),
    (
        b'{"id":"a","op":{"type":"user_input","items":[],"overrides":{"type":"override_turn_context",'
        b'"sandbox_policy":{"mode":"external-sandbox"}}}}',
        "a",
        "op.overrides.sandbox_policy: external-sandbox is not served",
    ),
    (b'{"id":"a","op":{"type":"override_turn_context","effort":"unset"}}', "a", "op.effort: "),
]


@pytest.mark.parametrize(("line", "submission_id", "complaint"), MALFORMED)
def test_the_client_is_told_which_field_is_wrong(line: bytes, submission_id: str, complaint: str) -> None:
    with pytest.raises(MalformedSubmission) as raised:
        parse_submission(line)
    assert raised.value.submission_id == submission_id
    assert raised.value.message.startswith(complaint)
    assert not isinstance(raised.value, UnknownOp)


@pytest.mark.parametrize("tag", ["fly", "", "Interrupt", "?", "turn_started"])
def test_an_unknown_operation_is_told_apart(tag: str) -> None:
    with pytest.raises(UnknownOp) as raised:
        parse_submission(orjson.dumps({"id": "a", "op": {"type": tag}}))
    assert raised.value.submission_id == "a"
    assert repr(tag) in raised.value.message


def test_a_complaint_is_one_short_line() -> None:
    with pytest.raises(UnknownOp) as raised:
        parse_submission(orjson.dumps({"id": "a", "op": {"type": "x\n" * 10_000}}))
    assert "\n" not in raised.value.message
    assert len(raised.value.message) <= MESSAGE_LIMIT


def test_a_path_of_any_length_is_cut() -> None:
    name = "n\n" * 5000
    broken = {"id": "q", "response": {"answers": {name: 5}}, "type": "user_input_answer"}
    with pytest.raises(MalformedSubmission) as raised:
        parse_submission(orjson.dumps({"id": "a", "op": broken}))
    assert len(raised.value.message) <= MESSAGE_LIMIT
    assert "\n" not in raised.value.message


def nested(levels: int) -> bytes:
    return b"[" * levels + b"]" * levels


@pytest.mark.parametrize("shape", [b"%b", b'{"a":%b}', b"[[],%b]"])
def test_a_value_nested_too_deep_is_refused_before_it_can_be_stored(shape: bytes) -> None:
    schema = shape % nested(MAX_DEPTH - 1)
    line = b'{"id":"a","op":{"type":"user_input","items":[],"final_output_json_schema":%b}}' % schema
    with pytest.raises(MalformedSubmission, match="nested deeper than 128 levels"):
        parse_submission(line)


@pytest.mark.parametrize("shape", [b"%b", b'[{"a":1},%b]', b"[%b,[],{}]"])
@pytest.mark.parametrize("more", [0, 1])
def test_a_value_may_be_nested_as_deep_as_that_and_no_deeper(shape: bytes, more: int) -> None:
    around = 2 + (shape != b"%b")
    line = b'{"id":"a","op":{"type":"interrupt","x":%b}}' % (shape % nested(MAX_DEPTH - around + more))
    if more:
        with pytest.raises(MalformedSubmission, match="nested deeper than 128 levels"):
            parse_submission(line)
    else:
        assert parse_submission(line).id == "a"


def test_the_deepest_value_that_is_read_can_be_written() -> None:
    schema = nested(SCHEMA_DEPTH)
    line = b'{"id":"a","op":{"type":"user_input","items":[],"final_output_json_schema":%b}}' % schema
    assert encode_submission(parse_submission(line)) == line


def test_many_shallow_brackets_are_no_depth() -> None:
    items = [{"type": "text", "text": "[{"}] * 500
    line = orjson.dumps({"id": "a", "op": {"type": "user_input", "items": items}})
    assert encode_submission(parse_submission(line)) == line


@settings(max_examples=examples(200), deadline=None)
@given(st.binary(max_size=60))
def test_no_bytes_raise_anything_else(line: bytes) -> None:
    with pytest.raises(MalformedSubmission):
        parse_submission(line)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=examples(150), deadline=None)
@given(
    st.sampled_from(["user_turn", "exec_approval", "review", "list_skills", "resolve_plan_approval"]),
    st.dictionaries(
        st.sampled_from(
            ["items", "cwd", "id", "decision", "response", "cwds", "review_request", "sandbox_policy"]
        ),
        json_values,
    ),
)
def test_no_fields_raise_anything_else(tag: str, fields: dict[str, object]) -> None:
    complaint = complaint_about(orjson.dumps({"id": "a", "op": {**fields, "type": tag}}))
    assert complaint is None or (complaint.submission_id == "a" and complaint.message.startswith("op"))


def complaint_about(line: bytes) -> MalformedSubmission | None:
    try:
        parse_submission(line)
    except MalformedSubmission as error:
        return error
    return None


def test_line_of_very_many_values_is_refused_before_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.protocol.codec._OP", None)
    for items in ([{"type": "text", "text": "x"}] * 30_000, [[[0] * 60_000]]):
        line = orjson.dumps({"id": "many", "op": {"type": "user_input", "items": items}})
        with pytest.raises(MalformedSubmission, match="at most 50,000 values") as refused:
            parse_submission(line)
        assert refused.value.submission_id == "many"
