"""The kind of a stored entry by its first bytes: what reading all of it would give."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core import facts as f
from orchestrator.core.entries import (
    EVENT_MSG,
    RESPONSE_ITEM,
    Entry,
    decode_entry,
    encode_entry,
    encode_event,
    fact,
    line,
    line_ms,
    published_kind,
    shows_only,
    stored_kind,
)
from orchestrator.core.evolve import evolve
from orchestrator.core.lines import LINES
from orchestrator.core.state import State
from orchestrator.protocol.codec import DendroFact, UnknownRolloutItem, event_of, rollout_item
from orchestrator.protocol.events import EVENT_SYNONYMS, EVENTS, ExecCommandEnd, UnknownEvent
from orchestrator.protocol.items import ITEM_SYNONYMS, ITEMS, UnknownItem
from tests.core import golden
from tests.core.driver import NOON_MS
from tests.core.test_core_facts import facts, objects
from tests.protocol.wire_examples import examples

TAGS = st.sampled_from(sorted({*EVENTS, *EVENT_SYNONYMS, *ITEMS, *ITEM_SYNONYMS, *f.KINDS, "request_ended"}))
TYPES = st.sampled_from([*(cls.type for cls in LINES), "event_msg", "response_item", "dendro", "of tomorrow"])
TRAPS = ('"type":"task_started"', '","payload":{"type":"task_started"', '\\"kind":"task_ended"', "{}")
IDS = st.text(max_size=4) | st.sampled_from(TRAPS)
PAYLOADS = st.lists(
    st.tuples(st.sampled_from(["type", "kind", "id", "outcome", "x"]), TAGS | IDS | objects), max_size=4
).map(dict)


def stored(entry: Entry) -> bytes:
    return encode_entry(entry, NOON_MS, {}).line


def read_as(data: bytes) -> type:
    """The record that the whole line is read as; a payload of the kind may be no sound one."""
    value = orjson.loads(data)
    payload, of = value["payload"], value["type"]
    tag, outcome = (payload.get(name) for name in ("kind" if of == "dendro" else "type", "outcome"))
    if of not in ("event_msg", "response_item", "dendro"):
        return {cls.type: cls for cls in LINES}.get(of, UnknownRolloutItem)
    if not isinstance(tag, str):
        return {"event_msg": UnknownEvent, "response_item": UnknownItem}.get(of, f.UnknownFact)
    if of == "event_msg":
        return EVENTS.get(EVENT_SYNONYMS.get(tag, tag), UnknownEvent)
    if of == "response_item":
        return ITEMS.get(ITEM_SYNONYMS.get(tag, tag), UnknownItem)
    if tag == "request_ended":
        ends = [cls for cls in get_args(f.RequestEnded) if f.encode(cls(1))["outcome"] == outcome]
        return ends[0] if ends else f.UnknownFact
    return f.KINDS.get(tag, f.UnknownFact)


@pytest.mark.parametrize("of", [EVENT_MSG, RESPONSE_ITEM])
def test_kind_of_every_event_and_item_is_the_record_that_it_is_read_as(of: str) -> None:
    seen = set()
    for payload in examples("events" if of == EVENT_MSG else "items"):
        data = stored(Entry(of, payload, "t1"))
        record = type(rollout_item(of, payload))
        assert stored_kind(data) is record, payload
        if of == EVENT_MSG:
            assert published_kind(encode_event(decode_entry(data))) is record
            assert type(event_of(payload)) is record
        seen.add(record)
    assert seen >= set((EVENTS if of == EVENT_MSG else ITEMS).values())


@given(facts())
def test_kind_of_every_fact_is_the_record_that_it_is_read_as(stated: f.Fact) -> None:
    data = stored(fact(stated))
    assert stored_kind(data) is type(f.decode(decode_entry(data).payload)) is type(stated)
    assert isinstance(rollout_item("dendro", decode_entry(data).payload), DendroFact)


@pytest.mark.parametrize("cls", LINES)
def test_kind_of_every_other_line_is_its_record(cls: Any) -> None:
    assert stored_kind(stored(line(cls()))) is cls


@given(TYPES, PAYLOADS, IDS, st.permutations(["timestamp", "type", "payload", "id"]))
def test_kind_is_told_whatever_a_line_holds_and_in_whatever_order(
    of: str, payload: dict[str, Any], id: str, order: list[str]
) -> None:
    data = stored(Entry(of, payload, id))
    assert stored_kind(data) is read_as(data)
    value = orjson.loads(data)
    moved = orjson.dumps({name: value[name] for name in order if name in value})
    assert stored_kind(moved) is read_as(data)
    assert line_ms(data) == line_ms(moved) == NOON_MS


@given(PAYLOADS, IDS)
def test_kind_of_a_published_event_is_told_whatever_it_holds(message: dict[str, Any], id: str) -> None:
    tag = message.get("type") if isinstance(message.get("type"), str) else ""
    kind = EVENTS.get(EVENT_SYNONYMS.get(str(tag), str(tag)), UnknownEvent)
    for frame in ({"id": id, "msg": message}, {"msg": message, "id": id}):
        assert published_kind(orjson.dumps(frame)) is kind


def test_kind_of_every_line_of_a_golden_rollout_is_told() -> None:
    for name in golden.NAMES:
        for data in golden.lines(name):
            assert stored_kind(data) is read_as(data), data


@pytest.mark.parametrize(
    "data", [b"", b"no JSON", b"[]", b"{}", b'{"type":"event_msg"}', b'{"type":["dendro"]}']
)
def test_what_is_no_line_is_of_no_known_kind(data: bytes) -> None:
    assert stored_kind(data) is UnknownRolloutItem
    assert published_kind(data) is UnknownEvent


def test_event_that_lacks_what_its_kind_has_passes_whole() -> None:
    message = {"type": "exec_command_end", "call_id": "c1", "of tomorrow": [1]}
    read = event_of(message)
    assert isinstance(read, UnknownEvent)
    assert (read.root, read.type) == (message, "exec_command_end")
    assert stored_kind(stored(Entry(EVENT_MSG, message))) is ExecCommandEnd


LAYS_OUT_JSON = {
    "protocol/codec.py",
    "core/entries.py",
    "core/commit_parts.py",
    "gateways/app_server/messages.py",
    "model/canonical.py",
    "rollouts/bundle_writer.py",
    "rollouts/inherited_lines.py",
}
"""Files that write JSON piece by piece, or know its first bytes."""


def test_no_reader_of_logs_looks_for_patterns_in_stored_json() -> None:
    product = Path(f.__file__).parents[2]
    found = {
        path.relative_to(product).as_posix()
        for path in product.rglob("*.py")
        if re.search(r"""\bb'(?:"|\{)""", path.read_text(encoding="utf-8"))
    }
    assert found <= LAYS_OUT_JSON, "ask stored_kind, published_kind or may_refer"


@pytest.mark.parametrize("of", [EVENT_MSG, RESPONSE_ITEM])
def test_line_that_a_fold_passes_over_unread_changes_no_state(of: str) -> None:
    state, passed = State(), 0
    for payload in examples("events" if of == EVENT_MSG else "items"):
        data = stored(Entry(of, payload, "t1"))
        assert shows_only(data) is (of == EVENT_MSG and payload.get("type") != "token_count"), payload
        if shows_only(data):
            passed += 1
            assert evolve(state, decode_entry(data), 2) is state
        assert not shows_only(orjson.dumps({"type": of, "payload": payload}))
    assert (passed > 20) is (of == EVENT_MSG)


@given(facts())
def test_no_fact_is_passed_over_unread(stated: f.Fact) -> None:
    assert not shows_only(stored(fact(stated)))
