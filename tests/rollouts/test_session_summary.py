"""The summary of a session that lists show, and when it is written anew."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson
import pytest

from orchestrator.broker.records import Summary, read_summary
from orchestrator.core.snapshot import digest
from orchestrator.rollouts.session_summary import (
    PREVIEW_CHARS,
    TITLE_CHARS,
    Position,
    session_meta,
    shown_anew,
    title,
)
from tests.core.driver import Session, op
from tests.core.test_core_processes import keeping


def meta(session: Session) -> dict[str, Any]:
    stored = session_meta(Position(session.state, 9, bytes(32)), 1_000)
    found: dict[str, Any] = orjson.loads(stored)
    assert dict(read_summary(stored)) == found
    return found


def test_title_behind_a_compaction_is_what_the_person_said_first() -> None:
    session = Session()
    session.say("mend the parser")
    session.answers("done")
    session.say("and the lexer")
    session.answers("done")
    session.compact()
    session.answers("All is mended.")
    assert title(session.state) == "mend the parser"


def test_first_words_and_tokens_of_the_first_turn_are_shown_while_it_runs() -> None:
    session = Session()
    opened = session.state
    assert meta(session)["unspoken"]
    session.say("mend it")
    session.begin()
    begun = session.state
    assert shown_anew(opened, begun)
    session.calls("c1")
    assert not shown_anew(begun, session.state)
    session.ends()
    assert shown_anew(begun, session.state)
    assert meta(session)["blended_total"]
    assert "unspoken" not in meta(session)


def test_tokens_of_later_turns_are_shown_when_the_session_rests() -> None:
    session = Session()
    session.say("one")
    session.answers("done")
    session.say("two")
    begun = session.state
    session.asks_for("c1")
    assert session.state.tokens != begun.tokens
    assert not shown_anew(begun, session.state)


def test_session_with_a_living_process_is_shown_at_the_end_of_its_turn() -> None:
    session = keeping()
    working = session.state
    session.answers("it serves")
    assert session.status == "idle"
    assert shown_anew(working, session.state)
    assert meta(session)["processes"] == 1


@pytest.mark.parametrize("named", [True, False])
def test_only_a_session_without_name_and_words_is_unspoken(named: bool) -> None:
    session = Session()
    if named:
        session.submit(op("set_thread_name", name="mine"), "n1")
    assert meta(session).get("unspoken", False) is not named


def test_summary_of_a_session_that_does_not_rest_has_no_digest_of_its_state() -> None:
    session = Session()
    place = Position(session.state, 9, bytes(32))
    resting, busy = (orjson.loads(session_meta(place, 1_000, rests=rests)) for rests in (True, False))
    assert resting.pop("state_sha256") == digest(session.state)
    assert resting == busy


def test_session_whose_words_a_compaction_has_taken_in_is_not_unspoken() -> None:
    session = Session()
    session.say("mend the parser")
    session.answers("done")
    session.compact()
    session.answers("All is mended.")
    assert "unspoken" not in meta(session)


def test_session_whose_words_were_all_taken_back_is_not_unspoken() -> None:
    session = Session()
    session.say("mend the parser")
    session.answers("done")
    session.submit(op("thread_rollback", num_turns=1))
    assert "unspoken" not in meta(session)


@pytest.mark.parametrize("chars", [1, TITLE_CHARS, TITLE_CHARS + 1, PREVIEW_CHARS, PREVIEW_CHARS + 1])
def test_lists_with_room_show_more_of_the_same_words(chars: int) -> None:
    session = Session()
    words = "é" * chars
    session.say(f"  {words}\n")
    told = meta(session)
    for key, most in (("title", TITLE_CHARS), ("preview", PREVIEW_CHARS)):
        assert told[key] == (words if chars <= most else f"{words[: most - 1]}…")


def test_every_other_name_of_a_busy_session_is_shown_at_once() -> None:
    session = Session()
    session.say("mend it")
    session.begin()
    for at, (name, anew) in enumerate([("one", True), ("two", True), ("two", False), ("one", True)]):
        before = session.state
        session.submit(op("set_thread_name", name=name), f"n{at}")
        assert shown_anew(before, session.state) is anew
        assert meta(session)["name"] == name


def test_list_shows_of_which_session_one_is_a_fork() -> None:
    session, source = Session(), "01a1f84b-eb09-7009-9fd7-ebc79e95569f"
    assert meta(session)["forked_from"] is None
    state = session.state
    fork = replace(state, meta=replace(state.meta, forked_from_id=source))
    assert orjson.loads(session_meta(Position(fork, 9, bytes(32)), 1_000))["forked_from"] == source


@pytest.mark.parametrize("name", Summary.__annotations__)
def test_summary_with_a_fact_of_a_type_that_no_version_writes_is_damaged(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        read_summary(orjson.dumps({"label": "words", name: []}))


def test_summary_of_a_later_version_is_read_and_a_change_that_counts_no_numbers_is_not() -> None:
    later = {"title": "words", "tint": ["blue"], "change": {"files": 1, "insertions": 2, "deletions": 3}}
    assert read_summary(orjson.dumps(later)) == later
    assert read_summary(b"") == {}
    with pytest.raises(ValueError, match="change"):
        read_summary(b'{"change": {"files": "many"}}')
