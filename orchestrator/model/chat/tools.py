"""Tools and their calls as functions, the only kind of tool that chat completions have everywhere.

A free-form tool becomes a function of one text, `input`; the hosted shell becomes a function with the fields
of its action. A call of either comes back as the item that it is by the Responses API, so that nothing behind
the client knows the difference. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

from orchestrator.model.request import Item

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
