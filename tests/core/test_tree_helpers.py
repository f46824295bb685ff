"""`spawn_subagent`: a helper that only reads, what is told of it meanwhile, and its end."""

from __future__ import annotations

from typing import Any

from orchestrator.core import commands as c
from orchestrator.protocol.codec import event_msg
from orchestrator.protocol.events import SubAgentToolCallBegin, SubAgentToolCallEnd
from tests.core.grove import Agent, Grove, answers


def a_grove() -> Grove:
    grove = Grove()
    grove.root.say("do it", "u1")
    return grove


def a_helper(grove: Grove, call_id: str = "h") -> Agent:
    """The root asks a helper, which has begun."""
    number = grove.next_id()
    asked = c.Helper(grove.making(number, "read it", label="reader"), "Reads")
    assert grove.root.asks(call_id, "spawn_subagent", asked) is None
    grove.settle()
    return grove.agents[number]


def told_of(grove: Grove, call_id: str, name: str) -> list[Any]:
    """Values under a name in the events about a helper's call."""
    told = [fact.message for fact in grove.log if fact.message.get("call_id") == call_id]
    return [message[name] for message in told if name in message]


def test_helpers_answer_is_the_calls_output() -> None:
    grove = a_grove()
    helper = a_helper(grove)
    begun = grove.root.seen[-1]
    assert begun.types[-2:] == ["sub_agent_tool_call_begin", "sub_agent_tool_call_activity"]
    assert begun.one("sub_agent_tool_call_activity")["activity"] == "starting"
    assert helper.state.settings.approval_policy == "never"
    assert helper.state.settings.sandbox_policy == {"mode": "read-only"}
    assert "cannot make agents" in helper.asks("s", "subagent_spawn", grove.spawn(grove.next_id(), "x"))
    answers(helper, "it says no")
    grove.settle()
    assert grove.root.told("h") == {"label": "reader", "response": "it says no"}
    ended = grove.root.seen[-1].one("sub_agent_tool_call_end")
    assert ended["result"] == {"Ok": "it says no"}
    assert (ended["tokens"], ended["outcome"]) == (240, "completed")
    assert ended["invocation"] == {"description": "Reads", "label": "reader", "prompt": "read it"}
    assert told_of(grove, "h", "tokens") == [120, 240]
    grove.check()


def test_helper_is_idle_once_its_answer_is_given() -> None:
    grove = a_grove()
    helper = a_helper(grove)
    answers(helper, "it says no")
    grove.settle()
    known = grove.registry().agents[helper.id]
    assert known.status == "idle", "ready would promise a result that nobody can read"
    told = [fact.message["status"] for fact in grove.log if fact.message.get("event") == "status"]
    assert told[-2:] == ["ready", "idle"]
    grove.check()


def test_whoever_waits_for_a_helper_sees_what_it_is_at() -> None:
    grove = a_grove()
    helper = a_helper(grove)
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
    assert told_of(grove, "h", "activity") == [*seen, "thinking", "writes: it says no and more"]


def test_helpers_of_one_response_work_side_by_side() -> None:
    grove = a_grove()
    grove.root.begin()
    grove.root.calls("h1", "h2", name="spawn_subagent")
    grove.root.ends()
    for call_id in ("h1", "h2"):
        grove.root.assessed(call_id, c.Helper(grove.making(grove.next_id(), "read", label=call_id), "Reads"))
    grove.settle()
    answers(grove.agents[2], "second")
    grove.settle()
    assert grove.root.told("h1") is None
    assert grove.root.told("h2") == {"label": "h2", "response": "second"}
    answers(grove.agents[1], "first")
    grove.settle()
    assert grove.root.told("h1") == {"label": "h1", "response": "first"}
    grove.check()


def test_helper_that_fails_says_so_in_the_calls_output() -> None:
    grove = a_grove()
    helper = a_helper(grove)
    helper.begin()
    helper.breaks("fatal", "no such model")
    grove.settle()
    assert grove.root.told("h") == "the helper failed: no such model"
    ended = grove.root.seen[-1].one("sub_agent_tool_call_end")
    assert (ended["outcome"], "tokens" in ended) == ("failed", False)


def test_helper_ends_with_the_call_that_waited_for_it() -> None:
    grove = a_grove()
    helper = a_helper(grove)
    helper.asks_for("c1")
    helper.runs("c1", "sleep", "60")
    ended = grove.root.interrupt().one("sub_agent_tool_call_end")
    assert (ended["outcome"], list(ended["result"])) == ("cancelled", ["Err"])
    grove.settle()
    helper.stopped(c1=1.0)
    grove.settle()
    assert (helper.standing, grove.counter("slots")) == ("canceled", 0)
    grove.check()


def test_inbox_of_who_asked_a_helper_is_told_empty_when_the_answer_is_taken() -> None:
    grove = a_grove()
    child = grove.root.spawns()
    grove.settle()
    child.asks("h", "spawn_subagent", c.Helper(grove.making(grove.next_id(), "read it"), "Reads"))
    grove.settle()
    answers(grove.agents[2], "it says no")
    grove.settle()
    assert child.told("h") == {"label": "", "response": "it says no"}
    assert [fact.depths[child.sid] for fact in grove.log if child.sid in fact.depths][-2:] == [(1, 0), (0, 0)]
    grove.check()


def test_clients_can_read_of_a_helper_that_has_no_label() -> None:
    grove = a_grove()
    grove.root.asks("h", "spawn_subagent", c.Helper(grove.making(grove.next_id(), "read it"), "Reads"))
    begun = grove.root.seen[-1].one("sub_agent_tool_call_begin")
    grove.settle()
    answers(grove.agents[1], "it says no")
    grove.settle()
    ended = grove.root.seen[-1].one("sub_agent_tool_call_end")
    for message in (begun, ended):
        parsed = event_msg(dict(message))
        assert isinstance(parsed, SubAgentToolCallBegin | SubAgentToolCallEnd)
        assert parsed.invocation.label == ""
