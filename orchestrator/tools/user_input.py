"""The `request_user_input` tool: questions with or without options, keyed by an id.

It is offered to a root in the modes `plan` and `pair_programming`, where models of Codex know it, instead of
`ask_user_question`. A call of it is served in every mode.
"""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field

from orchestrator.core.calls import UserInputWork
from orchestrator.core.commands import Assessment
from orchestrator.core.state import State
from orchestrator.core.turn_calls import Call
from orchestrator.protocol.plans import QuestionOption, RequestUserInputQuestion
from orchestrator.protocol.wire import JsonObject, written
from orchestrator.tools.arguments import Arguments, BadArguments, parsed
from orchestrator.tools.question import (
    MOST_HEADER,
    OPTION,
    Option,
    by_input,
    check_names,
    check_option,
    check_words,
    refuse_helper,
)
from orchestrator.tools.site import CallSite
from orchestrator.tools.specs import function, string
from orchestrator.tools.tool import Tool, unsupported

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
        return UserInputWork(tuple(_checked(question, n) for n, question in enumerate(given, 1)))


def _checked(asked: InputQuestion, number: int) -> JsonObject:
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
