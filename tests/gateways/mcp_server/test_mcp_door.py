"""A client of the official SDK runs sessions: turns, progress, requests, cancels, its end."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import mcp.types as sdk
import pytest
from mcp import MCPError

from orchestrator.core.ids import SessionId
from orchestrator.gateways import mcp_server as door_module
from orchestrator.model.provider_errors import FatalKind, FatalModelError
from tests.gateways.mcp_server.at_door import LINE, AtDoor, at_door, words
from tests.runtime.connections import Gate
from tests.runtime.harness import Harness
from tests.runtime.players import calls, ends, message


def decides(decision: str) -> Any:
    return lambda params: sdk.ElicitResult(action="accept", content={"decision": decision})


async def test_client_finds_four_tools_whose_arguments_are_bounded(harness: Harness) -> None:
    async with at_door(harness, worker=False) as client:
        tools = {tool.name: tool for tool in (await client.session.list_tools()).tools}
    assert set(tools) == {"run", "reply", "threads", "tree"}
    run = tools["run"].input_schema
    assert run["required"] == ["prompt"]
    assert set(run["properties"]) == {"prompt", "cwd", "model", "sandbox", "approval_policy", "config"}
    assert run["properties"]["prompt"]["maxLength"] == 1 << 20
    assert tools["run"].output_schema is not None
    assert tools["run"].output_schema["required"] == ["threadId", "turnId", "status"]
    assert tools["threads"].annotations is not None
    assert tools["threads"].annotations.read_only_hint is True


async def test_client_runs_a_session_hears_how_it_goes_and_goes_on_with_it(harness: Harness) -> None:
    harness.models.will(
        [calls("c1"), ends()], [message("It is done."), ends()], [message("And again."), ends()]
    )
    async with at_door(harness, policy="never") as client:
        first = await client.call("run", prompt="do it")
        assert (first.is_error, words(first)) == (False, "It is done.")
        turn = first.structured_content
        assert turn is not None
        assert turn["status"] == "completed"
        assert client.progress == ["$ true", "It is done."]
        second = await client.call("reply", thread_id=turn["threadId"], prompt="again")
        again = second.structured_content
        assert again is not None
        assert words(second) == "And again."
        assert again["threadId"] == turn["threadId"]
        assert again["turnId"] != turn["turnId"]
        threads = (await client.call("threads")).structured_content
        assert threads is not None
        assert [each["threadId"] for each in threads["threads"]] == [turn["threadId"]]
        tree = (await client.call("tree", thread_id=turn["threadId"])).structured_content
        assert tree is not None
        (root,) = tree["agents"]
        assert (root["agentId"], root["last"]) == (0, "And again.")
    ids = [each["id"] for each in await harness.facts(turn["threadId"], "task")]
    assert ids == [turn["turnId"], again["turnId"]]


async def test_turn_that_fails_is_an_error_with_its_words(harness: Harness) -> None:
    harness.models.will([FatalModelError(FatalKind.BAD_REQUEST, "no such model", "bad_request")])
    async with at_door(harness) as client:
        failed = await client.call("run", prompt="go")
    assert failed.is_error
    assert failed.structured_content is not None
    assert failed.structured_content["status"] == "failed"
    assert "no such model" in words(failed)


@pytest.mark.parametrize(
    ("answer", "runs"),
    [
        (decides("approved"), 1),
        (decides("denied"), 0),
        (lambda params: sdk.ElicitResult(action="decline"), 0),
    ],
)
async def test_person_before_the_client_decides_about_a_command(
    harness: Harness, answer: Any, runs: int
) -> None:
    harness.models.will([calls("c1", ask=True), ends()], [message("so be it"), ends()])
    async with at_door(harness, answer) as client:
        done = await client.call("run", prompt="go")
        (form,) = client.asked
    assert words(done) == "so be it"
    assert harness.tools.started["c1"] == runs
    where, command = form.message.removeprefix("Allow this command?\n\n").split("\n\n")[:2]
    assert where.startswith("OUTSIDE THE SANDBOX, in /tmp: the session has full access")
    assert command == "true"
    assert set(form.requested_schema["properties"]["decision"]["enum"]) == {
        "approved",
        "approved_for_session",
        "denied",
        "abort",
    }


async def test_person_is_asked_again_after_an_answer_that_is_none(harness: Harness) -> None:
    harness.models.will([calls("c1", ask=True), ends()])
    answers = iter(["perhaps", "approved"])
    async with at_door(harness, lambda params: decides(next(answers))(params)) as client:
        await client.call("run", prompt="go")
        first, second = client.asked
    assert second.message.startswith("decision: one of approved")
    assert second.message.endswith(first.message)
    assert harness.tools.started["c1"] == 1


async def test_request_of_a_client_that_cannot_ask_waits_in_the_fleets_queue(harness: Harness) -> None:
    harness.models.will([calls("c1", ask=True), ends()], [message("thanks"), ends()])
    async with at_door(harness) as client:
        running = asyncio.create_task(client.call("run", prompt="go"))
        await client.until_told("dendro approvals lists 0:c1")
        (waiting,) = await harness.broker.requests.approvals()
        await harness.approve(waiting.session, "c1")
        assert words(await running) == "thanks"


async def test_form_that_was_closed_leaves_its_request_open(harness: Harness) -> None:
    harness.models.will([calls("c1", ask=True), ends()])
    async with at_door(harness, lambda params: sdk.ElicitResult(action="cancel")) as client:
        running = asyncio.create_task(client.call("run", prompt="go"))
        await client.until_told("waits for a person")
        assert len(await harness.broker.requests.approvals()) == 1
        await harness.approve(await client.running_session(), "c1")
        await running


async def test_form_is_taken_back_when_somebody_else_answers_first(harness: Harness) -> None:
    harness.models.will([calls("c1", ask=True), ends()], [message("thanks"), ends()])
    shown, taken_back = asyncio.Event(), asyncio.Event()

    async def waits(params: object) -> sdk.ElicitResult:
        shown.set()
        try:
            await asyncio.Event().wait()
        finally:
            taken_back.set()
        raise AssertionError

    async with at_door(harness, waits) as client:
        running = asyncio.create_task(client.call("run", prompt="go"))
        await shown.wait()
        await harness.approve(await client.running_session(), "c1")
        await taken_back.wait()
        assert words(await running) == "thanks"
        assert not client.door._following


async def test_person_before_the_client_answers_questions(harness: Harness) -> None:
    question = {
        "id": "colour",
        "header": "Colour",
        "question": "Which?",
        "options": [{"label": "red", "description": "r"}],
    }
    harness.models.will(
        [calls("q1", "request_user_input", questions=[question]), ends()], [message("red it is"), ends()]
    )
    async with at_door(
        harness, lambda params: sdk.ElicitResult(action="accept", content={"colour": "1"})
    ) as client:
        assert words(await client.call("run", prompt="go")) == "red it is"
        (form,) = client.asked
    assert form.message == "Colour: Which?\n  1. red"
    assert '"red"' in str(harness.models.outputs()["q1"])


async def test_client_that_cancels_its_call_interrupts_the_turn_and_no_other(harness: Harness) -> None:
    gate = Gate()
    harness.models.will([message("working"), gate, ends()], [message("next"), ends()])
    async with at_door(harness) as client:
        running = asyncio.create_task(client.call("run", prompt="go"))
        await client.until_told("working")
        session = await client.running_session()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        aborted = await harness.until(session, "turn_aborted")
        assert aborted[-1].msg["reason"] == "interrupted"
        assert words(await client.call("reply", thread_id=session, prompt="go on")) == "next"


async def test_client_that_cancels_a_reply_behind_anothers_turn_leaves_that_turn_alone(
    harness: Harness,
) -> None:
    """And the reply, which waits still, is taken out of the queue: it is no turn."""
    gate = Gate()
    harness.models.will([message("first"), ends()], [message("working"), gate, message("done"), ends()])
    async with at_door(harness) as client:
        first = (await client.call("run", prompt="go")).structured_content
        assert first is not None
        session = SessionId(first["threadId"])
        theirs = await harness.say(session, "of another client")
        await harness.until(session, "task_complete")
        await harness.until(session, "agent_message")
        waits = asyncio.create_task(client.call("reply", thread_id=session, prompt="behind it"))
        await harness.until(session, "input_accepted")
        waits.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waits
        told = await harness.until(session, "error")
        assert "found" in told[-1].msg["message"]
        gate.open()
        ended = await harness.until(session, "task_complete")
        assert ended[-1].id == theirs
        harness.models.will([message("next"), ends()])
        assert words(await client.call("reply", thread_id=session, prompt="go on")) == "next"
    assert "behind it" not in str([prompt.input for prompt in harness.models.prompts])


async def test_client_that_leaves_ends_nothing(harness: Harness) -> None:
    gate = Gate()
    harness.models.will([message("working"), gate, message("done"), ends()])
    async with at_door(harness) as client:
        asyncio.get_running_loop().create_task(_ignored(client))
        await client.until_told("working")
        session = await client.running_session()
        leaving = client.serving
        await _leave(client)
        await asyncio.wait({leaving}, timeout=0.5)
        assert not leaving.done(), "its turn runs still"
        gate.open()
        assert (await harness.until(session, "task_complete"))[-1].msg["last_agent_message"] == "done"
        await leaving


async def test_server_whose_client_left_does_not_wait_for_a_person(harness: Harness) -> None:
    harness.models.will([calls("c1", ask=True), ends()])
    async with at_door(harness) as client:
        asyncio.get_running_loop().create_task(_ignored(client))
        await client.until_told("waits for a person")
        await _leave(client)
        await client.serving
    assert len(await harness.broker.requests.approvals()) == 1


async def _ignored(client: AtDoor) -> None:
    with suppress(MCPError):
        await client.call("run", prompt="go")


async def _leave(client: AtDoor) -> None:
    """The client closes its side of the connection."""
    client.end.close()
    await client.end.wait_closed()


def nested(levels: int) -> dict[str, Any]:
    return {"a": nested(levels - 1)} if levels > 1 else {}


@pytest.mark.parametrize(
    ("tool", "arguments", "told"),
    [
        ("run", {}, "prompt"),
        ("run", {"prompt": ""}, "prompt: it is empty: say what the agent is to do; run takes prompt, cwd"),
        ("run", {"prompt": " \n"}, "prompt: it is empty"),
        ("reply", {"thread_id": "ffffffff", "prompt": ""}, "prompt: it is empty"),
        ("run", {"prompt": "x", "sandbox": "none"}, "sandbox"),
        ("run", {"prompt": "x", "shell": "y"}, "run takes prompt, cwd"),
        ("run", {"prompt": "x" * ((1 << 20) + 1)}, "prompt"),
        ("run", {"prompt": "x", "config": {str(n): n for n in range(51)}}, "config"),
        ("run", {"prompt": "x", "config": nested(9)}, "config: nested deeper than 8 levels; run takes"),
        ("run", {"prompt": "x", "config": {"a": "x" * 65_536}}, "at most 65,536 bytes as JSON"),
        ("run", {"prompt": "x", "config": {"a": {"k" * 201: 1}}}, "a key has at most 200 characters"),
        ("reply", {"thread_id": "ffffffff", "prompt": "x"}, "no session 'ffffffff'"),
        ("tree", {"thread_id": "x" * 101}, "thread_id"),
        ("threads", {"limit": 101}, "limit"),
    ],
)
async def test_arguments_that_a_tool_does_not_take_are_refused_with_what_it_takes(
    harness: Harness, tool: str, arguments: dict[str, Any], told: str
) -> None:
    async with at_door(harness, worker=False) as client:
        refused = await client.session.call_tool(tool, arguments)
    assert isinstance(refused, sdk.CallToolResult)
    assert refused.is_error
    assert told in words(refused)


def test_settings_of_a_run_are_taken_up_to_each_of_their_bounds() -> None:
    for config in (
        {str(n): n for n in range(50)},
        nested(8),
        {"a": "x" * 65_528},
        {"k" * 200: {"k" * 200: 1}},
    ):
        taken = door_module.parsed("run", {"prompt": "x", "config": config})
        assert isinstance(taken, door_module.RunArguments)
        assert taken.config == config


async def test_lines_that_are_no_messages_are_answered_and_the_next_one_is_served(harness: Harness) -> None:
    async with at_door(harness, worker=False) as client:
        for line in (b"hello", b"{}", b'{"jsonrpc":"2.0"', b"\xff\xfe", b"[1]", b"x" * (LINE + 1)):
            client.end.write(line + b"\n")
        await client.end.drain()
        assert len((await client.session.list_tools()).tools) == 4


async def test_unknown_tool_is_an_error_of_the_protocol(harness: Harness) -> None:
    async with at_door(harness, worker=False) as client:
        with pytest.raises(MCPError, match="no tool 'rm'; there are run, reply"):
            await client.session.call_tool("rm", {})


async def test_client_that_begins_too_many_turns_is_told_to_wait(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door_module, "MOST_TURNS", 1)
    harness.models.will([message("working"), Gate(), ends()])
    async with at_door(harness) as client:
        running = asyncio.create_task(client.call("run", prompt="go"))
        await client.until_told("working")
        refused = await client.session.call_tool("run", {"prompt": "more"})
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert isinstance(refused, sdk.CallToolResult)
    assert "wait until one is over" in words(refused)


async def test_client_finds_no_session_of_another_namespace(harness: Harness) -> None:
    theirs = await harness.session()
    async with at_door(harness, worker=False, namespace="mine") as client:
        for tool, more in (("reply", {"prompt": "hi"}), ("tree", {})):
            refused = await client.call(tool, thread_id=theirs, **more)
            assert refused.is_error
            assert f"no session '{theirs}'" in words(refused)
        listed = (await client.call("threads")).structured_content
        assert listed == {"threads": []}
    assert not await harness.facts(theirs, "task")


async def test_reply_to_a_session_at_work_waits_behind_its_turn(harness: Harness) -> None:
    gate = Gate()
    harness.models.will([message("first"), gate, ends()], [message("second"), ends()])
    async with at_door(harness) as client:
        running = asyncio.create_task(client.call("run", prompt="go"))
        await client.until_told("first")
        session = await client.running_session()
        replying = asyncio.create_task(client.call("reply", thread_id=session, prompt="then this"))
        await harness.until(session, "input_accepted")
        gate.open()
        assert words(await running) == "first"
        assert words(await replying) == "second"
