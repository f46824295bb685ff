"""Methods of the words that wait for a thread's running turn to end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from pydantic import Field

from orchestrator.broker.errors import SubmissionConflict
from orchestrator.broker.records import SessionHead
from orchestrator.core.state import Queued
from orchestrator.gateways.app_server.door import Door
from orchestrator.gateways.app_server.messages import RpcError
from orchestrator.gateways.app_server.method import Method, PageParams, Params, Result, page
from orchestrator.gateways.app_server.methods.turns import warn_where_unserved
from orchestrator.gateways.app_server.turn_params import Said, input_items
from orchestrator.gateways.app_server.write_items import input_json, listed_turn_json
from orchestrator.gateways.principals import Scope
from orchestrator.gateways.submit import OpRefused, unread
from orchestrator.protocol import ops
from orchestrator.protocol.events import QueueChanged
from orchestrator.protocol.scalars import Delivery
from orchestrator.protocol.submission import Submission
from orchestrator.protocol.wire import JsonObject
from orchestrator.views.thread_log import ThreadLog, waiting_inputs
from orchestrator.views.turns.turn_records import Turn

MOST_TEXT = 1_024
MOST_IDS = 100
QueuedId = Annotated[str, Field(max_length=MOST_TEXT)]


class QueueAdd(Params):
    """Words for a thread's next turn, behind the one that runs."""

    thread_id: str
    input: tuple[Said, ...]
    client_user_message_id: Annotated[str, Field(max_length=MOST_TEXT)]


async def queue_add(door: Door, params: QueueAdd) -> Result:
    """Hands in words that wait behind the running turn, and are a turn of their own."""
    head = await door.head(params.thread_id)
    turn = door.words_id(head.session, params.client_user_message_id)
    said = ops.UserInput(
        items=input_items(params.input),
        delivery=Delivery.QUEUE,
        client_user_message_id=params.client_user_message_id,
    )
    await door.goes_on(head)
    try:
        kept = await door.words.submit(head.session, Submission(turn, said))
    except SubmissionConflict:
        # Its client has given two messages one name.
        turn = door.new_turn_id()
        kept = await door.client.submit(head.session, Submission(turn, said))
    warn_where_unserved(door, head, kept)
    return {"queuedSubmission": _given(turn, params.client_user_message_id, params.input)}


class QueueList(PageParams):
    """A thread whose queue is asked for."""

    thread_id: str


async def queue_list(door: Door, params: QueueList) -> Result:
    """Lists the words that wait, in their order; other turns that wait among them are not shown."""
    head = await door.head(params.thread_id)
    waiting = await waiting_inputs(door.ports.found, head)
    return page([_json(each) for each in waiting if each.turn.is_input], params)


def _json(queued: Queued) -> JsonObject:
    return {
        "id": queued.id,
        "clientUserMessageId": queued.turn.client_id or "",
        "input": [input_json(item) for item in queued.turn.items],
    }


class QueueDelete(Params):
    """Words that wait."""

    thread_id: str
    queued_submission_id: QueuedId


async def queue_delete(door: Door, params: QueueDelete) -> Result:
    """Takes words out of the queue; whether they still stood there."""
    head = await door.head(params.thread_id)
    try:
        await _changed(door, head, ops.RemoveQueued(submission_id=params.queued_submission_id))
    except OpRefused:
        return {"deleted": False}
    return {"deleted": True}


class QueueReorder(Params):
    """The words that wait, all of them, in another order."""

    thread_id: str
    queued_submission_ids: Annotated[tuple[QueuedId, ...], Field(max_length=MOST_IDS)]


async def queue_reorder(door: Door, params: QueueReorder) -> Result:
    """Gives the words that wait another order; what else waits keeps its place among them."""
    head = await door.head(params.thread_id)
    waiting = await waiting_inputs(door.ports.found, head)
    given = iter(params.queued_submission_ids)
    ids = [next(given, "") if each.turn.is_input else each.id for each in waiting]
    await _changed(door, head, ops.ReorderQueue(submission_ids=(*ids, *given)))
    return {}


class QueueUpdate(Params):
    """Words in the place of those that wait."""

    thread_id: str
    queued_submission_id: QueuedId
    input: tuple[Said, ...]


async def queue_update(door: Door, params: QueueUpdate) -> Result:
    """Says something else in the place of words that wait; they keep their id and their place."""
    head, id = await door.head(params.thread_id), params.queued_submission_id
    waiting = await waiting_inputs(door.ports.found, head)
    known = next((each.turn.client_id for each in waiting if each.id == id), None)
    await _changed(door, head, ops.UpdateQueued(submission_id=id, items=input_items(params.input)))
    return {"queuedSubmission": _given(id, known or "", params.input)}


def _given(id: str, client_id: str, said: Sequence[Said]) -> JsonObject:
    """Words that wait as their client has just said them."""
    return {
        "id": id,
        "clientUserMessageId": client_id,
        "input": [one.model_dump(mode="json", by_alias=True, exclude_unset=True) for one in said],
    }


class QueueStart(Params):
    """Words that are to begin; the first ones if none are named."""

    thread_id: str
    queued_submission_id: QueuedId | None = None


async def queue_start(door: Door, params: QueueStart) -> Result:
    """The turn of words that have begun by themselves, as all do; a turn that runs is not ended for them."""
    head, id = await door.head(params.thread_id), params.queued_submission_id
    waiting = [each.id for each in await waiting_inputs(door.ports.found, head) if each.turn.is_input]
    if id in waiting or (id is None and waiting):
        raise RpcError(
            "a turn runs, and what waits begins by itself when it ends: thread/queue/reorder puts it first, "
            "turn/interrupt ends the turn"
        )
    begun = None if id is None else await _lately(door, head, id)
    if begun is None:
        raise RpcError(
            "nothing waits here" if id is None else f"no words {id} wait here, nor have begun lately"
        )
    return {"turn": listed_turn_json(begun, "notLoaded")}


async def _lately(door: Door, head: SessionHead, id: str) -> Turn | None:
    """The turn of an id among the thread's last ones."""
    log, looked = await ThreadLog.of(door.ports.found, head), 0
    async for stretch in log.back():
        if stretch.turn == id:
            return await log.turn(stretch)
        looked += 1
        if looked == MOST_IDS:
            break
    return None


async def _changed(
    door: Door, head: SessionHead, op: ops.RemoveQueued | ops.ReorderQueue | ops.UpdateQueued
) -> None:
    """Submits a change, and waits until the session has made it; raises `OpRefused`, `RpcError`."""
    if await door.decided(head, op, {QueueChanged}) is None:
        raise RpcError(unread(head))


METHODS: Mapping[str, Method] = {
    "thread/queue/add": Method(QueueAdd, queue_add, Scope.SUBMIT),
    "thread/queue/list": Method(QueueList, queue_list, Scope.READ),
    "thread/queue/delete": Method(QueueDelete, queue_delete, Scope.SUBMIT, waits=True),
    "thread/queue/reorder": Method(QueueReorder, queue_reorder, Scope.SUBMIT, waits=True),
    "thread/queue/start": Method(QueueStart, queue_start, Scope.SUBMIT, waits=True),
    "thread/queue/update": Method(QueueUpdate, queue_update, Scope.SUBMIT, waits=True),
}
