"""The events of a session's running turn, from its log: what a connection that comes later starts from."""

from __future__ import annotations

from orchestrator.broker.records import SessionHead
from orchestrator.core.blobs import references, resolve
from orchestrator.core.entries import EVENT_MSG
from orchestrator.core.stored import decode_entry
from orchestrator.rollouts.source import LogSource
from orchestrator.views.event import Event

LOOK_BACK = 512
"""Entries of the first look; a longer turn is looked for in eight times as many."""
AT_REST = frozenset({"idle", "closed"})
BEGINS = "task_started"


async def events_of_running_turn(found: LogSource, head: SessionHead) -> list[Event]:
    """The events from the begin of the running turn to the head; none if no turn runs."""
    if head.status in AT_REST:
        return []
    reach = LOOK_BACK
    while True:
        events = await events_of_log(found, head, max(0, head.seq - reach))
        begin = max((at for at, event in enumerate(events) if event.type == BEGINS), default=None)
        if begin is not None:
            return events[begin:]
        if reach >= head.seq:
            return []
        reach *= 8


async def events_of_log(found: LogSource, head: SessionHead, after: int) -> list[Event]:
    """The events of a session's log behind an entry, up to the head, with their large texts."""
    events = []
    async for stored in found.log(head.session, head.seq, after):
        entry = decode_entry(stored.payload)
        if entry.type == EVENT_MSG:
            texts = await found.large_texts(head.tree, references(entry.payload))
            events.append(Event(entry.id, resolve(dict(entry.payload), texts.get)))
    return events
