"""Calls and a portable folder: which of them need it, and which may write to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from orchestrator.core.calls import (
    AwaitWork,
    CallWork,
    ClientToolWork,
    CopyWork,
    CustomWork,
    ExecWork,
    HelperWork,
    McpWork,
    MergeWork,
    PatchWork,
    PlanWork,
    QuestionWork,
    StdinWork,
    UnknownWork,
    UserInputWork,
    VariantsWork,
)
from orchestrator.core.settings import Rules, TurnSettings
from orchestrator.core.state import State, Task
from orchestrator.core.turn_calls import Call


def needs_folder(call: Call, rules: Rules) -> bool:
    """Whether the call is assessed by the folder's files, or runs in it."""
    return call.name not in rules.folder_free


def lacks_setup(state: State) -> bool:
    """Whether the session has a set-up that has not run in its folder as it is."""
    portable = state.facts.portable
    return portable is not None and portable.setup is not None and not state.workspace.set_up


def may_write(work: CallWork | None, settings: TurnSettings) -> bool:
    """Whether a call that runs may change the folder.

    Words to a process are none of it: what the process does is recorded with the next call that ends, and
    with its own end.
    """
    match work:
        case ExecWork(sandboxed=sandboxed):
            return not sandboxed or settings.sandbox_policy["mode"] != "read-only"
        case PatchWork() | MergeWork() | CustomWork() | McpWork() | UnknownWork():
            return True
        case None | StdinWork() | CopyWork() | AwaitWork() | HelperWork() | VariantsWork():
            return False
        case QuestionWork() | UserInputWork() | PlanWork() | ClientToolWork():
            return False
        case _:
            assert_never(work)


def writing(task: Task) -> Sequence[Call]:
    """The calls that run now and may change the folder."""
    return [call for call in task.running if may_write(call.work, task.settings)]
