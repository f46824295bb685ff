"""A session's name: a fact of its log, which any fold finds again."""

from __future__ import annotations

import pytest

from orchestrator.core.decide.ops import MOST_NAME
from orchestrator.core.snapshot import decode, encode
from tests.core.driver import Session, op


def test_person_names_a_session_and_a_replay_of_its_log_knows_the_name() -> None:
    session = Session()
    seen = session.submit(op("set_thread_name", name="  Parser for\nthe new   format "), "n1")
    assert seen.id_of("thread_name_updated") == "n1"
    told = seen.one("thread_name_updated")
    assert told["thread_name"] == session.state.name == "Parser for the new format"
    assert session.replayed().name == session.state.name
    assert decode(encode(session.state)) == session.state


def test_person_names_a_session_again_while_it_works_and_the_last_name_counts() -> None:
    session = Session()
    session.submit(op("set_thread_name", name="one"), "n1")
    session.say("go")
    session.submit(op("set_thread_name", name="two"), "n2")
    assert session.state.name == "two"
    assert session.status == "running"
    configured = session.submit(op("configure_session"), "cfg").one("session_configured")
    assert configured["thread_name"] == "two"


@pytest.mark.parametrize("name", ["", " \n\t", "x" * (MOST_NAME + 1)])
def test_name_that_is_empty_or_too_long_is_refused_and_the_old_one_stays(name: str) -> None:
    session = Session()
    session.submit(op("set_thread_name", name="y" * MOST_NAME), "n1")
    seen = session.submit(op("set_thread_name", name=name), "n2")
    assert "not named" in seen.one("error")["message"]
    assert session.state.name == "y" * MOST_NAME


def test_state_without_a_name_is_stored_as_it_always_was() -> None:
    session = Session()
    session.say("go")
    assert b"thread_name" not in encode(session.state)
