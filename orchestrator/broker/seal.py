"""Sealing entries: a stored line gets its salt and its chain value, and is ready for a script.

The one place where a new chain value is computed. Under which claim, with whose randomness and which key
is the writer's to say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from orchestrator.broker.records import NewEntry, NewEvent
from orchestrator.core.blobs import externalise
from orchestrator.core.chain import GENESIS, SALT_BYTES, next_chain, payload_digest
from orchestrator.core.entries import EVENT_MSG, Entry
from orchestrator.core.stored import Encoded, encode_entry, encode_event, encode_value


class ChainWriter(Protocol):
    """The parts of a log's writer that sealing needs."""

    @property
    def epoch(self) -> int: ...

    @property
    def random_bytes(self) -> Callable[[int], bytes]: ...

    @property
    def secret(self) -> bytes: ...


@dataclass(frozen=True, slots=True)
class LogWriter:
    """A writer of whole logs: epoch 0 is no claim's, under which sessions are created."""

    random_bytes: Callable[[int], bytes]
    secret: bytes
    epoch: int = 0


def seal(line: bytes, seq: int, before: bytes, writer: ChainWriter) -> NewEntry:
    """The entry `seq`, whose stored form is `line`, behind the chain value `before`."""
    salt = writer.random_bytes(SALT_BYTES)
    digest = payload_digest(salt, line)
    return NewEntry(line, salt, next_chain(before, seq, writer.epoch, digest, writer.secret))


def event_of(encoded: Encoded, seq: int, chain: bytes) -> NewEvent:
    """The event that an `event_msg` entry is on the session's queue; `chain` is the entry's value."""
    return NewEvent(encode_event(encoded.entry), seq, chain[:4].hex())


@dataclass(frozen=True, slots=True)
class FirstEntries:
    """The log of a session as it is created, and the events among its entries."""

    entries: tuple[NewEntry, ...]
    events: tuple[NewEvent, ...]


def seal_first(
    entries: Iterable[Entry], at_ms: int, blobs: dict[str, bytes], writer: ChainWriter
) -> FirstEntries:
    """Seals the entries of a new session; their large texts are added to `blobs`."""
    sealed: list[NewEntry] = []
    events: list[NewEvent] = []
    head = GENESIS
    for seq, entry in enumerate(entries, 1):
        encoded = encode_entry(entry, at_ms, blobs)
        sealed.append(seal(encoded.line, seq, head, writer))
        head = sealed[-1].chain
        if entry.type == EVENT_MSG:
            events.append(event_of(encoded, seq, head))
    return FirstEntries(tuple(sealed), tuple(events))


def encode_request(request: Mapping[str, Any], blobs: dict[str, bytes]) -> bytes:
    """An open approval as the fleet's queue keeps it; large changes go to `blobs`."""
    return encode_value(externalise(request, blobs), blobs)
