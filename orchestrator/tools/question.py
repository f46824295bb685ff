"""The `ask_user_question` tool: questions with options, for the decisions that are a person's."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Final

from pydantic import Field

from orchestrator.core.calls import Call, QuestionWork, UserInputWork
from orchestrator.core.commands import Assessment
from orchestrator.core.modes import asks_by_input
from orchestrator.core.state import State
from orchestrator.protocol.plans import AskUserQuestion, QuestionOption, RequestUserInputQuestion
from orchestrator.protocol.wire import JsonObject, written
from orchestrator.tools.arguments import Arguments, BadArguments, parsed
from orchestrator.tools.tool import Tool, function, string, unsupported
from orchestrator.tools.tool_context import CallSite

MOST_HEADER: Final = 12
MOST_QUESTION, MOST_LABEL, MOST_DESCRIPTION = 2_000, 100, 500
"""Characters of the texts that a person is shown."""
HELPER_ASKS: Final = "this agent only reads for another one: it asks nobody"
_NUMBERED: Final = re.compile(r"^\s*\d+\s*[).:]\s*")

OPTION = {
    "type": "object",
    "properties": {
        "label": string("The choice, in a few words; no number before it."),
        "description": string("What it leads to."),
    },
    "required": ["label", "description"],
    "additionalProperties": False,
}
ASK_USER_QUESTION = function(
    "ask_user_question",
    "Asks the person up to four questions, each with options, and waits for the answers. Only for decisions "
    "that are theirs and that you cannot find out. The person can always type an answer of their own.",
    {
        "questions": {
            "type": "array",
            "description": "1 to 4 questions.",
            "items": {
                "type": "object",
                "properties": {
                    "question": string("The whole question."),
                    "header": string(
                        f"Its name: at most {MOST_HEADER} characters, another for each question."
                    ),
                    "options": {"type": "array", "description": "2 to 4.", "items": OPTION},
                    "multiSelect": {"type": "boolean", "description": "Whether several may be chosen."},
                },
                "required": ["question", "header", "options"],
                "additionalProperties": False,
            },
        }
    },
    ["questions"],
)


class Option(Arguments):
    label: str
    description: str


class Question(Arguments):
    question: str
    header: str
    options: tuple[Option, ...]
    multi_select: Annotated[bool, Field(alias="multiSelect")] = False


class QuestionArguments(Arguments):
    questions: tuple[Question, ...]


class AskUserQuestionTool(Tool):
    """The tool of questions with options; a call of it waits for a person."""

    names = ("ask_user_question",)
    needs_folder = False
    parallel_safe = True
    beside = frozenset({"plan"})

    def offered(self, state: State) -> JsonObject | None:
        return None if state.facts.helper_call or by_input(state) else ASK_USER_QUESTION

    async def assess(self, call: Call, site: CallSite) -> Assessment:
        if call.item["type"] != "function_call":
            return unsupported(call)
        refuse_helper(site.state)
        given = parsed(QuestionArguments, call.item["arguments"]).questions
        check_names([question.header for question in given], 4, "a header")
        return QuestionWork(tuple(_checked(question, n) for n, question in enumerate(given, 1)))


def by_input(state: State) -> bool:
    """Whether the model asks with `request_user_input`; a planning session has the tool with options."""
    beside = state.task is not None and state.task.branch is not None
    return asks_by_input(state.in_force) and not beside


def refuse_helper(state: State) -> None:
    """Raises `BadArguments` for an agent that only reads for another one."""
    if state.facts.helper_call:
        raise BadArguments(HELPER_ASKS)


def check_names(names: Sequence[str], most: int, name: str) -> None:
    """Raises `BadArguments` for too many questions, or none, and for two of one name."""
    if not 1 <= len(names) <= most:
        raise BadArguments(f"questions: 1 to {most}, not {len(names)}")
    if len(set(names)) < len(names):
        raise BadArguments(f"questions: each needs {name} of its own")


def check_words(number: int, header: str, question: str) -> None:
    """Raises `BadArguments` for a header or a question that a person cannot be shown."""
    if not question.strip() or len(question) > MOST_QUESTION:
        raise BadArguments(f"question {number}: its text has 1 to {MOST_QUESTION:,} characters")
    if not header.strip():
        raise BadArguments(f"question {number}: its header is empty")
    if len(header) > MOST_HEADER:
        raise BadArguments(
            f"question {number}: its header has {len(header)} characters; at most {MOST_HEADER}"
        )


def check_option(number: int, label: str, description: str) -> None:
    """Raises `BadArguments` for an option that a person cannot be shown."""
    if not label.strip():
        raise BadArguments(f"question {number}: a label is empty")
    if len(label) > MOST_LABEL or len(description) > MOST_DESCRIPTION:
        raise BadArguments(
            f"question {number}: a label has at most {MOST_LABEL} characters, "
            f"a description {MOST_DESCRIPTION}"
        )


def _checked(asked: Question, number: int) -> JsonObject:
    check_words(number, asked.header, asked.question)
    if not 2 <= len(asked.options) <= 4:
        raise BadArguments(f"question {number}: 2 to 4 options, not {len(asked.options)}")
    options = [
        QuestionOption(label=_NUMBERED.sub("", each.label), description=each.description)
        for each in asked.options
    ]
    for each in options:
        check_option(number, each.label, each.description)
        if each.label.strip().lower() == "other":
            raise BadArguments(
                f"question {number}: the person can always type an answer of their own: leave Other out"
            )
    labels = {each.label.strip() for each in options}
    if len(labels) < len(options):
        raise BadArguments(f"question {number}: two options have the same label")
    return written(
        AskUserQuestion(
            question=asked.question,
            header=asked.header,
            options=tuple(options),
            multi_select=asked.multi_select,
        )
    )


# ── user input ────────────────────────────────────────────────────────────────────────────────────
# The `request_user_input` tool: questions with or without options, keyed by an id.
#
# It is offered to a root in the modes `plan` and `pair_programming`, where models of Codex know it,
# instead of `ask_user_question`. A call of it is served in every mode.


MOST_ID: Final = 64

REQUEST_USER_INPUT: Final = function(
    "request_user_input",
    "Asks the person one to three questions, with or without options, and waits for the answers. Only for "
    "decisions that are theirs and that you cannot find out. The person can always type an answer of their "
    "own.",
    {
        "questions": {
            "type": "array",
            "description": "1 to 3 questions.",
            "items": {
                "type": "object",
                "properties": {
                    "id": string("A name by which the answer is found again; another for each question."),
                    "header": string(f"A heading of at most {MOST_HEADER} characters."),
                    "question": string("The whole question."),
                    "options": {"type": "array", "description": "2 or 3, or left out.", "items": OPTION},
                    "isSecret": {
                        "type": "boolean",
                        "description": "For a password or a token: you read the answer while this turn goes "
                        "on, and no log has it. What you repeat of it is logged.",
                    },
                },
                "required": ["id", "header", "question"],
                "additionalProperties": False,
            },
        }
    },
    ["questions"],
)


class InputQuestion(Arguments):
    id: str
    header: str
    question: str
    options: tuple[Option, ...] | None = None
    is_secret: Annotated[bool, Field(alias="isSecret")] = False


class InputArguments(Arguments):
    questions: tuple[InputQuestion, ...]


class RequestUserInputTool(Tool):
    """The tool of requests for input; a call of it waits for a person."""

    names = ("request_user_input",)
    needs_folder = False
    parallel_safe = True
    beside = frozenset({"plan"})

    def offered(self, state: State) -> JsonObject | None:
        return REQUEST_USER_INPUT if state.facts.is_root and by_input(state) else None

    async def assess(self, call: Call, site: CallSite) -> Assessment:
        if call.item["type"] != "function_call":
            return unsupported(call)
        refuse_helper(site.state)
        given = parsed(InputArguments, call.item["arguments"]).questions
        check_names([question.id for question in given], 3, "an id")
        return UserInputWork(tuple(_checked_input(question, n) for n, question in enumerate(given, 1)))


def _checked_input(asked: InputQuestion, number: int) -> JsonObject:
    if not asked.id.strip() or len(asked.id) > MOST_ID:
        raise BadArguments(f"question {number}: its id has 1 to {MOST_ID} characters")
    check_words(number, asked.header, asked.question)
    if asked.options is not None and not 2 <= len(asked.options) <= 3:
        raise BadArguments(f"question {number}: 2 or 3 options, or none, not {len(asked.options)}")
    for each in asked.options or ():
        check_option(number, each.label, each.description)
    options = tuple(
        QuestionOption(label=each.label, description=each.description) for each in asked.options or ()
    )
    return written(
        RequestUserInputQuestion(
            id=asked.id,
            header=asked.header,
            question=asked.question,
            is_other=True,
            is_secret=asked.is_secret,
            options=options or None,
        )
    )
