"""A turn of a session, from its prompt to its end."""

from __future__ import annotations

from collections.abc import Callable

from orchestrator.broker.errors import UnknownSession
from orchestrator.broker.follow import EqCursor
from orchestrator.core.frozen import record
from orchestrator.core.ids import SessionId
from orchestrator.gateways.client import Client
from orchestrator.gateways.submit import new_submission_id
from orchestrator.protocol.ids import SubmissionId
from orchestrator.protocol.inputs import TextInput
from orchestrator.protocol.ops import UserInput
from orchestrator.protocol.submission import Submission
from orchestrator.views.event import Event


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
    """The last error of the turn; empty if there was none."""


def _ignore(event: Event) -> None:
    pass


async def run_turn(
    client: Client, session: SessionId, prompt: str, on_event: Callable[[Event], None] = _ignore
) -> Turn:
    """Gives a session at rest a prompt, and waits until the turn is over.

    A worker has to serve the session's pool, here or elsewhere. A turn that waits for an approval waits for
    as long as nobody gives one: bound it with `asyncio.timeout`; the session keeps its turn, and the next
    program may follow it. `on_event` gets each event of the session as it happens. Raises `UnknownSession`,
    and the errors of `Client.submit`.
    """
    head = await client.head(session)
    if head is None:
        raise UnknownSession(session)
    id = new_submission_id()
    await client.submit(session, Submission(SubmissionId(id), UserInput(items=(TextInput(text=prompt),))))
    error = ""
    async for event in client.follow(session, EqCursor.at(head)):
        on_event(event)
        if event.id != id:
            continue
        match event.type:
            case "error":
                error = str(event.msg["message"])
            case "task_complete":
                return Turn(id, event.msg.get("last_agent_message"), error=error)
            case "turn_aborted":
                return Turn(id, None, aborted=str(event.msg["reason"]), error=error)
    raise AssertionError("a follower ends only when it is cancelled")
