"""The state of a second reading of a session's log (`sim/grammar.py`)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from orchestrator.core.entries import Entry
from orchestrator.model.provider_errors import ModelError
from sim.grammar_terms import Item, check
from sim.ledger import Reading as ScriptReading


class Reading:
    """A session's log as far as it was read."""

    def __init__(self) -> None:
        self.conversation: list[Item] = []
        self.settings: dict[str, Any] = {}
        self.queue: list[str] = []
        self.edited: dict[str, str] = {}
        """The words of inputs that said something else while they waited."""
        self.replacing: set[str] = set()
        """Those in the queue that stop what runs."""
        self.looks_back: tuple[str | None, str] | None = None
        """The client and id of input for which the log is read back to the turn that it goes on from."""
        self.inbox: list[str] = []
        self._mails: set[str] = set()
        self.children: dict[int, dict[str, Any]] = {}
        self.watchdogs: dict[int, Mapping[str, Any]] = {}
        self.dogs: dict[int, Mapping[str, Any]] = {}
        """Every watchdog that was ever set, by its generation."""
        self.mails: dict[str, Mapping[str, Any]] = {}
        self.questions: dict[tuple[str, str], tuple[str, list[str]]] = {}
        """The kind and the names of the questions that a call has put to people, by its turn and its id."""
        self.asked: dict[str, Item] = {}
        """Calls by their ids."""
        self.facts: Mapping[str, Any] = {}
        """Facts that stay with the session for life."""
        self.approved: set[str] = set()
        """Keys that were approved for the session."""
        self.used = 0
        """Tokens of all its requests."""
        self.agent: dict[str, Any] = {"status": "", "turns": 0}
        """The status and the number of turns that the agent reports of itself."""
        self.ends: dict[int, dict[str, Any]] = {}
        """How each of its turns as an agent ended."""
        self._ended: dict[str, Any] = {}
        self.generation = 0
        self.requests = 0
        self.name = ""
        """The session's name for people."""
        self.closing = ""
        self.closed = False
        self.totals: dict[str, int] | None = None
        self.rate_limits: Mapping[str, Any] | None = None
        """The rate limits that the provider reported last."""
        self._uncounted: list[Mapping[str, Any]] = []
        self.task: dict[str, Any] | None = None
        self.bookmarks: list[tuple[str, int]] = []
        self.compacts_at: int | None = None
        """The tokens of a response from which on the conversation is compacted by itself."""
        self.last_used = 0
        """The tokens of the last response in this conversation."""
        self.compacted = self.aside_compacted = False
        """Whether nothing was said since the conversation was compacted; the same of one beside it."""
        self.aside: tuple[list[Item], list[str], int] | None = None
        """The session's conversation, while a task has one of its own, what compactions kept of it, and the
        tokens of its last response."""
        self.left = ""
        """Words that a task beside the conversation leaves to it, until they stand there."""
        self.left_plan = ""
        """The text of an approved plan, until it stands there, too."""
        self.pinned: Mapping[str, Any] | None = None
        """The approved plan that the next task of a person is shown."""
        self.pinned_at = 0
        """The length of the conversation that knows of it."""
        self.gone: set[str] = set()
        """The calls of processes that were lost with their worker, until a folder of theirs goes back."""
        self.earlier: list[str] = []
        """Turns that compactions summed up, oldest first."""
        self.kept: list[str] = []
        self.kept_before: list[str] = []
        """The same as they were written, where the compaction was redacted."""
        self.doubted: list[str] = []
        """Calls in doubt, and processes that are gone, of which people are to be warned by the same step."""
        self.taken_back: int | None = 0
        """The words of people that went when the conversation was cut back last; None: nobody knows."""
        self.added = 0
        """Messages that were added without a turn, and not told of yet."""
        self._last: Entry | None = None
        self._before_last: Entry | None = None
        self._shown_end: Mapping[str, Any] = {}
        """The last event of the end of a call: questions of its server may be withdrawn behind it."""
        self.hidden: dict[int, tuple[Any, Any, str]] = {}
        """Redacted values, by their identity, each with what it said before, and the digest of its entry."""
        self.redacted: set[str] = set()
        """The digests of entries that were redacted in what was read so far."""
        self._due: list[tuple[str, Callable[[Entry], bool]]] = []
        """Names and tests of the entries that must come next."""
        self.read_so_far = 0
        self.errors: Mapping[int, Sequence[ModelError]] = {}
        """The errors by which its provider ended requests of these numbers, of any branch."""
        self.heard_by: Mapping[int, str] = {}
        """The claims whose holders heard of them last."""
        self.is_pruned: Callable[[int], bool] = lambda number: False
        """Whether an agent of this number was made in the tree, whose registry does not have it any more."""
        self.claim = ""
        """The claim by which what is read now was written."""
        self.readings: Mapping[str, Sequence[ScriptReading]] = {}
        """The findings that workers were to make of the scripts of each call."""

    def hides(self, now: Any, before: Any, digest: str = "") -> None:
        """A redaction made one value of another: the rules of what was said go by the one before.

        `digest`: of the entry that has the value; empty where others may have it, too.
        """
        if now == before:
            return
        if isinstance(now, Mapping) and isinstance(before, Mapping):
            self.hidden[id(now)] = now, before, digest
            for name in now.keys() & before.keys():
                self.hides(now[name], before[name], digest)
        elif isinstance(now, list | tuple) and isinstance(before, list | tuple):
            for one, other in zip(now, before, strict=False):
                self.hides(one, other, digest)

    def was(self, value: Mapping[str, Any], redacted: Collection[str] = ()) -> Mapping[str, Any]:
        """An item, a fact or an event as it was written, or as it stood when these digests were redacted.

        A log that is read anew has redactions of later, too.
        """
        _, before, digest = self.hidden.get(id(value), (None, value, ""))
        found: Mapping[str, Any] = value if digest in redacted else before
        return found

    @property
    def before(self) -> Entry | None:
        """The entry before the last one."""
        return self._before_last

    @property
    def _task(self) -> dict[str, Any]:
        check(self.task is not None, "no task holds the session")
        assert self.task is not None
        return self.task

    def _takes(self, generation: int) -> None:
        check(generation == self.generation + 1, f"generation {generation} follows {self.generation}")
        self.generation = generation
