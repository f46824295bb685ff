"""A decision under construction, and what it becomes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypedDict

from orchestrator.core import entries as e
from orchestrator.core import facts as f
from orchestrator.core.commands import Moment
from orchestrator.core.context import context_told
from orchestrator.core.entries import Entry
from orchestrator.core.evolve import evolve, stated
from orchestrator.core.facts import Fact, RequestFact
from orchestrator.core.frozen import record, replace
from orchestrator.core.ids import AgentId
from orchestrator.core.message_payloads import Payload
from orchestrator.core.modes import told_settings
from orchestrator.core.phases import check
from orchestrator.core.settings import SessionFacts, TurnSettings
from orchestrator.core.state import Outcome, State, Task
from orchestrator.core.stored import Encoded, encode_entry
from orchestrator.core.tree import AgentRecord
from orchestrator.protocol.ids import SubmissionId
from orchestrator.protocol.wire import EventModel, JsonMapping, JsonObject


class DoesNotFit(Exception):
    """A rule has found that its command cannot happen to the state that it met.

    Nothing else that a rule raises is about the command: it is a defect.
    """


@dataclass(frozen=True, slots=True)
class TaskOver:
    """The end of the task that this decision ended."""

    outcome: Outcome
    message: str | None
    """Its last message, or the error that it failed with."""


SLOTS = "slots"
SPAWNED = "spawned"


@record
class Timer:
    """A deadline that becomes an SQ entry when it has passed, unless it was cleared.

    Set again under its id, it replaces the one before.
    """

    id: str
    generation: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class OpenApproval:
    """A request for the fleet's queue of approvals, under the call's id."""

    call_id: str
    request: JsonMapping
    """The event that asks, without its type."""


@record
class OutboundMessage:
    """A message from one session of a tree to another, in the commit that makes it true."""

    to: str
    kind: str
    """`message`, `completion`, `status`, `interrupt`, `cancel`, `ended`, `gone` or `answer`."""
    payload: Payload
    key: str
    """Stays the same however often the message is written."""
    interrupt: bool = False

    @property
    def counted(self) -> bool:
        """Whether the message waits in the inbox for a model; other messages are obeyed when they arrive."""
        return self.kind in COUNTED

    @property
    def bounded(self) -> bool:
        """Whether a full queue refuses it: a `message` can wait, an end or a cancel must arrive.

        Two agents whose queues are full would else wait for each other's room for ever.
        """
        return self.kind == "message"


COUNTED = frozenset({"message", "completion"})


class TreeNote(TypedDict, total=False):
    """Data for the fold of a tree log, beside an event's message."""

    record: AgentRecord
    """The agent's record from here on; the others are about `agent_id`, which has no new record."""
    agent_id: AgentId
    read: int
    """The number of the turn whose result the parent has read."""
    marked: bool
    """Whether the agent was cancelled."""
    response: str
    """The identity of the response that settled an agent's questions."""


@record
class TreeEvent:
    """An event for the tree log, and for the event queues of `targets`."""

    id: str | None
    """The task or the submission that it belongs to; None is an empty text in JSON."""
    message: EventModel
    targets: tuple[str, ...]
    inbox: str = ""
    """The session whose inbox depths belong into the message: only the commit knows them."""
    about: TreeNote = field(default_factory=TreeNote)
    """For the tree log alone: data that its fold needs beside the message."""
    once: str = ""
    """With a name, the event is dropped if the tree was told under that name before."""


class FirstSubmission(TypedDict):
    """The submission that a child session begins with."""

    id: str
    op: JsonObject


@dataclass(frozen=True, slots=True)
class NewChild:
    """A session to create with the commit."""

    facts: SessionFacts
    entries: tuple[Entry, ...]
    first: FirstSubmission | None
    settings: TurnSettings
    title: str
    """With the settings, the text that lists show for the child until it has come to rest once."""


@dataclass(frozen=True, slots=True)
class Debit:
    """Takes `amount` from a counter of the tree, refused if it would pass the field `limit`.

    A negative amount gives back and is never refused. An empty limit only counts.
    """

    counter: str
    amount: int
    limit: str = ""


@record
class TreePart:
    """The part of a decision that concerns other sessions, and the tree's accounts."""

    outbox: tuple[OutboundMessage, ...] = ()
    children: tuple[NewChild, ...] = ()
    events: tuple[TreeEvent, ...] = ()
    summary: Mapping[str, str | AgentRecord] = field(default_factory=dict)
    """Fields of the registry's projection; mappings become JSON."""
    debits: tuple[Debit, ...] = ()
    guarded: bool = False
    """The commit is refused if this agent, or one above it, was cancelled."""
    taken: tuple[int, int] = (0, 0)
    """Regular and interrupting messages that left the inbox."""
    budget_wait: bool = False
    """The session waits for room in the tree's budget."""


@record
class Metered:
    """A fact about a model request, and the state that it met: what the tree's budget is charged by."""

    fact: RequestFact
    state: State


@record
class Decision:
    """The content of one commit, visible at once. Each `event_msg` entry is an event on the EQ too."""

    state: State
    """The state behind the entries, as every fold of the log will find it."""
    entries: tuple[Encoded, ...] = ()
    blobs: Mapping[str, bytes] = field(default_factory=dict)
    """Texts that are too large for the entries, by hash: to be stored before the entries are."""
    requests: tuple[Metered, ...] = ()
    timers_set: tuple[Timer, ...] = ()
    timers_clear: tuple[str, ...] = ()
    approvals_open: tuple[OpenApproval, ...] = ()
    approvals_close: tuple[str, ...] = ()
    export: bool = False
    """The rollout's file is to be brought up to date before this becomes visible."""
    tree: TreePart | None = None
    """None in the usual case: the decision concerns no other session."""


@record
class Note:
    """Entries and events that no rule decides on: an error, a warning, a piece of a text as it streams."""

    entries: tuple[Entry, ...] = ()
    tree: TreePart | None = None


def noted(state: State, note: Note, moment: Moment) -> Decision:
    """The decision that records a note."""
    draft = Draft(state, moment)
    draft.add(*note.entries)
    return replace(draft.decision(), tree=note.tree)


class Draft:
    """Collects entries in their stored form and folds them, each once.

    Rules read `state`, where every text is whole. The log keeps a reference where a text is too large for
    its line; from such an entry on, the state of the log is folded beside the one that rules read.
    """

    __slots__ = (
        "_blobs",
        "_clear",
        "_close",
        "_entries",
        "_logged",
        "_open",
        "_requests",
        "_seq",
        "_set",
        "before",
        "export",
        "moment",
        "over",
        "state",
        "tree",
    )

    def __init__(self, state: State, moment: Moment) -> None:
        self.before = state
        """The state that the command met."""
        self.state = state
        self.over: TaskOver | None = None
        self.moment = moment
        self.export = False
        self.tree = TreeDraft()
        self._logged = state
        self._seq = moment.seq
        self._entries: list[Encoded] = []
        self._blobs: dict[str, bytes] = {}
        self._requests: list[Metered] = []
        self._set: list[Timer] = []
        self._clear: list[str] = []
        self._open: list[OpenApproval] = []
        self._close: list[str] = []

    @property
    def task(self) -> Task:
        """The task that holds the session; a rule that needs one raises without it."""
        if self.state.task is None:
            raise DoesNotFit("no task holds the session")
        return self.state.task

    @property
    def task_id(self) -> SubmissionId | None:
        """The id that events of this moment carry; None between tasks."""
        return self.state.task.id if self.state.task is not None else None

    def add(self, *news: Entry | Fact) -> None:
        for new in news:
            self._seq += 1
            if isinstance(new, Entry):
                self._append(new, evolve(self.state, new, self._seq))
            else:
                if new.of == "request":
                    self._requests.append(Metered(new, self._logged))
                state = stated(self.state, new, self._seq)
                check(self.state, state)
                self._append(e.fact(new), state)

    def _append(self, entry: Entry, state: State) -> None:
        """Adds an entry that leads to `state`."""
        encoded = encode_entry(entry, self.moment.at_ms, self._blobs)
        if self._logged is self.state and encoded.entry is entry:
            self._logged = state
        else:
            self._logged = evolve(self._logged, encoded.entry, self._seq)
        self.state = state
        self._entries.append(encoded)

    def end_task(self, outcome: Outcome, message: str | None = None) -> None:
        told = context_told(told_settings(self.task.settings, self.state.settings), self.state.settings)
        self.add(f.TaskEnded(outcome))
        self.over = TaskOver(outcome, message)
        if told is not None:
            # Settings that were changed meanwhile hold from the next task on.
            self.add(e.item(told))

    def event(self, message: EventModel) -> None:
        """An event of the running task."""
        self.add(e.event(self.task.id, message))

    def next_generation(self) -> int:
        generation = self.state.timers + 1
        self.add(f.TimerTaken(generation))
        return generation

    def set_timer(self, id: str, at_ms: int) -> int:
        generation = self.next_generation()
        self._set.append(Timer(id, generation, at_ms))
        return generation

    def set_timer_of(self, id: str, generation: int, at_ms: int) -> None:
        """A timer whose generation was taken, and recorded, before."""
        self._set.append(Timer(id, generation, at_ms))

    def clear_timer(self, id: str) -> None:
        # A commit clears before it sets.
        self._set = [timer for timer in self._set if timer.id != id]
        self._clear.append(id)

    def open_approval(self, call_id: str, request: JsonMapping) -> None:
        self._open.append(OpenApproval(call_id, request))

    def close_approval(self, call_id: str) -> None:
        self._close.append(call_id)

    def guard(self) -> None:
        """Guards a decision that starts something: the commit is refused if the agent was cancelled."""
        if not self.state.facts.is_root:
            self.tree.guarded = True

    def decision(self) -> Decision:
        return Decision(
            self._logged,
            tuple(self._entries),
            self._blobs,
            tuple(self._requests),
            tuple(self._set),
            tuple(self._clear),
            tuple(self._open),
            tuple(self._close),
            self.export,
            self.tree.part(),
        )


class TreeDraft:
    """The part of a draft that concerns other sessions."""

    __slots__ = ("_taken", "budget_wait", "children", "debits", "events", "guarded", "outbox", "summary")

    def __init__(self) -> None:
        self.outbox: list[OutboundMessage] = []
        self.children: list[NewChild] = []
        self.events: list[TreeEvent] = []
        self.summary: dict[str, str | AgentRecord] = {}
        self.debits: list[Debit] = []
        self.guarded = False
        self.budget_wait = False
        self._taken = [0, 0]

    def take(self, interrupt: bool) -> None:
        """Counts a message that leaves the inbox."""
        self._taken[interrupt] += 1

    def part(self) -> TreePart | None:
        counted = self.guarded or self.budget_wait or self._taken != [0, 0]
        if not (counted or self.outbox or self.children or self.events or self.summary or self.debits):
            return None
        return TreePart(
            tuple(self.outbox),
            tuple(self.children),
            tuple(self.events),
            dict(self.summary),
            tuple(self.debits),
            self.guarded,
            (self._taken[0], self._taken[1]),
            self.budget_wait,
        )
