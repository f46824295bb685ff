"""A session as far as its log and its queue were read."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from orchestrator.core.chain import GENESIS
from orchestrator.core.entries import Entry
from orchestrator.core.state import State
from sim.grammar import Grammar
from sim.inherited import Place
from sim.queued import Given, Waiting
from tests.core.auditor import Audit


@dataclass(slots=True)
class Seen:
    """A session as far as its log was read."""

    pool: str
    tree: str
    seq: int = 0
    head: bytes = GENESIS
    epoch: int = 0
    cursor: int = 0
    tip: int = 0
    queue: list[Waiting] = field(default_factory=list)
    """Entries behind the cursor."""
    eq: int = 0
    """The last event of its queue."""
    given: list[Given] = field(default_factory=list)
    """Every submission, and every letter of a person, that was ever in the queue, in its order."""
    lease_ms: float | None = None
    claim: str = ""
    state: State = field(default_factory=State)
    entries: list[Entry] = field(default_factory=list)
    audit: Audit = field(default_factory=lambda: Audit(plain=True))
    grammar: Grammar = field(default_factory=Grammar)
    running: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    """Decisions to start, by call."""
    ended: int = 0
    """The last entry that ended a turn, of those that a claim's holder wrote."""
    at: dict[int, Place] = field(default_factory=dict)
    """Where the log stood behind each entry."""
    instead: dict[int, Entry] = field(default_factory=dict)
    """The lines that stand instead of redacted entries, by their numbers."""
    stored: list[tuple[bytes, dict[bytes, bytes]]] = field(default_factory=list)
    """The entries as Redis has them."""

    @property
    def readable(self) -> list[Entry]:
        """The entries as they can be read now."""
        if not self.instead:
            return self.entries
        return [self.instead.get(seq, entry) for seq, entry in enumerate(self.entries, 1)]
