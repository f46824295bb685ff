"""The log of a tree against what else tells of its agents: births, requests and decisions by their fields."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from orchestrator.broker.records import TreeEntry
from orchestrator.core import entries as e
from orchestrator.core import facts as f
from orchestrator.core.commit_parts import WITHDRAWN
from orchestrator.core.frozen import replace
from orchestrator.core.ids import AgentId, SessionId
from orchestrator.core.registry import TreeFact
from orchestrator.core.tree import Child
from orchestrator.protocol.ids import CallId, SubmissionId
from orchestrator.rollouts import tree_log
from orchestrator.rollouts.tree_log import _asks, _births, _decides, _repeated_otherwise, _told_otherwise

# ── the life of an agent ──────────────────────────────────────────────────────────────────────────

BORN: Mapping[str, Any] = {
    "agent_id": 1, "session_id": "s1", "parent_agent_id": 0, "parent_session_id": "s0", "origin": "spawn",
    "started_at_ms": 5, "agent_path": "0/1", "status": "running", "label": "a", "summary": "do it",
}  # fmt: skip
NEVER_OTHER = [name for name in BORN if name not in ("status", "label", "summary")]


def told(change: Mapping[str, Any] = {}, *, record: Mapping[str, Any] | None = None) -> TreeFact:
    """An event of agent 1's life, its summary changed so, beside a record."""
    message = {"type": "subagent_lifecycle", "event": "changed", "subagent": {**BORN, **change}}
    return TreeFact(message, {} if record is None else {"record": record})


@pytest.mark.parametrize("beside", [None, {"read": 1}])
@pytest.mark.parametrize("name", ["agent_id", "session_id", "agent_path", "status"])
def test_event_names_the_agent_and_its_status_as_its_summary_does(
    name: str, beside: Mapping[str, Any] | None
) -> None:
    for value, otherwise in ((BORN[name], False), (9, True)):
        fact = TreeFact({**told().message, name: value}, beside or {})
        assert _told_otherwise(fact, {}) is otherwise


@pytest.mark.parametrize("name", BORN)
def test_summary_says_of_each_field_what_the_record_beside_it_does(name: str) -> None:
    assert not _told_otherwise(told(record={**BORN, "turn": 3}), {})
    assert _told_otherwise(told({name: 9}, record={**BORN, "turn": 3}), {})
    assert _told_otherwise(told(record={**BORN, name: 9}), {})
    assert not _told_otherwise(told({name: 9}, record={}), {}), "a record need not say all"


@pytest.mark.parametrize("name", BORN)
def test_what_never_changes_is_told_as_at_the_birth_also_where_no_record_is_beside_it(name: str) -> None:
    births = {1: BORN, 9: {**BORN, "agent_id": 9, "session_id": "s9", "agent_path": "0/9"}}
    assert not _told_otherwise(told(), births)
    assert _told_otherwise(told({name: 9}), births) is (name in NEVER_OTHER)
    assert not _told_otherwise(told({name: 7}), {2: BORN}), "the birth of another agent"


def test_record_stands_beside_an_event_of_an_agents_life_alone() -> None:
    inbox = {"type": "agent_inbox", "agent_id": 1}
    assert _told_otherwise(TreeFact(inbox, {"record": BORN}), {})
    assert not _told_otherwise(TreeFact(inbox, {}), {})


CHILD = Child(AgentId(1), SessionId("s1"), "spawn", "running", 5, "a", "do it")


def births(born: Mapping[int, Any], listed: Mapping[int, str], *made: Child) -> list[str]:
    fields = {f"s:{number}": session.encode() for number, session in listed.items()} | {"tree_seq": b"9"}
    return [broken.reason for broken in _births(born, fields, made, 9)]


def test_birth_is_told_in_each_field_as_the_log_of_the_parent_has_it() -> None:
    assert births({1: BORN}, {0: "s0", 1: "s1"}, CHILD) == []
    for name in ("session_id", "origin", "label", "summary", "started_at_ms"):
        born = {**BORN, name: "other"}
        found = births({1: born}, {0: "s0", 1: born["session_id"]}, CHILD)
        assert found == [f"agent 1: {name} not as its parent's log has it"]


def test_each_agent_of_the_log_is_in_the_registry_and_the_other_way_round() -> None:
    second = {**BORN, "agent_id": 2, "session_id": "s2"}
    assert births({1: BORN, 2: second}, {0: "s0", 1: "s1"}) == [
        "agent 2 is session s2 in it, None in the registry"
    ]
    assert births({1: BORN}, {0: "s0", 1: "s1", 2: "s2"}) == [
        "agent 2 is session None in it, s2 in the registry"
    ]
    assert births({1: BORN, 2: second}, {1: "s2", 2: "s1"}) == [
        "agent 1 is session s1 in it, s2 in the registry",
        "agent 2 is session s2 in it, s1 in the registry",
    ]
    children = (CHILD, replace(CHILD, agent_id=AgentId(2), session=SessionId("s2")))
    assert births({2: second}, {2: "s2"}, *children) == [
        "it does not tell of agent 1, which a session's log made"
    ]


# ── requests and decisions ────────────────────────────────────────────────────────────────────────

ASKER = {"agent_id": 1, "session_id": "s1", "agent_path": "0/1"}
REQUEST = {"type": "exec_approval_request", "call_id": "c", "command": ["ls"], "cwd": "/w"}
ANSWERED = f.Answered(CallId("c"), SubmissionId("t"), "approved", "ada")
DECISION = {"type": "request_resolved", "call_id": "c", "turn_id": "t", "decision": "approved", "who": "ada"}


def line(entry: e.Entry) -> bytes:
    return e.encode_entry(entry, 1, {}).line


def test_request_of_a_tree_is_that_of_its_agent_but_for_who_asks() -> None:
    own = line(e.event("t", REQUEST))
    assert _asks(own, REQUEST)
    assert _asks(own, {**REQUEST, **ASKER})
    for name, value in (("call_id", "d"), ("command", ["rm"]), ("cwd", "/"), ("reason", "x")):
        assert not _asks(own, {**REQUEST, **ASKER, name: value})
    assert not _asks(line(e.event("t", DECISION)), {**REQUEST, **ASKER})
    assert not _asks(line(e.fact(ANSWERED)), {**REQUEST, **ASKER})


@pytest.mark.parametrize("who", ["ada", ""])
def test_decision_of_a_tree_is_that_of_its_agent_in_call_word_and_person(who: str) -> None:
    own, said = line(e.fact(replace(ANSWERED, who=who))), {**DECISION, **ASKER, "who": who}
    assert _decides(own, said)
    assert _decides(own, {name: value for name, value in said.items() if name != "who" or value})
    for name in ("call_id", "decision", "who"):
        assert not _decides(own, {**said, name: "other"})
    assert not _decides(line(e.event("t", said)), said)


class Agents:
    """Sessions with their logs, as the audit reads them; `reads` are the stretches that were read."""

    def __init__(self, **logs: Mapping[int, bytes]) -> None:
        self._of = {SessionId(name): entries for name, entries in logs.items()}
        self.reads: list[tuple[int, int]] = []
        self.broker, self.archive, self.logs = self, None, self

    async def head(self, session: SessionId) -> Any:
        return SimpleNamespace() if session in self._of else None

    async def full_log(
        self, _: Any, __: Any, session: SessionId, after: int, through: int
    ) -> AsyncIterator[Any]:
        self.reads.append((after, through))
        for seq, payload in self._of[session].items():
            if after < seq <= through:
                yield SimpleNamespace(seq=seq, payload=payload)


def repeated(message: Mapping[str, Any], seq: int, session: str = "s1", at: int = 1) -> TreeEntry:
    payload = e.encode_event(e.event("", message))
    return TreeEntry(at, payload, SessionId(session), seq, b"", (), 1)


@pytest.mark.parametrize(
    ("own", "message", "what"),
    [
        (e.event("t", REQUEST), {**REQUEST, **ASKER}, "a request"),
        (e.fact(ANSWERED), {**DECISION, **ASKER}, "a decision (approved)"),
    ],
)
async def test_what_the_tree_repeats_is_looked_for_near_its_entry_and_then_in_the_whole_log_before(
    own: e.Entry, message: Mapping[str, Any], what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = line(e.fact(replace(ANSWERED, call_id=CallId("d"))))
    missing = f"it tells of {what} that the log of session s1 has not"
    for entry, seq, reads, findings in (
        (900, 900, [(644, 900)], []),
        (645, 900, [(644, 900)], []),
        (644, 900, [(644, 900), (0, 900)], []),
        (1, 900, [(644, 900), (0, 900)], []),
        (901, 900, [(644, 900), (0, 900)], [missing]),
        (1, 100, [(0, 100)], []),
        (101, 100, [(0, 100)], [missing]),
    ):
        agents = Agents(s1={entry: line(own), 2: other}, s2={7: line(own)})
        monkeypatch.setattr(tree_log, "full_log", agents.full_log)
        found = [it async for it in _repeated_otherwise(cast(Any, agents), [repeated(message, seq, at=7)])]
        assert (agents.reads, [it.reason for it in found]) == (reads, findings)
        assert {it.seq for it in found} <= {7}


async def test_withdrawn_request_event_of_another_kind_and_session_that_is_gone_are_not_looked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    agents = Agents(s1={})
    monkeypatch.setattr(tree_log, "full_log", agents.full_log)
    entries = [
        repeated({**DECISION, **ASKER, "decision": WITHDRAWN, "who": ""}, 9),
        repeated({"type": "agent_inbox", "agent_id": 1}, 9),
        repeated({**REQUEST, **ASKER}, 9, "gone"),
        repeated({**DECISION, **ASKER}, 9, "gone"),
    ]
    assert [it async for it in _repeated_otherwise(cast(Any, agents), entries)] == []
    assert agents.reads == []
