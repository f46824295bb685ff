"""A thread that goes on where another one stands, or where a turn of it ended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.broker.records import SessionHead
from orchestrator.core.birth import ForkedFrom
from orchestrator.gateways.app_server.door import Door
from orchestrator.gateways.app_server.messages import RpcError, bad_params, no_rollout
from orchestrator.gateways.app_server.method import Method, Result
from orchestrator.gateways.app_server.methods.running import ThreadStartParams, asks_of
from orchestrator.gateways.app_server.methods.threads import all_turns, head_to_read, thread_of
from orchestrator.gateways.app_server.ports import BadSetting, NewThread
from orchestrator.gateways.app_server.turn_params import session_json
from orchestrator.gateways.fork import fork_at, to_fork
from orchestrator.gateways.principals import Scope
from orchestrator.views.errors import ViewError
from orchestrator.views.thread_log import Stretch, ThreadLog
from orchestrator.views.thread_pages import end_of


class ThreadFork(ThreadStartParams):
    """A thread, the place in it, and the settings that are to be others."""

    thread_id: str
    last_turn_id: str | None = None
    before_turn_id: str | None = None
    exclude_turns: bool = False


async def thread_fork(door: Door, params: ThreadFork) -> Result:
    """Makes a thread that begins with another one's turns, and hears it; the other stays as it is."""
    head = await head_to_read(door, params.thread_id)
    if params.last_turn_id is not None and params.before_turn_id is not None:
        raise bad_params("lastTurnId, beforeTurnId: give one of them, or none for the thread as it stands")
    wish = NewThread(params.cwd, params.by_keys(), params.config or {}, bool(params.ephemeral))
    try:
        born = await door.ports.fork(door.client, door.principal, await _source(door, head, params), wish)
    except BadSetting as error:
        raise bad_params(str(error)) from None
    except ViewError as error:
        raise RpcError(str(error)) from None
    subscription = await door.subscribe(born.head.session, newborn=True)
    subscription.asks = asks_of(door, params.approvals_reviewer)
    subscription.ephemeral = wish.ephemeral
    turns = [] if params.exclude_turns else await all_turns(door, born.head)
    started = await thread_of(door, born.head, turns)
    door.notify("thread/started", {"thread": {**started, "turns": []}})
    return {"thread": started, **session_json(born.settings), **_cursors(born.head)}


def _cursors(head: SessionHead) -> dict[str, Any]:
    return {
        "turnsBackwardsCursor": str(end_of(head, "turns")),
        "itemsBackwardsCursor": str(end_of(head, "items")),
    }


async def _source(door: Door, head: SessionHead, params: ThreadFork) -> ForkedFrom:
    """The place to go on from; raises `RpcError`, `ViewError`."""
    turn = params.last_turn_id or params.before_turn_id
    if turn is None:
        return await to_fork(door.ports.found, head.session, None)
    log = await ThreadLog.of(door.ports.found, head)
    stretches = log.back()
    async for stretch in stretches:
        if stretch.turn != turn:
            continue
        if params.last_turn_id is None:
            before = await anext(stretches, None)
            if before is None:
                raise RpcError(f"nothing comes before turn {turn}: begin a new thread")
            stretch = before
        return await _at(door, log, stretch)
    raise RpcError(f"turn not found: {turn[:100]}")


async def _at(door: Door, log: ThreadLog, stretch: Stretch) -> ForkedFrom:
    ended = await log.end_of_task(stretch)
    if ended is None:
        raise RpcError(f"turn {stretch.turn} has not ended: wait for its end, or interrupt it")
    session = log.legs[stretch.leg].session
    source = await door.ports.found.broker.logs.head(session)
    if source is None:
        raise no_rollout(session)
    return await fork_at(door.ports.found, source, ended)


METHODS: Mapping[str, Method] = {"thread/fork": Method(ThreadFork, thread_fork, Scope.SUBMIT)}
