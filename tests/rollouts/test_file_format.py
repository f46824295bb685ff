"""Exported files: what is written can be read, proved and folded again, byte for byte."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.broker.records import StoredEntry, TreeEntry
from orchestrator.core import entries as e
from orchestrator.core import facts as f
from orchestrator.core.birth import inherited_history, opened
from orchestrator.core.blobs import externalise, resolve
from orchestrator.core.chain import GENESIS, BrokenLink, ExpectedHead, next_chain, payload_digest
from orchestrator.core.entries import Entry, decode_entry, encode_entry
from orchestrator.core.evolve import evolve
from orchestrator.core.history import INHERITED, user_message
from orchestrator.core.ids import SessionId
from orchestrator.core.state import State
from orchestrator.protocol.agents import AgentOrigin, LifecycleChange, SubagentStatus, SubagentSummary
from orchestrator.protocol.events import SubagentLifecycle
from orchestrator.protocol.wire import written
from orchestrator.rollouts.export import TreeLines
from orchestrator.rollouts.file_format import (
    BadLine,
    FileWalk,
    Header,
    RolloutText,
    _TreeOrder,
    full_line,
    read_rollout,
)
from orchestrator.rollouts.inherited_lines import LogLine, missing_texts
from orchestrator.rollouts.rollout_file import export_lines
from tests.commit_seed import examples

SECRET = b"a key"
TEXTS = st.text(max_size=40) | st.text(min_size=1, max_size=3).map(lambda t: t * 4000)
PAYLOADS = st.dictionaries(
    st.sampled_from(["output", "text", "content"]), TEXTS | st.integers(-9, 9) | st.none()
)


def item(text: str) -> Entry:
    return e.item({"type": "function_call_output", "call_id": "c1", "output": text})


def stored(entries: Sequence[Entry], secret: bytes = SECRET) -> tuple[list[StoredEntry], dict[str, str]]:
    """The entries as a session's log holds them, and their large texts."""
    blobs: dict[str, bytes] = {}
    log, head = [], GENESIS
    for seq, entry in enumerate(entries, 1):
        line, salt = encode_entry(entry, 1_790_000_000_000 + seq, blobs).line, bytes([seq % 256]) * 16
        head = next_chain(head, seq, 3, payload_digest(salt, line), secret)
        log.append(StoredEntry(seq, 3, line, salt, head))
    return log, {digest: content.decode("utf-8", "surrogatepass") for digest, content in blobs.items()}


def full(log: Sequence[StoredEntry], texts: dict[str, str]) -> list[bytes]:
    header = Header("s", "default", len(log), log[-1].chain)
    return [header.encode() + b"\n", *(full_line(line, texts.get) for line in map(LogLine, log))]


def broken(text: RolloutText, secret: bytes = SECRET) -> BrokenLink | None:
    walk = FileWalk(secret)
    return next(filter(None, (walk.take_line(line) for line in text.lines)), None)


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(PAYLOADS, min_size=1, max_size=6))
def test_a_full_export_verifies_and_folds_to_the_stored_entries(payloads: list[dict[str, Any]]) -> None:
    log, texts = stored([e.item({"type": "other", **payload}) for payload in payloads])
    assert broken(read_rollout(full(log, texts))) is None
    lines = list(read_rollout(full(log, texts)).lines)
    assert [line.entry for line in lines] == [decode_entry(entry.payload) for entry in log]


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.booleans(), min_size=1, max_size=8))
def test_an_export_without_facts_verifies_through_their_places(facts: list[bool]) -> None:
    log, texts = stored([e.fact(f.Closed()) if fact else item("x" * 5000) for fact in facts])
    lines = list(export_lines(map(LogLine, log), texts.get))
    if lines:
        text = read_rollout(lines)
        assert text.kind == "exported"
        assert broken(text) is None


def test_line_of_a_file_is_the_stored_one_with_its_place_behind() -> None:
    log, texts = stored([e.event("é", {"type": "x", "n": 1.5}), e.fact(f.Closed()), e.item(said("z" * 9000))])
    lines = list(export_lines(map(LogLine, log), texts.get))
    for line, entry in zip(lines, (log[0], log[2]), strict=True):
        value = orjson.loads(entry.payload)
        value["payload"] = resolve(value["payload"], texts.get)
        place = {"seq": entry.seq, "epoch": entry.epoch, "salt": entry.salt.hex(), "chain": entry.chain.hex()}
        fact = [2, log[1].epoch, payload_digest(log[1].salt, log[1].payload).hex()]
        omitted = {"omitted": [fact]} if entry is log[2] else {}
        assert line == orjson.dumps({**value, **place, **omitted}) + b"\n"


def test_an_altered_character_is_found_at_its_entry() -> None:
    log, texts = stored([item("one"), item("two"), item("three")])
    lines = [line.replace(b"two", b"2wo") for line in full(log, texts)]
    found = broken(read_rollout(lines))
    assert found is not None
    assert found.seq == 2


def test_a_removed_line_is_named_as_missing() -> None:
    log, texts = stored([item("one"), item("two"), item("three")])
    lines = full(log, texts)
    assert broken(read_rollout([*lines[:2], *lines[3:]])) == BrokenLink(
        2, "missing: the next entry present is 3"
    )
    assert broken(read_rollout([lines[0], *lines[2:]])) == BrokenLink(
        1, "missing: the next entry present is 2"
    )


def test_a_changed_place_of_an_omitted_fact_is_found() -> None:
    log, texts = stored([e.fact(f.Closed()), item("one")])
    [line] = export_lines(map(LogLine, log), texts.get)
    value = orjson.loads(line)
    value["omitted"][0][1] = 9
    assert broken(read_rollout([orjson.dumps(value) + b"\n"])) is not None


def test_another_key_does_not_verify() -> None:
    log, texts = stored([item("one")])
    assert broken(read_rollout(full(log, texts)), b"another key") is not None


def test_a_redacted_entry_verifies_by_its_digest() -> None:
    log, texts = stored([item("one"), item("secret"), item("three")])
    lines = full(log, texts)
    gone = log[1]
    lines[2] = orjson.dumps(
        {
            "seq": gone.seq,
            "epoch": gone.epoch,
            "chain": gone.chain.hex(),
            "digest": payload_digest(gone.salt, gone.payload).hex(),
        }
    )
    lines[2] += b"\n"
    assert broken(read_rollout(lines)) is None
    assert list(read_rollout(lines).lines)[1].entry is None


def test_a_text_that_is_no_longer_stored_leaves_its_reference_and_still_verifies() -> None:
    log, _ = stored([item("x" * 9000)])
    assert broken(read_rollout(full(log, {}))) is None


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([], "line 1: the file is empty"),
        ([b"{"], "line 1: not JSON"),
        ([b"[]"], "line 1: not a JSON object"),
        ([b'{"format":"other"}'], "line 1: unknown format 'other'"),
        ([b'{"format":"dendro-rollout","version":9}'], "line 1: format version 9: a newer Dendro wrote it"),
        ([b'{"format":"dendro-rollout","version":1}'], "line 1: the format line is damaged"),
        ([b'{"timestamp":"t","type":"x","payload":{}}', b"", b"nonsense"], "line 3: not JSON"),
        ([b'{"timestamp":"t","type":"x","payload":3}'], "line 1: timestamp, type and a payload object"),
    ],
)
def test_a_bad_line_is_named_by_its_number(lines: list[bytes], said: str) -> None:
    with pytest.raises(BadLine) as caught:
        list(read_rollout(lines).lines)
    assert str(caught.value).startswith(said)


def test_a_full_export_tells_the_live_fold_to_whoever_reads_it() -> None:
    header = Header("s", "p", 4, GENESIS, "2026", 3, "abc")
    read = read_rollout([header.encode()]).header
    assert read == header
    assert dataclasses.asdict(header)["key_id"] == "2026"


# ── forks ─────────────────────────────────────────────────────────────────────────────────────

LONG = "y" * 6000


def said(words: str) -> dict[str, Any]:
    return written(user_message(words))


def grandchild(
    begin: str = "begin", then: str = "go on"
) -> tuple[list[StoredEntry], dict[str, str], list[Any]]:
    """A fork of a fork, its texts, and the conversation that it inherited."""
    output = {"type": "function_call_output", "call_id": "c1"}
    called = {"type": "function_call", "name": "shell", "arguments": "{}", "call_id": "c1"}
    texts: dict[str, bytes] = {}
    first = [said(begin), called, externalise({**output, "output": LONG}, texts)]
    source = f.ForkedAt(session=SessionId("a"), seq=3, chain="00")
    begun = externalise(f.encode(f.Forked(source, inherited_history(first, frozenset())[0])), texts)
    second = [{"type": INHERITED, "content": begun["content"]}, said(then)]
    again = f.ForkedAt(session=SessionId("b"), seq=7, chain="00")
    fact = e.fact(f.Forked(again, inherited_history(second, frozenset())[0]))
    log, more = stored([e.Entry(e.EVENT_MSG, {"type": "session_configured"}), fact, e.item(said("mine"))])
    whole = [said(begin), called, {**output, "output": LONG}, said(then)]
    return log, {**more, **{digest: text.decode() for digest, text in texts.items()}}, whole


@pytest.mark.parametrize("begin", ["begin", "begin" * 3_000, "ä" * 1_900])
def test_an_export_of_a_fork_has_what_it_inherited_and_proves_it(begin: str) -> None:
    log, texts, whole = grandchild(begin)
    known: dict[str, str] = {}
    while missing := missing_texts(map(LogLine, log), known.get):
        known |= {digest: texts[digest] for digest in missing}
    assert known == texts
    lines = list(export_lines(map(LogLine, log), texts.get))
    values = [orjson.loads(line) for line in lines]
    assert [value["payload"] for value in values][1:-1] == whole
    assert {value["type"] for value in values[1:-1]} == {"response_item"}
    assert broken(read_rollout(lines)) is None


@pytest.mark.parametrize("place", [1, 2, 3, 4])
def test_an_altered_item_of_what_a_fork_inherited_is_found(place: int) -> None:
    log, texts, _ = grandchild()
    lines = list(export_lines(map(LogLine, log), texts.get))
    altered = [b"begin", b"shell", b"yyyy", b"go on"][place - 1]
    lines[place] = lines[place].replace(altered, b"xxxx", 1)
    found = broken(read_rollout(lines))
    assert found is not None
    assert "inherited" in found.reason


def test_a_removed_item_of_what_a_fork_inherited_is_found() -> None:
    log, texts, _ = grandchild()
    lines = list(export_lines(map(LogLine, log), texts.get))
    for place in range(1, 5):
        assert broken(read_rollout([*lines[:place], *lines[place + 1 :]])) is not None


def test_a_file_that_ends_within_what_was_inherited_is_not_whole() -> None:
    log, texts, _ = grandchild()
    walk = FileWalk(SECRET)
    for line in read_rollout(list(export_lines(map(LogLine, log), texts.get))[:3]).lines:
        assert walk.take_line(line) is None
    assert walk.unproved() is not None


def test_a_full_export_of_a_fork_holds_the_texts_inside_what_it_inherited() -> None:
    log, texts, whole = grandchild()
    kept: dict[str, bytes] = {}
    text = read_rollout(full(log, texts), kept)
    state = State()
    for line in text.lines:
        assert line.entry is not None
        assert line.place is not None
        state = evolve(state, line.entry, line.place.seq)
    known = {digest: content.decode() for digest, content in kept.items()}
    assert list(opened(state.history, known.get)) == [*whole, said("mine")]
    assert broken(read_rollout(full(log, texts))) is None


def test_a_line_that_was_read_once_is_as_it_was_after_every_export() -> None:
    log, texts, _ = grandchild()
    lines = [LogLine(entry) for entry in log]
    first = list(export_lines(lines, texts.get))
    whole = [full_line(line, texts.get) for line in lines]
    assert missing_texts(lines, texts.get) == set()
    assert [full_line(line, texts.get) for line in lines] == whole
    assert list(export_lines(lines, texts.get)) == first
    assert [line.value for line in lines] == [orjson.loads(entry.payload) for entry in log]


# ── damage ────────────────────────────────────────────────────────────────────────────────────


def test_line_that_cannot_be_read_says_its_number_to_programs_too() -> None:
    with pytest.raises(BadLine) as caught:
        list(read_rollout([b"", b'{"timestamp":"t","type":"x","payload":{}}', b"nonsense"]).lines)
    assert caught.value.number == 3


def test_small_item_of_a_large_line_keeps_its_words() -> None:
    blobs: dict[str, bytes] = {}
    [line] = read_rollout(full(*stored([item("x" * 4_000)]))[:2], blobs).lines
    assert line.entry is not None
    assert (line.entry.payload["output"], blobs) == ("x" * 4_000, {})


def test_text_that_is_not_what_its_name_says_is_refused() -> None:
    log, texts, _ = grandchild()
    lines = full(log, texts)
    with pytest.raises(BadLine, match=r"^line 3: a field is missing or damaged \(the text [0-9a-f]{12}… is"):
        list(read_rollout([line.replace(b"yyyy", b"zzzz") for line in lines]).lines)


def test_fact_with_a_number_that_no_entry_can_have_is_a_fault() -> None:
    log, texts = stored([e.fact(f.Closed()), item("one")])
    [line] = export_lines(map(LogLine, log), texts.get)
    value = orjson.loads(line)
    value["omitted"][0][0] = -1
    found = broken(read_rollout([orjson.dumps(value) + b"\n"]))
    assert found == BrokenLink(1, "it has a number that no entry can have")


def test_line_without_a_place_in_a_file_that_has_a_chain_is_a_fault() -> None:
    log, texts = stored([item("one"), item("two")])
    lines = full(log, texts)
    bare = {name: value for name, value in orjson.loads(lines[2]).items() if name not in ("seq", "chain")}
    found = broken(read_rollout([*lines[:2], orjson.dumps(bare) + b"\n"]))
    assert found is not None
    assert "line 3: it has the fields timestamp, type, payload, epoch, salt" in found.reason


def test_first_line_of_a_young_session_names_no_state() -> None:
    header = Header("s", "p", 4, GENESIS)
    assert (header.state_seq, header.state_sha256, header.key_id, header.mac) == (0, "", "", "")
    value = orjson.loads(header.encode())
    assert (value["format"], value["version"], value["state_seq"]) == ("dendro-rollout", 1, 0)
    assert len(value["mac"]) == 64


def test_first_line_is_known_to_be_as_it_was_written() -> None:
    line = Header("s", "p", 4, GENESIS).encode(SECRET)
    read = read_rollout([line]).header
    assert read is not None
    assert read.fault(SECRET) is None
    assert read.fault(b"another key") is not None
    value = orjson.loads(line)
    del value["mac"]
    older = read_rollout([orjson.dumps(value)]).header
    assert older is not None
    assert older.fault(b"another key") is None


def test_head_that_was_noted_may_be_one_of_a_fact_that_is_left_out() -> None:
    log, texts = stored([e.fact(f.Closed()), item("one"), item("two")])
    lines = list(export_lines(map(LogLine, log), texts.get))
    for expected, met in ((ExpectedHead(1, log[0].chain), True), (ExpectedHead(1, log[1].chain), False)):
        walk = FileWalk(SECRET, expected)
        assert [walk.take_line(line) for line in read_rollout(lines).lines] == [None, None]
        assert walk.met_expected is met


def test_references_that_are_left_in_a_line_are_counted() -> None:
    log, texts = stored([item("x" * 9_000), item('a text that says "$blob"')])
    for known, missing in ((texts, [0, 0]), ({}, [1, 0])):
        assert [line.texts_missing for line in read_rollout(full(log, known)).lines] == missing


def test_nested_large_texts_are_put_back_at_any_depth() -> None:
    content = [{"type": "input_image", "image_url": "i" * 9_000}, {"deep": {"output": "o" * 9_000}}]
    log, texts = stored([e.item({"type": "message", "content": content})])
    assert len(texts) == 2
    line = orjson.loads(full(log, texts)[1])
    assert line["payload"]["content"] == content
    assert broken(read_rollout(full(log, texts))) is None


@pytest.mark.parametrize("parts", [120, 900])
def test_line_of_very_many_parts_is_stored_again_as_it_was(parts: int) -> None:
    """Of a line too long for a commit short parts stand beside the log, too: a reader takes out the same."""
    content = [{"type": "input_text", "text": f"{number} {'x' * 2_000}"} for number in range(parts)]
    log, texts = stored([e.item({"type": "message", "role": "user", "content": content})])
    assert len(texts) == parts
    assert broken(read_rollout(full(log, texts))) is None
    assert broken(read_rollout(export_lines(map(LogLine, log), texts.get))) is None


# ── lines of the tree's log ───────────────────────────────────────────────────────────────────


def test_lines_of_the_trees_log_stand_where_the_export_puts_them_when_a_clock_was_set_back() -> None:
    """The export puts each before the first later entry, and behind the lines that the tree told before."""
    order = _TreeOrder()

    def entry(seq: int, at_s: int) -> str:
        return order.written(_line_of(at_s, entry=True, place=SimpleNamespace(seq=seq)))

    def told(tree_seq: int, at_s: int) -> str:
        return order.told(_line_of(at_s, tree_seq=tree_seq))

    found = [entry(1, 1), entry(2, 10), told(1, 15), told(2, 3), entry(3, 20), entry(4, 5), told(3, 25)]
    assert found == [""] * 7
    assert "written after it" in told(4, 26) + entry(5, 8)


async def test_line_of_the_trees_log_is_not_held_up_by_one_that_the_export_leaves_out() -> None:
    """A clock was set back between the two."""
    tree = [_tree_entry(1, 1_000, 3, of=2), _tree_entry(2, 9_000, 7, of=4), _tree_entry(3, 3_000, 5, of=2)]

    async def read_tree(_: object, after: int) -> list[TreeEntry]:
        return tree[after:]

    logs = SimpleNamespace(logs=SimpleNamespace(read_tree=read_tree))
    head = SimpleNamespace(agent_id=2, tree="t")
    lines = TreeLines(cast(Any, logs), cast(Any, head))
    assert [_numbers(await lines.before(at_ms)) for at_ms in (1_000, 4_000, None)] == [[], [1, 3], []]


def _tree_entry(tree_seq: int, at_ms: int, agent_id: int, of: int) -> TreeEntry:
    """An agent's birth, as its tree told of it."""
    known = SubagentSummary(
        agent_id=agent_id,
        parent_agent_id=of,
        session_id=f"s{agent_id}",
        origin=AgentOrigin.SPAWN,
        status=SubagentStatus.RUNNING,
        started_at_ms=at_ms,
    )
    told = SubagentLifecycle(event=LifecycleChange.CREATED, agent_id=agent_id, subagent=known)
    payload = orjson.dumps({"id": "1", "msg": told.model_dump(mode="json", exclude_none=True)})
    return TreeEntry(tree_seq, payload, SessionId("s"), 1, b"", (), at_ms)


def _numbers(lines: bytes) -> list[int]:
    return [orjson.loads(line)["tree_seq"] for line in lines.splitlines()]


def _line_of(at_s: int, **rest: Any) -> Any:
    return SimpleNamespace(timestamp=f"2026-01-01T00:00:{at_s:02}.000Z", **rest)
