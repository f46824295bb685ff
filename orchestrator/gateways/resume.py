"""The start of a front: on a session of its own, or on an existing one."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import orjson

from orchestrator.broker.follow import EqCursor
from orchestrator.broker.notices import until
from orchestrator.broker.records import SessionHead, StoredEvent
from orchestrator.core import facts as f
from orchestrator.core.agent_views import child_summary
from orchestrator.core.birth import session_configured
from orchestrator.core.blobs import may_refer, references, resolve
from orchestrator.core.context import is_context
from orchestrator.core.entries import (
    decode_entry,
    event_kind,
    is_event,
    published_kind,
    read_event,
    stored_kind,
)
from orchestrator.core.frozen import record
from orchestrator.core.history import Item, message_text
from orchestrator.core.registry import projected
from orchestrator.core.settings import HistoryHead
from orchestrator.core.state import State
from orchestrator.core.tree import ACTIVE, ROOT
from orchestrator.protocol import events as ev
from orchestrator.protocol.agents import LifecycleChange, SubagentStatus, SubagentSummary
from orchestrator.protocol.events import AgentMessage, UserMessage
from orchestrator.protocol.wire import EventModel, JsonObject, written
from orchestrator.requests import TYPES, Request, call_id_of
from orchestrator.rollouts.log_source import LogSource
from orchestrator.rollouts.replay import fold_session
from orchestrator.views import SetAside
from orchestrator.views.approvals import Asked, open_requests_of
from orchestrator.views.event import for_tenant
from orchestrator.views.find import find
from orchestrator.views.readable import readable, readable_head
from orchestrator.views.threads import settings_of

_ASKING = frozenset(ev.EVENTS[tag] for tag in TYPES)
READ_S = 15.0
"""A worker that was started with the command reads within a second or two, on a busy machine later."""
LOOK_BACK = 500
"""Events behind the end among which open requests are looked for, to be sent again with what followed."""


async def to_resume(found: LogSource, text: str) -> SessionHead:
    """The session that an id, or the beginning of one, names, if workers take it; raises `ViewError`."""
    head = await find(found, text)
    if head.quarantined:
        raise SetAside(head.session)
    return head


@record
class Greeting:
    """The first events that a resuming client gets, and the cursor from which it follows."""

    events: tuple[JsonObject, ...]
    cursor: EqCursor

    def lines(self, more: Mapping[str, object] | None = None) -> bytes:
        """The events as lines, each with `more` beside its message."""
        return b"".join(orjson.dumps({"id": "", "msg": each, **(more or {})}) + b"\n" for each in self.events)


async def greeting(found: LogSource, head: SessionHead, history: HistoryHead) -> Greeting:
    """`session_configured` with the events so far, then how agents stand; open requests are sent again.

    Those that the queue has follow behind the cursor, and the others stand in the greeting itself.
    """
    asked = {(one.session, one.request.call_id): one for one in await _open_of(found, head)}
    cursor, kept = await cursor_before(found, head, asked.keys())
    folded = await fold_session(found, head, None)
    messages = await past_events(found, head)
    state = folded.state
    event = session_configured(
        "", state.facts, state.settings, state.name, messages, history, state.forked_from
    )
    configured = for_tenant(dict(event.payload)) if head.labels.namespace else dict(event.payload)
    told = await _agents_told(found, head, _agents_elsewhere(state, messages))
    again = [_event_of(one, head) for key, one in asked.items() if key not in kept]
    return Greeting((configured, *told, *again), cursor)


def _event_of(asked: Asked, head: SessionHead) -> JsonObject:
    """A request as the events of this session publish it."""
    request = asked.request if asked.session == head.session else asked.named_request
    event = dict(request.event)
    return for_tenant(event) if head.labels.namespace else event


def _agents_elsewhere(state: State, messages: Iterable[Mapping[str, Any]]) -> list[SubagentSummary]:
    """The agents that only an imported log tells of: none of them is at work in this tree."""
    told = [read_event(message) for message in messages if event_kind(message) is ev.SubagentLifecycle]
    lives = (event.subagent for event in told if isinstance(event, ev.SubagentLifecycle))
    known = {summary.agent_id: summary for summary in lives if summary is not None}
    children = state.tree.listed_children
    known |= {id: child_summary(state.facts, child) for id, child in children.items()}
    return [
        summary.model_copy(update={"status": SubagentStatus.CANCELED})
        if summary.status in ACTIVE
        else summary
        for summary in known.values()
    ]


async def _agents_told(
    found: LogSource, head: SessionHead, elsewhere: Sequence[SubagentSummary]
) -> list[JsonObject]:
    """A `subagent_lifecycle` for each listed agent, and an `agent_inbox` for each with mail, own mail too.

    They are those that the session's queue tells of: of a root all, else the children.
    """
    fields = await found.broker.trees.agents(head.tree)
    listed = projected(fields).agents
    shown = [
        SubagentSummary.model_validate(agent.summary())
        for agent in listed.values()
        if head.agent_id == ROOT or agent.record["parent_agent_id"] == head.agent_id
    ]
    shown += [agent for agent in elsewhere if f"a:{agent.agent_id}" not in fields]
    told: list[EventModel] = [ev.SubagentLifecycle(event=LifecycleChange.CREATED, subagent=s) for s in shown]
    told += [_inbox(s.agent_id, s.session_id, s.pending_messages, s.pending_interrupts) for s in shown]
    own = (int(fields.get(f"{lane}:{head.agent_id}", b"0")) for lane in "mi")
    told.append(_inbox(head.agent_id, head.session, *own))
    return [written(each) for each in told if not isinstance(each, ev.AgentInbox) or _has_mail(each)]


def _inbox(agent_id: int, session: str, messages: int, interrupts: int) -> ev.AgentInbox:
    return ev.AgentInbox(
        agent_id=agent_id, session_id=session, pending_messages=messages, pending_interrupts=interrupts
    )


def _has_mail(inbox: ev.AgentInbox) -> bool:
    return bool(inbox.pending_messages or inbox.pending_interrupts)


async def reattached(found: LogSource, head: SessionHead, history: HistoryHead, cursor: EqCursor) -> Greeting:
    """The greeting for a client that has the events up to a cursor: `session_configured` without them."""
    settings = await settings_of(found, head)
    event = ev.SessionConfigured(
        session_id=head.session,
        model=settings.model,
        reasoning_effort=settings.effort,
        history_log_id=history.log_id,
        history_entry_count=history.count,
        rollout_path="",
    )
    return Greeting((written(event),), cursor)


async def past_events(found: LogSource, head: SessionHead) -> list[dict[str, Any]]:
    """The events of the session's log, large texts put back in; its own greetings are left out.

    A root that was forked begins with the events of its source, as far as that is still there.
    """
    return (await _events_until(found, head, head.seq)).messages


@dataclass(slots=True)
class _Past:
    """Events of a log up to an entry, and the chain's value there."""

    messages: list[dict[str, Any]] = field(default_factory=list)
    head: str = ""


async def _events_until(found: LogSource, head: SessionHead, through: int) -> _Past:
    past = _Past()
    async for stored in found.log(head.session, through):
        kind = stored_kind(stored.payload)
        if is_event(kind) and kind is not ev.SessionConfigured:
            message = dict(decode_entry(stored.payload).payload)
            if may_refer(stored.payload):
                message = resolve(message, (await found.large_texts(head.tree, references(message))).get)
            past.messages.append(for_tenant(message) if head.labels.namespace else message)
        elif head.agent_id == ROOT and kind is f.Forked:
            fact = f.decode(decode_entry(stored.payload).payload)
            assert isinstance(fact, f.Forked)
            past.messages += await _events_of_source(found, head, fact)
        past.head = stored.chain.hex()
    return past


async def _events_of_source(found: LogSource, fork: SessionHead, fact: f.Forked) -> list[dict[str, Any]]:
    """The source's events up to the fork; of one that is gone, or is another by now, only what was said."""
    parent = fact.parent
    source = await readable_head(found.broker.logs, parent["session"])
    if source is not None and source.seq >= parent["seq"]:
        past = await _events_until(found, source, parent["seq"])
        if past.head == parent["chain"]:
            return past.messages
    content = fact.content
    if not isinstance(content, str):
        content = (await found.large_texts(fork.tree, [content["$blob"]])).get(content["$blob"], "[]")
    return list(_said(orjson.loads(content)))


def _said(items: Iterable[Item]) -> Iterator[dict[str, Any]]:
    """The messages of a conversation as events."""
    for item in items:
        text, role = message_text(item), item.get("role")
        if role == "user" and not is_context(item):
            yield written(UserMessage(message=text))
        elif role == "assistant":
            yield written(AgentMessage(message=text))


Call: TypeAlias = tuple[str, str]
"""A request: the session of the agent that asks, and its call. Calls of two agents may have one id."""


async def cursor_before(
    found: LogSource, head: SessionHead, calls: Collection[Call]
) -> tuple[EqCursor, frozenset[Call]]:
    """The place before the first request for one of `calls`, and those whose requests are kept behind it.

    Where none is kept it is the end.
    """
    end = EqCursor.at(head)
    if not calls:
        return end, frozenset()
    events = await found.broker.logs.read_eq(head.session, max(0, head.eq_n - LOOK_BACK), LOOK_BACK)
    places = ((at, _asks(event, head)) for at, event in enumerate(events) if at)
    asked = {at: call for at, call in places if call is not None and call in calls}
    if not asked:
        return end, frozenset()
    before = events[min(asked) - 1]
    return EqCursor(before.n, before.seq, before.hash8), frozenset(asked.values())


def _asks(event: StoredEvent, head: SessionHead) -> Call | None:
    """The call that an event of this session asks about."""
    if published_kind(event.payload) not in _ASKING:
        return None
    message = orjson.loads(event.payload)["msg"]
    return message.get("session_id") or head.session, call_id_of(message)


async def until_read(found: LogSource, head: SessionHead) -> bool:
    """Waits until workers have read what the session, and those that ask in its tree, were handed before.

    An answer that was given while no worker was there stands in a queue, and its request is still listed.
    False if none has read it within `READ_S`.
    """
    asking = {one.session for one in await open_requests_of(found, head.tree)}
    waiting = [*asking, head.session]

    async def read() -> bool:
        return not any(each.has_unread for each in await readable(found.broker.logs, waiting))

    return bool(await until(found.broker, waiting, read, READ_S))


async def open_requests(found: LogSource, head: SessionHead) -> list[Request]:
    """The requests that nobody has decided yet, of the session or, for a root, of its tree; oldest first."""
    return [one.named_request for one in await _open_of(found, head)]


async def _open_of(found: LogSource, head: SessionHead) -> list[Asked]:
    asked = await open_requests_of(found, head.tree)
    return [one for one in asked if head.agent_id == ROOT or one.session == head.session]
