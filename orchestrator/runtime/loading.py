"""The state of a claimed session: cached, or snapshot and tail, or the whole log.

The chain is checked over everything that is read. A broken one stops the session before
it does anything: work built on an altered log would hide the alteration.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator

from orchestrator.broker.records import Claimed, StoredEntry
from orchestrator.core.chain import GENESIS, next_chain, payload_digest
from orchestrator.core.evolve import evolve
from orchestrator.core.ids import SessionId
from orchestrator.core.snapshot import decode_snapshot
from orchestrator.core.state import State
from orchestrator.core.stored import decode_entry
from orchestrator.runtime.journal import Position
from orchestrator.runtime.ports import Ports

PAGE = 500
FOLD_SLICE_S = 0.005
"""A fold gives the loop back after this long: other sessions' renewals and streams go on."""


class BrokenLog(Exception):
    """The log does not follow from itself; `dendro verify` names the entry."""


class Cache:
    """The last positions of sessions that this worker held; used only if the claim finds them current."""

    def __init__(self, size: int = 256) -> None:
        self._size = size
        self._positions: OrderedDict[SessionId, Position] = OrderedDict()

    def keep(self, session: SessionId, position: Position) -> None:
        self._positions[session] = position
        self._positions.move_to_end(session)
        if len(self._positions) > self._size:
            self._positions.popitem(last=False)

    def current(self, claimed: Claimed) -> Position | None:
        position = self._positions.pop(claimed.claim.session, None)
        if position is None or (position.seq, position.head) != (claimed.seq, claimed.head):
            return None
        return position


async def load(ports: Ports, claimed: Claimed, cache: Cache, secret: bytes = b"") -> Position:
    """Where the claimed session stands; raises `BrokenLog` if its log cannot be trusted."""
    session = claimed.claim.session
    position = cache.current(claimed) or await _from_snapshot(ports, claimed)
    if position.seq < claimed.seq:
        entries = read_entries(ports, session, position.seq, claimed.seq)
        position = await fold_entries(ports, position, entries, secret)
    if (position.seq, position.head) != (claimed.seq, claimed.head):
        raise BrokenLog(
            f"the log of session {session} ends at {position.seq}, its claim says {claimed.seq}: "
            "entries are missing or were altered"
        )
    return position


async def _from_snapshot(ports: Ports, claimed: Claimed) -> Position:
    if claimed.snapshot_seq:
        data = await ports.broker.snapshot_of(claimed.claim.session)
        found = decode_snapshot(data) if data else None
        if found is not None:
            return Position(*found)
    return Position(State(), 0, GENESIS)


async def read_entries(
    ports: Ports, session: SessionId, after: int, through: int
) -> AsyncIterator[StoredEntry]:
    """The entries after `after` up to `through`, page by page."""
    while after < through:
        page = await ports.broker.read_rollout(session, after, PAGE)
        for entry in page:
            if entry.seq <= through:
                yield entry
        if not page:
            return
        after = page[-1].seq


async def fold_entries(
    ports: Ports, position: Position, entries: AsyncIterator[StoredEntry], secret: bytes
) -> Position:
    """Checks and folds; yields to the loop every few milliseconds."""
    state, seq, head = position.state, position.seq, position.head
    slice_began = ports.monotonic()
    async for stored in entries:
        digest = payload_digest(stored.salt, stored.payload)
        head = next_chain(head, seq + 1, stored.epoch, digest, secret)
        if stored.seq != seq + 1 or head != stored.chain:
            raise BrokenLog(f"entry {seq + 1} does not follow from the one before it")
        seq = stored.seq
        state = evolve(state, decode_entry(stored.payload), seq)
        if ports.monotonic() - slice_began > FOLD_SLICE_S:
            await ports.sleep(0)
            slice_began = ports.monotonic()
    return Position(state, seq, head)
