"""Turns and their items as JSON of the app-server protocol."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Final, Literal, assert_never

from orchestrator.protocol.faults import CodexErrorKind, HttpFaultKind
from orchestrator.protocol.scalars import ExecCommandSource
from orchestrator.protocol.wire import JsonMapping, JsonObject, JsonValue
from orchestrator.views.turns import records as r
from orchestrator.views.turns.fields import listed, mapping, mappings, optional, text, texts, whole
from orchestrator.views.turns.projector import BUDGET_SPENT

ItemsView = Literal["full", "summary", "notLoaded"]
_KINDS: Final = frozenset({*CodexErrorKind, BUDGET_SPENT})
_HTTP_KINDS: Final = frozenset(HttpFaultKind)
_SHELLS: Final = frozenset({"bash", "sh", "zsh", "/bin/bash", "/bin/sh", "/bin/zsh"})
_RETRY: Final = re.compile(r"retrying (\d+/\d+)")
_CALL_STATUSES: Final[Mapping[r.ItemStatus, str]] = {
    r.ItemStatus.IN_PROGRESS: "inProgress",
    r.ItemStatus.COMPLETED: "completed",
    r.ItemStatus.FAILED: "failed",
    r.ItemStatus.DECLINED: "declined",
    r.ItemStatus.INTERRUPTED: "failed",
}
_SOURCES: Final[Mapping[ExecCommandSource, str]] = {
    ExecCommandSource.AGENT: "agent",
    ExecCommandSource.USER_SHELL: "userShell",
    ExecCommandSource.UNIFIED_EXEC_STARTUP: "unifiedExecStartup",
    ExecCommandSource.UNIFIED_EXEC_INTERACTION: "unifiedExecInteraction",
}
_TOOLS: Final[Mapping[r.CollabTool, str]] = {
    r.CollabTool.SPAWN: "spawnAgent",
    r.CollabTool.SEND_INPUT: "sendInput",
    r.CollabTool.INTERRUPT: "interruptAgent",
    r.CollabTool.WAIT: "wait",
    r.CollabTool.CLOSE: "closeAgent",
    r.CollabTool.LIST: "listAgents",
}


def camel(word: str) -> str:
    """A word of our wire as the app-server protocol spells it: `in_progress` is `inProgress`."""
    first, *rest = word.split("_")
    return first + "".join(part.capitalize() for part in rest)


# ── turns ─────────────────────────────────────────────────────────────────────────────────────


def turn_json(turn: r.Turn, view: ItemsView, root_turn: str | None = None) -> JsonObject:
    """A `Turn` with all of its items, with its last message, or with none.

    `root_turn` is the turn of the root in which an agent's task was begun.
    """
    items = items_in(turn, view)
    over = turn.started_ms is not None and turn.completed_ms is not None
    return {
        "id": turn.id,
        "rootTurnId": root_turn or turn.id,
        "items": [item_json(item) for item in items],
        "itemsView": view if items or view == "full" else "notLoaded",
        "status": camel(turn.status),
        "error": None if turn.fault is None else fault_json(turn.fault),
        "startedAt": _seconds(turn.started_ms),
        "completedAt": _seconds(turn.completed_ms),
        "durationMs": max(0, (turn.completed_ms or 0) - (turn.started_ms or 0)) if over else None,
    }


def items_in(turn: r.Turn, view: ItemsView) -> Sequence[r.ThreadItem]:
    """The items of a turn that a view of it has."""
    match view:
        case "full":
            return turn.items
        case "summary":
            said = [item for item in turn.items if isinstance(item, r.AgentMessage)]
            return said[-1:] if turn.status is r.TurnStatus.COMPLETED else ()
        case "notLoaded":
            return ()


def listed_turn_json(turn: r.Turn, view: ItemsView, root_turn: str | None = None) -> JsonObject:
    """A `Turn` in a list, whose summary has the words that began it, too."""
    written = turn_json(turn, view, root_turn)
    said = next((item for item in turn.items if isinstance(item, r.UserMessage)), None)
    if view != "summary" or said is None:
        return written
    return {**written, "items": [item_json(said), *written["items"]], "itemsView": "summary"}


def _seconds(at_ms: int | None) -> int | None:
    return None if at_ms is None else at_ms // 1000


def fault_json(fault: r.Fault, *, will_retry: bool = False) -> JsonObject:
    """A `TurnError`; of a retry the message counts, and the reason stands in the details."""
    message, details, info = fault.message, fault.details, error_info(fault.info)
    if will_retry:
        counted = _RETRY.search(message)
        details = details or message
        message = f"Reconnecting... {counted[1]}" if counted else message
        info = info or {"responseStreamDisconnected": {"httpStatusCode": None}}
    return {"message": message, "codexErrorInfo": info, "additionalDetails": details, "misalignment": None}


def error_info(info: JsonValue) -> JsonValue:
    """A `CodexErrorInfo`; a kind that the protocol does not have is `other`."""
    if info is None:
        return None
    if isinstance(info, str):
        return camel(info) if info in _KINDS else "other"
    for kind, body in mapping(info).items():
        if kind in _HTTP_KINDS:
            return {camel(kind): {"httpStatusCode": whole(mapping(body).get("http_status_code"))}}
        if kind == "model_cap":
            return "usageLimitExceeded"
    return "other"


# ── items ─────────────────────────────────────────────────────────────────────────────────────


def item_json(item: r.ThreadItem) -> JsonObject:
    """A `ThreadItem`, with the times of its begin and its end."""
    return {
        **_body(item),
        "id": item.id,
        "startedAtMs": item.started_ms if item.started_ms is not None else item.completed_ms,
        "completedAtMs": item.completed_ms,
    }


def _body(item: r.ThreadItem) -> JsonObject:
    match item:
        case r.UserMessage():
            content = [input_json(one) for one in item.content]
            return {"type": "userMessage", "clientId": item.client_id, "content": content}
        case r.AgentMessage():
            return {"type": "agentMessage", "text": item.text, "phase": _phase(item.phase)}
        case r.Reasoning():
            return {"type": "reasoning", "summary": list(item.summary), "content": list(item.content)}
        case r.Plan():
            return {"type": "plan", "text": item.text}
        case r.CommandExecution():
            return _command(item)
        case r.FileChange():
            changes = [_file(one) for one in item.changes]
            return {"type": "fileChange", "changes": changes, "status": _CALL_STATUSES[item.status]}
        case r.McpToolCall():
            return _tool(item)
        case r.DynamicToolCall():
            return _dynamic(item)
        case r.CollabToolCall():
            return _collab(item)
        case r.WebSearch():
            return {"type": "webSearch", "query": item.query, "action": action_json(item.action)}
        case r.ImageView():
            return {"type": "imageView", "path": item.path}
        case r.EnteredReview():
            return {"type": "enteredReviewMode", "review": item.review}
        case r.ExitedReview():
            return {"type": "exitedReviewMode", "review": item.review}
        case r.ContextCompaction():
            return {"type": "contextCompaction"}
        case _:
            assert_never(item)


def _phase(phase: str | None) -> str | None:
    return phase if phase in {"commentary", "partial_answer", "final_answer"} else None


def input_json(item: JsonMapping) -> JsonObject:
    """A `UserInput`."""
    match item.get("type"):
        case "image":
            return {"type": "image", "url": text(item.get("image_url"))}
        case "local_image":
            return {"type": "localImage", "path": text(item.get("path"))}
        case "skill" | "mention" as kind:
            return {"type": kind, "name": text(item.get("name")), "path": text(item.get("path"))}
        case _:
            elements = [_element(one) for one in mappings(item.get("text_elements"))]
            return {"type": "text", "text": text(item.get("text")), "text_elements": elements}


def _element(element: JsonMapping) -> JsonObject:
    span = mapping(element.get("byte_range"))
    start, end = whole(span.get("start")) or 0, whole(span.get("end")) or 0
    return {
        "byteRange": {"start": start, "end": end},
        "placeholder": optional(element.get("placeholder")),
    }


# ── calls ─────────────────────────────────────────────────────────────────────────────────────


def _command(item: r.CommandExecution) -> JsonObject:
    return {
        "type": "commandExecution",
        "command": shlex.join(item.command),
        "cwd": item.cwd,
        "processId": item.process_id,
        "source": _SOURCES[item.source],
        "status": _CALL_STATUSES[item.status],
        "commandActions": [_action(one) for one in item.actions] or [command_action(item.command)],
        "aggregatedOutput": item.output,
        "exitCode": item.exit_code,
        "durationMs": item.duration_ms,
    }


def command_action(argv: Sequence[str]) -> JsonObject:
    """The `CommandAction` of a command of which no more is known: the script of a shell, or all of it."""
    script = argv[2] if len(argv) == 3 and argv[0] in _SHELLS and argv[1] in {"-c", "-lc"} else ""
    return {"type": "unknown", "command": script or shlex.join(argv)}


def _action(parsed: JsonMapping) -> JsonObject:
    command, path = text(parsed.get("cmd")), optional(parsed.get("path"))
    match parsed.get("type"):
        case "read":
            name = text(parsed.get("name"))
            return {"type": "read", "command": command, "name": name, "path": path or name}
        case "list_files":
            return {"type": "listFiles", "command": command, "path": path}
        case "search":
            query = optional(parsed.get("query"))
            return {"type": "search", "command": command, "query": query, "path": path}
        case _:
            return {"type": "unknown", "command": command}


def _file(change: r.FileDiff) -> JsonObject:
    kind: JsonObject = {"type": change.kind.value}
    diff = change.diff
    if change.kind is r.ChangeKind.UPDATE:
        kind["move_path"] = change.move_path
        diff += f"\n\nMoved to: {change.move_path}" if change.move_path else ""
    return {"path": change.path, "kind": kind, "diff": diff}


def _tool(item: r.McpToolCall) -> JsonObject:
    result = None
    if item.result is not None:
        structured = item.result.get("structuredContent")
        result = {"content": list(listed(item.result.get("content"))), "structuredContent": structured}
    return {
        "type": "mcpToolCall",
        "server": item.server,
        "tool": item.tool,
        "arguments": item.arguments,
        "status": _simple(item.status),
        "result": result,
        "error": None if item.error is None else {"message": item.error},
        "durationMs": item.duration_ms,
    }


def _dynamic(item: r.DynamicToolCall) -> JsonObject:
    said = item.parts or ([{"type": "input_text", "text": item.output}] if item.output is not None else None)
    output = None if said is None else [_client_content(part) for part in said]
    return {
        "type": "dynamicToolCall",
        "namespace": item.namespace,
        "tool": item.tool,
        "arguments": item.arguments,
        "status": _simple(item.status),
        "contentItems": output,
        "success": item.success,
        "durationMs": item.duration_ms,
    }


def _client_content(part: JsonMapping) -> JsonObject:
    if part.get("type") == "input_image":
        return {"type": "inputImage", "imageUrl": text(part.get("image_url"))}
    return {"type": "inputText", "text": text(part.get("text"))}


def _collab(item: r.CollabToolCall) -> JsonObject:
    interrupted = item.status is r.ItemStatus.INTERRUPTED
    states = {
        session: {"status": camel(state.status), "message": state.message}
        for session, state in item.states.items()
    }
    return {
        "type": "collabAgentToolCall",
        "tool": _TOOLS[item.tool],
        "status": "interrupted" if interrupted else _simple(item.status),
        "senderThreadId": item.sender,
        "receiverThreadIds": list(item.receivers),
        "prompt": item.prompt,
        "model": item.model,
        "reasoningEffort": item.effort,
        "agentsStates": states,
    }


def _simple(status: r.ItemStatus) -> str:
    """The status of a call that knows no refusal."""
    return "failed" if status is r.ItemStatus.DECLINED else _CALL_STATUSES[status]


def action_json(action: JsonMapping | None) -> JsonValue:
    """A `WebSearchAction`, or None where the search had none."""
    if action is None:
        return None
    url, query = optional(action.get("url")), optional(action.get("query"))
    match action.get("type"):
        case "search":
            return {"type": "search", "query": query, "queries": list(texts(action.get("queries"))) or None}
        case "open_page":
            return {"type": "openPage", "url": url}
        case "find_in_page":
            return {"type": "findInPage", "url": url, "pattern": optional(action.get("pattern"))}
        case _:
            return {"type": "other"}
