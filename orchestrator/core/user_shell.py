"""Commands that a person runs: a task of one call, which no model has asked for.

Its result joins the conversation as a message, so that the model knows of it in the next turn.
"""

from __future__ import annotations

from typing import Final

from orchestrator.core.history import Item, call_output, user_message
from orchestrator.core.turn_calls import Call
from orchestrator.protocol.ids import CallId, SubmissionId
from orchestrator.protocol.items import CustomToolCallOutput, FunctionCallOutput, Message, ToolOutput

USER_SHELL: Final = "user_shell"
"""The name of the call. No model's call is of its type, whatever name a model gives it."""
USER_SHELL_TAG: Final = "<user_shell_command>"
MOST_COMMAND_BYTES: Final = 32 << 10
_TYPE: Final = "user_shell_command"


def command_fault(command: str) -> str | None:
    """The reason why a person's command cannot be run; None if it can."""
    if not command.strip():
        return "command: it is empty; say what to run"
    if "\0" in command:
        return "command: it holds a NUL character, which no program can be given"
    if (size := len(command.encode("utf-8", "replace"))) > MOST_COMMAND_BYTES:
        return (
            f"command: at most {MOST_COMMAND_BYTES:,} bytes are run, and these are {size:,}; "
            "put it into a file, and run that"
        )
    return None


def shell_call(task: SubmissionId, command: str) -> Call:
    """The call of a task that runs a person's command."""
    call_id = CallId(f"{USER_SHELL}-{task}")
    return Call(call_id, USER_SHELL, {"type": _TYPE, "call_id": call_id, "command": command})


def command_of(item: Item) -> str | None:
    """The command of a person's call; None for a call of a model."""
    return str(item["command"]) if item["type"] == _TYPE else None


def answer_item(item: Item, output: ToolOutput) -> Message | FunctionCallOutput | CustomToolCallOutput:
    """The item that a call leaves in the conversation: its output, or a message on a person's command."""
    command = command_of(item)
    if command is None:
        return call_output(item, output)
    return user_message(
        f"{USER_SHELL_TAG}\n<command>\n{command}\n</command>\n<result>\n{output}\n</result>\n"
        f"</{USER_SHELL_TAG[1:]}"
    )
