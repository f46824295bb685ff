"""Calls: the kinds of them, with what each asks for, its work, its events and its verdict; and their phases.

    exec         a command, words to a process, or a look at it
    patch        a patch; a merge of what an agent has made of its folder
    tool         a tool of an MCP server, or of the program's own
    agents       a wait for agents, an agent whose answer is the output, helpers that draft variants of a
                 plan, a copy of the session's folder for an agent that works in one
    ask          questions to a person, and plans; a tool that the client brings along, whose answer is waited
                 for as a person's is
    approval_policy  whether a call runs, is asked about, or is refused

The record of the work stands in the log, in the state and in snapshots: `work_of` and `spec_of` are its two
ways. A new kind is a record, a case of `CallWork`, and a reader and a writer below.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import field
from enum import StrEnum
from hashlib import sha256
from itertools import islice
from typing import ClassVar, Final, Literal, TypeAlias, get_args

import orjson

from orchestrator.core.calls.agents import Await, AwaitWork, CopyWork, HelperWork, VariantsWork
from orchestrator.core.calls.approval_policy import Ask, Refuse, Remembered, Run, Runs, Verdict, short_keys
from orchestrator.core.calls.ask import ClientToolWork, DoesNotAnswer, PlanWork, QuestionWork, UserInputWork
from orchestrator.core.calls.exec import NOTHING_SHOWN, Exec, ExecWork, Shown, StdinWork, WriteStdin
from orchestrator.core.calls.patch import ApplyPatch, Merge, MergeWork, PatchWork
from orchestrator.core.frozen import record, replace
from orchestrator.core.history import Item, call_output, user_message
from orchestrator.core.ids import AgentId
from orchestrator.core.record_json import TEXT, TEXTS, reader_of, writer_of
from orchestrator.core.settings import TurnSettings
from orchestrator.protocol.events import ExecApprovalRequest, McpToolCallBegin, McpToolCallEnd, Reach
from orchestrator.protocol.ids import CallId, SubmissionId
from orchestrator.protocol.items import CustomToolCallOutput, FunctionCallOutput, Message, ToolOutput
from orchestrator.protocol.mcp import CUSTOM_SERVER, CallToolResult, McpInvocation, text_result
from orchestrator.protocol.scalars import Duration, LargeText
from orchestrator.protocol.wire import EventModel, JsonObject, JsonValue

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


# ── tool ──────────────────────────────────────────────────────────────────────────────────────────
# Calls of tools that events show as calls of MCP servers: of custom tools, and of servers themselves.
#
# A tool of the program's own is shown as one of a server named `custom`; so no server may bear that name.


class Invoked(Runs):
    """The events of such a call, and what an approval for the session remembers of it."""

    __slots__ = ()
    rejected: ClassVar[str] = "tool call rejected by user"
    sandboxed: ClassVar[bool] = False
    keys: tuple[LargeText, ...]

    @property
    def invocation(self) -> McpInvocation:
        """The call as events show it."""
        raise NotImplementedError

    def begin(self, call_id: CallId, *, auto_approved: bool) -> McpToolCallBegin:
        return McpToolCallBegin(call_id=call_id, invocation=self.invocation)

    def end(self, call_id: CallId, result: CallToolResult | str, after_s: float) -> McpToolCallEnd:
        """The end of the call: what the tool returned, or why it returned nothing."""
        return McpToolCallEnd(
            call_id=call_id, invocation=self.invocation, duration=Duration.cut(after_s), result=result
        )

    def broken_off(self, call_id: CallId, text: str, after_s: float = 0.0) -> McpToolCallEnd:
        """The end of a call of which only `text` is known: never started, killed, or in doubt."""
        return self.end(call_id, text, after_s)

    def remembered(self, settings: TurnSettings) -> Remembered:
        return Remembered(short_keys(self.keys))

    def confined(self, asked: Ask) -> bool:
        return False


# ── mcp ───────────────────────────────────────────────────────────────────────────────────────────
# Calls of the tools of MCP servers.
#
# A server is trusted by being configured: only the policy `untrusted` asks about its tools. What the
# server does is beyond the sandbox. A call whose worker was lost is in doubt: a server may say that a
# tool only reads, and lie.


@record
class Mcp:
    """A call of a server's tool."""

    server: str
    tool: str
    arguments: JsonObject | None
    """JSON of at most 64 KiB."""
    cwd: str
    read_only: bool = False
    """Whether the server says that the tool only reads, and the person believes the server."""

    @property
    def key(self) -> str:
        """The key under which `approved_for_session` remembers the call: the tool and all its arguments."""
        data = orjson.dumps(self.arguments, option=orjson.OPT_SORT_KEYS)
        return f"mcp:{self.server}:{self.tool}:{sha256(data).hexdigest()}"

    def judged(self, settings: TurnSettings, approved: frozenset[str]) -> Verdict:
        """The verdict on the call: only the policy `untrusted` asks about it."""
        if settings.approval_policy != "untrusted" or self.read_only or self.key in approved:
            return Run(sandboxed=False)
        return Ask(None, sandboxed=False)

    def work(self, sandboxed: bool) -> McpWork:
        """The call as it is to run; nothing confines it."""
        return McpWork((self.key,), self.server, self.tool, self.arguments, self.cwd)


@record
class McpWork(Invoked):
    """A call of a server's tool that waits for an approval, or runs."""

    kind: ClassVar[Literal["mcp"]] = "mcp"
    keys: tuple[LargeText, ...] = field(metadata=TEXTS)
    server: str
    tool: str
    arguments: JsonObject | None
    cwd: LargeText = field(metadata=TEXT)
    timer: int | None = None
    """The generation of the timer of its approval."""

    def asked(self, timer: int) -> McpWork:
        return replace(self, timer=timer)

    def request(self, call_id: CallId, reach: Reach) -> ExecApprovalRequest:
        shown = orjson.dumps(self.arguments, default=dict).decode()
        return ExecApprovalRequest(
            command=("mcp", self.server, self.tool, shown),
            cwd=self.cwd,
            call_id=call_id,
            reason=reach.told,
            reach=reach,
        )

    @property
    def invocation(self) -> McpInvocation:
        return McpInvocation(server=self.server, tool=self.tool, arguments=self.arguments)

    @property
    def activity(self) -> str:
        """The line that a helper's asker sees while the tool works."""
        return f"uses {self.tool} of {self.server}"


# ── custom ────────────────────────────────────────────────────────────────────────────────────────
# Custom tools: calls of a tool that the program around Dendro brings along, and only it knows.
#
# Events show such a call as one of an MCP server named `custom`; a request for approval shows the tool's
# name and one line of its own as a command. The tool runs in the worker's process: no sandbox confines
# it.


@record
class Custom:
    """A call of a custom tool, as the tool has assessed it."""

    tool: str
    payload: JsonObject
    """The input of the tool's `run`: JSON of at most 64 KiB."""
    summary: str
    """The purpose of the call, in one line."""
    cwd: str
    ask: str | None = None
    """The reason why a person has to approve it; None: it runs at once."""
    repeatable: bool = False
    """Whether it may run again if its worker is lost meanwhile."""

    @property
    def key(self) -> str:
        """The key under which `approved_for_session` remembers the call: the tool and its whole payload."""
        data = orjson.dumps(self.payload, option=orjson.OPT_SORT_KEYS)
        return f"custom:{self.tool}:{sha256(data).hexdigest()}"

    def judged(self, settings: TurnSettings, approved: frozenset[str]) -> Verdict:
        """The verdict on the call: the tool says whether to ask, and nobody is asked under `never`."""
        if self.ask is None or self.key in approved:
            return Run(sandboxed=False)
        if settings.approval_policy == "never":
            return Refuse(f"{self.ask}: the approval policy is never, so nobody is asked: not run")
        return Ask(self.ask, sandboxed=False)

    def work(self, sandboxed: bool) -> CustomWork:
        """The call as it is to run; nothing confines it."""
        return CustomWork(
            (self.key,), self.tool, self.payload, self.summary, self.cwd, repeatable=self.repeatable
        )


@record
class CustomWork(Invoked):
    """A call of a custom tool that waits for an approval, or runs."""

    kind: ClassVar[Literal["custom"]] = "custom"
    keys: tuple[LargeText, ...] = field(metadata=TEXTS)
    tool: str
    payload: JsonObject
    summary: LargeText = field(metadata=TEXT)
    cwd: LargeText = field(metadata=TEXT)
    repeatable: bool = False
    timer: int | None = None
    """The generation of the timer of its approval."""

    def asked(self, timer: int) -> CustomWork:
        return replace(self, timer=timer)

    def request(self, call_id: CallId, reach: Reach) -> ExecApprovalRequest:
        return ExecApprovalRequest(
            command=(self.tool, self.summary), cwd=self.cwd, call_id=call_id, reason=reach.told, reach=reach
        )

    @property
    def invocation(self) -> McpInvocation:
        return McpInvocation(server=CUSTOM_SERVER, tool=self.tool, arguments=self.payload)

    def found_done(self, call_id: CallId) -> McpToolCallEnd:
        """The end of a call whose worker was lost, but of which its tool says that all of it was done."""
        text = self.summary if isinstance(self.summary, str) else ""
        return self.end(call_id, text_result(text), 0.0)

    @property
    def activity(self) -> str:
        """The line that a helper's asker sees while the tool runs."""
        return f"uses {self.tool}"


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
KnownWork: TypeAlias = RunnableWork | StdinWork | CopyWork | Waiting | AskWork
CallWork: TypeAlias = KnownWork | UnknownWork

_KINDS: tuple[type[KnownWork], ...] = get_args(KnownWork)
_READERS: Mapping[str, Callable[[Mapping[str, JsonValue]], KnownWork]] = {
    cls.kind: reader_of(cls) for cls in _KINDS
}
_WRITERS: Mapping[type[KnownWork], Callable[[KnownWork], JsonObject]] = {
    cls: writer_of(cls, cls.kind) for cls in _KINDS
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
    if isinstance(work, UnknownWork):
        return dict(work.spec)
    return _WRITERS[type(work)](work)


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


# ── turn calls ────────────────────────────────────────────────────────────────────────────────────
# The calls of one turn: their phases, and what may follow what.
#
#           ┌────────────── rerun wider ───────────────┐
#           ▼                                          │
#     PROPOSED ──► AWAITING_APPROVAL ──► RUNNING(epoch) ──► DONE
#         │  ▲             │                 │               ▲
#         │  └─── no trace left by a lost worker             │
#         ├──────────────── refused, denied, stopped ────────┤
#         ├──► WAITING (for agents, holding nothing) ────────┤
#         └──► ASKING (a person, holding nothing) ───────────┘
#
# A transition that is not in `TRANSITIONS` raises `IllegalTransition` and leaves the calls as they were:
# they are values.


class Phase(StrEnum):
    """The phase of a tool call."""

    PROPOSED = "proposed"
    AWAITING_APPROVAL = "awaiting_approval"
    WAITING = "waiting"
    ASKING = "asking"
    RUNNING = "running"
    DONE = "done"


TRANSITIONS: Mapping[Phase, frozenset[Phase]] = {
    Phase.PROPOSED: frozenset(
        {Phase.AWAITING_APPROVAL, Phase.WAITING, Phase.ASKING, Phase.RUNNING, Phase.DONE}
    ),
    Phase.AWAITING_APPROVAL: frozenset({Phase.RUNNING, Phase.DONE}),
    Phase.WAITING: frozenset({Phase.DONE}),
    Phase.ASKING: frozenset({Phase.DONE}),
    Phase.RUNNING: frozenset({Phase.AWAITING_APPROVAL, Phase.PROPOSED, Phase.DONE}),
    Phase.DONE: frozenset(),
}


class IllegalTransition(ValueError):
    """A call was asked to move to a phase that its own does not lead to."""


@record
class Call:
    """A tool call of the current turn."""

    call_id: CallId
    name: str
    item: Item
    phase: Phase = Phase.PROPOSED
    epoch: int = 0
    """The claim under which it runs."""
    work: CallWork | None = None
    """The work of the call, as assessed: written before it starts, read by the worker that starts or judges
    it."""
    asked_seq: int = 0
    """The entry that opened its approval, or asked: an answer by turn id counts only after it."""
    request: str = ""
    """The digest of the request to people; empty where an earlier version has asked."""

    def moved(self, phase: Phase, changes: Mapping[str, object]) -> Call:
        if phase not in TRANSITIONS[self.phase]:
            raise IllegalTransition(f"call {self.call_id} is {self.phase}, it cannot become {phase}")
        return replace(self, phase=phase, **changes)

    @property
    def kind(self) -> str:
        """The kind of its work; empty without work, or for work of a kind that this version does not know."""
        return "" if self.work is None or isinstance(self.work, UnknownWork) else self.work.kind

    @property
    def is_question(self) -> bool:
        """Whether words of a person or of a client are its output."""
        return isinstance(self.work, AskWork)

    @property
    def is_command(self) -> bool:
        return isinstance(self.work, ExecWork)

    @property
    def sandboxed(self) -> bool | None:
        """Whether its work is confined; None for work that does not run."""
        return self.work.sandboxed if isinstance(self.work, RunnableWork) else None

    @property
    def rejected(self) -> str:
        """Its output when a person denies it."""
        return self.work.rejected if isinstance(self.work, RunnableWork) else REJECTED

    @property
    def repeatable(self) -> bool:
        """Whether it may run again, whatever it has done."""
        return isinstance(self.work, CopyWork) or (isinstance(self.work, CustomWork) and self.work.repeatable)

    @property
    def writes_files(self) -> bool:
        """Whether all that it does is to write files of the folder."""
        return isinstance(self.work, PatchWork | MergeWork)

    @property
    def diff_baselines(self) -> JsonObject | None:
        """The texts that the task's diff counts from once it is done; None for other work than a patch."""
        return self.work.baselines if isinstance(self.work, PatchWork) else None

    @property
    def helpers(self) -> list[tuple[CallId, HelperWork]]:
        """The helpers that it waits for, each under the id by which events tell of it."""
        if self.phase is not Phase.WAITING:
            return []
        match self.work:
            case HelperWork():
                return [(self.call_id, self.work)]
            case VariantsWork():
                return list(self.work.helpers(self.call_id))
            case _:
                return []

    def unapproved(self, output: ToolOutput) -> ToolOutput:
        """Its output if it ends in this phase: a command that waits to run wider has run in the sandbox."""
        if self.phase is not Phase.AWAITING_APPROVAL or not isinstance(self.work, ExecWork):
            return output
        return self.work.without_second(output) if isinstance(output, str) else output

    def unconfined(self, output: ToolOutput, planted: tuple[str, ...]) -> ExecWork | None:
        """Its command without the sandbox that it ran in, which gave `output`; None for other work."""
        if not isinstance(self.work, ExecWork) or not self.work.sandboxed:
            return None
        return self.work.unconfined(output if isinstance(output, str) else "", planted)

    def allowing(self, prefix: tuple[str, ...], settings: TurnSettings) -> Remembered:
        """The memory of an approval of a prefix; raises `DoesNotAnswer` for one that does not fit."""
        if not isinstance(self.work, ExecWork):
            raise DoesNotAnswer("it is no command, and has no prefix that could be allowed")
        return self.work.allowing(prefix, settings)

    def broken_off(
        self, text: str, after_s: float = 0.0, shown: Shown = NOTHING_SHOWN
    ) -> tuple[EventModel, ...]:
        """The event of its end when nobody saw that; `shown` is what a command had shown to clients."""
        match self.work:
            case ExecWork():
                return (self.work.broken_off(self.call_id, text, after_s, shown),)
            case PatchWork() | CustomWork() | McpWork() | MergeWork():
                return (self.work.broken_off(self.call_id, text, after_s),)
            case _:
                return ()

    def found_done(self) -> FoundDone | None:
        """Its end when it is shown to be done whole; None for work of which nothing can show it."""
        work = self.work
        if not isinstance(work, PatchWork | CustomWork):
            return None
        return FoundDone(work.summary, work.found_done(self.call_id), self.diff_baselines)

    def drafted(self, agent_id: AgentId, variant: JsonObject) -> Call:
        """The call with what a helper has drafted for it; another call stays as it is."""
        if not isinstance(self.work, VariantsWork):
            return self
        results = {**self.work.results, str(agent_id): variant}
        return replace(self, work=replace(self.work, results=results))


@record
class FoundDone:
    """The end of a call that a lost worker had done; the task's diff counts from its `baselines`."""

    output: ToolOutput
    event: EventModel
    baselines: JsonObject | None


REJECTED = "call rejected by user"
ANSWERABLE = frozenset({Phase.AWAITING_APPROVAL, Phase.ASKING})
"""The phases of a call that people are asked about."""
MOST_EARLIER_CALLS = 4_096
"""Calls of earlier responses that are remembered; behind so many the response's own are."""
_BEGUN = frozenset({Phase.AWAITING_APPROVAL, Phase.WAITING, Phase.ASKING, Phase.RUNNING})


class Calls:
    """The calls of one turn, in the order of the response; a change leaves every earlier version valid.

    A response may ask for a thousand, and each of them is asked for many times: which calls are open,
    and which have begun, is known without a look at the others.
    """

    __slots__ = ("_all", "_begun", "_done", "_earlier", "_places")

    _all: tuple[Call, ...]
    _places: Mapping[str, int]
    """The place of each call by its id."""
    _begun: tuple[int, ...]
    """The places of the calls that are neither to be assessed nor done."""
    _done: int
    """The number of calls at the beginning that are done; the next one is not."""
    _earlier: frozenset[str]

    def __init__(self, calls: Iterable[Call] = (), earlier: frozenset[str] = frozenset()) -> None:
        """`earlier`: ids of the turn's earlier responses. They are in no snapshot."""
        self._all = tuple(calls)
        self._earlier = earlier
        self._places = {call.call_id: place for place, call in enumerate(self._all)}
        self._begun = tuple(place for place, call in enumerate(self._all) if call.phase in _BEGUN)
        self._done = self._done_from(0)

    def _done_from(self, done: int) -> int:
        while done < len(self._all) and self._all[done].phase is Phase.DONE:
            done += 1
        return done

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Call]:
        return iter(self._all)

    def __contains__(self, call_id: object) -> bool:
        return call_id in self._places

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Calls) and self._all == other._all

    def __hash__(self) -> int:
        raise TypeError("calls hold JSON, which has no hash")

    @property
    def any_open(self) -> bool:
        """Whether a call is not done."""
        return self._done < len(self._all)

    @property
    def open(self) -> Iterator[Call]:
        """The calls that are not done."""
        return (call for call in islice(self._all, self._done, None) if call.phase is not Phase.DONE)

    @property
    def begun(self) -> tuple[Call, ...]:
        """The calls that run, or wait for people or for agents."""
        # Mostly there are none, and this is asked of every entry.
        return tuple([self._all[place] for place in self._begun]) if self._begun else ()

    @property
    def used(self) -> frozenset[str]:
        """The ids of these calls, and of the turn's earlier ones: at most `MOST_EARLIER_CALLS`."""
        used = self._earlier.union(self._places)
        return used if len(used) <= MOST_EARLIER_CALLS else frozenset(self._places)

    def has_used(self, call_id: str) -> bool:
        """Whether a call of the turn has the id, one of an earlier response too."""
        return call_id in self._places or call_id in self._earlier

    def get(self, call_id: str) -> Call | None:
        place = self._places.get(call_id)
        return None if place is None else self._all[place]

    def append(self, call: Call) -> Calls:
        """The calls with one more, which the model has just asked for."""
        places = {call.call_id: len(self._all), **self._places}
        return self._made((*self._all, call), places, self._begun)

    def changed(self, call: Call) -> Calls:
        """The calls with `call` in the place of the one of its id."""
        place = self._places.get(call.call_id)
        if place is None:
            return self
        begun = [other for other in self._begun if other != place]
        if call.phase in _BEGUN:
            begun = sorted((*begun, place))
        everything = (*self._all[:place], call, *self._all[place + 1 :])
        return self._made(everything, self._places, tuple(begun))

    def closed(self, call_ids: Collection[str]) -> Calls:
        """The calls with these done."""
        moved = (call.moved(Phase.DONE, {}) if call.call_id in call_ids else call for call in self._all)
        return Calls(moved, self._earlier)

    def _made(self, calls: tuple[Call, ...], places: Mapping[str, int], begun: tuple[int, ...]) -> Calls:
        made = object.__new__(Calls)
        made._all, made._places, made._begun, made._earlier = calls, places, begun, self._earlier
        # What is done stays so: the count goes on from here.
        made._done = made._done_from(self._done)
        return made


# ── user shell ────────────────────────────────────────────────────────────────────────────────────
# Commands that a person runs: a task of one call, which no model has asked for.
#
# Its result joins the conversation as a message, so that the model knows of it in the next turn.


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
