"""The stub as its users meet it: scenario files, built-in behaviours, HTTP routes, pace."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from orchestrator.model.model_client import HttpBudget
from orchestrator.model.prompt import Completed, Created, ItemDone, ModelEvent, TextDelta
from orchestrator.model.provider_errors import FatalModelError
from orchestrator.stub import (
    CannotListen,
    Pace,
    RunningStub,
    Scenario,
    ScenarioError,
    StubConfig,
    UnknownBehaviour,
    behaviour,
    running,
    serve,
)
from orchestrator.stub.server import RequestJournal, halves, thirds
from orchestrator.tools.subagents import role_of
from tests.model.stubbed_client import Connected, connected, prompt
from tests.servers import plain_http


def said(events: list[ModelEvent]) -> str:
    return "".join(event.delta for event in events if isinstance(event, TextDelta))


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("Hello there.", ["Hell", "o th", "ere."]),
        ("Second.", ["Sec", "ond", "."]),
        ("ok", ["o", "k"]),
        ("x", ["x"]),
        ("", []),
        ("partial text to drop", ["partial", " text t", "o drop"]),
    ],
)
def test_stub_cuts_a_message_as_the_recordings_do(text: str, parts: list[str]) -> None:
    assert thirds(text) == parts


def test_stub_cuts_reasoning_as_the_recordings_do() -> None:
    assert halves("**Thinking** hard") == ["**Thinki", "ng** hard"]
    assert halves("x") == ["x"]


async def test_scenario_counts_for_each_session_and_ends_with_a_clear_refusal() -> None:
    async with connected([{"items": [{"text": "one"}]}, {"items": [{"text": "two"}]}]) as peer:
        assert said(await peer.ask(session="a")) == "one"
        assert said(await peer.ask(session="b")) == "one"
        assert said(await peer.ask(session="a")) == "two"
        with pytest.raises(FatalModelError, match="has 2 steps; this is request 3"):
            await peer.ask(session="a")


async def test_scenario_can_share_its_steps_and_repeat_the_last() -> None:
    steps = [{"items": [{"text": "one"}]}, {"items": [{"text": "two"}]}]
    script = Scenario.parse({"steps": steps, "per_session": False, "after_end": "repeat_last"})
    async with connected(script) as peer:
        assert [said(await peer.ask(session=name)) for name in "abcd"] == ["one", "two", "two", "two"]
    nothing = Scenario.parse({"steps": [], "after_end": "repeat_last"})
    async with connected(nothing) as peer:
        with pytest.raises(FatalModelError, match="has 0 steps; this is request 1"):
            await peer.ask()


async def test_sessions_that_share_their_steps_share_those_of_their_part_alone() -> None:
    file = parts_of({"prompt": "first"})._file
    async with connected(Scenario(replace(file, per_session=False))) as peer:
        asked = [("a", "first"), ("b", "other"), ("c", "first"), ("d", "other")]
        answers = [said(await peer.ask(session=name, text=text)) for name, text in asked]
    assert answers == ["a 1", "others 1", "a 2", "others 2"]


def an_agent(number: int, label: str, task: str) -> list[dict[str, Any]]:
    """The conversation that an agent's first request carries."""
    part = role_of(number, label, "Read.")
    return [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": part}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": task}]},
    ]


def parts_of(*parts: dict[str, Any]) -> Scenario:
    """A scenario whose every part says its name, twice."""
    steps = [[{"items": [{"text": f"{name} {n}"}]} for n in (1, 2)] for name in ("others", *"abcd")]
    agents = [{**part, "steps": said} for part, said in zip(parts, steps[1:], strict=False)]
    return Scenario.parse({"steps": steps[0], "agents": agents})


@pytest.mark.parametrize(
    ("part", "fits"),
    [
        ({"agent": 3}, True),
        ({"agent": 2}, False),
        ({"label": 'the "best"'}, True),
        ({"label": "best"}, False),
        ({"prompt": "tests"}, True),
        ({"prompt": "docs"}, False),
        ({"agent": 3, "prompt": "docs"}, False),
        ({}, True),
    ],
)
async def test_scenario_has_parts_for_agents(part: dict[str, Any], fits: bool) -> None:
    asked = an_agent(3, 'the "best"', "Count the tests.")
    async with connected(parts_of(part)) as peer:
        stream = peer.client.stream(prompt(input=asked), HttpBudget(0))
        assert said([event async for event in stream]) == ("a 1" if fits else "others 1")


async def test_scenario_knows_a_fork_by_its_own_part_not_by_the_one_that_it_inherits() -> None:
    inherited = an_agent(1, "parent", "Divide this.")
    async with connected(parts_of({"agent": 1}, {"agent": 2})) as peer:
        stream = peer.client.stream(prompt(input=inherited + an_agent(2, "", "Go on.")), HttpBudget(0))
        assert said([event async for event in stream]) == "b 1"


async def test_scenario_keeps_a_part_for_its_session_whatever_is_said_later() -> None:
    async with connected(parts_of({"agent": 0, "prompt": "first"})) as peer:
        assert said(await peer.ask(session="s", text="the first task")) == "a 1"
        assert said(await peer.ask(session="s", text="something else")) == "a 2"
        assert said(await peer.ask(session="t", text="something else")) == "others 1"
        with pytest.raises(FatalModelError, match="part 1 of the scenario has 2 steps; this is request 3"):
            await peer.ask(session="s")


async def test_scenario_reports_its_default_usage_and_generates_call_ids() -> None:
    async with connected([{"items": [{"call": "shell", "args": {"command": ["ls"]}}] * 2}]) as peer:
        *_, completed = events = await peer.ask()
    assert isinstance(completed, Completed)
    assert completed.usage is not None
    assert (completed.usage["input_tokens"], completed.usage["output_tokens"]) == (100, 20)
    calls = [event.item for event in events if isinstance(event, ItemDone)]
    assert len({call["call_id"] for call in calls}) == 2
    assert calls[0]["arguments"] == '{"command": ["ls"]}'


@pytest.mark.parametrize(
    ("wire", "place"),
    [
        ([{"itms": []}], r"steps\.0\.itms"),
        ([{"items": [{"text": "a"}]}, {"items": [{"call": 3}]}], r"steps\.1\.items\.0"),
        ([{"items": [{"cal": "x"}]}], r"steps\.0\.items\.0: an item is one of call, .*this one has cal$"),
        ([{"items": [{}]}], r"steps\.0\.items\.0: an item is one of .* nothing$"),
        ([{"items": [{"text": 3}]}], r"steps\.0\.items\.0\.Text\.text: "),
        ({"steps": [], "after_end": "explode"}, "after_end"),
        ({"steps": [], "agents": [{"agent": "one", "steps": []}]}, r"agents\.0\.agent"),
        ([{"drop_after": "soon"}], r"steps\.0\.drop_after"),
        ([{"drop_after": -1}], r"steps\.0\.drop_after"),
        ([{"hang": -1}], r"steps\.0\.hang"),
        ([{"delay_ms": -1}], r"steps\.0\.delay_ms"),
        ([{}, {"status": 1000}], r"steps\.1\.status"),
        ([{"status": 429, "headers": {"retry-after": "界"}}], r"steps\.0\.headers\.retry-after"),
        ([{"headers": {"a\r\nb": "1"}}], r"steps\.0\.headers"),
        ([{"usage": {"output": -1}}], r"steps\.0\.usage\.output"),
        ("text", "dict"),
    ],
)
def test_scenario_names_the_place_of_a_mistake(wire: Any, place: str) -> None:
    with pytest.raises(ScenarioError, match=place):
        Scenario.parse(wire)


def test_scenario_file_that_is_missing_or_broken_is_named(tmp_path: Path) -> None:
    broken = tmp_path / "model.json"
    broken.write_text("[{", encoding="utf-8")
    for path in (broken, tmp_path / "missing.json"):
        with pytest.raises(ScenarioError, match=path.name):
            Scenario.read(path)


async def test_echo_answers_the_last_words_of_the_user_not_their_context() -> None:
    context = {"role": "user", "content": "<environment_context>\n</environment_context>"}
    message = {"role": "user", "content": [{"type": "input_text", "text": "are you there?"}]}
    async with connected(behaviour("echo")) as peer:
        stream = peer.client.stream(prompt(input=[message, context]), HttpBudget(0))
        assert said([event async for event in stream]) == "are you there?"


async def test_shell_behaviour_asks_for_n_commands_and_then_speaks() -> None:
    history: list[dict[str, Any]] = [{"type": "message", "role": "user", "content": "go"}]
    async with connected(behaviour("shell:3")) as peer:
        for number in (1, 2, 3):
            call = await _only_item(peer, history)
            assert json.loads(call["arguments"])["command"] == ["bash", "-c", f"echo {number} of 3"]
            history += [
                call,
                {"type": "function_call_output", "call_id": call["call_id"], "output": f"{number}"},
            ]
        last = await _only_item(peer, history)
    assert last["content"][0]["text"] == "Ran 3 commands."
    assert len({item["call_id"] for item in history if "name" in item}) == 3


def tool(name: str) -> dict[str, Any]:
    return {"type": "function", "name": name, "parameters": {}}


async def test_stub_warns_once_of_each_tool_that_a_request_does_not_offer() -> None:
    calls = [{"call": "shel"}, {"call": "shell"}, {"item": {"type": "function_call", "name": "pach"}}]
    script = Scenario.parse({"steps": [{"items": [*calls, {"text": "x"}]}], "after_end": "repeat_last"})
    warnings: list[str] = []
    body = {"tools": [tool("shell"), tool("apply_patch"), {"type": "local_shell"}]}
    async with running(StubConfig(script, warn=warnings.append)) as stub, plain_http() as client:
        for _ in range(2):
            answer = await client.post(f"{stub.base_url}/responses", json=body)
            assert answer.text.count('"name":"shel"') == 2, "it is sent all the same"
    assert warnings == [
        f"the scenario calls `{name}`, which this request does not offer: it offers apply_patch, shell"
        for name in ("shel", "pach")
    ]


async def test_stub_says_nothing_of_calls_in_a_step_that_refuses_the_request() -> None:
    script = Scenario.parse([{"items": [{"call": "shel"}], "status": 500}])
    warnings: list[str] = []
    async with running(StubConfig(script, warn=warnings.append)) as stub, plain_http() as client:
        assert (await client.post(f"{stub.base_url}/responses", json={})).status_code == 500
    assert warnings == []


async def test_behaviour_that_has_no_tool_to_call_is_named_in_the_warning() -> None:
    warnings: list[str] = []
    config = StubConfig(behaviour("shell:1"), warn=warnings.append)
    async with running(config) as stub, plain_http() as client:
        await client.post(f"{stub.base_url}/responses", json={"tools": [{"type": "local_shell"}]})
    (warning,) = warnings
    assert warning.startswith("the behaviour shell:1 calls `shell`, which this request does not offer: ")
    assert warning.endswith("it offers no tool with a name")


async def test_behaviour_answers_a_repeated_request_alike() -> None:
    async with connected(behaviour("shell:2")) as peer:
        assert await peer.ask() == await peer.ask()


async def _only_item(peer: Connected, history: list[dict[str, Any]]) -> dict[str, Any]:
    stream = peer.client.stream(prompt(input=history), HttpBudget(0))
    (item,) = [event.item async for event in stream if isinstance(event, ItemDone)]
    return item


@pytest.mark.parametrize("name", ["gpt-5", "shell:", "shell:-1", "shell:x", "shell"])
def test_unknown_behaviour_is_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(UnknownBehaviour, match="echo, survey, tree, instant or shell:N"):
        behaviour(name)


async def test_stub_names_itself_as_the_model_and_estimates_usage_from_bytes() -> None:
    async with running(StubConfig(behaviour("instant"))) as stub, plain_http() as http:
        answer = await http.post(f"{stub.base_url}/responses", json={"input": []})
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: ")]
    assert {event["response"]["model"] for event in events if "response" in event} == {"stub:instant"}
    assert events[-1]["response"]["usage"]["input_tokens"] == len(answer.request.content) // 4


async def test_stub_shows_the_requests_that_it_received() -> None:
    async with connected(behaviour("instant")) as peer, plain_http() as http:
        await peer.ask(session="a", text="first")
        await peer.ask(session="b")
        root = peer.stub.base_url.removesuffix("/v1")
        everything = (await http.get(f"{root}/requests")).json()
        of_a = (await http.get(f"{root}/requests", params={"session": "a"})).json()
        health = (await http.get(f"{root}/health")).json()
    assert [entry["session"] for entry in everything] == ["a", "b"]
    assert [entry["outcome"] for entry in of_a] == ["answered"]
    assert of_a[0]["body"]["input"][0]["content"][0]["text"] == "first"
    assert health == {"ok": True, "model": "stub:instant", "received": 2}


async def test_stub_refuses_a_body_that_is_no_object() -> None:
    async with running(StubConfig(behaviour("instant"))) as stub, plain_http() as http:
        for body in (b"{", b"[]", b"\xff"):
            assert (await http.post(f"{stub.base_url}/responses", content=body)).status_code == 400


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"tools": 7}, "`tools` must be an array, not a number"),
        ({"tools": {"name": "shell"}}, "`tools` must be an array, not an object"),
        ({"tools": ["shell"]}, "`tools[0]` must be an object, not a string"),
        ({"tools": [{"name": ["shell"]}]}, "`tools[0].name` must be a string, not an array"),
        ({"input": True}, "`input` must be a string or an array, not a boolean"),
        ({"input": [7]}, "`input[0]` must be an object, not a number"),
        ({"input": [{"type": {}}]}, "`input[0].type` must be a string, not an object"),
        ({"input": [{"type": "function_call_output", "call_id": []}]}, "`input[0].call_id` must be a string"),
        ({"input": [{"role": "user", "content": 7}]}, "`input[0].content` must be a string or an array"),
        ({"input": [{"role": "user", "content": [{"text": None}]}]}, "`input[0].content[0].text` must be a"),
        ({"input": [{"output": [1]}]}, "`input[0].output[0]` must be an object"),
    ],
)
@pytest.mark.parametrize("name", ["instant", "tree"])
async def test_stub_refuses_a_field_of_another_type_and_names_it(
    name: str, body: dict[str, Any], says: str
) -> None:
    async with running(StubConfig(behaviour(name))) as stub, plain_http() as http:
        answer = await http.post(f"{stub.base_url}/responses", json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (400, "invalid_request")
    assert error["message"].startswith(says)


@pytest.mark.parametrize("body", [{}, {"tools": None, "input": None}, {"input": "hello"}])
async def test_stub_answers_a_request_without_tools_or_items(body: dict[str, Any]) -> None:
    async with running(StubConfig(behaviour("instant"))) as stub, plain_http() as http:
        assert (await http.post(f"{stub.base_url}/responses", json=body)).status_code == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.1", "example.com"])
async def test_stub_listens_on_loopback_only(host: str) -> None:
    with pytest.raises(CannotListen, match="loopback only"):
        async with running(StubConfig(behaviour("instant"), host=host)):
            pytest.fail("it listened")


async def test_port_that_is_taken_is_refused_with_the_way_to_another() -> None:
    async with running(StubConfig(behaviour("instant"))) as stub:
        port = int(stub.base_url.removesuffix("/v1").rpartition(":")[2])
        with pytest.raises(CannotListen, match=rf"127\.0\.0\.1:{port}: .*give another port, or 0"):
            async with running(StubConfig(behaviour("instant"), port=port)):
                pytest.fail("it listened")


async def test_stub_streams_at_its_pace_so_that_the_first_words_come_before_the_last() -> None:
    config = StubConfig(behaviour("instant"), pace=Pace(think_ms=1, delta_delay_ms=60_000))
    async with running(config) as stub, plain_http() as http:
        async with http.stream("POST", f"{stub.base_url}/responses", json={"input": []}) as answer:
            first = await anext(answer.aiter_text())
            assert "response.created" in first
            assert "delta" not in first
        await stub.journal.until(lambda journal: [e.outcome for e in journal.exchanges()] == ["left"])


async def test_client_sees_a_response_begin_while_the_stub_still_speaks() -> None:
    async with connected([{"items": [{"text": "slow"}], "delta_delay_ms": 60_000}]) as peer:
        stream = cast(AsyncGenerator[ModelEvent, None], peer.client.stream(prompt(), HttpBudget(0)))
        assert isinstance(await anext(stream), Created)
        assert [exchange.outcome for exchange in peer.stub.journal.exchanges()] == ["open"]
        await stream.aclose()


async def test_response_that_is_held_ends_when_it_is_released() -> None:
    async with connected([{"items": [{"text": "held"}], "hold_tail": "go", "tail_delay_ms": 1}]) as peer:
        stream = cast(AsyncGenerator[ModelEvent, None], peer.client.stream(prompt(), HttpBudget(0)))
        while not isinstance(await anext(stream), ItemDone):
            pass
        assert [exchange.outcome for exchange in peer.stub.journal.exchanges()] == ["open"]
        async with plain_http() as http:
            await http.post(peer.stub.base_url.removesuffix("/v1") + "/release/go")
        assert [isinstance(event, Completed) async for event in stream] == [True]


async def test_response_ends_at_once_whose_name_was_released_before_it_came() -> None:
    async with (
        connected([{"items": [{"text": "held"}], "hold_tail": "go"}] * 2) as peer,
        plain_http() as http,
    ):
        await http.post(peer.stub.base_url.removesuffix("/v1") + "/release/go")
        for _ in range(2):
            assert said(await peer.ask()) == "held"


@pytest.mark.parametrize("path", ["/responses", "/chat/completions"])
@pytest.mark.parametrize("events", [0, 1, 3])
async def test_connection_is_cut_after_so_many_events_and_not_before(path: str, events: int) -> None:
    script = Scenario.parse([{"items": [{"text": "one"}], "drop_after": events, "headers": {"x-left": "3"}}])
    async with running(StubConfig(script)) as stub, plain_http() as http:
        got = bytearray()
        with pytest.raises(httpx.RemoteProtocolError):
            async with http.stream("POST", stub.base_url + path, json={"input": []}) as answer:
                assert answer.headers["x-left"] == "3"
                async for chunk in answer.aiter_raw():
                    got += chunk
        assert got.count(b"data: ") == events
        assert [exchange.outcome for exchange in stub.journal.exchanges()] == ["cut"]


@pytest.mark.parametrize("path", ["/responses", "/chat/completions"])
@pytest.mark.parametrize("given", [{}, {"usage": {"input": 7}}])
@pytest.mark.parametrize(
    "end", [{"failed": {"code": "c", "message": "m"}}, {"incomplete": {"reason": "max_output_tokens"}}]
)
async def test_response_that_does_not_complete_reports_what_it_cost_where_its_step_says_so(
    path: str, given: dict[str, Any], end: dict[str, Any]
) -> None:
    async with running(StubConfig(Scenario.parse([{**given, **end}]))) as stub, plain_http() as http:
        answer = await http.post(stub.base_url + path, json={"input": []})
    told = re.findall(r'"(?:input|prompt)_tokens":(\d+)', answer.text)
    assert told == ["7"] * len(given)


async def test_client_that_leaves_a_held_response_is_seen_to_leave() -> None:
    async with connected([{"items": [{"text": "held"}], "hold_tail": "never"}]) as peer:
        stream = cast(AsyncGenerator[ModelEvent, None], peer.client.stream(prompt(), HttpBudget(0)))
        while not isinstance(await anext(stream), ItemDone):
            pass
        await stream.aclose()
        await peer.stub.journal.until(lambda journal: [e.outcome for e in journal.exchanges()] == ["left"])


async def test_stub_that_has_answered_everybody_ends_without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.stub.server._LAST_WORDS_S", 3_600.0)
    async with plain_http() as http:
        async with asyncio.timeout(60), running(StubConfig(behaviour("instant"))) as stub:
            assert (await http.post(f"{stub.base_url}/responses", json={"input": []})).status_code == 200
        with pytest.raises(httpx.ConnectError):
            await http.get(f"{stub.base_url}/models")


async def test_served_stub_stops_when_its_task_is_cancelled() -> None:
    ready: asyncio.Future[RunningStub] = asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(serve(StubConfig(behaviour("instant")), ready.set_result))
    stub = await ready
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving
    async with plain_http() as http:
        with pytest.raises(httpx.ConnectError):
            await http.get(stub.base_url)


def test_journal_forgets_the_oldest_when_it_is_full() -> None:
    journal = RequestJournal(max_entries=3, max_bytes=100)
    for number in range(5):
        journal.open(f"s{number}", b"x" * 10)
    assert [exchange.session for exchange in journal.exchanges()] == ["s2", "s3", "s4"]
    journal.open("large", b"x" * 85)
    assert [exchange.session for exchange in journal.exchanges()] == ["s4", "large"]
    journal.open("larger than all", b"x" * 101)
    assert [exchange.session for exchange in journal.exchanges()][-1] == "larger than all"
    assert journal.received == 7
