"""`thread_rollback`: what people said last is taken out of the conversation, with all that followed."""

from __future__ import annotations

import pytest

from tests.core.driver import Session, assistant, op, text


def talked() -> Session:
    session = Session()
    for number in range(1, 4):
        session.say(f"question {number}")
        session.answers(f"answer {number}", f"r{number}")
    return session


def rolls_back(session: Session, turns: int) -> list[str]:
    return session.submit(op("thread_rollback", num_turns=turns), "back").types


@pytest.mark.parametrize("closed", [False, True])
def test_nothing_is_taken_back_while_input_waits_for_its_turn(closed: bool) -> None:
    session = talked()
    session.say("question 4")
    session.begin()
    session.submit(op("user_input", items=[text("later")], delivery="queue"), "later")
    if closed:
        session.shutdown()
        session.stopped()
        assert (session.status, session.state.task) == ("closed", None)
    before = session.texts()
    assert rolls_back(session, 1) == ["error"]
    assert session.texts() == before


def test_person_takes_back_the_last_two_turns() -> None:
    session = talked()
    assert rolls_back(session, 2) == ["thread_rolled_back"]
    assert session.seen[-1].one("thread_rolled_back")["num_turns"] == 2
    assert session.texts() == ["question 1", "answer 1"]
    assert [mark for mark, _ in session.state.bookmarks] == ["r1"]
    assert session.replayed() == session.state


def test_whole_conversation_can_be_taken_back_and_no_more_of_it() -> None:
    session = talked()
    assert rolls_back(session, 4) == ["error"]
    error = session.seen[-1].one("error")
    assert "people said 3 things" in error["message"]
    assert error["codex_error_info"] == "thread_rollback_failed"
    assert rolls_back(session, 3) == ["thread_rolled_back"]
    assert session.texts() == []


@pytest.mark.parametrize("turns", [1, 2, 3])
def test_log_says_behind_which_response_the_conversation_ends_now(turns: int) -> None:
    session = talked()
    rolls_back(session, turns)
    (rewound,) = (
        entry.payload for entry in session.seen[-1].entries if entry.payload.get("kind") == "rewound"
    )
    assert rewound["response_id"] == ("", "r1", "r2")[3 - turns]


@pytest.mark.parametrize("turns", [0, 10**9])
def test_nothing_changes_where_the_number_is_none(turns: int) -> None:
    session = talked()
    before = session.texts()
    assert rolls_back(session, turns) == ["error"]
    assert session.texts() == before


def test_running_task_is_not_rolled_back() -> None:
    session = talked()
    session.say("question 4")
    assert rolls_back(session, 1) == ["error"]
    assert "interrupt it first" in session.seen[-1].one("error")["message"]


def test_what_a_compaction_summed_up_is_not_taken_back() -> None:
    session = talked()
    session.compact()
    session.begin()
    session.item(assistant("what was done"))
    session.ends()
    session.say("question 4")
    session.answers("answer 4")
    assert rolls_back(session, 2) == ["error"]
    assert "last_response_id" in session.seen[-1].one("error")["message"], "the way further back is named"
    assert rolls_back(session, 1) == ["thread_rolled_back"]
    assert len(session.texts()) == 2


def test_model_is_told_again_of_settings_whose_message_was_taken_back() -> None:
    session = talked()
    session.submit(op("override_turn_context", cwd="/elsewhere"))
    session.say("question 4")
    session.answers("answer 4")
    rolls_back(session, 2)
    assert "<cwd>/elsewhere</cwd>" in session.texts()[-1]
