"""The state of one session: what a fold over its rollout knows.

Theory. A session is idle, or one `Task` holds it. A task alternates between a model
request and the calls that the response asked for; it owes a request whenever none is in
flight and no call is open, and it ends when a response asks for nothing more. A call
moves through the phases of `turn_calls`; everything that a worker needs to carry it on stands
in the call, so that any worker can. A task that is stopped ends when nothing of it runs; if it
has more open calls than one commit can close, it is `ending` until the last one is closed.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import field

from orchestrator.core.extras import NO_EXTRAS, PendingLookUp, SessionExtras
from orchestrator.core.frozen import record, replace
from orchestrator.core.history import Item, Log
from orchestrator.core.lines import NO_META, MetaLine, given
from orchestrator.core.processes import NO_PROCESSES, Processes
from orchestrator.core.secrets import SecretAnswer
from orchestrator.core.settings import SessionFacts, TurnSettings
from orchestrator.core.task_kinds import Outcome, Purpose, StopReason, TaskKind
from orchestrator.core.tokens import TokenInfo, Usage
from orchestrator.core.tree import TreeView
from orchestrator.core.turn_calls import ANSWERABLE, Call, Calls, Phase
from orchestrator.core.user_turns import UserTurn
from orchestrator.core.workspace import NO_WORKSPACE, Workspace
from orchestrator.protocol.faults import CodexErrorInfo
from orchestrator.protocol.ids import CallId, ResponseId, SubmissionId
from orchestrator.protocol.wire import JsonMapping


@record
class Elicitation:
    """A question of an MCP server, which waits for it in the middle of a call; undecided while it is open."""

    id: str
    call_id: CallId
    server: str
    timer: int | None = None
    """The generation of the timer that ends the wait."""
    decision: str = ""


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


@record
class Answer:
    """A settled request; a second answer is held against it."""

    call_id: CallId
    turn: SubmissionId
    decision: str
    who: str
    digest: str = ""
    """The identity of the response to questions; approvals have none."""


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
