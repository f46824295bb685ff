"""What clients are told of tokens, and what the session itself goes by."""

from __future__ import annotations

from typing import Any

from tests.core.driver import Session, assistant


def test_usage_of_an_interrupted_turn_counts_for_the_session_and_is_not_told() -> None:
    session = Session()
    session.say("go")
    session.begin()
    session.calls("c1")
    session.ends(usage={"total_tokens": 100})
    session.runs("c1")
    session.interrupt()
    session.stopped()
    assert used(session) == 100

    session.say("next")
    session.begin()
    assert last_told(session) is None
    session.item(assistant("after"))
    session.ends(usage={"total_tokens": 7})
    assert last_told(session)["total_token_usage"]["total_tokens"] == 7
    assert last_told(session)["last_token_usage"]["total_tokens"] == 7
    assert used(session) == 107


def used(session: Session) -> int:
    assert session.state.tokens is not None
    return session.state.tokens.total.total_tokens


def last_told(session: Session) -> Any:
    return [message for _, message in session.events if message["type"] == "token_count"][-1]["info"]
