"""Entries as bytes, large values beside them, states as snapshots: nothing changes on the way."""

from __future__ import annotations

import hashlib
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core import snapshot
from orchestrator.core.blobs import (
    INLINE_BYTES,
    INLINE_TEXT_BYTES,
    externalise,
    is_reference,
    references,
    resolve,
)
from orchestrator.core.entries import (
    DENDRO,
    EVENT_MSG,
    LINE_BYTES,
    RESPONSE_ITEM,
    Entry,
    decode_entry,
    encode_entry,
    encode_event,
    encode_value,
    event,
    timestamp,
)
from orchestrator.core.evolve import fold
from orchestrator.core.frozen import replace
from orchestrator.core.history import Log
from orchestrator.core.ids import AgentId, SessionId
from orchestrator.core.lines import MetaLine
from orchestrator.core.snapshot import (
    Unauthenticated,
    decode,
    decode_snapshot,
    digest,
    encode,
    encode_snapshot,
)
from orchestrator.core.state import State
from orchestrator.core.tree import Child, TreeView, Watchdog
from orchestrator.protocol.events import ShutdownComplete
from tests.core.driver import NOON_MS, Session, a_command, a_patch, assistant

LARGE = ("output", "stdout", "arguments", "image_url", "patch")
SMALL = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
LONG = st.tuples(SMALL, st.integers(900, 3_000)).map(lambda pair: (pair[0] or "é") * pair[1])
LEAVES = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | SMALL | LONG
KEYS = st.sampled_from([*LARGE, "text", "message", "content"])
JSON = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=6
)


@given(JSON)
def test_value_comes_back_whole_from_its_references(value: Any) -> None:
    blobs: dict[str, bytes] = {}
    kept = externalise(value, blobs)
    assert set(references(kept)) == set(blobs)
    assert all(hashlib.sha256(data).hexdigest() == name for name, data in blobs.items())
    texts = {name: data.decode() for name, data in blobs.items()}
    assert resolve(kept, texts.get) == value


@given(JSON)
def test_nothing_long_stays_in_a_large_field(value: Any) -> None:
    kept = externalise({"output": value}, {})
    assert _longest(kept) <= INLINE_TEXT_BYTES
    assert externalise(kept, {}) == kept


def _longest(value: Any) -> int:
    if isinstance(value, str):
        return len(value.encode())
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return max(map(_longest, inner), default=0)


@pytest.mark.parametrize(("field", "limit"), [("output", INLINE_BYTES), ("text", INLINE_TEXT_BYTES)])
def test_string_at_the_limit_stays_and_one_byte_more_goes(field: str, limit: int) -> None:
    blobs: dict[str, bytes] = {}
    assert externalise({field: "x" * limit}, blobs) == {field: "x" * limit}
    assert is_reference(externalise({field: "x" * (limit + 1)}, blobs)[field])
    assert is_reference(externalise({field: "é" * (limit // 2 + 1)}, blobs)[field])


@pytest.mark.parametrize(
    "named",
    ["x" * 5_000, "../" * 22, "\0" * 64, "A" * 64, "a" * 63, "a" * 64 + "\n", "", None, 7],
)
def test_value_of_a_client_that_names_no_hash_is_no_reference(named: object) -> None:
    value = {"schema": {"$blob": named, "bytes": 3}}
    assert list(references(value)) == []
    assert resolve(value, lambda _: "another text") == value


def test_reference_counts_its_bytes_by_a_number() -> None:
    assert is_reference({"$blob": "a" * 64, "bytes": 3})
    assert not any(is_reference({"$blob": "a" * 64, "bytes": odd}) for odd in (True, "3", 3.0, None))


def test_text_that_nobody_has_any_more_says_how_long_it_was() -> None:
    kept = externalise({"output": "x" * 5_000}, {})
    assert resolve(kept, lambda _: None) == {"output": "[5000 bytes that are no longer stored]"}


ENTRIES = st.builds(
    Entry,
    st.sampled_from([RESPONSE_ITEM, EVENT_MSG, DENDRO, "newer_type"]),
    st.dictionaries(KEYS, JSON, max_size=3),
    SMALL,
)


@given(ENTRIES)
def test_stored_line_gives_the_entry_that_was_folded(entry: Entry) -> None:
    blobs: dict[str, bytes] = {}
    encoded = encode_entry(entry, NOON_MS, blobs)
    read = decode_entry(encoded.line)
    assert read == encoded.entry
    assert b"\n" not in encoded.line
    texts = {name: data.decode() for name, data in blobs.items()}
    assert resolve(read.payload, texts.get) == entry.payload
    assert (read.type, read.id) == (entry.type, entry.id)


def test_stored_line_is_the_peers_shape_with_its_time() -> None:
    line = orjson.loads(encode_entry(event("u1", ShutdownComplete()), NOON_MS + 7, {}).line)
    assert line == {
        "timestamp": "2025-09-20T10:00:00.007Z",
        "type": "event_msg",
        "payload": {"type": "shutdown_complete"},
        "id": "u1",
    }
    assert orjson.loads(encode_event(event("u1", ShutdownComplete()))) == {
        "id": "u1",
        "msg": {"type": "shutdown_complete"},
    }


@pytest.mark.parametrize("ms", [0, 999, 1_758_362_400_000, 253_402_300_799_999])
def test_times_keep_their_milliseconds(ms: int) -> None:
    assert timestamp(ms).endswith(f".{ms % 1000:03d}Z")


@pytest.mark.parametrize("line", [b"", b"{", b"\xff", b"null x"])
def test_line_that_is_no_entry_is_refused(line: bytes) -> None:
    with pytest.raises(ValueError):
        decode_entry(line)


def test_value_that_is_not_json_is_refused_by_name() -> None:
    with pytest.raises(TypeError):
        encode_entry(Entry(DENDRO, {"kind": "x", "value": object()}), NOON_MS, {})


# --- snapshots -----------------------------------------------------------------------


def everything() -> Session:
    """A session in whose state every field has a value."""
    session = Session(settings={"effort": "high", "approval_policy": "untrusted"})
    session.record(Entry("session_meta", {"id": "x", "timestamp": "t"}))
    session.say("one", "u1")
    session.answers("first", "r1")
    session.compact()
    session.begin()
    session.item(assistant("sum"))
    session.ends()
    session.say("two", "u2")
    session.begin()
    session.calls("c1")
    session.calls("p1", name="apply_patch")
    session.ends("r2", rate_limits={"primary": None, "secondary": None})
    session.assessed("c1", a_command("make"))
    session.decides("c1", "approved_for_session", who="ann")
    session.finishes("c1")
    session.assessed("p1", a_patch("/other/a.txt", outside=["/other/a.txt"]))
    session.decides("p1", "approved_for_session", kind="patch")
    session.say("three", "u3")
    session.shutdown()
    return session


def test_snapshot_is_the_state() -> None:
    session = everything()
    again = decode(encode(session.state))
    assert again == session.replayed()
    assert encode(again) == encode(session.state)
    assert digest(again) == session.digest
    assert digest(decode(encode(State()))) == digest(State())


def test_session_goes_on_from_a_snapshot_as_from_its_log() -> None:
    session = everything()
    restored, at = decode(encode(session.state)), session.seq
    session.stopped()
    tail = [decode_entry(line) for line in session.lines[at:]]
    assert digest(fold(restored, tail, at + 1)) == session.digest


def test_agents_come_out_of_a_snapshot_in_the_order_in_which_they_were_made() -> None:
    agents = {AgentId(id): SessionId(f"s{id}") for id in (2, 5, 10, 11)}
    children = {id: Child(id, session, "spawn", "running", NOON_MS) for id, session in agents.items()}
    dogs = {id: Watchdog(id, agents[id], 60_000, "", 1) for id in (AgentId(5), AgentId(10))}
    state = State(tree=TreeView(children=children, watchdogs=dogs))
    again = decode(encode(state))
    assert again == state
    assert list(again.tree.children) == [2, 5, 10, 11]
    assert list(again.tree.watchdogs) == [5, 10]


def test_snapshot_knows_its_place_and_one_of_another_core_is_passed_over() -> None:
    session = everything()
    data = encode_snapshot(session.state, session.seq, b"\1" * 32)
    read = decode_snapshot(data)
    assert read is not None
    assert (digest(read[0]), read[1], read[2]) == (session.digest, session.seq, b"\1" * 32)
    place, _, body = data.partition(b"\n")
    other = orjson.dumps({**orjson.loads(place), "core": 0}) + b"\n" + body
    assert decode_snapshot(other) is None


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"null", b'{"history": 1}'])
def test_bytes_that_are_no_snapshot_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        decode(data)


def test_digest_does_not_depend_on_the_order_of_names() -> None:
    one = State(meta=MetaLine(others={"a": 1, "b": 2}))
    other = State(meta=MetaLine(others={"b": 2, "a": 1}))
    assert digest(one) == digest(other)


SECRET = b"a secret of this test"


def test_keyed_snapshot_is_read_with_its_key_and_with_no_other() -> None:
    session = everything()
    data = encode_snapshot(session.state, session.seq, b"\1" * 32, SECRET)
    read = decode_snapshot(data, SECRET)
    assert read is not None
    assert digest(read[0]) == session.digest
    with pytest.raises(Unauthenticated, match="none is configured here"):
        decode_snapshot(data)
    unkeyed = encode_snapshot(session.state, session.seq, b"\1" * 32)
    for other in (unkeyed, encode_snapshot(session.state, session.seq, b"\1" * 32, b"another")):
        with pytest.raises(Unauthenticated):
            decode_snapshot(other, SECRET)


@given(st.data())
def test_changed_byte_of_a_keyed_snapshot_is_found(data: st.DataObject) -> None:
    session = everything()
    found = encode_snapshot(session.state, session.seq, b"\1" * 32, SECRET)
    at = data.draw(st.integers(0, len(found) - 1))
    other = bytes([data.draw(st.integers(0, 255).filter(lambda byte: byte != found[at]))])
    with pytest.raises(ValueError):
        decode_snapshot(found[:at] + other + found[at + 1 :], SECRET)


@pytest.mark.parametrize("data", [b"[]\n{}", b"null\n{}", b"7\n", b"{}\n{}", b'{"core": 4, "seq": []}\n{}'])
def test_bytes_that_are_no_snapshot_end_no_worker(data: bytes) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        decode_snapshot(data)


def test_line_of_a_queued_input_of_very_many_texts_fits_a_commit_and_keeps_what_rules_read() -> None:
    """A rule reads the folder of a queued turn by its text: only what the person said may go elsewhere."""
    cwd = "/" + "deep/" * 150
    op = {"type": "user_turn", "items": [{"type": "text", "text": f"{n:05}" * 60} for n in range(1_000)]}
    queued = Entry(DENDRO, {"kind": "queued", "id": "u1", "op": {**op, "cwd": cwd}})
    blobs: dict[str, bytes] = {}
    line = encode_entry(queued, NOON_MS, blobs).line
    assert len(line) <= LINE_BYTES < len(orjson.dumps(op))
    kept = decode_entry(line).payload
    assert kept["op"]["cwd"] == cwd
    texts = {name: data.decode() for name, data in blobs.items()}
    assert resolve(kept["op"], texts.get) == queued.payload["op"]


@pytest.mark.parametrize("parts", [(40, 5_000), (1_500, 300)], ids=["large texts", "very many"])
def test_value_beside_the_log_that_no_commit_carries_goes_to_the_blobs(parts: tuple[int, int]) -> None:
    count, size = parts
    value = {"items": [{"output": f"{n:05}" * (size // 5)} for n in range(count)]}
    blobs: dict[str, bytes] = {}
    data = encode_value(value, blobs)
    assert len(data) < len(orjson.dumps(value))
    texts = {name: found.decode() for name, found in blobs.items()}
    assert resolve(orjson.loads(data), texts.get) == value


def test_value_that_is_no_json_is_named_and_written_nowhere() -> None:
    with pytest.raises(TypeError, match="not JSON serializable"):
        encode_value({"at": {1, 2}}, {})


def test_state_whose_parts_were_encoded_before_has_the_bytes_of_one_that_was_never_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(snapshot._Parts, "MOST_BYTES", 20_000)
    said = [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": f"n {n}"}]}
            for n in range(200)]  # fmt: skip
    state = Session().state
    for length in (3, 63, 64, 65, 130, 70, 200):
        state = replace(state, history=Log.of(said[:length]), tree=replace(state.tree, paused=f"at {length}"))
        for _ in range(2):
            seen = encode(state)
        monkeypatch.setattr(snapshot, "_PARTS", snapshot._Parts())
        assert encode(state) == seen
        assert decode(seen).history == state.history
    kept = snapshot._PARTS
    for number in range(50):
        encode(replace(state, facts=replace(state.facts, pool=f"pool-{number}" * 100)))
    assert sum(size for _, _, size in kept._kept.values()) == kept._size <= 20_000


def test_parts_of_sessions_that_are_over_are_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small parts are many objects: their JSON alone would let those of thousands of sessions stay."""
    monkeypatch.setattr(snapshot._Parts, "MOST", 30)
    monkeypatch.setattr(snapshot, "_PARTS", snapshot._Parts())
    state = Session().state
    for number in range(100):
        encode(replace(state, facts=replace(state.facts, pool=f"pool-{number}")))
    kept = snapshot._PARTS
    assert len(kept._kept) == 30
    assert sum(size for _, _, size in kept._kept.values()) == kept._size


def test_state_that_is_encoded_once_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "_PARTS", snapshot._Parts())
    state = replace(Session().state, history=Log.of([{"n": n} for n in range(200)]))
    once = snapshot.digest(state, again=False)
    assert not snapshot._PARTS._kept
    assert snapshot.digest(state) == once
    assert snapshot._PARTS._kept
