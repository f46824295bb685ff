"""`spawn_subagent`: a helper that only reads, what is told of it meanwhile, and its end."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.core import commands as c
from orchestrator.core.agent_views import helper_calls
from orchestrator.core.calls import Call, HelperWork, Phase
from orchestrator.core.ids import AgentId
from orchestrator.protocol.codec import event_msg
from orchestrator.protocol.events import SubAgentToolCallBegin, SubAgentToolCallEnd
from orchestrator.protocol.ids import CallId
from tests.core.driver import op
from tests.core.tree_driver import Agent, TreeDriver, a_family, answers


def a_tree() -> TreeDriver:
    tree = TreeDriver()
    tree.root.say("do it", "u1")
    return tree


def a_helper(tree: TreeDriver, call_id: str = "h") -> Agent:
    """The root asks a helper, which has begun."""
    number = tree.next_id()
    asked = c.Helper(tree.spec(number, "read it", label="reader"), "Reads")
    assert tree.root.asks(call_id, "spawn_subagent", asked) is None
    tree.settle()
    return tree.agents[number]


def test_only_a_call_that_still_waits_is_one_that_waits_for_a_helper() -> None:
    work = HelperWork(AgentId(1), {}, 0)
    calls = [Call(CallId(phase), "spawn_subagent", {}, phase, work=work) for phase in Phase]
    assert [call.phase for call, _ in helper_calls(calls)] == [Phase.WAITING]


def told_of(tree: TreeDriver, call_id: str, name: str) -> list[Any]:
    """Values under a name in the events about a helper's call."""
    told = [fact.message for fact in tree.log if fact.message.get("call_id") == call_id]
    return [message[name] for message in told if name in message]


def test_helpers_answer_is_the_calls_output() -> None:
    tree = a_tree()
    helper = a_helper(tree)
    begun = tree.root.seen[-1]
    assert begun.types[-2:] == ["sub_agent_tool_call_begin", "sub_agent_tool_call_activity"]
    assert begun.one("sub_agent_tool_call_activity")["activity"] == "starting"
    assert helper.state.settings.approval_policy == "never"
    assert helper.state.settings.sandbox_policy == {"mode": "read-only"}
    assert "cannot make agents" in helper.asks("s", "subagent_spawn", tree.spawn(tree.next_id(), "x"))
    answers(helper, "it says no")
    tree.settle()
    assert tree.root.told("h") == {"label": "reader", "response": "it says no"}
    ended = tree.root.seen[-1].one("sub_agent_tool_call_end")
    assert ended["result"] == {"Ok": "it says no"}
    assert (ended["tokens"], ended["outcome"]) == (240, "completed")
    assert ended["invocation"] == {"description": "Reads", "label": "reader", "prompt": "read it"}
    used = [
        fact.message["tokens"] for fact in tree.log if fact.message["type"] == "sub_agent_tool_call_tokens"
    ]
    assert used == [120, 240], "at the end of each of its turns"
    tree.check()


def test_helper_is_idle_once_its_answer_is_given() -> None:
    tree = a_tree()
    helper = a_helper(tree)
    answers(helper, "it says no")
    tree.settle()
    known = tree.registry().agents[helper.id]
    assert known.status == "idle", "ready would promise a result that nobody can read"
    told = [fact.message["status"] for fact in tree.log if fact.message.get("event") == "status"]
    assert told[-2:] == ["ready", "idle"]
    tree.check()


def test_whoever_waits_for_a_helper_sees_what_it_is_at() -> None:
    tree = a_tree()
    helper = a_helper(tree)
    helper.begin()
    helper.item({"type": "reasoning", "summary": [{"type": "summary_text", "text": "**Looking  around**"}]})
    helper.calls("c1")
    helper.ends()
    helper.runs("c1", "ls", "-l")
    helper.finishes("c1")
    helper.asks_for("c2", name="view_image")
    helper.assessed("c2", c.Immediate("seen"))
    answers(helper, "it says no\nand more")
    seen = ["thinking", "Looking around", "runs ls -l", "", "thinking", "uses view_image"]
    assert told_of(tree, "h", "activity") == [*seen, "thinking", "writes: it says no and more"]


@pytest.mark.parametrize("kind", ["stream", "limited"])
def test_helper_whose_request_is_tried_again_shows_once_that_its_model_is_asked(kind: str) -> None:
    tree = a_tree()
    helper = a_helper(tree)
    helper.begin()
    for attempt in range(2):
        helper.breaks(kind, http_used=attempt, delay_ms=10)
        helper.begin()
    assert told_of(tree, "h", "activity") == ["thinking"]
    helper.calls("c1")
    helper.ends()
    helper.runs("c1")
    helper.finishes("c1")
    helper.begin()
    assert told_of(tree, "h", "activity")[-1] == "thinking"


def test_helpers_of_one_response_work_side_by_side() -> None:
    tree = a_tree()
    tree.root.begin()
    tree.root.calls("h1", "h2", name="spawn_subagent")
    tree.root.ends()
    for call_id in ("h1", "h2"):
        tree.root.assessed(call_id, c.Helper(tree.spec(tree.next_id(), "read", label=call_id), "Reads"))
    tree.settle()
    answers(tree.agents[2], "second")
    tree.settle()
    assert tree.root.told("h1") is None
    assert tree.root.told("h2") == {"label": "h2", "response": "second"}
    answers(tree.agents[1], "first")
    tree.settle()
    assert tree.root.told("h1") == {"label": "h1", "response": "first"}
    tree.check()


def test_helper_that_fails_says_so_in_the_calls_output() -> None:
    tree = a_tree()
    helper = a_helper(tree)
    helper.begin()
    helper.breaks("fatal", "no such model")
    tree.settle()
    assert tree.root.told("h") == "the helper failed: no such model"
    ended = tree.root.seen[-1].one("sub_agent_tool_call_end")
    assert (ended["outcome"], "tokens" in ended) == ("failed", False)


def test_helper_ends_with_the_call_that_waited_for_it() -> None:
    tree = a_tree()
    helper = a_helper(tree)
    helper.asks_for("c1")
    helper.runs("c1", "sleep", "60")
    ended = tree.root.interrupt().one("sub_agent_tool_call_end")
    assert (ended["outcome"], list(ended["result"])) == ("cancelled", ["Err"])
    tree.settle()
    helper.stopped(c1=1.0)
    tree.settle()
    assert (helper.standing, tree.counter("slots")) == ("canceled", 0)
    tree.check()


def test_inbox_of_who_asked_a_helper_is_told_empty_when_the_answer_is_taken() -> None:
    tree = a_tree()
    child = tree.root.spawns()
    tree.settle()
    child.asks("h", "spawn_subagent", c.Helper(tree.spec(tree.next_id(), "read it"), "Reads"))
    tree.settle()
    answers(tree.agents[2], "it says no")
    tree.settle()
    assert child.told("h") == {"label": "", "response": "it says no"}
    assert [fact.depths[child.sid] for fact in tree.log if child.sid in fact.depths][-2:] == [(1, 0), (0, 0)]
    tree.check()


def test_clients_can_read_of_a_helper_that_has_no_label() -> None:
    tree = a_tree()
    tree.root.asks("h", "spawn_subagent", c.Helper(tree.spec(tree.next_id(), "read it"), "Reads"))
    begun = tree.root.seen[-1].one("sub_agent_tool_call_begin")
    tree.settle()
    answers(tree.agents[1], "it says no")
    tree.settle()
    ended = tree.root.seen[-1].one("sub_agent_tool_call_end")
    for message in (begun, ended):
        parsed = event_msg(dict(message))
        assert isinstance(parsed, SubAgentToolCallBegin | SubAgentToolCallEnd)
        assert parsed.invocation.label == ""


def test_helper_that_is_cancelled_leaves_its_call_without_an_answer() -> None:
    tree = a_tree()
    helper = a_helper(tree)
    helper.asks_for("c1")
    helper.runs("c1", "ls")
    tree.root.submit(op("cancel_agent", agent_id=helper.id), "x1", agents=(tree.target(helper.id),))
    tree.settle()
    helper.stopped(c1=1.0)
    tree.settle()
    assert tree.root.told("h") == "the helper was stopped"


@pytest.mark.parametrize("how", ["helper", "variants"])
def test_call_whose_helpers_an_agent_above_prunes_is_over(how: str) -> None:
    tree, (asker,) = a_family()
    first = tree.next_id()
    specs = tuple(
        tree.spec(first + at, "read it", label="reader") for at in range(3 if how == "variants" else 1)
    )
    asked = c.Variants(specs, ("small", "right", "handy")) if specs[1:] else c.Helper(specs[0], "Reads")
    assert asker.asks("h", "asking", asked) is None
    tree.settle()
    tree.root.prunes(*(spec.agent_id for spec in specs), completed_only=False)
    tree.settle()
    assert "the helper was stopped" in str(asker.told("h"))
    assert len(asker.owes()) == 1
    tree.check()


def test_helper_that_is_interrupted_has_not_completed() -> None:
    tree = a_tree()
    helper = a_helper(tree)
    helper.begin()
    helper.interrupt()
    helper.stopped()
    tree.settle()
    ended = tree.root.seen[-1].one("sub_agent_tool_call_end")
    assert (ended["outcome"], ended["result"]) == ("cancelled", {"Err": "the helper was stopped"})
    assert tree.root.told("h") == "the helper was stopped"


@pytest.mark.parametrize("elapsed_ms", [0, 7, 999, 1_000, 61_234])
def test_end_of_a_helper_says_how_long_it_worked(elapsed_ms: int) -> None:
    tree = a_tree()
    helper = a_helper(tree)
    tree.now_ms += elapsed_ms
    answers(helper, "it says no")
    tree.settle()
    told = tree.root.seen[-1].one("sub_agent_tool_call_end")["duration"]
    assert told["secs"] * 1_000 + told["nanos"] / 1_000_000 == elapsed_ms
