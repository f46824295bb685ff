"""The wire formats that a conversation is held over, and what a request says in either.

A recorded request is one of the Responses API. Over chat completions the same conversation has to be asked
with: its fields that chat completions do not have are left out, and the request that came is read back.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import pytest

from orchestrator.stub.answers import translated
from tests.acceptance.allowances import Message
from tests.acceptance.placeholders import Json
from tests.commit_seed import chosen

RESPONSES, CHAT = "responses", "chat"

NOT_OVER_CHAT = {
    "plain": "its first answer begins with a summary of reasoning, which chat completions do not have",
    "reasoning_sections": "it is about summaries of reasoning",
    "custom_apply_patch": "its call is of a custom tool, which chat completions have as a function alone",
    "web_searches_told_by_their_items": "it is about the provider's own search",
    "local_shell_call": "its call is of the hosted shell, which chat completions have as a function alone",
}
"""Conversations with items that chat completions cannot carry, and which."""
TURNS = 3
"""`make test` holds one conversation in so many over chat, chosen by the commit, and `make nightly` all."""
_IN_BOTH = ("input", "parallel_tool_calls")


def over(names: Sequence[str]) -> list[Any]:
    """Parameters: each conversation with each wire format that can carry it, many over chat for the night."""
    chat = [
        pytest.param(CHAT, name, marks=[pytest.mark.night] if chosen(name, TURNS) else [])
        for name in names
        if name not in NOT_OVER_CHAT
    ]
    return [*(pytest.param(RESPONSES, name) for name in names), *chat]


def expected(requests: Sequence[Message], wire: str, script: Json) -> list[Message]:
    """Recorded requests as far as the wire format has words for them; `script` is the model's."""
    if wire == RESPONSES:
        return list(requests)
    together = _together(_answers(script))
    return [_grouped(_readable(_in_both(request)), together) for request in requests]


def asked(body: Message, wire: str) -> Message:
    """A request that the model was sent, in the form of the recorded ones."""
    if wire == RESPONSES:
        return body
    assert body["stream_options"] == {"include_usage": True}
    read: Message = _in_both(translated(body))
    return read


def _in_both(request: Json) -> Json:
    """The request; a word, if the conversation leaves it free."""
    if not isinstance(request, dict):
        return request
    return {name: request[name] for name in _IN_BOTH if name in request}


def _answers(script: Json) -> Iterator[Message]:
    """The answers of a script: a list of them, or the steps of the root and of each agent."""
    if not isinstance(script, dict):
        yield from script
        return
    for part in (script, *script.get("agents", ())):
        yield from part.get("steps", ())


def _together(answers: Iterable[Message]) -> frozenset[str]:
    """The ids of calls that follow another call of their own response, with no text between the two."""
    found = set[str]()
    for answer in answers:
        said = [item for item in answer.get("items", ()) if "call_id" in item or "text" in item]
        for before, item in pairwise(said):
            if "call_id" in before and "call_id" in item:
                found.add(item["call_id"])
    return frozenset(found)


def _grouped(request: Json, together: frozenset[str]) -> Json:
    """The request, with the calls of one response before all of their outputs, as chat completions want."""
    if not isinstance(request, dict):
        return request
    items: list[Json] = []
    after_calls = 0
    for item in request["input"]:
        is_call = isinstance(item, dict) and item.get("type") == "function_call"
        place = after_calls if is_call and item["call_id"] in together else len(items)
        items.insert(place, item)
        after_calls = place + 1 if is_call else after_calls
    return {**request, "input": items}


def _readable(request: Json) -> Json:
    """The request, with the texts of a message as one, and arguments that are no JSON object as one's text.

    Chat completions have a plain text for a message that is nothing else, and their servers refuse others.
    """
    if not isinstance(request, dict):
        return request
    return {**request, "input": [_readable_item(item) for item in request["input"]]}


def _readable_item(item: Json) -> Json:
    if isinstance(item, dict) and item.get("type") == "message":
        return {**item, "content": _joined(item["content"])}
    arguments = item.get("arguments", "") if isinstance(item, dict) else ""
    if not arguments.startswith("{") or _is_object(arguments):
        return item
    return {**item, "arguments": json.dumps({"arguments": arguments}, separators=(",", ":"))}


def _joined(content: list[Message]) -> list[Message]:
    if len(content) < 2 or any(part["type"] != "input_text" for part in content):
        return content
    return [{"type": "input_text", "text": "\n".join(part["text"] for part in content)}]


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except json.JSONDecodeError:
        return False
