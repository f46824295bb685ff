"""Submission of an op, and the first event that answers it."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Coroutine
from typing import Any

from orchestrator.broker.errors import UnknownSession
from orchestrator.broker.follow import EqCursor
from orchestrator.core.forms import whole
from orchestrator.core.frozen import record
from orchestrator.core.ids import SessionId
from orchestrator.gateways.client import Client
from orchestrator.protocol import ops
from orchestrator.protocol.events import Error
from orchestrator.protocol.ids import SubmissionId
from orchestrator.protocol.submission import Submission
from orchestrator.views.event import Event
from orchestrator.views.status import no_worker

PATIENCE_S = 10.0
"""A worker answers within milliseconds, one that takes over within seconds."""
POLL_S = 0.05


class OpRefused(Exception):
    """An op that the session refused; the message is the session's."""


@record
class OpAnswer:
    """The id of an op, and the event that answered it; None if none came in time."""

    id: str
    answer: Event | None


async def submit_op(
    client: Client,
    session: SessionId,
    op: ops.Op,
    answers: Callable[[Event, str], bool],
    patience_s: float = PATIENCE_S,
    *,
    id: SubmissionId | None = None,
) -> OpAnswer:
    """Submits, and waits a while for the first later event that `answers` accepts (given the op's id).

    Raises `OpRefused` with the session's words if it refused the op, `UnknownSession`, and the errors of
    `Client.submit`.
    """
    head = await client.head(session)
    if head is None:
        raise UnknownSession(session)
    id = id or SubmissionId(new_submission_id())
    await client.submit(session, Submission(id, op))
    looking = _first(client, session, EqCursor.at(head), lambda event: _settles(event, id, answers))
    answer = await _within(patience_s, looking)
    if answer is not None and answer.id == id and isinstance(refusal := answer.told, Error):
        raise OpRefused(whole(refusal.message))
    return OpAnswer(id, answer)


def _settles(event: Event, id: str, answers: Callable[[Event, str], bool]) -> bool:
    return (event.kind is Error and event.id == id) or answers(event, id)


async def _first(
    client: Client, session: SessionId, cursor: EqCursor, wanted: Callable[[Event], bool]
) -> Event | None:
    async for event in client.follow(session, cursor):
        if wanted(event):
            return event
    return None


async def _within(seconds: float, looking: Coroutine[Any, Any, Event | None]) -> Event | None:
    task = asyncio.create_task(looking)
    try:
        await asyncio.wait((task,), timeout=seconds)
        return task.result() if task.done() else None
    finally:
        while not task.done():
            # Python 3.11 may forget a cancellation that meets the end of a wait (bpo-37658).
            task.cancel()
            await asyncio.wait((task,), timeout=POLL_S)


def unread(pool: str) -> str:
    """The message about an op that no worker has taken in time."""
    return f"handed in, and kept; {no_worker(pool)}"


def under_its_id(event: Event, id: str) -> bool:
    """Any event that the op itself led to."""
    return event.id == id


def new_submission_id() -> str:
    """Unique in the session's log, where ids of many runs stand together."""
    return f"run-{uuid.uuid4().hex[:12]}"
