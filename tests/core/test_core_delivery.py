"""Where input goes whose submission says it, and which turn an op is for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from orchestrator.core.decide.ops import MOST_QUEUED, MOST_STEERED
from orchestrator.core.entries import Entry
from orchestrator.core.outstanding import OweRequest
from orchestrator.protocol.bounds import NAME_BYTES
from orchestrator.protocol.ops import Op
from orchestrator.protocol.submission import MalformedSubmission
from tests.core.driver import SETTINGS, Seen, Session, op, text

ACCEPTED = "input_accepted"


def running(**made: Any) -> Session:
    session = Session(**made)
    session.say("go", "u1")
    session.begin()
    return session


def turn(words: str, **fields: Any) -> Op:
    return op("user_turn", **{**SETTINGS, "summary": "auto", "items": [text(words)], **fields})


def refusal(seen: Seen) -> tuple[Any, Any]:
    (error,) = seen.all("error")
    assert seen.types == ["error"]
    return error["message"], error["reason"]


# ── delivery ──────────────────────────────────────────────────────────────────────────────────


def test_input_to_steer_joins_the_running_turn_whatever_the_session_does_else() -> None:
    session = running()
    seen = session.say("and this", "u2", delivery="steer")
    assert seen.events[0] == ("u2", {"type": ACCEPTED, "turn_id": "u1", "delivery": "steered"})
    assert seen.id_of("user_message") == "u1"
    assert (len(session.task.steered), session.state.queue) == (1, ())


def test_user_turn_to_steer_joins_and_its_settings_hold_from_the_next_turn_on() -> None:
    session = running()
    session.submit(turn("and this", model="other", delivery="steer"), "u2")
    assert (session.task.id, session.task.settings.model) == ("u1", "gpt-5")
    assert session.state.settings.model == "other"


def test_input_brings_settings_that_its_turn_begins_with() -> None:
    session = Session()
    seen = session.say("go", "u1", overrides={"model": "other", "effort": "low"})
    assert (session.task.settings.model, session.task.settings.effort) == ("other", "low")
    assert next(entry.payload["kind"] for entry in seen.entries if entry.type == "dendro") == "settings"


def test_settings_of_input_that_waits_hold_from_its_own_turn_on() -> None:
    session = running()
    session.say("later", "u2", delivery="queue", overrides={"model": "other"})
    assert (session.state.settings.model, session.task.settings.model) == ("gpt-5", "gpt-5")
    session.answers_now("done")
    assert (session.task.id, session.task.settings.model) == ("u2", "other")


def test_settings_of_input_that_steers_hold_from_the_next_turn_on() -> None:
    session = running()
    session.say("and this", "u2", delivery="steer", overrides={"model": "other"})
    assert (session.task.settings.model, session.state.settings.model) == ("gpt-5", "other")


def test_input_that_is_refused_changes_no_settings() -> None:
    session = running()
    seen = session.say("x", "u2", expected_turn_id="other", overrides={"model": "other"})
    assert refusal(seen)[1] == "other_turn"
    mode = {"mode": "plan", "settings": {"model": "m", "developer_instructions": "x" * 40_000}}
    (error,) = session.say("x", "u3", overrides={"collaboration_mode": mode}).all("error")
    assert "developer_instructions" in error["message"]
    assert session.state.settings.model == "gpt-5"


def test_input_to_queue_waits_behind_the_running_turn_which_goes_on() -> None:
    session = running(facts={"on_user_input": "steer"})
    seen = session.say("later", "u2", delivery="queue")
    assert seen.events == [("u2", {"type": ACCEPTED, "turn_id": "u2", "delivery": "queued"})]
    assert session.task.stopping is None
    done = session.answers_now("done")
    assert [type for type in done.types if type.startswith("task_")] == ["task_complete", "task_started"]
    assert (session.task.id, session.task.stopping) == ("u2", None)


def test_inputs_to_queue_are_turns_one_after_the_other() -> None:
    session = running()
    for number in (2, 3):
        session.say(f"word {number}", f"u{number}", delivery="queue")
    session.answers_now("one")
    assert (session.task.id, session.task.stopping, session.owes()) == ("u2", None, (OweRequest(),))
    session.begin()
    session.answers_now("two")
    assert (session.task.id, session.state.queue) == ("u3", ())


def test_input_that_replaces_stops_the_turn_and_those_that_waited_before_it() -> None:
    session = running()
    session.say("waits", "u2", delivery="queue")
    seen = session.say("now", "u3", delivery="replace")
    assert seen.one(ACCEPTED)["delivery"] == "queued"
    assert session.task.stopping == "replaced"
    session.stopped()
    assert (session.task.id, session.task.stopping) == ("u2", "replaced")
    session.stopped()
    assert (session.task.id, session.texts()[-1]) == ("u3", "now")


def test_input_to_steer_waits_behind_a_turn_that_takes_none() -> None:
    session = Session()
    session.say("go", "u1")
    session.begin()
    session.answers_now("done")
    session.compact("c1")
    session.begin()
    seen = session.say("and this", "u2", delivery="steer")
    assert seen.one(ACCEPTED)["delivery"] == "queued"
    assert (session.task.id, session.task.stopping) == ("c1", None)


def test_input_that_begins_its_turn_at_once_is_answered_by_the_begin() -> None:
    session = Session()
    assert session.say("go", "u1", delivery="steer").types == ["task_started", "user_message"]


def test_input_without_a_word_about_its_delivery_is_answered_as_ever() -> None:
    session = running(facts={"on_user_input": "steer"})
    assert session.say("and this").types == ["user_message"]


def test_queued_and_steered_input_beyond_measure_is_refused() -> None:
    session = running()
    for number in range(MOST_QUEUED):
        session.say("word", f"q{number}", delivery="queue")
    seen = session.say("word", "one more", delivery="queue")
    assert "inputs wait for the session; send it again" in seen.one("error")["message"]
    assert "reason" not in seen.one("error")
    assert len(session.state.queue) == MOST_QUEUED
    for _ in range(MOST_STEERED):
        session.say("word", delivery="steer")
    assert session.say("word", delivery="steer").types == ["error"]


# ── the turn that an op is for ────────────────────────────────────────────────────────────────


def test_input_for_the_running_turn_joins_it() -> None:
    session = running()
    seen = session.say("and this", "u2", expected_turn_id="u1")
    assert seen.one(ACCEPTED) == {"type": ACCEPTED, "turn_id": "u1", "delivery": "steered"}


def test_input_for_another_turn_is_refused_with_the_turn_that_runs() -> None:
    session = running()
    seen = session.say("and this", "u2", expected_turn_id="u0")
    assert refusal(seen) == ("expected active turn id `u0` but found `u1`", "other_turn")
    assert session.task.steered == ()


def test_input_for_a_turn_that_is_over_or_being_stopped_is_refused() -> None:
    session = running()
    session.interrupt()
    gone = ("no active turn to steer", "no_active_turn")
    assert refusal(session.say("and this", expected_turn_id="u1")) == gone
    session.stopped()
    assert refusal(session.say("and this", expected_turn_id="u1")) == gone
    assert session.state.task is None


def test_input_for_a_turn_that_takes_none_is_refused_and_the_turn_goes_on() -> None:
    session = running()
    session.answers_now("done")
    session.compact("c1")
    session.begin()
    message, reason = refusal(session.say("and this", expected_turn_id="c1"))
    assert (message, reason) == ("not steered: a compact turn takes no input", "turn_not_steerable")
    assert session.task.stopping is None


def test_interrupt_for_the_running_turn_stops_it() -> None:
    session = running()
    for _ in ("first", "while it is being stopped"):
        seen = session.submit(op("interrupt", expected_turn_id="u1"))
        assert session.task.stopping == "interrupted"
        assert "error" not in seen.types


def test_interrupt_for_another_turn_stops_nothing() -> None:
    session = running()
    seen = session.submit(op("interrupt", expected_turn_id="u0", tree=True), "i1")
    assert refusal(seen) == ("expected active turn id `u0` but found `u1`", "other_turn")
    assert seen.id_of("error") == "i1"
    assert session.task.stopping is None


def test_interrupt_for_a_turn_without_one_is_refused() -> None:
    session = Session()
    seen = session.submit(op("interrupt", expected_turn_id="u1"))
    assert refusal(seen) == ("no active turn to interrupt", "no_active_turn")


# ── the sender's own name ─────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("delivery", ["steer", "queue"])
def test_message_carries_the_name_that_its_sender_gave_it(delivery: str) -> None:
    session = running()
    session.say("and this", "u2", delivery=delivery, client_user_message_id="mine")
    session.answers_now("done")
    assert user_messages(session)[-1]["client_id"] == "mine"
    assert "client_id" not in user_messages(session)[0]


def user_messages(session: Session) -> list[Mapping[str, Any]]:
    entries: list[Entry] = [entry for seen in session.seen for entry in seen.entries]
    return [entry.payload for entry in entries if entry.payload.get("type") == "user_message"]


@pytest.mark.parametrize("field", ["client_user_message_id", "expected_turn_id"])
def test_names_of_turns_and_messages_are_bounded(field: str) -> None:
    op("user_input", items=[text("a")], **{field: "x" * NAME_BYTES})
    with pytest.raises(MalformedSubmission, match=field):
        op("user_input", items=[text("a")], **{field: "x" * (NAME_BYTES + 1)})
