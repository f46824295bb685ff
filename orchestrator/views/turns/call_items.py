"""Items of calls, made of the events that tell of their begin and their end."""

from __future__ import annotations

from typing import Final, assert_never

from pydantic import ValidationError

from orchestrator.core.frozen import replace
from orchestrator.protocol.inputs import ImageInput, LocalImageInput, TextElement, TextInput
from orchestrator.protocol.scalars import ExecCommandSource
from orchestrator.protocol.wire import JsonMapping, JsonValue, written
from orchestrator.requests import (
    ChoicesRequest,
    ClientToolRequest,
    CommandRequest,
    InputRequest,
    KnownRequest,
    PatchRequest,
    PlanDecisionRequest,
    ServerRequest,
)
from orchestrator.views.turns.fields import (
    listed,
    mapping,
    mappings,
    milliseconds,
    optional,
    text,
    texts,
    whole,
)
from orchestrator.views.turns.turn_records import (
    ChangeKind,
    CollabTool,
    CollabToolCall,
    CommandExecution,
    DynamicToolCall,
    FileChange,
    FileDiff,
    ItemId,
    ItemStatus,
    McpToolCall,
)

Call = CommandExecution | FileChange | DynamicToolCall

_TEXT: Final = written(TextInput(text="", text_elements=()))
_SOURCES = {source.value: source for source in ExecCommandSource}


# ── commands ──────────────────────────────────────────────────────────────────────────────────────


def command_of(id: ItemId, event: JsonMapping, at_ms: int | None) -> CommandExecution:
    """A command that is asked about, or begins."""
    return CommandExecution(
        id,
        command=texts(event.get("command")),
        cwd=text(event.get("cwd")),
        source=_SOURCES.get(text(event.get("source")), ExecCommandSource.AGENT),
        actions=mappings(event.get("parsed_cmd")),
        process_id=optional(event.get("process_id")),
        started_ms=at_ms,
    )


def begun_command(item: CommandExecution, event: JsonMapping) -> CommandExecution:
    """A command that was asked about, as it begins."""
    begun = command_of(item.id, event, item.started_ms)
    return replace(begun, actions=begun.actions or item.actions)


def ended_command(item: CommandExecution, event: JsonMapping, at_ms: int | None) -> CommandExecution:
    code = whole(event.get("exit_code"))
    return replace(
        item,
        status=ItemStatus.COMPLETED if code == 0 else ItemStatus.FAILED,
        output=text(event.get("aggregated_output")) or _both(event) or None,
        exit_code=code,
        duration_ms=milliseconds(event.get("duration")),
        completed_ms=at_ms,
    )


def _both(event: JsonMapping) -> str:
    """The output of an end that has it by streams only, as earlier versions wrote it."""
    return text(event.get("stdout")) + text(event.get("stderr"))


# ── patches ───────────────────────────────────────────────────────────────────────────────────────


def patch_of(id: ItemId, event: JsonMapping, at_ms: int | None) -> FileChange:
    """A patch that is asked about, or begins."""
    changes = mapping(event.get("changes"))
    return FileChange(
        id,
        tuple(_file(path, changes[path]) for path in sorted(changes)),
        left_out=whole(event.get("changes_left_out")) or 0,
        started_ms=at_ms,
    )


def _file(path: str, change: JsonValue) -> FileDiff:
    given = mapping(change)
    if "type" not in given and len(given) == 1:
        # The recorded Codex puts the kind outside.
        ((kind, body),) = given.items()
        given = mapping(body)
    else:
        kind = text(given.get("type"))
    match kind:
        case "add":
            return FileDiff(path, ChangeKind.ADD, text(given.get("content")))
        case "delete":
            return FileDiff(path, ChangeKind.DELETE, text(given.get("content")))
        case _:
            diff = text(given.get("unified_diff"))
            return FileDiff(path, ChangeKind.UPDATE, diff, optional(given.get("move_path")))


def ended_patch(item: FileChange, event: JsonMapping, at_ms: int | None) -> FileChange:
    status = ItemStatus.COMPLETED if event.get("success") is True else ItemStatus.FAILED
    return replace(item, status=status, completed_ms=at_ms)


# ── tools of servers, and helpers ─────────────────────────────────────────────────────────────────


def tool_of(id: ItemId, event: JsonMapping, at_ms: int | None) -> McpToolCall:
    """A call of an MCP server's tool, as it begins."""
    asked = mapping(event.get("invocation"))
    server, tool = text(asked.get("server")), text(asked.get("tool"))
    return McpToolCall(id, server, tool, asked.get("arguments"), started_ms=at_ms)


def ended_tool(item: McpToolCall, event: JsonMapping, at_ms: int | None) -> McpToolCall:
    outcome = event.get("result")
    given = mapping(outcome)
    if given.keys() & {"Ok", "Err"} and len(given) == 1:
        ((_, outcome),) = given.items()
    result = outcome if isinstance(outcome, dict) else None
    error = optional(outcome)
    failed = result is None or bool(result.get("isError"))
    return replace(
        item,
        status=ItemStatus.FAILED if failed else ItemStatus.COMPLETED,
        result=result,
        error=error if result is not None or error is not None else "the call gave no result",
        duration_ms=milliseconds(event.get("duration")),
        completed_ms=at_ms,
    )


def helper_of(id: ItemId, event: JsonMapping, sender: str, at_ms: int | None) -> CollabToolCall:
    """A call that has a helper made, and waits for its answer."""
    asked = mapping(event.get("invocation"))
    prompt, model = optional(asked.get("prompt")), optional(asked.get("model"))
    return CollabToolCall(id, CollabTool.SPAWN, sender, prompt=prompt, model=model, started_ms=at_ms)


def ended_helper(item: CollabToolCall, event: JsonMapping, at_ms: int | None) -> CollabToolCall:
    failed = "Err" in mapping(event.get("result"))
    return replace(item, status=ItemStatus.FAILED if failed else ItemStatus.COMPLETED, completed_ms=at_ms)


# ── tools of clients ──────────────────────────────────────────────────────────────────────────────


def client_tool_of(id: ItemId, event: JsonMapping, at_ms: int | None) -> DynamicToolCall:
    """A call that a client is asked to carry out."""
    namespace = optional(event.get("namespace"))
    return DynamicToolCall(id, text(event.get("tool")), event.get("arguments"), namespace, started_ms=at_ms)


def ended_client_tool(item: DynamicToolCall, event: JsonMapping, at_ms: int | None) -> DynamicToolCall:
    done = event.get("success") is True
    return replace(
        item,
        status=ItemStatus.COMPLETED if done else ItemStatus.FAILED,
        output=text(event.get("output")),
        success=done,
        completed_ms=at_ms,
        parts=tuple(mappings(event.get("content_items"))),
    )


def asked_about(id: ItemId, request: KnownRequest, at_ms: int | None) -> Call | None:
    """The item of a call that begins when somebody is asked about it; None if it begins otherwise."""
    match request:
        case CommandRequest():
            return command_of(id, request.event, at_ms)
        case PatchRequest():
            return patch_of(id, request.event, at_ms)
        case ClientToolRequest():
            return client_tool_of(id, request.event, at_ms)
        case ChoicesRequest() | InputRequest() | PlanDecisionRequest() | ServerRequest():
            return None
        case _:
            assert_never(request)


def steps_of(event: JsonMapping) -> tuple[tuple[str, str], ...]:
    """The steps of a plan with their status."""
    steps = (mapping(step) for step in listed(event.get("plan")))
    return tuple((text(step.get("step")), text(step.get("status"))) for step in steps)


def content_of(message: JsonMapping) -> tuple[JsonMapping, ...]:
    """A person's message as the items of an input."""
    said = text(message.get("message"))
    elements = _elements(message.get("text_elements"))
    images = [ImageInput(image_url=url) for url in texts(message.get("images"))]
    files = [LocalImageInput(path=path) for path in texts(message.get("local_images"))]
    if not (elements or images or files):
        return ({**_TEXT, "text": said},)
    spoken = [TextInput(text=said, text_elements=elements)] if said or not (images or files) else []
    return tuple(map(written, (*spoken, *images, *files)))


def _elements(value: JsonValue) -> tuple[TextElement, ...]:
    try:
        return tuple(TextElement.model_validate(one) for one in mappings(value))
    except ValidationError:
        # Of another program's log: the text is whole without them.
        return ()
