"""A prompt as a request of chat completions: messages, tools, and the fields beside them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.core.history import BESIDE, for_model, made_together
from orchestrator.model.chat_completions import messages_of, request_body
from orchestrator.model.responses import request_body as responses_body
from orchestrator.stub.answers import translated
from orchestrator.tools.apply_patch import APPLY_PATCH
from orchestrator.tools.images import VIEW_IMAGE
from orchestrator.tools.shell import LOCAL_SHELL, SHELL
from orchestrator.tools.update_plan import UPDATE_PLAN
from tests.commit_seed import examples
from tests.model.stubbed_client import prompt, provider

OFFERED = (SHELL, APPLY_PATCH, UPDATE_PLAN, VIEW_IMAGE)

Json = dict[str, Any]
PNG = "data:image/png;base64,AAAA"
CUSTOM = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Edits files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": "start: begin"},
}


def body(provided: Json | None = None, **changes: Any) -> Json:
    table = provider("http://x/v1", wire_api="chat", **(provided or {}))
    return json.loads(orjson.dumps(request_body(prompt(**changes), table)))  # type: ignore[no-any-return]


def said(role: str, *texts: str) -> Json:
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text} for text in texts]}


def call(call_id: str, name: str = "shell", arguments: str = "{}") -> Json:
    return {"type": "function_call", "name": name, "arguments": arguments, "call_id": call_id}


def output(call_id: str, value: Any = "done", kind: str = "function_call_output") -> Json:
    return {"type": kind, "call_id": call_id, "output": value}


def asked(*calls: tuple[str, str, str], text: str | None = None) -> Json:
    made = [
        {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
        for call_id, name, arguments in calls
    ]
    return {"role": "assistant", "content": text, "tool_calls": made}


def answered(call_id: str, text: str = "done") -> Json:
    return {"role": "tool", "tool_call_id": call_id, "content": text}


IMAGE = {"type": "image_url", "image_url": {"url": PNG}}
SEEN = {"type": "input_image", "image_url": PNG}

MESSAGES: list[tuple[str, list[Json], list[Json]]] = [
    ("a text", [said("user", "hi")], [{"role": "user", "content": "hi"}]),
    ("several texts", [said("user", "a", "b")], [{"role": "user", "content": "a\nb"}]),
    ("a plain content", [{"role": "user", "content": "hi"}], [{"role": "user", "content": "hi"}]),
    (
        "an image",
        [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "see"}, SEEN]}],
        [{"role": "user", "content": [{"type": "text", "text": "see"}, IMAGE]}],
    ),
    (
        "texts around images",
        [
            {
                "type": "message",
                "role": "user",
                "content": [
                    SEEN,
                    {"type": "input_text", "text": "or"},
                    SEEN,
                    {"type": "input_text", "text": "?"},
                ],
            }
        ],
        [
            {
                "role": "user",
                "content": [IMAGE, {"type": "text", "text": "or"}, IMAGE, {"type": "text", "text": "?"}],
            }
        ],
    ),
    (
        "an image with its detail",
        [{"type": "message", "role": "user", "content": [SEEN | {"detail": "low"}]}],
        [
            {
                "role": "user",
                "content": [{"type": "image_url", "image_url": {"url": PNG, "detail": "low"}}],
            }
        ],
    ),
    ("a developer", [said("developer", "role")], [{"role": "system", "content": "role"}]),
    ("a system", [said("system", "rule")], [{"role": "system", "content": "rule"}]),
    ("an unknown role", [said("critic", "hm")], [{"role": "user", "content": "hm"}]),
    ("an assistant", [said("assistant", "a", "b")], [{"role": "assistant", "content": "ab"}]),
    (
        "a refusal",
        [{"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}],
        [{"role": "assistant", "content": "no"}],
    ),
    ("an empty message", [{"type": "message", "role": "user", "content": []}], []),
    (
        "text and its call",
        [said("assistant", "look"), call("c"), output("c")],
        [asked(("c", "shell", "{}"), text="look"), answered("c")],
    ),
    (
        "a call alone",
        [said("user", "go"), call("c"), output("c")],
        [{"role": "user", "content": "go"}, asked(("c", "shell", "{}")), answered("c")],
    ),
    (
        "calls at once",
        [call("c"), call("d", "view"), output("c"), output("d", "seen")],
        [asked(("c", "shell", "{}"), ("d", "view", "{}")), answered("c"), answered("d", "seen")],
    ),
    (
        "calls one after another",
        [call("c"), output("c"), call("d"), output("d")],
        [asked(("c", "shell", "{}")), answered("c"), asked(("d", "shell", "{}")), answered("d")],
    ),
    (
        "a text behind an output",
        [call("c"), output("c"), said("assistant", "so")],
        [asked(("c", "shell", "{}")), answered("c"), {"role": "assistant", "content": "so"}],
    ),
    (
        "an image in an output",
        [call("c"), output("c", [SEEN]), said("assistant", "a cat")],
        [
            asked(("c", "shell", "{}")),
            answered("c", "The output is in the next message."),
            {"role": "user", "content": [{"type": "text", "text": "The output of the call c:"}, IMAGE]},
            {"role": "assistant", "content": "a cat"},
        ],
    ),
    (
        "an image in the first of two outputs",
        [call("c"), call("d"), output("c", [{"type": "input_text", "text": "it"}, SEEN]), output("d")],
        [
            asked(("c", "shell", "{}"), ("d", "shell", "{}")),
            answered("c", "it"),
            answered("d"),
            {"role": "user", "content": [{"type": "text", "text": "The output of the call c:"}, IMAGE]},
        ],
    ),
    (
        "an image before the next call",
        [call("c"), output("c", [SEEN]), call("d"), output("d")],
        [
            asked(("c", "shell", "{}")),
            answered("c", "The output is in the next message."),
            {"role": "user", "content": [{"type": "text", "text": "The output of the call c:"}, IMAGE]},
            asked(("d", "shell", "{}")),
            answered("d"),
        ],
    ),
    (
        "a custom call",
        [
            {"type": "custom_tool_call", "name": "apply_patch", "input": "*** x", "call_id": "p"},
            output("p", kind="custom_tool_call_output"),
        ],
        [asked(("p", "apply_patch", '{"input":"*** x"}')), answered("p")],
    ),
    (
        "a call of the hosted shell",
        [
            {
                "type": "local_shell_call",
                "call_id": "l",
                "status": "completed",
                "action": {"type": "exec", "command": ["ls"], "timeout_ms": 4, "env": None},
            },
            output("l"),
        ],
        [asked(("l", "local_shell", '{"command":["ls"],"timeout_ms":4}')), answered("l")],
    ),
    (
        "broken arguments",
        [call("c", arguments='{"broken'), output("c")],
        [asked(("c", "shell", '{"arguments":"{\\"broken"}')), answered("c")],
    ),
    (
        "arguments that are no object",
        [call("c", arguments="[1]"), output("c")],
        [asked(("c", "shell", '{"arguments":"[1]"}')), answered("c")],
    ),
    (
        "a name that no function may have",
        [call("c", "container.exec" + "x" * 99), output("c")],
        [asked(("c", "container_exec" + "x" * 50, "{}")), answered("c")],
    ),
    ("an output of no call", [output("c"), said("user", "hi")], [{"role": "user", "content": "hi"}]),
    (
        "an output that is any JSON",
        [call("c"), output("c", {"content": "x"})],
        [asked(("c", "shell", "{}")), answered("c", '{"content":"x"}')],
    ),
    ("a call without an id", [call("") | {"call_id": None}], []),
    (
        "what cannot be sent back",
        [
            {"type": "reasoning", "summary": [], "encrypted_content": "E"},
            {"type": "web_search_call", "action": {"type": "search", "query": "q"}},
            {"type": "ghost_snapshot"},
        ],
        [],
    ),
]


@pytest.mark.parametrize(
    ("items", "messages"), [row[1:] for row in MESSAGES], ids=[row[0] for row in MESSAGES]
)
def test_items_become_messages(items: list[Json], messages: list[Json]) -> None:
    assert body(input=items)["messages"] == [{"role": "system", "content": "Be brief."}, *messages]


def together(*items: Json) -> list[Json]:
    return body(input=for_model(items), together=made_together(items))["messages"][1:]  # type: ignore[no-any-return]


A, B, C = (("a", "shell", "{}"), ("b", "shell", "{}"), ("c", "shell", "{}"))


@pytest.mark.parametrize(
    ("items", "messages"),
    [
        (
            [call("a"), call("b"), output("b"), output("a")],
            [asked(A, B), answered("a"), answered("b")],
        ),
        (
            [call("a"), output("a"), {**call("b"), BESIDE: True}, output("b"), call("c"), output("c")],
            [asked(A, B), answered("a"), answered("b"), asked(C), answered("c")],
        ),
        (
            [call("a"), output("a"), call("b"), output("b")],
            [asked(A), answered("a"), asked(B), answered("b")],
        ),
        (
            [call("a"), call("b"), output("a"), output("b"), call("b"), call("a"), output("b"), output("a")],
            [asked(A, B), answered("a"), answered("b"), asked(B, A), answered("b"), answered("a")],
        ),
    ],
    ids=["one response", "a call behind the first one's output", "two responses", "ids that come again"],
)
def test_calls_of_one_response_are_one_message(items: list[Json], messages: list[Json]) -> None:
    assert together(*items) == messages


def test_image_of_the_first_of_two_calls_comes_behind_both_outputs() -> None:
    sent = together(call("a"), call("b"), output("a", [SEEN]), output("b"))
    assert [message["role"] for message in sent] == ["assistant", "tool", "tool", "user"]


def test_images_of_several_calls_come_behind_all_outputs_each_under_its_call() -> None:
    sent = together(call("a"), call("b"), output("a", [SEEN]), output("b", [SEEN]))
    assert [message["role"] for message in sent] == ["assistant", "tool", "tool", "user"]
    parts = sent[-1]["content"]
    assert [part["type"] for part in parts] == ["text", "image_url", "text", "image_url"]
    assert [part["text"] for part in parts if part["type"] == "text"] == [
        "The output of the call a:",
        "The output of the call b:",
    ]


@pytest.mark.parametrize("role", ["system", "developer", "user"])
def test_a_developers_message_has_the_role_that_the_provider_reads(role: str) -> None:
    sent = body({"developer_role": role}, input=[said("developer", "part")])
    assert sent["messages"][1] == {"role": role, "content": "part"}


def test_a_request_without_instructions_has_no_system_message() -> None:
    assert messages_of("", [said("user", "hi")], "system") == [{"role": "user", "content": "hi"}]


def test_tools_become_functions_and_a_hosted_search_stays_at_home() -> None:
    sent = body(tools=[SHELL, CUSTOM, LOCAL_SHELL, {"type": "web_search"}])
    shell, patch, hosted = (tool["function"] for tool in sent["tools"])
    assert [tool["type"] for tool in sent["tools"]] == ["function"] * 3
    assert shell == {name: SHELL[name] for name in ("name", "description", "parameters")}
    assert patch["name"] == "apply_patch"
    assert patch["description"] == "Edits files.\nThe input's grammar:\nstart: begin"
    assert patch["parameters"]["required"] == ["input"]
    assert hosted["name"] == "local_shell"
    assert (sent["tool_choice"], sent["parallel_tool_calls"]) == ("auto", False)


def test_a_request_without_tools_says_nothing_of_them() -> None:
    assert set(body(parallel_tool_calls=True)) == {"model", "messages", "stream", "stream_options"}


def test_a_request_asks_for_its_stream_and_for_what_it_costs() -> None:
    sent = body()
    assert (sent["model"], sent["stream"], sent["stream_options"]) == ("gpt-5", True, {"include_usage": True})


@pytest.mark.parametrize(
    ("provided", "effort", "sent"),
    [
        ({}, "high", None),
        ({"supports_reasoning_effort": True}, "high", "high"),
        ({"supports_reasoning_effort": True}, None, None),
    ],
)
def test_effort_is_told_to_a_provider_that_takes_it(
    provided: Json, effort: str | None, sent: str | None
) -> None:
    assert body(provided, effort=effort).get("reasoning_effort") == sent


def test_verbosity_is_told_to_the_models_that_take_it() -> None:
    assert body(verbosity="low")["verbosity"] == "low"
    assert "verbosity" not in body(model="qwen3", verbosity="low")


def test_a_schema_holds_the_last_message() -> None:
    schema = {"type": "object"}
    assert body(output_schema=schema)["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "codex_output_schema", "strict": True, "schema": schema},
    }


def test_reasoning_of_a_chat_provider_is_not_shown_to_another_one() -> None:
    raw = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}
    sealed = raw | {"encrypted_content": None}
    sent = responses_body(prompt(input=[raw, sealed]))["input"]
    assert sent == [{"type": "reasoning", "summary": [], "encrypted_content": None}]


ITEMS = st.one_of(
    st.builds(said, st.sampled_from(["user", "assistant", "developer"]), st.text(min_size=1, max_size=9)),
    st.builds(call, st.sampled_from("abc"), st.sampled_from(["shell", "view"])),
    st.builds(output, st.sampled_from("abc"), st.text(max_size=9) | st.just([SEEN])),
    st.just({"type": "reasoning", "summary": []}),
)


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(ITEMS, max_size=14))
def test_every_conversation_has_an_output_behind_each_call_and_none_without_one(items: list[Json]) -> None:
    messages = body(input=for_model(items), together=made_together(items))["messages"]
    open_calls: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            open_calls.remove(message["tool_call_id"])
            continue
        assert open_calls == [], "an output comes before anything else is said"
        open_calls = [made["id"] for made in message.get("tool_calls", ())]
    assert open_calls == []


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(ITEMS, max_size=14))
def test_stub_reads_back_what_the_client_says(items: list[Json]) -> None:
    plain = [item for item in for_model(items) if item["type"] != "reasoning" and SEEN not in _parts(item)]
    sent = body(input=plain, tools=OFFERED)
    read = translated(sent)
    assert read["instructions"] == "Be brief."
    assert read["input"] == plain
    assert [tool["name"] for tool in read["tools"]] == [tool["name"] for tool in OFFERED]


def _parts(item: Mapping[str, Any]) -> Any:
    value = item.get("output")
    return value if isinstance(value, list) else ()
