"""Sealing entries: a stored line gets its salt and its chain value, and is ready for a script.

The one place where a new chain value is computed. Under which claim, with whose randomness and which key
is the writer's to say.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from orchestrator.core.chain import GENESIS, SALT_BYTES, next_chain, payload_digest
from orchestrator.core.commit_parts import NewEntry, NewEvent
from orchestrator.core.entries import EVENT_MSG, encode_event
from orchestrator.core.frozen import record, replace

if TYPE_CHECKING:
    from orchestrator.core.commit_parts import NewSession
    from orchestrator.core.entries import Encoded


class ChainWriter(Protocol):
    """The parts of a log's writer that sealing needs."""

    @property
    def epoch(self) -> int: ...

    @property
    def random_bytes(self) -> Callable[[int], bytes]: ...

    @property
    def secret(self) -> bytes: ...


@record
class LogWriter:
    """A writer of whole logs: epoch 0 is no claim's, under which sessions are created."""

    random_bytes: Callable[[int], bytes]
    secret: bytes
    epoch: int = 0


def seal(line: bytes, seq: int, before: bytes, writer: ChainWriter, salt: bytes = b"") -> NewEntry:
    """The entry `seq`, whose stored form is `line`, behind the chain value `before`."""
    salt = salt or writer.random_bytes(SALT_BYTES)
    digest = payload_digest(salt, line)
    return NewEntry(line, salt, next_chain(before, seq, writer.epoch, digest, writer.secret))


def event_of(encoded: Encoded, seq: int, chain: bytes) -> NewEvent:
    """The event that an `event_msg` entry is on the session's queue; `chain` is the entry's value."""
    return NewEvent(encode_event(encoded.entry), seq, chain[:4].hex(), encoded.at_ms)


def seal_session(session: NewSession, writer: ChainWriter) -> NewSession:
    """The session with its log sealed."""
    entries: list[NewEntry] = []
    events: list[NewEvent] = []
    head = GENESIS
    for seq, encoded in enumerate(session.unsealed, 1):
        entries.append(seal(encoded.line, seq, head, writer))
        head = entries[-1].chain
        if encoded.entry.type == EVENT_MSG:
            events.append(event_of(encoded, seq, head))
    return replace(session, entries=tuple(entries), events=tuple(events), unsealed=())
