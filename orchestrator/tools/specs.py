"""Tool specs for the model: names, descriptions and JSON schemas of the Responses API."""

from __future__ import annotations

from typing import Any


def function(name: str, description: str, properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    """A function tool as Codex declares it: not strict, no further properties."""
    return {
        "type": "function",
        "name": name,
        "description": description,
        "strict": False,
        "parameters": {
            "type": "object",
            "properties": properties,
            "required": required,
            "additionalProperties": False,
        },
    }


def _string(description: str) -> dict[str, Any]:
    return {"type": "string", "description": description}


SHELL = function(
    "shell",
    "Runs a program and returns its output and exit code. Give the program and its arguments as a list; "
    'for shell syntax use ["bash", "-lc", "<script>"].',
    {
        "command": {
            "type": "array",
            "items": {"type": "string"},
            "description": "The program and its arguments.",
        },
        "workdir": _string("The folder to run in, relative to the session's folder; default: that folder."),
        "timeout_ms": {
            "type": "number",
            "description": "Milliseconds until the command is stopped; default 10000.",
        },
        "with_escalated_permissions": {
            "type": "boolean",
            "description": "Ask to run it outside of the sandbox, where the task needs it.",
        },
        "justification": _string("With escalated permissions: one sentence for the person who decides."),
    },
    ["command"],
)

LOCAL_SHELL: dict[str, Any] = {"type": "local_shell"}
"""The Responses API's built-in tool, whose calls are `local_shell_call` items."""

APPLY_PATCH = function(
    "apply_patch",
    "Edits files. The input is one patch:\n"
    "*** Begin Patch\n"
    "*** Add File: <path>            every following line begins with +\n"
    "*** Delete File: <path>\n"
    "*** Update File: <path>         optionally followed by *** Move to: <path>\n"
    "@@ <a line above the change>    then lines beginning with a space (kept), - (removed) or + (added)\n"
    "*** End Patch\n"
    "Keep about three lines around each change. Paths are relative. Either every hunk is applied or none.",
    {"input": _string("The whole patch.")},
    ["input"],
)

UPDATE_PLAN = function(
    "update_plan",
    "Shows the person the steps of the work and where it stands. At most one step is in_progress.",
    {
        "explanation": _string("Why the plan changed, if it did."),
        "plan": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "step": _string("A few words."),
                    "status": {"type": "string", "enum": ["pending", "in_progress", "completed"]},
                },
                "required": ["step", "status"],
                "additionalProperties": False,
            },
        },
    },
    ["plan"],
)

VIEW_IMAGE = function(
    "view_image",
    "Lets you see an image file of the machine that you work on.",
    {"path": _string("The file, relative to the session's folder.")},
    ["path"],
)

OFFERED = (SHELL, APPLY_PATCH, UPDATE_PLAN, VIEW_IMAGE)
