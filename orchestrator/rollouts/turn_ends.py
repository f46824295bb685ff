"""The place in a log at which a turn ended: its `token_count` names the response that a client knows it by.

The whole log is walked along its chain, so that a place is believed only if the entries around it are.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from orchestrator.broker.records import StoredEntry
from orchestrator.core.chain import GENESIS, BrokenLink, ChainWalk
from orchestrator.core.entries.stored import decode_entry, stored_kind
from orchestrator.core.frozen import record
from orchestrator.protocol.events import TokenCount
from orchestrator.rollouts.full_log import pages
from orchestrator.rollouts.segments import links_of


@record
class TurnEnd:
    """The entry that ended a turn (0: there is none), and the end of the log as the walk found it."""

    seq: int = 0
    last: int = 0
    head: bytes = GENESIS
    broken: BrokenLink | None = None


async def end_of_turn(entries: AsyncIterator[StoredEntry], secret: bytes, response_id: str | None) -> TurnEnd:
    """The last turn that ended with a response, or with any if none is named."""
    walk, seq = ChainWalk(secret), 0
    async for page in pages(entries):
        broken = walk.take(tuple(links_of(page)))
        if broken is not None:
            return TurnEnd(seq, walk.seq, walk.head, broken)
        seq = _last_end(page, response_id) or seq
    return TurnEnd(seq, walk.seq, walk.head)


def _last_end(page: Sequence[StoredEntry], response_id: str | None) -> int:
    for stored in reversed(page):
        # Decoding every entry of a long log would take seconds.
        if stored_kind(stored.payload) is TokenCount and _ends(stored, response_id):
            return stored.seq
    return 0


def _ends(stored: StoredEntry, response_id: str | None) -> bool:
    found = decode_entry(stored.payload).payload.get("response_id")
    return bool(found) and response_id in (None, found)
