"""The body of `POST {base_url}/responses` (the September 2025 request form).

Pure. As a rule the whole history travels with every request and nothing is kept at the
provider; `store` and `previous_response_id` are for a caller who knows that it keeps responses.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypedDict

from orchestrator.model.request import SCHEMA_NAME, Item, Prompt, takes_verbosity


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
        "input": [sent for item in prompt.input if (sent := _outgoing(item)) is not None],
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


def _outgoing(item: Item) -> Item | None:
    """Raw reasoning stays here: the provider takes its own back only in encrypted form.

    Reasoning of a provider of chat completions has no other form; of that nothing is sent.
    """
    if item.get("type") != "reasoning" or not item.get("content"):
        return item
    if not item.get("summary") and "encrypted_content" not in item:
        return None
    return {key: value for key, value in item.items() if key != "content"}


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
    if prompt.verbosity is not None and takes_verbosity(prompt.model):
        text["verbosity"] = prompt.verbosity
    if prompt.output_schema is not None:
        text["format"] = SchemaFormat(
            type="json_schema", strict=True, name=SCHEMA_NAME, schema=prompt.output_schema
        )
    return text
