"""Tools served by MCP servers, as far as the protocol shows them."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import BeforeValidator, Field, Strict

from orchestrator.protocol.wire import (
    Flag,
    JsonObject,
    JsonValue,
    Maybe,
    OneOf,
    Source,
    Unknown,
    WireModel,
    written,
)

RequestId: TypeAlias = Annotated[int, Strict()] | str
"""A JSON-RPC request id: an integer or a string."""


CUSTOM_SERVER: Final = "custom"
"""The server as which events show tools of the program around Dendro; none of another kind bears its name."""


class McpInvocation(WireModel):
    """A call of a server's tool."""

    server: str
    tool: str
    arguments: JsonValue = None


class CallToolResult(WireModel):
    """The result of an MCP tool; `isError` marks a tool's own failure."""

    content: tuple[JsonValue, ...] = ()
    structured_content: Annotated[Maybe[JsonValue], Field(alias="structuredContent")] = None
    is_error: Annotated[Maybe[Flag], Field(alias="isError")] = None


class TextBlock(WireModel):
    """A text in a tool's result."""

    type: Literal["text"] = "text"
    text: str


class ImageBlock(WireModel):
    """A picture in a tool's result, in base64."""

    type: Literal["image"] = "image"
    data: str
    mime_type: Annotated[str, Field(alias="mimeType")]


def text_block(text: str) -> JsonObject:
    """A text as one of the blocks of a result."""
    return written(TextBlock(text=text))


def text_result(text: str) -> CallToolResult:
    """A result of one text."""
    return CallToolResult(content=(text_block(text),))


def _unwrap_result(value: Any) -> Any:
    """Codex's own form of a result, `{"Ok": …}` or `{"Err": …}`, is read as well."""
    if isinstance(value, dict) and len(value) == 1 and (value.keys() & {"Ok", "Err"}):
        (value,) = value.values()
    return value


ToolOutcome: TypeAlias = Annotated[CallToolResult | str, BeforeValidator(_unwrap_result)]
"""A tool's result, or the text of the error why there is none."""


class Tool(WireModel):
    """A tool as its server describes it."""

    name: str
    input_schema: Annotated[JsonValue, Field(alias="inputSchema")]
    description: Maybe[str] = None
    title: Maybe[str] = None
    output_schema: Annotated[Maybe[JsonValue], Field(alias="outputSchema")] = None
    annotations: Maybe[JsonValue] = None


class ElicitationAction(StrEnum):
    """A person's answer to a server's question."""

    ACCEPT = "accept"
    DECLINE = "decline"
    CANCEL = "cancel"


class McpStarting(WireModel):
    """The server is being started."""

    stated_in = Source.JANUARY_2026
    state: Literal["starting"] = "starting"


class McpReady(WireModel):
    """The server serves its tools."""

    stated_in = Source.JANUARY_2026
    state: Literal["ready"] = "ready"


class McpFailed(WireModel):
    """The server could not be started."""

    stated_in = Source.JANUARY_2026
    state: Literal["failed"] = "failed"
    error: str


class McpCancelled(WireModel):
    """The start was given up."""

    stated_in = Source.JANUARY_2026
    state: Literal["cancelled"] = "cancelled"


class UnknownMcpStatus(Unknown):
    """A server's state that a newer version reports, held as it came."""


McpStartupStatus: TypeAlias = McpStarting | McpReady | McpFailed | McpCancelled | UnknownMcpStatus
McpStartupStatusField = Annotated[McpStartupStatus, OneOf("state")]


class McpStartupFailure(WireModel):
    """A server that could not be started, and why."""

    stated_in = Source.JANUARY_2026
    server: str
    error: str


class McpServerRefreshConfig(WireModel):
    """The servers as a client wants them from now on."""

    stated_in = Source.JANUARY_2026
    mcp_servers: JsonValue
    mcp_oauth_credentials_store_mode: Maybe[JsonValue] = None
