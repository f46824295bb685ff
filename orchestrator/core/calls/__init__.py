"""Kinds of calls: what a call asks for, its work, its events, its verdict.

    exec         a command, words to a process, or a look at it
    patch        a patch
    tool         a tool of an MCP server, or of the program's own
    agents       a wait for agents, an agent whose answer is the output, helpers that draft variants of a plan
    merge, copy  what an agent has made of its folder; a copy of the session's, for an agent that works in one
    ask          questions to a person, and plans
    client_tool  a tool that the client brings along: its answer is waited for as a person's is

The record of the work stands in the log, in the state and in snapshots: `work_of` and `spec_of` are its two
ways. A new kind is a record, a case of `CallWork`, and a reader and a writer below.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar, Literal, TypeAlias, assert_never

from orchestrator.core.calls.agents import Await, AwaitWork, HelperWork, VariantsWork
from orchestrator.core.calls.ask import PlanWork, QuestionWork, UserInputWork
from orchestrator.core.calls.client_tool import ClientToolWork
from orchestrator.core.calls.copy import CopyWork
from orchestrator.core.calls.exec import Exec, ExecWork, StdinWork, WriteStdin
from orchestrator.core.calls.merge import Merge, MergeWork
from orchestrator.core.calls.patch import ApplyPatch, PatchWork
from orchestrator.core.calls.tool import Custom, CustomWork, Mcp, McpWork
from orchestrator.core.forms import reader_of, writer_of
from orchestrator.core.frozen import record
from orchestrator.protocol.wire import JsonObject, JsonValue

__all__ = [
    "ApplyPatch",
    "AskWork",
    "Await",
    "AwaitWork",
    "CallWork",
    "ClientToolWork",
    "CopyWork",
    "Custom",
    "CustomWork",
    "Exec",
    "ExecWork",
    "HelperWork",
    "Mcp",
    "McpWork",
    "Merge",
    "MergeWork",
    "PatchWork",
    "PlanWork",
    "QuestionWork",
    "Runnable",
    "RunnableWork",
    "StdinWork",
    "UnknownWork",
    "UserInputWork",
    "VariantsWork",
    "Waiting",
    "WriteStdin",
    "answered_by",
    "spec_of",
    "timer_of",
    "work_of",
]


@record
class UnknownWork:
    """The work of a kind that this version does not know, held as it came: it can be ended, but not begun."""

    kind: ClassVar[Literal["?"]] = "?"
    spec: Mapping[str, JsonValue]


Runnable: TypeAlias = Exec | ApplyPatch | Custom | Mcp | Merge
"""Assessments of calls that have to be run, and perhaps to be approved."""
RunnableWork: TypeAlias = ExecWork | PatchWork | CustomWork | McpWork | MergeWork
Waiting: TypeAlias = AwaitWork | HelperWork | VariantsWork
AskWork: TypeAlias = QuestionWork | UserInputWork | PlanWork | ClientToolWork
"""Calls that wait for words of a person, or of a client. An assessment of such a call is its work."""
CallWork: TypeAlias = RunnableWork | StdinWork | CopyWork | Waiting | AskWork | UnknownWork

_EXEC = writer_of(ExecWork, ExecWork.kind)
_PATCH = writer_of(PatchWork, PatchWork.kind)
_AWAIT = writer_of(AwaitWork, AwaitWork.kind)
_HELPER = writer_of(HelperWork, HelperWork.kind)
_VARIANTS = writer_of(VariantsWork, VariantsWork.kind)
_CUSTOM = writer_of(CustomWork, CustomWork.kind)
_MCP = writer_of(McpWork, McpWork.kind)
_MERGE = writer_of(MergeWork, MergeWork.kind)
_COPY = writer_of(CopyWork, CopyWork.kind)
_STDIN = writer_of(StdinWork, StdinWork.kind)
_QUESTION = writer_of(QuestionWork, QuestionWork.kind)
_USER_INPUT = writer_of(UserInputWork, UserInputWork.kind)
_PLAN = writer_of(PlanWork, PlanWork.kind)
_CLIENT_TOOL = writer_of(ClientToolWork, ClientToolWork.kind)
_READERS: Mapping[str, Callable[[Mapping[str, JsonValue]], CallWork]] = {
    ExecWork.kind: reader_of(ExecWork),
    PatchWork.kind: reader_of(PatchWork),
    AwaitWork.kind: reader_of(AwaitWork),
    HelperWork.kind: reader_of(HelperWork),
    VariantsWork.kind: reader_of(VariantsWork),
    CustomWork.kind: reader_of(CustomWork),
    McpWork.kind: reader_of(McpWork),
    MergeWork.kind: reader_of(MergeWork),
    CopyWork.kind: reader_of(CopyWork),
    StdinWork.kind: reader_of(StdinWork),
    QuestionWork.kind: reader_of(QuestionWork),
    UserInputWork.kind: reader_of(UserInputWork),
    PlanWork.kind: reader_of(PlanWork),
    ClientToolWork.kind: reader_of(ClientToolWork),
}


def work_of(spec: Mapping[str, JsonValue] | None) -> CallWork | None:
    """The work that a `spec` of the log states; None for none.

    Raises `KeyError`, `TypeError` or `ValueError` for a known kind that lacks a field, or has a wrong one.
    """
    if not spec:
        return None
    read = _READERS.get(spec.get("kind", ""))
    return UnknownWork(spec) if read is None else read(spec)


def spec_of(work: CallWork) -> JsonObject:
    """The work as JSON: the `spec` of the log."""
    match work:
        case ExecWork():
            return _EXEC(work)
        case PatchWork():
            return _PATCH(work)
        case AwaitWork():
            return _AWAIT(work)
        case HelperWork():
            return _HELPER(work)
        case VariantsWork():
            return _VARIANTS(work)
        case CustomWork():
            return _CUSTOM(work)
        case McpWork():
            return _MCP(work)
        case MergeWork():
            return _MERGE(work)
        case CopyWork():
            return _COPY(work)
        case StdinWork():
            return _STDIN(work)
        case QuestionWork():
            return _QUESTION(work)
        case UserInputWork():
            return _USER_INPUT(work)
        case PlanWork():
            return _PLAN(work)
        case ClientToolWork():
            return _CLIENT_TOOL(work)
        case UnknownWork():
            return dict(work.spec)
        case _:
            assert_never(work)


def timer_of(work: CallWork | None) -> int | None:
    """The generation of the timer that ends the call's approval or wait; None for none."""
    match work:
        case None | HelperWork() | VariantsWork() | StdinWork() | CopyWork():
            return None
        case UnknownWork():
            return work.spec.get("timer")
        case _:
            return work.timer


_ASKS = (QuestionWork, UserInputWork, PlanWork, ClientToolWork)
_ANSWERED_BY: Mapping[str, tuple[str, str]] = {
    **{work.kind: (work.noun, work.answered_by) for work in _ASKS},
    ExecWork.kind: ("a command", "exec_approval"),
    CustomWork.kind: ("a call of a tool", "exec_approval"),
    McpWork.kind: ("a call of a tool", "exec_approval"),
    PatchWork.kind: ("a patch", "patch_approval"),
    MergeWork.kind: ("a merge", "patch_approval"),
    "elicitation": ("a question of an MCP server", "resolve_elicitation"),
}


def answered_by(kind: str) -> tuple[str, str] | None:
    """The name of a request of this kind, and the op that answers it; None for a kind of a newer version."""
    return _ANSWERED_BY.get(kind)
