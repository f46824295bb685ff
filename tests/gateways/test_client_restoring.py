"""A client submits to a session that has gone to the archive."""

from __future__ import annotations

from typing import Any, cast

import pytest

from orchestrator.broker.errors import Corrupt, OutOfMemory, SessionArchived, Unavailable, UnknownSession
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


class _PutAway:
    """A session that was put away from lists, behind a connection that breaks when it is brought back."""

    def __init__(self) -> None:
        self.breaks, self.shelved = 1, True
        self.fault: Exception | None = None

    @property
    def commits(self) -> _PutAway:
        return self

    @property
    def trees(self) -> _PutAway:
        return self

    async def submit(self, request: Submit) -> Submitted:
        return Submitted("1-0", False, None, False, 1, self.shelved)

    async def enlist(self, session: SessionId, *, shelve: bool) -> bool:
        if self.breaks:
            self.breaks -= 1
            raise Unavailable("the connection was lost")
        if self.fault is not None:
            raise self.fault
        self.shelved = shelve
        return True


WORDS: list[tuple[ops.Op, bool]] = [
    (ops.UserInput(items=cast(Any, ({"type": "text", "text": "are you there?"},))), True),
    (ops.MessageAgent(agent_id=3, text="go on"), True),
    (ops.RunUserShellCommand(command="make"), True),
    (ops.Interrupt(), False),
    (ops.SetThreadName(name="Mine"), False),
    (ops.OverrideTurnContext(model="m"), False),
]


@pytest.mark.parametrize("insists", [False, True])
@pytest.mark.parametrize(
    "fault", [None, UnknownSession(SESSION), OutOfMemory("full"), Corrupt("index", "it is no zset")]
)
@pytest.mark.parametrize("shelved", [False, True])
@pytest.mark.parametrize(("op", "brings"), WORDS, ids=lambda each: type(each).__name__)
async def test_words_by_whatever_door_bring_a_session_back_into_the_lists(
    op: ops.Op, brings: bool, shelved: bool, fault: Exception | None, insists: bool
) -> None:
    """They are kept, whatever becomes of the lists."""
    there = _PutAway()
    there.shelved, there.fault = shelved, fault
    ports = ClientPorts(cast(Any, there), cast(Any, None), bytes, _at_once, insists=insists)
    client = Client(ports, "client")
    await client.submit(SESSION, Submission(SubmissionId("s1"), op))
    assert there.shelved is (shelved and (fault is not None or not brings or not insists))
    assert there.breaks == int(not (shelved and brings))


async def _at_once(seconds: float) -> None:
    return None


async def test_client_that_loses_redis_while_it_restores_goes_on_until_its_submission_is_kept() -> None:
    there = _Archive(breaks=3)
    ports = ClientPorts(cast(Any, there), cast(Any, None), bytes, _at_once, restore=there.restore)
    op = ops.UserInput(items=cast(Any, ({"type": "text", "text": "are you there?"},)))
    answer = await Client(ports, "client").submit(SESSION, Submission(SubmissionId("s1"), op))
    assert answer.sq_id == "1-0"
    assert not there.breaks
