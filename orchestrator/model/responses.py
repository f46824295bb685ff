"""The Responses API as a `WireFormat`."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NoReturn, TypedDict

import orjson

from orchestrator.config_keys import ProviderSettings
from orchestrator.core.frozen import replace
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
    ReasoningSectionBreak,
    ReasoningSummaryDelta,
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


class ResponsesFormat:
    """`POST {base_url}/responses`."""

    path = "/responses"
    headers: Mapping[str, str] = {"OpenAI-Beta": "responses=experimental"}

    def body(self, prompt: Prompt, provider: ProviderSettings) -> dict[str, Any]:
        if prompt.encoded is None:
            return request_body(prompt)
        return request_body(replace(prompt, input=())) | {"input": orjson.Fragment(prompt.encoded)}

    def reader(self, prompt: Prompt, provider: ProviderSettings) -> ResponsesReader:
        return ResponsesReader(provider.id)


class ResponsesReader:
    """Reads one response: a server that sends an item again has not asked for its call again."""

    finished = False

    def __init__(self, provider: str) -> None:
        self._provider = provider
        self._items: set[tuple[int | None, str, bytes]] = set()

    def read(self, sse: SseEvent) -> Sequence[ModelEvent]:
        event = decode(self._provider, sse)
        if event is None or (type(event) is ItemDone and self._again(event)):
            return ()
        return (event,)

    def end(self) -> Sequence[ModelEvent]:
        return ()

    def _again(self, event: ItemDone) -> bool:
        """Whether this very item was handed out before, under the same index and id."""
        if event.place == (None, ""):
            return False
        # A server may give one index to all its items: only the same content is the same item.
        digest = hashlib.sha256(orjson.dumps(event.item, option=orjson.OPT_SORT_KEYS)).digest()
        key = (*event.place, digest)
        known = key in self._items
        self._items.add(key)
        return known


# ── body ──────────────────────────────────────────────────────────────────────────────────────────
# The body of `POST {base_url}/responses` (the September 2025 request form).
#
# Pure. As a rule the whole history travels with every request and nothing is kept at the
# provider; `store` and `previous_response_id` are for a caller who knows that it keeps responses.


class SchemaFormat(TypedDict):
    """The schema that the provider holds the last message of a task to."""

    type: Literal["json_schema"]
    strict: bool
    name: str
    schema: Mapping[str, Any]


def request_body(prompt: Prompt) -> dict[str, Any]:
    """The JSON object to post; fields that do not apply are absent, as in the recordings of Codex."""
    body: dict[str, Any] = {
        "model": prompt.model,
        "instructions": prompt.instructions,
        "input": [sent for item in prompt.input if (sent := sent_form(item)) is not None],
        "tools": list(prompt.tools),
        "tool_choice": "auto",
        "parallel_tool_calls": prompt.parallel_tool_calls,
        "reasoning": reasoning_of(prompt),
        "store": prompt.store,
        "stream": True,
        "include": ["reasoning.encrypted_content"] if prompt.supports_reasoning else [],
        "prompt_cache_key": prompt.session_id,
    }
    if text := text_controls(prompt):
        body["text"] = text
    if prompt.previous_response_id is not None:
        body["previous_response_id"] = prompt.previous_response_id
    return body


def sent_form(item: Item) -> Item | None:
    """Raw reasoning stays here: the provider takes its own back only in encrypted form.

    Reasoning of a provider of chat completions has no other form; of that nothing is sent.
    """
    if item.get("type") != "reasoning" or not item.get("content"):
        return item
    if not item.get("summary") and "encrypted_content" not in item:
        return None
    return {key: value for key, value in item.items() if key != "content"}


def reasoning_of(prompt: Prompt) -> dict[str, str] | None:
    if not prompt.supports_reasoning:
        return None
    reasoning = {}
    if prompt.effort is not None:
        reasoning["effort"] = prompt.effort
    if prompt.summary is not None and prompt.summary != "none":
        reasoning["summary"] = prompt.summary
    return reasoning


def text_controls(prompt: Prompt) -> dict[str, Any]:
    text: dict[str, Any] = {}
    if prompt.verbosity is not None and takes_verbosity(prompt.model):
        text["verbosity"] = prompt.verbosity
    if prompt.output_schema is not None:
        text["format"] = SchemaFormat(
            type="json_schema", strict=True, name=SCHEMA_NAME, schema=prompt.output_schema
        )
    return text


# ── decode ────────────────────────────────────────────────────────────────────────────────────────
# Decodes an SSE event of a Responses stream to a `ModelEvent`, or to the error that it reports.
#
# Pure. Event types that nobody uses are passed over before their JSON is decoded: a real
# stream carries about three times as many events as we need.


_SENTINEL = b"[DONE]"
"""The end of a stream by servers of older interfaces."""
_BREAK = ReasoningSectionBreak()
Fault = Callable[[str, Any], NoReturn]
"""Raises the error that an event of the provider of this name stands for."""
_USAGE = UsageNames("input_tokens", "output_tokens", "input_tokens_details", "output_tokens_details")


def decode(provider: str, sse: SseEvent) -> ModelEvent | None:
    """The event's meaning; None if it has none for us. Raises what `response.failed` stands for."""
    named = sse.name != "message"
    if (named and sse.name not in _READERS and sse.name not in _FAULTS) or sse.data == _SENTINEL:
        return None
    kind = sse.name
    try:
        data = orjson.loads(sse.data)
        kind = sse.name if named else _type_of(data)
        if fault := _FAULTS.get(kind):
            _raise(fault, provider, data)
        reader = _READERS.get(kind)
        return reader(data) if reader else None
    except BrokenItem as error:
        raise broken(provider, str(error)) from error
    except orjson.JSONDecodeError as error:
        # Passing over, say, an output_item.done would lose a call that the model made.
        what = f"a broken {kind}" if named else f"a line that is no JSON: {excerpt(sse.data)}"
        raise broken(provider, what) from error
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        raise broken(provider, f"a broken {kind}") from error


def _type_of(data: Any) -> str:
    """The event's type; an object without a type is an event that no reader uses."""
    if not isinstance(data, dict):
        raise BrokenItem("a line that is no object")
    kind = data.get("type")
    return kind if isinstance(kind, str) else ""


def _item_done(data: Any) -> ItemDone:
    item = data["item"]
    check_item(item)
    place = data.get("output_index")
    return ItemDone(kept_item(item), (place if isinstance(place, int) else None, name_of(item.get("id"))))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("a delta that is no text")
    return value


def _completed(data: Any) -> Completed:
    response = data["response"]
    end_turn, model = response.get("end_turn", data.get("end_turn")), name_of(response.get("model"))
    return Completed(
        response_id=name_of(response.get("id")),
        usage=_USAGE.read(response.get("usage")),
        end_turn=end_turn if isinstance(end_turn, bool) else None,
        served=Served(model=model) if model else None,
    )


def _raise(fault: Fault, provider: str, data: Any) -> NoReturn:
    """Raises the fault with the usage in its event: the tokens of a failed response are billed too."""
    try:
        fault(provider, data)
    except ModelError as error:
        response = data.get("response")
        error.usage = _USAGE.read(response.get("usage")) if isinstance(response, dict) else None
        raise


def _raise_failed(provider: str, data: Any) -> NoReturn:
    raise_fault(provider, ProviderFault.of((data.get("response") or {}).get("error")))


def _raise_error(provider: str, data: Any) -> NoReturn:
    # Some servers nest the fault, others write it beside the type, which is then no code.
    nested = data.get("error")
    raise_fault(provider, ProviderFault.of(nested or {key: data.get(key) for key in ("code", "message")}))


def _raise_incomplete(provider: str, data: Any) -> NoReturn:
    details = (data.get("response") or {}).get("incomplete_details") or {}
    reason = details.get("reason") or "no reason given"
    raise incomplete(provider, reason)


_READERS: dict[str, Callable[[Any], ModelEvent]] = {
    "response.created": lambda data: Created(name_of(data["response"].get("id"))),
    "response.output_item.added": lambda data: ItemAdded(data["item"]),
    "response.output_item.done": _item_done,
    "response.output_text.delta": lambda data: TextDelta(_text(data["delta"])),
    "response.reasoning_summary_text.delta": lambda data: ReasoningSummaryDelta(_text(data["delta"])),
    "response.reasoning_summary_part.added": lambda data: _BREAK,
    "response.reasoning_text.delta": lambda data: ReasoningRawDelta(_text(data["delta"])),
    "response.completed": _completed,
    "response.done": _completed,
}

_FAULTS: dict[str, Fault] = {
    "response.failed": _raise_failed,
    "response.incomplete": _raise_incomplete,
    "error": _raise_error,
}


# ── items ─────────────────────────────────────────────────────────────────────────────────────────
# A provider's output items in the form that rollouts keep and later requests send back.
#
# Pure. The September 2025 protocol never serialises an item's `id`, so that a history can be
# sent to a provider that stores nothing; what else is unknown to us stays as it came.


JsonObject = dict[str, Any]

_TRANSIENT: dict[str, frozenset[str]] = {
    "message": frozenset({"id", "status"}),
    "reasoning": frozenset({"id", "status"}),
    "function_call": frozenset({"id", "status"}),
    "custom_tool_call": frozenset({"id"}),
    "local_shell_call": frozenset({"id"}),
    "web_search_call": frozenset({"id"}),
}
"""Known item types and the fields that name or time the item at the provider only."""


def kept_item(item: JsonObject) -> JsonObject:
    """The item without what only its provider understands; an unknown type comes back whole."""
    kind = item.get("type")
    transient = _TRANSIENT.get(kind) if isinstance(kind, str) else None
    if transient is None:
        return item
    kept = {name: value for name, value in item.items() if name not in transient}
    if kind == "message":
        kept["content"] = [_kept_part(part) for part in item.get("content") or ()]
    elif kind == "reasoning":
        return _kept_reasoning(kept)
    elif kind == "local_shell_call" and not kept.get("call_id"):
        # Older servers name the call by the item's id alone; its output must name it too.
        kept["call_id"] = item.get("id")
    return kept


def _kept_reasoning(kept: JsonObject) -> JsonObject:
    known = {
        "type": kept["type"],
        "summary": kept.get("summary") or [],
        "content": kept.get("content") or None,
        "encrypted_content": kept.get("encrypted_content"),
    }
    return known | {name: value for name, value in kept.items() if name not in known}


def _kept_part(part: Any) -> Any:
    if not isinstance(part, dict):
        return part
    return {name: value for name, value in part.items() if value or name not in ("annotations", "logprobs")}
