"""Requests to people as requests of the server, and the client's answers as operations."""

from __future__ import annotations

import shlex
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, assert_never

from orchestrator import requests
from orchestrator.broker.errors import BrokerError, OutOfMemory, QueueFull
from orchestrator.core.calls.ask import DoesNotAnswer
from orchestrator.core.frozen import record
from orchestrator.core.ids import SessionId
from orchestrator.gateways.app_server.messages import Answer, RequestId
from orchestrator.gateways.app_server.write_items import command_action
from orchestrator.gateways.client import Client
from orchestrator.protocol import ops
from orchestrator.protocol.ids import SubmissionId
from orchestrator.protocol.mcp import ElicitationAction
from orchestrator.protocol.ops import ExecApproval, Op, PatchApproval
from orchestrator.protocol.plans import PlanApprovalResponse, PlanApproved, PlanRejected, PlanRevised
from orchestrator.protocol.policy import (
    ApprovedExecpolicyAmendment,
    Decision,
    ExecpolicyAmendment,
    ReviewDecision,
)
from orchestrator.protocol.submission import MalformedSubmission, Submission
from orchestrator.protocol.wire import JsonObject, JsonValue
from orchestrator.requests.approvals import shown_as
from orchestrator.views.turns.turn_records import RequestOpened, RequestResolved, TurnId

DECISIONS: Mapping[str, ReviewDecision] = {
    "accept": ReviewDecision.APPROVED,
    "acceptForSession": ReviewDecision.APPROVED_FOR_SESSION,
    "decline": ReviewDecision.DENIED,
    "cancel": ReviewDecision.ABORT,
}
AMENDED = "acceptWithExecpolicyAmendment"
PLAN_QUESTION = "plan"
APPROVE_PLAN, REJECT_PLAN = "Approve", "Reject"


class Malformed(Exception):
    """An answer that says nothing about its request, which stays open."""


def request_method(request: requests.KnownRequest) -> str:
    """The method of the server's request."""
    match request:
        case requests.CommandRequest():
            return "item/commandExecution/requestApproval"
        case requests.PatchRequest():
            return "item/fileChange/requestApproval"
        case requests.ChoicesRequest() | requests.InputRequest() | requests.PlanDecisionRequest():
            return "item/tool/requestUserInput"
        case requests.ServerRequest():
            return "mcpServer/elicitation/request"
        case requests.ClientToolRequest():
            return "item/tool/call"
        case _:
            assert_never(request)


def request_params(thread: SessionId, opened: RequestOpened, at_ms: int) -> JsonObject:
    """The parameters of the server's request for a request of the thread."""
    request = opened.request
    params: JsonObject = {"threadId": thread, "turnId": opened.turn, "itemId": opened.item}
    match request:
        case requests.CommandRequest():
            return params | _command(request) | {"startedAtMs": opened.at_ms or at_ms}
        case requests.PatchRequest():
            more = {"reason": request.told, "grantRoot": request.event.get("grant_root")}
            return params | more | {"startedAtMs": opened.at_ms or at_ms}
        case requests.ChoicesRequest() | requests.InputRequest():
            return params | _asked([question_json(each) for each in request.questions])
        case requests.PlanDecisionRequest():
            return params | _asked([_plan_question(request)])
        case requests.ServerRequest():
            return _elicitation(thread, opened.turn, request)
        case requests.ClientToolRequest():
            return _tool_call(thread, opened, request)
        case _:
            assert_never(request)


def _command(request: requests.CommandRequest) -> JsonObject:
    prefix = list(request.prefix)
    amend = [{AMENDED: {"execpolicy_amendment": prefix}}] if prefix else []
    return {
        "kind": "command",
        "environmentId": "local",
        "reason": request.told,
        "command": shlex.join(request.command),
        "cwd": request.cwd,
        "commandActions": [command_action(request.command)],
        "proposedExecpolicyAmendment": prefix or None,
        "availableDecisions": ["accept", "acceptForSession", *amend, "decline", "cancel"],
    }


def shown_of(request: requests.CommandRequest | requests.PatchRequest) -> str:
    """The words that a client is handed of an approval's request; files of a patch it has by their item."""
    what = (
        shlex.join(request.command)
        if isinstance(request, requests.CommandRequest)
        else "\n".join(request.paths)
    )
    return f"{request.told}\n{what}"


def _asked(questions: Sequence[JsonObject]) -> JsonObject:
    return {"questions": list(questions), "isBlocking": True, "autoResolutionMs": None}


def question_json(question: requests.Question) -> JsonObject:
    """A question as clients draw it."""
    return {
        "id": question.name,
        "header": question.header,
        "question": question.question,
        "isOther": question.other,
        "isSecret": question.secret,
        "options": [_option(each.label, each.description) for each in question.options] or None,
    }


def _option(label: str, description: str) -> JsonObject:
    return {"label": label, "description": description}


def _plan_question(request: requests.PlanDecisionRequest) -> JsonObject:
    """A plan as a question with two answers; another text says what to change."""
    steps = "\n".join(f"- {step}" for step in request.steps)
    return {
        "id": PLAN_QUESTION,
        "header": "Plan",
        "question": f"{request.subject}\n\n{request.proposal['summary']}\n\n{steps}",
        "isOther": True,
        "isSecret": False,
        "options": [
            _option(APPROVE_PLAN, "Follow this plan"),
            _option(REJECT_PLAN, "Do not follow it"),
        ],
    }


def _elicitation(thread: SessionId, turn: TurnId, request: requests.ServerRequest) -> JsonObject:
    """A question of an MCP server, which takes yes or no."""
    return {
        "threadId": thread,
        "turnId": turn,
        "serverName": request.server,
        "mode": "form",
        "message": f"{request.where}.\n\n{request.message}",
        "requestedSchema": {"type": "object", "properties": {}},
    }


def _tool_call(thread: SessionId, opened: RequestOpened, request: requests.ClientToolRequest) -> JsonObject:
    return {
        "threadId": thread,
        "turnId": opened.turn,
        "callId": opened.item,
        "namespace": request.namespace,
        "tool": request.tool,
        "arguments": request.arguments,
    }


# ── answers ───────────────────────────────────────────────────────────────────────────────────────


def answer_of(opened: RequestOpened, result: Mapping[str, Any]) -> ops.Op:
    """The operation that a client's result means; raises `Malformed`, and what the request refuses."""
    request = opened.request.in_own_session()
    match request:
        case requests.CommandRequest() | requests.PatchRequest():
            shown = shown_as(shown_of(request), "app-server v2", opened.at_ms or 0)
            return request.decided(_decision(request, result.get("decision")), shown)
        case requests.ChoicesRequest() | requests.InputRequest():
            return request.replied(_texts(result) or None)
        case requests.PlanDecisionRequest():
            return request.responded(_response(_texts(result)))
        case requests.ServerRequest():
            return request.responded(_action(result.get("action")))
        case requests.ClientToolRequest():
            return request.responded(result)
        case _:
            assert_never(request)


def _decision(request: requests.CommandRequest | requests.PatchRequest, word: JsonValue) -> Decision:
    if isinstance(word, str) and word in DECISIONS:
        return DECISIONS[word]
    if isinstance(request, requests.CommandRequest) and isinstance(word, dict) and word.keys() == {AMENDED}:
        amendment = word[AMENDED]
        prefix = amendment.get("execpolicy_amendment") if isinstance(amendment, dict) else None
        if isinstance(prefix, list) and prefix and all(isinstance(part, str) for part in prefix):
            proposed = ExecpolicyAmendment(proposed_execpolicy_amendment=tuple(prefix))
            return ApprovedExecpolicyAmendment(approved_execpolicy_amendment=proposed)
    raise Malformed(f"decision: {word!r}")


def _texts(result: Mapping[str, Any]) -> dict[str, list[str]]:
    answers = result.get("answers")
    if not isinstance(answers, dict):
        raise Malformed("answers: an object is expected")
    found = {}
    for name, answer in answers.items():
        texts = answer.get("answers") if isinstance(answer, dict) else None
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise Malformed(f"answers.{name}: an object with a list of texts is expected")
        found[name] = texts
    return found


def _response(texts: Mapping[str, Sequence[str]]) -> PlanApprovalResponse:
    said = " ".join(texts.get(PLAN_QUESTION, ())).strip()
    if said == APPROVE_PLAN:
        return PlanApproved()
    return PlanRejected() if said in ("", REJECT_PLAN) else PlanRevised(feedback=said)


def _action(action: JsonValue) -> ElicitationAction:
    if action not in tuple(ElicitationAction):
        raise Malformed(f"action: {action!r}")
    return ElicitationAction(action)


# ── asks ──────────────────────────────────────────────────────────────────────────────────────────
# Requests of threads that are put to one client, and its answers.
#
# Every connection that hears a thread is asked, each under an id of its own, and the first answer that
# reaches the session counts. A request that was settled elsewhere is taken back; a late answer is
# dropped.


NO_ROOM = QueueFull, OutOfMemory
"""Errors of an answer that was not written, and can be once there is room."""


@record
class Asked:
    """A request that this client was asked, and has not answered."""

    id: int
    session: SessionId
    opened: RequestOpened
    method: str
    params: JsonObject

    @property
    def key(self) -> tuple[SessionId, str]:
        """The name of the request in the fleet."""
        return self.session, self.opened.request.call_id


class Asks:
    """The open requests of one connection."""

    def __init__(self, client: Client) -> None:
        self._client = client
        """Not the client that submits turns: a session does not tell that one of its own answers."""
        self._next = 0
        self._open: dict[int, Asked] = {}

    def open(self, session: SessionId, opened: RequestOpened, at_ms: int) -> Asked | None:
        """A request to be sent; None if the client was asked it already."""
        params = request_params(session, opened, at_ms)
        asked = Asked(self._next, session, opened, request_method(opened.request), params)
        if any(one.key == asked.key for one in self._open.values()):
            return None
        self._next += 1
        self._open[asked.id] = asked
        return asked

    def resolved(self, session: SessionId, change: RequestResolved) -> list[int]:
        """The ids under which the client knows a request that is settled now."""
        return self._drop(lambda one: one.session == session and change.item in (one.opened.item, one.key[1]))

    def left(self, session: SessionId) -> None:
        """Forgets the requests of a thread that the client does not hear any more."""
        self._drop(lambda one: one.session == session)

    def _drop(self, meant: Callable[[Asked], bool]) -> list[int]:
        ids = [id for id, one in self._open.items() if meant(one)]
        for id in ids:
            del self._open[id]
        return ids

    async def answer(self, answer: Answer) -> Asked | None:
        """Hands the client's answer to the session that asked; one that says nothing changes nothing.

        A request is returned whose answer ends its turn: the session tells of that end alone. Raises
        `NO_ROOM`: the request is open still.
        """
        asked = self._asked(answer.id)
        op = None if asked is None else _op(asked.opened, answer)
        if asked is None or op is None:
            return None
        id = SubmissionId(f"answer-{uuid.uuid4().hex[:12]}")
        try:
            await self._client.submit(asked.session, Submission(id, op))
        except NO_ROOM:
            raise
        except (BrokerError, MalformedSubmission):
            # It holds more than an answer may, or its session is gone: no error ends a connection.
            return None
        aborts = isinstance(op, ExecApproval | PatchApproval) and op.decision == ReviewDecision.ABORT
        return asked if aborts and self._drop(lambda one: one.id == asked.id) else None

    def _asked(self, id: RequestId) -> Asked | None:
        return self._open.get(id) if isinstance(id, int) else None


def _op(opened: RequestOpened, answer: Answer) -> Op | None:
    """The operation that an answer means; None for one that says nothing, which leaves the request open."""
    if answer.result is None:
        if not isinstance(opened.request, requests.ClientToolRequest):
            return None
        return opened.request.failed(answer.error or "its client answered with an error")
    try:
        return answer_of(opened, answer.result)
    except (Malformed, DoesNotAnswer, ValueError):
        return None
