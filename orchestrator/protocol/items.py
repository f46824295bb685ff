"""The model's conversation: what it is sent and what it answers (`ResponseItem`).

The shapes are those of the Responses API as the rollout keeps them; an item of a kind
that is not known here is held whole, because the model may need it back.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated, Literal, TypeAlias, get_args

from pydantic import AliasChoices, Field, ValidationError

from orchestrator.protocol.ids import CallId
from orchestrator.protocol.mcp import ToolOutcome
from orchestrator.protocol.scalars import LargeText
from orchestrator.protocol.wire import (
    Flag,
    ItemModel,
    JsonObject,
    JsonValue,
    Maybe,
    OneOf,
    Source,
    Uint,
    Unknown,
    WireModel,
    tag_of,
    tags,
)


class InputText(WireModel):
    """Text for the model."""

    type: Literal["input_text"] = "input_text"
    text: LargeText


class InputImage(WireModel):
    """An image for the model."""

    type: Literal["input_image"] = "input_image"
    image_url: LargeText


_MAGIC = ((b"\x89PNG\r\n\x1a\n", "png"), (b"\xff\xd8\xff", "jpeg"), (b"GIF87a", "gif"), (b"GIF89a", "gif"))


def image_kind(content: bytes) -> str:
    """The format of an image by its first bytes; raises `ValueError` for what is none."""
    for magic, kind in _MAGIC:
        if content.startswith(magic):
            return kind
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return "webp"
    raise ValueError("it is no PNG, JPEG, GIF or WebP image")


class OutputText(WireModel):
    """Text by the model."""

    type: Literal["output_text"] = "output_text"
    text: str


class UnknownContent(Unknown):
    """Content of a kind that this version does not know, held as it came."""


ContentItem: TypeAlias = InputText | InputImage | OutputText | UnknownContent
ContentItemField = Annotated[ContentItem, OneOf()]

ToolOutput: TypeAlias = LargeText | tuple[ContentItemField, ...]
"""The output of a tool for the model: text, or content items when there is an image."""


class SummaryText(WireModel):
    """A part of a reasoning summary."""

    type: Literal["summary_text"] = "summary_text"
    text: str


class ReasoningText(WireModel):
    """Raw reasoning."""

    type: Literal["reasoning_text"] = "reasoning_text"
    text: str


class PlainReasoningText(WireModel):
    """Raw reasoning, as some servers tag it."""

    type: Literal["text"] = "text"
    text: str


ReasoningContent: TypeAlias = ReasoningText | PlainReasoningText | UnknownContent
ReasoningContentField = Annotated[ReasoningContent, OneOf()]


class Message(ItemModel):
    """A message of one role."""

    type: Literal["message"] = "message"
    id: Maybe[str] = None
    role: str
    content: tuple[ContentItemField, ...]


def user_texts(texts: Iterable[str]) -> JsonObject:
    """The payload of a person's `Message` of these texts, unchecked."""
    content = [{"type": _INPUT_TEXT, "text": text} for text in texts]
    return {"type": _MESSAGE, "role": "user", "content": content}


_MESSAGE, _INPUT_TEXT = tag_of(Message), tag_of(InputText)


class Reasoning(ItemModel):
    """The model's reasoning: a summary, and the encrypted text that it needs back."""

    type: Literal["reasoning"] = "reasoning"
    id: Maybe[str] = None
    summary: tuple[Annotated[SummaryText | UnknownContent, OneOf()], ...] = ()
    content: tuple[ReasoningContentField, ...] | None = None
    encrypted_content: str | None = None


class LocalShellStatus(StrEnum):
    """How far a hosted shell call is."""

    COMPLETED = "completed"
    IN_PROGRESS = "in_progress"
    INCOMPLETE = "incomplete"


class LocalShellExec(WireModel):
    """A command to run; `timeout` is read for `timeout_ms`."""

    type: Literal["exec"] = "exec"
    command: tuple[str, ...]
    timeout_ms: Annotated[Maybe[Uint], Field(validation_alias=AliasChoices("timeout_ms", "timeout"))] = None
    working_directory: Maybe[str] = None
    env: Maybe[dict[str, str]] = None
    user: Maybe[str] = None
    with_escalated_permissions: Maybe[Flag] = None
    justification: Maybe[str] = None


class UnknownShellAction(Unknown):
    """A hosted shell action that this version does not know, held as it came."""


LocalShellAction: TypeAlias = LocalShellExec | UnknownShellAction
LocalShellActionField = Annotated[LocalShellAction, OneOf()]


class LocalShellCall(ItemModel):
    """The model calls the hosted shell tool."""

    type: Literal["local_shell_call"] = "local_shell_call"
    id: Maybe[str] = None
    call_id: Maybe[CallId] = None
    status: LocalShellStatus
    action: LocalShellActionField


class FunctionCall(ItemModel):
    """The model calls a function; `arguments` is JSON text, possibly wrong."""

    type: Literal["function_call"] = "function_call"
    id: Maybe[str] = None
    name: str
    arguments: str
    call_id: CallId


class FunctionCallOutput(ItemModel):
    """A function's output."""

    type: Literal["function_call_output"] = "function_call_output"
    call_id: CallId
    output: ToolOutput


class CustomToolCall(ItemModel):
    """The model calls a tool with free text."""

    type: Literal["custom_tool_call"] = "custom_tool_call"
    id: Maybe[str] = None
    status: Maybe[str] = None
    call_id: CallId
    name: str
    input: str


class CustomToolCallOutput(ItemModel):
    """A free-text tool's output."""

    type: Literal["custom_tool_call_output"] = "custom_tool_call_output"
    call_id: CallId
    output: ToolOutput


class WebSearch(WireModel):
    """A search for one or several queries."""

    type: Literal["search"] = "search"
    query: Maybe[str] = None
    queries: Maybe[tuple[str, ...]] = None


class OpenPage(WireModel):
    """A page opened."""

    stated_in = Source.JANUARY_2026
    type: Literal["open_page"] = "open_page"
    url: Maybe[str] = None


class FindInPage(WireModel):
    """A text looked for in a page."""

    stated_in = Source.JANUARY_2026
    type: Literal["find_in_page"] = "find_in_page"
    url: Maybe[str] = None
    pattern: Maybe[str] = None


class UnknownWebAction(Unknown):
    """Something else done on the web, held as it came."""


WebSearchAction: TypeAlias = WebSearch | OpenPage | FindInPage | UnknownWebAction
WebSearchActionField = Annotated[WebSearchAction, OneOf()]


class WebSearchCall(ItemModel):
    """The provider searched the web for the model."""

    type: Literal["web_search_call"] = "web_search_call"
    id: Maybe[str] = None
    status: Maybe[str] = None
    action: Maybe[WebSearchActionField] = None


def web_action(value: JsonValue) -> WebSearchAction | None:
    """The action of a search that a provider sent; None for none, and for JSON that is no action."""
    try:
        return WebSearchCall(action=value or None).action or None
    except ValidationError:
        return None


class GhostCommit(WireModel):
    """A commit outside of every branch that undo goes back to."""

    stated_in = Source.JANUARY_2026
    id: str
    parent: str | None = None
    preexisting_untracked_files: tuple[str, ...] = ()
    preexisting_untracked_dirs: tuple[str, ...] = ()


class GhostSnapshot(ItemModel):
    """The state of the workspace before a turn; never sent to the model."""

    stated_in = Source.JANUARY_2026
    type: Literal["ghost_snapshot"] = "ghost_snapshot"
    ghost_commit: GhostCommit


class Compaction(ItemModel):
    """A history that the provider compacted, encrypted; also read as `compaction_summary`."""

    stated_in = Source.JANUARY_2026
    type: Literal["compaction"] = "compaction"
    encrypted_content: str


class Other(ItemModel):
    """Codex's mark for an item that it did not recognise."""

    type: Literal["other"] = "other"


class UnknownItem(Unknown):
    """An item of a kind that this version does not know, held as it came."""


ResponseItem: TypeAlias = (
    Message
    | Reasoning
    | LocalShellCall
    | FunctionCall
    | FunctionCallOutput
    | CustomToolCall
    | CustomToolCallOutput
    | WebSearchCall
    | GhostSnapshot
    | Compaction
    | Other
    | UnknownItem
)
ITEM_SYNONYMS = {"compaction_summary": "compaction"}
ResponseItemField = Annotated[ResponseItem, OneOf(synonyms=ITEM_SYNONYMS)]
ITEMS: dict[str, type[ItemModel]] = tags(get_args(ResponseItem))
"""Every known item by its wire tag."""


class McpToolCallOutput(ItemModel):
    """An MCP tool's output on its way to the model."""

    type: Literal["mcp_tool_call_output"] = "mcp_tool_call_output"
    call_id: CallId
    result: ToolOutcome


ResponseInputItem: TypeAlias = Message | FunctionCallOutput | McpToolCallOutput | CustomToolCallOutput


class ClientText(WireModel):
    """A text by a client's own tool."""

    stated_in = Source.JANUARY_2026
    type: Literal["inputText"] = "inputText"
    text: str


class ClientImage(WireModel):
    """An image by a client's own tool: a URL of `https` or of data."""

    stated_in = Source.JANUARY_2026
    type: Literal["inputImage"] = "inputImage"
    image_url: Annotated[str, Field(alias="imageUrl")]


ClientContent: TypeAlias = ClientText | ClientImage
ClientContentField = Annotated[ClientContent, OneOf()]


class DynamicToolResponse(WireModel):
    """The output of a client's own tool."""

    stated_in = Source.JANUARY_2026
    success: Flag
    content_items: Annotated[Maybe[tuple[ClientContentField, ...]], Field(alias="contentItems")] = None
    output: Maybe[str] = None
