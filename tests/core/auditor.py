"""Reads a session's log beside it, and says what no log may hold.

The auditor knows the catalogue of entries and nothing of the rules that write them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.core.entries import Entry
from orchestrator.core.history import CALL_KINDS, OUTPUT_KINDS, Item, message_text
from orchestrator.core.outstanding import FollowProcess, LookUp, outstanding
from orchestrator.protocol.codec import event_msg
from orchestrator.protocol.events import UnknownEvent
from tests.core.driver import Session

LARGEST_COMMIT = 256
ENDS = {"task_complete", "turn_aborted"}
_SCALARS = {str, int, float, bool, type(None)}
OF_A_SUBMISSION = {
    "error",
    "session_configured",
    "conversation_path",
    "shutdown_complete",
    "thread_name_updated",
    "thread_rolled_back",
    "list_custom_prompts_response",
    "list_models_response",
    "list_skills_response",
    "get_history_entry_response",
    "input_accepted",
    "items_injected",
    "queue_changed",
    "mcp_list_tools_response",
}
"""Events that answer a submission under its own id, whatever task runs."""


@dataclass
class Audit:
    """A session's log as far as it was read."""

    plain: bool = False
    """Whether all values are as JSON is read, lists and dictionaries."""
    task: str | None = None
    ends: int = 0
    stopping: bool = False
    phases: dict[str, str] = field(default_factory=dict)
    tasks: set[str] = field(default_factory=set)
    processes: dict[str, str] = field(default_factory=dict)
    """The tasks of calls whose commands went on."""
    lookups: list[str] = field(default_factory=list)
    """Look-ups that were accepted and not answered."""
    inputs: set[str] = field(default_factory=set)
    """Texts that joined the conversation."""

    def read(self, entry: Entry) -> None:
        match entry.type:
            case "event_msg":
                self._event(entry)
            case "dendro":
                self._fact(entry.payload)
            case "response_item":
                self._item(entry.payload)

    def _event(self, entry: Entry) -> None:
        kind = entry.payload["type"]
        payload = entry.payload if self.plain else _plain(entry.payload)
        assert not isinstance(event_msg(payload), UnknownEvent), kind
        if kind in ENDS:
            assert self.task is not None, f"{kind} where no task holds the session"
            self.ends += 1
        if kind == "warning":
            assert entry.id, "a warning belongs to a task, or to the submission that it is about"
        elif kind == "exec_command_end" and entry.payload.get("process_id"):
            assert entry.id in self.tasks, f"the end of a process of {entry.id}, which was no task"
        elif (turn := self.processes.get(entry.payload.get("call_id", ""))) and kind.endswith("output_delta"):
            assert entry.id == turn, f"{kind} of {entry.id}, and its process is of {turn}"
        elif kind not in OF_A_SUBMISSION:
            assert entry.id == self.task, f"{kind} of {entry.id} while {self.task} holds the session"

    def _fact(self, fact: Mapping[str, Any]) -> None:
        match fact["kind"]:
            case "task":
                assert self.task is None, f"task {fact['id']} began while {self.task} held the session"
                self.task, self.ends, self.stopping, self.phases = fact["id"], 0, False, {}
                self.tasks.add(fact["id"])
            case "task_ended":
                assert self.ends == 1, f"task {self.task} ended with {self.ends} final events"
                self.task = None
            case "process":
                self.processes[fact["call_id"]] = fact["turn"]
            case "lookup":
                self.lookups.append(fact["id"])
            case "looked_up":
                self.lookups.remove(fact["id"])
            case "closing":
                if not fact.get("keeps_lookups"):
                    self.lookups.clear()
            case "stopping":
                self.stopping = True
            case "request_begun":
                assert not self.stopping, "a request began in a task that is being stopped"
                assert set(self.phases.values()) <= {"done"}, "a request began before the calls were done"
                self.phases = {}
            case "call":
                self._phase(fact["call_id"], fact["phase"])
            case "calls_closed":
                assert self.stopping, "calls were closed in a task that goes on"
                for call_id in fact["call_ids"]:
                    self._phase(call_id, "done")

    def _phase(self, call_id: str, phase: str) -> None:
        before = self.phases.get(call_id, "proposed")
        if phase == "running":
            assert before in {"proposed", "awaiting_approval"}, f"{call_id} runs twice for one decision"
            assert not self.stopping, f"{call_id} started in a task that is being stopped"
        assert phase != "awaiting_approval" or not self.stopping, f"{call_id} asked while stopping"
        assert before != "done", f"{call_id} moved on after it was done"
        self.phases[call_id] = phase

    def _item(self, item: Item) -> None:
        if item.get("role") == "user":
            self.inputs.add(message_text(item))


def _plain(value: Any) -> Any:
    if type(value) in _SCALARS:
        return value
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, list | tuple) else value


def check_liveness(session: Session) -> None:
    """Something can always happen: work is owed, or somebody or a timer is waited for."""
    state = session.state
    if state.task is None:
        assert all(isinstance(work, LookUp | FollowProcess) for work in session.owes())
        assert not state.queue or state.closed, "input waits for a session that is free"
        assert (session.approvals, session.timers) == ({}, {})
        return
    task = state.task
    if task.ending or not task.stopping:
        assert set(session.approvals) == {call.call_id for call in task.awaiting}
    if outstanding(state, session.rules):
        return
    retry = session.timers.get("retry")
    waits = task.wait != 0 and retry is not None and retry.generation == task.wait
    assert task.awaiting or waits, "nothing is owed and nothing is waited for"


def check_calls(session: Session) -> None:
    """No call has two outputs; where no task holds the session, every call in its history has one."""
    calls = Counter(item["call_id"] for item in session.state.history if item.get("type") in CALL_KINDS)
    outputs = Counter(item["call_id"] for item in session.state.history if item.get("type") in OUTPUT_KINDS)
    assert outputs <= calls
    assert session.state.task is not None or calls == outputs
