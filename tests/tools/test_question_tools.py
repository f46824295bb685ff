"""The tools that ask a person: what they take, and what the model reads instead of a request."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import orjson
import pytest

from orchestrator.core.calls import Call, QuestionWork, UserInputWork
from orchestrator.core.commands import Assessment, Immediate
from orchestrator.core.settings import SessionFacts, TurnSettings
from orchestrator.core.state import State, Task
from orchestrator.protocol.ids import CallId, SubmissionId
from orchestrator.sandbox.probe import SandboxSupport
from orchestrator.tools.question import HELPER_ASKS
from orchestrator.tools.tool_context import CallSite, ToolConfig
from orchestrator.tools.toolbox import Toolbox, built_in

TOOLBOX = Toolbox(built_in(ToolConfig(SandboxSupport(None, 0, ()), {}), cast(Any, None)))
STATE = State(
    task=Task(SubmissionId("u1"), "user", TurnSettings("/w", "never", {"mode": "read-only"}, "gpt-5"))
)
HELPER = replace(STATE, facts=SessionFacts.of({"helper_call": "c9"}))
OPTIONS = [{"label": "A", "description": "a"}, {"label": "B", "description": "b"}]


async def assess(name: str, arguments: dict[str, Any], state: State = STATE) -> Assessment:
    text = orjson.dumps(arguments).decode()
    item = {"type": "function_call", "name": name, "arguments": text, "call_id": "c1"}
    return await TOOLBOX.assess(Call(CallId("c1"), name, item), CallSite("c", state, lambda _: None))


def question(**fields: Any) -> dict[str, Any]:
    return {"question": "Which?", "header": "Auth", "options": OPTIONS, **fields}


def wish(**fields: Any) -> dict[str, Any]:
    return {"id": "q1", "header": "Auth", "question": "Which?", **fields}


def labels(*names: str) -> list[dict[str, str]]:
    return [{"label": name, "description": "d"} for name in names]


async def test_numbers_before_labels_are_cut_and_no_choice_of_several_is_the_default() -> None:
    asked = await assess(
        "ask_user_question", {"questions": [question(options=labels("1) One", "2. Two", " 3: Three"))]}
    )
    assert isinstance(asked, QuestionWork)
    assert [option["label"] for option in asked.questions[0]["options"]] == ["One", "Two", "Three"]
    assert asked.questions[0]["multiSelect"] is False


@pytest.mark.parametrize(
    ("questions", "told"),
    [
        ([], "questions: 1 to 4, not 0"),
        ([question(header=f"h{n}") for n in range(5)], "questions: 1 to 4, not 5"),
        ([question(), question()], "each needs a header of its own"),
        ([question(question=" ")], "question 1: its text has"),
        ([question(question="x" * 2_001)], "question 1: its text has"),
        ([question(header=" ")], "question 1: its header is empty"),
        ([question(), question(header="Other option here")], "question 2: its header has 17 characters"),
        ([question(options=labels("A"))], "question 1: 2 to 4 options, not 1"),
        ([question(options=labels("A", "B", "C", "D", "E"))], "question 1: 2 to 4 options, not 5"),
        ([question(options=labels("A", "1) "))], "question 1: a label is empty"),
        ([question(options=labels("1) A", "2) A"))], "question 1: two options have the same label"),
        ([question(options=labels("A", "OTHER"))], "leave Other out"),
        ([question(options=labels("A", "x" * 101))], "a label has at most 100"),
        ([{"header": "Auth"}], "question"),
    ],
)
async def test_questions_that_a_person_cannot_be_asked_are_refused(
    questions: list[dict[str, Any]], told: str
) -> None:
    refused = await assess("ask_user_question", {"questions": questions})
    assert isinstance(refused, Immediate)
    assert told in str(refused.output)


async def test_request_for_input_offers_a_free_answer_and_may_have_no_options() -> None:
    asked = await assess("request_user_input", {"questions": [wish(), wish(id="q2", options=OPTIONS)]})
    assert isinstance(asked, UserInputWork)
    assert [each["isOther"] for each in asked.questions] == [True, True]
    assert "options" not in asked.questions[0]
    assert asked.questions[1]["options"] == OPTIONS


@pytest.mark.parametrize(
    ("questions", "told"),
    [
        ([], "questions: 1 to 3, not 0"),
        ([wish(id=f"q{n}") for n in range(4)], "questions: 1 to 3, not 4"),
        ([wish(), wish()], "each needs an id of its own"),
        ([wish(id="")], "question 1: its id has"),
        ([wish(header="x" * 13)], "question 1: its header has 13"),
        ([wish(options=labels("A"))], "2 or 3 options, or none, not 1"),
        ([wish(options=labels("A", ""))], "a label is empty"),
    ],
)
async def test_request_for_input_that_a_person_cannot_be_asked_is_refused(
    questions: list[dict[str, Any]], told: str
) -> None:
    refused = await assess("request_user_input", {"questions": questions})
    assert isinstance(refused, Immediate)
    assert told in str(refused.output)


@pytest.mark.parametrize("name", ["ask_user_question", "request_user_input"])
async def test_helper_asks_nobody(name: str) -> None:
    assert await assess(name, {"questions": [question(id="q1")]}, HELPER) == Immediate(HELPER_ASKS)


@pytest.mark.parametrize("name", ["ask_user_question", "request_user_input"])
async def test_free_text_in_the_place_of_arguments_is_an_unsupported_call(name: str) -> None:
    item = {"type": "custom_tool_call", "name": name, "input": "x", "call_id": "c1"}
    told = await TOOLBOX.assess(Call(CallId("c1"), name, item), CallSite("c", STATE, lambda _: None))
    assert told == Immediate(f"unsupported call: {name}")


def test_questions_with_options_are_offered_to_all_but_helpers() -> None:
    assert "ask_user_question" in {spec["name"] for spec in TOOLBOX.specs(STATE) if "name" in spec}
    assert "ask_user_question" not in {spec["name"] for spec in TOOLBOX.specs(HELPER) if "name" in spec}
    assert {"ask_user_question", "request_user_input"} <= TOOLBOX.parallel_safe


FULL = {"question": "é" * 2_000, "header": "é" * 12}
"""As many letters as each text may have."""
WIDE = [{"label": f"{n}" + "é" * 99, "description": "é" * 500} for n in range(4)]


@pytest.mark.parametrize("options", [2, 4])
@pytest.mark.parametrize("several", [True, False])
async def test_questions_are_taken_up_to_their_bounds_in_letters(options: int, several: bool) -> None:
    asked = [
        question(**{**FULL, "header": f"{n}" + "é" * 11}, options=WIDE[:options], multiSelect=several)
        for n in range(4)
    ]
    found = await assess("ask_user_question", {"questions": asked})
    assert isinstance(found, QuestionWork)
    assert [each["header"] for each in found.questions] == [each["header"] for each in asked]
    assert [each["multiSelect"] for each in found.questions] == [several] * 4
    assert all(each["options"] == WIDE[:options] for each in found.questions)


@pytest.mark.parametrize("options", [None, 2, 3])
async def test_requests_for_input_are_taken_up_to_their_bounds_and_secret_where_they_say_so(
    options: int | None,
) -> None:
    given = {} if options is None else {"options": WIDE[:options]}
    asked = [wish(**FULL, id=f"{n}" + "é" * 63, isSecret=n == 1, **given) for n in range(3)]
    found = await assess("request_user_input", {"questions": asked})
    assert isinstance(found, UserInputWork)
    assert [each["id"] for each in found.questions] == [each["id"] for each in asked]
    assert [bool(each.get("isSecret")) for each in found.questions] == [False, True, False]
    assert [each.get("options") for each in found.questions] == [given.get("options")] * 3


@pytest.mark.parametrize("at", [0, 1, 2])
@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"question": "é" * 2_001}, "its text has"),
        ({"header": "é" * 13}, "its header has 13"),
        ({"id": "é" * 65}, "its id has"),
        ({"options": WIDE}, "2 or 3 options, or none, not 4"),
        ({"options": [*WIDE[:2], {"label": "x", "description": "é" * 501}]}, "a description 500"),
        ({"options": [*WIDE[:2], {"label": "é" * 101, "description": ""}]}, "at most 100"),
    ],
)
async def test_question_beyond_a_bound_is_named_by_its_place(
    at: int, wrong: dict[str, Any], told: str
) -> None:
    asked = [wish(id=f"q{n}") for n in range(3)]
    asked[at] = {**asked[at], **wrong}
    refused = await assess("request_user_input", {"questions": asked})
    assert isinstance(refused, Immediate)
    assert f"question {at + 1}: " in str(refused.output)
    assert told in str(refused.output)
