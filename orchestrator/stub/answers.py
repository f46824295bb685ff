"""The stub's answers, as values: the words of a scenario file, and the port that chooses an answer.

The dataclasses are the file format (field names included), read strictly by `scenario` and
built directly by the behaviours. Nothing here knows HTTP.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Annotated, Any, ClassVar, Protocol

import orjson
from pydantic import ConfigDict, Field

# ── request shape ─────────────────────────────────────────────────────────────────────────────────
# The types of the fields that the stub reads of a request: what a provider refuses, it refuses too.
#
# A field that is absent or null is in order, and so is one that the stub does not read.


_TEXTS = ("type", "role", "id", "call_id", "tool_call_id", "name", "arguments", "input")
"""Fields of an input item, a message, a call and a tool that are strings."""


class InvalidRequest(ValueError):
    """A field of the request has another type than the Responses API gives it; the message names it."""


def checked(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """The body; raises `InvalidRequest` for the first field that is not what the stub reads it as."""
    tools, items = body.get("tools"), body.get("input")
    require(tools, "tools", list)
    for at, tool in enumerate(tools or ()):
        require(tool, f"tools[{at}]", dict, null=False)
        require_texts(tool, f"tools[{at}]")
    require(items, "input", str, list)
    for at, item in enumerate(items if isinstance(items, list) else ()):
        require(item, f"input[{at}]", dict, null=False)
        require_texts(item, f"input[{at}]")
        for name in ("content", "output"):
            check_content(item.get(name), f"input[{at}].{name}")
    return body


def require_texts(value: Mapping[str, Any], place: str) -> None:
    """Raises for a field that is a string in every request, and is none here."""
    for name in _TEXTS:
        require(value.get(name), f"{place}.{name}", str)


def check_content(content: Any, place: str) -> None:
    """Raises for a content that is neither a text nor parts."""
    require(content, place, str, list)
    for at, part in enumerate(content if isinstance(content, list) else ()):
        require(part, f"{place}[{at}]", dict, null=False)
        if "text" in part:
            require(part["text"], f"{place}[{at}].text", str, null=False)


_NAMES: Mapping[type, str] = {list: "an array", dict: "an object", str: "a string"}


def require(value: Any, place: str, *types: type, null: bool = True) -> None:
    """Raises `InvalidRequest`, which names the place, for a value of none of these types."""
    if isinstance(value, types) or (null and value is None):
        return
    found = {**_NAMES, type(None): "null", bool: "a boolean"}.get(type(value), "a number")
    raise InvalidRequest(f"`{place}` must be {' or '.join(_NAMES[each] for each in types)}, not {found}")


# ── chat request ──────────────────────────────────────────────────────────────────────────────────
# A request of chat completions, read as the Responses request that says the same.
#
# The scripts know one form of a conversation; a request in the other form is checked and translated here.
# A field that is absent or null is in order, and so is one that the stub does not read.


JsonObject = dict[str, Any]


def translated(body: Mapping[str, Any]) -> JsonObject:
    """The same request to the Responses API; raises `InvalidRequest` for a field of another type."""
    tools, messages = body.get("tools"), body.get("messages")
    require(tools, "tools", list)
    require(messages, "messages", list)
    items = [item for at, message in enumerate(messages or ()) for item in _items(message, f"messages[{at}]")]
    instructions = ""
    if items and items[0].get("role") == "system":
        instructions = _text(items.pop(0)["content"])
    return {
        "model": body.get("model"),
        "instructions": instructions,
        "input": [_as_developer(item) for item in items],
        "tools": [_tool(tool, f"tools[{at}]") for at, tool in enumerate(tools or ())],
        "parallel_tool_calls": body.get("parallel_tool_calls", False),
    }


def _items(message: Any, place: str) -> Iterator[JsonObject]:
    require(message, place, dict, null=False)
    require_texts(message, place)
    content = message.get("content")
    check_content(content, f"{place}.content")
    role = message.get("role")
    if role == "tool":
        yield {
            "type": "function_call_output",
            "call_id": message.get("tool_call_id"),
            "output": _text(content),
        }
        return
    if content:
        yield {"type": "message", "role": role, "content": _parts(content, role, place)}
    calls = message.get("tool_calls")
    require(calls, f"{place}.tool_calls", list)
    for at, call in enumerate(calls or ()):
        yield _call(call, f"{place}.tool_calls[{at}]")


def _call(call: Any, place: str) -> JsonObject:
    function = _function(call, place)
    return {
        "type": "function_call",
        "name": function.get("name"),
        "arguments": function.get("arguments"),
        "call_id": call.get("id"),
    }


def _tool(tool: Any, place: str) -> JsonObject:
    return {"type": "function", **_function(tool, place)}


def _function(holder: Any, place: str) -> Mapping[str, Any]:
    require(holder, place, dict, null=False)
    require_texts(holder, place)
    function = holder.get("function")
    require(function, f"{place}.function", dict, null=False)
    require_texts(function, f"{place}.function")
    found: Mapping[str, Any] = function
    return found


def _parts(content: Any, role: Any, place: str) -> list[JsonObject]:
    text = "output_text" if role == "assistant" else "input_text"
    if isinstance(content, str):
        return [{"type": text, "text": content}]
    return [
        {"type": text, "text": part["text"]} if "text" in part else _image(part, f"{place}.content[{at}]")
        for at, part in enumerate(content)
    ]


def _image(part: Mapping[str, Any], place: str) -> JsonObject:
    image = part.get("image_url")
    require(image, f"{place}.image_url", dict)
    return {"type": "input_image", "image_url": (image or {}).get("url")}


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content or () if "text" in part)


def _as_developer(item: JsonObject) -> JsonObject:
    """Later messages of the system are a developer's in the other form."""
    return item | {"role": "developer"} if item.get("role") == "system" else item


# ── script ────────────────────────────────────────────────────────────────────────────────────────


_STRICT = ConfigDict(extra="forbid")
_Count = Annotated[int, Field(ge=0)]
_Milliseconds = Annotated[float, Field(ge=0, le=86_400_000)]
_HeaderName = Annotated[str, Field(pattern=r"^[A-Za-z0-9!#$%&'*+.^_`|~-]+$")]
_HeaderValue = Annotated[str, Field(pattern=r"^[\t\x20-\x7e\x80-\xff]*$")]
"""A text that HTTP can send."""


@dataclass(frozen=True, slots=True)
class Text:
    """An assistant message, sent in three deltas."""

    text: str
    __pydantic_config__: ClassVar[ConfigDict] = _STRICT


@dataclass(frozen=True, slots=True)
class Reasoning:
    """A reasoning summary, sent in two deltas after a section break."""

    reasoning: str
    __pydantic_config__: ClassVar[ConfigDict] = _STRICT


@dataclass(frozen=True, slots=True)
class Call:
    """A function call; a string in `args` is sent as it is, so that broken arguments can be tried."""

    call: str
    args: dict[str, Any] | str = field(default_factory=dict)
    call_id: str | None = None
    __pydantic_config__: ClassVar[ConfigDict] = _STRICT


@dataclass(frozen=True, slots=True)
class CustomCall:
    """A call of a custom (free-form) tool."""

    custom_call: str
    input: str
    call_id: str | None = None
    __pydantic_config__: ClassVar[ConfigDict] = _STRICT


@dataclass(frozen=True, slots=True)
class RawItem:
    """Any other output item, sent whole."""

    item: dict[str, Any]
    __pydantic_config__: ClassVar[ConfigDict] = _STRICT


OutputItem = Text | Reasoning | Call | CustomCall | RawItem


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens that the response reports."""

    input: _Count = 100
    cached: _Count = 0
    output: _Count = 20
    reasoning: _Count = 0
    __pydantic_config__: ClassVar[ConfigDict] = _STRICT


@dataclass(frozen=True, slots=True)
class Failure:
    """The error of a `response.failed`."""

    code: str
    message: str
    __pydantic_config__: ClassVar[ConfigDict] = _STRICT


@dataclass(frozen=True, slots=True)
class Shortfall:
    """The reason of a `response.incomplete`."""

    reason: str
    __pydantic_config__: ClassVar[ConfigDict] = _STRICT


@dataclass(frozen=True, slots=True)
class Step:
    """An answer. Milliseconds, because these are the file's own names."""

    items: tuple[OutputItem, ...] = ()
    usage: Usage | None = None
    """None: 100 in and 20 out in a scenario, an estimate from the bytes in a behaviour.

    A response that fails or is incomplete reports a usage only if it is given here.
    """
    status: Annotated[int, Field(ge=200, le=599)] | None = None
    """Another HTTP status than 200; `headers` and `body` go with it, and nothing else counts."""
    headers: Mapping[_HeaderName, _HeaderValue] = field(default_factory=dict)
    """Headers of the answer, also of a good one (rate limits)."""
    body: Any = None
    drop_after: _Count | None = None
    """Cut the connection after so many SSE events, counted from `response.created`."""
    failed: Failure | None = None
    incomplete: Shortfall | None = None
    hang: bool | _Count = False
    """True: never answer. A number: fall silent after so many SSE events."""
    tail_delay_ms: _Milliseconds = 0
    """Before the last SSE event, which ends the response."""
    hold_tail: str | None = None
    """The last SSE event waits until this name is posted to `/release`."""
    end_turn: bool | None = None
    delay_ms: _Milliseconds = 0
    """Before the answer begins."""
    delta_delay_ms: _Milliseconds | None = None
    """Before each delta; None leaves it to the server's pace."""
    __pydantic_config__: ClassVar[ConfigDict] = _STRICT


@dataclass(frozen=True, slots=True)
class StubRequest:
    """A model request as the scripts see it, in the form of the Responses API."""

    session: str
    body: Mapping[str, Any]
    size: int
    digest: str
    """Eight hex digits of the body: the same request gets the same ids, whoever repeats it."""

    @classmethod
    def of(
        cls,
        raw: bytes,
        session_header: str | None,
        read: Callable[[Mapping[str, Any]], Mapping[str, Any]] = checked,
    ) -> StubRequest:
        """Reads a posted body; raises ValueError without a JSON object, `InvalidRequest` for a wrong type."""
        body = orjson.loads(raw)
        if not isinstance(body, dict):
            raise ValueError("the body is not a JSON object")
        session = body.get("prompt_cache_key") or session_header or ""
        return cls(str(session), read(body), len(raw), blake2b(raw, digest_size=4).hexdigest())


@dataclass(frozen=True, slots=True)
class Answer:
    """A step chosen for a request; `number` counts the session's requests from 1."""

    step: Step
    number: int
    id_prefix: str
    """The prefix of generated call and item ids."""


class Script(Protocol):
    """Chooses the answers; `name` is shown as the model `stub:<name>`."""

    @property
    def name(self) -> str:
        """The word after `stub:`."""
        ...

    def answer(self, request: StubRequest) -> Answer:
        """The answer to this request."""
        ...


# ── conversation ──────────────────────────────────────────────────────────────────────────────────
# A request's input read as a conversation: the task at hand, and the calls made for it.
#
# Pure. A conversation holds what a model would see, since the behaviours answer in a model's place.


_CALL_TYPES = frozenset({"function_call", "custom_tool_call"})
_OUTPUT_TYPES = frozenset({"function_call_output", "custom_tool_call_output"})
_CONTEXT_TAGS = (
    "<environment_context>",
    "<user_instructions>",
    "<turn_aborted>",
    "<process_gone>",
    "<folder_changed>",
)
_PART = re.compile(r'You are agent (?P<number>\d+)(?: \("(?P<label>.*)"\))? in a tree of agents\.', re.DOTALL)
"""The start of the role text, which every agent below a root gets first."""
_NO_EFFECT_KNOWN = ("in doubt", "aborted")


@dataclass(frozen=True, slots=True)
class ToolOutput:
    """A tool's output; `exit_code` is None for tools that are no commands."""

    text: str
    exit_code: int | None

    @property
    def in_doubt(self) -> bool:
        """The call may or may not have run: its worker was lost, or it was stopped."""
        return self.text.startswith(_NO_EFFECT_KNOWN)


@dataclass(frozen=True, slots=True)
class StubAgent:
    """The agent whose conversation it is."""

    number: int
    """0 for a root, which gets no role text."""
    label: str | None
    """As it was made with."""


@dataclass(frozen=True, slots=True)
class MadeCall:
    """A call of the current task with its output, None while there is none."""

    name: str
    arguments: str
    output: ToolOutput | None


@dataclass(frozen=True, slots=True)
class StubConversation:
    """The content of a request, as far as a behaviour needs it."""

    task: str
    """The last text of a user, without the context that is sent under the user's role."""
    calls: tuple[MadeCall, ...]
    """The calls made since then, in order."""
    tools: Mapping[str, str]
    """Name -> type of the tools on offer."""
    turn: int
    """1 + the items that the model has produced so far."""
    agent: StubAgent

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> StubConversation:
        """Reads a request's body; skips items of an unknown shape."""
        items = [item for item in body.get("input") or () if isinstance(item, dict)]
        start, task = _last_task(items)
        tools = {
            tool.get("name") or tool.get("type", ""): tool.get("type", "") for tool in body.get("tools") or ()
        }
        produced = sum(item.get("type") in _CALL_TYPES or item.get("role") == "assistant" for item in items)
        return cls(task, tuple(_calls(items[start:])), tools, produced + 1, _agent(items))


def _agent(items: list[dict[str, Any]]) -> StubAgent:
    """By the last part that it was given: a fork has that of its parent before its own."""
    for item in reversed(items):
        if item.get("role") == "developer" and (found := _PART.match(_text_of(item.get("content")))):
            return StubAgent(int(found["number"]), found["label"])
    return StubAgent(0, None)


def _last_task(items: list[dict[str, Any]]) -> tuple[int, str]:
    for index in range(len(items) - 1, -1, -1):
        if items[index].get("role") == "user":
            text = _text_of(items[index].get("content"))
            if text and not text.startswith(_CONTEXT_TAGS):
                return index + 1, text
    return 0, ""


def _text_of(content: Any) -> str:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else ()
    return "\n".join(part["text"] for part in parts if isinstance(part, dict) and "text" in part)


def _calls(items: list[dict[str, Any]]) -> Iterable[MadeCall]:
    outputs = {item.get("call_id"): item.get("output") for item in items if item.get("type") in _OUTPUT_TYPES}
    for item in items:
        if item.get("type") in _CALL_TYPES:
            output = outputs.get(item.get("call_id"))
            yield MadeCall(
                name=item.get("name", ""),
                arguments=item.get("arguments") or item.get("input") or "",
                output=None if output is None else _tool_output(output),
            )


def _tool_output(output: Any) -> ToolOutput:
    """A command's output is JSON with its exit code; every other tool's is plain text."""
    text = _text_of(output)
    try:
        parsed = orjson.loads(text)
        return ToolOutput(parsed["output"], int(parsed["metadata"]["exit_code"]))
    except (ValueError, TypeError, KeyError):
        return ToolOutput(text, None)
