"""The events of a session's running turn, from its log: what a connection that comes later starts from."""

from __future__ import annotations

from orchestrator.broker.records import AT_REST, SessionHead
from orchestrator.core.blobs import references, resolve
from orchestrator.core.frozen import replace
from orchestrator.protocol.events import TaskStarted
from orchestrator.rollouts.source import LogSource
from orchestrator.views.event import Event
from orchestrator.views.for_tenants import for_tenant
from orchestrator.views.turns.log import told_by

LOOK_BACK = 512
"""Entries of the first look; a longer turn is looked for in eight times as many."""


async def events_of_running_turn(found: LogSource, head: SessionHead) -> list[Event]:
    """The events from the begin of the running turn to the head; none if no turn runs."""
    if head.status in AT_REST:
        return []
    reach = LOOK_BACK
    while True:
        events = await events_of_log(found, head, max(0, head.seq - reach))
        begin = max((at for at, event in enumerate(events) if event.kind is TaskStarted), default=None)
        if begin is not None:
            return events[begin:]
        if reach >= head.seq:
            return []
        reach *= 8


async def events_of_log(found: LogSource, head: SessionHead, after: int) -> list[Event]:
    """The events of a session's log behind an entry, up to the head, with their large texts."""
    events = []
    async for stored in found.log(head.session, head.seq, after):
        event = told_by(stored)
        if event is not None:
            texts = await found.large_texts(head.tree, references(event.msg))
            told = resolve(event.msg, texts.get)
            events.append(replace(event, msg=for_tenant(told) if head.labels.namespace else told))
    return events
