"""A request's input read as a conversation: the task at hand, and the calls made for it.

Pure. A conversation holds what a model would see, since the behaviours answer in a model's place.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

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
