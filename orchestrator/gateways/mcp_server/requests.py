"""An agent's request as a form for the person in front of the client, and what they fill in as an op.

What a form cannot ask for stays in the fleet's queue: a secret, which the protocol forbids to ask for by a
form, and what was not answered.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping
from typing import Any

from orchestrator.core.frozen import record
from orchestrator.gateways.approvals import answer_op, plan_op, questions_op, shown_as
from orchestrator.protocol import ops
from orchestrator.protocol.policy import ReviewDecision
from orchestrator.views.event_text import command_text, reach_text, reason_texts, variables_text
from orchestrator.views.questions import (
    Request,
    call_id_of,
    is_elicitation,
    is_plan,
    is_question,
    is_secret,
    name_of,
    options_of,
    subject_of,
    texts_of,
)

MOST_SHOWN = 16_000
"""Characters of a request that its form shows."""
_KEPT = "\n\t"
_DECISIONS: Mapping[str, str] = {
    ReviewDecision.APPROVED: "Allow",
    ReviewDecision.APPROVED_FOR_SESSION: "Allow, and do not ask again in this session",
    ReviewDecision.DENIED: "Refuse; the agent goes on",
    ReviewDecision.ABORT: "Refuse, and stop the turn",
}
Content = Mapping[str, Any]


@record
class Form:
    """A form: its text, its fields, and the op that a filled in one is.

    `read` raises `ValueError` for contents that answer nothing.
    """

    message: str
    schema: dict[str, Any]
    read: Callable[[Content], ops.Op]
    declined: ops.Op
    """The op that says that the person declines to answer."""


def form_of(request: Request, now_ms: int) -> Form | None:
    """The form of a request that is put now; None if it cannot be asked by one."""
    if is_question(request):
        return _questions(request)
    if is_plan(request):
        return _plan(request)
    if is_elicitation(request):
        accept, decline = (
            answer_op(request, each) for each in (ReviewDecision.APPROVED, ReviewDecision.DENIED)
        )
        asked = f"{reach_text(request)}.\n\n{subject_of(request)}"
        return Form(shown(asked), _object({}), lambda _: accept, decline)
    return _approval(request, now_ms)


def _approval(request: Request, now_ms: int) -> Form:
    choice = {
        "type": "string",
        "title": "Decision",
        "enum": list(_DECISIONS),
        "enumNames": list(_DECISIONS.values()),
    }

    def read(content: Content) -> ops.Op:
        decision = str(content.get("decision"))
        if decision not in _DECISIONS:
            raise ValueError(f"decision: one of {', '.join(_DECISIONS)}")
        return answer_op(request, ReviewDecision(decision), seen)

    message, schema = shown(_asked(request)), _object({"decision": choice}, "decision")
    seen = shown_as(message, "mcp", now_ms)
    return Form(message, schema, read, answer_op(request, ReviewDecision.DENIED, seen))


def _asked(request: Request) -> str:
    where = f"{reach_text(request)}."
    why = "".join(f"\n\n{reason}" for reason in reason_texts(request))
    if request["type"] == "exec_approval_request":
        what = f"{variables_text(request)}{command_text(request['command'])}"
        return f"Allow this command?\n\n{where}\n\n{what}\n\nin {request['cwd']}{why}"
    files = "\n".join(_change(path, change) for path, change in request["changes"].items())
    return f"Allow this change of files?\n\n{where}\n\n{files}{why}"


def _change(path: str, change: Mapping[str, Any]) -> str:
    kind = str(change.get("type") or next(iter(change), "change"))
    inner = change.get(kind)
    inner = inner if isinstance(inner, Mapping) else change
    text = next((str(inner[name]) for name in ("unified_diff", "content") if inner.get(name)), "")
    return f"{kind} {path}\n{text}"


def _plan(request: Request) -> Form:
    proposal = request["proposal"]
    fields = {
        "decision": {"type": "string", "title": "Decision", "enum": ["approved", "rejected", "revise"]},
        "feedback": {"type": "string", "title": "What to change, if it is to be revised"},
    }

    def read(content: Content) -> ops.Op:
        match content.get("decision"):
            case "approved":
                return plan_op(request, None)
            case "rejected":
                return plan_op(request, "")
            case "revise" if str(content.get("feedback") or "").strip():
                return plan_op(request, str(content["feedback"]))
        raise ValueError("decision: approved, rejected, or revise with feedback")

    steps = "\n".join(f"{n}. {step['step']}" for n, step in enumerate(proposal["plan"]["plan"], 1))
    parts = (proposal["title"], proposal["summary"], proposal["plan"].get("explanation"), steps)
    text = "\n\n".join(str(part) for part in parts if part)
    message = shown(f"Approve this plan?\n\n{text}")
    return Form(message, _object(fields, "decision"), read, plan_op(request, ""))


def _questions(request: Request) -> Form | None:
    asked = request["questions"]
    if any(map(is_secret, asked)):
        return None
    fields = {name_of(each): _field(each) for each in asked}

    def read(content: Content) -> ops.Op:
        answers = {name_of(each): texts_of(each, str(content.get(name_of(each), ""))) for each in asked}
        return questions_op(request, answers)

    lines = "\n".join(f"{each['header']}: {each['question']}{_choices(each)}" for each in asked)
    return Form(shown(lines), _object(fields, *fields), read, questions_op(request, None))


def _field(question: Request) -> dict[str, Any]:
    # A text, also where there are options: people may say something else.
    return {
        "type": "string",
        "title": shown(str(question["header"])),
        "description": shown(question["question"]),
    }


def _choices(question: Request) -> str:
    labels = options_of(question)
    several = " (several: separated by commas)" if question.get("multiSelect") else ""
    numbered = "".join(f"\n  {number}. {label}" for number, label in enumerate(labels, 1))
    return f"{several}{numbered}"


def _object(properties: Mapping[str, Any], *required: str) -> dict[str, Any]:
    return {"type": "object", "properties": dict(properties), "required": list(required)}


def named(request: Request) -> str:
    """The call of a request, with its agent, as `dendro approvals` lists it."""
    return f"{request.get('agent_id') or 0}:{call_id_of(request)}"


def shown(text: str) -> str:
    """A text with nothing in it that steers what a person sees, cut where it is long."""
    cut = (
        text
        if len(text) <= MOST_SHOWN
        else f"{text[:MOST_SHOWN]}\n… {len(text) - MOST_SHOWN} characters more"
    )
    return "".join(char if char in _KEPT or not _steers(char) else f"\\u{ord(char):04x}" for char in cut)


def _steers(char: str) -> bool:
    """Whether it is a control, a bidirectional override or the like, or a lone surrogate."""
    return unicodedata.category(char) in ("Cc", "Cf", "Cs")
