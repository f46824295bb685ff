"""Answers to requests: handed in to the session that asked, and watched until they are decided.

Who gave an answer and when is in that session's log. Its outcome is read there, too: another answer
may have come first.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, assert_never

import orjson

from orchestrator.broker.request_feed import Opened, Settled
from orchestrator.core import facts as f
from orchestrator.core.calls import PlanWork, QuestionWork, UserInputWork
from orchestrator.core.calls.client_tool import FAILED
from orchestrator.core.commit_parts import WITHDRAWN
from orchestrator.core.decide.answer import decision_word
from orchestrator.core.entries import DENDRO
from orchestrator.core.frozen import record
from orchestrator.core.ids import SessionId, TreeId
from orchestrator.gateways.client import Client
from orchestrator.gateways.submit import new_submission_id
from orchestrator.protocol import ops
from orchestrator.protocol.ids import SubmissionId
from orchestrator.protocol.items import DynamicToolResponse
from orchestrator.protocol.mcp import ElicitationAction
from orchestrator.protocol.plans import (
    PlanApprovalResponse,
    PlanApproved,
    PlanRejected,
    PlanRevised,
    QuestionsAnswered,
    QuestionsCancelled,
    RequestUserInputAnswer,
    RequestUserInputResponse,
)
from orchestrator.protocol.policy import (
    ApprovedExecpolicyAmendment,
    Decision,
    ExecpolicyAmendment,
    ReviewDecision,
)
from orchestrator.protocol.submission import Submission
from orchestrator.protocol.wire import written
from orchestrator.rollouts.source import LogSource
from orchestrator.views.approvals import Asked, Decided, asked_of
from orchestrator.views.questions import (
    QUESTION,
    Answers,
    call_id_of,
    is_client_tool,
    is_elicitation,
    is_plan,
    is_question,
)

PATIENCE_S = 10.0
MOST_SHOWN = 64 << 10
"""Characters of a request as one of Dendro's surfaces has shown it."""
ENDED_BY_PERSON = "not done: a person has ended the call while it waited for the program that brings the tool"


def amendment_of(request: Mapping[str, Any]) -> ApprovedExecpolicyAmendment | None:
    """The decision that allows the prefix which the request proposes; None if it proposes none."""
    prefix = request.get("proposed_execpolicy_amendment")
    if not prefix:
        return None
    proposed = ExecpolicyAmendment(proposed_execpolicy_amendment=tuple(prefix))
    return ApprovedExecpolicyAmendment(approved_execpolicy_amendment=proposed)


_ACTIONS: Mapping[ReviewDecision, ElicitationAction] = {
    ReviewDecision.APPROVED: ElicitationAction.ACCEPT,
    ReviewDecision.DENIED: ElicitationAction.DECLINE,
    ReviewDecision.ABORT: ElicitationAction.CANCEL,
}


def answer_op(request: Mapping[str, Any], decision: Decision, shown: ops.Shown | None = None) -> ops.Op:
    """The op that answers a request; approvals say what was `shown` of it."""
    # Two agents of a tree may both have a call of this name.
    call, agent = call_id_of(request), request.get("agent_id")
    if is_question(request):
        raise ValueError(f"{call} asks for words, and a decision is none: answer with questions_op")
    if is_plan(request):
        return plan_op(request, None if decision is ReviewDecision.APPROVED else "")
    if is_client_tool(request):
        return _ended_tool(call, decision)
    if is_elicitation(request):
        action = _ACTIONS.get(decision) if isinstance(decision, ReviewDecision) else None
        if action is None:
            raise ValueError(
                f"{call} is a question of an MCP server: yes or no is an answer, {decision} is none"
            )
        server = str(request["server_name"])
        return ops.ResolveElicitation(server_name=server, request_id=call, decision=action, agent_id=agent)
    if request["type"] == "exec_approval_request":
        return ops.ExecApproval(id=call, decision=decision, agent_id=agent, shown=shown)
    return ops.PatchApproval(id=call, decision=decision, agent_id=agent, shown=shown)


def shown_as(text: str, surface: str, opened_ms: int) -> ops.Shown:
    """The words of a surface, for `answer_op`; a longer text than fits is cut, and says so."""
    if len(text) > MOST_SHOWN:
        cut = f"\n… {len(text):,} characters in all"
        text = text[: MOST_SHOWN - len(cut)] + cut
    return ops.Shown(text=text.encode("utf-8", "replace").decode(), surface=surface, opened_ms=opened_ms)


def _ended_tool(call: str, decision: Decision) -> ops.Op:
    """A person's end of a call that waits for the client which brings its tool."""
    if decision not in (ReviewDecision.DENIED, ReviewDecision.ABORT):
        raise ValueError(f"{call} waits for the program that brings its tool: a person can only end it")
    response = DynamicToolResponse(success=False, output=ENDED_BY_PERSON)
    return ops.DynamicToolResponse(id=call, response=response)


def questions_op(request: Mapping[str, Any], answers: Answers | None) -> ops.Op:
    """The op that answers questions; None for a person who will not answer.

    Raises `DoesNotAnswer` where the session would refuse the answers.
    """
    call, agent = call_id_of(request), request.get("agent_id")
    asked: Sequence[Mapping[str, Any]] = tuple(request["questions"])
    if request["type"] == QUESTION:
        if answers is None:
            return ops.ResolveAskUserQuestion(id=call, response=QuestionsCancelled(), agent_id=agent)
        answered = QuestionsAnswered(answers={name: ", ".join(texts) for name, texts in answers.items()})
        QuestionWork(tuple(map(dict, asked))).settled(written(answered))
        return ops.ResolveAskUserQuestion(id=call, response=answered, agent_id=agent)
    given = {name: RequestUserInputAnswer(answers=tuple(texts)) for name, texts in (answers or {}).items()}
    response = RequestUserInputResponse(answers=given)
    UserInputWork(tuple(map(dict, asked))).settled(written(response))
    return ops.UserInputAnswer(id=call, response=response, agent_id=agent)


def plan_op(request: Mapping[str, Any], feedback: str | None) -> ops.Op:
    """The op that answers a plan: what is to be changed, an empty text to reject it, None to approve it.

    Raises `DoesNotAnswer` where the session would refuse the feedback.
    """
    response: PlanApprovalResponse = PlanApproved() if feedback is None else PlanRejected()
    if feedback:
        response = PlanRevised(feedback=feedback)
    PlanWork(dict(request["proposal"])).settled(written(response))
    id, agent = call_id_of(request), request.get("agent_id")
    return ops.ResolvePlanApproval(id=id, response=response, agent_id=agent)


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
    """Decides about a request, and waits for its decision."""
    # The session is the agent's own: its call's id is enough.
    op = answer_op({**asked.request, "agent_id": None}, decision)
    word = decision_word(decision)
    match op:
        case ops.ResolvePlanApproval():
            word = op.response.type
        case ops.ResolveElicitation():
            word = op.decision.value
        case ops.DynamicToolResponse():
            word = FAILED
    return await _hand_in(client, found, asked, op, word)


async def revise(client: Client, found: LogSource, asked: Asked, feedback: str) -> Decided:
    """Says what is to be changed in a plan, and waits until that is decided; raises `DoesNotAnswer`."""
    op = plan_op({**asked.request, "agent_id": None}, feedback)
    return await _hand_in(client, found, asked, op, "revised")


async def reply(client: Client, found: LogSource, asked: Asked, answers: Answers | None) -> Decided:
    """Answers questions (None: will not), and waits until that is decided; raises `DoesNotAnswer`."""
    if asked.elicits or asked.for_client:
        return await decide(client, found, asked, ReviewDecision.ABORT)
    op = questions_op({**asked.request, "agent_id": None}, answers)
    return await _hand_in(client, found, asked, op, "answered" if answers else "cancelled")


async def _hand_in(client: Client, found: LogSource, asked: Asked, op: ops.Op, decision: str) -> Decided:
    id = new_submission_id()
    await client.submit(asked.session, Submission(SubmissionId(id), op))
    answer = await client.until([asked.session], lambda: _answer(found, asked), PATIENCE_S)
    if answer is None:
        return Decided(asked, "", "", ours=False)
    decided, who = answer
    ours = who == client.who and decided == decision
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
