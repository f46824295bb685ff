"""Questions of agents, and plans, as people see them: names, options, and a typed line as an answer.

A request is the event that asked. Knows neither where it came from nor how an answer is handed in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Request = Mapping[str, Any]
Answers = Mapping[str, Sequence[str]]
"""Texts by the name of their question."""

QUESTION = "ask_user_question_request"
INPUT = "request_user_input"
PLAN = "plan_approval_request"
ELICITATION = "elicitation_request"
CLIENT_TOOL = "dynamic_tool_call_request"
QUESTIONS = frozenset({QUESTION, INPUT})
ASKED = QUESTIONS | {PLAN, ELICITATION}
"""Requests to people that are no approvals of a command or a patch."""
LISTED = ASKED | {CLIENT_TOOL}
"""These, and what waits for a client, in the fleet's queue."""


def is_plan(request: Request) -> bool:
    """Whether it puts a plan to people, who may also say what is to be changed."""
    return bool(request["type"] == PLAN)


def is_question(request: Request) -> bool:
    """Whether people answer it with words, and not with a decision."""
    return request["type"] in QUESTIONS


def is_elicitation(request: Request) -> bool:
    """Whether an MCP server asks for yes or no in the middle of a call."""
    return bool(request["type"] == ELICITATION)


def is_client_tool(request: Request) -> bool:
    """Whether a client is to carry out a call of a tool that it brings: people can end it, and no more."""
    return bool(request["type"] == CLIENT_TOOL)


def call_id_of(message: Request) -> str:
    """The call that an event is about, or the server's question; one event spells its name otherwise."""
    if message.get("type") == ELICITATION:
        return str(message["id"])
    found = message.get("call_id")
    return str(message["callId"] if found is None else found)


def name_of(question: Request) -> str:
    """The key of a question's answer."""
    return str(question["id"] if "id" in question else question["header"])


def is_secret(question: Request) -> bool:
    """Whether the answer is not to be seen."""
    return bool(question.get("isSecret"))


def subject_of(request: Request) -> str:
    """All questions of a request in one line, the title of its plan, or a server with its question."""
    if is_elicitation(request):
        return f"{request['server_name']}: {request['message']}"
    if is_plan(request):
        return str(request["proposal"]["title"])
    if is_client_tool(request):
        return f"{request.get('client') or 'its client'} is to do {request['tool']}"
    return " · ".join(f"{each['header']}: {each['question']}" for each in request["questions"])


def options_of(question: Request) -> list[str]:
    """The labels that may be chosen; none where any text will do."""
    return [str(option["label"]) for option in question.get("options") or ()]


def texts_of(question: Request, line: str) -> list[str]:
    """The answer that a typed line is: numbers of options, their labels, or words of one's own.

    Several choices are separated by commas, and become one text with one's own words last.
    """
    labels = options_of(question)
    if is_secret(question) and not labels:
        return [line]
    if not question.get("multiSelect"):
        return [_chosen(labels, line) or line.strip()]
    parts = [part.strip() for part in line.split(",") if part.strip()]
    chosen = [_chosen(labels, part) for part in parts]
    known = [label for label in labels if label in chosen]
    own = [part for part, label in zip(parts, chosen, strict=True) if label is None]
    return [", ".join((*known, *own))]


def _chosen(labels: Sequence[str], said: str) -> str | None:
    word = said.strip()
    if word.isdecimal() and 1 <= int(word) <= len(labels):
        return labels[int(word) - 1]
    return next((label for label in labels if label.casefold() == word.casefold()), None)
