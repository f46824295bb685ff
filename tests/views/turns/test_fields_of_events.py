"""The projector against the protocol's records: every event is decided on, and every field read is one of it.

Where an event is read whatever form it has, its fields are read by name, and no type tells of a wrong one.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator

from orchestrator.core.entries import EventKind
from orchestrator.protocol import events as ev
from orchestrator.requests import TYPES
from orchestrator.views.turns import projector

NOTHING_TO_TURNS = {
    *(ev.DeprecationNotice, ev.BackgroundEvent, ev.UndoStarted, ev.UndoCompleted, ev.ShutdownComplete),
    *(ev.ItemsInjected, ev.SessionConfigured, ev.ConversationPath, ev.SkillsUpdateAvailable),
    *(ev.GetHistoryEntryResponse, ev.ListCustomPromptsResponse, ev.ListModelsResponse, ev.ListSkillsResponse),
    *(ev.McpListToolsResponse, ev.McpStartupUpdate, ev.McpStartupComplete),
    *(ev.EnteredPlanMode, ev.ExitedPlanMode, ev.SubagentLifecycle, ev.AgentInbox),
    *(ev.SubAgentToolCallActivity, ev.SubAgentToolCallTokens),
    *(ev.CollabAgentSpawnBegin, ev.CollabAgentSpawnEnd, ev.CollabWaitingBegin, ev.CollabWaitingEnd),
    *(ev.CollabAgentInteractionBegin, ev.CollabAgentInteractionEnd, ev.CollabCloseBegin, ev.CollabCloseEnd),
    # Other events tell the same.
    *(ev.AgentMessageContentDelta, ev.ReasoningContentDelta, ev.ReasoningRawContentDelta),
}


def test_every_event_changes_turns_or_is_known_to_change_nothing() -> None:
    assert {*projector.HANDLERS, *NOTHING_TO_TURNS} == set(ev.EVENTS.values())
    assert not projector.HANDLERS.keys() & NOTHING_TO_TURNS


FUNCTIONS = {
    node.name: node
    for module in (projector, projector, projector, projector)
    for node in ast.walk(ast.parse(inspect.getsource(module)))
    if isinstance(node, ast.FunctionDef)
}
ASKED = [ev.EVENTS[tag] for tag in TYPES]


def _is_message(node: ast.expr) -> bool:
    """Whether an expression is the JSON of an event."""
    return ast.unparse(node) in ("event", "message", "event.msg")


def _names(function: ast.FunctionDef, seen: set[str]) -> Iterator[str]:
    """The fields of an event that a function reads by name, and those that it calls with the event."""
    for node in ast.walk(function):
        if not isinstance(node, ast.Call):
            continue
        if isinstance(node.func, ast.Attribute) and node.func.attr == "get" and _is_message(node.func.value):
            yield str(ast.literal_eval(node.args[0]))
        called = ast.unparse(node.func).rpartition(".")[2]
        if any(_is_message(arg) for arg in node.args) and called in FUNCTIONS and called not in seen:
            seen.add(called)
            yield from _names(FUNCTIONS[called], seen)


def _fields(kind: EventKind) -> set[str]:
    fields = kind.model_fields
    return {*fields, *(field.alias for field in fields.values() if field.alias)}


def _read_by_name() -> Iterator[tuple[str, EventKind, set[str]]]:
    for kind, handle in projector.HANDLERS.items():
        if handle.__name__ in FUNCTIONS and handle.__name__ != "handled":
            yield kind.__name__, kind, set(_names(FUNCTIONS[handle.__name__], {"receive"}))


def test_projector_reads_fields_by_name_where_forms_differ() -> None:
    assert sum(len(names) for _, _, names in _read_by_name()) > 40


def test_field_that_is_read_by_its_name_is_one_of_its_event() -> None:
    # One handler reads all requests.
    of_requests = set().union(*map(_fields, ASKED))
    wrong = {
        name: lacks
        for name, kind, names in _read_by_name()
        if (lacks := names - (of_requests if kind in ASKED else _fields(kind)))
    }
    assert wrong == {}
