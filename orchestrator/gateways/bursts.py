"""Events that came together, with what all connections of a process make of them, made once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from orchestrator.broker.follow import EqCursor
from orchestrator.broker.records import StoredEvent
from orchestrator.core.blobs import may_refer
from orchestrator.core.frozen import replace
from orchestrator.protocol.events import ExecCommandEnd, ShutdownComplete
from orchestrator.tables import KIB
from orchestrator.views.asked_requests import TELLING
from orchestrator.views.event import CHANGED, Event, Message
from orchestrator.views.event import for_tenant as message_for_tenant

BURST_BYTES = 64 * KIB
"""Bytes of payloads behind which another burst begins."""
NOTED = TELLING | {ExecCommandEnd, ShutdownComplete}
"""Events from which a connection of lines learns more than its client."""

Numbers = Callable[[Event, int], int]
"""The `seq` of an event on a line, from that of the event before."""


class Burst:
    """Events of one session that are told together; connections share it, and none may change it."""

    __slots__ = ("_lines", "_noted", "events", "refers")

    def __init__(self, events: tuple[Event, ...], *, refers: bool = False) -> None:
        self.events = events
        self.refers = refers
        """Whether it is an event whose large texts are still to be put in."""
        self._lines: dict[Numbers | None, bytes] = {}
        self._noted: tuple[Event, ...] | None = None

    def lines(self, numbers: Numbers | None, number: int) -> bytes:
        """A line for each event that is told on lines, with its number if there are `numbers`."""
        if self.events[0].cursor is None:
            return self._written(numbers, number)
        # Numbers of events that have a place are the same for every connection.
        found = self._lines.get(numbers)
        if found is None:
            found = self._lines[numbers] = self._written(numbers, number)
        return found

    def _written(self, numbers: Numbers | None, number: int) -> bytes:
        lines = []
        for event in self.events:
            number = numbers(event, number) if numbers is not None else 0
            if event.type not in NOT_ON_A_LINE:
                line = event.line()
                lines.append(line if numbers is None else b'%b,"seq":%d}' % (line[:-1], number))
        return b"\n".join((*lines, b"")) if lines else b""

    def number(self, numbers: Numbers | None, number: int) -> int:
        """The `seq` of its last event, for a connection whose last one was `number`."""
        return number if numbers is None else numbers(self.events[-1], number)

    def noted(self) -> tuple[Event, ...]:
        """Its events of the kinds `NOTED`."""
        if self._noted is None:
            self._noted = tuple(event for event in self.events if event.kind in NOTED)
        return self._noted


def for_tenant(burst: Burst) -> Burst:
    """A burst as the tenant of a namespace gets it."""
    if not any(event.type in CHANGED for event in burst.events):
        return burst
    told = (replace(event, msg=message_for_tenant(event.msg), shared=None) for event in burst.events)
    return Burst(tuple(told), refers=burst.refers)


def bursts_of(found: Iterable[StoredEvent], read: Callable[[bytes], Message]) -> tuple[Burst, ...]:
    """Events of a queue as bursts of at most `BURST_BYTES`, or of one event; `read` reads a payload."""
    bursts: list[Burst] = []
    together: list[Event] = []
    size = 0
    for stored in found:
        event = _event(stored, read(stored.payload))
        refers = may_refer(stored.payload)
        if together and (refers or size + len(stored.payload) > BURST_BYTES):
            bursts.append(Burst(tuple(together)))
            together, size = [], 0
        if refers:
            bursts.append(Burst((event,), refers=True))
        else:
            together.append(event)
            size += len(stored.payload)
    return (*bursts, Burst(tuple(together))) if together else tuple(bursts)


def _event(stored: StoredEvent, read: Message) -> Event:
    return Event(read.id, read.msg, EqCursor.behind(stored), stored.at_ms, stored.seq, read)


# ── messages ──────────────────────────────────────────────────────────────────────────────────────
# Events that many connections of one process follow, each read and written once for all of them.


MOST_BYTES = 512 * KIB
"""Payloads that are kept; read, they take some ten times as much."""


class Messages:
    """The messages of the payloads that were read last, and the bursts of the answers that they came in."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most = most_bytes
        self._bytes = 0
        self._kept: dict[bytes, Message] = {}
        self._answered = 0
        self._answers: dict[int, tuple[tuple[StoredEvent, ...], tuple[Burst, ...]]] = {}
        """Bursts by the identity of their answer, which is kept beside them and so stays its own."""

    def bursts(self, answer: tuple[StoredEvent, ...]) -> tuple[Burst, ...]:
        """The bursts of a reader's answer; the same ones for all who share the answer, soon behind it."""
        found = self._answers.get(id(answer))
        if found is not None:
            return found[1]
        bursts = bursts_of(answer, self.of)
        self._keep_answer(answer, bursts)
        return bursts

    def _keep_answer(self, answer: tuple[StoredEvent, ...], bursts: tuple[Burst, ...]) -> None:
        size = _size(answer)
        if size > self._most:
            return
        self._answers[id(answer)] = (answer, bursts)
        self._answered += size
        while self._answered > self._most:
            oldest, _ = self._answers.pop(next(iter(self._answers)))
            self._answered -= _size(oldest)

    def of(self, payload: bytes) -> Message:
        """The message of a payload; what comes soon behind it finds the same one."""
        found = self._kept.get(payload)
        if found is None:
            found = Message(payload)
            self._keep(payload, found)
        return found

    def _keep(self, payload: bytes, message: Message) -> None:
        if len(payload) > self._most:
            return
        self._kept[payload] = message
        self._bytes += len(payload)
        while self._bytes > self._most:
            oldest = next(iter(self._kept))
            del self._kept[oldest]
            self._bytes -= len(oldest)


def _size(answer: tuple[StoredEvent, ...]) -> int:
    return sum(len(event.payload) for event in answer)


# ── served ────────────────────────────────────────────────────────────────────────────────────────
# The part of the protocol that this version serves and sends; the rest is read, and passed on.
#
# A test holds both sets against the code.


SERVED_OPS: Final = frozenset(
    {
        "add_to_history",
        "cancel_agent",
        "compact",
        "configure_session",
        "dynamic_tool_response",
        "exec_approval",
        "get_history_entry_request",
        "get_path",
        "inject_items",
        "interrupt",
        "list_custom_prompts",
        "list_mcp_tools",
        "list_models",
        "list_skills",
        "message_agent",
        "override_turn_context",
        "plan",
        "patch_approval",
        "remove_queued",
        "reorder_queue",
        "resolve_ask_user_question",
        "resolve_elicitation",
        "resolve_plan_approval",
        "review",
        "run_user_shell_command",
        "set_thread_name",
        "shutdown",
        "thread_rollback",
        "update_queued",
        "user_input",
        "user_input_answer",
        "user_turn",
    }
)
"""Operations that a session carries out; the others are answered by an `error`."""

SENT_EVENTS: Final = frozenset(
    {
        "agent_inbox",
        "agent_message",
        "agent_message_content_delta",
        "agent_message_delta",
        "agent_reasoning",
        "agent_reasoning_delta",
        "agent_reasoning_raw_content",
        "agent_reasoning_raw_content_delta",
        "agent_reasoning_section_break",
        "apply_patch_approval_request",
        "ask_user_question_request",
        "background_event",
        "context_compacted",
        "context_compaction",
        "conversation_path",
        "dynamic_tool_call_request",
        "dynamic_tool_call_response",
        "elicitation_request",
        "entered_plan_mode",
        "entered_review_mode",
        "error",
        "exec_approval_request",
        "exec_command_begin",
        "exec_command_end",
        "exec_command_output_delta",
        "exited_review_mode",
        "exited_plan_mode",
        "mcp_list_tools_response",
        "mcp_startup_complete",
        "mcp_startup_update",
        "get_history_entry_response",
        "input_accepted",
        "item_completed",
        "item_started",
        "items_injected",
        "list_custom_prompts_response",
        "list_models_response",
        "list_skills_response",
        "mcp_tool_call_begin",
        "mcp_tool_call_end",
        "patch_apply_begin",
        "patch_apply_end",
        "plan_delta",
        "plan_approval_request",
        "plan_update",
        "queue_changed",
        "raw_response_item",
        "reasoning_content_delta",
        "reasoning_raw_content_delta",
        "request_resolved",
        "request_user_input",
        "session_configured",
        "shutdown_complete",
        "stream_error",
        "sub_agent_tool_call_activity",
        "sub_agent_tool_call_begin",
        "sub_agent_tool_call_end",
        "sub_agent_tool_call_tokens",
        "subagent_lifecycle",
        "task_complete",
        "task_started",
        "terminal_interaction",
        "thread_name_updated",
        "thread_rolled_back",
        "token_count",
        "turn_aborted",
        "turn_diff",
        "user_message",
        "view_image_tool_call",
        "warning",
        "web_search_begin",
        "web_search_end",
    }
)
"""Events that a session publishes; the others are read in rollouts of other programs and versions."""

NOT_ON_A_LINE: Final = frozenset({"context_compaction", "raw_response_item"})
"""Events for doors that draw items: recorded clients of the SQ and EQ are served without them."""

NEVER_SERVED: Final = frozenset({"refresh_mcp_servers", "undo"})
"""Operations of other programs that no version is to carry out: they are read, and answered by an `error`."""

NEVER_SENT: Final = frozenset(
    {
        "collab_agent_interaction_begin",
        "collab_agent_interaction_end",
        "collab_agent_spawn_begin",
        "collab_agent_spawn_end",
        "collab_close_begin",
        "collab_close_end",
        "collab_waiting_begin",
        "collab_waiting_end",
        "deprecation_notice",
        "undo_completed",
        "undo_started",
    }
)
"""Events that only other programs send."""

ONLY_READ: Final[Mapping[str, frozenset[str]]] = {
    "AgentState": frozenset({"pending_init", "running", "shutdown", "not_found", "interrupted"}),
    "ExecCommandSource": frozenset({"unified_exec_interaction"}),
    "NetworkAccess": frozenset({"restricted", "enabled"}),
    "SkillScope": frozenset({"system"}),
    "TurnAbortReason": frozenset({"budget_limited"}),
    "UserMessageKind": frozenset({"user_instructions", "environment_context"}),
    "WindowsSandboxLevel": frozenset({"disabled", "restricted-token", "elevated"}),
}
"""Values of enumerations that a session never sends, by the enumeration's name."""
