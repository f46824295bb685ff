"""A decision under construction, what it becomes, and what it shows to those who listen now."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field

from orchestrator.core import commit_parts as parts
from orchestrator.core import entries as e
from orchestrator.core import facts as f
from orchestrator.core.agent_views import TOLD_BY_ITEMS, Payload, one_line
from orchestrator.core.commands import ItemCompleted, Moment
from orchestrator.core.context import context_told
from orchestrator.core.entries import Encoded, Entry, encode_entry, encode_json
from orchestrator.core.evolve import evolve, stated
from orchestrator.core.facts import Fact, RequestFact
from orchestrator.core.frozen import record, replace
from orchestrator.core.history import Item, message_text, searched
from orchestrator.core.ids import SessionId
from orchestrator.core.modes import task_settings
from orchestrator.core.sender import Sender
from orchestrator.core.settings import SessionFacts
from orchestrator.core.state import State, Task, check
from orchestrator.core.tree import AgentRecord, cancel_flags
from orchestrator.core.user_turns import Outcome, completed_item, publishes_items, user_item
from orchestrator.protocol import events as ev
from orchestrator.protocol.ids import SubmissionId
from orchestrator.protocol.scalars import CompactionPhase
from orchestrator.protocol.turn_items import ContextCompactionItem, TurnItem
from orchestrator.protocol.wire import EventModel, ItemModel, JsonMapping, written


class DoesNotFit(Exception):
    """A rule has found that its command cannot happen to the state that it met.

    Nothing else that a rule raises is about the command: it is a defect.
    """


@record
class TaskOver:
    """The end of the task that this decision ended."""

    outcome: Outcome
    message: str | None
    """Its last message, or the error that it failed with."""


@record
class Metered:
    """A fact about a model request, and the state that it met: what the tree's budget is charged by."""

    fact: RequestFact
    state: State


@record
class Passing:
    """An event that the log does not keep, since another one in it says as much."""

    place: int
    """The number of the decision's entries before it."""
    event: Encoded


@record
class Decision:
    """The content of one commit, visible at once. Each `event_msg` entry is an event on the EQ too."""

    state: State
    """The state behind the entries, as every fold of the log will find it."""
    entries: tuple[Encoded, ...] = ()
    blobs: Mapping[str, bytes] = field(default_factory=dict)
    """Texts that are too large for the entries, by hash: to be stored before the entries are."""
    requests: tuple[Metered, ...] = ()
    timers_set: tuple[parts.Timer, ...] = ()
    timers_clear: tuple[str, ...] = ()
    approvals_open: tuple[parts.Approval, ...] = ()
    approvals_close: tuple[str, ...] = ()
    export: bool = False
    """The rollout's file is to be brought up to date before this becomes visible."""
    tree: parts.TreePart | None = None
    """None in the usual case: the decision concerns no other session."""
    budget_wait: bool = False
    """The session waits for room in the tree's budget."""
    passing: tuple[Passing, ...] = ()


@record
class Note:
    """Entries and events that no rule decides on: an error, a warning, a piece of a text as it streams."""

    entries: tuple[Entry, ...] = ()
    tree: parts.TreePart | None = None


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
        "_passing",
        "_requests",
        "_seq",
        "_set",
        "apart",
        "before",
        "budget_wait",
        "export",
        "moment",
        "over",
        "sender",
        "state",
        "tree",
    )

    def __init__(self, state: State, moment: Moment) -> None:
        self.before = state
        """The state that the command met."""
        self.state = state
        self.over: TaskOver | None = None
        self.sender: Sender | None = None
        """The one who asked for what is being decided; None where nobody did."""
        self.moment = moment
        self.export = False
        self.budget_wait = False
        self.apart = False
        """Whether children are told of their end by steps of their own: one may be refused for each that
        nothing reaches, and this decision must not be."""
        self._logged = state
        self._seq = moment.seq
        self._entries: list[Encoded] = []
        self._blobs: dict[str, bytes] = {}
        self.tree = TreeDraft(self._blobs)
        self._passing: list[Passing] = []
        self._requests: list[Metered] = []
        self._set: list[parts.Timer] = []
        self._clear: list[str] = []
        self._open: list[parts.Approval] = []
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
        branch = self.task.branch
        own = branch.settings if branch else self.task.settings
        told = context_told(task_settings(own), task_settings(self.state.settings))
        for secret in self.task.secrets:
            self.drop_secret(secret.name)
        self.add(f.TaskEnded(outcome))
        self.over = TaskOver(outcome, message)
        if told is not None:
            # Settings that were changed meanwhile hold from the next task on.
            self.add(e.item(told))

    def event(self, message: EventModel | JsonMapping) -> None:
        """An event of the running task; a mapping is one as it is written."""
        self.add(e.event(self.task.id, message))

    def show(self, message: EventModel) -> None:
        """An event of the running task for those who listen now."""
        event = encode_entry(e.event(self.task.id, message), self.moment.at_ms, self._blobs)
        self._passing.append(Passing(len(self._entries), event))

    def next_generation(self) -> int:
        generation = self.state.timers + 1
        self.add(f.TimerTaken(generation))
        return generation

    def set_timer(self, id: str, at_ms: int) -> int:
        generation = self.next_generation()
        self._set.append(parts.Timer(id, generation, at_ms))
        return generation

    def set_timer_of(self, id: str, generation: int, at_ms: int) -> None:
        """A timer whose generation was taken, and recorded, before."""
        self._set.append(parts.Timer(id, generation, at_ms))

    def clear_timer(self, id: str) -> None:
        # A commit clears before it sets.
        self._set = [timer for timer in self._set if timer.id != id]
        self._clear.append(id)

    def open_approval(self, call_id: str, request: JsonMapping) -> None:
        self._open.append(parts.approval(call_id, request, self._blobs))

    def close_approval(self, call_id: str) -> None:
        self._close.append(call_id)

    def drop_secret(self, name: str) -> None:
        """Removes the texts of an answer that stand beside the log."""
        if name:
            self.tree.dropped.append(name)

    def guard(self) -> None:
        """Guards a decision that starts something: the commit is refused if the agent was cancelled."""
        facts = self.state.facts
        if not facts.is_root:
            self.tree.unless_flagged = cancel_flags(facts.ancestors, facts.agent_id)

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
            self.budget_wait,
            tuple(self._passing),
        )


class TreeDraft:
    """The part of a draft that concerns other sessions."""

    __slots__ = (
        "_blobs",
        "_taken",
        "children",
        "debits",
        "dropped",
        "events",
        "outbox",
        "summary",
        "unless_flagged",
        "unreachable",
    )

    def __init__(self, blobs: dict[str, bytes]) -> None:
        self.outbox: list[parts.OutboundMessage] = []
        self.children: list[parts.NewSession] = []
        self.events: list[parts.TreeEvent] = []
        self.summary: dict[str, bytes] = {}
        self.debits: list[parts.Debit] = []
        self.unless_flagged: tuple[str, ...] = ()
        self.unreachable = ""
        """The session that nothing reaches: messages to it are left out."""
        self.dropped: list[str] = []
        """The names of answers whose texts nobody needs any more."""
        self._blobs = blobs
        self._taken = [0, 0]

    def send(
        self, to: str, kind: str, payload: Payload, key: str, interrupt: bool = False
    ) -> parts.OutboundMessage:
        """Sends a message to another session of the tree."""
        content = encode_json({"kind": kind, **payload})
        message = parts.OutboundMessage(SessionId(to), kind, content, key, interrupt)
        if to != self.unreachable:
            self.outbox.append(message)
        return message

    def publish(
        self,
        id: str | None,
        message: EventModel | JsonMapping,
        targets: Iterable[str],
        *,
        inbox: str = "",
        about: parts.TreeNote | None = None,
        once: str = "",
    ) -> None:
        """Adds an event for the tree log and the queues of `targets`; see `tree_event`."""
        event = parts.tree_event(id, message, targets, self._blobs, inbox=inbox, about=about, once=once)
        self.events.append(event)

    def note(self, field: str, value: str | AgentRecord) -> None:
        """Sets a field of the registry's projection; a record becomes JSON."""
        self.summary[field] = value.encode() if isinstance(value, str) else encode_json(value)

    def create(self, session: parts.NewSession, entries: Iterable[Entry], at_ms: int) -> None:
        """Creates a session of the tree, whose log begins with these entries."""
        log = tuple(encode_entry(entry, at_ms, self._blobs) for entry in entries)
        self.children.append(replace(session, unsealed=log))

    def take(self, interrupt: bool) -> None:
        """Counts a message that leaves the inbox."""
        self._taken[interrupt] += 1

    def part(self) -> parts.TreePart | None:
        counted = self.unless_flagged or self._taken != [0, 0] or self.dropped
        if not (counted or self.outbox or self.children or self.events or self.summary or self.debits):
            return None
        return parts.TreePart(
            tuple(self.outbox),
            tuple(self.children),
            tuple(self.events),
            self.summary,
            tuple(self.debits),
            self.unless_flagged,
            (self._taken[0], self._taken[1]),
            tuple(self.dropped),
        )


# ── item events ───────────────────────────────────────────────────────────────────────────────────
# Items of a turn that are told whole (`item_events = "all"`), beside the older event of each.


def publish_input(draft: Draft, items: Sequence[Item]) -> None:
    """Publishes the item of what a person said, which is whole at once."""
    if publishes_items(draft.task.settings):
        item = user_item(items, f"{draft.task.id}-user-{len(draft.state.conversation)}")
        draft.show(_item_started(draft, item))
        draft.show(_item_completed(draft, item))


def publish_done(draft: Draft, command: ItemCompleted, said: str) -> None:
    """Publishes the end of an item of the model; an item without a name was begun by nobody."""
    if command.item_id and publishes_items(draft.task.settings):
        raw = draft.moment.rules.show_raw_reasoning
        item = completed_item(command.item, command.item_id, said, raw=raw)
        if item is not None:
            draft.show(_item_completed(draft, item))


def publish_compaction(draft: Draft, *, done: bool) -> None:
    """Publishes the begin or the end of a compaction; one that fails is begun again with its next request."""
    phase = CompactionPhase.DONE if done else CompactionPhase.BEGUN
    draft.event(ev.ContextCompaction(turn_id=draft.task.id, phase=phase))
    if publishes_items(draft.task.settings):
        item = ContextCompactionItem(id=f"{draft.task.id}-compaction-{draft.state.requests}")
        draft.show(_item_completed(draft, item) if done else _item_started(draft, item))
        if done:
            draft.event(ev.ContextCompacted())


def publish_call(draft: Draft, name: str, item: ItemModel | JsonMapping) -> None:
    """Publishes a call about agents, or its output, as it joins the conversation; others have events."""
    if name in TOLD_BY_ITEMS:
        draft.show(
            ev.RawResponseItem.model_validate(
                {"item": written(item) if isinstance(item, ItemModel) else item}
            )
        )


def _item_started(draft: Draft, item: TurnItem) -> ev.ItemStarted:
    return ev.ItemStarted(thread_id=draft.state.facts.session_id, turn_id=draft.task.id, item=item)


def _item_completed(draft: Draft, item: TurnItem) -> ev.ItemCompleted:
    return ev.ItemCompleted(thread_id=draft.state.facts.session_id, turn_id=draft.task.id, item=item)


# ── helper activity ───────────────────────────────────────────────────────────────────────────────
# A helper's activity, shown to the agent that waits for it (the December 2025 document,
# `spawn_subagent`).
#
# Other agents show theirs in their own event queues.


_HEADING = re.compile(r"\*\*(.+?)\*\*", re.DOTALL)
HEADER_CHARS = 120
ACTIVITY_CHARS = 120
STARTING = "starting"
THINKING = "thinking"


def show_activity(draft: Draft, text: str) -> None:
    """Shows what a helper does now; an empty text clears it."""
    if (call_id := draft.state.facts.helper_call) is not None:
        shown = one_line(text, ACTIVITY_CHARS) or ""
        _publish_to_asker(draft, ev.SubAgentToolCallActivity(call_id=call_id, activity=shown))


def show_thinking(draft: Draft) -> None:
    """Shows that the helper's model is asked; a retry of the request shows nothing new."""
    if not (draft.task.stream_retries or draft.task.http_used):
        show_activity(draft, THINKING)


def show_made(draft: Draft, item: Item) -> None:
    """Shows what an item of the model's answer tells."""
    match item.get("type"):
        case "reasoning":
            if header := header_of(item):
                show_activity(draft, header)
        case "message" if item.get("role") == "assistant":
            show_activity(draft, f"writes: {message_text(item)}")
        case "web_search_call":
            show_activity(draft, f"searches the web: {searched(item)}")


def show_use(draft: Draft, tool: str) -> None:
    """Shows a call that is done as soon as its turn has come."""
    show_activity(draft, f"uses {tool}")


def show_tokens(draft: Draft) -> None:
    """Shows how many tokens a helper has used so far, at the end of each of its turns."""
    tokens = draft.state.tokens
    total = tokens.total.total_tokens if tokens is not None else 0
    if (call_id := draft.state.facts.helper_call) is not None:
        _publish_to_asker(draft, ev.SubAgentToolCallTokens(call_id=call_id, tokens=total))


def _publish_to_asker(draft: Draft, told: EventModel) -> None:
    facts = draft.state.facts
    assert facts.parent_session is not None, "a helper has a parent"
    draft.tree.publish(facts.born_in, told, (facts.parent_session,))


def header_of(reasoning: Item) -> str:
    """The first bold words of a reasoning item; empty without any."""
    found = (_HEADING.search(str(part.get("text", ""))) for part in reasoning.get("summary") or ())
    return next((" ".join(one[1].split())[:HEADER_CHARS] for one in found if one), "")


def publish_depths(draft: Draft, id: str | None, agent_id: int, session: str, targets: Iterable[str]) -> None:
    """An `agent_inbox` event about a session of the tree."""
    message = ev.AgentInbox(agent_id=agent_id, session_id=session, pending_messages=0, pending_interrupts=0)
    draft.tree.publish(id, message, targets, inbox=session)


def watchers(facts: SessionFacts) -> tuple[str, ...]:
    """The sessions whose event queues tell of an agent: its parent and the root (once if the same)."""
    return tuple(dict.fromkeys((facts.parent_session or facts.session_id, facts.tree_id)))
