"""Calls of a turn: each runs once and in order; what the model produced besides is kept and shown."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from orchestrator.core.commands import BeginRequest, SearchBegun
from orchestrator.core.decide import IllegalCommand
from orchestrator.core.outstanding import AssessCall, OweRequest, RunCall
from orchestrator.core.settings import Rules
from orchestrator.core.user_turns import begun_item
from orchestrator.protocol.wire import written
from tests.core.driver import Session, a_command, assistant, function_call


def test_nothing_is_begun_twice() -> None:
    session = Session()
    with pytest.raises(IllegalCommand, match="idle"):
        session.begin()
    session.say("go")
    session.begin()
    with pytest.raises(IllegalCommand, match="no model request is owed"):
        session.happens(BeginRequest())
    session.calls("c1")
    session.ends()
    with pytest.raises(IllegalCommand):
        session.begin()


def test_late_reports_of_a_request_that_is_over_are_refused() -> None:
    session = Session()
    session.say("go")
    session.answers("done")
    before = session.digest
    with pytest.raises(IllegalCommand):
        session.finishes("c1")
    assert session.digest == before


def test_call_runs_once_for_one_decision() -> None:
    session = Session()
    session.say("go")
    session.asks_for("c1")
    session.runs("c1")
    with pytest.raises(IllegalCommand, match="c1 is running"):
        session.runs("c1")
    session.finishes("c1")
    with pytest.raises(IllegalCommand, match="c1 is done"):
        session.finishes("c1")


def test_refusal_travels_through_a_context_manager_as_itself() -> None:
    @contextmanager
    def passing() -> Iterator[None]:
        yield

    with pytest.raises(IllegalCommand) as caught, passing():
        Session().begin()
    assert (caught.value.command, caught.value.state) == ("BeginRequest", "idle")


def test_calls_run_in_order_one_at_a_time() -> None:
    session = Session()
    session.say("go")
    session.asks_for("c1", "c2")
    assert session.owes() == (AssessCall("c1"),)
    session.runs("c1")
    assert session.owes() == (RunCall("c1", 1),)
    session.finishes("c1")
    assert session.owes() == (AssessCall("c2"),)


def test_parallel_safe_calls_run_together_and_others_wait_for_them() -> None:
    session = Session(rules=Rules(parallel_safe=frozenset({"view"})))
    session.say("go")
    session.begin()
    for call_id, name in (("v1", "view"), ("v2", "view"), ("c1", "shell"), ("v3", "view")):
        session.item(function_call(call_id, name))
    session.ends()
    assert session.owes() == (AssessCall("v1"), AssessCall("v2"))
    session.runs("v1")
    session.runs("v2")
    session.finishes("v2", "second")
    assert session.owes() == (RunCall("v1", 1),)
    session.finishes("v1", "first")
    assert session.owes() == (AssessCall("c1"),)
    session.runs("c1")
    session.finishes("c1", "third")
    assert session.owes() == (AssessCall("v3"),)
    assert [line for line in session.texts() if line.startswith("output")][:3] == [
        "output v1: first",
        "output v2: second",
        "output c1: third",
    ]


def test_call_behind_one_that_awaits_approval_waits_too() -> None:
    session = Session()
    session.say("go")
    session.asks_for("c1", "c2")
    session.assessed("c1", a_command("rm", "-rf", "build", dangerous=True))
    assert session.owes() == ()
    assert session.status == "awaiting_approval"


def test_call_id_that_the_model_repeats_is_told_apart() -> None:
    session = Session()
    session.say("go")
    session.asks_for("c1", "c1", "c1")
    assert [call.call_id for call in session.task.calls] == ["c1", "c1#2", "c1#3"]
    for call_id in ("c1", "c1#2", "c1#3"):
        session.runs(call_id)
        session.finishes(call_id, call_id)
    assert session.output_of("c1#2") == "c1#2"


def test_call_id_that_a_later_response_of_the_turn_repeats_is_told_apart() -> None:
    session = Session()
    session.say("go")
    for call_id in ("c1", "c1#2", "c1#3"):
        session.asks_for("c1")
        assert [call.call_id for call in session.task.calls] == [call_id]
        session.runs(call_id)
        session.finishes(call_id, call_id)
    session.answers("done")
    session.say("again")
    session.asks_for("c1")
    assert [call.call_id for call in session.task.calls] == ["c1"]


def test_local_shell_call_without_an_id_gets_one() -> None:
    session = Session()
    session.say("go")
    session.begin()
    session.item({"type": "local_shell_call", "status": "completed", "action": {"type": "exec"}})
    session.ends()
    assert [call.call_id for call in session.task.calls] == ["call-1"]
    session.runs("call-1")
    session.finishes("call-1", "ok")
    assert session.output_of("call-1") == "ok"


def test_unknown_item_is_kept_whole_and_shown_to_the_model_again() -> None:
    session = Session()
    session.say("go")
    session.begin()
    strange = {"type": "hologram", "depth": {"z": [1, 2]}, "extra": None}
    assert session.item(strange).types == []
    session.item(assistant("look"))
    session.ends()
    assert session.shown()[1] == strange


def test_reasoning_is_shown_in_summary_and_raw_only_where_configured() -> None:
    thought = {
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": "plan"}],
        "content": [{"type": "reasoning_text", "text": "secret"}],
        "encrypted_content": "abc",
    }
    for raw, types in (
        (False, ["agent_reasoning"]),
        (True, ["agent_reasoning", "agent_reasoning_raw_content"]),
    ):
        session = Session(rules=Rules(show_raw_reasoning=raw))
        session.say("go")
        session.begin()
        assert session.item(thought).types == types


@pytest.mark.parametrize("count", [99, 100, 101, 1_000])
def test_parts_of_a_reasoning_are_told_one_by_one_as_far_as_a_commit_carries_them(count: int) -> None:
    session = Session(rules=Rules(show_raw_reasoning=True))
    session.say("go")
    session.begin()
    texts = [f"part {number}" for number in range(count)]
    parts = {
        "summary": [{"type": "summary_text", "text": text} for text in texts],
        "content": [{"type": "reasoning_text", "text": text} for text in texts],
    }
    seen = session.item({"type": "reasoning", **parts})
    for kind in ("agent_reasoning", "agent_reasoning_raw_content"):
        told = [event["text"] for event in seen.all(kind)]
        assert told == [*texts[:99], *(["\n\n".join(texts[99:])] if count > 99 else [])], kind
    assert len(seen.entries) <= 256
    session.ends()
    [kept] = [item for item in session.shown() if item["type"] == "reasoning"]
    assert kept["summary"] == parts["summary"], "the model is shown all"


def test_web_search_of_the_model_is_told_by_a_pair_of_events() -> None:
    session = Session()
    session.say("go")
    session.begin()
    action = {"type": "search", "query": "redis"}
    seen = session.item({"type": "web_search_call", "action": action}, "ws1")
    assert seen.types == ["web_search_begin", "web_search_end"]
    end = {"type": "web_search_end", "call_id": "ws1", "query": "redis", "action": action}
    assert seen.one("web_search_end") == end


def test_search_that_was_told_while_it_lasted_is_only_ended_when_its_item_is_done() -> None:
    session = Session()
    session.say("go")
    session.begin()
    begun = session.happens(SearchBegun(session.request_n, "ws1"))
    assert begun.events == [("s1", {"type": "web_search_begin", "call_id": "ws1"})]
    seen = session.item({"type": "web_search_call"}, "ws1", begun=True)
    assert seen.events == [("s1", {"type": "web_search_end", "call_id": "ws1", "query": ""})]


@pytest.mark.parametrize(
    ("action", "query"),
    [
        ({"type": "search", "queries": ["a b", "c"]}, "a b, c"),
        ({"type": "search", "query": "a", "queries": ["b"]}, "a"),
        ({"type": "open_page", "url": "https://x.org"}, "https://x.org"),
        ({"type": "find_in_page", "url": "https://x.org", "pattern": "redis"}, "redis in https://x.org"),
        ({"type": "dreams", "of": 1}, ""),
    ],
)
def test_people_are_told_what_a_search_looked_for(action: dict[str, Any], query: str) -> None:
    session = Session()
    session.say("go")
    session.begin()
    seen = session.item({"type": "web_search_call", "action": action}, "ws1")
    assert (seen.one("web_search_end")["query"], seen.one("web_search_end")["action"]) == (query, action)


def test_command_that_the_policy_refuses_has_an_output_that_says_why() -> None:
    session = Session(settings={"approval_policy": "never"})
    session.say("go")
    session.asks_for("c1")
    session.assessed("c1", a_command("rm", dangerous=True))
    assert "approval policy is never" in session.output_of("c1")
    assert session.owes() == (OweRequest(),)


@pytest.mark.parametrize("action", [{"": None}, {"type": 3}, "search", {"type": "search", "queries": 7}])
def test_search_with_an_action_that_the_protocol_does_not_have_ends_without_one(action: object) -> None:
    session = Session()
    session.say("go")
    session.begin()
    seen = session.item({"type": "web_search_call", "id": "w", "status": "completed", "action": action})
    end = seen.one("web_search_end")
    assert (end["query"], end.get("action")) == ("", None)


@pytest.mark.parametrize(
    ("type", "drawn"),
    [("message", "AgentMessage"), ("reasoning", "Reasoning"), ("web_search_call", "WebSearch")],
)
def test_item_that_has_begun_is_drawn_before_its_content_is_there(type: str, drawn: str) -> None:
    item = begun_item({"type": type}, "i1")
    assert item is not None
    assert (written(item)["type"], written(item)["id"]) == (drawn, "i1")
    assert begun_item({"type": "function_call"}, "i1") is None
