"""Answers to requests: handed in to the session that asked, and watched until they are decided.

Who gave an answer and when is in that session's log. Its outcome is read there, too: another answer
may have come first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import orjson

from orchestrator.core import facts as f
from orchestrator.core.decide.approval_events import WITHDRAWN
from orchestrator.core.entries import DENDRO
from orchestrator.gateways.client import Client
from orchestrator.gateways.submit import new_submission_id
from orchestrator.protocol import ops
from orchestrator.protocol.ids import SubmissionId
from orchestrator.protocol.policy import ReviewDecision
from orchestrator.protocol.submission import Submission
from orchestrator.rollouts.source import LogSource
from orchestrator.views.approvals import Asked, Decided

PATIENCE_S = 10.0
POLL_S = 0.05


def answer_op(request: Mapping[str, Any], decision: ReviewDecision) -> ops.Op:
    """The op that answers a request."""
    # Two agents of a tree may both have a call of this name.
    call, agent = str(request["call_id"]), request.get("agent_id")
    if request["type"] == "exec_approval_request":
        return ops.ExecApproval(id=call, decision=decision, agent_id=agent)
    return ops.PatchApproval(id=call, decision=decision, agent_id=agent)


async def decide(client: Client, found: LogSource, asked: Asked, decision: ReviewDecision) -> Decided:
    """Answers a request, and waits for its decision."""
    id = new_submission_id()
    # The session is the agent's own: its call's id is enough.
    op = answer_op({**asked.request, "agent_id": None}, decision)
    await client.submit(asked.session, Submission(SubmissionId(id), op))
    try:
        async with asyncio.timeout(PATIENCE_S):
            # An answer is no event, so it has to be looked for.
            while (answer := await _answer(found, asked)) is None:  # noqa: ASYNC110
                await asyncio.sleep(POLL_S)
    except TimeoutError:
        return Decided(asked, "", "", ours=False)
    decided, who = answer
    ours = who == client.who and decided == decision
    return Decided(asked, decided, who, ours)


async def _answer(found: LogSource, asked: Asked) -> tuple[str, str] | None:
    """The decision in the session's log, and its author: the first for this call since it was listed."""
    after = asked.seq
    while page := await found.broker.read_rollout(asked.session, after):
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
