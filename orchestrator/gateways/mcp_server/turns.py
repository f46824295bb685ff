"""A turn that a client began, followed to its end.

The turn is the session's: neither a client that leaves nor one that is slow ends it. What an agent asks goes
to the client's person if the client can ask them, and stands in the fleet's queue meanwhile: the first answer
counts, from wherever it comes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any, Protocol, assert_never

from orchestrator.broker.errors import BrokerError, UnknownSession
from orchestrator.broker.follow import EqCursor
from orchestrator.core.ids import SessionId
from orchestrator.gateways.client import Client
from orchestrator.gateways.mcp_server.requests import Form, form_of, named, shown
from orchestrator.gateways.mcp_server.tools import TurnOutcome
from orchestrator.gateways.submit import new_submission_id
from orchestrator.gateways.turns import Aborted, Completed, End, Quarantined, Refused, TurnFollower
from orchestrator.protocol.events import StreamError, UserMessage
from orchestrator.protocol.ids import SubmissionId
from orchestrator.protocol.submission import Submission
from orchestrator.requests import Request
from orchestrator.views.errors import SetAside
from orchestrator.views.event import Event
from orchestrator.views.open_requests import OpenRequests
from orchestrator.views.tree import message_summary

log = logging.getLogger("dendro.mcp_server")

TRIES = 3
"""How often a person is asked again whose answer answers nothing."""
MOST_PROGRESS = 500
"""Characters of a line of progress."""
Answer = tuple[str, dict[str, Any]]
"""`accept`, `decline` or `cancel`, and what was filled in."""


class Person(Protocol):
    """The client's side of one call."""

    @property
    def can_be_asked(self) -> bool:
        """Whether the client shows forms to a person."""
        ...

    async def tell(self, line: str) -> None:
        """Tells how the turn goes on."""
        ...

    async def ask(self, message: str, schema: dict[str, Any]) -> Answer | None:
        """Shows a form; None if the client could not."""
        ...


class FollowedTurn:
    """A turn under way."""

    def __init__(self, client: Client, session: SessionId, turn_id: str, person: Person) -> None:
        self.session = session
        self.turn_id = turn_id
        self._client = client
        self._person = person
        self._open = OpenRequests(session)
        self._asking: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._follower = TurnFollower(client, session, turn_id)

    async def outcome(self, cursor: EqCursor) -> TurnOutcome:
        """Follows the session from `cursor` until the turn is over."""
        try:
            async for event in self._client.follow(self.session, cursor):
                self._open.receive(event)
                self._leave_answered()
                await self._show(event)
                end = await self._follower.receive(event)
                if end is not None:
                    return self._outcome(end)
        finally:
            for task in self._asking.values():
                task.cancel()
            await asyncio.gather(*self._asking.values(), return_exceptions=True)
        raise UnknownSession(self.session)

    def _outcome(self, end: End) -> TurnOutcome:
        error = self._follower.error
        match end:
            case Completed(None) if error:
                return self._over("failed", error)
            case Completed(answer):
                return self._over("completed", answer or "")
            case Aborted(reason):
                return self._over("interrupted", error or f"the turn was {reason}")
            case Refused(message):
                return self._over("failed", message)
            case Quarantined():
                return self._over("failed", str(SetAside(self.session)))
            case _:
                assert_never(end)

    def _over(self, status: Any, text: str) -> TurnOutcome:
        return TurnOutcome(self.session, self.turn_id, status, text)

    # ── progress ──────────────────────────────────────────────────────────────────────────────

    async def _show(self, event: Event) -> None:
        if event.kind is StreamError and isinstance(broken := event.told, StreamError):
            await self._person.tell(shown(broken.message)[:MOST_PROGRESS])
        elif event.id == self.turn_id and event.kind is not UserMessage:
            line = message_summary(event.msg)
            if line:
                await self._person.tell(shown(line)[:MOST_PROGRESS])
        for request in self._open:
            key = _key(request)
            if key not in self._asking:
                self._asking[key] = asyncio.create_task(self._ask(request), name=f"ask:{named(request)}")

    # ── requests ──────────────────────────────────────────────────────────────────────────────

    def _leave_answered(self) -> None:
        """Takes forms back whose requests were answered elsewhere, or withdrawn."""
        still = {_key(request) for request in self._open}
        for key in [key for key in self._asking if key not in still]:
            self._asking.pop(key).cancel()

    async def _ask(self, request: Request) -> None:
        form = form_of(request, int(time.time() * 1000)) if self._person.can_be_asked else None
        if form is None or not await self._answered(form):
            await self._person.tell(f"waits for a person: dendro approvals lists {named(request)}")

    async def _answered(self, form: Form) -> bool:
        """Whether the client's person has answered."""
        message = form.message
        for _ in range(TRIES):
            answer = await self._person.ask(message, form.schema)
            match answer:
                case ("accept", content):
                    try:
                        op = form.read(content)
                    except ValueError as error:
                        message = f"{shown(str(error))}\n\n{form.message}"
                        continue
                case ("decline", _):
                    op = form.declined
                case _:
                    return False
            try:
                await self._client.submit(self.session, Submission(SubmissionId(new_submission_id()), op))
            except BrokerError as error:
                log.warning("session %s: an answer was not handed in: %s", self.session, error)
                return False
            return True
        return False


def _key(request: Request) -> tuple[str, str]:
    return request.session, request.call_id
