"""A stream of chat completion chunks as events: what servers send, how they differ, what none may send."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.model.chat_completions import MOST_CHARS, MOST_ITEMS, ChatReader
from orchestrator.model.prompt import (
    Completed,
    Created,
    ItemAdded,
    ItemDone,
    ReasoningRawDelta,
    TextDelta,
)
from orchestrator.model.provider_errors import (
    FatalKind,
    FatalModelError,
    ModelError,
    RateLimited,
    RetryableModelError,
)
from orchestrator.model.sse import SseParser
from orchestrator.tools.shell import LOCAL_SHELL
from tests.model.chat_chunks import (
    CALLS,
    COST,
    CUSTOM,
    DONE,
    STOP,
    UNPAID,
    USAGE,
    Json,
    calling,
    chunk,
    function,
    items,
    line,
    message,
    part,
    read,
    stream,
)


def test_a_response_comes_in_the_order_of_its_stream() -> None:
    events = read(
        stream(
            chunk({"role": "assistant", "content": ""}),
            chunk({"reasoning_content": "hm "}),
            chunk({"reasoning_content": "so"}),
            chunk({"content": "I "}),
            chunk({"content": "look."}),
            calling(part(0, "c1", "shell", "")),
            calling(part(0, arguments='{"command"')),
            calling(part(0, arguments=': ["ls"]}')),
            calling(part(1, "c2", "view_image", "{}")),
            CALLS,
            {"id": "chatcmpl-1", "choices": [], "usage": USAGE},
        )
    )
    reasoning = {
        "type": "reasoning",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": "hm so"}],
    }
    assert events == [
        Created("chatcmpl-1"),
        ItemAdded(reasoning | {"content": []}),
        ReasoningRawDelta("hm "),
        ReasoningRawDelta("so"),
        ItemDone(reasoning),
        ItemAdded(message("") | {"content": []}),
        TextDelta("I "),
        TextDelta("look."),
        ItemDone(message("I look.")),
        ItemAdded(function("shell", "", "c1")),
        ItemDone(function("shell", '{"command": ["ls"]}', "c1")),
        ItemAdded(function("view_image", "", "c2")),
        ItemDone(function("view_image", "{}", "c2")),
        Completed("chatcmpl-1", COST, None),
    ]


CALL_STREAMS: list[tuple[str, list[Json], list[Json]]] = [
    ("one piece", [calling(part(0, "a", "f", "{}"))], [function("f", "{}", "a")]),
    ("no arguments", [calling(part(0, "a", "f"))], [function("f", "{}", "a")]),
    (
        "two calls in one chunk",
        [calling(part(0, "a", "f", "{}"), part(1, "b", "g", "{}"))],
        [function("f", "{}", "a"), function("g", "{}", "b")],
    ),
    (
        "id and name in every piece",
        [calling(part(0, "a", "f", '{"x"')), calling(part(0, "a", "f", ":1}"))],
        [function("f", '{"x":1}', "a")],
    ),
    (
        "the same index for every call",
        [calling(part(0, "a", "f", "{}")), calling(part(0, "b", "f", "{}"))],
        [function("f", "{}", "a"), function("f", "{}", "b")],
    ),
    (
        "the same id for every call",
        [calling(part(0, "a", "f", "{}")), calling(part(1, "a", "f", "{}"))],
        [function("f", "{}", "a"), function("f", "{}", "a")],
    ),
    (
        "no index",
        [
            calling(part(None, "a", "f", "{")),
            calling(part(None, arguments="}")),
            calling(part(None, "b", "g")),
        ],
        [function("f", "{}", "a"), function("g", "{}", "b")],
    ),
    (
        "no index, and id and name in every piece",
        [calling(part(None, "a", "f", '{"x"')), calling(part(None, "a", "f", ":1}"))],
        [function("f", '{"x":1}', "a")],
    ),
    (
        "neither index nor id",
        [calling(part(None, name="f", arguments="{}")), calling(part(None, name="f", arguments="{}"))],
        [function("f", "{}", None), function("f", "{}", None)],
    ),
    (
        "indexes from 7 with a gap",
        [calling(part(7, "a", "f", "{}")), calling(part(9, "b", "g", "{}"))],
        [function("f", "{}", "a"), function("g", "{}", "b")],
    ),
    (
        "an id that comes late",
        [calling(part(0, name="f")), calling(part(0, "a", arguments="{}"))],
        [function("f", "{}", "a")],
    ),
    (
        "arguments that are no JSON",
        [calling(part(0, "a", "f", '{"broken'))],
        [function("f", '{"broken', "a")],
    ),
    (
        "blanks before the call",
        [chunk({"content": "\n\n"}), calling(part(0, "a", "f", "{}"))],
        [function("f", "{}", "a")],
    ),
]


@pytest.mark.parametrize(("about", "chunks", "calls"), CALL_STREAMS, ids=[row[0] for row in CALL_STREAMS])
def test_calls_are_told_apart(about: str, chunks: list[Json], calls: list[Json]) -> None:
    events = read(stream(*chunks, CALLS))
    assert items(events) == calls
    assert isinstance(events[-1], Completed)


@pytest.mark.parametrize("field", ["content", "refusal", "reasoning", "reasoning_content"])
@pytest.mark.parametrize("pieces", [["a"], ["\n", " ", "a", " ", "b"], [" a", ""], ["\n", " "]])
def test_pieces_of_a_text_are_the_text_of_its_item_and_blanks_alone_are_none(
    field: str, pieces: list[str]
) -> None:
    whole = "".join(pieces)
    events = read(stream(*(chunk({field: piece}) for piece in pieces), STOP))
    shown = "".join(event.delta for event in events if isinstance(event, TextDelta | ReasoningRawDelta))
    kept = [item["content"][0]["text"] for item in items(events)]
    assert (shown, kept) == ((whole, [whole]) if whole.strip() else ("", []))


def test_a_call_is_handed_out_as_soon_as_the_next_begins() -> None:
    first, second = line(calling(part(0, "a", "f", "{}"))), line(calling(part(1, "b", "g", "{}")))
    assert items(read(first)) == []
    assert items(read(first, second)) == [function("f", "{}", "a")]


@pytest.mark.parametrize(
    ("name", "arguments", "item"),
    [
        (
            "apply_patch",
            '{"input": "*** Begin"}',
            {"type": "custom_tool_call", "status": "completed", "name": "apply_patch", "input": "*** Begin"},
        ),
        (
            "apply_patch",
            "*** Begin",
            {"type": "custom_tool_call", "status": "completed", "name": "apply_patch", "input": "*** Begin"},
        ),
        (
            "apply_patch",
            '{"input": ""}',
            {"type": "custom_tool_call", "status": "completed", "name": "apply_patch", "input": ""},
        ),
        (
            "local_shell",
            '{"command": ["ls"], "type": "odd"}',
            {
                "type": "local_shell_call",
                "status": "completed",
                "action": {"type": "exec", "command": ["ls"]},
            },
        ),
        ("local_shell", "[1]", {"type": "function_call", "name": "local_shell", "arguments": "[1]"}),
        (
            "other",
            '{"input": "x"}',
            {"type": "function_call", "name": "other", "arguments": '{"input": "x"}'},
        ),
    ],
)
def test_a_function_that_stands_for_another_tool_is_called_as_that_tool(
    name: str, arguments: str, item: Json
) -> None:
    sent = stream(calling(part(0, "a", name, arguments)), CALLS)
    assert items(read(sent, tools=[CUSTOM, LOCAL_SHELL])) == [item | {"call_id": "a"}]


@pytest.mark.parametrize("at", [0, 1, 2])
def test_each_free_form_tool_of_several_is_called_as_that_tool(at: int) -> None:
    names = ["apply_patch", "query", "shell"]
    tools = [*({"type": "custom", "name": name} for name in names[:2]), {"type": "function", "name": "shell"}]
    (item,) = items(read(stream(calling(part(0, "a", names[at], '{"input": "x"}')), CALLS), tools=tools))
    assert item["type"] == ("function_call" if at == 2 else "custom_tool_call")
    assert item["name"] == names[at]
    # The hosted shell is one where it is offered alone.
    (hosted,) = items(
        read(stream(calling(part(0, "a", "local_shell", '{"command": []}')), CALLS), tools=tools)
    )
    assert hosted["type"] == "function_call"


ENDS: list[tuple[str, list[bytes], Completed]] = [
    ("no usage", [line(STOP), DONE], UNPAID),
    ("usage beside the reason", [line(STOP | {"usage": USAGE}), DONE], Completed("chatcmpl-1", COST, None)),
    (
        "usage in every chunk",
        [line(chunk({"content": "a"}, usage={"prompt_tokens": 1})), line(STOP | {"usage": USAGE}), DONE],
        Completed("chatcmpl-1", COST, None),
    ),
    ("an empty usage", [line(STOP | {"usage": {}}), DONE], UNPAID),
    (
        "impossible usage",
        [line(STOP | {"usage": {"prompt_tokens": -4}}), DONE],
        UNPAID,
    ),
    ("an empty delta behind it", [line(STOP), line(chunk({"content": ""})), DONE], UNPAID),
    ("the reason again", [line(STOP), line(CALLS), DONE], UNPAID),
    ("an id of the first chunk alone", [line(STOP), line({"id": "x", "choices": []}), DONE], UNPAID),
    ("no id", [line(STOP | {"id": None}), DONE], Completed("", None, None)),
    ("blanks behind the end", [line(STOP), b"data: [DONE] \n\n"], UNPAID),
    *(
        (f"reason {reason}", [line(chunk(reason=reason)), DONE], UNPAID)
        for reason in ("end_turn", "STOP", "eos", "eos_token", "stop_sequence")
    ),
]


@pytest.mark.parametrize(("about", "sent", "end"), ENDS, ids=[row[0] for row in ENDS])
def test_a_response_is_complete_with_its_finish_reason(about: str, sent: list[bytes], end: Completed) -> None:
    assert read(*sent)[-1] == end


def test_a_reader_completes_a_stream_that_ends_behind_its_finish_reason() -> None:
    reader, parser = ChatReader("p", {}), SseParser()
    finished = [reader.finished]
    for sse in parser.feed(line(STOP | {"usage": USAGE})):
        reader.read(sse)
        finished.append(reader.finished)
    assert finished == [False, True]
    assert reader.end() == (Completed("chatcmpl-1", COST, None),)


PASSED_OVER: list[Json] = [
    {"type": "ping"},
    {"id": "", "choices": [], "prompt_filter_results": [{"prompt_index": 0}]},
    {"choices": None},
    {"choices": [{"index": 1, "delta": {"content": "another answer"}, "finish_reason": "stop"}]},
    {"choices": [{"index": 0, "delta": None, "finish_reason": None}]},
    {"choices": [{"index": 0, "delta": {"role": "assistant", "content": None, "tool_calls": None}}]},
    {"choices": [{"delta": {"content": "", "function_call": None}, "finish_reason": ""}]},
]


@pytest.mark.parametrize("odd", PASSED_OVER, ids=range(len(PASSED_OVER)))
def test_a_chunk_that_says_nothing_is_passed_over(odd: Json) -> None:
    sent = stream(odd, chunk({"content": "hi"}), odd, STOP)
    comment = b": keep-alive\n\n"
    events = read(comment, sent)
    assert [event for event in events if not isinstance(event, Created)] == [
        ItemAdded(message("") | {"content": []}),
        TextDelta("hi"),
        ItemDone(message("hi")),
        UNPAID,
    ]


BROKEN: list[tuple[str, list[Json]]] = [
    (
        "a piece of a call that was complete",
        [calling(part(0, "a", "f")), calling(part(1, "b", "g")), calling(part(0, arguments="x"))],
    ),
    (
        "a piece of a call that was complete",
        [calling(part(0, "a", "f")), calling(part(1, "b", "g")), calling(part(0, "a", arguments="x"))],
    ),
    (
        "a piece of a call that was complete",
        [calling(part(0, "a", "f")), chunk({"content": "so"}), calling(part(0, arguments="x"))],
    ),
    (
        "a piece of a call that was complete",
        [calling(part(0, "a", "f")), calling(part(1, "b", "g")), calling(part(0, "a", "f", "x"))],
    ),
    ("a piece of a call that was complete", [calling(part(None, arguments="x"))]),
    ("a call with two names", [calling(part(0, "a", "f")), calling(part(0, name="g"))]),
    ("a function_call whose `name` is empty", [calling(part(0, "a", arguments="{}")), CALLS]),
    ("a function_call whose `call_id` is longer", [calling(part(0, "a" * 2_000, "f")), CALLS]),
    ("a function_call whose `name` is longer", [calling(part(0, "a", "f" * 2_000)), CALLS]),
    ("a piece of a call whose `index`", [calling(part(-1, "a", "f"))]),
    ("a piece of a call whose `index`", [calling(part(0, "a", "f") | {"index": "0"})]),
    ("a piece of a call whose `index`", [calling(part(0, "a", "f") | {"index": True})]),
    ("a piece of a call whose `id` is no text", [calling(part(0, "a", "f") | {"id": 7})]),
    (
        "a piece of a call whose `arguments` is no text",
        [calling({"index": 0, "function": {"name": "f", "arguments": {"x": 1}}})],
    ),
    ("a piece whose `content` is no text", [chunk({"content": [{"type": "text", "text": "a"}]})]),
    ("a `function_call`", [chunk({"function_call": {"name": "f", "arguments": "{}"}})]),
    ("a finish_reason that is no text", [chunk(reason={"type": "stop"})]),
    ("a broken chunk", [{"choices": {"index": 0}}]),
    ("a broken chunk", [{"choices": ["a"]}]),
    ("a broken chunk", [chunk(["content"])]),
    ("a broken chunk", [chunk({"tool_calls": {"index": 0}})]),
    ("a piece of the response behind its finish_reason", [STOP, chunk({"content": "more"})]),
    ("a piece of the response behind its finish_reason", [STOP, calling(part(0, "a", "f"))]),
    ("more than 1,024 texts and calls", [calling(*(part(n, f"c{n}", "f") for n in range(MOST_ITEMS + 1)))]),
    ("the end of a response without its finish_reason", [chunk({"content": "a"})]),
]


@pytest.mark.parametrize(("told", "chunks"), BROKEN, ids=[f"{at}-{row[0]}" for at, row in enumerate(BROKEN)])
def test_a_stream_that_cannot_be_told_is_broken(told: str, chunks: list[Json]) -> None:
    with pytest.raises(RetryableModelError, match="model provider p sent ") as raised:
        read(stream(*chunks))
    assert told in raised.value.message
    assert raised.value.message.startswith("stream disconnected before completion")


@pytest.mark.parametrize(
    ("data", "told"),
    [(b"data: oops{\n\n", "a line that is no JSON: 'oops{'"), (b"data: 3\n\n", "a line that is no object")],
)
def test_a_line_that_is_no_chunk_is_not_passed_over(data: bytes, told: str) -> None:
    with pytest.raises(RetryableModelError) as raised:
        read(data)
    assert told in raised.value.message


def test_most_calls_that_one_response_may_have_are_taken() -> None:
    parts = (part(n, f"c{n}", "f") for n in range(MOST_ITEMS))
    assert len(items(read(stream(calling(*parts), CALLS)))) == MOST_ITEMS


@pytest.mark.parametrize(
    ("chunks", "what"),
    [
        (lambda text: chunk({"content": text}), "a message of more than 33,554,432 characters"),
        (lambda text: chunk({"reasoning_content": text}), "a reasoning of more than 33,554,432 characters"),
        (lambda text: calling(part(0, "a", "f", text)), "a call of more than 33,554,432 characters"),
    ],
)
def test_an_item_has_a_bound_however_small_its_pieces(chunks: Any, what: str) -> None:
    million = line(chunks("x" * (1 << 20)))
    most = MOST_CHARS >> 20
    read(*[million] * most)
    with pytest.raises(RetryableModelError, match=what):
        read(*[million] * (most + 1))


@pytest.mark.parametrize("reason", ["length", "content_filter", "error", "what_is_this", "model_length"])
def test_a_response_that_was_cut_short_is_worth_another_attempt_and_names_its_cost(reason: str) -> None:
    begun = chunk({"content": "half"}), calling(part(0, "a", "f", '{"x'))
    with pytest.raises(RetryableModelError, match=rf"left the response incomplete \({reason}\)") as raised:
        read(stream(*begun, chunk(reason=reason), {"choices": [], "usage": USAGE}))
    assert raised.value.usage == COST


def test_a_call_that_was_cut_short_is_not_handed_out() -> None:
    begun = line(calling(part(0, "a", "f", '{"x'))), line(chunk(reason="length"))
    assert items(read(*begun)) == []
    assert items(read(*begun, line(STOP))) == [], "the first reason stands"
    with pytest.raises(RetryableModelError, match=r"incomplete \(length\)"):
        read(*begun, line(STOP), DONE)


FAULTS: list[tuple[bytes, type[ModelError], str]] = [
    (line({"error": {"code": "server_error", "message": "oops"}}), RetryableModelError, "failed: oops"),
    (line({"error": {"code": 502, "message": "bad gateway"}}), RetryableModelError, "failed: bad gateway"),
    (line({"error": "plain"}), RetryableModelError, "failed: plain"),
    (
        line({"error": {"message": "m"}, "choices": [{"finish_reason": "error"}]}),
        RetryableModelError,
        "failed: m",
    ),
    (line({"object": "error", "message": "flat", "code": 400}), RetryableModelError, "failed: flat"),
    (b"event: error\n" + line({"message": "named"}), RetryableModelError, "failed: named"),
    (line({"error": {"code": "rate_limit_exceeded", "message": "try again in 60s"}}), RateLimited, "60s"),
    (line({"error": {"code": "context_length_exceeded", "message": "m"}}), FatalModelError, "compact it"),
    (
        line({"error": {"code": 400, "type": "exceed_context_size_error", "message": "m"}}),
        FatalModelError,
        "context size",
    ),
]


@pytest.mark.parametrize(("sent", "error", "told"), FAULTS, ids=range(len(FAULTS)))
def test_a_fault_inside_the_stream_is_raised_as_what_it_is(
    sent: bytes, error: type[ModelError], told: str
) -> None:
    with pytest.raises(error, match=told) as raised:
        read(line(chunk({"content": "a"}, usage=USAGE)), sent)
    assert raised.value.usage == COST


def test_a_context_that_is_full_is_known_by_the_servers_own_word() -> None:
    with pytest.raises(FatalModelError) as raised:
        read(line({"error": {"code": 400, "type": "exceed_context_size_error", "message": "m"}}))
    assert raised.value.kind is FatalKind.CONTEXT_LENGTH_EXCEEDED
