"""Any cut of a chat stream gives the same events, and no junk in it anything but the model's own errors."""

from __future__ import annotations

import itertools
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.model.chat_completions import ChatReader, converted_tools
from orchestrator.model.prompt import Completed, ItemDone, ModelEvent, ReasoningRawDelta, TextDelta
from orchestrator.model.provider_errors import ModelError
from orchestrator.model.sse import SseParser
from orchestrator.tools.shell import LOCAL_SHELL
from tests.commit_seed import examples
from tests.model.chat_chunks import (
    CALLS,
    COST,
    CUSTOM,
    DONE,
    USAGE,
    Json,
    calling,
    chunk,
    items,
    line,
    part,
    read,
)
from tests.model.test_broken_streams import ODD, places, replaced

RECORDED = b"".join(
    [
        b"\xef\xbb\xbf: hello\r\n\r\n",
        line(chunk({"role": "assistant", "content": ""})),
        line(chunk({"reasoning": "hm \u2028"})).replace(b"\n", b"\r\n"),
        line(chunk({"content": "Zürich 🙂 "})),
        b"event: message\nid: 4\n" + line(chunk({"content": "\u0085 so"})),
        line(calling(part(0, "c1", "shell", "")))[:-1] + b": keep-alive\n\n",
        line(calling(part(0, arguments='{"command": ["ls", "ä"]}'))),
        line(calling(part(1, "c2", "apply_patch", '{"input": "*** Begin"}'))),
        line(CALLS),
        line({"id": "chatcmpl-1", "choices": [], "usage": USAGE}).replace(b"\n", b"\r"),
        DONE,
    ]
)
WHOLE = read(RECORDED, tools=[CUSTOM])


def test_the_stream_that_is_cut_has_something_of_everything() -> None:
    kinds = [item["type"] for item in items(WHOLE)]
    assert kinds == ["reasoning", "message", "function_call", "custom_tool_call"]
    assert WHOLE[-1] == Completed("chatcmpl-1", COST, None)


def test_every_single_cut_gives_the_same_events() -> None:
    for at in range(len(RECORDED) + 1):
        assert read(RECORDED[:at], RECORDED[at:], tools=[CUSTOM]) == WHOLE, at


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(st.integers(0, len(RECORDED)), max_size=40))
def test_any_cuts_give_the_same_events(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(RECORDED)]
    assert read(*(RECORDED[a:b] for a, b in itertools.pairwise(edges)), tools=[CUSTOM]) == WHOLE


def test_byte_by_byte_gives_the_same_events() -> None:
    assert read(*(RECORDED[at : at + 1] for at in range(len(RECORDED))), tools=[CUSTOM]) == WHOLE


def test_a_stream_that_ends_early_is_finished_behind_its_finish_reason_alone() -> None:
    for at in range(len(RECORDED) + 1):
        reader, parser = ChatReader("p", {}), SseParser()
        events = [event for sse in parser.feed(RECORDED[:at]) for event in reader.read(sse)]
        assert reader.finished == (b'"finish_reason":"tool_calls"}]}\n\n' in RECORDED[:at])
        assert any(isinstance(event, Completed) for event in events) == (at == len(RECORDED))


CHUNKS: list[Json] = [
    chunk({"role": "assistant", "content": "a"}),
    chunk({"reasoning_content": "b"}),
    calling(part(0, "c1", "shell", "{}")),
    calling(part(1, "c2", "apply_patch", '{"input": "x"}')),
    calling(part(2, "c3", "local_shell", '{"command": ["ls"]}')),
    CALLS,
    {"choices": [], "usage": USAGE},
    {"error": {"code": "c", "message": "try again in 3s"}},
]


@settings(max_examples=examples(500), deadline=None)
@given(st.data(), st.integers(0, len(CHUNKS) - 1))
def test_arbitrary_json_in_the_place_of_a_field_is_taken_or_refused_in_order(
    data: st.DataObject, at: int
) -> None:
    changed = replaced(CHUNKS[at], data.draw(st.sampled_from(list(places(CHUNKS[at])))), data.draw(ODD))
    sent = [*CHUNKS[:at], changed, *CHUNKS[at + 1 : -1]]
    assert_in_order(b"".join(map(line, sent)) + DONE)


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(st.sampled_from(CHUNKS) | ODD, max_size=12))
def test_chunks_in_any_order_are_taken_or_refused_in_order(sent: list[Any]) -> None:
    assert_in_order(b"".join(map(line, sent)) + DONE)


@settings(max_examples=examples(300), deadline=None)
@given(
    st.lists(st.binary(max_size=30) | st.sampled_from([b"data: ", b"\n\n", b"[DONE]", b"{}"]), max_size=20)
)
def test_arbitrary_bytes_raise_nothing_but_the_models_own_errors(sent: list[bytes]) -> None:
    assert_in_order(b"".join(sent))


def assert_in_order(sent: bytes) -> None:
    """Either the model's own error, or items that can be recorded, and at most one end, at the end."""
    reader, parser = ChatReader("p", converted_tools([CUSTOM, LOCAL_SHELL])), SseParser()
    events: list[ModelEvent] = []
    try:
        for sse in parser.feed(sent):
            events += reader.read(sse)
            if events and isinstance(events[-1], Completed):
                break
    except ModelError as error:
        assert "\n" not in error.message  # noqa: PT017
    assert not any(isinstance(event, Completed) for event in events[:-1])
    for event in events:
        if isinstance(event, ItemDone):
            assert event.item["type"] in {
                "message", "reasoning", "function_call", "custom_tool_call", "local_shell_call"
            }  # fmt: skip
            assert isinstance(event.item.get("call_id", ""), str)
        if isinstance(event, TextDelta | ReasoningRawDelta):
            assert isinstance(event.delta, str)
