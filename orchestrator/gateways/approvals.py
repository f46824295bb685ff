"""Answers to requests: handed in to the session that asked, and watched until they are decided.

Who gave an answer and when is in that session's log. Its outcome is read there, too: another answer
may have come first.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import assert_never

import orjson

from orchestrator.broker.open_requests import Opened, Settled
from orchestrator.core import facts as f
from orchestrator.core.commands import AnswerOp
from orchestrator.core.commit_parts import WITHDRAWN
from orchestrator.core.decide.call import reply_of
from orchestrator.core.entries import DENDRO
from orchestrator.core.frozen import record
from orchestrator.core.ids import SessionId, TreeId
from orchestrator.gateways.client import Client
from orchestrator.gateways.submit import new_submission_id
from orchestrator.protocol.ids import SubmissionId
from orchestrator.protocol.policy import Decision
from orchestrator.protocol.submission import Submission
from orchestrator.rollouts.source import LogSource
from orchestrator.views.approvals import Asked, Decided, asked_of

PATIENCE_S = 10.0


@record
class Over:
    """A request that was shown, and waits for nobody any more."""

    asked: Asked


async def followed(client: Client, found: LogSource, tree: TreeId | None) -> AsyncIterator[Asked | Over]:
    """The open requests of a tree, or of all that the client sees, and then each change, for ever."""
    shown: dict[tuple[SessionId, str], Asked] = {}
    async for change in client.requests():
        match change:
            case Opened(request):
                asked = await asked_of(found, request)
                if asked is not None and tree in (None, asked.tree):
                    shown[request.session, request.key] = asked
                    yield asked
            case Settled(session, key):
                if (known := shown.pop((session, key), None)) is not None:
                    yield Over(known)
            case _:
                assert_never(change)


async def decide(client: Client, found: LogSource, asked: Asked, decision: Decision) -> Decided:
    """Decides about a request, and waits for its decision; raises `DoesNotAnswer` if it cannot be one."""
    return await hand_in(client, found, asked, asked.request.in_own_session().decided(decision))


async def hand_in(client: Client, found: LogSource, asked: Asked, op: AnswerOp) -> Decided:
    """Hands an answer to the session that asked, and waits for the decision."""
    id = new_submission_id()
    await client.submit(asked.session, Submission(SubmissionId(id), op))
    answer = await client.until([asked.session], lambda: _answer(found, asked), PATIENCE_S)
    if answer is None:
        return Decided(asked, "", "", ours=False)
    decided, who = answer
    ours = who == client.who and decided == reply_of(op).decision
    return Decided(asked, decided, who, ours)


async def _answer(found: LogSource, asked: Asked) -> tuple[str, str] | None:
    """The decision in the session's log, and its author: the first for this call since it was listed."""
    after = asked.seq
    while page := await found.broker.logs.read_rollout(asked.session, after):
        for stored in page:
            line = orjson.loads(stored.payload)
            if line["type"] != DENDRO:
                continue
            match f.decode(line["payload"]):
                case f.Answered(call_id=call_id, decision=decision, who=who) if call_id == asked.call_id:
                    return decision, who
                case f.TaskEnded():
                    return WITHDRAWN, ""
                case _:
                    pass
        after = page[-1].seq
    return None
