"""An agent's past, read from its end: as much of it as is shown, however long it is.

Two logs are merged by time, newest first: the agent's own with its messages, and of its tree's log the
lifecycle of its agents, their approval requests, and the decisions. Each is read backwards in stretches, so
that what a page costs depends on the page. A place between two pages is one number of each.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import orjson

from orchestrator.broker.records import SessionHead
from orchestrator.core.blobs import references, resolve
from orchestrator.core.entries import DENDRO, EVENT_MSG
from orchestrator.core.frozen import record
from orchestrator.core.tree import ROOT
from orchestrator.protocol.ids import CallId
from orchestrator.protocol.wire import written
from orchestrator.rollouts.source import LogSource
from orchestrator.views.event import Event
from orchestrator.views.messages import message_in
from orchestrator.views.open_requests import ASKS
from orchestrator.views.tree import written_ms

STRETCH = 128
MOST = 4_096
"""Entries read at once: few at first, more for those who go far back. A sealed part is read as a whole."""


_TOLD = tuple(kind.encode() for kind in ("subagent_lifecycle", "request_resolved", *sorted(ASKS)))

Shows = Callable[[Mapping[str, Any]], bool]
"""Whether a message is one of those that are wanted."""


def everything(message: Mapping[str, Any]) -> bool:
    return True


class BadPlace(ValueError):
    """A text that names no place."""


@record
class Place:
    """Between entries: `seq` of the own log and `tree_seq` of the tree's are the first ones behind it."""

    seq: int
    tree_seq: int

    def __str__(self) -> str:
        return f"{self.seq}.{self.tree_seq}"

    @classmethod
    def of(cls, text: str) -> Place:
        """Raises `BadPlace`."""
        own, dot, tree = text.partition(".")
        if not (dot and own.isdigit() and tree.isdigit()):
            raise BadPlace(text)
        return cls(int(own), int(tree))


@record
class Page:
    """Events, oldest first, and the place before them; None if nothing is there."""

    events: tuple[Event, ...]
    before: Place | None


@record
class _Step:
    """An entry on the way back through a log; without an event if the entry shows nothing."""

    at_ms: int
    number: int
    event: Event | None


async def page_before(
    found: LogSource, head: SessionHead, limit: int, shows: Shows, before: Place | None = None
) -> Page:
    """The last `limit` events before a place (or the end) of those that it `shows`; all for 0."""
    at = before or Place(head.seq + 1, await _end_of_tree(found, head) + 1)
    own, tree = _own(found, head, at.seq, shows), _of_tree(found, head, at.tree_seq, shows)
    own_next, tree_next = await _step(own), await _step(tree)
    events: list[Event] = []
    while (own_next or tree_next) and not (limit and len(events) == limit):
        if tree_next is None or (own_next is not None and own_next.at_ms >= tree_next.at_ms):
            assert own_next is not None
            step, at, own_next = own_next, Place(own_next.number, at.tree_seq), await _step(own)
        else:
            step, at, tree_next = tree_next, Place(at.seq, tree_next.number), await _step(tree)
        if step.event is not None:
            events.append(step.event)
    return Page(tuple(reversed(events)), at if own_next or tree_next else None)


async def _end_of_tree(found: LogSource, head: SessionHead) -> int:
    last = await found.broker.read_tree_back(head.tree, None, 1)
    return last[0].tree_seq if last else 0


async def _step(steps: AsyncIterator[_Step]) -> _Step | None:
    return await anext(steps, None)


async def _own(found: LogSource, head: SessionHead, before: int, shows: Shows) -> AsyncIterator[_Step]:
    """The session's own log, backwards."""
    last, stretch = min(before - 1, head.seq), STRETCH
    while last > 0:
        after = max(0, last - stretch)
        entries = [stored async for stored in found.log(head.session, last, after)]
        for stored in reversed(entries):
            event = await _event_of(found, head, orjson.loads(stored.payload), shows)
            yield _Step(written_ms(stored.payload), stored.seq, event)
        last, stretch = after, min(2 * stretch, MOST)


async def _event_of(
    found: LogSource, head: SessionHead, line: Mapping[str, Any], shows: Shows
) -> Event | None:
    """The event that a line of the session's own log shows, or None."""
    type, payload = line["type"], line["payload"]
    if type == EVENT_MSG and shows(payload):
        texts = await found.large_texts(head.tree, references(payload))
        return Event(line.get("id", ""), resolve(dict(payload), texts.get))
    if type != DENDRO:
        return None
    if head.agent_id == ROOT and payload.get("kind") == "answer" and payload.get("agent_id") is None:
        # A decision on what the root itself had asked; one that was sent on names its agent.
        return _answered(head, payload)
    message = await message_in(found, head, payload)
    return Event("", message) if message is not None and shows(message) else None


def _answered(head: SessionHead, payload: Mapping[str, Any]) -> Event:
    """A decision on a request of the root itself: the tree's log has an event of it only at times."""
    # Both take long to import, and most pages show none.
    from orchestrator.core import facts as f
    from orchestrator.protocol.events import RequestResolved

    answer = f.decode(payload)
    assert isinstance(answer, f.Answered)
    resolved = RequestResolved(
        call_id=CallId(answer.call_id),
        turn_id=answer.turn,
        decision=answer.decision,
        who=answer.who,
        resolved_at_ms=answer.answered_ms,
        agent_id=ROOT,
        session_id=head.session,
        agent_path=str(ROOT),
    )
    return Event(answer.turn, written(resolved))


async def _of_tree(found: LogSource, head: SessionHead, before: int, shows: Shows) -> AsyncIterator[_Step]:
    """The steps of the tree's log that concern this agent, backwards."""
    stretch = STRETCH
    while page := await found.broker.read_tree_back(head.tree, before, stretch):
        for entry in page:
            event, at_ms = None, entry.at_ms
            # Looked for before it is decoded: most of a tree's log is about other things.
            if any(kind in entry.payload for kind in _TOLD):
                logged = orjson.loads(entry.payload)
                if _concerns(head, logged["msg"]) and shows(logged["msg"]):
                    event = Event(logged["id"], logged["msg"])
                    # By the clock of the agent's own log: what was allowed begins in the same step.
                    at_ms = logged["msg"].get("resolved_at_ms", at_ms)
            yield _Step(at_ms, entry.tree_seq, event)
        before, stretch = page[-1].tree_seq, min(2 * stretch, MOST)


def _concerns(head: SessionHead, message: Mapping[str, Any]) -> bool:
    """The root gets every event; an agent its children's lifecycle, and the decisions on its requests."""
    match message["type"]:
        case "subagent_lifecycle":
            return head.agent_id in (ROOT, (message.get("subagent") or {}).get("parent_agent_id"))
        case "request_resolved":
            # Of the root's own its log tells at the very place, also where no event does.
            return message["agent_id"] != ROOT and head.agent_id in (ROOT, message["agent_id"])
        case kind:
            return head.agent_id == ROOT and kind in ASKS
