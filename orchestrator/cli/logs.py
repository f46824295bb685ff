"""`dendro logs`: what an agent did, read from its log, and what it does from here on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.agents import AGENT_HELP, ID_HELP
from orchestrator.cli.invocation import Invocation

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Container

    from orchestrator.broker.records import SessionHead
    from orchestrator.cli.opening import Opened
    from orchestrator.gateways.client import Event

SILENT = frozenset(
    {
        "session_configured",
        "task_started",
        "task_complete",
        "token_count",
        "turn_diff",
        "agent_reasoning_section_break",
    }
)
"""Events that a person is shown nothing of: they are not counted."""
ENTRIES_AN_EVENT = 4
"""About so many entries of a log stand for one event that is shown."""


def logs(
    ctx: typer.Context,
    id: Annotated[str, typer.Argument(metavar="ID", help=ID_HELP)],
    agent: Annotated[int | None, typer.Argument(metavar="AGENT", min=0, help=AGENT_HELP)] = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", metavar="N", min=0, help="The last so many events; 0 is all.")
    ] = 200,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="And what comes, until Ctrl-C.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Events as NDJSON.")] = False,
) -> None:
    """Shows what an agent did, without disturbing it: commands, text, patches, its children.

    \b
    dendro logs 0199a2b4 3
    dendro logs 0199a2b4 3 --limit 20 --follow
    dendro logs 0199a2b4 --json | jq 'select(.msg.type == "error")'
    """
    import asyncio

    asyncio.run(_logs(Invocation.of(ctx), (id, agent), limit, (follow, json)))


async def _logs(
    invocation: Invocation, whom: tuple[str, int | None], limit: int, how: tuple[bool, bool]
) -> None:
    from orchestrator.broker.follow import EqCursor
    from orchestrator.cli.agents import addressed
    from orchestrator.cli.leaving import ctrl_c
    from orchestrator.cli.opening import opened
    from orchestrator.cli.views import JsonView, LiveView

    follow, json = how
    view = JsonView() if json else LiveView(streaming=False, whole=True)
    async with opened(invocation.settings()) as found:
        target = await addressed(found, *whom)
        past = await newest_events(found, target.head, limit, frozenset() if json else SILENT)
        if not follow:
            for event in past:
                view.event(event)
            return
        with ctrl_c() as left:
            for event in past:
                view.event(event)
            events = found.client().follow(target.session, EqCursor.at(target.head))
            while (event := await left.unless(_next(events))) is not None:
                view.event(event)


async def newest_events(
    found: Opened, head: SessionHead, limit: int, without: Container[str] = SILENT
) -> list[Event]:
    """The last `limit` events of a session that are not `without`, oldest first; all of them for 0.

    What its agents' lives are is told by the tree's log, and woven in by time.
    """
    wanted = limit * ENTRIES_AN_EVENT
    while True:
        after = max(0, head.seq - wanted) if limit else 0
        own = await _own_events(found, head, after, without)
        if not after or len(own) >= limit:
            break
        wanted *= 4
    since = own[-limit][0] if after and own else 0
    told = [told for told in await _told_events(found, head) if told[0] >= since]
    woven = [event for _, event in sorted([*own, *told], key=lambda timed: timed[0])]
    return woven[-limit:] if limit else woven


Timed = tuple[int, "Event"]
"""An event and when it was written, in Redis's milliseconds."""


async def _own_events(found: Opened, head: SessionHead, after: int, without: Container[str]) -> list[Timed]:
    from orchestrator.cli.tree_reading import written_ms
    from orchestrator.core.blobs import references, resolve
    from orchestrator.core.entries import EVENT_MSG
    from orchestrator.core.stored import decode_entry
    from orchestrator.gateways.client import Event

    events = []
    async for stored in found.log(head.session, head.seq, after):
        entry = decode_entry(stored.payload)
        if entry.type == EVENT_MSG and entry.payload["type"] not in without:
            texts = await found.large_texts(head.tree, references(entry.payload))
            event = Event(entry.id, resolve(dict(entry.payload), texts.get))
            events.append((written_ms(stored.payload), event))
    return events


async def _told_events(found: Opened, head: SessionHead) -> list[Timed]:
    """Lives of agents: all of them for the root, its own children's for an agent."""
    import orjson

    from orchestrator.gateways.client import Event

    events, after = [], 0
    while page := await found.broker.read_tree(head.tree, after):
        for entry in page:
            told = orjson.loads(entry.payload)
            message = told["msg"]
            known = message.get("subagent") or {}
            mine = head.agent_id in (0, known.get("parent_agent_id"))
            if message["type"] == "subagent_lifecycle" and mine:
                events.append((entry.at_ms, Event(told["id"], message)))
        after = page[-1].tree_seq
    return events


async def _next(events: AsyncIterator[Event]) -> Event:
    return await anext(events)
