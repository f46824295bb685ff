"""Messages of a newer version survive reading and writing, whatever they are."""

from __future__ import annotations

from typing import Any

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.protocol.codec import UnknownRolloutItem
from orchestrator.protocol.events import EVENT_SYNONYMS, EVENTS, UnknownEvent
from orchestrator.protocol.items import UnknownItem
from tests.commit_seed import examples
from tests.protocol.lines import encode_event, encode_rollout_line, parse_event, parse_rollout_line

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)
objects = st.dictionaries(st.text(max_size=8), values, max_size=5)
new_tags = st.text(max_size=12).filter(lambda tag: tag not in EVENTS and tag not in EVENT_SYNONYMS)


@settings(max_examples=examples(150), deadline=None)
@given(new_tags, objects)
def test_an_unknown_event_is_written_byte_for_byte(tag: str, body: dict[str, Any]) -> None:
    frame = orjson.dumps({"id": "x", "msg": {**body, "type": tag}})
    event = parse_event(frame)
    assert isinstance(event.msg, UnknownEvent)
    assert event.msg.type == tag
    assert encode_event(event) == frame


@settings(max_examples=examples(100), deadline=None)
@given(objects)
def test_unknown_fields_of_an_event_are_kept(extra: dict[str, Any]) -> None:
    msg = {**extra, "type": "background_event", "message": "m"}
    frame = {"id": "x", "msg": msg}
    assert orjson.loads(encode_event(parse_event(orjson.dumps(frame)))) == frame


@settings(max_examples=examples(100), deadline=None)
@given(objects)
def test_unknown_fields_within_an_event_are_kept(extra: dict[str, Any]) -> None:
    step = {**extra, "step": "s", "status": "pending"}
    frame = {"id": "x", "msg": {"type": "plan_update", "explanation": None, "plan": [step]}}
    assert orjson.loads(encode_event(parse_event(orjson.dumps(frame)))) == frame


@settings(max_examples=examples(100), deadline=None)
@given(st.text(max_size=10).map(lambda tag: f"{tag}!"), values)
def test_an_unknown_rollout_line_is_written_byte_for_byte(kind: str, payload: Any) -> None:
    line = orjson.dumps({"timestamp": "t", "type": kind, "payload": payload})
    parsed = parse_rollout_line(line)
    assert isinstance(parsed.item, UnknownRolloutItem)
    assert encode_rollout_line(parsed) == line


@settings(max_examples=examples(100), deadline=None)
@given(st.text(max_size=10).map(lambda tag: f"{tag}!"), objects)
def test_an_unknown_item_is_written_byte_for_byte(tag: str, body: dict[str, Any]) -> None:
    line = orjson.dumps({"timestamp": "t", "type": "response_item", "payload": {**body, "type": tag}})
    parsed = parse_rollout_line(line)
    assert isinstance(parsed.item, UnknownItem)
    assert encode_rollout_line(parsed) == line


@settings(max_examples=examples(60), deadline=None)
@given(objects)
def test_unknown_fields_of_a_line_are_kept(extra: dict[str, Any]) -> None:
    line = {**extra, "timestamp": "t", "type": "compacted", "payload": {"message": "m"}}
    assert orjson.loads(encode_rollout_line(parse_rollout_line(orjson.dumps(line), foreign=True))) == line


@settings(max_examples=examples(60), deadline=None)
@given(objects)
def test_a_fact_of_our_own_keeps_any_fields(fields: dict[str, Any]) -> None:
    line = {"timestamp": "t", "type": "dendro", "payload": {**fields, "kind": "k"}}
    assert orjson.loads(encode_rollout_line(parse_rollout_line(orjson.dumps(line)))) == line
