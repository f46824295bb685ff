"""The way back to a thread: hear it from a place in its log, and read the log up to that very place.

The subscription comes first. What the thread does while its log is read is told behind the answer, so nothing
is missing and nothing comes twice, whether a worker runs it or not.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

from orchestrator.broker.errors import UnknownSession
from orchestrator.broker.records import SessionHead
from orchestrator.core.entries import read_event, stored_kind
from orchestrator.core.ids import SessionId
from orchestrator.core.registry import projected
from orchestrator.core.tree import ROOT
from orchestrator.gateways.app_server.door import Door
from orchestrator.gateways.app_server.messages import no_rollout
from orchestrator.gateways.app_server.method import Method, Result
from orchestrator.gateways.app_server.methods.threads import all_turns, head_to_read, thread_of
from orchestrator.gateways.app_server.methods.turns import asks_of, settings_after
from orchestrator.gateways.app_server.turn_params import NamedSettings, Reviewer, session_json
from orchestrator.gateways.app_server.write_items import notifications
from orchestrator.gateways.principals import Scope
from orchestrator.protocol.events import TaskStarted, TokenCount
from orchestrator.protocol.ids import SubmissionId
from orchestrator.protocol.submission import Submission
from orchestrator.protocol.wire import written
from orchestrator.views.event import Event
from orchestrator.views.thread_pages import end_of
from orchestrator.views.threads import settings_of
from orchestrator.views.turns.log_events import told_by
from orchestrator.views.turns.projector import Projector
from orchestrator.views.turns.turn_records import TokenUsageUpdated

TOKENS_WITHIN = (64, 512)
"""Entries from the end among which the last count of tokens is looked for; each request has one."""
MOST_AGENTS = 200
"""Running agents of a thread that are heard with it."""


class ThreadResume(NamedSettings):
    """A thread to come back to, and settings for its next turn."""

    thread_id: str
    exclude_turns: bool = False
    approvals_reviewer: Reviewer | None = None
    personality: str | None = None


async def thread_resume(door: Door, params: ThreadResume) -> Result:
    """A thread with its turns, heard from the end of them on."""
    head = await head_to_read(door, params.thread_id)
    with door.heard_if_answered():
        return await _resumed(door, head, params)


async def _resumed(door: Door, head: SessionHead, params: ThreadResume) -> Result:
    try:
        subscription = await door.subscribe(head.session)
    except UnknownSession:
        raise no_rollout(params.thread_id) from None
    subscription.asks = asks_of(door, params.approvals_reviewer)
    seen = await _seen(door, head, subscription.live.seq)
    answer = await _answer(door, seen, params)
    await _tell_tokens(door, seen)
    for session in (head.session, *await _running_below(door, head, subscription.asks)):
        door.ask_again(session)
    return answer


async def _seen(door: Door, head: SessionHead, seq: int) -> SessionHead:
    """The thread as of the place from which it is heard."""
    now = await door.known(head.session) or head
    if seq in (0, now.seq):
        return now
    async for stored in door.ports.found.log(head.session, seq, seq - 1):
        return replace(now, seq=seq, head=stored.chain)
    return now


async def _answer(door: Door, seen: SessionHead, params: ThreadResume) -> Result:
    settings = await settings_of(door.ports.found, seen)
    override = params.override()
    if override is not None:
        id = SubmissionId(f"{door.new_turn_id()}-settings")
        await door.client.submit(seen.session, Submission(id, override))
        settings = settings_after(settings, override)
    turns = [] if params.exclude_turns else await all_turns(door, seen)
    return {
        "thread": await thread_of(door, seen, turns),
        **session_json(settings),
        "turnsBackwardsCursor": str(end_of(seen, "turns")),
        "itemsBackwardsCursor": str(end_of(seen, "items")),
        "initialTurnsPage": None,
    }


async def _tell_tokens(door: Door, seen: SessionHead) -> None:
    """Tells the client how many tokens the thread has used, as its last response did."""
    event = await _last_count(door, seen)
    if event is None:
        return
    projector = Projector(seen.session)
    projector.receive(Event(event.id, written(TaskStarted())))
    for change in projector.receive(event):
        if isinstance(change, TokenUsageUpdated):
            for method, params in notifications(seen.session, change):
                door.notify(method, params)


async def _last_count(door: Door, seen: SessionHead) -> Event | None:
    for within in TOKENS_WITHIN:
        read = door.ports.found.log(seen.session, seen.seq, max(0, seen.seq - within))
        counted = [stored async for stored in read if stored_kind(stored.payload) is TokenCount]
        for event in filter(None, map(told_by, reversed(counted))):
            if isinstance(count := read_event(event.msg), TokenCount) and count.info is not None:
                return event
    return None


async def _running_below(door: Door, head: SessionHead, asks: bool) -> list[SessionId]:
    """The agents below a thread that are at work; they are heard from now on."""
    agents = projected(await door.ports.found.broker.trees.agents(head.tree)).agents.values()
    below = [agent for agent in agents if head.agent_id == ROOT or agent.below(head.agent_id)]
    running = [SessionId(agent.session) for agent in below if agent.at_work][:MOST_AGENTS]
    for session in running:
        with suppress(UnknownSession):
            if session not in door.subscriptions:
                await _hear_agent(door, session, asks)
    return running


async def _hear_agent(door: Door, session: SessionId, asks: bool) -> None:
    """Tells the client of an agent's thread, as at its birth: it drops requests of a thread unknown to it."""
    head = await door.known(session)
    if head is None:
        return
    told = await thread_of(door, head)
    if session in door.subscriptions:
        return
    subscription = await door.subscribe(session)
    subscription.asks = asks
    # With nothing waited for in between: its first event is told behind this.
    door.notify("thread/started", {"thread": told})


METHODS: Mapping[str, Method] = {
    "thread/resume": Method(ThreadResume, thread_resume, Scope.READ, of_connection=True)
}
