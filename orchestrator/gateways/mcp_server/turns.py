"""A turn that a client began, followed to its end.

The turn is the session's: neither a client that leaves nor one that is slow ends it. What an agent asks goes
to the client's person if the client can ask them, and stands in the fleet's queue meanwhile: the first answer
counts, from wherever it comes.
"""

from __future__ import annotations

import asyncio
import logging
import time
import unicodedata
from collections.abc import Callable, Mapping
from typing import Any, Protocol, assert_never

from orchestrator.broker.errors import BrokerError, UnknownSession
from orchestrator.broker.follow import EqCursor
from orchestrator.core.frozen import record
from orchestrator.core.ids import SessionId
from orchestrator.gateways.client import Client
from orchestrator.gateways.mcp_server.tools import TurnOutcome
from orchestrator.gateways.submit import new_submission_id
from orchestrator.gateways.turns import Aborted, Completed, End, Quarantined, Refused, TurnFollower
from orchestrator.protocol import ops
from orchestrator.protocol.events import StreamError, UserMessage
from orchestrator.protocol.ids import SubmissionId
from orchestrator.protocol.mcp import ElicitationAction
from orchestrator.protocol.submission import Submission
from orchestrator.requests import (
    ChoicesRequest,
    ClientToolRequest,
    CommandRequest,
    Given,
    InputRequest,
    PatchRequest,
    PlanDecisionRequest,
    Question,
    Request,
    ServerRequest,
    UnknownRequest,
)
from orchestrator.requests.approvals import AMENDMENT, shown_as
from orchestrator.requests.asks import REVISE
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


# ── requests ──────────────────────────────────────────────────────────────────────────────────────
# An agent's request as a form for the person in front of the client, and what they fill in as an op.
#
# What a form cannot ask for stays in the fleet's queue: a secret, which the protocol forbids to ask for
# by a form, and what was not answered.


MOST_SHOWN = 16_000
"""Characters of a request that its form shows."""
_KEPT = "\n\t"
Content = Mapping[str, Any]


@record
class Form:
    """A form: its text, its fields, and the op that a filled in one is.

    `read` raises `ValueError` for contents that answer nothing.
    """

    message: str
    schema: dict[str, Any]
    read: Callable[[Content], ops.Op]
    declined: ops.Op
    """The op that says that the person declines to answer."""


def form_of(request: Request, now_ms: int) -> Form | None:
    """The form of a request that is put now; None if it cannot be asked by one."""
    match request:
        case ChoicesRequest() | InputRequest():
            return _questions(request)
        case PlanDecisionRequest():
            return _plan(request)
        case ServerRequest():
            accept = request.responded(ElicitationAction.ACCEPT)
            asked = f"{request.where}.\n\n{request.subject}"
            return Form(shown(asked), _object({}), lambda _: accept, request.refused())
        case CommandRequest() | PatchRequest():
            return _approval(request, now_ms)
        case ClientToolRequest() | UnknownRequest():
            return None
        case _:
            assert_never(request)


def _approval(request: CommandRequest | PatchRequest, now_ms: int) -> Form:
    # A prefix of commands is nothing that a form has room to show.
    choices = {each.word: each.title for each in request.choices if each.word != AMENDMENT}
    choice = {
        "type": "string",
        "title": "Decision",
        "enum": list(choices),
        "enumNames": list(choices.values()),
    }

    def read(content: Content) -> ops.Op:
        decision = str(content.get("decision"))
        if decision not in choices:
            raise ValueError(f"decision: one of {', '.join(choices)}")
        return request.answer(Given(decision), seen)

    message, schema = shown(_asked(request)), _object({"decision": choice}, "decision")
    seen = shown_as(message, "mcp", now_ms)
    return Form(message, schema, read, request.refused(seen))


def _asked(request: CommandRequest | PatchRequest) -> str:
    where = f"{request.where}."
    why = "".join(f"\n\n{reason}" for reason in request.reasons)
    if isinstance(request, CommandRequest):
        return f"Allow this command?\n\n{where}\n\n{request.subject}\n\nin {request.cwd}{why}"
    files = "\n".join(f"{change.verb} {change.path}\n{change.text}" for change in request.changes)
    return f"Allow this change of files?\n\n{where}\n\n{files}{why}"


def _plan(request: PlanDecisionRequest) -> Form:
    words = [each.word for each in request.choices]
    fields = {
        "decision": {"type": "string", "title": "Decision", "enum": words},
        "feedback": {"type": "string", "title": REVISE.text},
    }

    def read(content: Content) -> ops.Op:
        word, feedback = str(content.get("decision")), str(content.get("feedback") or "")
        if word not in words or (word == REVISE.word and not feedback.strip()):
            raise ValueError("decision: approved, rejected, or revise with feedback")
        return request.answer(Given(word, feedback if word == REVISE.word else ""))

    text = "\n\n".join(part.text for part in request.body)
    message = shown(f"Approve this plan?\n\n{text}")
    return Form(message, _object(fields, "decision"), read, request.refused())


def _questions(request: ChoicesRequest | InputRequest) -> Form | None:
    asked = request.questions
    if any(each.secret for each in asked):
        return None
    fields = {each.name: _field(each) for each in asked}

    def read(content: Content) -> ops.Op:
        return request.replied({each.name: each.texts(str(content.get(each.name, ""))) for each in asked})

    lines = "\n".join(f"{each.header}: {each.question}{_choices(each)}" for each in asked)
    return Form(shown(lines), _object(fields, *fields), read, request.refused())


def _field(question: Question) -> dict[str, Any]:
    # A text, also where there are options: people may say something else.
    return {
        "type": "string",
        "title": shown(question.header),
        "description": shown(question.question),
    }


def _choices(question: Question) -> str:
    several = " (several: separated by commas)" if question.several else ""
    numbered = "".join(f"\n  {number}. {label}" for number, label in enumerate(question.labels, 1))
    return f"{several}{numbered}"


def _object(properties: Mapping[str, Any], *required: str) -> dict[str, Any]:
    return {"type": "object", "properties": dict(properties), "required": list(required)}


def named(request: Request) -> str:
    """The call of a request, with its agent, as `dendro approvals` lists it."""
    return f"{request.agent_id or 0}:{request.call_id}"


def shown(text: str) -> str:
    """A text with nothing in it that steers what a person sees, cut where it is long."""
    cut = (
        text
        if len(text) <= MOST_SHOWN
        else f"{text[:MOST_SHOWN]}\n… {len(text) - MOST_SHOWN} characters more"
    )
    return "".join(char if char in _KEPT or not _steers(char) else f"\\u{ord(char):04x}" for char in cut)


def _steers(char: str) -> bool:
    """Whether it is a control, a bidirectional override or the like, or a lone surrogate."""
    return unicodedata.category(char) in ("Cc", "Cf", "Cs")
