"""Anything a server sends for an item or a field is taken, or reported as the server's fault."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.core.commands import ItemCompleted, ResponseCompleted
from orchestrator.model.model_client import HttpBudget, ModelClient
from orchestrator.model.prompt import Completed, ItemDone, ModelEvent, TextDelta
from orchestrator.model.provider_errors import (
    FatalKind,
    FatalModelError,
    ModelError,
    ProviderFault,
    RetryableModelError,
)
from orchestrator.model.responses import decode
from orchestrator.model.sse import SseEvent
from orchestrator.runtime.model_request import build_prompt
from orchestrator.runtime.request_costs import Accounting
from tests.commit_seed import examples
from tests.core.test_core_ending import Crowded
from tests.model.stubbed_client import prompt, provider, raw_server

ITEMS: list[dict[str, Any]] = [
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "hi"}], "id": "m"},
    {
        "type": "reasoning",
        "id": "r",
        "summary": [{"type": "summary_text", "text": "**Hm**"}],
        "content": [{"type": "reasoning_text", "text": "so"}],
        "encrypted_content": "ENC",
    },
    {"type": "function_call", "name": "shell", "arguments": "{}", "call_id": "c", "id": "f"},
    {"type": "custom_tool_call", "name": "apply_patch", "input": "x", "call_id": "p", "id": "u"},
    {"type": "local_shell_call", "call_id": "l", "id": "i", "action": {"type": "exec", "command": ["ls"]}},
    {"type": "web_search_call", "id": "w", "action": {"type": "search", "query": "q"}},
    {"type": "from_the_future", "id": "x", "data": [1, {"deep": ["er"]}]},
]


def event(type: str, **fields: Any) -> SseEvent:
    # The standard encoder writes what no item of a log could be: deep nesting, huge numbers.
    return SseEvent(type, json.dumps({"type": type, **fields}).encode())


def item_done(item: Any, **fields: Any) -> ModelEvent | None:
    return decode("p", event("response.output_item.done", item=item, **fields))


def nested(levels: int) -> Any:
    return orjson.loads("[" * levels + "]" * levels)


BROKEN = [
    (
        {"type": "function_call", "name": "shell", "arguments": "{}", "call_id": 7},
        "a function_call whose `call_id`",
    ),
    (
        {"type": "function_call", "name": None, "arguments": "{}", "call_id": "c"},
        "a function_call whose `name`",
    ),
    ({"type": "function_call", "name": "", "arguments": "{}", "call_id": "c"}, "whose `name` is empty"),
    (
        {"type": "function_call", "name": "shell", "arguments": {}, "call_id": "c"},
        "whose `arguments` is no text",
    ),
    (
        {"type": "function_call", "name": "shell", "arguments": "{}", "call_id": "c" * (1 << 20)},
        "whose `call_id` is longer than 1,024 bytes",
    ),
    ({"type": "reasoning", "summary": "words"}, "a reasoning whose `summary` is no array"),
    (
        {"type": "reasoning", "summary": [{"text": 5}]},
        "a reasoning whose `summary` has a part without a text",
    ),
    ({"type": "reasoning", "summary": [{"text": "x"}] * 5_000}, "has 5,000 parts, at most 100"),
    ({"type": "message", "role": "assistant", "content": "plain"}, "a message whose `content` is no array"),
    ({"type": "local_shell_call", "id": [1], "action": {}}, "a local_shell_call whose `id`"),
    ({"type": "web_search_call", "action": "search"}, "a web_search_call whose `action` is no object"),
    ({"type": "odd", "data": nested(900)}, "nested deeper than 64"),
    ({"type": "odd", "data": ["x"] * 100_000}, "of too many parts"),
    ({"type": "odd", "data": {"$blob": "0" * 64, "bytes": 10**15}}, "that refers to a stored text"),
    ({"type": "inherited"}, "an item of type inherited, which is not a model's to send"),
    ({"type": "function_call_output", "call_id": "c", "output": "x"}, "an item of type function_call_output"),
    ({"type": 5}, "an item without a type"),
    ("item", "an item without a type"),
    (None, "an item without a type"),
]


@pytest.mark.parametrize(("item", "told"), BROKEN, ids=[told for _, told in BROKEN])
def test_a_broken_item_is_told_as_what_the_server_sent(item: Any, told: str) -> None:
    with pytest.raises(RetryableModelError, match="model provider p sent ") as raised:
        item_done(item)
    assert told in raised.value.message
    assert len(raised.value.message) <= 600


@pytest.mark.parametrize("item", ITEMS, ids=[item["type"] for item in ITEMS])
def test_an_item_in_order_is_taken(item: dict[str, Any]) -> None:
    done = item_done(item, output_index=3)
    assert isinstance(done, ItemDone)
    assert done.place == (3, item["id"])


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    inner: Any = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    for key, child in inner:
        yield from places(child, (*path, key))


def replaced(value: Any, path: tuple[Any, ...], by: Any) -> Any:
    if not path:
        return by
    changed = copy.deepcopy(value)
    at = changed
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = by
    return changed


ODD = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**64 - 1),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(max_size=6),
        st.sampled_from(["x" * 70_000, "x" * 1_025, "$blob", "bytes", "\0", "inherited", "reasoning"]),
        st.integers(1, 200).map(nested),
        st.integers(1, 3_000).map(lambda n: [{"text": "y" * 50}] * n),
        st.just({"$blob": "0" * 64, "bytes": 1}),
        st.just({"$blob": ["0"], "bytes": {}}),
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=examples(400), deadline=None)
@given(st.data())
def test_arbitrary_json_in_the_place_of_a_field_is_refused_or_recorded_and_asked_with(
    data: st.DataObject,
) -> None:
    item = data.draw(st.sampled_from(ITEMS))
    item = replaced(item, data.draw(st.sampled_from(list(places(item)))), data.draw(ODD))
    try:
        done = item_done(item)
    except ModelError:
        return
    assert isinstance(done, ItemDone)
    session = Crowded()
    session.say("go")
    n = session.begin()
    session.happens(ItemCompleted(n, done.item))
    session.happens(ResponseCompleted(n, "resp", None))
    for call in session.state.task.calls if session.state.task else ():
        assert isinstance(call.call_id, str)
    Accounting().estimate(session.state)
    if session.state.task is not None and session.state.task.calls:
        return
    session.say("again")
    session.begin()
    task = session.state.task
    assert task is not None
    assert task.request is not None
    assert orjson.dumps(build_prompt(session.state, task.request, (), session.text_of).input, default=dict)


EVENTS: list[dict[str, Any]] = [
    {"type": "response.created", "response": {"id": "r"}},
    {"type": "response.output_text.delta", "delta": "x"},
    {"type": "response.reasoning_summary_text.delta", "delta": "x"},
    {"type": "response.reasoning_text.delta", "delta": "x"},
    {
        "type": "response.completed",
        "response": {
            "id": "r",
            "end_turn": False,
            "usage": {
                "input_tokens": 3,
                "input_tokens_details": {"cached_tokens": 1},
                "output_tokens": 2,
                "output_tokens_details": {"reasoning_tokens": 1},
                "total_tokens": 5,
            },
        },
    },
    {"type": "response.failed", "response": {"error": {"code": "c", "message": "m"}}},
    {"type": "response.incomplete", "response": {"incomplete_details": {"reason": "m"}}},
    {"type": "error", "code": "c", "message": "try again in 3s"},
]


@settings(max_examples=examples(400), deadline=None)
@given(st.sampled_from(EVENTS), st.data(), st.booleans())
def test_arbitrary_json_in_an_event_raises_nothing_but_the_models_own_errors(
    sent: dict[str, Any], data: st.DataObject, named: bool
) -> None:
    name = sent["type"] if named else "message"
    changed = replaced(sent, data.draw(st.sampled_from(list(places(sent)))), data.draw(ODD))
    try:
        said = decode("p", SseEvent(name, orjson.dumps(changed)))
    except ModelError as error:
        assert "\n" not in error.message  # noqa: PT017
        return
    if isinstance(said, Completed):
        assert isinstance(said.response_id, str)
        assert said.usage is None or all(0 <= count <= 10**12 for count in said.usage.values())
    if isinstance(said, TextDelta):
        assert isinstance(said.delta, str)


@pytest.mark.parametrize(
    "usage",
    [
        {"input_tokens": -5, "output_tokens": 2},
        {"input_tokens": 10**30},
        {"input_tokens": 1.5},
        {"output_tokens": "many"},
        {"input_tokens": True},
        {"input_tokens": 1, "input_tokens_details": {"cached_tokens": -9}},
        {"input_tokens_details": [1]},
        "lots",
    ],
)
def test_usage_that_cannot_be_is_not_believed(usage: Any) -> None:
    done = decode("p", event("response.completed", response={"id": "r", "usage": usage}))
    assert isinstance(done, Completed)
    assert done.usage is None


def test_more_cached_than_there_was_is_no_gift() -> None:
    usage = {"input_tokens": 5, "input_tokens_details": {"cached_tokens": 900}, "output_tokens": 1}
    done = decode("p", event("response.completed", response={"id": "r", "usage": usage}))
    assert isinstance(done, Completed)
    assert done.usage is not None
    assert done.usage["cached_input_tokens"] == 5


@pytest.mark.parametrize(
    ("data", "told"), [(b"oops{", "a line that is no JSON: 'oops{'"), (b"3", "no object")]
)
def test_a_line_of_the_stream_that_is_no_event_is_not_passed_over(data: bytes, told: str) -> None:
    with pytest.raises(RetryableModelError, match="model provider p sent a line") as raised:
        decode("p", SseEvent("message", data))
    assert told in raised.value.message


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (
            b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03" + bytes(range(200)),
            "a body of 210 bytes that is compressed",
        ),
        (bytes(range(256)), "a body of 256 bytes that is not text"),
    ],
)
def test_a_body_that_is_no_text_is_not_printed(body: bytes, told: str) -> None:
    assert ProviderFault.of_body(body) == ProviderFault(None, told)


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def line(**fields: Any) -> bytes:
    return b"data: " + orjson.dumps(fields) + b"\n\n"


async def test_an_item_that_is_sent_three_times_asks_for_its_call_once() -> None:
    call, other = ITEMS[2], {**ITEMS[2], "call_id": "d", "id": "g"}
    done = "response.output_item.done"
    sent = line(type=done, output_index=0, item=call) * 3
    # A server that gives every item the same index has still sent two calls.
    sent += line(type=done, output_index=0, item=other)
    sent += line(type="response.completed", response={"id": "r"})
    reply = HEAD + chunk(sent) + b"0\r\n\r\n"
    async with (
        raw_server(reply) as server,
        ModelClient(provider(server.url)) as client,
    ):
        events = [event async for event in client.stream(prompt(), HttpBudget(0))]
    assert [event.item["call_id"] for event in events if isinstance(event, ItemDone)] == ["c", "d"]


async def test_a_response_that_does_not_end_is_cut_at_its_bound_and_not_paid_for_again() -> None:
    sent = chunk(line(type="response.output_text.delta", delta="x" * 60_000)) * 20
    async with raw_server(HEAD + sent) as server:
        table = provider(server.url, max_response_bytes=1 << 20)
        async with ModelClient(table) as client:
            with pytest.raises(
                FatalModelError, match=r"more than 1,048,576 bytes.*max_response_bytes"
            ) as raised:
                [event async for event in client.stream(prompt(), HttpBudget(0))]
    assert raised.value.kind is FatalKind.RESPONSE_TOO_LARGE
    assert server.connections == 1
