"""Threads: sessions as clients of the app-server protocol know them.

A thread is read from a session's head, and for an agent from its tree's registry too; the log is asked for
the first words of a session that has never rested, and for nothing else. Knows nothing of JSON.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Literal, TypeAlias

from orchestrator.broker.broker import Broker
from orchestrator.broker.logs import Logs
from orchestrator.broker.records import AT_REST, SessionHead, StoredEntry
from orchestrator.core import facts as f
from orchestrator.core.agent_views import one_line
from orchestrator.core.entries import decode_entry, stored_kind
from orchestrator.core.frozen import record
from orchestrator.core.ids import SessionId, TreeId
from orchestrator.core.lines import ContextLine, read_context
from orchestrator.core.registry import Agent, listed_agents
from orchestrator.core.settings import SettingsChanges, TurnSettings
from orchestrator.core.tree import ROOT
from orchestrator.protocol.events import TURN_ENDS, SessionConfigured, UserMessage
from orchestrator.rollouts import ArchiveUnavailable, BrokenArchive
from orchestrator.rollouts.log_source import LogSource
from orchestrator.rollouts.session_summary import PREVIEW_CHARS
from orchestrator.views.agent_past import MOST, STRETCH
from orchestrator.views.readable import UNREADABLE, readable

FIRST_ENTRIES = 64
"""Entries of a log among which the first words of a person stand."""

ThreadStatus: TypeAlias = Literal["not_loaded", "idle", "active", "system_error"]
Waits: TypeAlias = Literal["approval", "user_input"]
Source: TypeAlias = Literal["cli", "exec"]
"""The program that a person began a session by: one in which people talk, or one that runs a prompt."""


@record
class Spawned:
    """The place of an agent's thread in its tree."""

    parent: SessionId
    path: str
    """The agents' numbers from the root down, joined by `/`."""
    nickname: str | None = None
    role: str | None = None

    @property
    def depth(self) -> int:
        """Generations below the root."""
        return self.path.count("/")


@record
class Thread:
    """A session in a list. Times are milliseconds."""

    id: SessionId
    root: SessionId
    """The root's session, its own for a root."""
    status: ThreadStatus
    created_ms: int
    updated_ms: int
    """Its last rest; its creation before the first one."""
    recency_ms: int = 0
    """Its last change, as far as an index tells; 0 if none does."""
    waits: Waits | None = None
    """A person's part that an active thread waits for."""
    preview: str = ""
    name: str | None = None
    cwd: str = "/"
    model: str = ""
    model_provider: str = ""
    effort: str | None = None
    path: str | None = None
    """The rollout's file, if there is to be one."""
    git: Mapping[str, str] | None = None
    """`commit_hash`, `branch`, `repository_url`, as far as there are any."""
    forked_from: SessionId | None = None
    source: Source = "cli"
    ephemeral: bool = False
    begun: bool = True
    """Whether a person has said, named or done anything in it, or it came from another thread."""
    spawned: Spawned | None = None
    """None for a root."""


_WAITS: Mapping[str, Waits] = {"awaiting_approval": "approval", "awaiting_answer": "user_input"}


def thread_status(head: SessionHead, outcome: str | None = None) -> ThreadStatus:
    """Whether a thread is at work, as its last commit says; `outcome` is that of its last task."""
    if head.archived or head.shelved:
        return "not_loaded"
    if head.quarantined:
        return "system_error"
    if head.status not in AT_REST:
        return "active"
    return "system_error" if outcome == "failed" else "idle"


def thread(head: SessionHead, agent: Agent | None = None, preview: str = "") -> Thread:
    """The thread of a session; `agent` is its record in the tree's registry, if it is an agent's."""
    meta = head.summary
    forked_from = meta.get("forked_from")
    words = preview or meta.get("preview") or meta.get("title") or ""
    name = head.name or meta.get("name") or None
    return Thread(
        id=head.session,
        root=SessionId(head.tree),
        status=thread_status(head, meta.get("outcome")),
        waits=_WAITS.get(head.status),
        created_ms=head.created_ms,
        updated_ms=meta.get("updated_ms") or head.created_ms,
        preview=words,
        name=name,
        cwd=meta.get("cwd") or "/",
        model=meta.get("model") or "",
        model_provider=meta.get("model_provider") or "",
        effort=meta.get("effort"),
        # The tenant of a namespace learns no path of the machine.
        path=None if head.labels.namespace else meta.get("rollout_path") or None,
        git=head.git,
        recency_ms=head.recency_ms,
        source="exec" if head.labels.source == "exec" else "cli",
        ephemeral=head.labels.ephemeral,
        forked_from=None if forked_from is None else SessionId(forked_from),
        # A task that has ended counts for its words: those of an image alone, or of a log that was compacted.
        begun=bool(words or name or forked_from or meta.get("outcome")) or _is_used(head),
        spawned=None if head.agent_id == ROOT else _spawned(head, agent),
    )


def _is_used(head: SessionHead) -> bool:
    """Whether a session works, waits, or has something in its queue."""
    return not head.at_rest or head.agent_id != ROOT


def _spawned(head: SessionHead, agent: Agent | None) -> Spawned:
    parent = head.parent or SessionId(head.tree)
    if agent is None:
        # It was pruned: its tree's registry does not name it any more.
        return Spawned(parent, f"{ROOT}/{head.agent_id}")
    return Spawned(parent, agent.path, agent.record.get("label") or None, agent.record.get("origin"))


async def threads(broker: Broker, heads: Sequence[SessionHead]) -> list[Thread]:
    """The threads of some sessions, in their order."""
    agents = await _agents(broker, [head.tree for head in heads if head.agent_id != ROOT])
    return [
        thread(head, agents.get(head.tree, {}).get(head.agent_id), await _first_words(broker.logs, head))
        for head in heads
    ]


async def path_at_birth(logs: Logs, head: SessionHead) -> str:
    """Where the rollout of a session is to be, as its log begins; its head says so once it has rested."""
    if head.labels.namespace or head.archived:
        return ""
    for stored in await logs.read_rollout(head.session, 0, FIRST_ENTRIES):
        if stored_kind(stored.payload) is SessionConfigured:
            return str(decode_entry(stored.payload).payload.get("rollout_path") or "")
    return ""


async def _agents(broker: Broker, trees: Sequence[TreeId]) -> Mapping[TreeId, Mapping[int, Agent]]:
    ordered = list(dict.fromkeys(trees))
    found = await broker.trees.registries(ordered)
    return {tree: listed_agents(fields) for tree, fields in zip(ordered, found, strict=True)}


async def _first_words(logs: Logs, head: SessionHead) -> str:
    """The first words of a person in a session that has never rested; later its head says them."""
    if head.archived or head.status in AT_REST or "updated_ms" in head.summary:
        return ""
    try:
        for stored in await logs.read_rollout(head.session, 0, FIRST_ENTRIES):
            if stored_kind(stored.payload) is UserMessage:
                said = decode_entry(stored.payload).payload.get("message")
                return (one_line(said, PREVIEW_CHARS) or "") if isinstance(said, str) else ""
    except UNREADABLE:
        # One damaged log must not hide all other threads; whoever reads it is told of the damage.
        pass
    return ""


# ── read states ───────────────────────────────────────────────────────────────────────────────────
# Read states of threads: how far a person has read, and the first turn that ended behind it.
#
# A state's revision names the person's mark that it was made from and the place in the log as of which it
# was told. Who answers "read" to a state has read up to that place, and no turn that ended since.


MOST_PERSON = 200
MOST_SCANNED = 20_000
"""Entries behind the mark among which the end of a turn is looked for."""
_REVISION = re.compile(r"(\d{1,15})\.(\d{1,15})")


class StaleReadState(Exception):
    """A read state was changed meanwhile; the message says what to do."""


@record
class ReadMark:
    """A person's mark in a thread: the entries up to `seq` are read; `changes` counts its changes."""

    changes: int = 0
    seq: int = 0

    @classmethod
    def of(cls, note: bytes) -> ReadMark:
        """From a note; empty is the mark of a person who has read nothing."""
        return cls(*map(int, note.split())) if note else cls()

    @property
    def note(self) -> bytes:
        """The mark as it is kept; empty for the first one."""
        return b"%d %d" % (self.changes, self.seq) if self.changes else b""


@record
class ReadState:
    """A thread as one person has read it, as of a place in its log."""

    mark: ReadMark
    seq: int
    first_unread: str | None = None
    """The first turn that ended behind the mark."""

    @property
    def revision(self) -> str:
        """The name of this state, for whoever changes it."""
        return f"{self.mark.changes}.{self.seq}"


async def read_state(found: LogSource, head: SessionHead, person: str) -> ReadState:
    """A person's state of a thread."""
    (note,) = await found.broker.requests.notes(mark_name(person), [head.session])
    return await _state(found, head, ReadMark.of(note))


async def read_states(
    found: LogSource, sessions: Sequence[SessionId], person: str
) -> Mapping[SessionId, ReadState]:
    """The states of those threads that the person has ever marked, as far as their logs can be read."""
    notes = await found.broker.requests.notes(mark_name(person), sessions)
    marks = {session: ReadMark.of(note) for session, note in zip(sessions, notes, strict=True) if note}
    heads = await readable(found.broker.logs, list(marks))
    states = dict[SessionId, ReadState]()
    for head in heads:
        # A log that is damaged, or whose archive is away, must not hide the states of all others.
        with suppress(*UNREADABLE, ArchiveUnavailable, BrokenArchive):
            states[head.session] = await _state(found, head, marks[head.session])
    return states


async def mark_read(
    found: LogSource, head: SessionHead, person: str, revision: str, *, read: bool
) -> ReadState:
    """Marks a thread as read up to a state of this revision, or its last turn as unread.

    Raises `StaleReadState`, `ValueError` for what is no revision.
    """
    match = _REVISION.fullmatch(revision)
    if match is None:
        raise ValueError("give the revision of a read state that this server told")
    (note,) = await found.broker.requests.notes(mark_name(person), [head.session])
    mark = ReadMark.of(note)
    if mark.changes != int(match[1]):
        raise _stale(revision)
    seq = min(int(match[2]), head.seq) if read else await _before_last_turn(found, head)
    changed = ReadMark(mark.changes + 1, max(mark.seq, seq) if read else seq)
    kept = await found.broker.requests.note(head.session, mark_name(person), changed.note, note)
    if kept != changed.note:
        raise _stale(revision)
    return await _state(found, head, changed)


def _stale(revision: str) -> StaleReadState:
    return StaleReadState(f"read state {revision} is not the one in force: thread/read tells that")


def mark_name(person: str) -> str:
    """The note that has a person's mark."""
    return f"read:{person[:MOST_PERSON]}"


async def _state(found: LogSource, head: SessionHead, mark: ReadMark) -> ReadState:
    return ReadState(mark, head.seq, await _first_ended(found, head, mark.seq))


async def _first_ended(found: LogSource, head: SessionHead, after: int) -> str | None:
    """The first turn that ended behind a place."""
    if 0 < head.ended_seq <= after:
        return None
    through = min(head.seq, after + MOST_SCANNED)
    if through > after:
        async for stored in found.log(head.session, through, after):
            if (turn := _ended(stored)) is not None:
                return turn
    return None


async def _before_last_turn(found: LogSource, head: SessionHead) -> int:
    """The place before the end of the last turn; the log's own end if none is near it."""
    if head.ended_seq:
        return head.ended_seq - 1
    last, after = head.seq, max(0, head.seq - MOST_SCANNED)
    async for stored in found.log(head.session, head.seq, after):
        if _ended(stored) is not None:
            last = stored.seq - 1
    return last


def _ended(stored: StoredEntry) -> str | None:
    """The turn whose end an entry tells of."""
    return decode_entry(stored.payload).id if stored_kind(stored.payload) in TURN_ENDS else None


# ── thread settings ───────────────────────────────────────────────────────────────────────────────
# The settings of a thread's next turn, read from the end of its log: no fold of a long one is needed.


FAR = 4_096
"""Entries from the end among which the begin of a turn is looked for; behind them a request's settings do."""
_FACTS = frozenset({f.Configured, f.SettingsChanged, f.TaskBegun})


async def settings_of(found: LogSource, head: SessionHead) -> TurnSettings:
    """The settings in force, large texts left out."""
    search = _Search(head.summary.get("model_provider"))
    last, stretch = head.seq, STRETCH
    while last > 0 and search.base is None:
        after = max(0, last - stretch)
        entries = [stored async for stored in found.log(head.session, last, after)]
        search.read(reversed(entries), far=head.seq - last >= FAR)
        last, stretch = after, min(2 * stretch, MOST)
    settings = search.base or TurnSettings("/", "on-request", {"mode": "read-only"}, "")
    for changes in reversed(search.changes):
        settings = settings.changed(changes)
    return settings


class _Search:
    """The way back: changes of settings, up to settings that are whole."""

    def __init__(self, provider: str | None) -> None:
        """`provider`: that of settings which a request told of: it does not name its own."""
        self._provider = {"model_provider": provider} if provider else {}
        self.base: TurnSettings | None = None
        self.changes: list[SettingsChanges] = []
        """The newest first."""

    def read(self, entries: Iterator[StoredEntry], *, far: bool) -> None:
        for stored in entries:
            kind = stored_kind(stored.payload)
            if kind in _FACTS:
                self._fact(stored)
            elif far and kind is ContextLine:
                context = read_context(decode_entry(stored.payload).payload)
                self.base = TurnSettings.of({**self._provider, **context.changes()})
            if self.base is not None:
                return

    def _fact(self, stored: StoredEntry) -> None:
        match f.decode(decode_entry(stored.payload).payload):
            case f.SettingsChanged(changes):
                self.changes.append(changes)
            case f.Configured(settings=settings):
                self.base = settings
            case f.TaskBegun(task="user", settings=settings):
                self.base = settings
