"""Calls about other agents as items of a turn."""

from __future__ import annotations

from orchestrator.views.event import Event
from orchestrator.views.turns import turn_records as r
from tests.views.turns.told import (
    begun,
    items,
    told,
)


def call(name: str, arguments: str, id: str = "a1") -> Event:
    item = {"type": "function_call", "name": name, "arguments": arguments, "call_id": id}
    return told("raw_response_item", item=item)


def output(text: str, id: str = "a1") -> Event:
    return told("raw_response_item", item={"type": "function_call_output", "call_id": id, "output": text})


def test_spawned_agent_is_named_by_its_session() -> None:
    made = output('{"session_id":"child","agent_id":2,"status":"queued","model":"m"}')
    (item,) = items([begun(), call("subagent_spawn", '{"prompt":"do"}'), made])
    assert item == r.CollabToolCall(
        r.ItemId("a1"),
        r.CollabTool.SPAWN,
        "s",
        ("child",),
        "do",
        "m",
        states={"child": r.CollabState(r.CollabStatus.PENDING_INIT)},
        status=r.ItemStatus.COMPLETED,
    )


def test_await_shows_the_agents_that_answered_with_their_last_words() -> None:
    ready = (
        '{"ready":[{"session_id":"x","completion_status":"completed",'
        '"completion":{"Completed":{"last_message":"fin"}},"messages":[]},'
        '{"session_id":"y","completion_status":null,"lifecycle_status":"running",'
        '"messages":[{"prompt":"half"}],"completion":null}]}'
    )
    (item,) = items([begun(), call("subagent_await", "{}"), output(ready)])
    assert isinstance(item, r.CollabToolCall)
    assert item.states == {
        "x": r.CollabState(r.CollabStatus.COMPLETED, "fin"),
        "y": r.CollabState(r.CollabStatus.RUNNING, "half"),
    }


def test_agent_that_is_told_more_or_closed_stands_there_with_its_answer_of_this_turn() -> None:
    def after_waiting(*names: str) -> list[tuple[str, str | None]]:
        ready = (
            '{"ready":[{"session_id":"x","completion_status":"completed",'
            '"completion":{"Completed":{"last_message":"fin"}}}]}'
        )
        log = [begun(), call("subagent_await", "{}", "w"), output(ready, "w")]
        for id, name in enumerate(names):
            told_now = output('{"session_id":"x","status":"running"}', str(id))
            log += [call(name, '{"prompt":"more"}', str(id)), told_now]
        found = items(log)[1:]
        return [(each.states["x"].status, each.states["x"].message) for each in found]  # type: ignore[union-attr]

    send, close = "subagent_send_message", "subagent_cancel"
    assert after_waiting(send, send) == [("completed", "fin"), ("running", None)]
    assert after_waiting(close) == [("running", "fin")]


def test_refused_call_about_agents_is_failed_and_names_nobody() -> None:
    (item,) = items([begun(), call("subagent_cancel", "not json"), output("no such agent")])
    assert isinstance(item, r.CollabToolCall)
    assert (item.tool, item.status, item.receivers) == (r.CollabTool.CLOSE, "failed", ())


def test_message_that_interrupts_is_a_call_of_its_own_kind() -> None:
    asked = call("subagent_send_message", '{"prompt":"stop","interrupt":true}')
    (item,) = items([begun(), asked, output('{"session_id":"x","status":"running"}')])
    assert isinstance(item, r.CollabToolCall)
    assert (item.tool, item.prompt, item.receivers) == (r.CollabTool.INTERRUPT, "stop", ("x",))


def test_logs_of_agents_are_a_tool_of_the_program() -> None:
    (item,) = items([begun(), call("subagent_logs", '{"agent_id":2}'), output('{"events":[]}')])
    assert isinstance(item, r.DynamicToolCall)
    assert (item.namespace, item.tool, item.arguments, item.success) == (
        "dendro",
        "subagent_logs",
        {"agent_id": 2},
        True,
    )


def test_other_items_of_the_conversation_are_told_by_their_own_events() -> None:
    assert items([begun(), call("shell", "{}"), output("x")]) == []
