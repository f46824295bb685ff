"""Commands: everything that can happen to a session and to its folder, the inputs of `decide`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Literal, TypeAlias

from orchestrator.core.calls import AskWork, Await, Runnable, WriteStdin
from orchestrator.core.calls.exec import CallKey, Shown
from orchestrator.core.facts import WorkspaceSaved
from orchestrator.core.frozen import record
from orchestrator.core.history import Item
from orchestrator.core.ids import AgentId, SessionId
from orchestrator.core.packs import FileCounts, Pack
from orchestrator.core.sender import Sender
from orchestrator.core.settings import NO_HISTORY, HistoryHead, Rules
from orchestrator.core.state import State
from orchestrator.core.tokens import Price, Served
from orchestrator.core.workspace import Copied, SetupOutcome
from orchestrator.protocol.events import CodexErrorInfo, ExecCommandEnd
from orchestrator.protocol.ids import CallId, SnapshotId, SubmissionId
from orchestrator.protocol.items import ToolOutput
from orchestrator.protocol.ops import (
    DynamicToolResponse,
    ExecApproval,
    Op,
    PatchApproval,
    ResolveAskUserQuestion,
    ResolveElicitation,
    ResolvePlanApproval,
    UserInputAnswer,
)
from orchestrator.protocol.wire import EventModel, JsonMapping

# ── folder commands ───────────────────────────────────────────────────────────────────────────────
# Commands about the folder of a portable session: what its holder found, made and saved.


@record
class FolderMade:
    """The folder is on the holder's machine, at `snapshot` (None: it is empty)."""

    machine: str
    snapshot: SnapshotId | None
    anew: bool = False
    """It was built; else a copy was there that is known to be clean."""
    fetched: Pack | None = None
    """For the first content of a folder that comes from elsewhere: its pack, which the store has."""
    omitted: tuple[str, ...] = ()
    """For the first content: files that were left out, quoted."""
    warning: str = ""
    """For the first content: what people are to know of it."""


@record
class FolderFailed:
    """The folder could not be made on this machine; `reason` says why, and what to do about it."""

    machine: str
    reason: str
    elsewhere: bool = False
    """Another machine may well do it: the claim is given back, a few times."""


@record
class FolderUnsaved:
    """The folder may have changed, and its snapshot is not in the store; `reason` says why."""

    machine: str
    reason: str
    call_ids: tuple[CallId, ...]
    at_ms: int
    snapshot: SnapshotId | None = None
    """The snapshot on this machine; None if none could be taken."""
    blocked: bool = False
    """The disk is full."""
    trying: bool = True
    """Whether the store is tried again under this claim."""


@record
class FolderSettled:
    """The folder is at the last snapshot that the store has: nothing of it is unsaved any more."""


@record
class FolderMerged:
    """A child's changes are in the folder, all of them."""

    files: FileCounts
    names: tuple[str, ...]


@record
class FolderNotMerged:
    """Nothing of a child's changes was written; `reason` says why, and each conflict its path."""

    reason: str
    conflicts: tuple[str, ...] = ()
    partly: bool = False
    """A part may be written all the same: the machine could not take it back."""


@record
class SetupBegins:
    """The worker is ready to run the set-up that is owed."""


@record
class SetupEnded:
    """The set-up has ended, and no process of it is left; `stopped`: it was not let end by itself."""

    outcome: SetupOutcome
    seconds: float = 0.0
    message: str = ""
    """For one that failed: how, with the end of its output."""


@record
class FolderCopied:
    """A folder of one machine was copied for the agents of a response; the store has the copy."""

    call_id: CallId
    copied: Copied
    warning: str = ""
    """A word to people about the copy."""


@record
class FolderNotCopied:
    """No copy of the folder was taken; `reason` says why, and what to do about it."""

    reason: str


FolderCommand = (
    FolderMade | FolderFailed | FolderUnsaved | FolderSettled | FolderCopied | SetupBegins | SetupEnded
)


# ── commands ──────────────────────────────────────────────────────────────────────────────────────


AnswerOp: TypeAlias = (
    ExecApproval
    | PatchApproval
    | ResolveAskUserQuestion
    | UserInputAnswer
    | ResolvePlanApproval
    | ResolveElicitation
    | DynamicToolResponse
)
"""Ops that answer a request to people, or to a client."""


@record
class Moment:
    """When and under which claim a command is decided, and by whose rules."""

    at_ms: int
    """Redis's clock, Unix milliseconds."""
    epoch: int
    seq: int
    """The last entry of the log."""
    rules: Rules = field(default_factory=Rules)
    jitter: float = 1.0
    """Scales a retry's delay, 0.9..1.1."""
    machine: str = ""
    """The name of the worker's machine, which requests to people state; empty: not known."""


@record
class PendingBelow:
    """A request that an agent of the tree waits for an answer to."""

    agent_id: AgentId
    session: SessionId
    call_id: CallId
    turn: SubmissionId
    sandboxed: bool | None = None
    """How the call runs if it is approved; None: it is no command, or an earlier version asked."""
    kind: str = ""
    """The kind of the call's work, which says what op answers it; empty: it was not said."""
    secret: bool = False
    """Whether it asks for a secret."""


@record
class DecidedBelow:
    """A request of an agent of the tree that was settled, by whom, and how."""

    agent_id: AgentId
    call_id: CallId
    turn: SubmissionId
    decision: str
    who: str
    digest: str = ""
    """The identity of the response to questions; approvals have none."""


@record
class Signature:
    """A person's signature under an answer, as the worker has checked it.

    It is one for the request `call_id` of the turn `turn`; `fault` says why it is none, for a person. One
    that is not `known` names no key of the worker's settings, and was checked by nobody.
    """

    answered_ms: int
    sig: str = ""
    key: str = ""
    call_id: str = ""
    turn: str = ""
    fault: str = ""
    known: bool = True
    request: str = ""
    """The digest of the request that is signed with it; empty for one of an earlier version's."""


def signed_answer(
    session: str,
    turn: object,
    call_id: object,
    decision: object,
    answered_ms: object,
    shown: object,
    *,
    request: object = "",
    response: object = "",
) -> str:
    """The text under a person's signature: `dendro-answer/2`, or without a `request` `dendro-answer/1`.

    `shown` is the hexadecimal SHA-256 of what was shown, `request` that of the request (`request_digest`),
    `response` the digest of an answer in words as the log has it; docs/protocol/bundle.md has the form.
    """
    if not request:
        parts: tuple[object, ...] = ("dendro-answer/1", session, turn, call_id, decision, answered_ms, shown)
    else:
        about = ("dendro-answer/2", session, turn, call_id, request)
        parts = (*about, decision, response, answered_ms, shown)
    return "\n".join(map(str, (*parts, "")))


@record
class Submitted:
    """An op from the SQ."""

    id: SubmissionId
    op: Op
    client: str = ""
    who: str = ""
    """The sender of the op, for the record of an answer."""
    by: Sender | None = None
    """The same as the door knew them; None from an older door, or from who wrote into the queue directly."""
    seq: int = 0
    """The session's `seq` when the op was submitted."""
    below: tuple[PendingBelow, ...] = ()
    """For an answer: the requests that were pending then in the tree below this session."""
    decided: tuple[DecidedBelow, ...] = ()
    """For an answer that can mean none of `below`: the settled requests of its name, oldest first."""
    agents: tuple[Target, ...] = ()
    """For an op about an agent: that agent, then those below it that are at work."""
    items: tuple[Item, ...] | None = None
    """The input items of the op with what the worker has read of files put in; None if none names a file."""
    history: HistoryHead = NO_HISTORY
    """For an op that is answered by `session_configured`: the sender's history of prompts."""
    secret: str = ""
    """For an answer: the name under which its texts stand beside the log."""
    in_clear: bool = False
    """The answer's texts came in the submission itself: an older client has sent it."""
    signature: Signature | None = None
    """For an answer to a request of this session's; None where it has none."""


@record
class BeginRequest:
    """The worker is ready to send the model request that is owed."""


@record
class RequestSent:
    """Request `n` was sent: its digests, and the texts that it names by theirs."""

    n: int
    sent: str
    instructions: str
    tools: str
    texts: Mapping[str, str] = field(default_factory=dict)


@record
class SearchBegun:
    """The provider has begun to search the web for request `n`."""

    n: int
    item_id: str


@record
class ItemCompleted:
    """An output item of request `n` is complete, while its stream goes on.

    `item_id` names it in events: the log keeps an item without the id that its provider gave it.
    """

    n: int
    item: JsonMapping
    item_id: str = ""
    begun: bool = False
    """Whether it was told before that the item had begun."""


@record
class ResponseCompleted:
    """Request `n` ended as it should."""

    n: int
    response_id: str
    usage: JsonMapping | None = None
    rate_limits: JsonMapping | None = None
    end_turn: bool | None = None
    served: Served | None = None
    price: Price | None = None


@record
class ResponseBroken:
    """Request `n` ended without a completed response.

    `fatal` ends the task; `stream` counts against the stream retries; `limited` is a
    provider that asked to come back after `delay_ms`, which counts as an HTTP attempt.
    `unsent` never left: the fleet's own limit for the provider has room after `delay_ms`.
    """

    n: int
    kind: Literal["fatal", "stream", "limited", "unsent"]
    message: str
    delay_ms: int | None = None
    http_used: int = 0
    codex_error_info: CodexErrorInfo = None
    served: bool = True
    """Whether the provider may have worked on the request; False costs the tree's budgets a request and no
    token."""
    usage: JsonMapping | None = None
    """Tokens that the response used before it failed, if its server told them."""
    price: Price | None = None


@record
class Immediate:
    """A call that needs nothing to run: its output, and the events that go before it."""

    output: ToolOutput
    events: tuple[EventModel, ...] = ()


@record
class Target:
    """An agent as the registry told of it when the call was assessed."""

    agent_id: AgentId
    session: SessionId
    path: str
    status: str
    record: JsonMapping = field(default_factory=dict)
    pending: tuple[int, int] = (0, 0)
    marked: bool = False
    """The agent was cancelled, whether it has read the cancel or not."""

    @property
    def finished(self) -> bool:
        return self.status not in {"queued", "running", ""}

    @property
    def at_work(self) -> bool:
        """Whether the agent works, or may: a message that it has not read may start it again."""
        return not self.finished or (self.status != "canceled" and any(self.pending))


@record
class ChildSpec:
    """The values that a new agent is made from; its number and session id are reserved already."""

    agent_id: AgentId
    session: SessionId
    rollout_path: str | None
    version: str
    role: str
    """The text that tells an agent its part in the tree."""
    prompt: str = ""
    label: str | None = None
    model: str | None = None
    sandbox_mode: str | None = None
    workspace: Literal["own", "shared"] | None = None
    """The folder that it works in: a copy of its own, or its parent's; None: as the tree has it."""


@record
class Spawn:
    """An agent that begins with a blank conversation."""

    spec: ChildSpec


@record
class Fork:
    """An agent that begins with this conversation."""

    spec: ChildSpec
    seq: int
    """The parent's last entry at the fork; `head` is the chain's head there."""
    head: str


@record
class Helper:
    """A read-only agent whose answer is the call's output (`spawn_subagent`)."""

    spec: ChildSpec
    description: str


@record
class SendMessage:
    target: Target
    prompt: str = ""
    label: str | None = None
    interrupt: bool = False


@record
class SetWatchdog:
    target: Target
    interval_ms: int
    message: str
    cancel: bool = False


@record
class CancelAgent:
    """`below` are the descendants of the target that are at work."""

    target: Target
    below: tuple[Target, ...] = ()
    reason: str = ""


@record
class Prune:
    """Agents to take off the list; `echo` is the request, `unknown` what it named in vain."""

    targets: tuple[Target, ...]
    echo: JsonMapping
    unknown: tuple[int, ...] = ()
    completed_only: bool = True


@record
class Variants:
    """Helpers that draft variants of a plan, each from its own point of view (`propose_plan_variants`)."""

    specs: tuple[ChildSpec, ...]
    slants: tuple[str, ...]


AgentAssessment = Spawn | Fork | Helper | Variants | SendMessage | Await | SetWatchdog | CancelAgent | Prune
Assessment = Runnable | WriteStdin | Immediate | AskWork | AgentAssessment


@record
class CallAssessed:
    """A call whose turn has come was assessed: this is what it asks for."""

    call_id: str
    assessment: Assessment


@record
class ProcessEnd:
    """The end of a process; `unread` is what it said since the model looked last, cut for the model."""

    number: int
    end: ExecCommandEnd
    unread: str = ""


@record
class CallFinished:
    """A running call has ended, and no process of it is left but one that it `keeps`."""

    call_id: str
    output: ToolOutput
    events: tuple[EventModel, ...] = ()
    sandbox_denied: bool = False
    """The command failed, and it looks as if the sandbox was why."""
    planted: tuple[str, ...] = ()
    """Of such a command: its programs that confined commands may have written, as they are now."""
    applied: bool = False
    """The patch was written."""
    keeps: bool = False
    """The command goes on as a process of the session."""
    over: ProcessEnd | None = None
    """The end of the process that the call has looked at."""


@record
class ProcessFinished:
    """A process of the session has ended, with everything that it had started."""

    over: ProcessEnd
    lost: str = ""
    """Why the worker has ended it, as the model is told; empty if it ended by itself or by a decision."""


@record
class Elicited:
    """An MCP server asks a person something in the middle of a call; `id` is the question's own."""

    call_id: str
    id: str
    server: str
    message: str


@record
class ElicitationDropped:
    """The server does not wait for the decision on its question any more."""

    id: str


@record
class Stopped:
    """Everything that ran for the stopping task is proved to have ended."""

    elapsed_s: Mapping[str, float] = field(default_factory=dict)
    """Seconds that each stopped call had been running."""


@record
class CloseCalls:
    """The task is ending: the next of its open calls are closed, as many as a commit carries."""


@record
class EndChildren:
    """The next of the children that are to end are told, as many as a commit carries."""


@record
class TookOver:
    """A new claim found work that its predecessor had begun.

    `judgements`: for each running patch what its files say: `none`, `all`, `in_doubt`. `shown`: what lost
    commands and processes had shown, by their turns and calls; one that had shown nothing is left out.
    """

    judgements: Mapping[str, str] = field(default_factory=dict)
    folder: SnapshotId | None = None
    """For a portable session with unsaved changes: their snapshot, if this machine can make it."""
    abandoned: str = ""
    """The person who gave these changes up; empty if nobody has."""
    shown: Mapping[CallKey, Shown] = field(default_factory=dict)


@record
class TaskRefused:
    """The task cannot be worked on where it was claimed; `message` says why, and what to do about it."""

    message: str


@record
class LookedUp:
    """A look-up has ended: with a message for its client, with nothing to say, or with an error."""

    key: str
    message: EventModel | None = None
    error: str | None = None
    past: State | None = None
    """The state at the end of the turn that input goes on from."""


@record
class InstructionsRead:
    """The instructions of the task's folder were read; None if it has none that the model does not know."""

    folder: str
    text: str | None = None
    warnings: tuple[str, ...] = ()
    """Files that were left out, in words for people."""


@record
class FileNotWritten:
    """The rollout's file was asked for, and could not be brought up to date; `reason` says why."""

    reason: str
    by: str
    """The submission that asked."""


@record
class TimerFired:
    """A timer's time has come; a stale generation is ignored."""

    id: str
    generation: int
    left: bool = False
    """For a look after cancelled agents: whether any below has not ended yet, by the registry."""
    parent: SessionId | None = None
    """For a watchdog on an agent that is below a child: the session that made it, by the registry."""
    over: bool = False
    """For a watchdog: whether its agent, or one above that, was cancelled or pruned, by the registry."""


@record
class MailArrived:
    """A message from another session of the tree (or from this one)."""

    kind: str
    payload: JsonMapping
    key: str
    n: int
    """The message's number in the session's queue."""
    interrupt: bool = False
    signature: Signature | None = None
    """For an answer that the root has sent on."""


@record
class CommitRefused:
    """The commit of `command` alone was refused: another decision has to take its place."""

    command: Command
    reason: str
    detail: str = ""
    budget: JsonMapping = field(default_factory=dict)
    """`kind`, `limit` and `used` of the budget that refused."""


Command = (
    Submitted
    | BeginRequest
    | RequestSent
    | SearchBegun
    | ItemCompleted
    | ResponseCompleted
    | ResponseBroken
    | CallAssessed
    | CallFinished
    | ProcessFinished
    | Elicited
    | ElicitationDropped
    | Stopped
    | CloseCalls
    | EndChildren
    | TookOver
    | TaskRefused
    | LookedUp
    | InstructionsRead
    | FileNotWritten
    | TimerFired
    | MailArrived
    | FolderCommand
    | WorkspaceSaved
    | CommitRefused
)
