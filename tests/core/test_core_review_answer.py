"""A reviewer's answer: what of it is read, whatever a model writes, and what a request has to say."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.history import Log, message_text, opened_message, user_message
from orchestrator.core.review import (
    BODY_CHARS,
    EXPLANATION_CHARS,
    FINDINGS_BYTES,
    MOST_FINDINGS,
    REVIEW_TAG,
    TITLE_CHARS,
    assignment,
    request_fault,
    review_message,
    reviewed,
)
from orchestrator.core.state import State
from orchestrator.protocol.review import ReviewOutputEvent, ReviewRequest
from orchestrator.protocol.wire import JsonObject, written
from orchestrator.rollouts.session_summary import title

LOCATION = {"absolute_file_path": "src/a.py", "line_range": {"start": 3, "end": 5}}
FINDING = {"title": "t", "body": "b", "confidence_score": 0.5, "priority": 1, "code_location": LOCATION}
ANSWER = {
    "findings": [FINDING],
    "overall_correctness": "patch is correct",
    "overall_explanation": "e",
    "overall_confidence_score": 0.8,
}


def read(answer: object) -> ReviewOutputEvent:
    return reviewed(orjson.dumps(answer).decode(), "/srv").output


def test_reader_takes_every_field_and_makes_the_path_absolute() -> None:
    output = read(ANSWER)
    (finding,) = output.findings
    assert finding.code_location.absolute_file_path == "/srv/src/a.py"
    assert written(output) == {
        **ANSWER,
        "findings": [{**FINDING, "code_location": {**LOCATION, "absolute_file_path": "/srv/src/a.py"}}],
    }


@pytest.mark.parametrize("text", ["Here it is:\n```json\n{}\n```\nDone.", "{}", "  {}\n"])
def test_reader_finds_the_object_between_the_outermost_braces(text: str) -> None:
    output = reviewed(text.replace("{}", orjson.dumps(ANSWER).decode()), "/srv").output
    assert len(output.findings) == 1
    assert output.overall_explanation == "e"


@pytest.mark.parametrize("text", ["no JSON", "", "{", '{"other": 1}', "[1]", '{"findings": 3}', "}{", "{}"])
def test_reader_takes_any_other_text_as_the_explanation(text: str) -> None:
    output = reviewed(text, "/srv").output
    assert output == ReviewOutputEvent(overall_explanation=text)


def test_reader_takes_an_empty_list_of_findings_for_a_review() -> None:
    assert reviewed('{"findings": []}', "/srv").output == ReviewOutputEvent()


def test_reader_drops_what_does_not_fit_and_counts_it() -> None:
    bad: list[object] = [
        {**FINDING, "title": " "},
        {**FINDING, "code_location": {"absolute_file_path": "a"}},
        {**FINDING, "code_location": {**LOCATION, "absolute_file_path": ""}},
        {**FINDING, "code_location": {**LOCATION, "line_range": {"start": -1, "end": 2}}},
        {**FINDING, "priority": "high"},
        "a text",
        None,
    ]
    found = reviewed(orjson.dumps({**ANSWER, "findings": [*bad, FINDING]}).decode(), "/srv")
    assert len(found.output.findings) == 1
    assert found.left_out == len(bad)


@pytest.mark.parametrize("given_priority", [{}, {"priority": None}])
def test_reader_takes_a_missing_priority_for_0(given_priority: JsonObject) -> None:
    bare = {name: value for name, value in FINDING.items() if name != "priority"}
    (finding,) = read({**ANSWER, "findings": [{**bare, **given_priority}]}).findings
    assert finding.priority == 0


def test_reader_keeps_nothing_beyond_its_bounds() -> None:
    long = {**FINDING, "title": "t" * 9_999, "body": "b" * 99_999, "more": "m" * 99_999}
    found = reviewed(
        orjson.dumps({**ANSWER, "findings": [long] * 1_000, "overall_explanation": "e" * 99_999}).decode(),
        "/",
    )
    assert len(found.output.findings) <= MOST_FINDINGS
    assert found.left_out == 1_000 - len(found.output.findings)
    assert len(orjson.dumps(written(found.output))) < FINDINGS_BYTES + 2 * EXPLANATION_CHARS < 161 << 10
    first = found.output.findings[0]
    assert len(first.title) == TITLE_CHARS
    assert len(first.body) == BODY_CHARS
    assert "more" not in written(first)
    assert len(reviewed("x" * 99_999, "/").output.overall_explanation) == EXPLANATION_CHARS
    assert len(read({**ANSWER, "findings": [FINDING] * 1_000}).findings) == MOST_FINDINGS


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**65), 2**65) | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from([*ANSWER, *FINDING, "absolute_file_path", "line_range", "start", "end"]), inner
        )
    ),
    max_leaves=12,
)


@given(st.text() | JSON.map(repr) | st.dictionaries(st.sampled_from([*ANSWER]), JSON).map(
    lambda value: orjson.dumps(value, option=orjson.OPT_PASSTHROUGH_DATETIME, default=str).decode()
    if _fits(value)
    else str(value)
))  # fmt: skip
def test_reader_never_raises_and_what_it_gives_can_be_written_and_read_again(text: str) -> None:
    output = reviewed(text, "/srv").output
    assert ReviewOutputEvent.model_validate(orjson.loads(orjson.dumps(written(output)))) == output


def _fits(value: object) -> bool:
    try:
        orjson.dumps(value)
    except TypeError:
        return False
    return True


@pytest.mark.parametrize(
    "text", ["[" * 5_000, '{"findings":' * 5_000, '{"findings":[' + "{" * 100_000, "\ud800{"]
)
def test_reader_survives_deep_and_broken_text(text: str) -> None:
    assert reviewed(text, "/srv").output.findings == ()


def test_reader_writes_no_endless_number() -> None:
    output = reviewed('{"findings": [], "overall_confidence_score": 1e999, "overall_explanation": "e"}', "/")
    assert output.output.overall_confidence_score in (0.0, 1.0)
    assert output.output.overall_explanation


# ── requests and messages ─────────────────────────────────────────────────────────────────────


def request(**fields: object) -> ReviewRequest:
    return ReviewRequest.model_validate(fields)


@pytest.mark.parametrize(
    ("asked", "names"),
    [
        ({"prompt": " \n"}, "review_request.prompt"),
        ({"prompt": "p", "target": {"type": "uncommittedChanges"}}, "not both"),
        ({"target": {"type": "baseBranch", "branch": ""}}, "target.branch"),
        ({"target": {"type": "commit", "sha": " "}}, "target.sha"),
        ({"target": {"type": "custom", "instructions": ""}}, "target.instructions"),
        (
            {"prompt": "é" * 16_385},
            "review_request.prompt: at most 32,768 bytes can be taken, and this has 32,770",
        ),
        ({"target": {"type": "custom", "instructions": "x" * 32_769}}, "target.instructions: at most"),
    ],
)
def test_request_that_says_nothing_is_refused_by_its_field(asked: JsonObject, names: str) -> None:
    assert names in (request_fault(request(**asked)) or "")


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"prompt": "look at a.py"}, "look at a.py"),
        ({"target": {"type": "uncommittedChanges"}}, "not committed"),
        ({"target": {"type": "baseBranch", "branch": "main"}}, "git merge-base HEAD main"),
        ({"target": {"type": "commit", "sha": "abc1", "title": None}}, "commit abc1 makes"),
        ({"target": {"type": "commit", "sha": "abc1", "title": "Add b"}}, "commit abc1 (Add b)"),
        ({"target": {"type": "custom", "instructions": "only docs"}}, "only docs"),
    ],
)
def test_reviewer_is_given_the_prompt_or_a_sentence_of_the_target(asked: JsonObject, says: str) -> None:
    assert request_fault(request(**asked)) is None
    assert says in assignment(request(**asked))


def test_conversation_keeps_the_explanation_and_each_finding_with_its_place() -> None:
    text = message_text(written(opened_message(*review_message("look at\n a.py" + " x" * 999, read(ANSWER)))))
    assert text.startswith(f"{REVIEW_TAG}\n\nThe user ran a code review")
    assert "It was asked: look at a.py x" in text
    assert "Verdict: patch is correct.\n\ne\n\nFindings:" in text
    assert "1. t — /srv/src/a.py:3-5\nb\n" in text
    assert len(text) < 700


def test_session_that_begins_with_a_review_is_listed_by_what_was_asked() -> None:
    said = opened_message(*review_message("look at a.py", read(ANSWER))), user_message("next")
    state = State(history=Log.of(map(written, said)))
    assert title(state) == "look at a.py"
    assert title(State(history=Log.of([written(user_message(f"{REVIEW_TAG} of my own"))]))) == ""
