"""The state of a session: cached, or snapshot and tail, or the whole log.

The chain is checked over everything that is read. A broken one stops the session before
it does anything: work built on an altered log would hide the alteration. What is not in the
chain is believed only as far as something else proves it: where the chain is keyed, a snapshot
must bear a code of the same key, and without one the log is folded from its beginning.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass, replace
from functools import cache
from operator import attrgetter
from typing import NamedTuple, Protocol, cast

from orchestrator.broker.broker import Broker
from orchestrator.broker.errors import Unavailable
from orchestrator.broker.logs import Logs
from orchestrator.broker.records import Claimed, Refused, SessionHead, StoredEntry, Unstored
from orchestrator.core.chain import GENESIS, next_chain
from orchestrator.core.entries import decode_entry, shows_only, stored_kind
from orchestrator.core.evolve import evolve
from orchestrator.core.facts import Redacted
from orchestrator.core.frozen import record
from orchestrator.core.ids import SessionId, TreeId
from orchestrator.core.settings import SessionFacts
from orchestrator.core.snapshot import decode_snapshot, encode_snapshot
from orchestrator.core.state import State
from orchestrator.recent import Recent
from orchestrator.rollouts.archive import Archive, Storage
from orchestrator.rollouts.full_log import full_log, head_of
from orchestrator.rollouts.object_store import ArchiveUnavailable
from orchestrator.rollouts.rollout_file import blob_hashes
from orchestrator.rollouts.segments import BrokenArchive
from orchestrator.rollouts.session_summary import Position
from orchestrator.runtime import log

_LOOKED_EVERY = 16
"""Entries behind which a fold looks at the clock."""
FOLD_SLICE_S = 0.005
"""A fold gives the loop back after this long: other sessions' renewals and streams go on."""
_TAIL_KEPT = 256
"""Entries that a load keeps for the rollout's file, which may lack them: else they would be read again."""


CACHE_BYTES = 64 << 20
"""Some 250 usual sessions, or 16 whose conversations fill the longest windows: as many as a worker runs."""
_COUNTED_EVERY = 256 << 10
"""Bytes of new entries behind which the texts of a state are counted anew: it may have been compacted."""


class BrokenLog(Exception):
    """The log does not follow from itself; `dendro verify` names the entry."""


class Weight(NamedTuple):
    """The bytes of a state's texts, known without a look at each of them at the end of each turn."""

    counted: int
    """Their bytes when they were counted last."""
    since: int = 0
    """Those of the entries behind that: as much as the texts can have grown by."""


@record
class Loaded:
    """The position that a runner begins with, and the entries that the rollout's file may lack."""

    position: Position
    unexported: tuple[StoredEntry, ...] = ()
    """The log's last entries, as far as they are not known to be in the rollout's file."""
    unexported_bytes: int = 0
    """The bytes of their payloads, known without a look at each of them at the end of each turn."""
    snapshot_used: bool = True
    """False if the stored snapshot was of no use: then it is worth writing another one."""
    weight: Weight | None = None
    """The size of the position's texts, if it was counted."""


class Cache:
    """How this worker left its sessions: what the claim has to find, or what it has to follow from.

    Bounded by number and by the bytes of texts in it: who is not in it is loaded from its snapshot.
    """

    def __init__(self, size: int = 256, most_bytes: int = CACHE_BYTES) -> None:
        self._left = Recent[SessionId, Loaded](most_bytes, most=size)

    def keep(self, session: SessionId, left: Loaded) -> None:
        known = left.weight
        if known is None or known.since > max(known.counted, _COUNTED_EVERY):
            known = Weight(text_bytes(left.position.state))
            left = replace(left, weight=known)
        self._left.put(session, left, sum(known) + left.unexported_bytes)

    def known(self, session: SessionId) -> State | None:
        """The state as this worker left it; None if it has none. It stays in the cache."""
        left = self._left.get(session)
        return left.position.state if left is not None else None

    def take(self, session: SessionId) -> Loaded | None:
        return self._left.take(session)

    def written(self, session: SessionId, at: Position, through: int) -> None:
        """Notes that a session's file has all up to `through`, if the session was not claimed since."""
        left = self._left.get(session)
        if left is None or left.position is not at:
            return
        behind = tuple(entry for entry in left.unexported if entry.seq > through)
        self.keep(session, replace(left, unexported=behind, unexported_bytes=payload_bytes(behind)))


def payload_bytes(entries: Iterable[StoredEntry]) -> int:
    return sum(len(entry.payload) for entry in entries)


def text_bytes(value: object) -> int:
    """The size of all texts in a value, which is nearly all that it takes; a character counts as one byte."""
    total, left = 0, [value]
    while left:
        each = left.pop()
        kind = type(each)
        if kind is str or kind is bytes:
            total += len(cast(str, each))
        elif kind is dict:
            left += cast(dict[str, object], each).values()
        elif kind is tuple or kind is list:
            left += cast(Iterable[object], each)
        else:
            left += _parts(each, kind)
    return total


def _parts(value: object, kind: type) -> Iterable[object]:
    """The values inside of one of the rarer kinds; the text itself for a text of a named type."""
    if (names := _fields(kind)) is not None:
        return names(value)
    if isinstance(value, str | bytes):
        return (bytes(len(value)),)
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, tuple | list | frozenset) else ()


@cache
def _fields(kind: type) -> Callable[[object], tuple[object, ...]] | None:
    """The reader of a record's fields; None for what is no record."""
    names = [field.name for field in fields(kind)] if is_dataclass(kind) else []
    if len(names) < 2:
        return (lambda value: tuple(getattr(value, name) for name in names)) if names else None
    return attrgetter(*names)


class FoldSource(Protocol):
    """The storage that a fold reads, and the clock by which it shares its thread: ports or upkeep."""

    @property
    def broker(self) -> Broker: ...

    @property
    def archive(self) -> Archive | None: ...

    @property
    def monotonic(self) -> Callable[[], float]: ...

    @property
    def sleep(self) -> Callable[[float], Awaitable[None]]: ...


@record
class LogEnd:
    """The end of a session's log as its hash in Redis says: a fold has to arrive there."""

    session: SessionId
    seq: int
    head: bytes
    snapshot_seq: int


BEGINNING = Position(State(), 0, GENESIS)


async def load(source: FoldSource, claimed: Claimed, cache: Cache, secret: bytes = b"") -> Loaded:
    """Where the claimed session stands; raises `BrokenLog` if its log cannot be trusted."""
    left = cache.take(claimed.claim.session)
    if left is not None and (left.position.seq, left.position.head) == (claimed.seq, claimed.head):
        return left
    end = LogEnd(claimed.claim.session, claimed.seq, claimed.head, claimed.snapshot_seq)
    tail: deque[StoredEntry] = deque(maxlen=_TAIL_KEPT)
    fold = await _fold(source, end, secret, left.position if left is not None else None, tail)
    _require_own_place(claimed, fold.position.state.facts)
    return Loaded(fold.position, tuple(tail), payload_bytes(tail), fold.behind >= end.snapshot_seq)


def _require_own_place(claimed: Claimed, facts: SessionFacts) -> None:
    """Raises `BrokenLog` if the session's hash says another tree, agent or pool than its log.

    The hash is in no chain: an edit there would move the session.
    """
    claim = claimed.claim
    by_hash, by_log = (claim.tree, claimed.agent_id, claim.pool), (facts.tree_id, facts.agent_id, facts.pool)
    if facts.session_id and by_hash != by_log:
        raise BrokenLog(
            f"the hash of session {claim.session} says tree, agent and pool {_listed(by_hash)}, "
            f"its log says {_listed(by_log)}: the hash was changed"
        )


def _listed(values: Iterable[object]) -> str:
    return ", ".join(map(str, values))


def end_of(head: SessionHead) -> LogEnd:
    return LogEnd(head.session, head.seq, head.head, head.snapshot_seq)


async def folded(
    source: FoldSource, end: LogEnd, secret: bytes = b"", known: Position | None = None
) -> Position:
    """The state at the log's end; raises `BrokenLog`."""
    return (await _fold(source, end, secret, known)).position


@record
class _Fold:
    """A state, and the entry behind which the fold of it began."""

    position: Position
    behind: int


async def _fold(
    source: FoldSource,
    end: LogEnd,
    secret: bytes,
    known: Position | None = None,
    tail: deque[StoredEntry] | None = None,
) -> _Fold:
    """Folds from `known`, an earlier position, or from the snapshot if that one is nearer to the end.

    Either is proved by the chain: what comes behind it must lead to the head that the session's hash names.
    `tail` is given the entries that were read.
    """
    if known is not None and end.snapshot_seq <= known.seq <= end.seq:
        try:
            return _Fold(await _folded_from(source, known, end, secret, tail), known.seq)
        except BrokenLog as error:
            # Redis went back to before it, and on from there: what this worker saw never happened.
            log.warning("session %s: its cached state is of no use: %s", end.session, error)
    useless = ""
    if end.snapshot_seq:
        try:
            snapshot = await _snapshot(source.broker.logs, end, secret)
            if snapshot is not None:
                return _Fold(await _folded_from(source, snapshot, end, secret, tail), snapshot.seq)
        except (_UselessSnapshot, BrokenLog) as error:
            # A snapshot of a branch that Redis has forgotten fits no tail. The log itself decides.
            log.warning("session %s: its snapshot is of no use: %s", end.session, error)
            useless = f" (its snapshot is of no use: {error})"
    try:
        return _Fold(await _folded_from(source, BEGINNING, end, secret, tail), 0)
    except BrokenLog as error:
        raise BrokenLog(f"{error}{useless}") from error


class _UselessSnapshot(Exception):
    """A stored snapshot that nothing may be built on; without it a load only takes longer."""


async def _snapshot(reader: Logs, end: LogEnd, secret: bytes) -> Position | None:
    """The stored snapshot, None if this version has none to read; raises `_UselessSnapshot`."""
    data = await reader.snapshot_of(end.session)
    if not data:
        return None
    try:
        found = decode_snapshot(data, secret)
    except (ValueError, KeyError, TypeError) as error:
        raise _UselessSnapshot(str(error)) from error
    if found is not None and found[1] > end.seq:
        raise _UselessSnapshot(f"it is of entry {found[1]}, and the log ends before")
    return Position(*found) if found is not None else None


async def _folded_from(
    source: FoldSource, start: Position, end: LogEnd, secret: bytes, tail: deque[StoredEntry] | None
) -> Position:
    entries = full_log(source.broker.logs, source.archive, end.session, start.seq, end.seq)
    if start.seq:
        entries = _nothing_redacted(entries)
    if tail is not None:
        tail.clear()
        entries = _kept(entries, tail)
    try:
        position = await fold_entries(source, start, entries, secret)
    except BrokenArchive as error:
        raise BrokenLog(f"the log of session {end.session} cannot be read in full: {error}") from error
    if (position.seq, position.head) != (end.seq, end.head):
        raise BrokenLog(
            f"the log of session {end.session} ends at {position.seq}, its hash says {end.seq}: "
            "entries are missing or were altered"
        )
    named = position.state.facts.session_id
    if named and named != end.session:
        raise BrokenLog(f"what is stored as session {end.session} is the log of session {named}")
    return position


async def _nothing_redacted(entries: AsyncIterator[StoredEntry]) -> AsyncIterator[StoredEntry]:
    """Raises `BrokenLog` where an entry says that words of a state of before were redacted."""
    async for entry in entries:
        if stored_kind(entry.payload) is Redacted:
            raise BrokenLog(f"entry {entry.seq} says that words of before were redacted")
        yield entry


async def _kept(entries: AsyncIterator[StoredEntry], tail: deque[StoredEntry]) -> AsyncIterator[StoredEntry]:
    async for entry in entries:
        tail.append(entry)
        yield entry


async def fold_entries(
    source: FoldSource, position: Position, entries: AsyncIterator[StoredEntry], secret: bytes
) -> Position:
    """Checks and folds; yields to the loop every few milliseconds."""
    state, seq, head = position.state, position.seq, position.head
    clock = source.monotonic
    slice_began = clock()
    async for stored in entries:
        payload = stored.payload
        try:
            head = next_chain(head, seq + 1, stored.epoch, stored.covered, secret)
        except OverflowError as error:
            raise BrokenLog(f"entry {seq + 1} has a number that no entry can have") from error
        if stored.seq != seq + 1 or head != stored.chain:
            # Under another key, or none, nothing follows from the first entry on.
            key = "; the log may be keyed by another chain.secret than this worker has" if seq == 0 else ""
            raise BrokenLog(f"entry {seq + 1} does not follow from the one before it{key}")
        seq += 1
        if not shows_only(payload):
            state = evolve(state, decode_entry(payload), seq)
        if not seq % _LOOKED_EVERY and clock() - slice_began > FOLD_SLICE_S:
            await source.sleep(0)
            slice_began = clock()
    return Position(state, seq, head)


# ── restore ───────────────────────────────────────────────────────────────────────────────────────
# Bringing an archived session back, when somebody submits to it or wants to read its state.
#
# Redis has only the session's hash; the archive has the log and the large texts. The log is folded again,
# so what comes back was proved by the chain, entry by entry.


_PAGE = 500


async def restore_session(storage: Storage, session: SessionId) -> bool:
    """Makes an archived session claimable again; False if it was not archived.

    Call it when a submission is answered by `SessionArchived`, then submit again. Any number of
    callers may do so at once. Raises `UnknownSession`, `BrokenLog` if the archive cannot be trusted,
    `ArchiveUnavailable`, or `Unavailable` if Redis lost the large texts that were put back.
    """
    head = await head_of(storage.broker.logs, session)
    if not head.archived:
        return False
    try:
        position = await folded(storage, end_of(head), storage.secret)
        texts = await _restored_blobs(storage, head.tree, session)
    except (BrokenLog, BrokenArchive, ArchiveUnavailable):
        # What retention deletes meanwhile is not damaged, it is gone.
        await head_of(storage.broker.logs, session)
        raise
    # A claim folds the state anew, so what were kept of this one would serve no other.
    snapshot = encode_snapshot(position.state, position.seq, position.head, storage.secret, again=False)
    answer = await storage.broker.commits.restore(session, position.seq, snapshot, texts)
    if isinstance(answer, Unstored):
        raise Unavailable(f"Redis lost {len(answer.digests)} large texts of session {session}")
    if isinstance(answer, Refused):
        raise BrokenLog(f"session {session} was not restored: {answer.reason}")
    return True


async def _restored_blobs(storage: Storage, tree: TreeId, session: SessionId) -> list[str]:
    """The hashes of the session's large texts, all of them in Redis again but those that nobody has."""
    found = []
    for digest in sorted(await referenced_blobs(storage, session)):
        if await storage.blobs.get(tree, digest) is None:
            content = await storage.archive.read_blob(tree, digest)
            if content is None:
                continue
            await storage.blobs.put(tree, content)
        found.append(digest)
    return found


async def referenced_blobs(storage: Storage, session: SessionId) -> set[str]:
    """The hashes of all large texts that the session's log mentions."""
    found: set[str] = set()
    page: list[StoredEntry] = []
    async for entry in full_log(storage.broker.logs, storage.archive, session):
        page.append(entry)
        if len(page) == _PAGE:
            found |= blob_hashes(page)
            page = []
            await storage.sleep(0)
    return found | blob_hashes(page)
