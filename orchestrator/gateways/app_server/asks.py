"""Requests of threads that are put to one client, and its answers.

Every connection that hears a thread is asked, each under an id of its own, and the first answer that reaches
the session counts. A request that was settled elsewhere is taken back; a late answer is dropped.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import suppress

from orchestrator.broker.errors import BrokerError
from orchestrator.core.calls.ask import DoesNotAnswer
from orchestrator.core.frozen import record
from orchestrator.core.ids import SessionId
from orchestrator.gateways.app_server.messages import Answer, RequestId
from orchestrator.gateways.app_server.write_requests import (
    Malformed,
    answer_of,
    request_method,
    request_params,
)
from orchestrator.gateways.client import Client
from orchestrator.protocol.ids import SubmissionId
from orchestrator.protocol.ops import ExecApproval, Op, PatchApproval
from orchestrator.protocol.policy import ReviewDecision
from orchestrator.protocol.submission import MalformedSubmission, Submission
from orchestrator.protocol.wire import JsonObject
from orchestrator.requests import ClientToolRequest
from orchestrator.views.turns.records import RequestOpened, RequestResolved


@record
class Asked:
    """A request that this client was asked, and has not answered."""

    id: int
    session: SessionId
    opened: RequestOpened
    method: str
    params: JsonObject

    @property
    def key(self) -> tuple[SessionId, str]:
        """The name of the request in the fleet."""
        return self.session, self.opened.request.call_id


class Asks:
    """The open requests of one connection."""

    def __init__(self, client: Client) -> None:
        self._client = client
        """Not the client that submits turns: a session does not tell that one of its own answers."""
        self._next = 0
        self._open: dict[int, Asked] = {}

    def open(self, session: SessionId, opened: RequestOpened, at_ms: int) -> Asked | None:
        """A request to be sent; None if the client was asked it already."""
        params = request_params(session, opened, at_ms)
        asked = Asked(self._next, session, opened, request_method(opened.request), params)
        if any(one.key == asked.key for one in self._open.values()):
            return None
        self._next += 1
        self._open[asked.id] = asked
        return asked

    def resolved(self, session: SessionId, change: RequestResolved) -> list[int]:
        """The ids under which the client knows a request that is settled now."""
        return self._drop(lambda one: one.session == session and change.item in (one.opened.item, one.key[1]))

    def left(self, session: SessionId) -> None:
        """Forgets the requests of a thread that the client does not hear any more."""
        self._drop(lambda one: one.session == session)

    def _drop(self, meant: Callable[[Asked], bool]) -> list[int]:
        ids = [id for id, one in self._open.items() if meant(one)]
        for id in ids:
            del self._open[id]
        return ids

    async def answer(self, answer: Answer) -> Asked | None:
        """Hands the client's answer to the session that asked; one that says nothing changes nothing.

        A request is returned whose answer ends its turn: the session tells of that end alone.
        """
        asked = self._asked(answer.id)
        op = None if asked is None else _op(asked.opened, answer)
        if asked is None or op is None:
            return None
        id = SubmissionId(f"answer-{uuid.uuid4().hex[:12]}")
        with suppress(BrokerError, MalformedSubmission):
            # It holds more than an answer may, or its session is gone: no error ends a connection.
            await self._client.submit(asked.session, Submission(id, op))
        aborts = isinstance(op, ExecApproval | PatchApproval) and op.decision == ReviewDecision.ABORT
        return asked if aborts and self._drop(lambda one: one.id == asked.id) else None

    def _asked(self, id: RequestId) -> Asked | None:
        return self._open.get(id) if isinstance(id, int) else None


def _op(opened: RequestOpened, answer: Answer) -> Op | None:
    """The operation that an answer means; None for one that says nothing, which leaves the request open."""
    if answer.result is None:
        if not isinstance(opened.request, ClientToolRequest):
            return None
        return opened.request.failed(answer.error or "its client answered with an error")
    try:
        return answer_of(opened, answer.result)
    except (Malformed, DoesNotAnswer, ValueError):
        return None
