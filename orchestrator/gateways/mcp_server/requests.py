"""An agent's request as a form for the person in front of the client, and what they fill in as an op.

What a form cannot ask for stays in the fleet's queue: a secret, which the protocol forbids to ask for by a
form, and what was not answered.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping
from typing import Any, assert_never

from orchestrator.core.frozen import record
from orchestrator.protocol import ops
from orchestrator.protocol.mcp import ElicitationAction
from orchestrator.requests import (
    ChoicesRequest,
    ClientToolRequest,
    CommandRequest,
    Given,
    InputRequest,
    PatchRequest,
    PlanDecisionRequest,
    Question,
    Request,
    ServerRequest,
    UnknownRequest,
)
from orchestrator.requests.approvals import AMENDMENT, shown_as
from orchestrator.requests.asks import REVISE

MOST_SHOWN = 16_000
"""Characters of a request that its form shows."""
_KEPT = "\n\t"
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
    match request:
        case ChoicesRequest() | InputRequest():
            return _questions(request)
        case PlanDecisionRequest():
            return _plan(request)
        case ServerRequest():
            accept = request.responded(ElicitationAction.ACCEPT)
            asked = f"{request.where}.\n\n{request.subject}"
            return Form(shown(asked), _object({}), lambda _: accept, request.refused())
        case CommandRequest() | PatchRequest():
            return _approval(request, now_ms)
        case ClientToolRequest() | UnknownRequest():
            return None
        case _:
            assert_never(request)


def _approval(request: CommandRequest | PatchRequest, now_ms: int) -> Form:
    # A prefix of commands is nothing that a form has room to show.
    choices = {each.word: each.title for each in request.choices if each.word != AMENDMENT}
    choice = {
        "type": "string",
        "title": "Decision",
        "enum": list(choices),
        "enumNames": list(choices.values()),
    }

    def read(content: Content) -> ops.Op:
        decision = str(content.get("decision"))
        if decision not in choices:
            raise ValueError(f"decision: one of {', '.join(choices)}")
        return request.answer(Given(decision), seen)

    message, schema = shown(_asked(request)), _object({"decision": choice}, "decision")
    seen = shown_as(message, "mcp", now_ms)
    return Form(message, schema, read, request.refused(seen))


def _asked(request: CommandRequest | PatchRequest) -> str:
    where = f"{request.where}."
    why = "".join(f"\n\n{reason}" for reason in request.reasons)
    if isinstance(request, CommandRequest):
        return f"Allow this command?\n\n{where}\n\n{request.subject}\n\nin {request.cwd}{why}"
    files = "\n".join(f"{change.verb} {change.path}\n{change.text}" for change in request.changes)
    return f"Allow this change of files?\n\n{where}\n\n{files}{why}"


def _plan(request: PlanDecisionRequest) -> Form:
    words = [each.word for each in request.choices]
    fields = {
        "decision": {"type": "string", "title": "Decision", "enum": words},
        "feedback": {"type": "string", "title": REVISE.text},
    }

    def read(content: Content) -> ops.Op:
        word, feedback = str(content.get("decision")), str(content.get("feedback") or "")
        if word not in words or (word == REVISE.word and not feedback.strip()):
            raise ValueError("decision: approved, rejected, or revise with feedback")
        return request.answer(Given(word, feedback if word == REVISE.word else ""))

    text = "\n\n".join(part.text for part in request.body)
    message = shown(f"Approve this plan?\n\n{text}")
    return Form(message, _object(fields, "decision"), read, request.refused())


def _questions(request: ChoicesRequest | InputRequest) -> Form | None:
    asked = request.questions
    if any(each.secret for each in asked):
        return None
    fields = {each.name: _field(each) for each in asked}

    def read(content: Content) -> ops.Op:
        return request.replied({each.name: each.texts(str(content.get(each.name, ""))) for each in asked})

    lines = "\n".join(f"{each.header}: {each.question}{_choices(each)}" for each in asked)
    return Form(shown(lines), _object(fields, *fields), read, request.refused())


def _field(question: Question) -> dict[str, Any]:
    # A text, also where there are options: people may say something else.
    return {
        "type": "string",
        "title": shown(question.header),
        "description": shown(question.question),
    }


def _choices(question: Question) -> str:
    several = " (several: separated by commas)" if question.several else ""
    numbered = "".join(f"\n  {number}. {label}" for number, label in enumerate(question.labels, 1))
    return f"{several}{numbered}"


def _object(properties: Mapping[str, Any], *required: str) -> dict[str, Any]:
    return {"type": "object", "properties": dict(properties), "required": list(required)}


def named(request: Request) -> str:
    """The call of a request, with its agent, as `dendro approvals` lists it."""
    return f"{request.agent_id or 0}:{request.call_id}"


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
