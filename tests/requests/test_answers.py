"""Requests to people: each kind's choices, and the operations that answers are."""

from __future__ import annotations

import io
import itertools
import shlex
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, get_args

import pytest
from rich.console import Console

from orchestrator.core.calls.ask import DoesNotAnswer
from orchestrator.core.commands import AnswerOp
from orchestrator.core.decide.call import reply_of
from orchestrator.core.ids import SessionId
from orchestrator.gateways.app_server.door import request_params as v1_params
from orchestrator.gateways.app_server.write_requests import request_params, shown_of
from orchestrator.protocol.ops import ResolveAskUserQuestion, Shown, UserInputAnswer
from orchestrator.protocol.policy import ReviewDecision
from orchestrator.protocol.wire import written
from orchestrator.requests import (
    TO_PEOPLE,
    TYPES,
    CommandRequest,
    Given,
    KnownRequest,
    PatchRequest,
    Question,
    Request,
    call_id_of,
    known_request_of,
    request_of,
)
from orchestrator.requests.approvals import MOST_SHOWN, command_text, shown_as
from orchestrator.requests.person_request import Option
from orchestrator.terminal.live import Live, show_request
from orchestrator.views.patterns import denies, why_not_allowed
from orchestrator.views.turns.turn_records import ItemId, RequestOpened, TurnId

ASKS: dict[str, dict[str, Any]] = {
    "command": {"type": "exec_approval_request", "call_id": "c", "command": ["git", "push"], "cwd": "/w"},
    "patch": {
        "type": "apply_patch_approval_request",
        "call_id": "c",
        "changes": {"/w/a": {"type": "update", "unified_diff": "-a\n+b"}},
    },
    "choices": {
        "type": "ask_user_question_request",
        "callId": "c",
        "questions": [{"header": "Store", "question": "Which?", "options": [{"label": "Redis"}]}],
    },
    "input": {
        "type": "request_user_input",
        "call_id": "c",
        "questions": [{"id": "key", "header": "Key", "question": "Which?", "isSecret": True}],
    },
    "plan": {
        "type": "plan_approval_request",
        "call_id": "c",
        "proposal": {"title": "T", "summary": "S", "plan": {"plan": [{"step": "a", "status": "pending"}]}},
    },
    "elicitation": {"type": "elicitation_request", "id": "c", "server_name": "time", "message": "May I?"},
    "client_tool": {
        "type": "dynamic_tool_call_request",
        "callId": "c",
        "turnId": "t",
        "tool": "look",
        "arguments": {"at": 1},
    },
}
LATER = {"type": "request_of_a_later_version", "call_id": "c"}
PREFIX = {**ASKS["command"], "proposed_execpolicy_amendment": ["git", "push"]}


def test_every_kind_of_the_union_is_asked_here_and_has_an_event_of_its_own() -> None:
    assert {request_of(event).kind for event in ASKS.values()} == {one.kind for one in get_args(KnownRequest)}
    assert {event["type"] for event in ASKS.values()} == TYPES


@pytest.mark.parametrize("kind", ASKS)
def test_person_reads_a_heading_a_subject_and_what_it_is_about(kind: str) -> None:
    request = request_of(ASKS[kind])
    assert request.heading("agent 3")
    assert request.subject
    assert request.body or request.questions
    assert all(part.text for part in request.body)
    assert request.call_id == "c"


@pytest.mark.parametrize(
    ("kind", "given", "decision"),
    [
        ("command", Given("approved"), "approved"),
        ("command", Given("approved_for_session"), "approved_for_session"),
        ("patch", Given("denied"), "denied"),
        ("patch", Given("abort"), "abort"),
        ("choices", Given("answered", texts={"Store": ["Redis"]}), "answered"),
        ("choices", Given("cancelled"), "cancelled"),
        ("input", Given("answered", texts={"key": ["hunter2"]}), "answered"),
        ("input", Given("cancelled"), "cancelled"),
        ("plan", Given("approved"), "approved"),
        ("plan", Given("rejected"), "rejected"),
        ("plan", Given("revise", "shorter"), "revised"),
        ("elicitation", Given("accept"), "accept"),
        ("elicitation", Given("decline"), "decline"),
        ("elicitation", Given("cancel"), "cancel"),
        ("client_tool", Given("failed"), "failed"),
    ],
)
def test_choice_of_a_person_is_the_decision_of_the_log(kind: str, given: Given, decision: str) -> None:
    reply = reply_of(request_of(ASKS[kind]).answer(given))
    assert (reply.id, reply.decision) == ("c", decision)


@pytest.mark.parametrize(
    ("kind", "given", "told"),
    [
        ("command", Given("yes"), "decision: one of approved, approved_for_session, denied, abort"),
        ("command", Given("amendment"), "decision: one of"),
        ("patch", Given("approved", "but slowly"), "text: approved takes none"),
        ("patch", Given("approved", texts={"a": ["b"]}), "it asks no questions"),
        ("choices", Given("answered"), "no answer to 'Store'"),
        ("choices", Given("answered", texts={"Disk": ["a"]}), "nothing was asked under 'Disk'"),
        ("choices", Given("cancelled", texts={"Store": ["Redis"]}), "answers none of them"),
        ("input", Given("answered", texts={"key": [" "]}), "the answer to 'key' is empty"),
        ("plan", Given("revise", " "), "feedback: it is blank"),
        ("plan", Given("approved", "shorter"), "text: approved takes none"),
        ("elicitation", Given("approved"), "decision: one of accept, decline, cancel"),
        ("client_tool", Given("approved"), "decision: one of failed"),
    ],
)
def test_answer_that_does_not_fit_is_refused_and_the_person_reads_why(
    kind: str, given: Given, told: str
) -> None:
    with pytest.raises(DoesNotAnswer, match=told):
        request_of(ASKS[kind]).answer(given)


def test_person_allows_a_prefix_where_one_is_proposed_and_it_is_remembered() -> None:
    request = request_of(PREFIX)
    lasting = [choice.word for choice in request.choices if choice.lasts]
    assert lasting == ["amendment", "approved_for_session"]
    assert "git" in reply_of(request.answer(Given("amendment"))).decision


@pytest.mark.parametrize("kind", ASKS)
def test_refusal_of_any_kind_is_an_answer(kind: str) -> None:
    assert reply_of(request_of(ASKS[kind]).refused()).decision in (
        *("denied", "cancelled", "rejected", "decline", "failed"),
    )


def test_plan_that_is_allowed_for_a_session_is_refused_and_not_rejected() -> None:
    with pytest.raises(DoesNotAnswer, match="holds for no session"):
        request_of(ASKS["plan"]).decided(ReviewDecision.APPROVED_FOR_SESSION)


def test_request_of_a_later_version_can_be_denied_and_not_allowed() -> None:
    request = request_of(LATER)
    assert request.subject == "request_of_a_later_version, which this version does not know"
    assert reply_of(request.answer(Given("denied"))).decision == "denied"
    with pytest.raises(DoesNotAnswer, match="newer version"):
        request.decided(ReviewDecision.APPROVED)


SHOWN = Shown(text="git push, in /w", surface="test", opened_ms=5)
DECISIONS = tuple(ReviewDecision)
YES, ALWAYS, NO, QUIT = "approved", "approved_for_session", "denied", "abort"
DECIDED: dict[str, dict[str, str]] = {
    "command": {YES: YES, ALWAYS: ALWAYS, NO: NO, QUIT: QUIT},
    "prefix": {YES: YES, ALWAYS: ALWAYS, NO: NO, QUIT: QUIT},
    "patch": {YES: YES, ALWAYS: ALWAYS, NO: NO, QUIT: QUIT},
    "choices": {},
    "input": {},
    "plan": {YES: "approved", NO: "rejected", QUIT: "rejected"},
    "elicitation": {YES: "accept", NO: "decline", QUIT: "cancel"},
    "client_tool": {NO: "failed", QUIT: "failed"},
    "later": {NO: NO, QUIT: QUIT},
}
"""The decision of each kind for a yes or no that is said of several requests at once; missing: none."""
REFUSED = {
    **dict.fromkeys(("command", "prefix", "patch", "later"), NO),
    **dict.fromkeys(("choices", "input"), "cancelled"),
    "plan": "rejected",
    "elicitation": "decline",
    "client_tool": "failed",
}
LEFT = {**dict.fromkeys(("choices", "input"), "cancelled"), "elicitation": "cancel", "client_tool": "failed"}
"""The decision of a request that nobody answers; missing: it has to be answered."""
EVERY = {**ASKS, "prefix": PREFIX, "later": LATER}


def surfaced(kind: str) -> Request:
    """The request of agent 3, as the root's events publish it."""
    return request_of(EVERY[kind]).asked_by(3, "s3", "0/3")


def every_answer(request: Request) -> Iterator[AnswerOp]:
    """By each choice with what it needs, by each yes or no, refused, and left without an answer."""
    texts = {question.name: [*question.labels[:1], "mine"][:1] for question in request.questions}
    for choice in request.choices:
        answers = texts if choice.word == "answered" else {}
        yield request.answer(Given(choice.word, "shorter" if choice.text else "", answers), SHOWN)
    for decision in DECISIONS:
        with suppress(DoesNotAnswer):
            yield request.decided(decision, SHOWN)
    yield request.refused(SHOWN)
    with suppress(DoesNotAnswer):
        yield request.left()


@pytest.mark.parametrize("kind", EVERY)
def test_yes_or_no_of_several_requests_at_once_is_of_each_kind_what_it_means_there(kind: str) -> None:
    request, found = request_of(EVERY[kind]), {}
    for decision in DECISIONS:
        with suppress(DoesNotAnswer):
            found[decision.value] = reply_of(request.decided(decision)).decision
    assert found == DECIDED[kind]


@pytest.mark.parametrize("kind", EVERY)
def test_refusal_and_no_answer_are_of_each_kind_what_they_mean_there(kind: str) -> None:
    request, left = request_of(EVERY[kind]), None
    with suppress(DoesNotAnswer):
        left = reply_of(request.left()).decision
    assert (reply_of(request.refused()).decision, left) == (REFUSED[kind], LEFT.get(kind))


@pytest.mark.parametrize("kind", [kind for kind in EVERY if kind != "client_tool"])
def test_every_answer_at_the_root_names_the_agent_and_its_call_and_in_its_own_session_none(kind: str) -> None:
    # A client's tool is the root's alone.
    at_root, own = surfaced(kind), surfaced(kind).in_own_session()
    assert {(reply_of(op).id, reply_of(op).agent_id) for op in every_answer(at_root)} == {("c", 3)}
    assert {(reply_of(op).id, reply_of(op).agent_id) for op in every_answer(own)} == {("c", None)}


@pytest.mark.parametrize("kind", ["command", "prefix", "patch", "later"])
def test_every_answer_about_what_runs_or_changes_keeps_what_was_shown(kind: str) -> None:
    assert {getattr(op, "shown", None) for op in every_answer(request_of(EVERY[kind]))} == {SHOWN}


def test_always_of_a_command_with_a_prefix_allows_that_command_and_no_prefix() -> None:
    request = request_of(PREFIX)
    decisions = {word: reply_of(request.answer(Given(word))).decision for word in (YES, ALWAYS)}
    assert decisions == {YES: YES, ALWAYS: ALWAYS}


@pytest.mark.parametrize(
    ("event", "outside", "said"),
    [
        ({"reach": {"sandboxed": True, "text": "in the sandbox, in /w"}}, False, "in the sandbox, in /w"),
        ({"reach": {"sandboxed": False, "text": "OUTSIDE, in /w"}}, True, "OUTSIDE, in /w"),
        ({}, None, "where it would run (in /w) is not recorded"),
    ],
)
@pytest.mark.parametrize("kind", ["command", "patch"])
def test_place_of_an_approval_says_whether_it_leaves_the_sandbox(
    kind: str, event: dict[str, Any], outside: bool | None, said: str
) -> None:
    request = request_of({**ASKS[kind], "cwd": "/w", **event})
    assert request.outside is bool(outside)
    assert request.where.startswith(said)
    assert request.place is not None
    assert request.place.folder == "/w"


@pytest.mark.parametrize("sandboxed", [True, False])
def test_place_of_an_older_versions_command_is_what_the_queue_knows_of_it(sandboxed: bool) -> None:
    request = request_of(ASKS["command"], sandboxed)
    assert request.outside is not sandboxed
    assert request.where.startswith("in the sandbox" if sandboxed else "OUTSIDE THE SANDBOX")


@pytest.mark.parametrize("kind", ["command", "patch", "elicitation"])
def test_place_names_the_machine_that_has_asked(kind: str) -> None:
    reach = {"sandboxed": False, "text": "there", "machine": "build-3"}
    place = request_of({**ASKS[kind], "reach": reach}).place
    assert place is not None
    assert (place.machine, place.outside) == ("build-3", kind != "elicitation")


def test_reasons_of_a_request_say_the_folder_that_it_opens_beside_the_others() -> None:
    opened = "allowed for the session, commands and patches may write all below /srv, too"
    event = {**ASKS["patch"], "grant_root": "/srv"}
    assert request_of({**event, "reason": "retry"}).reasons == [opened, "reason given: retry"]
    reach = {"sandboxed": True, "text": "here", "why": "it writes", "says": "to build"}
    told = [opened, "asked because: it writes", "the agent says: “to build”"]
    assert request_of({**event, "reach": reach}).reasons == told


MOVES = {
    "/w/a": {"type": "update", "unified_diff": "-a", "move_path": "/w/b"},
    "/w/c": {"type": "delete", "content": "c"},
    "/w/d": {"update": {"unified_diff": "-d"}, "move_path": "/w/e"},
    "/w/f": {"update": {"unified_diff": "-f", "move_path": "/w/g"}},
}


def test_request_of_a_patch_names_every_file_and_where_each_goes_and_how_many_are_not_shown() -> None:
    request = request_of({**ASKS["patch"], "changes": MOVES, "changes_left_out": 1})
    assert isinstance(request, PatchRequest)
    assert request.all_paths == ["/w/a", "/w/c", "/w/d", "/w/f", "/w/b", "/w/e", "/w/g"]
    assert request.subject == "/w/a → /w/b /w/c /w/d → /w/e /w/f → /w/g"
    shown = [(part.title, part.text) for part in request.body]
    files = [("update /w/a → /w/b", "-a"), ("delete /w/c", "c")]
    files += [("update /w/d → /w/e", "-d"), ("update /w/f → /w/g", "-f")]
    assert shown == [*files, ("Not shown", "1 files more")]


@pytest.mark.parametrize("shell", ["bash", "sh", "/bin/bash", "/bin/sh"])
@pytest.mark.parametrize("flag", ["-c", "-lc"])
def test_odd_space_in_a_script_is_shown_as_what_it_is(shell: str, flag: str) -> None:
    assert command_text([shell, flag, "ls\u00a0-l"]) == "ls\\u00a0-l"


def test_command_is_shown_with_its_variables_on_one_line_before_it() -> None:
    request = request_of({**ASKS["command"], "env": {"A": "1\n2", "B": "x y"}})
    assert request.subject == "A='1␊2' B='x y' git push"
    assert [part.text for part in request.body] == ["A='1␊2' B='x y' ", "git push", "/w"]


EMPTY_OR_NOT = [
    dict(zip("ABC", values, strict=False))
    for count in range(4)
    for values in itertools.product(("", "x", "1 2"), repeat=count)
]


@pytest.mark.parametrize("variables", EMPTY_OR_NOT, ids=lambda each: "-".join(each.values()) or None)
def test_each_variable_of_a_command_is_shown_to_whoever_is_asked_also_one_that_is_set_to_nothing(
    variables: dict[str, str],
) -> None:
    """An empty one changes what a program does, too: `HISTFILE=`, `LC_ALL=`, `IFS=`."""
    words = [f"{name}={shlex.quote(value)}" for name, value in variables.items()]
    request = request_of({**ASKS["command"], "env": variables} if variables else ASKS["command"])
    assert isinstance(request, CommandRequest)
    assert request.subject == " ".join([*words, "git push"])
    shown = [part.text for part in request.body if part.title == "Variables"]
    assert shown == ([" ".join(words) + " "] if variables else [])
    params = request_params(SessionId("s"), RequestOpened(TurnId("t"), ItemId("c"), request), 1)
    said = f"with the variables {' '.join(words)}"
    told = (request.told, params["reason"], shown_of(request), v1_params(SessionId("s"), request)["reason"])
    assert {said in text for text in told} == {bool(variables)}
    assert {"with the variables" in text for text in told} == {bool(variables)}
    out = io.StringIO()
    show_request(Live(Console(file=out, width=200), streaming=False), request)
    lines = [line.strip() for line in out.getvalue().splitlines() if line.startswith("  with ")]
    assert lines == ([f"with {' '.join(words)}"] if variables else [])
    why = why_not_allowed("git push", request)
    assert why == (f"it sets variables ({', '.join(variables)}); allow it by its call" if variables else "")
    assert [denies(f"{name}={value}", request) for name, value in variables.items()] == [True] * len(words)


def test_client_that_is_shown_a_reason_beside_the_command_reads_the_variables_in_it() -> None:
    variables = {"GIT_EXTERNAL_DIFF": "/tmp/x", "A": "1\n2\r\u202e"}
    reach = {"sandboxed": False, "text": "OUTSIDE THE SANDBOX, in /w", "why": "it asks", "says": "to look"}
    request = request_of({**ASKS["command"], "env": variables, "reach": reach})
    assert isinstance(request, CommandRequest)
    said = "with the variables GIT_EXTERNAL_DIFF=/tmp/x A='1␊2\\u000d\\u202e'"
    reason = f"OUTSIDE THE SANDBOX, in /w; {said}; asked because: it asks; the agent says: “to look”"
    params = request_params(SessionId("s"), RequestOpened(TurnId("t"), ItemId("c"), request), 1)
    assert params["reason"] == reason
    assert shown_of(request) == f"{reason}\ngit push"
    assert v1_params(SessionId("s"), request)["reason"] == reason


@pytest.mark.parametrize("length", [MOST_SHOWN - 1, MOST_SHOWN, MOST_SHOWN + 1, 2 * MOST_SHOWN])
def test_words_of_a_surface_are_kept_whole_up_to_the_bound_and_cut_beyond_it(length: int) -> None:
    kept = shown_as("x" * length, "test", 5).text
    assert len(kept) == min(length, MOST_SHOWN)
    assert ("characters in all" in kept) is (length > MOST_SHOWN)


@pytest.mark.parametrize(
    ("more", "line", "text"),
    [
        ({}, " 2 ", "blue"),
        ({}, "0", "0"),
        ({}, "3", "3"),
        ({}, "²", "²"),
        pytest.param({}, "9" * 5_000, "9" * 5_000, id="digits"),
        ({}, "RED", "red"),
        ({}, " violet ", "violet"),
        ({"several": True}, "2, 1", "red, blue"),
        ({"several": True}, "violet, blue,, RED", "red, blue, violet"),
        ({"several": True}, "1, plain words, with a comma", "red, plain words, with a comma"),
        ({"secret": True}, "1", "red"),
        ({"secret": True, "options": ()}, " key ", " key "),
        ({"options": ()}, " key ", "key"),
    ],
)
def test_typed_line_is_the_answer_that_it_means(more: dict[str, Any], line: str, text: str) -> None:
    given: dict[str, Any] = {"options": (Option("red", ""), Option("blue", "")), **more}
    assert Question("Colour", "Colour", "Which?", **given).texts(line) == [text]


def test_of_several_choices_none_is_lost_in_whatever_order_they_are_typed() -> None:
    question = Question("Colour", "Colour", "Which?", (Option("red", ""), Option("blue", "")), several=True)
    pieces = ("1", "BLUE", "plain words", "with a comma")
    for count in range(1, len(pieces) + 1):
        for typed in itertools.permutations(pieces, count):
            own = [piece for piece in typed if piece in pieces[2:]]
            chosen = [label for piece, label in (("1", "red"), ("BLUE", "blue")) if piece in typed]
            assert question.texts(" , ".join(typed)) == [", ".join(chosen + own)], typed


def test_answer_names_the_agent_at_the_root_and_not_in_its_own_session() -> None:
    request = request_of(ASKS["command"]).asked_by(3, "s3", "0/3")
    assert reply_of(request.answer(Given("approved"))).agent_id == 3
    assert reply_of(request.in_own_session().answer(Given("approved"))).agent_id is None


OFFERED = [{"label": "red", "description": "warm"}, {"label": "blue"}]
COLOURS = (Option("red", "warm"), Option("blue", ""))


@pytest.mark.parametrize("several", [False, True])
def test_each_question_with_options_is_read_as_it_is_asked(several: bool) -> None:
    asked = {"header": "Colour", "question": "Which?", "options": OFFERED, "multiSelect": several}
    event = {**ASKS["choices"], "questions": [asked, {"header": "Why", "question": "Say."}]}
    assert request_of(event).questions == (
        Question("Colour", "Colour", "Which?", COLOURS, several=several),
        Question("Why", "Why", "Say."),
    )
    assert request_of(event).subject == "Colour: Which? · Why: Say."


@pytest.mark.parametrize("secret", [False, True])
@pytest.mark.parametrize("other", [False, True, None])
def test_each_question_that_may_be_left_is_read_as_it_is_asked(secret: bool, other: bool | None) -> None:
    asked = {"id": "c", "header": "Colour", "question": "Which?", "options": OFFERED, "isSecret": secret}
    first = asked if other is None else {**asked, "isOther": other}
    event = {**ASKS["input"], "questions": [first, {"id": "w", "header": "Why", "question": "Say."}]}
    taken = other is not False
    assert request_of(event).questions == (
        Question("c", "Colour", "Which?", COLOURS, secret=secret, other=taken, may_be_left=True),
        Question("w", "Why", "Say.", may_be_left=True),
    )


def test_every_text_of_every_answer_reaches_the_session() -> None:
    questions = [
        {"header": name, "question": "?", "options": OFFERED, "multiSelect": True} for name in ("One", "Two")
    ]
    chosen = {"One": ["red", "blue"], "Two": ["blue", "mine"]}
    request = request_of({**ASKS["choices"], "questions": questions})
    op = request.answer(Given("answered", texts=chosen))
    assert isinstance(op, ResolveAskUserQuestion)
    assert written(op)["response"]["answers"] == {"One": "red, blue", "Two": "blue, mine"}
    asked = [{"id": name, "header": name, "question": "?"} for name in ("one", "two", "left")]
    request = request_of({**ASKS["input"], "questions": asked})
    op = request.answer(Given("answered", texts={"one": ["a", "b"], "two": ["ä"]}))
    assert isinstance(op, UserInputAnswer)
    assert written(op)["response"]["answers"] == {"one": {"answers": ["a", "b"]}, "two": {"answers": ["ä"]}}


def test_person_reads_each_part_of_a_plan_with_its_steps_counted_from_one() -> None:
    steps = [{"step": step, "status": "pending"} for step in ("look", "build", "test")]
    proposal = {"title": "T", "summary": "S", "plan": {"explanation": "because", "plan": steps}}
    request = request_of({**ASKS["plan"], "proposal": proposal})
    assert [(part.form, part.title, part.text) for part in request.body] == [
        ("text", "Title", "T"),
        ("text", "Summary", "S"),
        ("text", "Explanation", "because"),
        ("list", "Steps", "1. look\n2. build\n3. test"),
    ]


def test_server_and_program_are_named_with_the_agent_that_waits_and_what_they_are_to_do() -> None:
    server, tool = request_of(ASKS["elicitation"]), request_of({**ASKS["client_tool"], "client": "editor"})
    assert server.heading() == "the MCP server time asks"
    assert server.heading("agent 3") == "the MCP server time asks for agent 3"
    assert (server.subject, [part.text for part in server.body]) == ("time: May I?", ["May I?"])
    assert (tool.heading("agent 3"), tool.subject) == ("agent 3 waits for a program", "editor is to do look")
    assert request_of(ASKS["client_tool"]).subject == "its client is to do look"
    assert [part.text for part in tool.body] == ["look", '{\n  "at": 1\n}']


@pytest.mark.parametrize(
    ("count", "said"), [(1, "1 files more"), (3, "3 files more"), (1_234, "1,234 files more")]
)
def test_person_reads_how_many_files_of_a_patch_are_not_shown(count: int, said: str) -> None:
    request = request_of({**ASKS["patch"], "changes_left_out": count})
    assert request.body[-1].text == said


def test_words_that_were_cut_say_how_many_there_were() -> None:
    for length in (MOST_SHOWN + 1, 3 * MOST_SHOWN):
        assert shown_as("ä" * length, "test", 5).text.endswith(f"ä\n… {length:,} characters in all")


def test_requests_to_people_are_all_but_that_of_a_clients_tool() -> None:
    people = {kind for kind, event in ASKS.items() if event["type"] in TO_PEOPLE}
    assert people == ASKS.keys() - {"client_tool"}
    by_programs = {kind for kind, event in ASKS.items() if request_of(event).answered_by == "program"}
    assert by_programs == {"client_tool"}
    assert known_request_of(LATER) is None


@pytest.mark.parametrize(
    ("event", "call"),
    [
        ({"type": "exec_approval_request", "call_id": "a"}, "a"),
        ({"type": "exec_approval_request", "call_id": "a", "callId": "b"}, "a"),
        ({"type": "dynamic_tool_call_request", "callId": "b"}, "b"),
        ({"type": "elicitation_request", "id": 7, "call_id": "a"}, "7"),
        ({"type": "elicitation_complete", "id": "c", "call_id": "a"}, "a"),
    ],
)
def test_call_of_an_event_is_found_by_whichever_name_it_has_there(event: dict[str, Any], call: str) -> None:
    assert call_id_of(event) == call
