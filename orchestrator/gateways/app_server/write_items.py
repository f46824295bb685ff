"""Threads, turns, their items and what changes of them, as JSON of the app-server protocol."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.metadata import version
from typing import Final, Literal, assert_never

from orchestrator.core.ids import SessionId
from orchestrator.protocol.events import CodexErrorKind, HttpFaultKind, TokenUsage
from orchestrator.protocol.scalars import ExecCommandSource
from orchestrator.protocol.wire import JsonMapping, JsonObject, JsonValue
from orchestrator.views.threads import ReadState, Spawned, Thread, Waits
from orchestrator.views.turns import projector
from orchestrator.views.turns import turn_records as r

ItemsView = Literal["full", "summary", "notLoaded"]
_KINDS: Final = frozenset({*CodexErrorKind, projector.BUDGET_SPENT})
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


# ── turns ─────────────────────────────────────────────────────────────────────────────────────────


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
    for kind, body in projector.mapping(info).items():
        if kind in _HTTP_KINDS:
            return {
                camel(kind): {
                    "httpStatusCode": projector.whole(projector.mapping(body).get("http_status_code"))
                }
            }
        if kind == "model_cap":
            return "usageLimitExceeded"
    return "other"


# ── items ─────────────────────────────────────────────────────────────────────────────────────────


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
            return {
                "type": "userMessage",
                "clientId": item.client_id,
                "content": content,
                **({"sentBy": item.who} if item.who else {}),
                **({"sentByThreadId": item.from_session} if item.from_session else {}),
            }
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
            status = _CALL_STATUSES[item.status]
            return {"type": "fileChange", "changes": changes, "status": status, **_doubt(item.in_doubt)}
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
            return {"type": "image", "url": projector.text(item.get("image_url"))}
        case "local_image":
            return {"type": "localImage", "path": projector.text(item.get("path"))}
        case "skill" | "mention" as kind:
            return {
                "type": kind,
                "name": projector.text(item.get("name")),
                "path": projector.text(item.get("path")),
            }
        case _:
            elements = [_element(one) for one in projector.mappings(item.get("text_elements"))]
            return {"type": "text", "text": projector.text(item.get("text")), "text_elements": elements}


def _element(element: JsonMapping) -> JsonObject:
    span = projector.mapping(element.get("byte_range"))
    start, end = projector.whole(span.get("start")) or 0, projector.whole(span.get("end")) or 0
    return {
        "byteRange": {"start": start, "end": end},
        "placeholder": projector.optional(element.get("placeholder")),
    }


# ── calls ─────────────────────────────────────────────────────────────────────────────────────────


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
        **_doubt(item.in_doubt),
    }


def _doubt(words: str) -> JsonObject:
    """A member that only calls have whose worker was lost."""
    return {"inDoubt": words} if words else {}


def command_action(argv: Sequence[str]) -> JsonObject:
    """The `CommandAction` of a command of which no more is known: the script of a shell, or all of it."""
    script = argv[2] if len(argv) == 3 and argv[0] in _SHELLS and argv[1] in {"-c", "-lc"} else ""
    return {"type": "unknown", "command": script or shlex.join(argv)}


def _action(parsed: JsonMapping) -> JsonObject:
    command, path = projector.text(parsed.get("cmd")), projector.optional(parsed.get("path"))
    match parsed.get("type"):
        case "read":
            name = projector.text(parsed.get("name"))
            return {"type": "read", "command": command, "name": name, "path": path or name}
        case "list_files":
            return {"type": "listFiles", "command": command, "path": path}
        case "search":
            query = projector.optional(parsed.get("query"))
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
        result = {
            "content": list(projector.listed(item.result.get("content"))),
            "structuredContent": structured,
        }
    return {
        "type": "mcpToolCall",
        "server": item.server,
        "tool": item.tool,
        "arguments": item.arguments,
        "status": _simple(item.status),
        "result": result,
        "error": None if item.error is None else {"message": item.error},
        "durationMs": item.duration_ms,
        **_doubt(item.in_doubt),
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
        return {"type": "inputImage", "imageUrl": projector.text(part.get("image_url"))}
    return {"type": "inputText", "text": projector.text(part.get("text"))}


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
    url, query = projector.optional(action.get("url")), projector.optional(action.get("query"))
    match action.get("type"):
        case "search":
            return {
                "type": "search",
                "query": query,
                "queries": list(projector.texts(action.get("queries"))) or None,
            }
        case "open_page":
            return {"type": "openPage", "url": url}
        case "find_in_page":
            return {"type": "findInPage", "url": url, "pattern": projector.optional(action.get("pattern"))}
        case _:
            return {"type": "other"}


# ── write threads ─────────────────────────────────────────────────────────────────────────────────
# Threads as JSON of the app-server protocol.


_FLAGS: Mapping[Waits, str] = {"approval": "waitingOnApproval", "user_input": "waitingOnUserInput"}
_STATUS_TYPES = {
    "not_loaded": "notLoaded",
    "idle": "idle",
    "active": "active",
    "system_error": "systemError",
}
GIT = {"sha": "commit_hash", "branch": "branch", "originUrl": "repository_url"}


@cache
def cli_version() -> str:
    """The program's version."""
    return version("dendro-orchestrator")


def thread_json(thread: Thread, turns: Sequence[JsonObject] = ()) -> JsonObject:
    """A `Thread`; `turns` are those that the answer carries."""
    return {
        "id": thread.id,
        "sessionId": thread.root,
        "forkedFromId": thread.forked_from,
        "parentThreadId": thread.spawned.parent if thread.spawned else None,
        "preview": thread.preview,
        "ephemeral": thread.ephemeral,
        "projectId": None,
        "historyMode": "paginated",
        "modelProvider": thread.model_provider,
        "model": thread.model or None,
        "reasoningEffort": thread.effort or None,
        "createdAt": thread.created_ms // 1000,
        "updatedAt": thread.updated_ms // 1000,
        "recencyAt": max(thread.recency_ms, thread.updated_ms) // 1000,
        "status": status_json(thread),
        "path": thread.path,
        "cwd": thread.cwd,
        "cliVersion": cli_version(),
        "originator": None,
        "source": _source(thread),
        "canAcceptDirectInput": True,
        "threadSource": "subagent" if thread.spawned else None,
        "agentNickname": thread.spawned.nickname if thread.spawned else None,
        "agentRole": thread.spawned.role if thread.spawned else None,
        "gitInfo": _git(thread.git),
        "name": thread.name,
        "turns": list(turns),
    }


def status_json(thread: Thread) -> JsonObject:
    """A `ThreadStatus`."""
    status: JsonObject = {"type": _STATUS_TYPES[thread.status]}
    if thread.status == "active":
        status["activeFlags"] = [] if thread.waits is None else [_FLAGS[thread.waits]]
    return status


def read_state_json(state: ReadState) -> JsonObject:
    """A `ThreadReadState`."""
    unread: JsonObject | None = None
    if state.first_unread is not None:
        unread = {"type": "turn", "turnId": state.first_unread}
    return {"firstUnread": unread, "revision": state.revision}


def _source(thread: Thread) -> JsonValue:
    if thread.spawned is not None:
        return {"subAgent": {"thread_spawn": _spawn_json(thread.spawned)}}
    return thread.source


def _spawn_json(spawned: Spawned) -> JsonObject:
    return {
        "parent_thread_id": spawned.parent,
        "depth": spawned.depth,
        "agent_path": _agent_path(spawned),
        "agent_nickname": spawned.nickname,
        "agent_role": spawned.role,
    }


def _agent_path(spawned: Spawned) -> str:
    """The agents' numbers below `/root`: Codex's clients drop a thread whose path has another form."""
    return "/".join(("/root", *spawned.path.split("/")[1:]))


def _git(git: Mapping[str, str] | None) -> JsonObject | None:
    return {name: git.get(ours) for name, ours in GIT.items()} if git else None


# ── write notifications ───────────────────────────────────────────────────────────────────────────
# Changes of a session's turns as notifications of the app-server protocol.


Notification = tuple[str, JsonObject]
_DELTAS: Final[Mapping[r.DeltaKind, str]] = {
    r.DeltaKind.MESSAGE: "item/agentMessage/delta",
    r.DeltaKind.PLAN: "item/plan/delta",
    r.DeltaKind.REASONING_SUMMARY: "item/reasoning/summaryTextDelta",
    r.DeltaKind.REASONING_PART: "item/reasoning/summaryPartAdded",
    r.DeltaKind.REASONING_TEXT: "item/reasoning/textDelta",
    r.DeltaKind.COMMAND_OUTPUT: "item/commandExecution/outputDelta",
    r.DeltaKind.TERMINAL_INPUT: "item/commandExecution/terminalInteraction",
    r.DeltaKind.PROGRESS: "item/mcpToolCall/progress",
}
_OF_THREADS: Final[Mapping[type[r.Change], str]] = {
    r.TurnsDropped: "thread/reverted",
    r.QueueChanged: "thread/queue/changed",
}
_NEW_FILE: Final = re.compile(r"^(diff --git a/)(.+) b/(.+)(\nnew file mode )", re.MULTILINE)
"""The beginning of a file that the turn has made: it has one name, also where a patch moved it."""
_STEPS: Final = frozenset({"pending", "in_progress", "completed"})


def notifications(
    thread: SessionId, change: r.Change, root_turn: str | None = None
) -> Iterator[Notification]:
    """The methods and parameters that tell clients of a change; requests have identities of their own.

    `root_turn` is the turn of the root in which the task of an agent was begun.
    """
    match change:
        case r.TurnStarted(turn):
            yield "turn/started", {"threadId": thread, "turn": turn_json(turn, "notLoaded", root_turn)}
        case r.TurnCompleted(turn):
            yield "turn/completed", {"threadId": thread, "turn": turn_json(turn, "summary", root_turn)}
        case r.ItemStarted(turn, item):
            at_ms = {"startedAtMs": item.started_ms or 0}
            yield "item/started", _of(thread, turn) | {"item": item_json(item), **at_ms}
        case r.ItemCompleted(turn, item):
            at_ms = {"completedAtMs": item.completed_ms or 0}
            yield "item/completed", _of(thread, turn) | {"item": item_json(item), **at_ms}
        case r.ItemDelta():
            yield _DELTAS[change.kind], _delta(thread, change)
        case r.PlanUpdated(turn, explanation, steps):
            plan = [{"step": step, "status": camel(_step(status))} for step, status in steps]
            yield "turn/plan/updated", _of(thread, turn) | {"explanation": explanation, "plan": plan}
        case r.DiffUpdated(turn, diff):
            yield "turn/diff/updated", _of(thread, turn) | {"diff": _NEW_FILE.sub(r"\1\3 b/\3\4", diff)}
        case r.TokenUsageUpdated():
            yield "thread/tokenUsage/updated", _of(thread, change.turn) | {"tokenUsage": usage_json(change)}
        case r.TurnError(turn, fault, will_retry):
            error = fault_json(fault, will_retry=will_retry)
            yield "error", _of(thread, turn) | {"error": error, "willRetry": will_retry}
        case r.Warned(message):
            yield "warning", {"threadId": thread, "message": message}
        case r.StatusChanged(status):
            yield "thread/status/changed", {"threadId": thread, "status": changed_status_json(status)}
        case r.NameChanged(name):
            yield "thread/name/updated", {"threadId": thread, "threadName": name}
        case r.TurnsDropped() | r.QueueChanged():
            yield _OF_THREADS[type(change)], {"threadId": thread}
        case r.RequestOpened() | r.RequestResolved():
            return
        case _:
            assert_never(change)


def _of(thread: SessionId, turn: r.TurnId) -> JsonObject:
    return {"threadId": thread, "turnId": turn}


def _step(status: str) -> str:
    return status if status in _STEPS else "pending"


def _delta(thread: SessionId, delta: r.ItemDelta) -> JsonObject:
    place: JsonObject = {"threadId": thread, "turnId": delta.turn, "itemId": delta.item}
    match delta.kind:
        case r.DeltaKind.REASONING_PART:
            return place | {"summaryIndex": delta.index}
        case r.DeltaKind.REASONING_SUMMARY:
            return place | {"delta": delta.text, "summaryIndex": delta.index}
        case r.DeltaKind.REASONING_TEXT:
            return place | {"delta": delta.text, "contentIndex": delta.index}
        case r.DeltaKind.TERMINAL_INPUT:
            return place | {"processId": delta.process_id or "", "stdin": delta.text}
        case r.DeltaKind.PROGRESS:
            return place | {"message": delta.text}
        case r.DeltaKind.MESSAGE | r.DeltaKind.PLAN | r.DeltaKind.COMMAND_OUTPUT:
            return place | {"delta": delta.text}
        case _:
            assert_never(delta.kind)


def usage_json(usage: r.TokenUsageUpdated) -> JsonObject:
    """A `ThreadTokenUsage`."""
    return {
        "total": _tokens(usage.total),
        "last": _tokens(usage.last),
        "modelContextWindow": usage.window,
    }


def _tokens(usage: TokenUsage) -> JsonObject:
    return {
        "totalTokens": usage.total_tokens,
        "inputTokens": usage.input_tokens,
        "cachedInputTokens": usage.cached_input_tokens,
        "outputTokens": usage.output_tokens,
        "reasoningOutputTokens": usage.reasoning_output_tokens,
    }


def changed_status_json(status: r.Status) -> JsonObject:
    """A `ThreadStatus`."""
    match status:
        case r.Idle():
            return {"type": "idle"}
        case r.Active(flags):
            return {"type": "active", "activeFlags": [camel(flag) for flag in flags]}
        case r.Broken():
            return {"type": "systemError"}
        case _:
            assert_never(status)
