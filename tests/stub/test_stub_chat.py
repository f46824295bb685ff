"""The stub as a server of chat completions: the same scripts, another form."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from orchestrator.stub import Scenario, StubConfig, behaviour, running
from orchestrator.stub.answers import translated
from orchestrator.tools.subagents import role_of
from tests.servers import plain_http

Json = dict[str, Any]


async def posted(steps: list[Json], body: Json, path: str = "/chat/completions") -> httpx.Response:
    """The answer to one request; the root of a `base_url` ends with the version."""
    async with running(StubConfig(Scenario.parse(steps))) as stub, plain_http() as http:
        return await http.post(stub.base_url + path, json=body)


def chunks(answer: httpx.Response) -> list[Any]:
    lines = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


def deltas(answer: httpx.Response) -> list[Json]:
    return [
        choice["delta"]
        for chunk in chunks(answer)
        if chunk != "[DONE]"
        for choice in chunk.get("choices", [])
    ]


async def test_stub_streams_an_answer_in_chunks_and_names_itself() -> None:
    answer = await posted(
        [{"items": [{"text": "hi"}, {"call": "shell", "args": {"command": ["ls"]}, "call_id": "c"}]}], {}
    )
    assert answer.headers["content-type"].startswith("text/event-stream")
    begun = {"index": 0, "id": "c", "type": "function", "function": {"name": "shell", "arguments": ""}}
    assert deltas(answer) == [
        {"role": "assistant", "content": ""},
        {"content": ""},
        {"content": "h"},
        {"content": "i"},
        {"tool_calls": [begun]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"command": ["ls"]}'}}]},
        {},
    ]
    *said, cost, end = chunks(answer)
    assert {chunk["model"] for chunk in said} == {"stub:scenario"}
    assert {chunk["id"] for chunk in said} == {cost["id"]}
    assert said[-1]["choices"][0]["finish_reason"] == "tool_calls"
    assert (cost["choices"], cost["usage"]["total_tokens"]) == ([], 120)
    assert end == "[DONE]"


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        ({"items": [{"text": "a"}]}, "stop"),
        ({"items": [{"call": "shell"}]}, "tool_calls"),
        ({"incomplete": {"reason": "max_output_tokens"}}, "length"),
        ({"incomplete": {"reason": "content_filter"}}, "content_filter"),
    ],
)
async def test_stub_says_why_a_response_ends(step: Json, reason: str) -> None:
    answer = await posted([step], {})
    reasons = [choice["finish_reason"] for chunk in chunks(answer)[:-1] for choice in chunk["choices"]]
    assert [each for each in reasons if each] == [reason]


async def test_stub_reports_a_failed_response_as_an_error_in_the_stream() -> None:
    answer = await posted([{"failed": {"code": "c", "message": "m"}}], {})
    assert {"error": {"code": "c", "message": "m"}} in chunks(answer)


async def test_stub_leaves_out_what_chat_completions_have_no_word_for() -> None:
    search = {"item": {"type": "web_search_call", "id": "w"}}
    answer = await posted([{"items": [search, {"text": "x"}], "end_turn": False}], {})
    assert deltas(answer) == [{"role": "assistant", "content": ""}, {"content": ""}, {"content": "x"}, {}]


async def test_both_formats_share_the_steps_of_a_session() -> None:
    steps = [{"items": [{"text": "one"}]}, {"items": [{"text": "two"}]}]
    async with running(StubConfig(Scenario.parse(steps))) as stub, plain_http() as http:
        headers = {"session_id": "s"}
        for path, word in (("/responses", '"one"'), ("/chat/completions", '"w"')):
            answer = await http.post(stub.base_url + path, json={}, headers=headers)
            assert word in answer.text
        shown = (await http.get(stub.base_url.removesuffix("/v1") + "/requests")).json()
    assert [entry["session"] for entry in shown] == ["s", "s"]


async def test_stub_shows_a_request_as_it_came() -> None:
    body = {"messages": [{"role": "user", "content": "hi"}]}
    async with running(StubConfig(behaviour("echo"))) as stub, plain_http() as http:
        root = stub.base_url.removesuffix("/v1")
        answer = await http.post(f"{root}/chat/completions", json=body)
        shown = (await http.get(f"{root}/requests")).json()
    assert "".join(delta.get("content", "") for delta in deltas(answer)) == "hi"
    assert shown[0]["body"] == body


async def test_stub_warns_of_a_tool_that_the_functions_do_not_offer() -> None:
    warnings: list[str] = []
    config = StubConfig(Scenario.parse([{"items": [{"call": "shel"}]}]), warn=warnings.append)
    tools = [{"type": "function", "function": {"name": "shell"}}]
    async with running(config) as stub, plain_http() as http:
        await http.post(f"{stub.base_url}/chat/completions", json={"tools": tools})
    assert warnings == ["the scenario calls `shel`, which this request does not offer: it offers shell"]


async def test_scenario_knows_an_agent_by_a_later_message_of_the_system() -> None:
    steps = [{"items": [{"text": "x"}]}]
    script = {"steps": [], "agents": [{"agent": 3, "steps": steps}]}
    body = {
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "system", "content": role_of(3, "best", "Read.")},
            {"role": "user", "content": "go"},
        ]
    }
    async with running(StubConfig(Scenario.parse(script))) as stub, plain_http() as http:
        answer = await http.post(f"{stub.base_url}/chat/completions", json=body)
    assert answer.status_code == 200


def test_messages_are_read_as_the_items_that_they_stand_for() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "shell", "arguments": "{}"}}
    image = {"type": "image_url", "image_url": {"url": "data:x"}}
    read = translated(
        {
            "model": "m",
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": [{"type": "text", "text": "see"}, image]},
                {"role": "assistant", "content": "ok", "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "done"}]},
                {"role": "system", "content": "later"},
                {"role": "assistant", "content": None},
            ],
            "tools": [{"type": "function", "function": {"name": "shell", "parameters": {}}}],
        }
    )
    assert read["instructions"] == "Be brief."
    assert read["tools"] == [{"type": "function", "name": "shell", "parameters": {}}]
    assert read["input"] == [
        {
            "type": "message",
            "role": "user",
            "content": [
                {"type": "input_text", "text": "see"},
                {"type": "input_image", "image_url": "data:x"},
            ],
        },
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "ok"}]},
        {"type": "function_call", "name": "shell", "arguments": "{}", "call_id": "c"},
        {"type": "function_call_output", "call_id": "c", "output": "done"},
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "later"}]},
    ]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"messages": "hi"}, "`messages` must be an array, not a string"),
        ({"messages": [7]}, "`messages[0]` must be an object, not a number"),
        ({"messages": [{"role": 7}]}, "`messages[0].role` must be a string, not a number"),
        ({"messages": [{"content": 7}]}, "`messages[0].content` must be a string or an array"),
        ({"messages": [{"content": [7]}]}, "`messages[0].content[0]` must be an object"),
        ({"messages": [{"content": [{"image_url": "x"}]}]}, "`messages[0].content[0].image_url` must be an"),
        ({"messages": [{"tool_call_id": []}]}, "`messages[0].tool_call_id` must be a string"),
        ({"messages": [{"tool_calls": {}}]}, "`messages[0].tool_calls` must be an array"),
        ({"messages": [{"tool_calls": [7]}]}, "`messages[0].tool_calls[0]` must be an object"),
        ({"messages": [{"tool_calls": [{}]}]}, "`messages[0].tool_calls[0].function` must be an object, not"),
        (
            {"messages": [{"tool_calls": [{"function": {"arguments": {}}}]}]},
            "`messages[0].tool_calls[0].function.arguments` must be a string",
        ),
        ({"tools": 7}, "`tools` must be an array"),
        ({"tools": [{"type": "function", "name": "shell"}]}, "`tools[0].function` must be an object"),
    ],
)
@pytest.mark.parametrize("name", ["instant", "tree"])
async def test_stub_refuses_a_field_of_another_type_and_names_it(name: str, body: Json, says: str) -> None:
    async with running(StubConfig(behaviour(name))) as stub, plain_http() as http:
        answer = await http.post(f"{stub.base_url}/chat/completions", json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (400, "invalid_request")
    assert error["message"].startswith(says)
