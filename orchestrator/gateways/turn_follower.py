"""A turn of a session, from what is handed in to its end.

`TurnFollower` has the one idea of which turn a submission begins or joins, and of how that ends. Doors that
wait for a turn show it each in its own way, and ask the follower of each event.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, assert_never

from orchestrator.broker.errors import UnknownSession
from orchestrator.broker.follow import EqCursor
from orchestrator.core.decide.ops import REMOVED
from orchestrator.core.entries import EventKind
from orchestrator.core.frozen import record
from orchestrator.core.ids import SessionId
from orchestrator.core.record_json import whole
from orchestrator.gateways.client import Client
from orchestrator.gateways.submit import new_submission_id
from orchestrator.protocol.events import (
    Error,
    EventMsg,
    InputAccepted,
    TaskComplete,
    TaskStarted,
    TurnAborted,
    WarningEvent,
)
from orchestrator.protocol.ids import SubmissionId
from orchestrator.protocol.inputs import TextInput
from orchestrator.protocol.ops import UserInput
from orchestrator.protocol.scalars import Delivery
from orchestrator.protocol.submission import Submission
from orchestrator.views import SetAside
from orchestrator.views.event import Event

_OF_TURNS = frozenset[EventKind]({Error, InputAccepted, TaskComplete, TaskStarted, TurnAborted, WarningEvent})


@record
class Completed:
    """The model was done."""

    answer: str | None
    """Its last message."""


@record
class Aborted:
    """The turn was stopped before the model was done."""

    reason: str


@record
class Refused:
    """No turn: the input was refused, or taken out of the queue before its turn."""

    message: str


@record
class Quarantined:
    """No worker goes on with the session until a person readmits it; the turn stays as it is."""


End = Completed | Aborted | Refused | Quarantined
"""How the wait for a turn ends. That the session was deleted is an `UnknownSession` of the follower's."""


MOST_ERRORS = 100
"""Ids whose last error a follower of whatever turn ends first keeps."""


class TurnFollower:
    """The turn of one submission."""

    def __init__(self, client: Client, session: SessionId, id: str | None) -> None:
        """`id` is that of the submission, which says where its input is to go, or begins its turn at once.

        None: whatever turn ends first.
        """
        self._client = client
        self._session = session
        self._id = id
        self._turn = ""
        self.error = ""
        """The last error of the turn; empty if there was none."""
        self._errors: dict[str, str] = {}
        """The last error under each of the newest ids: one of another submission is none of a turn."""

    @property
    def turn(self) -> str:
        """The turn that the input is part of; the submission's own as long as no event names another."""
        return self._turn or self._id or ""

    @property
    def begun(self) -> bool:
        """Whether an event has told which turn the input is part of: until then it may wait in the queue."""
        return bool(self._turn)

    @property
    def joined(self) -> bool:
        """Whether the input is part of a turn that another submission began."""
        return self.turn != (self._id or "")

    async def receive(self, event: Event) -> End | None:
        """Takes the session's next event; None while the turn goes on."""
        if event.kind not in _OF_TURNS:
            return None
        told = event.told
        if isinstance(told, Error) and not event.id:
            head = await self._client.head(self._session)
            return Quarantined() if head is not None and head.quarantined else None
        if self._id is not None and event.id == self._id and not self._turn:
            refused = self._of_submission(event.id, told)
            if refused is not None:
                return refused
        if self._id is not None and event.id != self.turn:
            return None
        match told:
            case Error(message=message):
                self._errors.pop(event.id, None)
                self._errors[event.id] = whole(message)
                if len(self._errors) > MOST_ERRORS:
                    del self._errors[next(iter(self._errors))]
                if self._id is not None:
                    self.error = whole(message)
            case TaskComplete(last_agent_message=answer):
                self.error = self._errors.get(event.id, "")
                return Completed(answer)
            case _ if event.kind is TurnAborted:
                self.error = self._errors.get(event.id, "")
                # The reason may be one of a newer version.
                return Aborted(str(event.msg["reason"]))
            case _:
                pass
        return None

    def _of_submission(self, id: str, told: EventMsg) -> Refused | None:
        """Takes what tells which turn a submission is part of, or that it is of none."""
        match told:
            case InputAccepted(turn_id=turn) if turn != id:
                self._turn = turn
            case TaskStarted():
                self._turn = id
            case Error(message=message):
                return Refused(whole(message))
            case WarningEvent(message=message) if message == REMOVED:
                return Refused(REMOVED)
            case _:
                pass
        return None


@record
class Turn:
    """A turn that is over."""

    id: str
    """The id of the submission that began it, and of its events."""
    answer: str | None
    """The model's last message."""
    aborted: str = ""
    """Why the turn was stopped before the model was done; empty if it was not."""
    error: str = ""
    """The last error of the turn, or why there was none; empty if all went well."""
    status: Literal["completed", "aborted", "refused"] = "completed"
    """`refused`: no turn began, and `error` says why."""


def _ignore(event: Event) -> None:
    pass


async def run_turn(
    client: Client,
    session: SessionId,
    prompt: str,
    on_event: Callable[[Event], None] = _ignore,
    delivery: Delivery = Delivery.QUEUE,
) -> Turn:
    """Gives a session a prompt, and waits until the turn is over.

    While another turn runs, the prompt waits for a turn of its own, or is part of that one (`STEER`): then
    the answer is that turn's. A worker has to serve the session's pool, here or elsewhere. A turn that waits
    for an approval waits for as long as nobody gives one: bound it with `asyncio.timeout`; the session keeps
    its turn, and the next program may follow it. `on_event` gets each event of the session as it happens.
    Raises `UnknownSession`, also where the session is deleted meanwhile, `SetAside` where it is quarantined,
    and the errors of `Client.submit`.
    """
    head = await client.head(session)
    if head is None:
        raise UnknownSession(session)
    if head.quarantined:
        raise SetAside(session)
    id = new_submission_id()
    op = UserInput(items=(TextInput(text=prompt),), delivery=delivery)
    await client.submit(session, Submission(SubmissionId(id), op))
    turn = TurnFollower(client, session, id)
    async for event in client.follow(session, EqCursor.at(head)):
        on_event(event)
        match await turn.receive(event):
            case None:
                continue
            case Completed(answer):
                return Turn(turn.turn, answer, error=turn.error)
            case Aborted(reason):
                return Turn(turn.turn, None, reason, turn.error, "aborted")
            case Refused(message):
                return Turn(id, None, error=message, status="refused")
            case Quarantined():
                raise SetAside(session)
            case other:
                assert_never(other)
    raise UnknownSession(session)
