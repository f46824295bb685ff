"""The client over real HTTP with a provider of chat completions: the same patience, errors and limits."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from orchestrator.config_keys import Secret
from orchestrator.core.frozen import replace
from orchestrator.model.connections import redacted
from orchestrator.model.model_client import HttpBudget, ModelClient
from orchestrator.model.prompt import Completed, Created, ItemDone, ModelEvent, TextDelta
from orchestrator.model.provider_errors import (
    FatalKind,
    FatalModelError,
    ModelError,
    RateLimited,
    RetryableModelError,
)
from orchestrator.stub import behaviour
from orchestrator.tools.shell import LOCAL_SHELL
from tests.model.chat_chunks import COST, CUSTOM, DONE, STOP, UNPAID, USAGE, calling, chunk, line, part
from tests.model.stubbed_client import API_KEY, connected, prompt, provider, raw_server
from tests.model.test_broken_streams import HEAD
from tests.model.test_broken_streams import chunk as transfer

OK = {"items": [{"text": "recovered"}]}
CHAT: dict[str, Any] = {"wire_api": "chat"}


def texts(events: list[ModelEvent]) -> str:
    return "".join(event.delta for event in events if isinstance(event, TextDelta))


async def asked(sent: bytes, ends: bool = True, **options: Any) -> list[ModelEvent]:
    """All events of a response of these bytes; without `ends` the server then falls silent."""
    reply = HEAD + transfer(sent) + (b"0\r\n\r\n" if ends else b"")
    async with (
        raw_server(reply) as server,
        ModelClient(provider(server.url, wire_api="chat", **options)) as client,
    ):
        return [event async for event in client.stream(prompt(), HttpBudget(0))]


def ended(events: list[ModelEvent]) -> Completed:
    """The end of a response, without what the connection tells of its server."""
    last = events[-1]
    assert isinstance(last, Completed)
    return replace(last, served=None)


async def test_client_tells_which_machines_served_a_chat_completion() -> None:
    told = {"model": "qwen3-32b", "system_fingerprint": "fp_1"}
    # The last chunks of many servers do not repeat it.
    last = (await asked(line(chunk({"content": "a"}) | told) + line(STOP) + DONE))[-1]
    assert isinstance(last, Completed)
    assert last.served is not None
    assert (last.served.model, last.served.fingerprint) == ("qwen3-32b", "fp_1")


async def test_client_hands_out_what_the_stub_says_over_chat_completions() -> None:
    step = {
        "items": [
            {"reasoning": "hm"},
            {"text": "Hello there."},
            {"call": "shell", "args": {"command": ["ls"]}, "call_id": "c1"},
            {"custom_call": "apply_patch", "input": "*** Begin", "call_id": "c2"},
            {"item": {"type": "local_shell_call", "id": "c3", "action": {"type": "exec", "command": ["ls"]}}},
            {"item": {"type": "web_search_call", "id": "w", "action": {"type": "search", "query": "q"}}},
        ],
        "usage": {"input": 1200, "cached": 200, "output": 30, "reasoning": 10},
    }
    async with connected([step], **CHAT) as peer:
        stream = peer.client.stream(prompt(tools=[CUSTOM, LOCAL_SHELL]), HttpBudget(0))
        events = [event async for event in stream]
    items = [event.item for event in events if isinstance(event, ItemDone)]
    assert [item["type"] for item in items] == [
        "reasoning",
        "message",
        "function_call",
        "custom_tool_call",
        "local_shell_call",
    ]
    assert [item.get("call_id") for item in items[2:]] == ["c1", "c2", "c3"]
    assert (items[2]["arguments"], items[3]["input"]) == ('{"command": ["ls"]}', "*** Begin")
    assert items[4]["action"] == {"type": "exec", "command": ["ls"]}
    assert texts(events) == "Hello there."
    created, done = events[0], events[-1]
    assert isinstance(created, Created)
    assert isinstance(done, Completed)
    assert created.response_id == done.response_id
    assert done.response_id.startswith("chatcmpl-")
    assert done.usage == COST


async def test_client_passes_over_http_failures_in_silence_with_growing_naps() -> None:
    async with connected([{"status": 500}, {"status": 503}, {"status": 429}, OK], **CHAT) as peer:
        assert texts(await peer.ask()) == "recovered"
    assert peer.naps == [0.2, 0.4, 0.8]


async def test_client_sits_out_a_short_retry_after_and_hands_a_long_one_to_a_timer() -> None:
    short = {"status": 429, "headers": {"Retry-After": "2"}}
    long = {"status": 429, "headers": {"Retry-After": "30"}}
    async with connected([short, OK, long], **CHAT) as peer:
        await peer.ask()
        assert peer.naps == [2.0]
        with pytest.raises(RateLimited) as limited:
            await peer.ask()
    assert not limited.value.served


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"error": {"code": "invalid_api_key", "message": f"{API_KEY} is refused"}}, "[redacted] is refused"),
        ({"error": f"{API_KEY} is refused"}, "[redacted] is refused"),
        ({"object": "error", "message": f"{API_KEY} is refused", "code": 401}, "[redacted] is refused"),
        ([{"error": {"code": 401, "message": f"{API_KEY} is refused"}}], "[redacted] is refused"),
    ],
)
async def test_client_gives_up_at_once_on_a_refusal_and_tells_no_key(body: Any, told: str) -> None:
    async with connected([{"status": 401, "body": body}], **CHAT) as peer:
        with pytest.raises(FatalModelError) as fatal:
            await peer.ask()
    assert fatal.value.kind is FatalKind.UNAUTHORIZED
    assert told in fatal.value.message
    assert API_KEY not in f"{fatal.value!r} {fatal.value}"
    assert peer.naps == []


@pytest.mark.parametrize(
    ("failed", "error"),
    [
        ({"code": "server_error", "message": f"key {API_KEY}"}, RetryableModelError),
        ({"code": "rate_limit_exceeded", "message": "try again in 60s"}, RateLimited),
        ({"code": "context_length_exceeded", "message": "too long"}, FatalModelError),
    ],
)
async def test_client_raises_what_a_failed_response_stands_for(
    failed: dict[str, str], error: type[ModelError]
) -> None:
    async with connected(
        [{"items": [{"text": "a"}], "failed": failed, "usage": {"input": 7}}], **CHAT
    ) as peer:
        with pytest.raises(error) as raised:
            await peer.ask()
    assert API_KEY not in str(raised.value)
    assert (raised.value.usage or {}).get("input_tokens") == 7


async def test_error_tells_no_key_that_the_request_was_sent_with_before_another_came() -> None:
    failed = {"code": "server_error", "message": f"key {API_KEY}"}
    async with connected([{"items": [{"text": "a"}], "failed": failed}], **CHAT) as peer:
        with pytest.raises(RetryableModelError) as raised:
            async for _ in peer.client.stream(prompt(), HttpBudget(4)):
                peer.client.use_key(Secret("sk-of-tomorrow"))
    assert "key [redacted]" in raised.value.message


async def test_client_raises_an_incomplete_response_as_worth_a_retry() -> None:
    step = {"items": [{"text": "a"}], "incomplete": {"reason": "max_output_tokens"}}
    async with connected([step], **CHAT) as peer:
        with pytest.raises(RetryableModelError, match=r"left the response incomplete \(length\)"):
            await peer.ask()


@pytest.mark.parametrize("events", range(6))
async def test_client_raises_when_the_stream_is_cut_before_its_finish_reason(events: int) -> None:
    async with connected([{"items": [{"text": "partial text"}], "drop_after": events}], **CHAT) as peer:
        with pytest.raises(RetryableModelError, match="stream disconnected before completion"):
            await peer.ask()


async def test_client_takes_a_response_that_is_cut_behind_its_finish_reason() -> None:
    async with connected([{"items": [{"text": "whole text"}], "drop_after": 6}], **CHAT) as peer:
        events = await peer.ask()
    assert texts(events) == "whole text"
    assert isinstance(events[-1], Completed)
    assert events[-1].usage is None


async def test_client_takes_a_stream_without_its_last_line() -> None:
    events = await asked(line(chunk({"content": "a"})) + line(STOP | {"usage": USAGE}))
    assert ended(events) == Completed("chatcmpl-1", COST, None)


async def test_client_takes_the_last_line_without_a_finish_reason_for_cut() -> None:
    with pytest.raises(RetryableModelError, match="without its finish_reason"):
        await asked(line(chunk({"content": "a"})) + DONE)
    with pytest.raises(RetryableModelError, match="ended early"):
        await asked(line(chunk({"content": "a"})))


async def test_client_does_not_wait_out_a_server_that_says_nothing_behind_its_finish_reason() -> None:
    said = line(chunk({"content": "a"})) + line(STOP)
    assert ended(await asked(said, ends=False, stream_idle_timeout_s=0.5)) == UNPAID
    with pytest.raises(RetryableModelError, match=r"no event within 0\.5 s"):
        await asked(line(chunk({"content": "a"})), ends=False, stream_idle_timeout_s=0.5)


async def test_client_waits_for_the_last_figures_no_longer_than_for_a_few_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def keep_pinging(writer: asyncio.StreamWriter) -> None:
        while True:
            writer.write(transfer(line({"type": "ping"})))
            await writer.drain()
            await asyncio.sleep(0.005)

    monkeypatch.setattr("orchestrator.model.model_client._LAST_FIGURES_S", 0.05)
    async with (
        raw_server(HEAD + transfer(line(STOP)), keep_pinging) as server,
        ModelClient(provider(server.url, wire_api="chat")) as client,
        asyncio.timeout(20),
    ):
        events = [event async for event in client.stream(prompt(), HttpBudget(0))]
    assert ended(events) == UNPAID


async def test_comments_end_no_silence() -> None:
    async def keep_talking(writer: asyncio.StreamWriter) -> None:
        while True:
            writer.write(transfer(b": still at it\n\n"))
            await writer.drain()
            await asyncio.sleep(0.005)

    async with raw_server(HEAD, keep_talking) as server:
        table = provider(server.url, wire_api="chat", stream_idle_timeout_s=0.2)
        async with ModelClient(table) as client:
            with pytest.raises(RetryableModelError, match="no event within"):
                [event async for event in client.stream(prompt(), HttpBudget(0))]


async def test_a_response_that_does_not_end_is_cut_at_its_bound_and_not_paid_for_again() -> None:
    endless = line(calling(part(0, "a", "shell", "x" * 60_000))) * 20
    with pytest.raises(FatalModelError, match=r"more than 1,048,576 bytes.*max_response_bytes") as raised:
        await asked(endless, ends=False, max_response_bytes=1 << 20)
    assert raised.value.kind is FatalKind.RESPONSE_TOO_LARGE


async def test_client_sends_the_key_and_the_session_and_nothing_of_the_other_format() -> None:
    seen: list[bytes] = []

    async def read_head(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.readuntil(b"\r\n\r\n"))
        writer.close()

    server = await asyncio.start_server(read_head, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1/"
    table = provider(url, query_params={"api-version": "1"}, api_key=API_KEY, wire_api="chat")
    async with server, ModelClient(table) as client:
        with pytest.raises(RetryableModelError):
            [event async for event in client.stream(prompt("s-9"), HttpBudget(0))]
    request, *head = seen[0].decode().split("\r\n")
    assert request == "POST /v1/chat/completions?api-version=1 HTTP/1.1"
    assert {f"Authorization: Bearer {API_KEY}", "session_id: s-9", "Accept: text/event-stream"} <= set(head)
    assert not [each for each in head if each.startswith("OpenAI-Beta")]


async def test_client_refuses_a_prompt_that_json_cannot_carry() -> None:
    call = {"type": "custom_tool_call", "name": "p", "input": "\ud800", "call_id": "c"}
    async with connected([OK], **CHAT) as peer:
        for said in ({"text": "\ud800"}, {"input": [call]}):
            with pytest.raises(FatalModelError) as fatal:
                [event async for event in peer.client.stream(prompt(**said), HttpBudget(0))]
            assert fatal.value.kind is FatalKind.INVALID_PROMPT


async def test_a_behaviour_goes_on_from_the_outputs_that_chat_messages_carry() -> None:
    history: list[dict[str, Any]] = [{"type": "message", "role": "user", "content": "go"}]
    async with connected(behaviour("shell:2"), **CHAT) as peer:
        for number in (1, 2):
            stream = peer.client.stream(prompt(input=history), HttpBudget(0))
            (call,) = [event.item async for event in stream if isinstance(event, ItemDone)]
            output = {"type": "function_call_output", "call_id": call["call_id"], "output": f"{number}"}
            history += [call, output]
        stream = peer.client.stream(prompt(input=history), HttpBudget(0))
        assert texts([event async for event in stream]) == "Ran 2 commands."


@pytest.mark.parametrize(("key", "told"), [("x", "a proxy with x"), ("xyz1", "a proxy with [redacted]")])
def test_key_of_a_letter_is_not_looked_for_in_every_text(key: str, told: str) -> None:
    assert redacted(provider("http://h/v1", api_key=key), f"a proxy with {key}") == told
