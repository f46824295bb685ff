"""Sessions for one question: they are in no list, and are deleted when nobody hears them any more."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from orchestrator.broker.errors import BrokerError, SessionHeld, UnknownSession
from orchestrator.broker.records import AT_REST
from orchestrator.core.ids import SessionId
from orchestrator.gateways.client import Client
from orchestrator.gateways.submit import new_submission_id
from orchestrator.protocol import ops
from orchestrator.protocol.ids import SubmissionId
from orchestrator.protocol.submission import Submission
from orchestrator.rollouts.source import LogSource

TRIES = 50
POLL_S = 0.1


async def delete(found: LogSource, client: Client, session: SessionId) -> bool:
    """Stops what runs in a session, and deletes it; False if a worker kept it, for retention to delete."""
    with suppress(UnknownSession):
        head = await client.head(session)
        if head is not None and head.status not in AT_REST:
            await client.submit(session, Submission(SubmissionId(new_submission_id()), ops.Interrupt()))
        return await _deleted(found, session)
    return True


async def _deleted(found: LogSource, session: SessionId) -> bool:
    for _ in range(TRIES):
        try:
            await found.broker.trees.delete_session(session, owed=True)
        except SessionHeld:
            # A release is no event, so it has to be looked for.
            await asyncio.sleep(POLL_S)
        except UnknownSession:
            return True
        except BrokerError:
            return False
        else:
            return True
    return False
