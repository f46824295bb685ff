"""Sessions for one question: they are in no list, and are deleted when nobody hears them any more."""

from __future__ import annotations

from contextlib import suppress

from orchestrator.broker.errors import BrokerError, SessionHeld, UnknownSession
from orchestrator.broker.notices import until
from orchestrator.broker.records import AT_REST
from orchestrator.core.ids import SessionId
from orchestrator.gateways.client import Client
from orchestrator.gateways.submit import new_submission_id
from orchestrator.protocol import ops
from orchestrator.protocol.ids import SubmissionId
from orchestrator.protocol.submission import Submission
from orchestrator.rollouts.source import LogSource

PATIENCE_S = 5.0


async def delete(found: LogSource, client: Client, session: SessionId) -> bool:
    """Stops what runs in a session, and deletes it; False if a worker kept it, for retention to delete."""
    with suppress(UnknownSession):
        head = await client.head(session)
        if head is not None and head.status not in AT_REST:
            await client.submit(session, Submission(SubmissionId(new_submission_id()), ops.Interrupt()))
        with suppress(BrokerError):
            return bool(await until(found.broker, [session], lambda: _deleted(found, session), PATIENCE_S))
        return False
    return True


async def _deleted(found: LogSource, session: SessionId) -> bool:
    """Deletes a session; False while a worker holds it."""
    with suppress(UnknownSession):
        try:
            await found.broker.trees.delete_session(session, owed=True)
        except SessionHeld:
            return False
    return True
