"""Chat completions as a `WireFormat`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import orjson

from orchestrator.config_keys import ProviderSettings
from orchestrator.core.frozen import record
from orchestrator.core.history import CALL_KINDS, OUTPUT_KINDS
from orchestrator.core.tokens import Served
from orchestrator.model.output_checks import BrokenItem, UsageNames, check_item, name_of
from orchestrator.model.prompt import (
    SCHEMA_NAME,
    Completed,
    Created,
    Item,
    ItemAdded,
    ItemDone,
    ModelEvent,
    Prompt,
    ReasoningRawDelta,
    TextDelta,
    takes_verbosity,
)
from orchestrator.model.provider_errors import (
    ModelError,
    ProviderFault,
    broken,
    excerpt,
    incomplete,
    raise_fault,
)
from orchestrator.model.sse import SseEvent
from orchestrator.protocol.items import Message, OutputText, ReasoningText
from orchestrator.protocol.wire import JsonObject, written


class ChatFormat:
    """`POST {base_url}/chat/completions`."""

    path = "/chat/completions"
    headers: Mapping[str, str] = {}

    def body(self, prompt: Prompt, provider: ProviderSettings) -> dict[str, Any]:
        return request_body(prompt, provider)

    def reader(self, prompt: Prompt, provider: ProviderSettings) -> ChatReader:
        return ChatReader(provider.id, converted_tools(prompt.tools))


# ── body ──────────────────────────────────────────────────────────────────────────────────────────
# The body of `POST {base_url}/chat/completions`.
#
# Pure. Servers differ in the fields that they take, and some refuse a request for one that they do not know:
# what the protocol does not ask for, and no setting turns on, is left out.


def request_body(prompt: Prompt, provider: ProviderSettings) -> dict[str, Any]:
    """The JSON object to post. The whole conversation travels with every request."""
    body: dict[str, Any] = {
        "model": prompt.model,
        "messages": messages_of(prompt.instructions, prompt.input, provider.developer_role, prompt.together),
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if functions := offered_functions(prompt.tools):
        # An empty list is refused, and so are choices between no tools.
        body |= {
            "tools": functions,
            "tool_choice": "auto",
            "parallel_tool_calls": prompt.parallel_tool_calls,
        }
    if prompt.effort is not None and provider.supports_reasoning_effort:
        body["reasoning_effort"] = prompt.effort
    if prompt.verbosity is not None and takes_verbosity(prompt.model):
        body["verbosity"] = prompt.verbosity
    if prompt.output_schema is not None:
        schema = {"name": SCHEMA_NAME, "strict": True, "schema": prompt.output_schema}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    return body


# ── decode ────────────────────────────────────────────────────────────────────────────────────────
# Reads a stream of chat completion chunks: each SSE event is a chunk with pieces of one choice.
#
# data: {"id": …, "choices": [{"index": 0, "delta": {…}, "finish_reason": null}]}
# data: {"id": …, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
# data: {"id": …, "choices": [], "usage": {…}}
# data: [DONE]
#
# Pure. A response is whole with its `finish_reason`; what comes behind it may only say what it has cost.


_SENTINEL: Final = b"[DONE]"
_WHOLE: Final = frozenset({"stop", "tool_calls", "end_turn", "eos", "eos_token", "stop_sequence"})
"""Reasons for which a response ends that is complete; of any other one nobody knows what is missing."""
_USAGE = UsageNames(
    "prompt_tokens", "completion_tokens", "prompt_tokens_details", "completion_tokens_details"
)


class ChatReader:
    """Reads one response. `converted` names the functions that stand for tools of another type."""

    def __init__(self, provider: str, converted: Mapping[str, str]) -> None:
        self.finished = False
        self._provider = provider
        self._items = Assembly(converted)
        self._created = False
        self._id = self._model = self._fingerprint = ""
        self._reason = ""
        self._usage: Mapping[str, int] | None = None

    def read(self, sse: SseEvent) -> Sequence[ModelEvent]:
        if sse.data.strip() == _SENTINEL:
            return self.end()
        try:
            return list(self._chunk(sse))
        except ModelError as error:
            # The tokens of a failed response are billed too.
            error.usage = self._usage
            raise
        except BrokenItem as error:
            raise broken(self._provider, str(error)) from error
        except orjson.JSONDecodeError as error:
            raise broken(self._provider, f"a line that is no JSON: {excerpt(sse.data)}") from error
        except (LookupError, TypeError, AttributeError, ValueError) as error:
            raise broken(self._provider, "a broken chunk") from error

    def end(self) -> Sequence[ModelEvent]:
        if not self.finished:
            raise broken(self._provider, "the end of a response without its finish_reason")
        if self._reason not in _WHOLE:
            error = incomplete(self._provider, self._reason)
            error.usage = self._usage
            raise error
        says = self._model or self._fingerprint
        served = Served(model=self._model, fingerprint=self._fingerprint) if says else None
        return (Completed(self._id, self._usage, None, served),)

    def _chunk(self, sse: SseEvent) -> Iterator[ModelEvent]:
        data = orjson.loads(sse.data)
        if not isinstance(data, dict):
            raise BrokenItem("a line that is no object")
        self._id = self._id or name_of(data.get("id"))
        self._model = self._model or name_of(data.get("model"))
        self._fingerprint = self._fingerprint or name_of(data.get("system_fingerprint"))
        self._usage = _USAGE.read(data.get("usage") or None) or self._usage
        if fault := _fault(sse.name, data):
            raise_fault(self._provider, fault)
        for choice in data.get("choices") or ():
            # One is asked for: another would be a second answer to the same question.
            if choice.get("index") in (0, None):
                yield from self._choice(choice)

    def _choice(self, choice: Any) -> Iterator[ModelEvent]:
        if not self._created:
            self._created = True
            yield Created(self._id)
        delta, reason = choice.get("delta") or {}, choice.get("finish_reason")
        yield from self._delta(delta)
        if reason is not None and not isinstance(reason, str):
            raise BrokenItem("a finish_reason that is no text")
        if reason and not self.finished:
            self.finished, self._reason = True, reason.lower()
            if self._reason in _WHOLE:
                yield from self._items.close()

    def _delta(self, delta: Any) -> Iterator[ModelEvent]:
        thought = _text(delta, "reasoning_content", "reasoning")
        text = _text(delta, "content", "refusal")
        calls = delta.get("tool_calls") or ()
        if delta.get("function_call"):
            raise BrokenItem("a `function_call`, which belongs to no tool of the request")
        if self.finished and (thought or text or calls):
            raise BrokenItem("a piece of the response behind its finish_reason")
        if thought:
            yield from self._items.words("reasoning", thought)
        if text:
            yield from self._items.words("message", text)
        for call in calls:
            yield from self._items.call(CallPiece.of(call))


def _text(delta: Any, *names: str) -> str:
    """The first of these fields that says something."""
    value = next((value for name in names if (value := delta.get(name))), "")
    if not isinstance(value, str):
        raise BrokenItem(f"a piece whose `{names[0]}` is no text")
    return value


def _fault(name: str, data: Mapping[str, Any]) -> ProviderFault | None:
    """The failure that a chunk reports; some servers write it as the event itself."""
    if error := data.get("error"):
        return ProviderFault.of(error)
    return ProviderFault.of(data) if name == "error" or data.get("object") == "error" else None


# ── messages ──────────────────────────────────────────────────────────────────────────────────────
# A conversation's items as chat messages. Pure.
#
# An assistant's text and the calls of one response are one message; the outputs follow it, each a message of
# its own.
# Reasoning, searches and items of unknown kinds are left out: no server could read them back.


ChatMessage = dict[str, Any]
Part = dict[str, Any]

_ONLY_IMAGES = "The output is in the next message."


def messages_of(
    instructions: str, items: Iterable[Item], developer_role: str, together: frozenset[str] = frozenset()
) -> list[ChatMessage]:
    """The messages of a request; `developer_role` is the role that the provider reads for `developer`.

    `together`: the calls that one response made with the call before them, by their ids.
    """
    talk = _Talk(developer_role, together)
    if instructions:
        talk.messages.append({"role": "system", "content": instructions})
    for item in items:
        talk.add(item)
    talk.show_images()
    return talk.messages


class _Talk:
    """The messages so far, and the images that wait until every output of a message's calls is there."""

    def __init__(self, developer_role: str, together: frozenset[str]) -> None:
        self.messages: list[ChatMessage] = []
        self._together = together
        self._asked: list[Any] | None = None
        """The calls of the last message that has any, until another one says something."""
        self._developer_role = developer_role
        self._calls: set[str] = set()
        self._images: list[Part] = []

    def add(self, item: Item) -> None:
        kind = item.get("type", "message")
        if kind in OUTPUT_KINDS:
            self._output(item)
        elif kind in CALL_KINDS:
            self._call(item)
        elif kind == "message":
            self._message(item)

    def _message(self, item: Item) -> None:
        role, content = item.get("role"), item.get("content")
        if role == "assistant":
            texts = _texts(content)
            self._append({"role": role, "content": "".join(texts)} if texts else None)
            return
        kept = {"developer": self._developer_role, "system": "system"}.get(str(role), "user")
        if _images(content):
            parts = [part for one in content or () for part in _parts(one)]
            self._append({"role": kept, "content": parts})
        elif texts := _texts(content):
            # Many servers take a text alone.
            self._append({"role": kept, "content": "\n".join(texts)})

    def _call(self, item: Item) -> None:
        function, call_id = function_of(item), item.get("call_id")
        if function is None or not call_id:
            return
        beside = call_id in self._together and self._asked is not None
        # Some servers count calls anew in each response: no message has two of one id.
        if not beside or any(call_id == made["id"] for made in self._asked or ()):
            self._asked = self._asking()
        assert self._asked is not None
        self._asked.append({"id": call_id, "type": "function", "function": function})
        self._calls.add(call_id)

    def _asking(self) -> list[Any]:
        """The calls of the assistant's message that stands last, or of a new one."""
        self.show_images()
        if not self.messages or self.messages[-1]["role"] != "assistant":
            self.messages.append({"role": "assistant", "content": None})
        found: list[Any] = self.messages[-1].setdefault("tool_calls", [])
        return found

    def _output(self, item: Item) -> None:
        call_id, output = item.get("call_id"), item.get("output")
        if call_id not in self._calls:
            return
        images = _images(output)
        if images:
            self._images += [_text_part(f"The output of the call {call_id}:"), *images]
        text = "\n".join(_texts(output)) or (_ONLY_IMAGES if images else "")
        self.messages.append({"role": "tool", "tool_call_id": call_id, "content": text})

    def show_images(self) -> None:
        """The images of the outputs so far, as a message of a user: an output carries text alone."""
        if self._images:
            self.messages.append({"role": "user", "content": self._images})
            self._images = []

    def _append(self, message: ChatMessage | None) -> None:
        self.show_images()
        if message is not None:
            self._asked = None
            self.messages.append(message)


def _texts(content: Any) -> list[str]:
    """The texts of a content: a text, parts, or, in an output of another version, any JSON."""
    if isinstance(content, str):
        return [content]
    if isinstance(content, Mapping):
        return [orjson.dumps(content).decode()]
    parts = [part for part in content or () if isinstance(part, Mapping)]
    texts = [part.get("text", part.get("refusal")) for part in parts]
    return [text for text in texts if isinstance(text, str)]


def _parts(part: Any) -> list[Part]:
    """A part of a message that has images: its text or its image, in its place."""
    return [_text_part(text) for text in _texts([part])] or _images([part])


def _images(content: Any) -> list[Part]:
    if not isinstance(content, list | tuple):
        return []
    found = [part for part in content if isinstance(part, Mapping) and part.get("type") == "input_image"]
    return [_image_part(part) for part in found if isinstance(part.get("image_url"), str)]


def _image_part(part: Mapping[str, Any]) -> Part:
    image = {"url": part["image_url"]}
    if part.get("detail") is not None:
        image["detail"] = part["detail"]
    return {"type": "image_url", "image_url": image}


def _text_part(text: str) -> Part:
    return {"type": "text", "text": text}


# ── tools ─────────────────────────────────────────────────────────────────────────────────────────
# Tools and their calls as functions, the only kind of tool that chat completions have everywhere.
#
# A free-form tool becomes a function of one text, `input`; the hosted shell becomes a function with the
# fields of its action. A call of either comes back as the item that it is by the Responses API, so that
# nothing behind the client knows the difference. Pure.


LOCAL_SHELL: Final = "local_shell"
NAME_CHARS: Final = 64
_ODD_NAME: Final = re.compile(r"[^a-zA-Z0-9_-]")
"""Characters that servers refuse in a function's name, also in that of a call made long ago."""
_FREE_FORM: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"input": {"type": "string", "description": "The whole input of the tool, as free text."}},
    "required": ["input"],
    "additionalProperties": False,
}
_SHELL: Final[dict[str, Any]] = {
    "name": LOCAL_SHELL,
    "description": "Runs a program and returns its output and exit code. Give the program and its arguments "
    'as a list; for shell syntax use ["bash", "-lc", "<script>"].',
    "parameters": {
        "type": "object",
        "properties": {
            "command": {"type": "array", "items": {"type": "string"}},
            "working_directory": {"type": "string"},
            "timeout_ms": {"type": "number"},
            "env": {"type": "object", "additionalProperties": {"type": "string"}},
        },
        "required": ["command"],
    },
}


def offered_functions(tools: Sequence[Item]) -> list[dict[str, Any]]:
    """The tools as functions; hosted ones that a server would have to run itself are left out."""
    definitions = [definition for tool in tools if (definition := _definition(tool)) is not None]
    return [{"type": "function", "function": definition} for definition in definitions]


def _definition(tool: Item) -> dict[str, Any] | None:
    match tool.get("type"):
        case "function":
            return {name: tool[name] for name in ("name", "description", "parameters") if name in tool}
        case "custom":
            described = {"name": tool["name"], "description": _free_form_description(tool)}
            return {**described, "parameters": _FREE_FORM}
        case "local_shell":
            return _SHELL
        case _:
            return None


def _free_form_description(tool: Item) -> str:
    """The tool's description, with the grammar that no server here holds the model to."""
    description, form = str(tool.get("description", "")), tool.get("format")
    grammar = form.get("definition") if isinstance(form, Mapping) else None
    return f"{description}\nThe input's grammar:\n{grammar}".strip() if grammar else description


def converted_tools(tools: Sequence[Item]) -> Mapping[str, str]:
    """The functions that stand for a tool of another type: name → type."""
    custom = {tool["name"]: "custom" for tool in tools if tool.get("type") == "custom"}
    hosted = any(tool.get("type") == LOCAL_SHELL for tool in tools)
    return custom | {LOCAL_SHELL: LOCAL_SHELL} if hosted else custom


def call_item(name: str, arguments: str, converted: Mapping[str, str]) -> dict[str, Any]:
    """The item of a call, without the id that it may have."""
    kind = converted.get(name)
    if kind == "custom":
        return {
            "type": "custom_tool_call",
            "status": "completed",
            "name": name,
            "input": _free_text(arguments),
        }
    action = _object(arguments) if kind == LOCAL_SHELL else None
    if action is not None:
        return {"type": "local_shell_call", "status": "completed", "action": {**action, "type": "exec"}}
    return {"type": "function_call", "name": name, "arguments": arguments}


def function_of(call: Item) -> dict[str, str] | None:
    """Name and arguments of a call in the history; None for an item that is no call."""
    match call.get("type"):
        case "function_call":
            return _function(call["name"], _readable(call["arguments"]))
        case "custom_tool_call":
            return _function(call["name"], _json({"input": call["input"]}))
        case "local_shell_call":
            action = call.get("action") or {}
            given = {name: value for name, value in action.items() if name != "type" and value is not None}
            return _function(LOCAL_SHELL, _json(given))
        case _:
            return None


def _function(name: str, arguments: str) -> dict[str, str]:
    return {"name": _ODD_NAME.sub("_", name)[:NAME_CHARS] or "_", "arguments": arguments}


def _readable(arguments: str) -> str:
    """The arguments as a JSON object, whatever the model wrote.

    Servers read them again for their template, and refuse the whole conversation where they cannot.
    """
    return arguments if _object(arguments) is not None else _json({"arguments": arguments})


def _free_text(arguments: str) -> str:
    """The input of a free-form call; a model may write the text itself in the place of an object."""
    given = (_object(arguments) or {}).get("input")
    return given if isinstance(given, str) else arguments


def _object(text: str) -> dict[str, Any] | None:
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    return value if isinstance(value, dict) else None


def _json(value: Mapping[str, Any]) -> str:
    return orjson.dumps(value).decode()


# ── assembly ──────────────────────────────────────────────────────────────────────────────────────
# The items of one response, put together from the pieces of its stream.
#
# A stream of chat completions has no items: it has pieces of a text, of reasoning, and of calls by index. One
# item is open at a time; a piece that belongs to another one completes it. Pure.


MOST_ITEMS: Final = 1_024
"""Texts and calls of one response: as many calls as one may ask for."""
MOST_CHARS: Final = 32 << 20
"""Characters of one text, or of one call's arguments."""


@record
class CallPiece:
    """A piece of a call; an empty text is a field that the server left out."""

    index: int | None
    id: str
    name: str
    arguments: str

    @classmethod
    def of(cls, piece: Any) -> CallPiece:
        """Reads an entry of `tool_calls`; raises `BrokenItem` for a field of another type."""
        function = piece.get("function") or {}
        index = piece.get("index")
        if index is not None and (type(index) is not int or index < 0):
            raise BrokenItem("a piece of a call whose `index` is no number of a call")
        texts = (piece.get("id"), function.get("name"), function.get("arguments"))
        for name, text in zip(("id", "name", "arguments"), texts, strict=True):
            if text is not None and not isinstance(text, str):
                raise BrokenItem(f"a piece of a call whose `{name}` is no text")
        return cls(index, *(text or "" for text in texts))


@dataclass(slots=True)
class _Words:
    """A text or a reasoning that is being written; blanks alone are not shown."""

    kind: Literal["message", "reasoning"]
    pieces: list[str] = field(default_factory=list)
    size: int = 0
    shown: bool = False

    def more(self, piece: str) -> Iterator[ModelEvent]:
        self.size = _within(self.size, piece, f"a {self.kind}")
        self.pieces.append(piece)
        if not self.shown:
            if not piece.strip():
                return
            self.shown, piece = True, "".join(self.pieces)
            yield ItemAdded(self._item(()))
        yield TextDelta(piece) if self.kind == "message" else ReasoningRawDelta(piece)

    def done(self) -> Iterator[ModelEvent]:
        if self.shown:
            yield ItemDone(self._item(("".join(self.pieces),)))

    def _item(self, texts: tuple[str, ...]) -> JsonObject:
        if self.kind == "message":
            return written(Message(role="assistant", content=tuple(OutputText(text=text) for text in texts)))
        # No `Reasoning`: it would say that encrypted reasoning is null, of a server that has no such thing.
        raw = [written(ReasoningText(text=text)) for text in texts]
        return {"type": "reasoning", "summary": [], "content": raw}


@dataclass(slots=True)
class _Call:
    """A call that is being written."""

    index: int | None
    converted: Mapping[str, str]
    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)
    size: int = 0

    def takes(self, piece: CallPiece) -> bool:
        """Whether a piece is one of this call: by id, by index, or as a piece without either.

        Servers that give every call the same index tell them apart by their ids; servers that give neither
        send each call whole, and its name begins it.
        """
        if piece.id and self.id and piece.id != self.id:
            return False
        if piece.index is None:
            return bool(piece.id) or not piece.name
        return self.index is None or piece.index == self.index

    def more(self, piece: CallPiece) -> Iterator[ModelEvent]:
        if piece.name and self.name and piece.name != self.name:
            raise BrokenItem("a call with two names")
        self.id = self.id or piece.id
        self.size = _within(self.size, piece.arguments, "a call")
        self.arguments.append(piece.arguments)
        if piece.name and not self.name:
            self.name = piece.name
            yield ItemAdded(self._item(""))

    def done(self) -> Iterator[ModelEvent]:
        item = self._item("".join(self.arguments) or "{}")
        check_item(item)
        yield ItemDone(item)

    def _item(self, arguments: str) -> dict[str, Any]:
        item = call_item(self.name, arguments, self.converted)
        return item | {"call_id": self.id} if self.id else item


class Assembly:
    """The items of one response, each handed out as soon as it is complete."""

    def __init__(self, converted: Mapping[str, str]) -> None:
        self._converted = converted
        self._open: _Words | _Call | None = None
        self._begun = 0
        self._indexes: set[int] = set()
        self._ids: set[str] = set()

    def words(self, kind: Literal["message", "reasoning"], piece: str) -> Iterator[ModelEvent]:
        """A piece of the message, or of what the model thought before it."""
        current = self._open
        if not isinstance(current, _Words) or current.kind != kind:
            yield from self.close()
            self._begin(current := _Words(kind))
        yield from current.more(piece)

    def call(self, piece: CallPiece) -> Iterator[ModelEvent]:
        """A piece of a call."""
        current = self._open
        if not isinstance(current, _Call) or not current.takes(piece):
            if self._is_late(piece):
                raise BrokenItem("a piece of a call that was complete before it")
            yield from self.close()
            self._begin(current := _Call(piece.index, self._converted))
        yield from current.more(piece)
        self._note(piece)

    def close(self) -> Iterator[ModelEvent]:
        """The open item, which is complete."""
        current, self._open = self._open, None
        if current is not None:
            yield from current.done()

    def _begin(self, item: _Words | _Call) -> None:
        self._begun += 1
        if self._begun > MOST_ITEMS:
            raise BrokenItem(f"more than {MOST_ITEMS:,} texts and calls in one response")
        self._open = item

    def _is_late(self, piece: CallPiece) -> bool:
        """Whether a piece belongs to a call that another item has completed."""
        known = piece.id in self._ids if piece.id else not piece.name
        return known and (piece.index is None or piece.index in self._indexes)

    def _note(self, piece: CallPiece) -> None:
        if piece.index is not None:
            self._indexes.add(piece.index)
        if piece.id:
            self._ids.add(piece.id)


def _within(size: int, piece: str, what: str) -> int:
    size += len(piece)
    if size > MOST_CHARS:
        raise BrokenItem(f"{what} of more than {MOST_CHARS:,} characters")
    return size
