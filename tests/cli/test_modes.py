"""Switches, personalities and modes of a session in whole processes: a client, a worker, a scripted model."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cli.machine import Machine, says
from tests.cli.test_mcp import Client, proto, requests

pytestmark = pytest.mark.realredis

SEARCH = {"type": "web_search_call", "id": "ws_1", "status": "completed"}


PROPOSED = "Intro\n<proposed_plan>\n- a\n- b\n</proposed_plan>\nOutro"
PLAN = {"type": "Plan", "id": "t1-plan", "text": "- a\n- b"}
TURN = {
    "approval_policy": "never",
    "sandbox_policy": {"mode": "danger-full-access"},
    "model": "gpt-5",
    "summary": "auto",
}


def mode(kind: str) -> dict[str, Any]:
    settings = {"model": "gpt-5", "reasoning_effort": None, "developer_instructions": None}
    return {"mode": kind, "settings": settings}


def turn(client: Client, machine: Machine, id: str, **fields: Any) -> list[dict[str, Any]]:
    """The messages of one user turn, to its end."""
    items = [{"type": "text", "text": id}]
    before = len(client.seen)
    client.send(id, type="user_turn", items=items, cwd=str(machine.folder), **TURN, **fields)
    client.until("task_complete")
    return [event["msg"] for event in client.seen[before:]]


def kinds(messages: list[dict[str, Any]], *some: str) -> list[str]:
    return [message["type"] for message in messages if message["type"] in some]


def developer(request: dict[str, Any], tag: str) -> list[str]:
    """The developer messages about one thing."""
    texts = ["".join(part["text"] for part in item["content"]) for item in body(request)["input"]
             if item.get("role") == "developer"]  # fmt: skip
    return [text for text in texts if text.startswith(f"<{tag}>")]


def body(request: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = request.get("body", request)
    return found


def offered(request: dict[str, Any]) -> dict[str, str]:
    """The offered tools, each with its type."""
    return {tool.get("name", tool["type"]): tool["type"] for tool in body(request)["tools"]}


def test_a_search_of_the_provider_is_told_under_its_own_id(machine: Machine) -> None:
    search = {"item": {**SEARCH, "action": {"type": "search", "query": "q"}}}
    with machine.model({"items": [search, {"text": "found"}]}) as user:
        with proto(user, "-c", "tools.web_search=true") as client:
            client.say("look it up")
            client.until("task_complete")
        told = [event["msg"] for event in client.all("web_search_begin", "web_search_end")]
        assert told[0] == {"type": "web_search_begin", "call_id": "ws_1"}
        assert (told[1]["call_id"], told[1]["query"], len(told)) == ("ws_1", "q", 2)
        assert "web_search" in offered(requests(user)[0])


def test_a_person_switches_tools_off_and_on(machine: Machine) -> None:
    words = ("-c", "tools.view_image=false", "-c", "tools.apply_patch_freeform=true")
    with machine.model(says("done")) as user:
        with proto(user, *words) as client:
            client.say("go")
            client.until("task_complete")
        found = offered(requests(user)[0])
    assert "view_image" not in found
    assert "web_search" not in found
    assert found["apply_patch"] == "custom"


def test_a_model_is_told_of_a_personality_once_until_it_changes(machine: Machine) -> None:
    with machine.model(*[says("ok")] * 5) as user:
        with proto(user) as client:
            for id, personality in (("t1", "friendly"), ("t2", "friendly"), ("t3", "pragmatic")):
                turn(client, machine, id, personality=personality)
            client.send("c1", type="compact")
            client.until("task_complete")
            turn(client, machine, "t4")
            client.send("bad", type="override_turn_context", personality="grumpy")
            told = client.until("error")
        asked = requests(user)
    counts = [len(developer(request, "personality")) for request in asked]
    assert (counts[1], counts[2], counts[4]) == (1, 2, 1)
    assert "pragmatic" in developer(asked[4], "personality")[0]
    words = "op.personality: input should be 'none', 'friendly' or 'pragmatic'"
    assert (told["id"], told["msg"]["message"]) == ("bad", words)


def test_a_plan_is_shown_while_it_is_written_and_kept_when_it_is_done(machine: Machine) -> None:
    with machine.model(says(PROPOSED), says(PROPOSED)) as user:
        with proto(user) as client:
            seen = turn(client, machine, "t1", collaboration_mode=mode("plan"))
            session = client.all("session_configured")[0]["msg"]["session_id"]
            after = turn(client, machine, "t2", collaboration_mode=mode("code"))
        with proto(user, front=("--resume", session)) as client:
            initial = client.until("session_configured")["msg"]["initial_messages"]
        asked = requests(user)
    place = {"thread_id": session, "turn_id": "t1"}
    began, done = (message for message in seen if message["type"] in ("item_started", "item_completed"))
    assert began == {"type": "item_started", **place, "item": {**PLAN, "text": ""}}
    assert done == {"type": "item_completed", **place, "item": PLAN}
    pieces = [message for message in seen if message["type"] == "plan_delta"]
    assert "".join(message["delta"] for message in pieces) == "- a\n- b\n"
    assert {(message["thread_id"], message["turn_id"], message["item_id"]) for message in pieces} == {
        (session, "t1", "t1-plan")
    }
    for kind in ("agent_message_delta", "agent_message_content_delta"):
        assert "".join(m["delta"] for m in seen if m["type"] == kind) == "Intro\nOutro"
    assert [m["message"] for m in seen if m["type"] == "agent_message"] == ["Intro\nOutro"]
    assert seen[-1]["last_agent_message"] == "Intro\nOutro"
    assert [m["message"] for m in after if m["type"] == "agent_message"] == [PROPOSED]
    assert kinds(after, "item_started", "plan_delta", "item_completed", "agent_message_content_delta") == []
    assert kinds(initial, "item_completed", "item_started", "plan_delta") == ["item_completed"]
    assert len(developer(asked[0], "collaboration_mode")) == 1
    assert "apply_patch" not in offered(asked[0])
    assert "apply_patch" in offered(asked[1])


def test_proposed_plan_is_read_in_the_log_and_by_whoever_is_attached(machine: Machine) -> None:
    with machine.model(says(PROPOSED), says(PROPOSED)) as user, proto(user) as client:
        turn(client, machine, "t1", collaboration_mode=mode("plan"))
        [session] = user.session_ids()
        told = user.run("logs", session).stdout
        assert "the agent proposes a plan:\n  - a\n  - b\n" in told
        with user.terminal("attach", session) as person:
            person.wait_for("attached|agent")
            turn(client, machine, "t2", collaboration_mode=mode("plan"))
            person.wait_for("the agent proposes a plan:")
            person.wait_for("- b")


def test_nothing_is_written_in_plan_mode(machine: Machine) -> None:
    patch = "*** Begin Patch\n*** Add File: new.txt\n+one\n*** End Patch"
    calls = [
        {"call": "apply_patch", "args": {"input": patch}},
        {"call": "shell", "args": {"command": ["apply_patch", patch]}},
        {"call": "shell", "args": {"command": ["touch", "new.txt"]}},
        {"call": "update_plan", "args": {"plan": [{"step": "a", "status": "pending"}]}},
    ]
    with machine.model({"items": calls}, says("planned")) as user:
        with proto(user) as client:
            seen = turn(client, machine, "t1", collaboration_mode=mode("plan"))
        outputs = [item["output"] for item in body(requests(user)[-1])["input"]
                   if item["type"] == "function_call_output"]  # fmt: skip
    assert outputs[:2] == ["apply_patch is not allowed in Plan mode"] * 2
    assert "Read-only file system" in outputs[2] or "Permission denied" in outputs[2]
    assert outputs[3] == "update_plan is a TODO/checklist tool and is not allowed in Plan mode"
    assert kinds(seen, "plan_update", "patch_apply_begin") == []
    assert not (machine.folder / "new.txt").exists()


def test_a_plan_without_its_closing_tag_ends_with_the_message(machine: Machine) -> None:
    with machine.model(says("<proposed_plan>\n- a\n- b")) as user, proto(user) as client:
        seen = turn(client, machine, "t1", collaboration_mode=mode("plan"))
    assert [m["item"] for m in seen if m["type"] == "item_completed"] == [PLAN]
    assert kinds(seen, "agent_message") == []
    assert seen[-1]["last_agent_message"] is None


def test_a_plan_whose_stream_breaks_is_begun_again_and_completed_once(machine: Machine) -> None:
    broken = {"items": [{"text": PROPOSED}], "drop_after": 4}
    with machine.model(broken, says(PROPOSED)) as user, proto(user) as client:
        seen = turn(client, machine, "t1", collaboration_mode=mode("plan"))
    shown = kinds(seen, "item_started", "stream_error", "item_completed")
    assert shown == ["item_started", "stream_error", "item_started", "item_completed"]


def test_every_item_that_begins_is_completed_once_where_all_are_told(machine: Machine) -> None:
    thinking = {"items": [{"reasoning": "**Hm** let me see"}, {"text": "hello there"}]}
    broken = {**thinking, "drop_after": 4}
    with machine.model(broken, thinking) as user, proto(user, "-c", "item_events=all") as client:
        seen = turn(client, machine, "t1")
    cut = kinds(seen, "item_started", "item_completed", "stream_error").index("stream_error")
    told = [m for m in seen if m["type"] in ("item_started", "item_completed", "stream_error")]
    assert [m["item"]["type"] for m in told[:cut]] == ["UserMessage", "UserMessage", "Reasoning"]
    begun = [m["item"]["id"] for m in told[cut + 1 :] if m["type"] == "item_started"]
    done = [m["item"] for m in told[cut + 1 :] if m["type"] == "item_completed"]
    assert begun == [item["id"] for item in done]
    assert [item["type"] for item in done] == ["Reasoning", "AgentMessage"]
    assert done[0]["summary_text"] == ["**Hm** let me see"]
    assert done[1]["content"] == [{"type": "Text", "text": "hello there"}]
    pieces = [m for m in seen if m["type"] == "agent_message_content_delta"]
    assert "".join(m["delta"] for m in pieces) == "hello there"
    assert {m["item_id"] for m in pieces} == {done[1]["id"]}
    assert "reasoning_content_delta" in {m["type"] for m in seen}


def modes_of(asked: list[dict[str, Any]]) -> list[bool]:
    """Of each request, whether patches are offered: plan mode has none."""
    return ["apply_patch" in offered(request) for request in asked]


def test_command_line_chooses_the_mode_from_here_on(machine: Machine) -> None:
    with machine.model(says(PROPOSED), says("still"), says("now")) as user:
        assert "the agent proposes a plan:" in user.run("run", "--mode", "plan", "how?").stdout
        [session] = user.session_ids()
        user.run("run", "--resume", session, "and?")
        user.run("run", "--resume", session, "--mode", "code", "--model", "gpt-5-mini", "do it")
        asked = requests(user)
    assert modes_of(asked) == [False, False, True]
    assert [body(request)["model"] for request in asked] == ["gpt-5", "gpt-5", "gpt-5-mini"]


def test_conversation_begins_in_the_mode_of_the_command_line(machine: Machine) -> None:
    with machine.model(says(PROPOSED)) as user, user.terminal("run", "--mode", "plan", "how?") as person:
        person.wait_for("the agent proposes a plan:")
        assert modes_of(requests(user)) == [False]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--mode", "custom"], "--mode 'custom': one of plan, code, pair_programming, execute is expected"),
        (["--mode", "code", "--plan"], "--plan is a task of its own"),
    ],
)
def test_mode_that_nobody_can_mean_is_refused_before_anything_begins(
    machine: Machine, words: list[str], told: str
) -> None:
    refused = machine.run("run", *words, "go")
    assert refused.returncode == 2
    assert told in refused.stderr
    assert machine.session_ids() == []
