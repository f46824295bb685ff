"""A task whose tree has no budget left: it waits and holds nothing, until there is room, or until it ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson
import pytest

from orchestrator.core import commands as c
from orchestrator.core.outstanding import OweRequest
from tests.core.driver import Seen, Session, assistant, op, text
from tests.core.tree_driver import Agent, a_family, told_by

USED = {"kind": "tokens", "limit": 1_000, "used": 1_010}


def refused(session: Session, reason: str = "budget_spent", detail: str = "tokens") -> Seen:
    """The commit that would begin the request finds no room."""
    return session.happens(c.CommitRefused(c.BeginRequest(), reason, detail, USED))


def paused(session: Session, reason: str = "budget_spent") -> Session:
    session.say("go", "u1")
    refused(session, reason)
    assert (session.status, session.owes(), set(session.timers)) == ("paused", (), {"budget"})
    return session


@pytest.mark.parametrize("reason", ["budget_spent", "budget_reserved"])
def test_task_without_room_waits_again_and_again_until_there_is_some(reason: str) -> None:
    session = paused(Session(), reason)
    for _ in range(2):
        session.fires("budget")
        assert (session.status, session.owes()) == ("running", (OweRequest(),))
        assert refused(session, reason).decision.budget_wait
        assert (session.status, session.owes(), set(session.timers)) == ("paused", (), {"budget"})
    assert session.replayed() == session.state
    session.fires("budget")
    session.answers("done")
    assert session.status == "idle"


ENDS: dict[str, Callable[[Session], Any]] = {
    "interrupt": lambda session: session.interrupt(),
    "input": lambda session: session.say("other", "u2"),
    "configure": lambda session: session.submit(op("configure_session", cwd="/repo")),
    "refusal": lambda session: session.happens(c.TaskRefused("this folder is another one")),
    "shutdown": lambda session: session.shutdown(),
}


@pytest.mark.parametrize("ends", ENDS)
def test_task_that_ends_while_it_waits_for_room_leaves_no_wait_to_the_next_one(ends: str) -> None:
    session = paused(Session())
    ENDS[ends](session)
    if session.state.task is None:
        session.say("again", "u3")
    assert session.state.tree.paused is None
    assert (session.timers, session.owes()) == ({}, (OweRequest(),))
    assert session.replayed() == session.state


def test_one_warning_at_the_root_says_whose_request_found_the_budget_spent() -> None:
    tree, (_, child) = a_family(2)
    seen = refused(child, detail="tokens")
    part = seen.decision.tree
    assert part is not None
    [told] = part.events
    warning = told_by(told)
    assert (warning["type"], warning["budget"]) == ("warning", {**USED, "agent_id": child.id})
    assert f"`dendro budget {tree.root.sid} --add tokens=1000000`" in warning["message"]
    assert (told.targets, told.once) == ((tree.root.sid,), "tokens:100")
    assert orjson.loads(b"".join(told.parts))["id"] == child.task.id


def test_request_that_only_others_reservations_keep_from_beginning_warns_nobody() -> None:
    _, (child,) = a_family()
    part = refused(child, "budget_reserved").decision.tree
    assert part is None or part.events == ()


def test_model_without_a_price_fails_the_task_and_says_which_setting_is_missing() -> None:
    session = Session()
    session.submit(op("override_turn_context", model="other"))
    session.say("go", "u1")
    seen = refused(session, "budget_unpriced", "gpt-5")
    assert seen.types == ["error", "task_complete"]
    assert 'model_prices."other"' in seen.one("error")["message"]
    assert (session.owes(), session.timers) == ((), {})


def test_room_in_the_budget_wakes_no_task_that_waits_for_something_else() -> None:
    session = Session()
    session.say("go")
    session.begin()
    session.breaks("limited", delay_ms=60_000)
    before = session.digest
    session.happens(c.TimerFired("budget", 1))
    assert (session.digest, session.status) == (before, "retrying")


def test_calls_that_run_finish_while_no_request_may_begin() -> None:
    """The refused commit is the next request's: what the last response asked for is done by then."""
    session = Session()
    session.say("go")
    session.asks_for("c1")
    session.runs("c1")
    assert session.owes() != (OweRequest(),)
    session.finishes("c1")
    refused(session)
    session.submit(op("user_input", items=[text("and this")], delivery="steer"), "u2")
    assert (session.status, session.owes()) == ("paused", ())
    session.fires("budget")
    session.begin()
    assert session.texts()[-1] == "and this"
    session.item(assistant("done"))
    session.ends()
    assert session.status == "idle"


def test_agent_that_is_cancelled_while_it_waits_for_room_has_ended() -> None:
    tree, (child,) = a_family()
    refused(child)
    tree.root.cancels(1)
    tree.settle()
    assert (child.standing, child.timers, child.state.tree.paused) == ("canceled", {}, None)
    assert isinstance(child, Agent)
    tree.check()
