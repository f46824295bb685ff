"""A runner's view of its session's log, and the commits that it builds on it.

The journal is the only holder of (state, seq, chain head). A step drafts entries onto it,
and either the commit is accepted and the draft becomes the journal, or it is thrown away:
there is no third way, so the state never runs ahead of the log.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from orchestrator.broker.records import BudgetPart
from orchestrator.broker.seal import LogWriter, event_of, seal, seal_session
from orchestrator.core import facts as f
from orchestrator.core.chain import SALT_BYTES
from orchestrator.core.commit_parts import Approval, NewEntry, NewEvent, Timer, TreePart
from orchestrator.core.decide.draft import Decision, Metered
from orchestrator.core.entries import EVENT_MSG, Entry, event_kind
from orchestrator.core.frozen import record, replace
from orchestrator.core.state import State
from orchestrator.protocol.events import TURN_ENDS
from orchestrator.rollouts.session_summary import Position
from orchestrator.runtime.request_costs import Accounting


@dataclass(slots=True)
class Journal:
    """Where the session's log stands: set by a load, moved by accepted commits and by nothing else."""

    position: Position = field(init=False)

    @property
    def state(self) -> State:
        return self.position.state

    @property
    def status(self) -> str:
        """The session's status; empty before the log was read."""
        return self.position.state.status if hasattr(self, "position") else ""


@record
class Writer:
    """The writer of entries: the claim's epoch, the chain's key, randomness for salts."""

    epoch: int
    random_bytes: Callable[[int], bytes]
    secret: bytes = b""
    """The key of the chain; empty where it has none."""
    accounting: Accounting = field(default_factory=Accounting)


@dataclass(slots=True)
class Step:
    """Entries drafted onto a position, with everything else that their commit makes visible."""

    base: Position
    """The position at which the commit expects the log."""
    writer: Writer
    at_ms: int
    position: Position = field(init=False)
    entries: list[NewEntry] = field(default_factory=list)
    events: list[NewEvent] = field(default_factory=list)
    timers_set: list[Timer] = field(default_factory=list)
    timers_clear: list[str] = field(default_factory=list)
    approvals_open: list[Approval] = field(default_factory=list)
    approvals_close: list[str] = field(default_factory=list)
    blobs: dict[str, bytes] = field(default_factory=dict)
    tree: TreePart | None = None
    """The step's part for other sessions; None is the usual case."""
    budget: BudgetPart | None = None
    export: bool = False
    ended_seq: int | None = None
    """The last of the entries that ends a turn; None if none does."""
    size: int = 0
    taken: list[Entry] | None = None
    """The entries as an observer reads them; None where there is none."""

    def __post_init__(self) -> None:
        self.position = self.base

    def take(self, decision: Decision) -> None:
        """Adds one decision: from here on the position is what the log will say."""
        self.blobs |= decision.blobs
        for metered in decision.requests:
            self._account(metered)
        self._append(decision)
        self._take_timers(decision)
        self._take_approvals(decision)
        self.export = self.export or decision.export
        if decision.budget_wait:
            self._take_budget(wait=self.writer.accounting.wait(self.position.state))
        if decision.tree is not None:
            self._take_tree(decision.tree)

    def _take_timers(self, decision: Decision) -> None:
        """A commit clears before it sets: what is cleared behind its setting must not be set at all."""
        left = [timer for timer in self.timers_set if timer.id not in decision.timers_clear]
        self.timers_set = [*left, *decision.timers_set]
        self.timers_clear += decision.timers_clear

    def _take_approvals(self, decision: Decision) -> None:
        """A commit closes before it opens: what is closed behind its opening must not be opened at all."""
        left = [asked for asked in self.approvals_open if asked.key not in decision.approvals_close]
        self.approvals_open = [*left, *decision.approvals_open]
        self.size += sum(len(approval.payload) for approval in decision.approvals_open)
        self.approvals_close += decision.approvals_close

    def _account(self, metered: Metered) -> None:
        """A request's begin reserves, its end settles."""
        accounting, state, fact = self.writer.accounting, metered.state, metered.fact
        if isinstance(fact, f.RequestBegun):
            self._take_budget(reservation=accounting.reservation(state, fact))
        elif isinstance(fact, f.RequestEnded):
            done = self.budget.settlements if self.budget is not None else ()
            self._take_budget(settlements=(*done, accounting.settlement(state, fact)))

    def _take_budget(self, **changes: Any) -> None:
        self.budget = replace(self.budget or BudgetPart(), **changes)

    def _take_tree(self, part: TreePart) -> None:
        if part.children:
            # A child's log is chained as the commit will write it: under epoch 0, which is no claim's.
            writer = LogWriter(self.writer.random_bytes, self.writer.secret)
            part = replace(part, children=tuple(seal_session(child, writer) for child in part.children))
            self._take_budget(within=True)
        if part.events and self.events:
            part = part.behind(len(self.events))
        self.tree = part if self.tree is None else self.tree.and_then(part)
        self.size += part.size

    @property
    def concerns_tree(self) -> bool:
        """Whether the commit writes to other sessions or to the tree's accounts."""
        return self.tree is not None or self.budget is not None

    @property
    def weight(self) -> int:
        """The number of entries that the commit will write, those of sessions that it creates too."""
        return len(self.entries) + (self.tree.entries if self.tree is not None else 0)

    def show(self, event: NewEvent) -> None:
        """Adds an event behind what was taken before it."""
        self.events.append(event)
        self.size += len(event.payload)

    def _append(self, decision: Decision) -> None:
        seq, head = self.position.seq, self.position.head
        passing, writer = list(decision.passing), self.writer
        # Drawn at once: each asks the kernel.
        salts = writer.random_bytes(SALT_BYTES * len(decision.entries)) if decision.entries else b""
        for place, encoded in enumerate(decision.entries):
            while passing and passing[0].place <= place:
                self.show(event_of(passing.pop(0).event, seq, head))
            seq += 1
            salt = salts[place * SALT_BYTES : (place + 1) * SALT_BYTES]
            sealed = seal(encoded.line, seq, head, writer, salt)
            head = sealed.chain
            self.entries.append(sealed)
            self.size += len(encoded.line)
            if self.taken is not None:
                self.taken.append(encoded.entry)
            if encoded.entry.type == EVENT_MSG:
                self.show(event_of(encoded, seq, head))
                if event_kind(encoded.entry.payload) in TURN_ENDS:
                    self.ended_seq = seq
        for shown in passing:
            self.show(event_of(shown.event, seq, head))
        self.position = Position(decision.state, seq, head)

    @property
    def empty(self) -> bool:
        return not (self.entries or self.timers_clear or self.approvals_close or self.concerns_tree)
