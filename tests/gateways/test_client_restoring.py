"""A client submits to a session that has gone to the archive."""

from __future__ import annotations

from typing import Any, cast

from orchestrator.broker.errors import SessionArchived, Unavailable
from orchestrator.broker.records import Submit, Submitted
from orchestrator.core.ids import SessionId, new_session_id
from orchestrator.gateways.client import Client, ClientPorts
from orchestrator.protocol import ops
from orchestrator.protocol.ids import SubmissionId
from orchestrator.protocol.submission import Submission

SESSION = SessionId(new_session_id(0, 0, 1))


class _Archive:
    """A session in the archive, behind a connection that breaks when it is brought back."""

    def __init__(self, breaks: int) -> None:
        self.breaks = breaks
        self.archived = True

    @property
    def commits(self) -> _Archive:
        return self

    async def submit(self, request: Submit) -> Submitted:
        if self.archived:
            raise SessionArchived(request.session)
        return Submitted("1-0", False, None, False, 1)

    async def restore(self, session: SessionId) -> bool:
        if self.breaks:
            self.breaks -= 1
            raise Unavailable("the connection was lost")
        self.archived = False
        return True


async def _at_once(seconds: float) -> None:
    return None


async def test_client_that_loses_redis_while_it_restores_goes_on_until_its_submission_is_kept() -> None:
    there = _Archive(breaks=3)
    ports = ClientPorts(cast(Any, there), cast(Any, None), bytes, _at_once, restore=there.restore)
    op = ops.UserInput(items=cast(Any, ({"type": "text", "text": "are you there?"},)))
    answer = await Client(ports, "client").submit(SESSION, Submission(SubmissionId("s1"), op))
    assert answer.sq_id == "1-0"
    assert not there.breaks
