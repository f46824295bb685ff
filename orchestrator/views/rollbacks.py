"""The logs of which a process knows that nothing in them takes turns back.

Turns that were rolled back are told of behind them only. A log is looked through for that once, and what was
added since each time after; a log that was put back to an earlier moment is looked through anew.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from orchestrator.broker.records import StoredEntry
from orchestrator.core.frozen import record
from orchestrator.core.ids import SessionId
from orchestrator.rollouts.source import LogSource

MOST_KNOWN = 1_000
"""Sessions; the least lately used are forgotten."""
MOST_READ = 4_096
"""Entries of one read."""


@record
class Seen:
    """A log up to an entry with the chain's value there, and whether something in it takes turns back."""

    seq: int = 0
    chain: bytes = b""
    takes_back: bool = False


@dataclass(slots=True)
class Rollbacks:
    """The stretches of logs that were looked through, by session."""

    _seen: OrderedDict[SessionId, Seen] = field(default_factory=OrderedDict)

    async def any_in(
        self, found: LogSource, session: SessionId, through: int, takes_back: Callable[[StoredEntry], bool]
    ) -> bool:
        """Whether an entry up to `through` takes turns back."""
        seen = self._seen.pop(session, Seen())
        if not await _holds(found, session, seen):
            seen = Seen()
        while seen.seq < through:
            seen = await _further(found, session, seen, min(through, seen.seq + MOST_READ), takes_back)
        self._seen[session] = seen
        while len(self._seen) > MOST_KNOWN:
            self._seen.popitem(last=False)
        return seen.takes_back


async def _holds(found: LogSource, session: SessionId, seen: Seen) -> bool:
    """Whether the log still has the entry up to which it was read."""
    if not seen.seq:
        return True
    async for stored in found.log(session, seen.seq, seen.seq - 1):
        return stored.chain == seen.chain
    return False


async def _further(
    found: LogSource, session: SessionId, seen: Seen, through: int, takes_back: Callable[[StoredEntry], bool]
) -> Seen:
    last, taken = None, seen.takes_back
    async for stored in found.log(session, through, seen.seq):
        taken, last = taken or takes_back(stored), stored
    # A log that ends before its head is read again by whoever comes next.
    return Seen(through, b"" if last is None else last.chain, taken)
