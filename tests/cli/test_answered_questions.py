"""Questions before a person: at a terminal, in the list of what waits, and answered from the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.protocol import ops
from orchestrator.protocol.wire import written
from orchestrator.requests import request_of
from orchestrator.terminal.watched_turn import CANCEL, Prompt
from tests.cli.machine import Machine, says

AUTH = {
    "question": "Which one?",
    "header": "Auth",
    "options": [{"label": "Key", "description": "a key"}, {"label": "Login", "description": "a login"}],
    "multiSelect": False,
}
STORE = {**AUTH, "header": "Store", "multiSelect": True}
ASKED = {"items": [{"call": "ask_user_question", "args": {"questions": [AUTH, STORE]}, "call_id": "q1"}]}
NEVER = ("-c", "approval_policy=never")
REQUEST = {"type": "ask_user_question_request", "callId": "q1", "questions": [AUTH, STORE]}
INPUT = {"type": "request_user_input", "call_id": "q2", "questions": [{"id": "place", **AUTH}]}


def typed(request: dict[str, Any], *lines: str) -> Any:
    """The op that the lines come to, as it is sent; None if more is to be typed."""
    prompt, op = Prompt(request_of(request)), None
    for line in lines:
        assert op is None, "answered already"
        op = prompt.take(line)
    return None if op is None else written(op)


def test_number_a_label_or_own_words_are_an_answer() -> None:
    assert typed(REQUEST, "2", "2, 1")["response"]["answers"] == {"Auth": "Login", "Store": "Key, Login"}
    assert typed(REQUEST, "login", "my own, 1")["response"]["answers"] == {
        "Auth": "Login",
        "Store": "Key, my own",
    }
    assert typed(REQUEST, "A Third Way", "9")["response"]["answers"] == {"Auth": "A Third Way", "Store": "9"}
    assert typed(INPUT, "1")["response"]["answers"] == {"place": {"answers": ["Key"]}}


def test_empty_line_asks_again_and_leaves_a_request_for_input_without_an_answer() -> None:
    assert typed(REQUEST, "", " ") is None
    assert typed(INPUT, "")["response"] == {"answers": {}}


def test_person_cancels_at_any_question() -> None:
    assert typed(REQUEST, "1", CANCEL)["response"] == {"type": "cancelled"}
    assert typed(INPUT, CANCEL)["response"] == {"answers": {}}


def test_answer_that_is_too_long_says_so_and_asks_from_the_first_question_again() -> None:
    prompt = Prompt(request_of(REQUEST))
    assert prompt.take("1") is None
    assert prompt.take("x" * 40_000) is None
    assert "at most 32,768" in prompt.fault
    assert prompt.text.startswith("Auth: ")
    assert prompt.take("1") is None
    assert isinstance(prompt.take("1"), ops.ResolveAskUserQuestion)


@pytest.mark.parametrize("place", [0, 1, 2])
def test_answers_before_one_that_is_refused_count_no_more(place: int) -> None:
    questions = [{"id": f"q{number}", **AUTH} for number in range(3)]
    prompt = Prompt(request_of({**INPUT, "questions": questions}))
    lines = ["1", "2", "login"]
    lines[place] = "x" * 40_000
    assert [prompt.take(line) for line in lines] == [None] * 3
    assert "at most 32,768" in prompt.fault
    assert [prompt.take(line) for line in ("", "")] == [None] * 2
    op: Any = prompt.take("mine")
    assert written(op)["response"] == {"answers": {"q2": {"answers": ["mine"]}}}


def test_person_at_a_terminal_answers_each_question(machine: Machine) -> None:
    with machine.model(ASKED, says("thank you")) as user, user.terminal("run", "go", *NEVER) as person:
        shown = person.wait_for(r"Auth: a number, or your own words; /cancel: ")
        assert "1  Key  a key" in shown
        person.type("2\n")
        person.wait_for(r"Store: numbers with commas, or your own words; /cancel: ")
        person.type("1, Both\n")
        person.wait_for("thank you")
        assert person.exit_code() == 0


def test_question_without_a_terminal_parks_and_is_answered_from_the_command_line(machine: Machine) -> None:
    with machine.model(ASKED, says("thank you")) as user:
        parked = user.run("run", "go", *NEVER)
        assert parked.returncode == 3
        assert "waiting for an answer" in parked.stderr
        (session,) = user.session_ids()
        assert user.sessions()[0]["status"] == "awaiting_answer"
        listed = user.run("approvals").stdout
        assert "0:q1  answer Auth: Which one? · Store: Which one?" in listed
        assert "Auth=Key, Login" in listed
        assert json.loads(user.run("approvals", "--json").stdout)[0]["call_id"] == "q1"
        refused = user.run("approvals", session, "--deny", "0:q1")
        assert (refused.returncode, "asks for words" in refused.stderr) == (1, True)
        missing = user.run("approvals", session, "--answer", "0:q1 Auth=Key")
        assert (missing.returncode, "no answer to 'Store'" in missing.stderr) == (2, True)
        words = ("--answer", "0:q1 Auth=Key", "--answer", "0:q1 Store=Login")
        assert "handed in" in user.run("approvals", session, *words).stdout
        with user.terminal("approvals", "--follow") as watching:
            watching.wait_for("0:q1  answer Auth")
            done = user.run("run", "--resume", session, *NEVER)
            watching.wait_for("0:q1 .*waits no longer")
        assert done.returncode == 0
        assert "thank you" in done.stdout
        assert "request q1 was answered by" in user.run("logs", session).stdout


TOKEN = {"id": "token", "header": "Token", "question": "Which token?", "isSecret": True}
SECRET_ASKED = {"items": [{"call": "request_user_input", "args": {"questions": [TOKEN]}, "call_id": "q2"}]}
SECRET = "!hunter2"


def test_secret_is_taken_as_it_is_typed_even_if_it_looks_like_a_command() -> None:
    request = {**INPUT, "questions": [TOKEN]}
    assert Prompt(request_of(request)).hides
    assert Prompt(request_of(request)).answers("!hunter2")
    assert "not shown" in Prompt(request_of(request)).text
    assert typed(request, SECRET)["response"]["answers"] == {"token": {"answers": [SECRET]}}
    assert typed(request, CANCEL)["response"] == {"answers": {}}
    assert not Prompt(request_of(INPUT)).hides


@pytest.mark.parametrize("command", [("run", "go"), ("run",)])
def test_secret_is_not_shown_at_a_terminal(machine: Machine, command: tuple[str, ...]) -> None:
    with (
        machine.model(SECRET_ASKED, says("thank you")) as user,
        user.terminal(*command, *NEVER) as person,
    ):
        if len(command) == 1:
            person.wait_for("/help shows words")
            person.type("go\r")
        shown = person.wait_for("which is not shown and not kept")
        person.type(f"{SECRET}\r")
        shown += person.wait_for("thank you")
        if len(command) == 1:
            person.type("/quit\r")
        assert person.exit_code() == 0
        assert SECRET not in shown + person.seen
    history = Path(user.environ["DENDRO_HOME"]) / "history"
    assert not history.exists() or SECRET not in history.read_text()


def test_secret_is_not_taken_from_a_command_line_but_from_a_line_of_input(machine: Machine) -> None:
    with machine.model(SECRET_ASKED, says("thank you")) as user:
        assert user.run("run", "go", *NEVER).returncode == 3
        (session,) = user.session_ids()
        refused = user.run("approvals", session, "--answer", f"0:q2 token={SECRET}")
        assert (refused.returncode, "others see a command line" in refused.stderr) == (2, True)
        assert SECRET not in refused.stderr
        answer = ("approvals", session, "--answer", "0:q2 token=")
        assert "handed in" in user.run(*answer, input=f"{SECRET}\n").stdout
        assert "thank you" in user.run("run", "--resume", session, *NEVER).stdout
        assert SECRET not in user.run("logs", session, "--json").stdout


def test_page_of_questions_shows_what_the_model_and_the_client_say() -> None:
    page = (Path(__file__).parents[2] / "docs" / "questions.md").read_text()
    blocks = [json.loads(block.split("```")[0]) for block in page.split("```json\n")[1:]]
    asked = next(block for block in blocks if block.get("type") == "ask_user_question_request")
    submission = next(block for block in blocks if "op" in block)
    assert typed(asked, "OAuth", "1, 2")["response"] == submission["op"]["response"]
