"""Calls that make, tell, await and end agents, by the conversation's items: the call, and its output."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from orchestrator.core.frozen import replace
from orchestrator.protocol.wire import JsonMapping, JsonValue
from orchestrator.views.turns.fields import mapping, mappings, optional, parsed, text
from orchestrator.views.turns.records import (
    CollabState,
    CollabStatus,
    CollabTool,
    CollabToolCall,
    DynamicToolCall,
    ItemId,
    ItemStatus,
    ThreadItem,
)

NAMESPACE: Final = "dendro"
_COLLAB: Final[Mapping[str, CollabTool]] = {
    "subagent_spawn": CollabTool.SPAWN,
    "subagent_fork": CollabTool.SPAWN,
    "subagent_send_message": CollabTool.SEND_INPUT,
    "subagent_await": CollabTool.WAIT,
    "subagent_cancel": CollabTool.CLOSE,
    "subagent_list": CollabTool.LIST,
}
_STATUSES: Final[Mapping[str, CollabStatus]] = {
    "queued": CollabStatus.PENDING_INIT,
    "running": CollabStatus.RUNNING,
    "ready": CollabStatus.COMPLETED,
    "idle": CollabStatus.COMPLETED,
    "completed": CollabStatus.COMPLETED,
    "failed": CollabStatus.ERRORED,
    "canceled": CollabStatus.SHUTDOWN,
    "pruned": CollabStatus.NOT_FOUND,
}
_ENDS: Final = (("Completed", "last_message"), ("Failed", "message"), ("Canceled", "reason"))

AgentCall = CollabToolCall | DynamicToolCall


def call_of(item: JsonMapping, sender: str, at_ms: int | None) -> AgentCall:
    """The call as it begins; `item` is a function call of a tool that is told of by its items."""
    id, name, asked = ItemId(text(item.get("call_id"))), text(item.get("name")), parsed(item.get("arguments"))
    tool = _COLLAB.get(name)
    if tool is None:
        return DynamicToolCall(id, name, asked, NAMESPACE, started_ms=at_ms)
    given = mapping(asked)
    if tool is CollabTool.SEND_INPUT and given.get("interrupt") is True:
        tool = CollabTool.INTERRUPT
    prompt, model = optional(given.get("prompt")), optional(given.get("model"))
    return CollabToolCall(id, tool, sender, prompt=prompt, model=model, started_ms=at_ms)


def answered(
    call: AgentCall, item: JsonMapping, at_ms: int | None, before: Iterable[ThreadItem] = ()
) -> AgentCall:
    """The call with its output, by which a refusal is told from a result: results are JSON.

    `before` are the items of the turn: they have the last words of agents that it has awaited.
    """
    output = output_text(item.get("output"))
    result = parsed(output)
    status = ItemStatus.COMPLETED if isinstance(result, dict) else ItemStatus.FAILED
    if isinstance(call, DynamicToolCall):
        done = status is ItemStatus.COMPLETED
        return replace(call, status=status, output=output, success=done, completed_ms=at_ms)
    states = _with_last_words(call.tool, states_of(call.tool, mapping(result)), before)
    model = optional(mapping(result).get("model")) or call.model
    return replace(
        call, status=status, receivers=tuple(states), states=states, model=model, completed_ms=at_ms
    )


def _with_last_words(
    tool: CollabTool, states: Mapping[str, CollabState], before: Iterable[ThreadItem]
) -> dict[str, CollabState]:
    """An agent that is told something or closed stands there as its answer left it."""
    if tool not in (CollabTool.SEND_INPUT, CollabTool.INTERRUPT, CollabTool.CLOSE):
        return dict(states)
    earlier = [item for item in before if isinstance(item, CollabToolCall)]
    found = dict(states)
    for session, state in states.items():
        answer = _awaited_last(earlier, session)
        if answer is not None:
            closed = replace(state, message=answer.message)
            found[session] = closed if tool is CollabTool.CLOSE else answer
    return found


def _awaited_last(items: Sequence[CollabToolCall], session: str) -> CollabState | None:
    """The answer of an agent that was awaited; None if it has been told something since."""
    for item in reversed(items):
        if session in item.states:
            return item.states[session] if item.tool is CollabTool.WAIT else None
    return None


def output_text(output: JsonValue) -> str:
    """The text of a call's output, which may come in parts."""
    if isinstance(output, str):
        return output
    if isinstance(output, Mapping):
        return text(output.get("content"))
    return "\n".join(text(part.get("text")) for part in mappings(output))


def states_of(tool: CollabTool, result: JsonMapping) -> dict[str, CollabState]:
    """The agents that a result tells of, by their sessions."""
    if tool is CollabTool.WAIT:
        told = [(one.get("session_id"), _awaited(one)) for one in mappings(result.get("ready"))]
    elif tool is CollabTool.LIST:
        told = [
            (one.get("session_id"), _state(one.get("status"))) for one in mappings(result.get("sessions"))
        ]
    else:
        made = tool is CollabTool.SPAWN
        told = [(result.get("session_id"), _state("queued" if made else result.get("status")))]
    return {session: state for session, state in told if isinstance(session, str)}


def _state(status: JsonValue) -> CollabState:
    return CollabState(_STATUSES.get(text(status), CollabStatus.RUNNING))


def _awaited(one: JsonMapping) -> CollabState:
    """An agent that has answered, with its last message; or one that has written without being done."""
    completion = mapping(one.get("completion"))
    messages = (optional(mapping(completion.get(kind)).get(field)) for kind, field in _ENDS)
    message = next((said for said in messages if said is not None), None)
    if message is None:
        said = [optional(letter.get("prompt")) for letter in mappings(one.get("messages"))]
        message = next((prompt for prompt in reversed(said) if prompt), None)
    status = one.get("completion_status") or one.get("lifecycle_status")
    return replace(_state(status), message=message)
