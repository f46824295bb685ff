"""Events about tools at work: commands, patches, MCP calls, the web, images."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from orchestrator.protocol.commands import FileChangeField, ParsedCommandField
from orchestrator.protocol.ids import CallId
from orchestrator.protocol.items import ContentItemField, WebSearchActionField
from orchestrator.protocol.mcp import (
    McpInvocation,
    McpStartupFailure,
    McpStartupStatusField,
    Tool,
    ToolOutcome,
)
from orchestrator.protocol.scalars import Chunk, Duration, ExecCommandSource, LargeText, OutputStream
from orchestrator.protocol.wire import EventModel, Flag, Int, JsonValue, Maybe, Source, Uint


class ExecCommandBegin(EventModel):
    """A command was started."""

    type: Literal["exec_command_begin"] = "exec_command_begin"
    call_id: CallId
    process_id: Maybe[str] = None
    turn_id: Maybe[str] = None
    command: tuple[LargeText, ...]
    cwd: LargeText
    parsed_cmd: tuple[ParsedCommandField, ...]
    source: Maybe[ExecCommandSource] = None
    interaction_input: Maybe[str] = None


class ExecCommandOutputDelta(EventModel):
    """A piece of a running command's output."""

    type: Literal["exec_command_output_delta"] = "exec_command_output_delta"
    call_id: CallId
    stream: OutputStream
    chunk: Chunk


class TerminalInteraction(EventModel):
    """Something was typed into a running command."""

    stated_in = Source.JANUARY_2026
    type: Literal["terminal_interaction"] = "terminal_interaction"
    call_id: CallId
    process_id: str
    stdin: str


class ExecCommandEnd(EventModel):
    """A command is over; exit code -1 if nobody knows how it ended."""

    type: Literal["exec_command_end"] = "exec_command_end"
    call_id: CallId
    process_id: Maybe[str] = None
    turn_id: Maybe[str] = None
    command: Maybe[tuple[str, ...]] = None
    cwd: Maybe[str] = None
    parsed_cmd: Maybe[tuple[ParsedCommandField, ...]] = None
    source: Maybe[ExecCommandSource] = None
    interaction_input: Maybe[str] = None
    stdout: str
    stderr: str
    aggregated_output: str = ""
    exit_code: Int
    duration: Duration
    formatted_output: str = ""


class PatchApplyBegin(EventModel):
    """A patch is being written.

    `changes_left_out` is Dendro's own: so many files more than `changes` shows.
    """

    type: Literal["patch_apply_begin"] = "patch_apply_begin"
    call_id: CallId
    turn_id: Maybe[str] = None
    auto_approved: Flag
    changes: dict[str, FileChangeField]
    changes_left_out: Maybe[Uint] = None


class PatchApplyEnd(EventModel):
    """A patch was written, or failed."""

    type: Literal["patch_apply_end"] = "patch_apply_end"
    call_id: CallId
    turn_id: Maybe[str] = None
    stdout: LargeText
    stderr: str
    success: Flag
    changes: Maybe[dict[str, FileChangeField]] = None


class McpToolCallBegin(EventModel):
    """A tool of an MCP server is called."""

    type: Literal["mcp_tool_call_begin"] = "mcp_tool_call_begin"
    call_id: CallId
    invocation: McpInvocation


class McpToolCallEnd(EventModel):
    """A tool of an MCP server answered, or the call failed."""

    type: Literal["mcp_tool_call_end"] = "mcp_tool_call_end"
    call_id: CallId
    invocation: McpInvocation
    duration: Duration
    result: ToolOutcome


class McpStartupUpdate(EventModel):
    """An MCP server's start went on."""

    stated_in = Source.JANUARY_2026
    type: Literal["mcp_startup_update"] = "mcp_startup_update"
    server: str
    status: McpStartupStatusField


class McpStartupComplete(EventModel):
    """Every MCP server is up, failed or given up."""

    stated_in = Source.JANUARY_2026
    type: Literal["mcp_startup_complete"] = "mcp_startup_complete"
    ready: tuple[str, ...] = ()
    failed: tuple[McpStartupFailure, ...] = ()
    cancelled: tuple[str, ...] = ()


class McpListToolsResponse(EventModel):
    """The tools of MCP servers by their full names."""

    type: Literal["mcp_list_tools_response"] = "mcp_list_tools_response"
    tools: dict[str, Tool]
    resources: Maybe[dict[str, tuple[JsonValue, ...]]] = None
    resource_templates: Maybe[dict[str, tuple[JsonValue, ...]]] = None
    auth_statuses: Maybe[dict[str, str]] = None


class WebSearchBegin(EventModel):
    """A search on the web began."""

    type: Literal["web_search_begin"] = "web_search_begin"
    call_id: CallId


class WebSearchEnd(EventModel):
    """A search on the web is over."""

    type: Literal["web_search_end"] = "web_search_end"
    call_id: CallId
    query: str
    action: Maybe[WebSearchActionField] = None


class ViewImageToolCall(EventModel):
    """The agent looked at an image file."""

    stated_in = Source.JANUARY_2026
    type: Literal["view_image_tool_call"] = "view_image_tool_call"
    call_id: CallId
    path: str


class DynamicToolCallRequest(EventModel):
    """The client is asked to run one of its own tools; camelCase on the wire."""

    stated_in = Source.JANUARY_2026
    type: Literal["dynamic_tool_call_request"] = "dynamic_tool_call_request"
    call_id: Annotated[CallId, Field(alias="callId")]
    turn_id: Annotated[str, Field(alias="turnId")]
    tool: str
    arguments: JsonValue
    namespace: Maybe[str] = None
    client: Maybe[str] = None
    """Dendro's own: the name of the program that brings the tool."""


class DynamicToolCallResponse(EventModel):
    """A client's own tool has answered, or nobody has in time."""

    stated_in = Source.DENDRO
    type: Literal["dynamic_tool_call_response"] = "dynamic_tool_call_response"
    call_id: CallId
    turn_id: str
    tool: str
    success: Flag
    output: LargeText
    content_items: Maybe[tuple[ContentItemField, ...]] = None
    """Texts and images as the model is given them; `output` has the texts alone."""
