"""Requests to people as requests of the server, and the client's answers as operations."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from orchestrator.core.calls import ClientToolWork
from orchestrator.core.calls.ask import DoesNotAnswer
from orchestrator.core.ids import SessionId
from orchestrator.gateways.app_server.write_items import command_action
from orchestrator.gateways.approvals import answer_op, plan_op, questions_op, shown_as
from orchestrator.protocol import ops
from orchestrator.protocol.bounds import check_op_bounds
from orchestrator.protocol.items import DynamicToolResponse
from orchestrator.protocol.mcp import ElicitationAction
from orchestrator.protocol.policy import (
    ApprovedExecpolicyAmendment,
    Decision,
    ExecpolicyAmendment,
    ReviewDecision,
)
from orchestrator.protocol.submission import MalformedSubmission
from orchestrator.protocol.wire import JsonMapping, JsonObject, JsonValue, written
from orchestrator.views.event_text import reach_text, told_text
from orchestrator.views.questions import name_of
from orchestrator.views.turns.records import RequestKind, RequestOpened

METHODS: Mapping[RequestKind, str] = {
    RequestKind.COMMAND: "item/commandExecution/requestApproval",
    RequestKind.PATCH: "item/fileChange/requestApproval",
    RequestKind.QUESTIONS: "item/tool/requestUserInput",
    RequestKind.CHOICES: "item/tool/requestUserInput",
    RequestKind.PLAN: "item/tool/requestUserInput",
    RequestKind.ELICITATION: "mcpServer/elicitation/request",
    RequestKind.TOOL: "item/tool/call",
}
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


def request_params(thread: SessionId, opened: RequestOpened, at_ms: int) -> JsonObject:
    """The parameters of the server's request for a request of the thread."""
    event = opened.event
    params: JsonObject = {"threadId": thread, "turnId": opened.turn, "itemId": opened.item}
    match opened.kind:
        case RequestKind.COMMAND:
            return params | _command(event) | {"startedAtMs": opened.at_ms or at_ms}
        case RequestKind.PATCH:
            more = {"reason": told_text(event), "grantRoot": event.get("grant_root")}
            return params | more | {"startedAtMs": opened.at_ms or at_ms}
        case RequestKind.QUESTIONS | RequestKind.CHOICES:
            return params | _asked([_question(each) for each in event["questions"]])
        case RequestKind.PLAN:
            return params | _asked([_plan_question(event["proposal"])])
        case RequestKind.ELICITATION:
            return _elicitation(thread, opened)
        case RequestKind.TOOL:
            return _tool_call(thread, opened)


def _command(event: JsonMapping) -> JsonObject:
    line = shlex.join(event["command"])
    prefix = event.get("proposed_execpolicy_amendment")
    amend = [{AMENDED: {"execpolicy_amendment": list(prefix)}}] if prefix else []
    return {
        "kind": "command",
        "environmentId": "local",
        "reason": told_text(event),
        "command": line,
        "cwd": event.get("cwd"),
        "commandActions": [command_action(event["command"])],
        "proposedExecpolicyAmendment": list(prefix) if prefix else None,
        "availableDecisions": ["accept", "acceptForSession", *amend, "decline", "cancel"],
    }


def _shown(event: JsonMapping) -> str:
    """The words that a client is handed of an approval's request; files of a patch it has by their item."""
    what = shlex.join(event["command"]) if "command" in event else "\n".join(event["changes"])
    return f"{told_text(event)}\n{what}"


def _asked(questions: Sequence[JsonObject]) -> JsonObject:
    return {"questions": list(questions), "isBlocking": True, "autoResolutionMs": None}


def _question(question: JsonMapping) -> JsonObject:
    options = [_option(option["label"], option["description"]) for option in question.get("options") or ()]
    return {
        "id": name_of(question),
        "header": question["header"],
        "question": question["question"],
        "isOther": bool(question.get("isOther", True)),
        "isSecret": bool(question.get("isSecret")),
        "options": options or None,
    }


def _option(label: JsonValue, description: JsonValue) -> JsonObject:
    return {"label": str(label), "description": str(description)}


def _plan_question(proposal: JsonMapping) -> JsonObject:
    """A plan as a question with two answers; another text says what to change."""
    steps = "\n".join(f"- {step['step']}" for step in proposal["plan"]["plan"])
    return {
        "id": PLAN_QUESTION,
        "header": "Plan",
        "question": f"{proposal['title']}\n\n{proposal['summary']}\n\n{steps}",
        "isOther": True,
        "isSecret": False,
        "options": [
            _option(APPROVE_PLAN, "Follow this plan"),
            _option(REJECT_PLAN, "Do not follow it"),
        ],
    }


def _elicitation(thread: SessionId, opened: RequestOpened) -> JsonObject:
    """A question of an MCP server, which takes yes or no."""
    return {
        "threadId": thread,
        "turnId": opened.turn,
        "serverName": opened.event["server_name"],
        "mode": "form",
        "message": f"{reach_text(opened.event)}.\n\n{opened.event['message']}",
        "requestedSchema": {"type": "object", "properties": {}},
    }


def _tool_call(thread: SessionId, opened: RequestOpened) -> JsonObject:
    event = opened.event
    return {
        "threadId": thread,
        "turnId": opened.turn,
        "callId": opened.item,
        "namespace": event.get("namespace"),
        "tool": event["tool"],
        "arguments": event.get("arguments"),
    }


# ── answers ───────────────────────────────────────────────────────────────────────────────────


def answer_of(opened: RequestOpened, result: Mapping[str, Any]) -> ops.Op:
    """The operation that a client's result means; raises `Malformed`, and what the questions refuse."""
    event = {**opened.event, "agent_id": None}
    match opened.kind:
        case RequestKind.COMMAND | RequestKind.PATCH:
            decision = _decision(opened.kind, result.get("decision"))
            return answer_op(event, decision, shown_as(_shown(event), "app-server v2", opened.at_ms or 0))
        case RequestKind.QUESTIONS | RequestKind.CHOICES:
            return questions_op(event, _texts(result) or None)
        case RequestKind.PLAN:
            return plan_op(event, _feedback(_texts(result)))
        case RequestKind.ELICITATION:
            return _resolved(event, result.get("action"))
        case RequestKind.TOOL:
            return tool_op(opened, _tool_response(result))


def tool_op(opened: RequestOpened, response: DynamicToolResponse) -> ops.Op:
    """The operation that a client's answer to a call of its tool means, one that cannot be used too.

    Nobody else can carry the call out: it fails, and the model reads why.
    """
    work = ClientToolWork(str(opened.event["tool"]), "", 0)
    try:
        end = work.settled(written(response))
        if isinstance(end.output, str):
            # As one text: a submission may have fewer parts.
            response = DynamicToolResponse(success=response.success, output=end.output)
        op = ops.DynamicToolResponse(id=opened.item, response=response)
        check_op_bounds(op)
    except (DoesNotAnswer, MalformedSubmission) as error:
        response = failed_tool(f"its client's answer cannot be used: {error}")
        return ops.DynamicToolResponse(id=opened.item, response=response)
    return op


def failed_tool(why: str) -> DynamicToolResponse:
    """The answer of a client whose tool has failed."""
    return DynamicToolResponse(success=False, output=why)


def _tool_response(result: Mapping[str, Any]) -> DynamicToolResponse:
    given = {name: result[name] for name in ("success", "contentItems", "output") if name in result}
    try:
        return DynamicToolResponse.model_validate(given)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        return failed_tool(f"its client's answer cannot be used: {place}: {first['msg']}")


def _decision(kind: RequestKind, word: JsonValue) -> Decision:
    if isinstance(word, str) and word in DECISIONS:
        return DECISIONS[word]
    if kind is RequestKind.COMMAND and isinstance(word, dict) and word.keys() == {AMENDED}:
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


def _feedback(texts: Mapping[str, Sequence[str]]) -> str | None:
    """None to approve, an empty text to reject, else what is to be changed."""
    said = " ".join(texts.get(PLAN_QUESTION, ())).strip()
    if said == APPROVE_PLAN:
        return None
    return "" if said in ("", REJECT_PLAN) else said


def _resolved(event: JsonMapping, action: JsonValue) -> ops.Op:
    if action not in tuple(ElicitationAction):
        raise Malformed(f"action: {action!r}")
    server = str(event["server_name"])
    return ops.ResolveElicitation(
        server_name=server, request_id=event["id"], decision=ElicitationAction(action), agent_id=None
    )
