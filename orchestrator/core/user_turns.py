"""The op of a user turn as a session keeps it: while it waits for the session, and when its task begins.

Its settings and its bookmark are the op's own. Its input items stand apart, in their wire form: a log keeps a
reference in the place of a very large text, which the protocol's models do not know.

Behind it: the kinds of tasks, what input items make of a conversation, and the items that newer clients draw.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Literal, TypeAlias

from orchestrator.core.frozen import record
from orchestrator.core.history import Item, searched
from orchestrator.core.sender import Sender
from orchestrator.core.settings import TurnSettings, readable_setting
from orchestrator.protocol import events as ev
from orchestrator.protocol import ops
from orchestrator.protocol.ids import ResponseId
from orchestrator.protocol.inputs import InputItem, TextElement, TextInput
from orchestrator.protocol.items import ContentItem, InputImage, InputText, Message, user_texts, web_action
from orchestrator.protocol.scalars import Delivery, UserMessageKind
from orchestrator.protocol.turn_items import (
    AgentMessageItem,
    AgentMessageText,
    ReasoningItem,
    TurnItem,
    UserMessageItem,
    WebSearchItem,
)
from orchestrator.protocol.wire import JsonMapping, JsonObject, JsonValue, written

UserTurnOp: TypeAlias = (
    ops.UserInput | ops.UserTurn | ops.Compact | ops.Plan | ops.Review | ops.RunUserShellCommand
)

_MODELS: Mapping[str, type[UserTurnOp]] = {
    "user_input": ops.UserInput,
    "user_turn": ops.UserTurn,
    "compact": ops.Compact,
    "plan": ops.Plan,
    "review": ops.Review,
    "run_user_shell_command": ops.RunUserShellCommand,
}
WITHOUT_INPUT: Final = (ops.Compact, ops.Plan, ops.Review, ops.RunUserShellCommand)
"""Ops that begin a task without input items."""
_SCHEMA = "final_output_json_schema"


@record
class UserTurn:
    """An op, and the items that it came with; those of `op` itself are empty."""

    op: UserTurnOp
    items: tuple[Item, ...] = ()

    @classmethod
    def asked(cls, op: UserTurnOp, read: tuple[Item, ...] | None = None) -> UserTurn:
        """The turn that a submitted op asks for; `read` are its items with what lies in files put in."""
        if isinstance(op, WITHOUT_INPUT):
            return cls(op)
        items = read if read is not None else tuple(map(written, op.items))
        return cls(op.model_copy(update={"items": ()}), items)

    @classmethod
    def of(cls, wire: JsonMapping) -> UserTurn:
        """From the JSON in a log; raises `ValueError` for what is no such op."""
        plain = {name: value if name == _SCHEMA else readable_setting(value) for name, value in wire.items()}
        items: Sequence[Item] = wire.get("items") or ()
        kind = _MODELS[wire["type"]]
        known = plain if issubclass(kind, WITHOUT_INPUT) else {**plain, "items": ()}
        return cls(kind.model_validate(known), tuple(items))

    def wire(self) -> JsonObject:
        """The op whole, as JSON."""
        wire = self.op.model_dump(mode="json")
        return {**wire, "items": list(self.items)} if "items" in wire else wire

    @property
    def bookmark(self) -> ResponseId | None:
        """The response that the conversation goes on from, if it is not the last one."""
        return None if isinstance(self.op, WITHOUT_INPUT) else self.op.last_response_id

    @property
    def is_input(self) -> bool:
        """Whether a person says something; else the op begins a task of its own kind."""
        return not isinstance(self.op, WITHOUT_INPUT)

    @property
    def delivery(self) -> Delivery | None:
        """Where the op is to go while a task runs; None: as the session has it."""
        return None if isinstance(self.op, WITHOUT_INPUT) else self.op.delivery

    @property
    def expected_turn_id(self) -> str | None:
        """The turn that the input is for, and no other."""
        return self.op.expected_turn_id if isinstance(self.op, ops.UserInput) else None

    @property
    def client_id(self) -> str | None:
        """The sender's own name for the message."""
        return None if isinstance(self.op, WITHOUT_INPUT) else self.op.client_user_message_id

    @property
    def replaces(self) -> bool:
        """Whether a task that runs is stopped for it."""
        return self.delivery in (None, Delivery.REPLACE)

    @property
    def unknown_mentions(self) -> tuple[str, ...]:
        """The apps that the input names and no MCP server stands for, by their paths."""
        named = (item for item in self.items if item["type"] == "mention" and not item.get("tools"))
        return tuple(str(item["path"]) for item in named)

    @property
    def output_schema(self) -> JsonValue:
        """The JSON Schema that the last message has to conform to; None for any."""
        return None if isinstance(self.op, WITHOUT_INPUT) else self.op.final_output_json_schema


# ── task kinds ────────────────────────────────────────────────────────────────────────────────────
# The kinds of tasks, how they end, and what requests to the model are for: words of facts and the state.


TaskKind = Literal["user", "compact", "plan", "review", "shell"]
StopReason = Literal["failed", "interrupted", "replaced", "canceled"]
"""Why a task is stopped; a stopped task has ended so."""
Outcome = Literal["completed", "failed", "interrupted", "replaced", "canceled"]
Purpose = Literal["turn", "compact"]
"""The purpose of a model request."""


# ── input items ───────────────────────────────────────────────────────────────────────────────────
# Input items: what the items of one op make of a conversation, and which of them can make nothing.
#
# Items are in their wire form, with what the worker has read put in: a `local_image` is an `image` with
# its `path`, and a `skill` has its `content`. A log keeps a reference in the place of a very large text.


SKILL_TAG = "<skill>"
_LONG = "[a long text]"


# ── what cannot be taken ──────────────────────────────────────────────────────────────────────────


def fault(op: ops.UserInput | ops.UserTurn) -> str | None:
    """The reason why an op's input cannot be taken; None if it can."""
    return _schema_fault(op.final_output_json_schema) or items_fault(op.items)


def items_fault(items: Sequence[InputItem]) -> str | None:
    """The same of the items alone."""
    return next(_text_faults(items), None) if items else "items: at least one is needed; nothing was done"


def _schema_fault(schema: JsonValue) -> str | None:
    if schema is None or isinstance(schema, dict):
        return None
    return "final_output_json_schema: an object is expected"


def _text_faults(items: Sequence[InputItem]) -> Iterator[str]:
    for place, item in enumerate(items):
        if isinstance(item, TextInput) and item.text_elements:
            found = _elements_fault(item.text.encode("utf-8", "replace"), item.text_elements)
            if found is not None:
                yield f"items[{place}].text_elements{found}"


def _elements_fault(text: bytes, elements: Sequence[TextElement]) -> str | None:
    """The first element that is no part of the text, or out of its order."""
    before = 0
    for place, element in enumerate(elements):
        start, end = element.byte_range.start, element.byte_range.end
        if not start < end <= len(text):
            return f"[{place}].byte_range: {start} to {end} is no part of a text of {len(text)} bytes"
        if start < before:
            return f"[{place}].byte_range: it begins before the end of the one before it"
        if not (_border(text, start) and _border(text, end)):
            return f"[{place}].byte_range: it cuts a character"
        before = end
    return None


def _border(text: bytes, at: int) -> bool:
    return at == len(text) or text[at] & 0xC0 != 0x80


# ── what the model and people are shown ───────────────────────────────────────────────────────────


def input_messages(items: Sequence[Item]) -> tuple[JsonObject, ...]:
    """The person's message, and behind it one for each skill and each MCP server that it names."""
    if (texts := _plain(items)) is not None:
        return (user_texts(texts),)
    said = Message(role="user", content=tuple(map(_content, items)))
    skills = [_skill(item) for item in items if item["type"] == "skill" and "content" in item]
    servers: dict[str, Item] = {}
    for item in items:
        if item["type"] == "mention" and item.get("tools"):
            # Once, however often it is named: one commit carries all of these.
            servers.setdefault(item["path"], item)
    return tuple(map(written, (said, *skills, *map(_server, servers.values()))))


def _plain(items: Sequence[Item]) -> list[str] | None:
    """The texts of input that is nothing but texts, as nearly all is; None for any other."""
    texts: list[str] = []
    for item in items:
        text = item.get("text")
        if item["type"] != "text" or type(text) is not str or item.get("text_elements"):
            return None
        texts.append(text)
    return texts


def _content(item: Item) -> ContentItem:
    if item["type"] == "image":
        return InputImage(image_url=item["image_url"])
    return InputText(text=_text(item))


def _text(item: Item) -> JsonValue:
    """The text in place of an item; None for one that stands beside it."""
    match item["type"]:
        case "text":
            return item["text"]
        case "image":
            return None
        case "skill":
            return f"${item['name']}"
        case "mention":
            return f"@{item['name']}"
        case kind:
            return f"[{kind}: {item.get('name') or item.get('path') or ''}]"


def _skill(item: Item) -> Message:
    # The content alone in its part: of a long one a log has a reference, which only a request opens.
    opening = f"{SKILL_TAG}\n<name>{item['name']}</name>\n<path>{item['path']}</path>\n"
    parts = (opening, item["content"], "\n</skill>")
    return Message(role="user", content=tuple(InputText(text=part) for part in parts))


def _server(item: Item) -> Message:
    """The message that tells the model of an MCP server that the person mentions."""
    tools = ", ".join(item["tools"])
    text = f"@{item['name']} is the MCP server {item['path']}. Its tools are at hand for this task: {tools}."
    return Message(role="developer", content=(InputText(text=text),))


def user_message_event(
    items: Sequence[Item], client_id: str | None = None, by: Sender | None = None
) -> JsonObject:
    """The event that tells clients what the person said; `client_id` is the sender's name for it."""
    who = (by.who or None) if by is not None else None
    if (plain := _plain(items)) is not None:
        return ev.user_message("\n".join(plain), client_id, who)
    images = tuple(item["image_url"] for item in items if item["type"] == "image" and "path" not in item)
    paths = tuple(item["path"] for item in items if item["type"] == "image" and "path" in item)
    texts = [text for item in items if (text := _text(item)) is not None]
    told = ev.UserMessage(
        message=_joined(texts),
        kind=UserMessageKind.PLAIN,
        images=images or None,
        local_images=paths or None,
        text_elements=_elements(items) or None,
        client_id=client_id,
        who=who,
    )
    return written(told)


def _joined(texts: Sequence[JsonValue]) -> JsonValue:
    """The texts as one, by lines; a reference to a huge one cannot be joined: it is kept if it is alone."""
    if len(texts) == 1:
        return texts[0]
    return "\n".join(text if isinstance(text, str) else _LONG for text in texts)


def _elements(items: Sequence[Item]) -> tuple[TextElement, ...]:
    """The parts of the texts that a client draws in its own way, counted from the joined text's beginning."""
    texts = [(item, text) for item in items if (text := _text(item)) is not None]
    moved: list[TextElement] = []
    at = 0
    for item, text in texts:
        for element in item.get("text_elements") or ():
            span = element["byte_range"]
            here = {"start": span["start"] + at, "end": span["end"] + at}
            if isinstance(text, str) or len(texts) == 1:
                moved.append(TextElement.model_validate({**element, "byte_range": here}))
        at += len((text if isinstance(text, str) else _LONG).encode("utf-8", "replace")) + 1
    return tuple(moved)


# ── turn items ────────────────────────────────────────────────────────────────────────────────────
# The items of a turn as newer clients draw them (`TurnItem`), made of what the conversation holds.


def publishes_items(settings: TurnSettings) -> bool:
    """Whether clients are told of every item, and not of plans alone."""
    return settings.item_events == "all"


def begun_item(item: Item, item_id: str) -> TurnItem | None:
    """An item that the model has begun; None for one that clients know by other events."""
    match item.get("type"):
        case "message" if item.get("role", "assistant") == "assistant":
            return AgentMessageItem(id=item_id, content=())
        case "reasoning":
            return ReasoningItem(id=item_id)
        case "web_search_call":
            return WebSearchItem(id=item_id, query="")
        case _:
            return None


def completed_item(item: Item, item_id: str, said: str, *, raw: bool) -> TurnItem | None:
    """The same when it is done; `said` is the text of a message, `raw` permits raw reasoning."""
    match item.get("type"):
        case "message" if item.get("role") == "assistant":
            return AgentMessageItem(id=item_id, content=(AgentMessageText(text=said),))
        case "reasoning":
            shown = _texts(item.get("content")) if raw else ()
            return ReasoningItem(
                id=item_id, summary_text=_texts(item.get("summary")), raw_content=shown or None
            )
        case "web_search_call":
            return WebSearchItem(id=item_id, query=searched(item), action=web_action(item.get("action")))
        case _:
            return None


def user_item(items: Sequence[Item], item_id: str) -> TurnItem:
    """The person's input; what a log keeps elsewhere is named by its size."""
    plain = [{name: readable_setting(value) for name, value in item.items()} for item in items]
    return UserMessageItem.model_validate({"id": item_id, "content": plain})


def _texts(parts: Sequence[Item] | None) -> tuple[str, ...]:
    return tuple(str(part.get("text", "")) for part in parts or ())
