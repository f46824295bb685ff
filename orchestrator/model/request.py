"""The body and headers of `POST {base_url}/responses` (the September 2025 request form).

Pure. As a rule the whole history travels with every request and nothing is kept at the
provider; `store` and `previous_response_id` are for a caller who knows that it keeps responses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

from orchestrator.core.frozen import record

Item = Mapping[str, Any]
"""A ResponseItem on the wire."""


class SchemaFormat(TypedDict):
    """The schema that the provider holds the last message of a task to."""

    type: Literal["json_schema"]
    strict: bool
    name: str
    schema: Mapping[str, Any]


@record
class Prompt:
    """The content of a model request."""

    model: str
    instructions: str
    input: Sequence[Item]
    tools: Sequence[Item]
    effort: str | None
    summary: str | None
    verbosity: str | None
    session_id: str
    supports_reasoning: bool
    parallel_tool_calls: bool = False
    previous_response_id: str | None = None
    store: bool = False
    """Whether the provider is to keep the response, so that a later request can name it."""
    output_schema: Mapping[str, Any] | None = None


def request_body(prompt: Prompt) -> dict[str, Any]:
    """The JSON object to post; fields that do not apply are absent, as in the recordings of Codex."""
    body: dict[str, Any] = {
        "model": prompt.model,
        "instructions": prompt.instructions,
        "input": [_outgoing(item) for item in prompt.input],
        "tools": list(prompt.tools),
        "tool_choice": "auto",
        "parallel_tool_calls": prompt.parallel_tool_calls,
        "reasoning": _reasoning(prompt),
        "store": prompt.store,
        "stream": True,
        "include": ["reasoning.encrypted_content"] if prompt.supports_reasoning else [],
        "prompt_cache_key": prompt.session_id,
    }
    if text := _text_controls(prompt):
        body["text"] = text
    if prompt.previous_response_id is not None:
        body["previous_response_id"] = prompt.previous_response_id
    return body


def request_headers(session_id: str) -> dict[str, str]:
    """The headers of a request; the client adds the key and the provider's own headers."""
    return {
        "OpenAI-Beta": "responses=experimental",
        "conversation_id": session_id,
        "session_id": session_id,
        "Accept": "text/event-stream",
        "Content-Type": "application/json",
    }


def _outgoing(item: Item) -> Item:
    """Raw reasoning stays here: the provider takes its own back only in encrypted form."""
    if item.get("type") == "reasoning" and item.get("content"):
        return {key: value for key, value in item.items() if key != "content"}
    return item


def _reasoning(prompt: Prompt) -> dict[str, str] | None:
    if not prompt.supports_reasoning:
        return None
    reasoning = {}
    if prompt.effort is not None:
        reasoning["effort"] = prompt.effort
    if prompt.summary is not None and prompt.summary != "none":
        reasoning["summary"] = prompt.summary
    return reasoning


def _text_controls(prompt: Prompt) -> dict[str, Any]:
    text: dict[str, Any] = {}
    if prompt.verbosity is not None and _takes_verbosity(prompt.model):
        text["verbosity"] = prompt.verbosity
    if prompt.output_schema is not None:
        text["format"] = SchemaFormat(
            type="json_schema", strict=True, name="codex_output_schema", schema=prompt.output_schema
        )
    return text


def _takes_verbosity(model: str) -> bool:
    """The gpt-5 family does; its codex variants answer 400 to anything but the default."""
    return model.startswith("gpt-5") and "-codex" not in model
