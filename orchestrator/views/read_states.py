"""Read states of threads: how far a person has read, and the first turn that ended behind it.

A state's revision names the person's mark that it was made from and the place in the log as of which it was
told. Who answers "read" to a state has read up to that place, and no turn that ended since.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from orchestrator.broker.records import SessionHead, StoredEntry
from orchestrator.core.entries.stored import Kind, decode_entry, stored_kind
from orchestrator.core.frozen import record
from orchestrator.core.ids import SessionId
from orchestrator.protocol.events import TaskComplete, TurnAborted
from orchestrator.rollouts.source import LogSource

MOST_PERSON = 200
MOST_SCANNED = 20_000
"""Entries behind the mark among which the end of a turn is looked for."""
TURN_ENDS = frozenset[Kind]({TaskComplete, TurnAborted})
"""The events that end a turn."""
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
    (note,) = await found.broker.requests.notes(_name(person), [head.session])
    return await _state(found, head, ReadMark.of(note))


async def read_states(
    found: LogSource, sessions: Sequence[SessionId], person: str
) -> Mapping[SessionId, ReadState]:
    """The states of those threads that the person has ever marked."""
    notes = await found.broker.requests.notes(_name(person), sessions)
    marks = {session: ReadMark.of(note) for session, note in zip(sessions, notes, strict=True) if note}
    heads = await found.broker.logs.heads(list(marks))
    return {head.session: await _state(found, head, marks[head.session]) for head in heads}


async def mark_read(
    found: LogSource, head: SessionHead, person: str, revision: str, *, read: bool
) -> ReadState:
    """Marks a thread as read up to a state of this revision, or its last turn as unread.

    Raises `StaleReadState`, `ValueError` for what is no revision.
    """
    match = _REVISION.fullmatch(revision)
    if match is None:
        raise ValueError("give the revision of a read state that this server told")
    (note,) = await found.broker.requests.notes(_name(person), [head.session])
    mark = ReadMark.of(note)
    if mark.changes != int(match[1]):
        raise _stale(revision)
    seq = min(int(match[2]), head.seq) if read else await _before_last_turn(found, head)
    changed = ReadMark(mark.changes + 1, max(mark.seq, seq) if read else seq)
    kept = await found.broker.requests.note(head.session, _name(person), changed.note, note)
    if kept != changed.note:
        raise _stale(revision)
    return await _state(found, head, changed)


def _stale(revision: str) -> StaleReadState:
    return StaleReadState(f"read state {revision} is not the one in force: thread/read tells that")


def _name(person: str) -> str:
    return f"read:{person[:MOST_PERSON]}"


async def _state(found: LogSource, head: SessionHead, mark: ReadMark) -> ReadState:
    return ReadState(mark, head.seq, await _first_ended(found, head, mark.seq))


async def _first_ended(found: LogSource, head: SessionHead, after: int) -> str | None:
    """The first turn that ended behind a place."""
    through = min(head.seq, after + MOST_SCANNED)
    if through > after:
        async for stored in found.log(head.session, through, after):
            if (turn := _ended(stored)) is not None:
                return turn
    return None


async def _before_last_turn(found: LogSource, head: SessionHead) -> int:
    """The place before the end of the last turn; the log's own end if none is near it."""
    last, after = head.seq, max(0, head.seq - MOST_SCANNED)
    async for stored in found.log(head.session, head.seq, after):
        if _ended(stored) is not None:
            last = stored.seq - 1
    return last


def _ended(stored: StoredEntry) -> str | None:
    """The turn whose end an entry tells of."""
    return decode_entry(stored.payload).id if stored_kind(stored.payload) in TURN_ENDS else None
