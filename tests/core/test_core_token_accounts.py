"""Token counts that clients are told, and those that the session itself goes by."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.core.tokens import TokenInfo, Usage, counted, lost
from tests.core.driver import Session, assistant, op


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


@pytest.mark.parametrize(
    "beside", [{"plan_request": {"goal": "g"}}, {"review_request": {"prompt": "p", "user_facing_hint": "h"}}]
)
def test_task_beside_the_conversation_is_not_told_of_as_the_sessions_last_usage(
    beside: dict[str, Any],
) -> None:
    session = Session()
    session.say("go")
    _answers(session, 7)
    session.submit(op(next(iter(beside)).removesuffix("_request"), **beside), "b1")
    _answers(session, 100)
    assert last_told(session)["last_token_usage"]["total_tokens"] == 100

    session.say("next")
    session.begin()
    told = last_told(session)
    assert (told["total_token_usage"]["total_tokens"], told["last_token_usage"]["total_tokens"]) == (107, 7)


def _answers(session: Session, used: int) -> None:
    session.begin()
    session.item(assistant("said"))
    session.ends(usage={"total_tokens": used})


FAILED = {"input_tokens": 40, "output_tokens": 10, "total_tokens": 50}


@pytest.mark.parametrize("kind", ["stream", "fatal", "limited"])
def test_session_counts_what_a_failed_response_used(kind: str) -> None:
    session = Session()
    session.say("go")
    session.begin()
    session.breaks(kind, usage=FAILED)
    assert used(session) == 50
    assert last_told(session) is None, "no turn has ended"


def test_session_counts_what_a_response_used_that_broke_while_its_task_was_stopped() -> None:
    session = Session()
    session.say("go")
    session.begin()
    session.interrupt()
    session.breaks(usage=FAILED)
    assert used(session) == 50


def test_failed_response_tells_nothing_of_the_window() -> None:
    session = Session()
    session.say("go")
    session.answers("first")
    assert session.state.tokens is not None
    before = session.state.tokens
    session.say("more")
    session.begin()
    session.breaks(usage=FAILED)
    assert session.state.tokens.last == before.last
    assert used(session) == before.total.total_tokens + 50


def test_failed_response_without_a_usage_leaves_the_accounts_and_the_log_as_they_were() -> None:
    session = Session()
    session.say("go")
    session.begin()
    seen = session.breaks()
    assert session.state.tokens is None
    assert [entry.payload for entry in seen.entries if "usage" in entry.payload] == []


def used(session: Session) -> int:
    assert session.state.tokens is not None
    return session.state.tokens.total.total_tokens


def last_told(session: Session) -> Any:
    return [message for _, message in session.events if message["type"] == "token_count"][-1]["info"]


def test_first_response_counts_though_it_failed_and_tells_nothing_of_the_window() -> None:
    used = Usage(100, 0, 20, 0, 120)
    first = lost(None, used)
    assert (first.total, first.last) == (used, Usage())
    assert lost(counted(None, used), used) == TokenInfo(used.plus(used), used)
