"""Entries of a log as the events that a projector takes."""

from __future__ import annotations

from typing import Any

from orchestrator.broker.records import StoredEntry
from orchestrator.core import entries as e
from orchestrator.core import facts as f
from orchestrator.core.entries import Entry, encode_entry
from orchestrator.core.ids import AgentId
from orchestrator.protocol.ids import CallId, SubmissionId
from orchestrator.views.event import Event
from orchestrator.views.turns import turn_records as r
from orchestrator.views.turns.log_events import told_by
from tests.views.turns.told import changes, completed

SPAWN = {"type": "function_call", "name": "subagent_spawn", "arguments": '{"prompt":"do"}', "call_id": "a1"}
MADE = {"type": "function_call_output", "call_id": "a1", "output": '{"session_id":"child"}'}


def read(*entries: Entry) -> list[Event]:
    """The events of a log with these entries, written a second apart."""
    stored = [
        StoredEntry(seq, 1, encode_entry(entry, 1000 * seq, {}).line, b"", bytes(32))
        for seq, entry in enumerate(entries, 1)
    ]
    return [event for event in map(told_by, stored) if event is not None]


def event(kind: str, **fields: Any) -> Entry:
    return Entry(e.EVENT_MSG, {"type": kind, **fields}, "t")


def answer(decision: str, agent_id: int | None = None) -> Entry:
    by = None if agent_id is None else AgentId(agent_id)
    return e.fact(f.Answered(CallId("c1"), SubmissionId("t"), decision, "ann", 5, by))


def test_event_of_an_entry_has_its_time_and_its_place() -> None:
    (found,) = read(event("task_started"))
    assert (found.id, found.type, found.at_ms, found.seq) == ("t", "task_started", 1000, 1)


def test_entries_that_tell_people_nothing_are_passed_over() -> None:
    said = {"type": "message", "role": "user", "content": []}
    assert read(Entry(e.RESPONSE_ITEM, said), e.fact(f.Closed()), Entry(e.TURN_CONTEXT, {"cwd": "/"})) == []


def test_answer_in_the_log_declines_the_command_that_was_asked_about() -> None:
    asked = event("exec_approval_request", call_id="c1", command=["x"], cwd="/")
    found = changes(read(event("task_started"), asked, answer("denied")))
    assert r.RequestResolved(r.TurnId("t"), r.ItemId("c1"), "denied", "ann") in found
    assert [getattr(item, "status", None) for _, item in completed(found)] == ["declined"]


def test_answer_that_was_sent_on_to_an_agent_decides_nothing_here() -> None:
    assert read(answer("denied", agent_id=2)) == []


def test_call_about_agents_is_an_item_of_its_turn() -> None:
    items = [Entry(e.RESPONSE_ITEM, item) for item in (SPAWN, MADE)]
    ((turn, item),) = completed(changes(read(event("task_started"), *items)))
    assert isinstance(item, r.CollabToolCall)
    assert (turn, item.receivers, item.completed_ms) == ("t", ("child",), 3000)


def test_tool_that_prints_an_event_is_not_taken_for_one() -> None:
    printed = {"type": "function_call_output", "call_id": "x", "output": '{"type":"event_msg"}'}
    assert changes(read(event("task_started"), Entry(e.RESPONSE_ITEM, printed)))[2:] == []
