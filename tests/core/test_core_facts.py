"""Facts and their JSON: each way gives what the other was made of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields
from typing import Any, get_args

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core import facts as f
from orchestrator.core import snapshot
from orchestrator.core.calls import Phase
from orchestrator.core.entries import DENDRO, Entry, decode_entry
from orchestrator.core.evolve import evolve
from orchestrator.core.packs import FileCounts, FolderChange, Pack, read_change, write_change
from orchestrator.core.sender import Sender
from orchestrator.core.settings import FACTS_EMPTY, PortableFolder, SessionFacts, TurnSettings
from orchestrator.core.state import Queued, State, Task
from orchestrator.core.tokens import Price, Served
from orchestrator.core.tree import Child, Mail, Watchdog
from orchestrator.core.user_turns import UserTurn
from orchestrator.core.workspace import Copied, Offer, write_offer
from orchestrator.protocol import ops
from orchestrator.protocol.ids import SnapshotId, SubmissionId
from orchestrator.protocol.plans import PlanRequest
from orchestrator.protocol.policy import AskForApproval, WorkspaceWrite
from orchestrator.protocol.scalars import ReasoningEffort, ReasoningSummary
from tests.core import golden
from tests.core.call_works import works_of_calls

KINDS: tuple[type[f.Fact], ...] = get_args(f.Fact)
json = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 53), 1 << 53) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=4,
)
objects = st.dictionaries(st.text(max_size=5), json, max_size=3)
words, numbers = st.text(max_size=8), st.integers(0, 1 << 53)
settings = st.builds(TurnSettings, words, words, objects, words, effort=st.none() | words)
texts = st.builds(lambda text: {"type": "text", "text": text}, words)
large = st.just({"type": "text", "text": {"$blob": "0" * 64, "bytes": 70_000}})
items = st.lists(texts | large, max_size=2).map(tuple)
turns = st.one_of(
    st.just(UserTurn(ops.Compact())),
    st.builds(lambda goal: UserTurn(ops.Plan(plan_request=PlanRequest(goal=goal))), words),
    st.builds(
        UserTurn, st.builds(ops.UserInput, items=st.just(()), last_response_id=st.none() | words), items
    ),
    st.builds(
        UserTurn,
        st.builds(
            ops.UserTurn,
            items=st.just(()),
            cwd=words,
            approval_policy=st.sampled_from(AskForApproval),
            sandbox_policy=st.just(WorkspaceWrite(writable_roots=("/a",))),
            model=words,
            effort=st.none() | st.sampled_from(ReasoningEffort),
            summary=st.sampled_from(ReasoningSummary),
            final_output_json_schema=st.none() | objects,
        ),
        items,
    ),
)
prices = st.floats(0, 1e6)
packs = st.builds(Pack, words, words, numbers, st.booleans())
works = works_of_calls(words, numbers, objects)
BY_NAME: Mapping[str, st.SearchStrategy[Any]] = {
    "copied": st.builds(
        Copied,
        words,
        words,
        words,
        numbers,
        st.builds(PortableFolder, words, words),
        words,
        packs,
        st.lists(words, max_size=2).map(tuple),
    ),
    "agent_id": numbers,
    "agent_ids": st.lists(numbers, max_size=3).map(tuple),
    "answered_ms": numbers,
    "baselines": objects.filter(bool),
    "by": st.none() | st.builds(Sender, words, words, words, words, words, words, words),
    "call_ids": st.lists(words, max_size=3).map(tuple),
    "changes": objects,
    "child": st.builds(Child, numbers, words, words, words, numbers, label=st.none() | words),
    "client": st.none() | st.text(min_size=1, max_size=8),
    "content": json,
    "count": numbers,
    "end_turn": st.just(False),
    "epoch": numbers,
    "exit_code": numbers,
    "folders": st.lists(words, max_size=3).map(tuple),
    "generation": numbers,
    "http_used": numbers,
    "info": json,
    "item": objects,
    "instructions": st.lists(objects, max_size=2).map(tuple),
    "keys": st.lists(words, max_size=3).map(tuple),
    "length": numbers,
    "mcp": st.lists(objects, max_size=2).map(tuple),
    "sandbox": objects,
    "mail": st.builds(Mail, words, words, numbers, st.booleans(), numbers, objects, objects),
    "n": numbers,
    "number": numbers,
    "numbers": st.lists(numbers, max_size=3).map(tuple),
    "not_before_ms": numbers,
    "output_schema": objects,
    "opening": st.lists(objects, min_size=1, max_size=2).map(tuple),
    "overflow": st.just(True),
    "parent": objects,
    "phase": st.sampled_from(Phase),
    "price": st.none() | st.builds(Price, numbers, prices, prices, prices),
    "reason": st.none() | st.text(min_size=1, max_size=8),
    "roots": st.lists(words, max_size=3).map(tuple),
    "sent": objects,
    "sandboxed": st.just(False),
    "served": st.just(False),
    "served_by": st.none() | st.builds(Served, words, words, words, words),
    "sender": st.none() | st.builds(Sender, words, words, words, words, words),
    "session": st.builds(SessionFacts, words, words, numbers, words),
    "settings": settings,
    "snapshot": objects,
    "work": works,
    "tty": st.just(True),
    "usage": objects,
    "user_texts": st.lists(words, max_size=2).map(tuple),
    "variant": objects,
    "wait": numbers,
    "watchdog": st.builds(Watchdog, numbers, words, numbers, words, numbers),
    "anew": st.just(True),
    "at_ms": numbers,
    "base": st.none() | st.text(min_size=1, max_size=8),
    "blocked": st.just(True),
    "change": st.builds(FolderChange, numbers, numbers, numbers, st.lists(words, max_size=2).map(tuple)),
    "files": st.builds(FileCounts, numbers, numbers, numbers),
    "live": st.just(True),
    "ids": st.lists(words, max_size=3).map(tuple),
    "items": st.lists(objects, max_size=2).map(tuple),
    "lost": st.lists(words, max_size=3).map(tuple),
    "names": st.lists(words, max_size=3).map(tuple),
    "omitted": st.lists(words, min_size=1, max_size=2).map(tuple),
    "pack": packs,
    "packs": st.lists(packs, max_size=2).map(tuple),
    "offer": st.builds(Offer, words, st.none() | words, st.lists(packs, max_size=2).map(tuple)),
    "setup": st.just(True),
    "since_ms": numbers,
    "to": st.none() | st.text(min_size=1, max_size=8),
    "trying": st.booleans(),
}
"""Values of the fields that are no texts."""
OF_FOLDERS: Mapping[str, st.SearchStrategy[Any]] = {
    "by": st.none() | st.text(min_size=1, max_size=8),
    "parent": st.none() | st.text(min_size=1, max_size=8),
    "reason": words,
    "snapshot": st.text(min_size=1, max_size=8),
}
"""The same of fields whose names other facts have for something else."""


@st.composite
def facts(draw: st.DrawFn) -> f.Fact:
    """A fact of any kind; a field that may be left out is left out at times."""
    cls = draw(st.sampled_from(KINDS))
    given = {}
    for spec in fields(cls):
        if spec.name != "outcome" or cls is f.TaskEnded:
            left_out = spec.default is not MISSING and draw(st.booleans())
            if not left_out:
                given[spec.name] = draw(_value(cls, spec.name))
    return cls(**given)


def _value(cls: type[f.Fact], name: str) -> st.SearchStrategy[Any]:
    if cls is f.InputQueued and name == "turn":
        return turns
    if (cls, name) in ((f.Claimed, "settings"), (f.RequestSent, "instructions")):
        return words
    if cls in (f.Closing, f.Stopping) and name == "by":
        return st.text(min_size=1, max_size=8)
    if cls.of == "workspace" and name in OF_FOLDERS:
        return OF_FOLDERS[name]
    return BY_NAME.get(name, words)


@given(facts())
def test_fact_that_was_written_is_read_as_it_was(fact: f.Fact) -> None:
    payload = f.encode(fact)
    assert f.decode(payload) == fact
    assert f.decode(orjson.loads(orjson.dumps(payload))) == fact
    assert f.states(payload, type(fact))


def recorded() -> Iterator[tuple[str, bytes]]:
    """The stored lines of every golden rollout."""
    for name in golden.NAMES:
        for line in golden.lines(name):
            yield name, line


def test_fact_of_a_golden_rollout_is_written_with_the_same_bytes() -> None:
    seen = set()
    for name, line in recorded():
        entry = decode_entry(line)
        if entry.type != DENDRO:
            continue
        fact = f.decode(entry.payload)
        assert not isinstance(fact, f.UnknownFact), (name, line)
        seen.add(type(fact))
        if isinstance(fact, f.Configured):
            # The rollouts' first lines name some settings only; today's writer names them all.
            assert f.decode(f.encode(fact)) == fact
        else:
            assert orjson.dumps(f.encode(fact)) == orjson.dumps(entry.payload), (name, line)
    assert len(seen) > 15


def test_kind_of_a_newer_version_changes_no_state_and_is_kept_whole() -> None:
    newer = {"kind": "hologram", "of": ["the", "future"]}
    fact = f.decode(newer)
    assert fact == f.UnknownFact(newer)
    state = State()
    assert evolve(state, Entry(DENDRO, newer), 1) is state


def test_field_of_a_newer_version_does_not_keep_a_fact_from_being_read() -> None:
    assert f.decode({"kind": "closing", "by": "u1", "why": "later"}) == f.Closing(SubmissionId("u1"))


@pytest.mark.parametrize("outcome", ["retry", "waiting"])
def test_request_that_is_sent_again_and_says_no_more_has_used_nothing_and_waits_for_nothing(
    outcome: str,
) -> None:
    fact: Any = f.decode({"kind": "request_ended", "n": 1, "outcome": outcome})
    assert (fact.http_used, fact.not_before_ms, fact.wait) == (0, 0, 0)


def test_known_kind_without_a_field_that_it_needs_is_refused() -> None:
    with pytest.raises(KeyError, match="generation"):
        f.decode({"kind": "timer"})


def test_folder_of_an_op_that_is_stored_beside_its_entry_is_read_as_its_size() -> None:
    op = {
        "type": "user_turn",
        "items": [],
        "approval_policy": "never",
        "sandbox_policy": {"mode": "read-only"},
    }
    far = {"$blob": "0" * 64, "bytes": 70_000}
    queued = f.decode(
        {
            "kind": "queued",
            "id": "u2",
            "op": {**op, "cwd": far, "model": "m", "summary": "auto"},
            "client": "c",
        }
    )
    assert isinstance(queued, f.InputQueued)
    assert isinstance(queued.turn.op, ops.UserTurn)
    assert queued.turn.op.cwd == "[70000 bytes]"


def test_op_that_no_version_wrote_is_refused() -> None:
    with pytest.raises(ValueError, match="cwd"):
        f.decode({"kind": "queued", "id": "u2", "op": {"type": "user_turn", "items": []}, "client": "c"})


def test_absent_text_of_the_state_is_an_empty_one_in_the_log() -> None:
    woken = f.AgentChanged({"paused": None})
    assert f.encode(woken) == {"kind": "agent", "changes": {"paused": ""}}
    assert f.decode(f.encode(woken)) == woken
    assert f.encode(f.Stopping("failed")) == {"kind": "stopping", "reason": "failed", "by": ""}
    assert f.encode(f.ToEnd((), None)) == {"kind": "to_end", "agent_ids": [], "reason": ""}


def test_absent_text_of_the_state_is_an_empty_one_in_a_snapshot() -> None:
    task = Task(SubmissionId("u1"), "user", TurnSettings("/", "never", {"mode": "read-only"}, "m"))
    state = State(task=task, queue=(Queued(SubmissionId("u2"), UserTurn(ops.Compact()), None),))
    stored = orjson.loads(snapshot.encode(state))
    task_fields = ("client", "stopping", "ending", "response_id", "failure")
    assert [stored[name] for name in ("closing", "outcome")] == ["", ""]
    assert [stored["task"][name] for name in task_fields] == [""] * 5
    assert [stored["tree"][name] for name in ("status", "canceling", "end_reason", "paused")] == [""] * 4
    assert stored["queue"] == [{"id": "u2", "op": {"type": "compact"}, "client": ""}]
    assert snapshot.decode(snapshot.encode(state)) == state


def test_absent_text_of_a_sessions_facts_is_an_empty_one_in_log_and_snapshot() -> None:
    facts = SessionFacts()
    assert [getattr(facts, name) for name in FACTS_EMPTY] == [None] * 7
    configured = f.Configured(TurnSettings("/", "never", {"mode": "read-only"}, "m"), facts)
    logged = f.encode(configured)
    assert [logged["session"][name] for name in FACTS_EMPTY] == [""] * 7
    assert f.decode(logged) == configured
    state = State(facts=facts)
    stored = orjson.loads(snapshot.encode(state))
    assert [stored["facts"][name] for name in FACTS_EMPTY] == [""] * 7
    assert snapshot.decode(snapshot.encode(state)) == state


def test_emptied_system_prompt_is_none() -> None:
    told = evolve(State(), Entry(DENDRO, f.encode(f.Instructed("Be brief."))), 1)
    assert told.facts.base_instructions == "Be brief."
    emptied = evolve(told, Entry(DENDRO, f.encode(f.Instructed(""))), 2)
    assert emptied.facts.base_instructions is None
    assert emptied.facts == SessionFacts()


def test_parts_of_a_folder_stand_in_json_under_their_own_fields_alone() -> None:
    pack = Pack("1.pack", "00", 7)
    plain_pack = {"name": "1.pack", "sha256": "00", "bytes": 7}
    change = FolderChange(1, 2, 3, ("'a'",))
    plain_change = {"files": 1, "insertions": 2, "deletions": 3, "names": ["'a'"]}
    offer = Offer(SnapshotId("s1"), None, (pack,), change)
    begun = f.encode(f.WorkspaceBegun(SnapshotId("s1"), (pack,)))
    assert orjson.dumps(begun["packs"]) == orjson.dumps([plain_pack])
    assert write_change(change) == plain_change
    assert read_change(write_change(FolderChange())) == FolderChange(), "it is as it began, and not unknown"
    assert write_offer(offer) == {"snapshot": "s1", "packs": [plain_pack], "change": plain_change}
