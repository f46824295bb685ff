"""Open requests of a session that a client comes to: each is sent again, wherever the queue still has it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import combinations
from types import SimpleNamespace
from typing import Any, cast

import orjson
import pytest

from orchestrator.broker.records import StoredEntry
from orchestrator.core import entries as e
from orchestrator.core import facts as f
from orchestrator.core.ids import SessionId
from orchestrator.gateways import resume
from orchestrator.protocol.events import UserMessage
from orchestrator.requests import request_of
from orchestrator.views.event import for_tenant

ROOT, FIRST, SECOND = (SessionId(f"0199a2b4-0000-7000-8000-{number:012}") for number in range(3))
LOOK_BACK, EVENTS = 7, 11
COMMAND = {"type": "exec_approval_request", "call_id": "c1", "command": ["make"], "cwd": "/home/ann/work"}
DELTA = {"type": "agent_message_delta", "delta": "x"}
SETTLED = {**COMMAND, "agent_id": 9, "session_id": "of an agent whose request is settled"}


def of(agent: int, session: SessionId, call: str) -> dict[str, Any]:
    return {**COMMAND, "call_id": call, "agent_id": agent, "session_id": session, "agent_path": f"/{agent}"}


# Two agents may have a call of one id.
ASKED = [(ROOT, {**COMMAND}), (FIRST, of(1, FIRST, "c1")), (SECOND, of(2, SECOND, "c9"))]


def asked(session: SessionId, event: dict[str, Any]) -> Any:
    own = {key: value for key, value in event.items() if key not in ("agent_id", "session_id", "agent_path")}
    named = request_of({"agent_id": 0, "session_id": session, "agent_path": "", **event})
    return SimpleNamespace(
        session=session, call_id=event["call_id"], request=request_of(own), named_request=named
    )


class Logs:
    """The queue of a session, of which the first events are gone."""

    def __init__(self, told: dict[int, dict[str, Any]], gone: int) -> None:
        messages = {n: told.get(n, SETTLED if n % 4 == 3 else DELTA) for n in range(1, EVENTS + 1)}
        self.events = [
            SimpleNamespace(n=n, seq=n, hash8=f"of {n}", payload=orjson.dumps({"id": "t", "msg": message}))
            for n, message in messages.items()
            if n > gone
        ]

    async def read_eq(self, session: SessionId, after: int, count: int) -> list[Any]:
        return [event for event in self.events if event.n > after][:count]


async def told(
    monkeypatch: pytest.MonkeyPatch, head: Any, logs: Logs
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The lines of the greeting, and what follows it."""

    async def nothing(*_: Any) -> list[Any]:
        return []

    async def folded(*_: Any) -> Any:
        state = SimpleNamespace(facts=None, settings=None, name="", forked_from=None)
        return SimpleNamespace(state=state)

    async def open_ones(*_: Any) -> list[Any]:
        return [asked(*each) for each in ASKED]

    monkeypatch.setattr(resume, "LOOK_BACK", LOOK_BACK)
    monkeypatch.setattr(resume, "open_requests_of", open_ones)
    monkeypatch.setattr(resume, "fold_session", folded)
    monkeypatch.setattr(resume, "past_events", nothing)
    monkeypatch.setattr(resume, "_agents_told", nothing)
    monkeypatch.setattr(resume, "_agents_elsewhere", lambda *_: [])
    configured = SimpleNamespace(payload={"type": "session_configured"})
    monkeypatch.setattr(resume, "session_configured", lambda *_: configured)
    found = SimpleNamespace(broker=SimpleNamespace(logs=logs))
    greeting = await resume.greeting(cast(Any, found), head, cast(Any, None))
    lines = [orjson.loads(line)["msg"] for line in greeting.lines().splitlines()]
    behind = [orjson.loads(event.payload)["msg"] for event in logs.events if event.n > greeting.cursor.n]
    return lines, behind


def head_of(agent_id: int, session: SessionId, namespace: str = "") -> Any:
    labels = SimpleNamespace(namespace=namespace)
    place = {"eq_n": EVENTS, "seq": EVENTS, "head": b"\0" * 32}
    return SimpleNamespace(agent_id=agent_id, session=session, tree=ROOT, labels=labels, **place)


@pytest.mark.parametrize("gone", [0, 2, 5, 8, EVENTS])
async def test_each_open_request_of_a_tree_is_told_once_wherever_it_stands_in_the_queue_or_not(
    gone: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for places in combinations(range(1, EVENTS + 1), len(ASKED)):
        events = dict(zip(places, (event for _, event in ASKED), strict=True))
        lines, behind = await told(monkeypatch, head_of(0, ROOT), Logs(events, gone))
        assert lines[0] == {"type": "session_configured"}
        heard = [*lines, *behind]
        for _, event in ASKED:
            assert heard.count(event) == 1, (places, event)
        assert not any(message == SETTLED for message in lines)


async def test_client_of_an_agent_is_sent_that_agents_request_alone_as_its_own_session_tells_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines, _ = await told(monkeypatch, head_of(2, SECOND), Logs({}, EVENTS))
    assert lines[1:] == [{**COMMAND, "call_id": "c9"}]


async def test_request_that_the_queue_has_no_more_tells_a_tenant_no_path(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines, _ = await told(monkeypatch, head_of(0, ROOT, "acme"), Logs({}, EVENTS))
    assert len(lines) == 1 + len(ASKED)
    own, _ = await told(monkeypatch, head_of(0, ROOT), Logs({}, EVENTS))
    assert own[1:] == [event for _, event in ASKED]
    assert lines[1:] == [for_tenant(dict(event)) for event in own[1:]]


# ── the events so far ─────────────────────────────────────────────────────────────────────────────


def stored(seq: int, entry: e.Entry) -> StoredEntry:
    return StoredEntry(seq, 1, e.encode_entry(entry, 1_000 + seq, {}).line, b"", bytes([seq]) * 32)


def said(text: str) -> e.Entry:
    return e.event("t", UserMessage(message=text))


class Log:
    """The logs of a fork and of its source, of which the fork has the first two entries."""

    def __init__(self, *, of_source: int = 3) -> None:
        parent: f.ForkedAt = {"session": FIRST, "seq": 2, "chain": (b"\2" * 32).hex()}
        items = [
            {"type": "message", "role": role, "content": [{"type": "input_text", "text": f"kept {role}"}]}
            for role in ("developer", "user", "assistant")
        ]
        inherited = e.fact(f.Forked(parent, {"$blob": "b" * 64, "bytes": 9}))
        self.text = orjson.dumps(items).decode()
        self.logs = {
            ROOT: [stored(1, inherited), stored(2, said("own"))],
            FIRST: [stored(seq, said(f"source {seq}")) for seq in range(1, of_source + 1)],
        }
        self.broker = SimpleNamespace(logs=None)

    async def log(self, session: SessionId, through: int) -> AsyncIterator[StoredEntry]:
        for entry in self.logs[session][:through]:
            yield entry

    async def large_texts(self, tree: str, wanted: Any) -> dict[str, str]:
        return dict.fromkeys(wanted, self.text)


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("as it was", ["source 1", "source 2", "own"]),
        ("gone", ["kept user", "kept assistant", "own"]),
        ("put back", ["kept user", "kept assistant", "own"]),
        ("another", ["kept user", "kept assistant", "own"]),
    ],
)
@pytest.mark.parametrize("agent_id", [0, 1])
async def test_fork_begins_with_the_events_of_its_source_or_with_what_was_said_where_they_are_gone(
    source: str, told: list[str], agent_id: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Log(of_source=1 if source == "put back" else 3)
    if source == "another":
        found.logs[FIRST][1] = replace(found.logs[FIRST][1], chain=b"\7" * 32)
    labels = SimpleNamespace(namespace="")

    async def readable_head(logs: Any, session: SessionId) -> Any:
        seq = len(found.logs[session])
        head = SimpleNamespace(session=session, seq=seq, agent_id=0, labels=labels, tree=session)
        return None if source == "gone" else head

    monkeypatch.setattr(resume, "readable_head", readable_head)
    head = SimpleNamespace(session=ROOT, seq=2, agent_id=agent_id, labels=labels, tree=ROOT)
    past = await resume.past_events(cast(Any, found), cast(Any, head))
    # An agent that was forked from its parent begins with its own.
    assert [one["message"] for one in past] == (["own"] if agent_id else told)


def test_agents_that_an_imported_log_tells_of_are_shown_once_and_as_canceled_where_they_worked() -> None:
    def life(agent: int, status: str) -> dict[str, Any]:
        told = {"agent_id": agent, "session_id": SECOND, "origin": "spawn", "status": status}
        told |= {"started_at_ms": 1, "pending_messages": 0, "pending_interrupts": 0}
        return {"type": "subagent_lifecycle", "event": "created", "subagent": told}

    state = SimpleNamespace(tree=SimpleNamespace(listed_children={}), facts=None)
    lives = [life(1, "running"), life(2, "queued"), life(3, "ready"), life(1, "running")]
    shown = resume._agents_elsewhere(cast(Any, state), [*lives, {"type": "user_message", "message": "x"}])
    assert [(one.agent_id, one.status) for one in shown] == [(1, "canceled"), (2, "canceled"), (3, "ready")]
