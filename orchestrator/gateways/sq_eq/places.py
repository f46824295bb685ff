"""Places in a session's events as one number, which a client keeps and comes back with.

The number of the event in the EQ, and behind it, in eight digits, the entry of the log that it belongs to:
the first finds it again while the EQ keeps it, the second afterwards. It grows from event to event.
"""

from __future__ import annotations

from orchestrator.broker.follow import BEGINNING, EqCursor, hash8_of
from orchestrator.broker.logs import Logs
from orchestrator.broker.records import SessionHead
from orchestrator.views.event import Event

STEP = 100_000_000
MOST = 1 << 53
"""Any program that reads JSON keeps a smaller number."""
NOT_THERE = "0" * 8
"""A hash that no entry has: following from there tells of the gap."""


def number_of(cursor: EqCursor) -> int:
    """The number of a cursor."""
    return cursor.n * STEP + cursor.seq


def number_after(event: Event, before: int) -> int:
    """The number of an event that follows the one with the number `before`."""
    if event.cursor is not None:
        return number_of(event.cursor)
    # Read from the log in the place of events that are gone, or a warning about them.
    return max(before, before // STEP * STEP + event.seq)


async def cursor_of(logs: Logs, head: SessionHead, number: int) -> EqCursor:
    """The cursor that a client's number means, wherever the session stands by now."""
    n, seq = divmod(number, STEP)
    if number == 0:
        return BEGINNING
    if n > head.eq_n or seq > head.seq:
        return EqCursor(n, seq, NOT_THERE)
    kept = await logs.read_eq(head.session, n - 1, 2) if n else ()
    if kept and (kept[0].n, kept[0].seq) == (n, seq):
        return EqCursor(n, seq, kept[0].hash8)
    if any(event.n == n + 1 and event.seq <= seq for event in kept):
        # Redis went back: the next event belongs to an entry that the client is behind already.
        return EqCursor(n, seq, NOT_THERE)
    entries = await logs.read_rollout(head.session, seq - 1, 1) if seq else ()
    if entries and entries[0].seq == seq:
        return EqCursor(n, seq, hash8_of(entries[0].chain))
    return EqCursor(n, seq, NOT_THERE)
