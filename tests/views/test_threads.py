"""Threads as the heads of sessions tell of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import orjson
import pytest

from orchestrator.broker.records import Labels, SessionHead, StoredEntry
from orchestrator.core.ids import AgentId, SessionId, TreeId
from orchestrator.core.registry import Agent
from orchestrator.gateways.app_server.write_items import thread_json
from orchestrator.views.threads import Spawned, path_at_birth, thread, threads
from tests.doors.schema import assert_valid

ROOT = SessionId("01a1f8a1-c5d0-7001-97bc-c80be6a60f79")
CHILD = SessionId("01a1f8a1-c5d1-7001-97bc-c80be6a60f79")
RESTED = {
    "name": "The name",
    "title": "fix the bug",
    "preview": "fix the bug in the parser",
    "cwd": "/work",
    "model": "gpt-5",
    "model_provider": "openai",
    "git": {"commit_hash": "abc1", "branch": "main"},
    "outcome": "completed",
    "updated_ms": 3_000,
}


def head(meta: dict[str, Any] | None = None, **changes: Any) -> SessionHead:
    facts: dict[str, Any] = {
        "session": ROOT, "tree": TreeId(ROOT), "pool": "p", "agent_id": AgentId(0), "parent": None, "seq": 9,
        "head": b"", "cursor": "1-0", "sq_tip": "1-0", "eq_n": 3, "epoch": 1, "holder": None,
        "status": "idle", "meta": b"" if meta is None else orjson.dumps(meta), "snapshot_seq": 0,
        "sealed_seq": 0, "manifest": b"", "min_core": 1, "claims_without_progress": 0,
        "pending_messages": 0, "pending_interrupts": 0, "quarantined": False, "archived": False,
        "created_ms": 1_000,
    }  # fmt: skip
    facts |= changes
    named = {name: facts.pop(name) for name in tuple(facts) if name in SessionHead.__dataclass_fields__}
    assert not facts
    return SessionHead(**named)


def test_client_reads_a_rested_thread_with_its_git_facts_and_times_in_seconds() -> None:
    found = thread_json(thread(head(RESTED)))
    assert_valid("Thread", found)
    assert (found["id"], found["sessionId"], found["parentThreadId"]) == (ROOT, ROOT, None)
    assert found["preview"] == "fix the bug in the parser"
    assert (found["createdAt"], found["updatedAt"], found["recencyAt"]) == (1, 3, 3)
    assert found["gitInfo"] == {"sha": "abc1", "branch": "main", "originUrl": None}
    assert (found["source"], found["status"]) == ("cli", {"type": "idle"})


@pytest.mark.parametrize(
    ("changes", "outcome", "status"),
    [
        ({}, "completed", {"type": "idle"}),
        ({"status": "closed"}, "completed", {"type": "idle"}),
        ({}, "failed", {"type": "systemError"}),
        ({"status": "running"}, "failed", {"type": "active", "activeFlags": []}),
        ({"status": "awaiting_approval"}, "", {"type": "active", "activeFlags": ["waitingOnApproval"]}),
        ({"status": "awaiting_answer"}, "", {"type": "active", "activeFlags": ["waitingOnUserInput"]}),
        ({"archived": True}, "completed", {"type": "notLoaded"}),
        ({"quarantined": True}, "completed", {"type": "systemError"}),
    ],
)
def test_client_reads_what_a_thread_waits_for(
    changes: dict[str, Any], outcome: str, status: dict[str, Any]
) -> None:
    found = thread_json(thread(head({**RESTED, "outcome": outcome}, **changes)))
    assert_valid("Thread", found)
    assert found["status"] == status


def test_client_reads_the_place_of_an_agent_in_its_tree() -> None:
    record = {"agent_id": 2, "agent_path": "0/4/2", "label": "tests", "origin": "fork", "status": "running"}
    of_agent = head(RESTED, session=CHILD, agent_id=AgentId(2), parent=SessionId("p"))
    found = thread_json(thread(of_agent, Agent(cast(Any, record))))
    assert_valid("Thread", found)
    assert (found["sessionId"], found["parentThreadId"]) == (ROOT, "p")
    assert (found["threadSource"], found["agentNickname"]) == ("subagent", "tests")
    spawn = {
        "parent_thread_id": "p",
        "depth": 2,
        "agent_path": "/root/4/2",
        "agent_nickname": "tests",
        "agent_role": "fork",
    }
    assert found["source"] == {"subAgent": {"thread_spawn": spawn}}


def test_client_reads_a_session_without_any_summary() -> None:
    assert_valid("Thread", thread_json(thread(head())))
    assert_valid("Thread", thread_json(thread(head(agent_id=AgentId(7)))))


async def test_list_shows_the_first_words_of_a_session_that_has_never_rested() -> None:
    said = {"type": "event_msg", "id": "u1", "payload": {"type": "user_message", "message": "do\n this"}}
    log = (
        StoredEntry(1, 1, b'{"type":"session_meta","payload":{}}', b"", b""),
        StoredEntry(2, 1, orjson.dumps(said), b"", b""),
    )
    asked: list[SessionId] = []

    async def read_rollout(session: SessionId, after: int, count: int) -> tuple[StoredEntry, ...]:
        asked.append(session)
        return log

    async def registries(trees: list[TreeId]) -> list[dict[str, bytes]]:
        return []

    logs, trees = SimpleNamespace(read_rollout=read_rollout), SimpleNamespace(registries=registries)
    broker = cast(Any, SimpleNamespace(logs=logs, trees=trees))
    new = head({"cwd": "/", "model": "m", "title": ""}, status="running")
    found = await threads(broker, [new, head(RESTED, status="running", session=CHILD)])
    assert [one.preview for one in found] == ["do this", "fix the bug in the parser"]
    assert asked == [ROOT]


NOTED = {"commit_hash": "def2", "branch": "other"}
FACTS: list[tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    ("a name that was given last", {}, {"name": "Newer"}, {"name": "Newer"}),
    ("a name of its last rest", {}, {}, {"name": "The name"}),
    ("no name", {"name": None}, {}, {"name": None}),
    ("git as a client has told it", {}, {"git_note": orjson.dumps(NOTED)}, {"git": NOTED}),
    ("git of its last rest", {}, {}, {"git": RESTED["git"]}),
    ("a rollout", {"rollout_path": "/r"}, {}, {"path": "/r"}),
    ("a tenant's rollout", {"rollout_path": "/r"}, {"labels": Labels("acme")}, {"path": None}),
    ("put away", {}, {"shelved": True}, {"status": "not_loaded"}),
    ("put away at work", {}, {"shelved": True, "status": "running"}, {"status": "not_loaded"}),
    ("in the archive", {}, {"archived": True}, {"status": "not_loaded"}),
    ("never at rest", {"updated_ms": 0}, {}, {"updated_ms": 1_000}),
    ("a fork", {"forked_from": CHILD}, {}, {"forked_from": CHILD}),
    ("a pruned agent", {}, {"agent_id": AgentId(7), "parent": CHILD}, {"spawned": Spawned(CHILD, "0/7")}),
    ("a program's", {}, {"labels": Labels(source="exec")}, {"source": "exec"}),
]


@pytest.mark.parametrize(("about", "meta", "changes", "facts"), FACTS, ids=[row[0] for row in FACTS])
def test_thread_has_the_newest_of_each_fact(
    about: str, meta: dict[str, Any], changes: dict[str, Any], facts: dict[str, Any]
) -> None:
    found = thread(head({**RESTED, **meta}, **changes))
    assert {name: getattr(found, name) for name in facts} == facts


@pytest.mark.parametrize(
    ("changes", "path"),
    [({}, "/r"), ({"labels": Labels("acme")}, ""), ({"archived": True}, "")],
)
async def test_path_of_a_new_sessions_rollout_is_told_to_who_may_read_it(
    changes: dict[str, Any], path: str
) -> None:
    born = {"type": "event_msg", "payload": {"type": "session_configured", "rollout_path": "/r"}}

    async def read_rollout(session: SessionId, after: int, count: int) -> tuple[StoredEntry, ...]:
        return (StoredEntry(1, 1, orjson.dumps(born), b"", b""),)

    logs = cast(Any, SimpleNamespace(read_rollout=read_rollout))
    assert await path_at_birth(logs, head(**changes)) == path
