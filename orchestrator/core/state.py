"""The state of one session: what a fold over its rollout knows.

Theory. A session is idle, or one `Task` holds it. A task alternates between a model
request and the calls that the response asked for; it owes a request whenever none is in
flight and no call is open, and it ends when a response asks for nothing more. A call
moves through the phases of `calls`; everything that a worker needs to carry it on stands
in the call, so that any worker can. A task that is stopped ends when nothing of it runs; if it
has more open calls than one commit can close, it is `ending` until the last one is closed.

Before it: the parts that only some sessions have, and processes. Behind it: the phases of a task, with
what may follow what, and which calls need a portable folder.
"""

from __future__ import annotations

import hashlib
import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import asdict, field, fields
from enum import StrEnum
from typing import assert_never

import orjson

from orchestrator.core.calls import (
    ANSWERABLE,
    AwaitWork,
    Call,
    Calls,
    CallWork,
    ClientToolWork,
    CopyWork,
    CustomWork,
    ExecWork,
    HelperWork,
    IllegalTransition,
    McpWork,
    MergeWork,
    PatchWork,
    Phase,
    PlanWork,
    QuestionWork,
    StdinWork,
    UnknownWork,
    UserInputWork,
    VariantsWork,
)
from orchestrator.core.frozen import record, replace
from orchestrator.core.history import Item, Log
from orchestrator.core.lines import NO_META, MetaLine, given
from orchestrator.core.record_json import LIST, form, reader_of, writer_of
from orchestrator.core.secrets import SecretAnswer
from orchestrator.core.sender import Sender
from orchestrator.core.settings import SENDER, Rules, SessionFacts, TurnSettings
from orchestrator.core.tokens import TokenInfo, Usage
from orchestrator.core.tree import AgentStatus, TreeView
from orchestrator.core.user_turns import Outcome, Purpose, StopReason, TaskKind, UserTurn
from orchestrator.core.workspace import NO_WORKSPACE, Workspace
from orchestrator.protocol import ops
from orchestrator.protocol.events import CodexErrorInfo
from orchestrator.protocol.ids import CallId, ResponseId, SubmissionId
from orchestrator.protocol.wire import JsonMapping, JsonObject, tag_of

# ── extras ────────────────────────────────────────────────────────────────────────────────────────
# The parts of a state that only some sessions have.
#
# A snapshot has them among the fields of `session_meta`, each under a name that is there only if it is
# needed: snapshots of sessions without them stay what they were before there were such parts.


MOST_EARLIER = 10_000
"""Turns before compactions that can be gone back to, the newest."""

MOST_TEXTS = 64
"""Texts by their SHA-256 that are kept in mind; one that fell out is written again when a fact names it."""

HISTORY_OPS = frozenset({tag_of(ops.AddToHistory), tag_of(ops.GetHistoryEntryRequest)})


def lookup_key(client: str | None, id: str) -> str:
    """The name of a look-up in its session: two clients may use one id."""
    return f"{client or ''}|{id}"


@record
class PendingLookUp:
    """An op whose answer lies outside of the log, in its wire form; `who` sent it."""

    id: SubmissionId
    op: JsonMapping
    client: str | None
    who: str

    @property
    def key(self) -> str:
        """Tells it from all others: two clients may use one id."""
        return lookup_key(self.client, self.id)

    @property
    def turn(self) -> str | None:
        """The response that ended the turn to find, for input that goes on from there."""
        return self.op.get("last_response_id")

    @property
    def of_history(self) -> bool:
        return self.op["type"] in HISTORY_OPS


@record
class PinnedPlan:
    """An approved plan, with the length of the conversation that knows of it."""

    plan: JsonMapping
    length: int


def _read_lookups(wire: Sequence[JsonMapping]) -> tuple[PendingLookUp, ...]:
    return tuple(PendingLookUp(**lookup) for lookup in wire)


def _write_lookups(lookups: Sequence[PendingLookUp]) -> list[JsonObject]:
    return [asdict(lookup) for lookup in lookups]


_read_plan, _write_plan = reader_of(PinnedPlan), writer_of(PinnedPlan)


def _read_pinned(wire: JsonMapping | None) -> PinnedPlan | None:
    return None if wire is None else _read_plan(wire)


@record
class SessionExtras:
    """The parts of one session: each is as it says here where the session has none of it."""

    thread_name: str | None = None
    """The session's name for people."""
    lookups: tuple[PendingLookUp, ...] = field(
        default=(), metadata=form(read=_read_lookups, write=_write_lookups)
    )
    """Look-ups that are not answered yet, oldest first."""
    told_folders: tuple[str, ...] = field(default=(), metadata=LIST)
    """The folders whose instructions were told, if there were others than the one that it began in."""
    pinned_plan: PinnedPlan | None = field(default=None, metadata=form(read=_read_pinned, write=_write_plan))
    """The approved plan that the next task of a person is shown."""
    earlier_turns: tuple[str, ...] = field(default=(), metadata=LIST)
    """The response ids of turns that compactions summed up, oldest first: the log still has what was said."""
    behalf: Sender | None = field(default=None, metadata=SENDER)
    """The one who gave the last task that somebody gave."""
    texts: tuple[str, ...] = field(default=(), metadata=LIST)
    """The SHA-256 of the newest texts that the log has for facts that name them."""


NO_EXTRAS = SessionExtras()
read_extras, write_extras = reader_of(SessionExtras), writer_of(SessionExtras)
_NAMES = frozenset(spec.name for spec in fields(SessionExtras))


def without_extras(meta: JsonMapping) -> JsonObject:
    """The fields of a `session_meta` alone; no line of a log brings such parts along."""
    return {name: value for name, value in meta.items() if name not in _NAMES}


# ── processes ─────────────────────────────────────────────────────────────────────────────────────
# The processes of a session: commands that go on behind their call.
#
# A process lives under the claim that started it, on the machine of the claim's holder. So a session with
# a living process keeps its claim, and a new claim has none of the old one's processes. What a process
# said last before it ended stays here until the model has read it.


MOST_PROCESSES = 16
"""Processes of a session that live at once, and ended ones whose last output is kept."""
COMMAND_CHARS = 200
FOLDER_CHARS = 1_000


@record
class Process:
    """A process that lives, as far as the log knows."""

    number: int
    call_id: CallId
    """The call that started it: its events bear this id."""
    turn: SubmissionId
    """The task of that call: its events belong to it, also in later tasks."""
    command: str
    """Its command, cut for people."""
    cwd: str
    epoch: int
    rights: str
    """The identity of the policies that it was started under."""
    tty: bool = False
    sandboxed: bool = True
    stopping: bool = False
    """Whether it is being killed."""


@record
class EndedProcess:
    """A process that ended while the model did not look."""

    number: int
    exit_code: int
    unread: str


@record
class Processes:
    """The processes of a session."""

    taken: int = 0
    """The last number that was taken: none is used twice."""
    living: tuple[Process, ...] = ()
    ended: tuple[EndedProcess, ...] = ()

    @property
    def stopping(self) -> bool:
        """Whether the end of a process is awaited."""
        return any(process.stopping for process in self.living)

    def get(self, number: int) -> Process | None:
        return next((one for one in self.living if one.number == number), None)

    def unread(self, number: int) -> EndedProcess | None:
        return next((one for one in self.ended if one.number == number), None)

    def without(self, number: int) -> Processes:
        return replace(self, living=tuple(one for one in self.living if one.number != number))

    @classmethod
    def of(cls, wire: JsonMapping) -> Processes:
        return cls(
            wire["taken"],
            tuple(Process(**one) for one in wire["living"]),
            tuple(EndedProcess(**one) for one in wire["ended"]),
        )


NO_PROCESSES = Processes()
USUAL_PROCESSES: Mapping[str, Processes] = {"processes": NO_PROCESSES}
"""A field that snapshots of sessions without a process leave out: those of earlier versions have none."""


def rights_of(settings: TurnSettings) -> str:
    """The identity of the policies that a task's commands run under."""
    stated = [settings.approval_policy, settings.sandbox_policy]
    data = orjson.dumps(stated, default=dict, option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(data).hexdigest()[:16]


# ── state ─────────────────────────────────────────────────────────────────────────────────────────


@record
class Elicitation:
    """A question of an MCP server, which waits for it in the middle of a call; undecided while it is open."""

    id: str
    call_id: CallId
    server: str
    timer: int | None = None
    """The generation of the timer that ends the wait."""
    decision: str = ""
    request: str = ""
    """The digest of the request to people; empty where an earlier version has asked."""


@record
class Request:
    """A model request that was begun and has not ended."""

    n: int
    purpose: Purpose
    epoch: int
    sent: int = 0
    """Length of the history that it carries."""


@record
class Response:
    """A completed response that its provider may have kept, and what it covers of the history.

    The first `sent` items went to the provider. Behind them, up to `length`, stand what it
    answered and what was recorded meanwhile.
    """

    id: str
    provider: str
    model: str
    sent: int
    length: int


@record
class Branch:
    """The conversation of a task that works beside the session's own, and ends with the task.

    `items` are what a task's items join and what its requests show. Nothing of a branch is a bookmark, and no
    provider is asked to go on from it.
    """

    settings: TurnSettings
    """The session's settings when the task began: those that the session's conversation was told."""
    items: Log[Item] = field(default_factory=Log)
    opening: tuple[Item, ...] = ()
    """The items that the task brought along: what it is about. A compaction keeps them as they are."""
    kept_user_texts: tuple[str, ...] = ()
    """As `State.kept_user_texts`, for the branch."""
    compacted: bool = False
    """As `State.compacted`, for the branch."""
    last_usage: Usage | None = None
    """The usage of the session's last response before the branch: the one that tells of its window."""
    last_told: Usage | None = None
    """The usage that clients were told of last before the branch; told again behind it."""
    told_folders: tuple[str, ...] = ()
    """The folders whose instructions the branch holds, if it was told of one; else they are the session's."""


@record
class Task:
    """A session's work on one user turn."""

    id: SubmissionId
    kind: TaskKind
    settings: TurnSettings
    client: str | None = None
    """The client that submitted the task; None if none did."""
    request: Request | None = None
    calls: Calls = field(default_factory=Calls)
    stopping: StopReason | None = None
    """The reason of the stop, while the task's work is being stopped."""
    ending: str | None = None
    """Nothing of it runs any more, and it ends with its last open call: the output that those get."""
    stream_retries: int = 0
    http_used: int = 0
    not_before_ms: int = 0
    wait: int = 0
    """Generation of the timer that a long retry delay set; 0 is none."""
    response_complete: bool = False
    """The last response ended as it should; when its calls are done, the turn is over."""
    response_id: ResponseId | None = None
    goes_on: bool = False
    """The last response asked for another request although it made no call."""
    output_schema: JsonMapping | None = None
    """The JSON Schema that the task's last message has to conform to (`final_output_json_schema`)."""
    usage: Usage | None = None
    """The usage of the last response, until the client has been told."""
    last_message: str | None = None
    summary: str | None = None
    failure: str | None = None
    failure_info: CodexErrorInfo = None
    """The error that the task will fail with once its running work is stopped."""
    steered: tuple[Item, ...] = ()
    baselines: JsonMapping = field(default_factory=dict)
    rescue: int = 0
    """The conversation does not fit the model's window, and a compaction is due: its attempt, from 1; each
    shows less of the conversation. 0: none is."""
    rescued: bool = False
    """A turn of the task did not fit before: a task is rescued once."""
    branch: Branch | None = None
    """The conversation of a task that works beside the session's own; None: it is the session's."""
    result: JsonMapping | None = None
    """The decision that ends a planning session: `plan`, null for one that was rejected."""
    pinned: JsonMapping | None = None
    """The approved plan that every request of the task shows."""
    drafted: bool = False
    """Whether helpers drafted variants since a plan was sent back for changes."""
    secrets: tuple[SecretAnswer, ...] = ()
    """The answers of people that its requests show and that the log has not."""
    elicitations: tuple[Elicitation, ...] = ()
    """The questions of MCP servers in the calls that run, decided or not."""

    @property
    def open_elicitations(self) -> tuple[Elicitation, ...]:
        """The questions of MCP servers that nobody has answered; none in a task that is being stopped."""
        return () if self.stopping else tuple(asked for asked in self.elicitations if not asked.decision)

    @property
    def open_calls(self) -> tuple[Call, ...]:
        return tuple(self.calls.open)

    @property
    def awaiting(self) -> tuple[Call, ...]:
        return tuple(call for call in self.calls.begun if call.phase is Phase.AWAITING_APPROVAL)

    @property
    def asking(self) -> tuple[Call, ...]:
        """The calls that wait for words of a person."""
        return tuple(call for call in self.calls.begun if call.phase is Phase.ASKING)

    @property
    def requests(self) -> tuple[Call, ...]:
        """The calls with a request that people can answer: an approval, or questions."""
        return tuple(call for call in self.calls.begun if call.phase in ANSWERABLE)

    @property
    def waiting(self) -> Call | None:
        """The first call that waits for agents: an await is alone, helpers may be several."""
        return next((call for call in self.calls.begun if call.phase is Phase.WAITING), None)

    @property
    def running(self) -> tuple[Call, ...]:
        return tuple(call for call in self.calls.begun if call.phase is Phase.RUNNING)

    def call(self, call_id: str) -> Call | None:
        return self.calls.get(call_id)

    def with_call(self, changed: Call) -> Task:
        return replace(self, calls=self.calls.changed(changed))


@record
class Queued:
    """A user-turn op that waits for the session to be free."""

    id: SubmissionId
    turn: UserTurn
    client: str | None
    by: Sender | None = None


@record
class Answer:
    """A settled request; a second answer is held against it."""

    call_id: CallId
    turn: SubmissionId
    decision: str
    who: str
    digest: str = ""
    """The identity of the response to questions; approvals have none."""
    signed_ms: int = 0
    """When its person signed it; an older signature, or the same, is none for another request of the name."""


USUAL_TASK: Mapping[str, object] = {
    "rescue": 0,
    "rescued": False,
    "drafted": False,
    "secrets": (),
    **dict.fromkeys(("branch", "result", "pinned")),
    "elicitations": (),
}
"""Fields of a task that only some tasks have."""

UNCONFIGURED = TurnSettings(
    cwd="", approval_policy="on-request", sandbox_policy={"mode": "read-only"}, model=""
)


@record
class State:
    """A session as a fold over its rollout knows it."""

    meta: MetaLine = NO_META
    extras: SessionExtras = NO_EXTRAS
    facts: SessionFacts = field(default_factory=SessionFacts)
    settings: TurnSettings = UNCONFIGURED
    native: bool = False
    """False while only a foreign rollout was folded: then its `turn_context` lines are the settings."""
    history: Log[Item] = field(default_factory=Log)
    compacted: bool = False
    """The history was just compacted, and no turn has been answered since."""
    kept_user_texts: tuple[str, ...] = ()
    """User messages that a compaction folded into its summary message."""
    task: Task | None = None
    queue: tuple[Queued, ...] = ()
    tokens: TokenInfo | None = None
    """The tokens used, also by aborted turns: budgets and the window go by them."""
    told: TokenInfo | None = None
    """The accounts in the last `token_count`: only turns whose calls ended count there (as recorded)."""
    rate_limits: JsonMapping | None = None
    bookmarks: Log[tuple[str, int]] = field(default_factory=Log)
    """(response_id, length of the history after that turn), oldest first."""
    last_response: Response | None = None
    """The last completed one, unless the history was cut or rewritten since."""
    approved: frozenset[str] = frozenset()
    approved_signed: frozenset[str] = frozenset()
    """Those of them that somebody has signed."""
    granted_roots: tuple[str, ...] = ()
    answers: tuple[Answer, ...] = ()
    requests: int = 0
    timers: int = 0
    closing: SubmissionId | None = None
    """The shutdown's submission, while the session closes."""
    closed: bool = False
    outcome: Outcome | None = None
    """How the last task ended."""
    tree: TreeView = field(default_factory=TreeView)
    processes: Processes = NO_PROCESSES
    workspace: Workspace = NO_WORKSPACE
    """The folder of a portable session."""

    @property
    def name(self) -> str:
        """The session's name for people; empty until one is set."""
        return self.extras.thread_name or ""

    @property
    def forked_from(self) -> str | None:
        """The session that this root was forked from."""
        return given(self.meta.forked_from_id)

    @property
    def lookups(self) -> tuple[PendingLookUp, ...]:
        """Look-ups that are not answered yet, oldest first."""
        return self.extras.lookups

    @property
    def earlier_turns(self) -> tuple[str, ...]:
        """The response ids of turns before compactions, oldest first: what was said then is in the log."""
        return self.extras.earlier_turns

    @property
    def behalf(self) -> Sender | None:
        """The one for whom the session works: its agents, and theirs, work for the same one."""
        return self.facts.behalf or self.extras.behalf

    @property
    def told_folders(self) -> tuple[str, ...]:
        """The folders whose instructions the conversation holds; at first the one that it began in.

        Of a portable folder that is not told of at birth, it is the one around it, which has none.
        """
        if self.task is not None and self.task.branch is not None and self.task.branch.told_folders:
            return self.task.branch.told_folders
        return self.extras.told_folders or (self._told_at_birth,)

    @property
    def _told_at_birth(self) -> str:
        portable = self.facts.portable
        if portable is not None and portable.untold:
            return posixpath.dirname(portable.path(self.facts.tree_id))
        return str(self.meta.cwd or self.settings.cwd)

    @property
    def looks_for_turn(self) -> bool:
        """Whether the log is being read for the input that waits first."""
        return any(self.lookup(lookup_key(first.client, first.id)) is not None for first in self.queue[:1])

    @property
    def takes_nothing(self) -> bool:
        """Whether nothing begins in this agent any more, whoever asks for it."""
        return bool(self.tree.canceling) or self.tree.pruned

    @property
    def ends_in_pieces(self) -> bool:
        """Whether children are still to be told of their end, or mail and input are to be let go."""
        left = self.tree.canceling and self.tree.inbox
        return bool(self.tree.to_end or left or (self.takes_nothing and self.queue))

    @property
    def instructions_to_come(self) -> bool:
        """Whether the folder has instructions that nobody can read yet: it has no content so far."""
        portable = self.facts.portable
        return portable is not None and portable.untold and self.workspace.snapshot is None

    @property
    def pinned(self) -> JsonMapping | None:
        """The approved plan that the next task of a person is shown; None for none."""
        kept = self.extras.pinned_plan
        return kept.plan if kept else None

    def lookup(self, key: str) -> PendingLookUp | None:
        return next((lookup for lookup in self.lookups if lookup.key == key), None)

    def with_extras(self, **changed: object) -> State:
        """The state with something that only some sessions have."""
        return replace(self, extras=replace(self.extras, **changed))

    @property
    def in_force(self) -> TurnSettings:
        """The settings of the running task; without one, those that the next task begins with."""
        return self.settings if self.task is None else self.task.settings

    @property
    def conversation(self) -> Log[Item]:
        """The conversation that a request shows: the task's own if it has one, else the session's."""
        branch = self.task.branch if self.task is not None else None
        return self.history if branch is None else branch.items

    @property
    def status(self) -> str:
        """`idle`, `running`, `awaiting_approval`, `awaiting_answer`, `waiting`, `retrying`, `paused` or
        `closed`."""
        if self.task is None:
            return "closed" if self.closed else "idle"
        if self.task.ending:
            return "running"
        if self.tree.paused and not self.task.running and self.task.request is None:
            return "paused"
        if self.task.awaiting and not self.task.running and self.task.request is None:
            return "awaiting_approval"
        if self.task.asking and not self.task.running and self.task.request is None:
            return "awaiting_answer"
        if self.task.open_elicitations and self.task.request is None:
            return "awaiting_answer"
        if self.task.waiting is not None:
            return "waiting"
        return "retrying" if self.task.wait else "running"


ANSWERS_KEPT = 128


# ── phases ────────────────────────────────────────────────────────────────────────────────────────
# The phases of a task and the statuses of an agent, and what may follow what.
#
# A call's phase is a field (`core.calls.Phase`, with its table `TRANSITIONS`). A task's is read from
# its fields, which say more than the phase; an agent's status is a fact of its own log. A decision that
# leaves the tables raises: a rule is wrong. `docs/states.md` draws the three.


class TaskPhase(StrEnum):
    """The phase of a task; `None` in the table is a session that no task holds."""

    OWING = "owing"
    """A model request is owed: it is begun as soon as it is due and the tree's budget permits."""
    REQUESTING = "requesting"
    """A model request is in flight; calls that its response has made so far may run beside it."""
    DELAYED = "delayed"
    """The request is tried again when a timer has fired; nobody holds the session meanwhile."""
    CALLING = "calling"
    """No request is in flight, and calls are to be decided, wait or run."""
    TURN_OVER = "turn_over"
    """The response is complete and its calls are done: the task goes on with a request, or is over.

    A person's command is over with its call."""
    STOPPING = "stopping"
    """The work is being stopped; nothing new begins."""
    ENDING = "ending"
    """Nothing runs any more: the open calls are closed piece by piece, and the last piece ends the task."""


def task_phase(task: Task) -> TaskPhase:
    if task.ending:
        return TaskPhase.ENDING
    if task.stopping:
        return TaskPhase.STOPPING
    if task.request is not None:
        return TaskPhase.REQUESTING
    if task.calls.any_open:
        return TaskPhase.CALLING
    if task.response_complete or task.kind == "shell":
        return TaskPhase.TURN_OVER
    return TaskPhase.DELAYED if task.wait else TaskPhase.OWING


TASK: Mapping[TaskPhase | None, frozenset[TaskPhase | None]] = {
    None: frozenset({TaskPhase.OWING, TaskPhase.CALLING}),
    TaskPhase.OWING: frozenset({TaskPhase.REQUESTING, TaskPhase.STOPPING, None}),
    TaskPhase.REQUESTING: frozenset(
        {
            TaskPhase.OWING,
            TaskPhase.DELAYED,
            TaskPhase.CALLING,
            TaskPhase.TURN_OVER,
            TaskPhase.STOPPING,
        }
    ),
    TaskPhase.DELAYED: frozenset({TaskPhase.OWING, TaskPhase.STOPPING, None}),
    TaskPhase.CALLING: frozenset(
        {TaskPhase.OWING, TaskPhase.DELAYED, TaskPhase.TURN_OVER, TaskPhase.STOPPING, None}
    ),
    TaskPhase.TURN_OVER: frozenset({TaskPhase.REQUESTING, TaskPhase.OWING, TaskPhase.STOPPING, None}),
    TaskPhase.STOPPING: frozenset({TaskPhase.ENDING, None}),
    TaskPhase.ENDING: frozenset({None}),
}

AGENT: Mapping[AgentStatus, frozenset[AgentStatus]] = {
    "queued": frozenset({"running", "canceled"}),
    "running": frozenset({"ready", "failed", "canceled"}),
    "ready": frozenset({"running", "idle"}),
    "idle": frozenset({"running"}),
    "failed": frozenset({"running"}),
    "canceled": frozenset(),
}
"""`idle` is the parent's word for an agent whose result was read: its own log goes on saying `ready`."""


def check(before: State, after: State) -> None:
    """Raises `IllegalTransition` if a fact has moved a task or an agent as no table permits."""
    if before.task is not after.task:
        was, now = _phase(before), _phase(after)
        if was is not now and now not in TASK[was]:
            raise IllegalTransition(f"a task is {was or 'over'}, it cannot become {now or 'over'}")
    old, new = before.tree.status, after.tree.status
    if old != new and old is not None and new not in AGENT[old]:
        raise IllegalTransition(f"an agent is {old}, it cannot become {new}")


def _phase(state: State) -> TaskPhase | None:
    return None if state.task is None else task_phase(state.task)


# ── folder use ────────────────────────────────────────────────────────────────────────────────────
# Calls and a portable folder: which of them need it, and which may write to it.


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
