"""Requests to people as requests of the server, and the client's answers as operations."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any, assert_never

from orchestrator.core.ids import SessionId
from orchestrator.gateways.app_server.write_items import command_action
from orchestrator.protocol import ops
from orchestrator.protocol.mcp import ElicitationAction
from orchestrator.protocol.plans import PlanApprovalResponse, PlanApproved, PlanRejected, PlanRevised
from orchestrator.protocol.policy import (
    ApprovedExecpolicyAmendment,
    Decision,
    ExecpolicyAmendment,
    ReviewDecision,
)
from orchestrator.protocol.wire import JsonObject, JsonValue
from orchestrator.requests import (
    ChoicesRequest,
    ClientToolRequest,
    CommandRequest,
    InputRequest,
    KnownRequest,
    PatchRequest,
    PlanDecisionRequest,
    Question,
    ServerRequest,
)
from orchestrator.requests.approvals import shown_as
from orchestrator.views.turns.records import RequestOpened, TurnId

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


def request_method(request: KnownRequest) -> str:
    """The method of the server's request."""
    match request:
        case CommandRequest():
            return "item/commandExecution/requestApproval"
        case PatchRequest():
            return "item/fileChange/requestApproval"
        case ChoicesRequest() | InputRequest() | PlanDecisionRequest():
            return "item/tool/requestUserInput"
        case ServerRequest():
            return "mcpServer/elicitation/request"
        case ClientToolRequest():
            return "item/tool/call"
        case _:
            assert_never(request)


def request_params(thread: SessionId, opened: RequestOpened, at_ms: int) -> JsonObject:
    """The parameters of the server's request for a request of the thread."""
    request = opened.request
    params: JsonObject = {"threadId": thread, "turnId": opened.turn, "itemId": opened.item}
    match request:
        case CommandRequest():
            return params | _command(request) | {"startedAtMs": opened.at_ms or at_ms}
        case PatchRequest():
            more = {"reason": request.told, "grantRoot": request.event.get("grant_root")}
            return params | more | {"startedAtMs": opened.at_ms or at_ms}
        case ChoicesRequest() | InputRequest():
            return params | _asked([_question(each) for each in request.questions])
        case PlanDecisionRequest():
            return params | _asked([_plan_question(request)])
        case ServerRequest():
            return _elicitation(thread, opened.turn, request)
        case ClientToolRequest():
            return _tool_call(thread, opened, request)
        case _:
            assert_never(request)


def _command(request: CommandRequest) -> JsonObject:
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


def _shown(request: CommandRequest | PatchRequest) -> str:
    """The words that a client is handed of an approval's request; files of a patch it has by their item."""
    what = shlex.join(request.command) if isinstance(request, CommandRequest) else "\n".join(request.paths)
    return f"{request.told}\n{what}"


def _asked(questions: Sequence[JsonObject]) -> JsonObject:
    return {"questions": list(questions), "isBlocking": True, "autoResolutionMs": None}


def _question(question: Question) -> JsonObject:
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


def _plan_question(request: PlanDecisionRequest) -> JsonObject:
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


def _elicitation(thread: SessionId, turn: TurnId, request: ServerRequest) -> JsonObject:
    """A question of an MCP server, which takes yes or no."""
    return {
        "threadId": thread,
        "turnId": turn,
        "serverName": request.server,
        "mode": "form",
        "message": f"{request.where}.\n\n{request.message}",
        "requestedSchema": {"type": "object", "properties": {}},
    }


def _tool_call(thread: SessionId, opened: RequestOpened, request: ClientToolRequest) -> JsonObject:
    return {
        "threadId": thread,
        "turnId": opened.turn,
        "callId": opened.item,
        "namespace": request.namespace,
        "tool": request.tool,
        "arguments": request.arguments,
    }


# ── answers ───────────────────────────────────────────────────────────────────────────────────


def answer_of(opened: RequestOpened, result: Mapping[str, Any]) -> ops.Op:
    """The operation that a client's result means; raises `Malformed`, and what the request refuses."""
    request = opened.request.in_own_session()
    match request:
        case CommandRequest() | PatchRequest():
            shown = shown_as(_shown(request), "app-server v2", opened.at_ms or 0)
            return request.decided(_decision(request, result.get("decision")), shown)
        case ChoicesRequest() | InputRequest():
            return request.replied(_texts(result) or None)
        case PlanDecisionRequest():
            return request.responded(_response(_texts(result)))
        case ServerRequest():
            return request.responded(_action(result.get("action")))
        case ClientToolRequest():
            return request.responded(result)
        case _:
            assert_never(request)


def _decision(request: CommandRequest | PatchRequest, word: JsonValue) -> Decision:
    if isinstance(word, str) and word in DECISIONS:
        return DECISIONS[word]
    if isinstance(request, CommandRequest) and isinstance(word, dict) and word.keys() == {AMENDED}:
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
