"""The client over real HTTP: what it hands out, what it passes over, what it raises."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Any, cast

import pytest

from orchestrator.config_keys import OPENAI, Secret
from orchestrator.core.tokens import Served
from orchestrator.model.model_client import ClientPorts, HttpBudget, ModelClient
from orchestrator.model.prompt import (
    Completed,
    Created,
    ItemAdded,
    ItemDone,
    ModelEvent,
    RateLimits,
    ReasoningSectionBreak,
    ReasoningSummaryDelta,
    TextDelta,
)
from orchestrator.model.provider_errors import (
    FatalKind,
    FatalModelError,
    ModelError,
    RateLimited,
    RetryableModelError,
)
from orchestrator.stub import Scenario
from tests.model.stubbed_client import (
    API_KEY,
    Connected,
    connected,
    prompt,
    provider,
    raw_server,
    read_request,
)

OK = {"items": [{"text": "recovered"}]}


def origin_of(url: str) -> str:
    return "/".join(url.split("/")[:3])


STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
COMPLETED = b'data: {"type":"response.completed","response":{"id":"r1","usage":null}}\n\n'


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def texts(events: list[ModelEvent]) -> list[str]:
    return [event.delta for event in events if isinstance(event, TextDelta)]


async def test_client_hands_out_a_response_in_the_order_of_the_stream() -> None:
    usage = {"input": 1200, "cached": 200, "output": 30, "reasoning": 10}
    step = {"items": [{"reasoning": "**Thinking** hard"}, {"text": "Hello there."}], "usage": usage}
    async with connected([step]) as peer:
        events = await peer.ask()
    reasoning = {
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": "**Thinking** hard"}],
        "content": None,
        "encrypted_content": "ENC_1_0",
    }
    message = {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "Hello there."}],
    }
    created, done = cast(Created, events[0]), cast(Completed, events[-1])
    assert [event for event in events[1:-1] if not isinstance(event, ItemAdded)] == [
        ReasoningSectionBreak(),
        ReasoningSummaryDelta("**Thinki"),
        ReasoningSummaryDelta("ng** hard"),
        ItemDone(reasoning),
        TextDelta("Hell"),
        TextDelta("o th"),
        TextDelta("ere."),
        ItemDone(message),
    ]
    assert created.response_id == done.response_id
    assert done.usage == {
        "input_tokens": 1200,
        "cached_input_tokens": 200,
        "output_tokens": 30,
        "reasoning_output_tokens": 10,
        "total_tokens": 1230,
    }


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        (
            {"custom_call": "apply_patch", "input": "*** Begin Patch", "call_id": "p"},
            {
                "type": "custom_tool_call",
                "status": "completed",
                "name": "apply_patch",
                "input": "*** Begin Patch",
                "call_id": "p",
            },
        ),
        (
            {"item": {"type": "local_shell_call", "id": "ls_1", "status": "completed", "action": {}}},
            {"type": "local_shell_call", "status": "completed", "action": {}, "call_id": "ls_1"},
        ),
        (
            {"item": {"type": "from_the_future", "id": "x", "status": "odd", "data": [1]}},
            {"type": "from_the_future", "id": "x", "status": "odd", "data": [1]},
        ),
        (
            {"call": "shell", "args": '{"broken', "call_id": "c"},
            {"type": "function_call", "name": "shell", "arguments": '{"broken', "call_id": "c"},
        ),
    ],
)
async def test_client_keeps_items_as_rollouts_do(sent: dict[str, Any], kept: dict[str, Any]) -> None:
    async with connected([{"items": [sent]}]) as peer:
        events = await peer.ask()
    assert [event.item for event in events if isinstance(event, ItemDone)] == [kept]


async def test_client_tells_rate_limits_first_and_only_if_the_answer_has_them() -> None:
    headers = {
        "x-codex-primary-used-percent": "12.5",
        "x-codex-primary-window-minutes": "300",
        "x-codex-primary-reset-after-seconds": "90",
    }
    async with connected([OK | {"headers": headers}, OK]) as peer:
        first, *_ = await peer.ask()
        later = await peer.ask()
    window = {"used_percent": 12.5, "window_minutes": 300, "resets_in_seconds": 90}
    assert first == RateLimits({"primary": window, "secondary": None})
    assert not [event for event in later if isinstance(event, RateLimits)]


async def test_client_passes_over_http_failures_in_silence_with_growing_naps() -> None:
    async with connected([{"status": 500}, {"status": 503}, {"status": 429}, OK]) as peer:
        assert texts(await peer.ask()) == ["rec", "ove", "red"]
    assert peer.naps == [0.2, 0.4, 0.8]


async def test_client_gives_the_connection_of_a_refusal_back() -> None:
    steps = [{"status": 500}, {"status": 400}, OK | {"drop_after": 1}, OK]
    async with connected(steps, max_connections=1, stream_idle_timeout_s=5) as peer:
        with pytest.raises(FatalModelError):
            await peer.ask()
        with pytest.raises(RetryableModelError, match="the answer broke off"):
            await peer.ask()
        assert texts(await peer.ask()) == ["rec", "ove", "red"]


async def test_client_counts_http_failures_once_for_a_request_whatever_its_streams() -> None:
    steps = [{"status": 500}, OK | {"drop_after": 2}, {"status": 500}, {"status": 502}]
    budget = HttpBudget(2)
    async with connected(steps, request_max_retries=2) as peer:
        with pytest.raises(RetryableModelError, match="before completion"):
            [event async for event in peer.client.stream(prompt(), budget)]
        with pytest.raises(RetryableModelError, match="answered 502") as used_up:
            [event async for event in peer.client.stream(prompt(), budget)]
    assert budget.retries_left == 0
    assert peer.naps == [0.2, 0.4]
    assert used_up.value.codex_error_info == {"response_too_many_failed_attempts": {"http_status_code": 502}}


async def test_client_sits_out_a_short_retry_after_and_hands_a_long_one_to_a_timer() -> None:
    short = {"status": 429, "headers": {"Retry-After": "2"}}
    long = {"status": 429, "headers": {"Retry-After": "30"}}
    async with connected([short, OK, long]) as peer:
        await peer.ask()
        assert peer.naps == [2.0]
        budget = HttpBudget(4)
        with pytest.raises(RateLimited) as limited:
            [event async for event in peer.client.stream(prompt(), budget)]
    assert limited.value.retry_after_s == 30.0
    assert not limited.value.served, "it never came as far as the model, and costs nothing"
    assert (peer.naps, budget.retries_left) == ([2.0], 4)


@pytest.mark.parametrize(
    ("status", "code", "kind", "info"),
    [
        (400, "odd", FatalKind.BAD_REQUEST, "bad_request"),
        (401, "invalid_api_key", FatalKind.UNAUTHORIZED, "unauthorized"),
        (403, None, FatalKind.UNAUTHORIZED, "unauthorized"),
        (404, "model_not_found", FatalKind.NOT_FOUND, "bad_request"),
        (400, "context_length_exceeded", FatalKind.CONTEXT_LENGTH_EXCEEDED, "context_window_exceeded"),
        (429, "insufficient_quota", FatalKind.INSUFFICIENT_QUOTA, "usage_limit_exceeded"),
        (302, None, FatalKind.BAD_REQUEST, "bad_request"),
    ],
)
async def test_client_gives_up_at_once_where_a_repetition_cannot_help(
    status: int, code: str | None, kind: FatalKind, info: str
) -> None:
    body = {"error": {"code": code, "message": f"no:\n\n  {API_KEY} is refused"}}
    async with connected([{"status": status, "body": body}]) as peer:
        with pytest.raises(FatalModelError) as fatal:
            await peer.ask()
    assert (fatal.value.kind, fatal.value.codex_error_info) == (kind, info)
    assert "model provider stub" in fatal.value.message
    assert not fatal.value.served, "a refusal costs nothing"
    assert "\n" not in fatal.value.message
    assert API_KEY not in f"{fatal.value!r} {fatal.value}"
    assert peer.naps == []


KEYLESS: Any = {"api_key": None, "env_key": "MY_KEY"}


async def test_refusal_of_a_request_without_a_key_names_the_variable_that_is_not_set() -> None:
    body = {"error": {"code": "invalid_api_key", "message": "who are you?"}}
    async with connected([{"status": 401, "body": body}] * 2, **KEYLESS) as peer:
        with pytest.raises(FatalModelError, match=r"who are you\?: MY_KEY is not set where the worker runs"):
            await peer.ask()
    header: Any = {"http_headers": {"AUTHORIZATION": "Basic x"}}
    async with connected([{"status": 401, "body": body}], **KEYLESS, **header) as peer:
        with pytest.raises(FatalModelError, match="check the API key"):
            await peer.ask()


async def test_server_that_answers_nobody_without_a_key_is_not_asked_without_one() -> None:
    async with ModelClient(provider(OPENAI, **KEYLESS)) as client:
        with pytest.raises(FatalModelError, match="was not asked: MY_KEY is not set") as refused:
            [event async for event in client.stream(prompt(), HttpBudget(4))]
    assert (refused.value.kind, refused.value.served) == (FatalKind.UNAUTHORIZED, False)


@pytest.mark.parametrize("events", range(5))
async def test_client_raises_when_the_stream_is_cut_after_some_events(events: int) -> None:
    async with connected([{"items": [{"text": "partial text to drop"}], "drop_after": events}]) as peer:
        received: list[ModelEvent] = []
        with pytest.raises(RetryableModelError, match="stream disconnected before completion") as cut:
            async for event in peer.client.stream(prompt(), HttpBudget(4)):
                received += [event]
    assert len(received) == events
    assert cut.value.served, "what was cut may be billed"
    assert peer.naps == []


async def test_client_takes_a_stream_that_ends_in_order_without_completed_for_cut() -> None:
    reply = STREAM_HEAD + chunk(b'data: {"type":"response.created","response":{"id":"r"}}\n\n') + b"0\r\n\r\n"
    async with (
        raw_server(reply) as server,
        ModelClient(provider(server.url)) as client,
    ):
        with pytest.raises(RetryableModelError, match="ended early"):
            [event async for event in client.stream(prompt(), HttpBudget(0))]


@pytest.mark.parametrize(
    ("failed", "error", "delay_s"),
    [
        ({"code": "server_error", "message": "oops"}, RetryableModelError, None),
        ({"code": "rate_limit_exceeded", "message": "Please try again in 1.5s."}, RetryableModelError, 1.5),
        ({"code": "rate_limit_exceeded", "message": "try again in 250ms"}, RetryableModelError, 0.25),
        ({"code": "rate_limit_exceeded", "message": "try again in 60s"}, RateLimited, None),
        ({"code": "context_length_exceeded", "message": "too long"}, FatalModelError, None),
        ({"code": "invalid_prompt", "message": "no"}, FatalModelError, None),
        ({"code": "server_error", "message": f"key {API_KEY}"}, RetryableModelError, None),
    ],
)
async def test_client_raises_what_a_failed_response_stands_for(
    failed: dict[str, str], error: type[ModelError], delay_s: float | None
) -> None:
    async with connected([{"items": [{"text": "a"}], "failed": failed}]) as peer:
        with pytest.raises(error) as raised:
            await peer.ask()
    assert getattr(raised.value, "delay_s", None) == delay_s
    assert API_KEY not in str(raised.value)


async def test_client_raises_an_incomplete_response_as_worth_a_retry() -> None:
    async with connected([{"items": [{"text": "a"}], "incomplete": {"reason": "content_filter"}}]) as peer:
        with pytest.raises(RetryableModelError, match="content_filter"):
            await peer.ask()


@pytest.mark.parametrize(
    "end",
    [
        {"failed": {"code": "server_error", "message": "no"}},
        {"failed": {"code": "context_length_exceeded", "message": "too long"}},
        {"failed": {"code": "rate_limit_exceeded", "message": "try again in 60s"}},
        {"incomplete": {"reason": "max_output_tokens"}},
    ],
)
async def test_client_tells_what_a_response_used_that_failed(end: dict[str, Any]) -> None:
    told = {"input": 70, "cached": 30, "output": 9, "reasoning": 4}
    async with connected([{**end, "usage": told}, end]) as peer:
        with pytest.raises(ModelError) as raised:
            await peer.ask()
        with pytest.raises(ModelError) as silent:
            await peer.ask()
    assert raised.value.usage == {
        "input_tokens": 70,
        "cached_input_tokens": 30,
        "output_tokens": 9,
        "reasoning_output_tokens": 4,
        "total_tokens": 79,
    }
    assert silent.value.usage is None


@pytest.mark.parametrize("hang", [True, 1, 3])
async def test_client_does_not_wait_longer_than_the_idle_timeout(hang: bool | int) -> None:
    async with connected([OK | {"hang": hang}], stream_idle_timeout_s=0.3) as peer:
        with pytest.raises(RetryableModelError, match=r"within 0\.3 s"):
            await peer.ask()
        await peer.stub.journal.until(lambda journal: outcomes(peer) == ["left"])
    assert peer.naps == []


async def test_client_is_not_kept_waiting_by_comments() -> None:
    async def keep_commenting(writer: asyncio.StreamWriter) -> None:
        while True:
            writer.write(chunk(b": still here\n\n"))
            await writer.drain()
            await asyncio.sleep(0.005)

    provider_options: dict[str, Any] = {"stream_idle_timeout_s": 1.0}
    async with (
        raw_server(STREAM_HEAD, keep_commenting) as server,
        ModelClient(provider(server.url, **provider_options)) as client,
    ):
        with pytest.raises(RetryableModelError, match="no event within"):
            [event async for event in client.stream(prompt(), HttpBudget(0))]


async def test_slow_caller_is_no_silence_of_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    asked_again = asyncio.Event()

    async def complete(writer: asyncio.StreamWriter) -> None:
        await asked_again.wait()
        writer.write(chunk(COMPLETED) + b"0\r\n\r\n")
        await writer.drain()

    begun = STREAM_HEAD + chunk(b'data: {"type":"response.created","response":{"id":"r1"}}\n\n')
    loop, away_s = asyncio.get_running_loop(), [0.0]
    time = loop.time
    monkeypatch.setattr(loop, "time", lambda: time() + sum(away_s))
    async with (
        raw_server(begun, complete) as server,
        ModelClient(provider(server.url, stream_idle_timeout_s=10.0)) as client,
    ):
        stream = client.stream(prompt(), HttpBudget(0))
        assert isinstance(await anext(stream), Created)
        # By the loop's clock the caller comes back only now.
        away_s.append(12.0)
        asked_again.set()
        assert isinstance([event async for event in stream][-1], Completed)


async def test_closing_the_generator_closes_the_http_stream_at_once() -> None:
    async with connected([OK | {"hang": 3}]) as peer:
        stream = cast(AsyncGenerator[ModelEvent, None], peer.client.stream(prompt(), HttpBudget(0)))
        assert isinstance(await anext(stream), Created)
        await stream.aclose()
        await peer.stub.journal.until(lambda journal: outcomes(peer) == ["left"])


async def test_cancelling_the_waiting_task_closes_the_http_stream_at_once() -> None:
    async with connected([OK | {"hang": 3}]) as peer:
        begun = asyncio.Event()

        async def read() -> None:
            async for _ in peer.client.stream(prompt(), HttpBudget(0)):
                begun.set()

        reading = asyncio.create_task(read())
        await begun.wait()
        reading.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await reading
        assert reading.cancelled()
        await peer.stub.journal.until(lambda journal: outcomes(peer) == ["left"])


@pytest.mark.parametrize("leave_at_completed", [True, False])
async def test_client_uses_a_connection_again_after_a_completed_response(leave_at_completed: bool) -> None:
    reply = STREAM_HEAD + chunk(COMPLETED) + b"0\r\n\r\n"
    async with (
        raw_server(reply) as server,
        ModelClient(provider(server.url)) as client,
    ):
        for _ in range(3):
            stream = cast(AsyncGenerator[ModelEvent, None], client.stream(prompt(), HttpBudget(0)))
            assert await anext(stream) == Completed("r1", None, None, Served(origin_of(server.url)))
            if not leave_at_completed:
                assert [event async for event in stream] == []
            await stream.aclose()
    assert server.connections == 1


async def test_client_does_not_wait_for_a_server_that_never_ends_its_response() -> None:
    async def linger(writer: asyncio.StreamWriter) -> None:
        await writer.wait_closed()

    async with (
        raw_server(STREAM_HEAD + chunk(COMPLETED), linger) as server,
        ModelClient(provider(server.url)) as client,
    ):
        async with asyncio.timeout(20):
            events = [event async for event in client.stream(prompt(), HttpBudget(0))]
    assert events == [Completed("r1", None, None, Served(origin_of(server.url)))]


async def test_request_may_be_billed_whose_first_attempt_broke_off_and_whose_second_was_refused() -> None:
    replies = [b"", b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 2\r\n\r\n{}"]

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(replies.pop(0))
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    async with server, ModelClient(provider(url), ClientPorts(jitter=lambda: 0.0)) as client:
        with pytest.raises(FatalModelError) as refused:
            [event async for event in client.stream(prompt(), HttpBudget(2))]
    assert refused.value.served
    assert replies == []


async def test_client_reports_a_server_that_cannot_be_reached_when_its_budget_is_used_up() -> None:
    async with raw_server(b"") as gone:
        url = gone.url
    naps: list[float] = []

    async def nap(seconds: float) -> None:
        naps.append(seconds)

    ports = ClientPorts(sleep=nap, jitter=lambda: 1.1)
    async with ModelClient(provider(url, "gone", request_max_retries=2), ports) as client:
        with pytest.raises(RetryableModelError, match=f"gone cannot be reached at {url}") as gave_up:
            [event async for event in client.stream(prompt(), HttpBudget(2))]
    assert not gave_up.value.served
    assert naps == pytest.approx([0.22, 0.44])


@pytest.mark.parametrize(
    "reply",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
        b"HTTP/1.1 500 Oh\r\nContent-Length: 1000\r\n\r\ncut",
        STREAM_HEAD + b"not a chunk size\r\n",
        STREAM_HEAD + chunk(b"event: response.output_item.done\ndata: {\n\n"),
        STREAM_HEAD + chunk(b"event: response.output_item.done\ndata: []\n\n"),
        STREAM_HEAD + chunk(b"event: response.completed\ndata: {}\n\n"),
    ],
)
async def test_client_maps_every_broken_answer_to_its_own_errors(reply: bytes) -> None:
    async def hang_up(writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with (
        raw_server(reply, hang_up) as server,
        ModelClient(provider(server.url)) as client,
    ):
        with pytest.raises(RetryableModelError, match="model provider raw"):
            [event async for event in client.stream(prompt(), HttpBudget(0))]


async def test_client_passes_over_events_that_nobody_uses() -> None:
    noise = b"data: [DONE]\n\nevent: response.in_progress\ndata: {nope\n\n"
    noise += b'data: {"type":"new.thing"}\n\ndata: {}\n\n'
    reply = STREAM_HEAD + chunk(noise + COMPLETED) + b"0\r\n\r\n"
    async with (
        raw_server(reply) as server,
        ModelClient(provider(server.url)) as client,
    ):
        assert [event async for event in client.stream(prompt(), HttpBudget(0))] == [
            Completed("r1", None, None, Served(origin_of(server.url)))
        ]


async def test_client_refuses_a_prompt_that_json_cannot_carry() -> None:
    async with connected([OK]) as peer:
        with pytest.raises(FatalModelError) as fatal:
            await peer.ask(text="\ud800")
    assert fatal.value.kind is FatalKind.INVALID_PROMPT


async def test_client_tells_who_has_served_a_response() -> None:
    ended = b'data: {"type":"response.completed","response":{"id":"r1","model":"gpt-5-2026-08-07"}}\n\n'
    head = STREAM_HEAD.replace(b"\r\n\r\n", b"\r\nX-Request-Id: req_7\r\n\r\n")
    async with (
        raw_server(head + chunk(ended) + b"0\r\n\r\n") as server,
        ModelClient(provider(server.url)) as client,
    ):
        told = [event async for event in client.stream(prompt(), HttpBudget(0))]
    assert told == [Completed("r1", None, None, Served(origin_of(server.url), "gpt-5-2026-08-07", "req_7"))]


@pytest.mark.parametrize("named", ["sk-very-secret", "x" * 5000])
async def test_client_keeps_no_key_and_no_long_text_as_the_id_of_a_request(named: str) -> None:
    head = STREAM_HEAD.replace(b"\r\n\r\n", f"\r\nX-Request-Id: req-{named}\r\n\r\n".encode())
    async with (
        raw_server(head + chunk(COMPLETED) + b"0\r\n\r\n") as server,
        ModelClient(provider(server.url, api_key=Secret("sk-very-secret"))) as client,
    ):
        (told,) = [event async for event in client.stream(prompt(), HttpBudget(0))]
    assert isinstance(told, Completed)
    assert told.served is not None
    assert named not in told.served.request_id


async def test_client_sends_the_key_the_session_and_the_providers_own_headers() -> None:
    seen: list[bytes] = []

    async def read_head(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.readuntil(b"\r\n\r\n"))
        writer.close()

    server = await asyncio.start_server(read_head, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1/"
    table = provider(
        url,
        query_params={"api-version": "1"},
        http_headers={"X-Team": "blue"},
        api_key=API_KEY,
        secret_headers={"X-From-Env": "green"},
    )
    async with server, ModelClient(table) as client:
        with pytest.raises(RetryableModelError):
            [event async for event in client.stream(prompt("s-9"), HttpBudget(0))]
    request, *head = seen[0].decode().split("\r\n")
    assert request == "POST /v1/responses?api-version=1 HTTP/1.1"
    assert {
        f"Authorization: Bearer {API_KEY}",
        "X-Team: blue",
        "X-From-Env: green",
        "session_id: s-9",
        "conversation_id: s-9",
        "OpenAI-Beta: responses=experimental",
        "Accept: text/event-stream",
    } <= set(head)
    assert API_KEY not in repr(table)


async def test_hundred_sessions_at_once_each_walk_the_scenario_by_themselves() -> None:
    script = Scenario.parse([{"items": [{"text": word}], "delta_delay_ms": 1} for word in ("one", "two")])
    async with connected(script) as peer:

        async def converse(session: str) -> list[str]:
            return ["".join(texts(await peer.ask(session=session))) for _ in range(2)]

        said = await asyncio.gather(*(converse(f"s{number}") for number in range(100)))
    assert said == [["one", "two"]] * 100
    assert peer.stub.journal.received == 200


def outcomes(peer: Connected) -> list[str]:
    return [exchange.outcome for exchange in peer.stub.journal.exchanges()]
