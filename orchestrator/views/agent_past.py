"""An agent's past, read from its end: as much of it as is shown, however long it is.

Two logs are merged by time, newest first: the agent's own with its messages, and of its tree's log the
lifecycle of its agents, their approval requests, and the decisions. Each is read backwards in stretches, so
that what a page costs depends on the page. A place between two pages is one number of each.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING, Any

import orjson

from orchestrator.broker.records import SessionHead, StoredEntry
from orchestrator.core import facts as f
from orchestrator.core.blobs import may_refer, references, resolve
from orchestrator.core.entries import (
    EventKind,
    decode_entry,
    is_event,
    line_ms,
    published_kind,
    read_event,
    stored_kind,
)
from orchestrator.core.frozen import record
from orchestrator.core.tree import ROOT
from orchestrator.protocol.events import EVENTS, RequestResolved, SubagentLifecycle
from orchestrator.protocol.wire import JsonObject, written
from orchestrator.requests import TO_PEOPLE
from orchestrator.rollouts.log_source import LogSource
from orchestrator.views.event import Event
from orchestrator.views.event_text import GIVEN
from orchestrator.views.readable import readable_head

if TYPE_CHECKING:
    from orchestrator.broker.records import SessionHead
    from orchestrator.core.entries import Json
    from orchestrator.core.tree import Mail
    from orchestrator.rollouts.log_source import LogSource
    from orchestrator.views.event import Event

STRETCH = 128
MOST = 4_096
"""Entries read at once: few at first, more for those who go far back. A sealed part is read as a whole."""
_TOLD = frozenset({SubagentLifecycle, RequestResolved, *(EVENTS[kind] for kind in TO_PEOPLE)})
"""Events of a tree's log that belong to an agent's past."""

Shows = Callable[[Mapping[str, Any]], bool]
"""Whether a message is one of those that are wanted."""


def everything(message: Mapping[str, Any]) -> bool:
    return True


_PLACE = re.compile("([0-9]{1,15})[.]([0-9]{1,15})")


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
        found = _PLACE.fullmatch(text)
        if found is None:
            raise BadPlace(text)
        return cls(int(found[1]), int(found[2]))


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
    found: LogSource,
    head: SessionHead,
    limit: int,
    shows: Shows,
    before: Place | None = None,
    within: int = 0,
) -> Page:
    """The last `limit` events before a place (or the end) of those that it `shows`; all for 0.

    No more than `within` entries are looked at, if it is not 0.
    """
    at = before or Place(head.seq + 1, await _end_of_tree(found, head) + 1)
    own, tree = _own(found, head, at.seq, shows), _of_tree(found, head, at.tree_seq, shows)
    own_next, tree_next = await _step(own), await _step(tree)
    events: list[Event] = []
    looked = 0
    while (
        (own_next or tree_next) and not (limit and len(events) == limit) and not (within and looked == within)
    ):
        looked += 1
        if tree_next is None or (own_next is not None and own_next.at_ms >= tree_next.at_ms):
            assert own_next is not None
            step, at, own_next = own_next, Place(own_next.number, at.tree_seq), await _step(own)
        else:
            step, at, tree_next = tree_next, Place(at.seq, tree_next.number), await _step(tree)
        if step.event is not None:
            events.append(step.event)
    return Page(tuple(reversed(events)), at if own_next or tree_next else None)


async def _end_of_tree(found: LogSource, head: SessionHead) -> int:
    last = await found.broker.logs.read_tree_back(head.tree, None, 1)
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
            event = await _event_of(found, head, stored, shows)
            yield _Step(line_ms(stored.payload), stored.seq, event)
        last, stretch = after, min(2 * stretch, MOST)


async def _event_of(found: LogSource, head: SessionHead, stored: StoredEntry, shows: Shows) -> Event | None:
    """The event that an entry of the session's own log shows, or None."""
    kind = stored_kind(stored.payload)
    if is_event(kind):
        entry = decode_entry(stored.payload)
        if not shows(entry.payload):
            return None
        if not may_refer(stored.payload):
            return Event(entry.id, dict(entry.payload))
        texts = await found.large_texts(head.tree, references(entry.payload))
        return Event(entry.id, resolve(dict(entry.payload), texts.get))
    if kind not in HOLD_MESSAGES and kind not in _WITH_SENDER:
        return None
    fact = f.decode(decode_entry(stored.payload).payload)
    if isinstance(fact, f.TaskBegun | f.Steered):
        return _given(fact, shows)
    if isinstance(fact, f.Answered):
        # A decision on what the root itself had asked; one that was sent on names its agent.
        return _answered(head, fact) if head.agent_id == ROOT and fact.agent_id is None else None
    message = await message_in(found, head, fact)
    return Event("", message) if message is not None and shows(message) else None


_WITH_SENDER = frozenset({f.Answered, f.TaskBegun, f.Steered})


def _given(fact: f.TaskBegun | f.Steered, shows: Shows) -> Event | None:
    """The sender of the task, or of words that joined it; None where the log does not say it."""
    if fact.by is None:
        return None
    message = {"type": GIVEN, "what": fact.kind, **fact.by.wire()}
    return Event(fact.id, message) if shows(message) else None


def _answered(head: SessionHead, answer: f.Answered) -> Event:
    """A decision on a request of the root itself: the tree's log has an event of it only at times."""
    resolved = RequestResolved(
        call_id=answer.call_id,
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
    while page := await found.broker.logs.read_tree_back(head.tree, before, stretch):
        for entry in page:
            event, at_ms = None, entry.at_ms
            # Asked for before it is decoded: most of a tree's log is about other things.
            if (kind := published_kind(entry.payload)) in _TOLD:
                logged = orjson.loads(entry.payload)
                if _concerns(head, kind, logged["msg"]) and shows(logged["msg"]):
                    event = Event(logged["id"], logged["msg"])
                    # By the clock of the agent's own log: what was allowed begins in the same step.
                    at_ms = logged["msg"].get("resolved_at_ms", at_ms)
            yield _Step(at_ms, entry.tree_seq, event)
        before, stretch = page[-1].tree_seq, min(2 * stretch, MOST)


def _concerns(head: SessionHead, kind: EventKind, message: JsonObject) -> bool:
    """The root gets every event; an agent its children's lifecycle, and the decisions on its requests."""
    if head.agent_id == ROOT and kind is not RequestResolved:
        return True
    match read_event(message):
        case SubagentLifecycle(subagent=known):
            return head.agent_id == (known.parent_agent_id if known is not None else None)
        case RequestResolved(agent_id=agent):
            # Of the root's own its log tells at the very place, also where no event does.
            return agent != ROOT and head.agent_id in (ROOT, agent)
        case _:
            return False


# ── messages ──────────────────────────────────────────────────────────────────────────────────────
# Messages between agents as a person reads them: those that an agent sent and got, by its own log.
#
# The protocol has no event for a message between agents: it goes from log to log, and events say only how
# many wait. So each becomes an event of the views' own, `agent_mail`, at its entry's place. One line of
# its text is shown; the whole is in the log of the agent that got it.


MAIL = "agent_mail"


HOLD_MESSAGES = frozenset({f.MailReceived, f.CallMoved, f.WatchdogSet, f.AgentChanged})
"""Facts that may hold a message."""


async def message_in(found: LogSource, head: SessionHead, fact: f.Fact | f.UnknownFact) -> Json | None:
    """The message that a fact of the session's log holds; None if the fact holds none."""
    match fact:
        case f.MailReceived(mail):
            texts = await found.large_texts(head.tree, references((mail.sender, mail.content)))
            return _got(mail, texts.get)
        case f.CallMoved(sent=sent) if sent is not None:
            return _sent("message", sent)
        case f.WatchdogSet(sent=sent) if sent is not None:
            return _sent("message", {**sent, "watchdog": True})
        case f.AgentChanged({"turns": _, "status": status}) if head.parent is not None:
            # With the number of a turn the agent's result went to its parent, in the same commit.
            parent = await readable_head(found.broker.logs, head.parent)
            above = 0 if parent is None else int(parent.agent_id)
            return _sent("completion", {"agent_id": above, "status": status, "text": None})
        case _:
            return None


def _sent(kind: str, told: Mapping[str, Any]) -> Json:
    return {"type": MAIL, "direction": "sent", "kind": kind, **told}


def _got(mail: Mail, text_of: Callable[[str], str | None]) -> Json:
    from orchestrator.core.agent_views import SENT_CHARS, one_line

    content, sender = resolve(mail.content, text_of), resolve(mail.sender, text_of)
    told: Json = {
        "type": MAIL,
        "direction": "received",
        "kind": mail.kind,
        "agent_id": sender["agent_id"],
        "label": sender.get("label"),
        "interrupt": mail.interrupt,
        "text": one_line(_text(content), SENT_CHARS),
    }
    return told | {name: content[name] for name in ("status", "person", "watchdog") if content.get(name)}


def _text(content: Mapping[str, Any]) -> str | None:
    """The text of a message: its prompt, or the one text of a completion."""
    if "completion" not in content:
        return content.get("prompt")
    texts = [text for end in (content["completion"] or {}).values() for text in end.values()]
    return next(iter(texts), None)


def message_line(message: Mapping[str, Any]) -> str:
    """A message in one line."""
    sent = message["direction"] == "sent"
    mark = "⚡" if message.get("interrupt") else "✉"
    words = [f"{mark} {'to' if sent else 'from'} {_other(message)}"]
    if message["kind"] == "completion":
        words.append(message["status"])
    if message["text"]:
        words.append(message["text"])
    return ": ".join(words)


def _other(message: Mapping[str, Any]) -> str:
    """The agent or person that it came from, or went to."""
    if message.get("person"):
        return str(message["person"])
    label = f" ({message['label']})" if message.get("label") else ""
    by = "a watchdog of " if message.get("watchdog") and message["direction"] == "received" else ""
    because = ", by a watchdog" if message.get("watchdog") and message["direction"] == "sent" else ""
    return f"{by}agent {message['agent_id']}{label}{because}"


async def with_messages(
    found: LogSource, head: SessionHead, events: AsyncIterator[Event]
) -> AsyncIterator[Event]:
    """The events of a session, each after the messages that its log has had until then.

    `head` is the place before the first event. An event names its place in the log: no search is needed.
    """
    from orchestrator.views.event import Event

    at = head.seq
    async for event in events:
        reached = at if event.cursor is None else event.cursor.seq
        if reached > at:
            for stored in await found.broker.logs.read_rollout(head.session, at, reached - at):
                if stored_kind(stored.payload) not in HOLD_MESSAGES:
                    continue
                told = await message_in(found, head, f.decode(decode_entry(stored.payload).payload))
                if told is not None:
                    yield Event(event.id, told)
            at = reached
        yield event
