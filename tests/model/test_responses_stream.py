"""Events of a Responses stream: which items are one item, how each is kept, and what a wait is."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from orchestrator.core.settings import HELD_WAIT_S
from orchestrator.model.output_checks import MOST_DEPTH, MOST_PARTS, NAME_BYTES, BrokenItem, check_item
from orchestrator.model.prompt import Completed, ItemDone
from orchestrator.model.provider_errors import (
    MAX_WAIT_S,
    RateLimited,
    RetryableModelError,
    retry_after_s,
    wait_named_in,
)
from orchestrator.model.responses import ResponsesReader, kept_item, request_body
from orchestrator.model.sse import SseEvent, SseEventTooLarge, SseParser
from tests.model.stubbed_client import prompt

CALL: dict[str, Any] = {"type": "function_call", "name": "f", "arguments": "{}", "call_id": "c"}


def event(kind: str, named: bool = True, **fields: Any) -> SseEvent:
    return SseEvent(kind if named else "message", orjson.dumps({"type": kind, **fields}))


def read(*events: SseEvent) -> list[Any]:
    reader = ResponsesReader("p")
    return [told for each in events for told in reader.read(each)]


@pytest.mark.parametrize("index", [None, 0])
@pytest.mark.parametrize("id", [None, "i"])
@pytest.mark.parametrize("named", [True, False])
def test_item_that_is_sent_again_is_one_where_the_server_names_it_and_two_where_it_does_not(
    index: int | None, id: str | None, named: bool
) -> None:
    item = CALL if id is None else {**CALL, "id": id}
    placed = {} if index is None else {"output_index": index}
    done = [
        event("response.output_item.done", named, item=each, **placed)
        for each in (item, item, {**item, "arguments": "[]"}, item)
    ]
    found = [told.item["arguments"] for told in read(*done) if isinstance(told, ItemDone)]
    assert found == (["{}", "{}", "[]", "{}"] if index is None and id is None else ["{}", "[]"])


def test_items_of_other_places_are_others_whatever_they_say() -> None:
    done = [
        event("response.output_item.done", item={**CALL, "id": id}, output_index=at)
        for at in (0, 1)
        for id in "ab"
    ]
    assert len(read(*done, *done)) == 4


KEPT: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({**CALL, "id": "i", "status": "completed"}, CALL),
    (
        {
            "type": "custom_tool_call",
            "id": "i",
            "status": "completed",
            "name": "n",
            "input": "",
            "call_id": "c",
        },
        {"type": "custom_tool_call", "status": "completed", "name": "n", "input": "", "call_id": "c"},
    ),
    *(
        (
            {"type": "local_shell_call", "id": "i", "action": {}, **given},
            {"type": "local_shell_call", "action": {}, "call_id": kept},
        )
        for given, kept in (
            ({}, "i"),
            ({"call_id": None}, "i"),
            ({"call_id": ""}, "i"),
            ({"call_id": "c"}, "c"),
        )
    ),
    (
        {"type": "web_search_call", "id": "i", "status": "completed"},
        {"type": "web_search_call", "status": "completed"},
    ),
    (
        {
            "type": "message",
            "id": "i",
            "status": "completed",
            "role": "assistant",
            "content": [
                {"type": "output_text", "text": "", "annotations": [], "logprobs": []},
                {"type": "output_text", "text": "a", "annotations": [1]},
            ],
        },
        {
            "type": "message",
            "role": "assistant",
            "content": [
                {"type": "output_text", "text": ""},
                {"type": "output_text", "text": "a", "annotations": [1]},
            ],
        },
    ),
    (
        {"type": "reasoning", "id": "i", "status": "completed", "content": [], "more": 1},
        {"type": "reasoning", "summary": [], "content": None, "encrypted_content": None, "more": 1},
    ),
]


@pytest.mark.parametrize(("sent", "kept"), KEPT)
def test_item_is_kept_without_what_its_provider_alone_understands(
    sent: dict[str, Any], kept: dict[str, Any]
) -> None:
    assert kept_item(sent) == kept


REASONING = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "hm"}]}


@pytest.mark.parametrize(
    ("item", "sent"),
    [
        ({**REASONING, "summary": []}, []),
        (
            {**REASONING, "summary": [], "encrypted_content": "E"},
            [{"type": "reasoning", "summary": [], "encrypted_content": "E"}],
        ),
        (
            {**REASONING, "summary": [], "encrypted_content": None},
            [{"type": "reasoning", "summary": [], "encrypted_content": None}],
        ),
        ({**REASONING, "summary": ["s"]}, [{"type": "reasoning", "summary": ["s"]}]),
        (CALL, [CALL]),
    ],
)
def test_raw_reasoning_is_sent_to_nobody_and_the_rest_of_its_item_where_there_is_any(
    item: dict[str, Any], sent: list[dict[str, Any]]
) -> None:
    assert request_body(prompt(input=[item]))["input"] == sent


@pytest.mark.parametrize("kind", ["response.completed", "response.done"])
@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize(
    ("response", "beside", "end_turn"),
    [
        ({}, {}, None),
        ({"end_turn": True}, {}, True),
        ({}, {"end_turn": False}, False),
        ({"end_turn": False}, {"end_turn": True}, False),
        ({"end_turn": "yes"}, {}, None),
    ],
)
def test_end_of_a_response_says_whether_its_turn_ends_wherever_the_server_says_so(
    kind: str, named: bool, response: dict[str, Any], beside: dict[str, Any], end_turn: bool | None
) -> None:
    end = event(kind, named, response={"id": "r", **response}, **beside)
    assert read(end) == [Completed("r", None, end_turn)]


@pytest.mark.parametrize("code", ["rate_limit_exceeded", "server_error", None])
@pytest.mark.parametrize("words", ["1.5s", "1500ms", f"{HELD_WAIT_S:g}s", f"{HELD_WAIT_S + 1:g}s", "999999s"])
def test_wait_that_a_fault_inside_a_stream_names_is_one_where_its_code_is_a_rate_limits(
    code: str | None, words: str
) -> None:
    seconds = min(float(words.rstrip("ms")) / (1_000 if words.endswith("ms") else 1), MAX_WAIT_S)
    said = {"code": code, "message": f"Please try again in {words}."}
    with pytest.raises((RateLimited, RetryableModelError)) as raised:
        read(event("response.failed", response={"error": said}))
    limited = code == "rate_limit_exceeded"
    error = raised.value
    assert isinstance(error, RateLimited | RetryableModelError)
    wait_s = error.retry_after_s if isinstance(error, RateLimited) else error.delay_s
    assert wait_s == (seconds if limited else None)
    assert isinstance(error, RateLimited) is (limited and seconds > HELD_WAIT_S)


@pytest.mark.parametrize(
    ("words", "seconds"),
    [
        ("6m0s", 360),
        ("1m30.5s", 90.5),
        ("1h2m3s", 3_723),
        ("2 h 500 ms", 7_200.5),
        ("1d1s", MAX_WAIT_S),
        ("20 seconds", 20),
        ("1 minute 5 seconds", 65),
        ("250 milliseconds", 0.25),
        ("5", None),
        ("a moment", None),
        ("6 parsecs", None),
        ("9" * 500 + "s", MAX_WAIT_S),
    ],
)
def test_wait_of_minutes_is_the_sum_of_what_a_fault_inside_a_stream_names(
    words: str, seconds: float | None
) -> None:
    assert wait_named_in(f"Limit 3, used 3. Please try again in {words}. See 7s.") == seconds
    assert wait_named_in(f"Please wait {words}.") is None
    assert wait_named_in(None) is None


@pytest.mark.parametrize("name", ["retry-after", "retry-after-ms"])
def test_wait_of_an_answer_is_a_day_at_most(name: str) -> None:
    factor = 1_000 if name.endswith("ms") else 1
    for seconds in (MAX_WAIT_S - 1, MAX_WAIT_S, MAX_WAIT_S + 1):
        assert retry_after_s({name: str(seconds * factor)}) == min(seconds, MAX_WAIT_S)


# ── bounds ────────────────────────────────────────────────────────────────────────────────────────


def nested(levels: int) -> Any:
    """An item with a value so many levels deep."""
    value: Any = "x"
    for _ in range(levels - 2):
        value = [value]
    return {"type": "from_the_future", "data": value}


def parts(count: int) -> dict[str, Any]:
    return {"type": "reasoning", "summary": [{"text": "x"}] * count}


def search(**action: Any) -> dict[str, Any]:
    return {"type": "web_search_call", "action": {"type": "search", **action}}


TAKEN: list[tuple[str, Any, bool]] = [
    ("a name at its bound", {**CALL, "name": "n" * NAME_BYTES}, True),
    ("a name beyond it", {**CALL, "name": "n" * (NAME_BYTES + 1)}, False),
    ("a name of two bytes a letter at its bound", {**CALL, "name": "é" * (NAME_BYTES // 2)}, True),
    ("a name of two bytes a letter beyond it", {**CALL, "name": "é" * (NAME_BYTES // 2) + "n"}, False),
    ("a type at its bound", {"type": "é" * (NAME_BYTES // 2)}, True),
    ("a type beyond it", {"type": "é" * (NAME_BYTES // 2) + "n"}, False),
    ("the deepest item", nested(MOST_DEPTH + 1), True),
    ("a deeper item", nested(MOST_DEPTH + 2), False),
    ("the most parts", parts(MOST_PARTS), True),
    ("more parts", parts(MOST_PARTS + 1), False),
    ("a search for several", search(queries=["a", "b"]), True),
    ("a search for several, one of which is no text", search(queries=["a", 7]), False),
    ("a search for what is no text", search(query=7), False),
    ("searches that are no list", search(queries="a"), False),
    ("many short keys", {"type": "x", "data": {f"{n:04}": 1 for n in range(6_000)}}, True),
    ("as many long keys", {"type": "x", "data": {f"{n:040}": 1 for n in range(6_000)}}, False),
    ("a reference at the top", {"type": "x", "data": {"$blob": "0" * 64, "bytes": 1}}, False),
    ("a reference in a list in it", {"type": "x", "data": [[{"$blob": "0" * 64, "bytes": 1}]]}, False),
]


@pytest.mark.parametrize(("about", "item", "taken"), TAKEN, ids=[row[0] for row in TAKEN])
def test_item_is_taken_up_to_its_bounds_and_refused_beyond_them(about: str, item: Any, taken: bool) -> None:
    try:
        check_item(item)
    except BrokenItem:
        assert not taken
    else:
        assert taken


@pytest.mark.parametrize("more", [0, 1])
def test_event_is_as_long_as_it_may_be_whatever_of_it_has_come(more: int) -> None:
    """A line that has not ended counts beside those that have."""
    parser = SseParser(max_event_bytes=40)
    sent = b"data: " + b"x" * 19 + b"\ndata: " + b"y" * (14 + more)
    if more:
        with pytest.raises(SseEventTooLarge):
            list(parser.feed(sent))
    else:
        assert list(parser.feed(sent)) == []
