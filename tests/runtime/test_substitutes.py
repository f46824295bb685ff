"""Substitutes of commands that no step can hold: each kind ends in its own way, and by name."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from orchestrator.broker.errors import CommitTooLarge
from orchestrator.core import commands as c
from orchestrator.core.decide.draft import Note
from orchestrator.core.tokens import Price
from orchestrator.protocol.ids import SubmissionId
from orchestrator.runtime.sq_entries import Unreadable
from orchestrator.runtime.step import REASON_CHARS, instead_of, reason, submission_of
from tests.core.driver import USAGE, Session, a_command, op

DEFECT, LARGE = ValueError("a bug"), CommitTooLarge("300 entries")


def at_work() -> Session:
    session = Session()
    session.say("go")
    session.asks_for("c1", "c2")
    session.assessed("c1", a_command("ls", safe=True))
    return session


def events(note: Any) -> list[tuple[str, Any]]:
    assert isinstance(note, Note)
    return [(entry.id, entry.payload) for entry in note.entries]


@pytest.mark.parametrize("error", [DEFECT, LARGE])
@pytest.mark.parametrize(
    "command",
    [
        c.Submitted(SubmissionId("s1"), op("interrupt")),
        c.TimerFired("s1", 3),
        Unreadable("s1", DEFECT),
    ],
)
def test_submission_or_timer_becomes_an_error_under_its_own_id(command: Any, error: Exception) -> None:
    ((id, told),) = events(instead_of(command, error, Session().state))
    assert (id, told["type"]) == ("s1", "error")
    assert ("more than one step can record" in told["message"]) is (error is LARGE)
    assert submission_of(command) == "s1"


@pytest.mark.parametrize(
    ("kind", "interrupt", "taken"),
    [
        ("message", False, (1, 0)),
        ("message", True, (0, 1)),
        ("completion", False, (1, 0)),
        ("cancel", True, (0, 0)),
        ("interrupt", True, (0, 0)),
        ("status", False, (0, 0)),
        ("answer", False, (0, 0)),
        ("of a newer version", True, (0, 0)),
    ],
)
def test_letter_becomes_a_warning_and_leaves_the_inbox_that_it_was_counted_in(
    kind: str, interrupt: bool, taken: tuple[int, int]
) -> None:
    letter = c.MailArrived(kind, {}, "key", 7, interrupt)
    note = instead_of(letter, DEFECT, Session().state)
    ((id, told),) = events(note)
    assert (id, told["type"]) == ("", "warning")
    assert told["message"].startswith(f"a {kind} of another agent was not read")
    assert isinstance(note, Note)
    assert note.tree is not None
    assert note.tree.taken == taken
    assert submission_of(letter) == "key"


@pytest.mark.parametrize(("usage", "price"), [(None, None), (USAGE, None), (USAGE, Price(7, 1.0, 1.0, 1.0))])
def test_response_that_cannot_be_recorded_breaks_its_own_request_and_counts_what_it_used(
    usage: Any, price: Price | None
) -> None:
    state = Session().state
    item = instead_of(c.ItemCompleted(4, {"type": "message"}, ""), DEFECT, state)
    end = instead_of(c.ResponseCompleted(5, "r", usage, price=price), LARGE, state)
    assert isinstance(item, c.ResponseBroken)
    assert isinstance(end, c.ResponseBroken)
    assert [(one.n, one.kind, one.usage) for one in (item, end)] == [(4, "fatal", None), (5, "fatal", usage)]
    assert (item.price, end.price) == (None, price)
    assert "could not be recorded" in item.message


@pytest.mark.parametrize("call_id", ["c1", "c2"])
def test_call_whose_output_or_assessment_cannot_be_recorded_ends_by_a_word_about_it(call_id: str) -> None:
    session = at_work()
    session.assessed("c2", a_command("ls", safe=True))
    ended = instead_of(c.CallFinished(call_id, "x" * 10, ()), LARGE, session.state)
    assert isinstance(ended, c.CallFinished)
    assert (ended.call_id, "could not be recorded" in str(ended.output)) == (call_id, True)
    assessed = instead_of(c.CallAssessed(call_id, c.Immediate("x")), DEFECT, session.state)
    assert isinstance(assessed, c.CallAssessed)
    assert assessed.call_id == call_id
    assert isinstance(assessed.assessment, c.Immediate)
    assert str(assessed.assessment.output).startswith("not run: internal error: ValueError: a bug")


def test_answer_of_a_look_up_becomes_its_error_once() -> None:
    state = Session().state
    failed = instead_of(c.LookedUp("c|l1"), DEFECT, state)
    assert isinstance(failed, c.LookedUp)
    assert failed.key == "c|l1"
    assert "could not be recorded" in str(failed.error)
    assert instead_of(failed, DEFECT, state) is None


@pytest.mark.parametrize("command", [c.BeginRequest(), c.CloseCalls(), c.Stopped({}), c.EndChildren()])
def test_nothing_takes_the_place_of_what_the_state_itself_owes(command: c.Command) -> None:
    assert instead_of(command, DEFECT, Session().state) is None
    assert submission_of(command) == ""


@pytest.mark.parametrize("length", [0, 5, REASON_CHARS, 10 * REASON_CHARS])
@pytest.mark.parametrize("letter", ["x", "ä", "\n"])
def test_reason_is_one_line_of_bounded_length(letter: str, length: int) -> None:
    told = reason(ValueError(letter * length))
    assert told.startswith("ValueError:")
    assert "\n" not in told
    assert len(told) <= REASON_CHARS
    assert orjson.dumps(told)
