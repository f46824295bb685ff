"""Every event and every item that is sent is made by its model: nobody else spells a payload out."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from json import dumps
from pathlib import Path

import pytest

import orchestrator
from orchestrator.core.tokens import TokenInfo, Usage
from orchestrator.core.user_turns import input_messages, user_message_event
from orchestrator.protocol.events import (
    EVENTS,
    AgentMessage,
    AgentMessageDelta,
    AgentReasoningDelta,
    AgentReasoningRawContentDelta,
    MessagePhase,
    RateLimitSnapshot,
    RateLimitWindow,
    TaskComplete,
    TaskStarted,
    TokenCount,
    TokenUsageInfo,
    UserMessage,
    agent_message,
    task_complete,
    task_started,
    text_delta,
    token_count,
)
from orchestrator.protocol.ids import ResponseId
from orchestrator.protocol.items import InputText, Message, ResponseItem
from orchestrator.protocol.scalars import ModeKind, UserMessageKind
from orchestrator.protocol.wire import JsonObject, tags
from orchestrator.protocol.wire import written as payload

ROOT = Path(orchestrator.__file__).parent
OTHER_VOCABULARIES = (
    "protocol/",  # the codec, which meets every payload as JSON
    "stub/",  # a provider, which speaks the Responses API
    "model/responses.py",  # what a provider sent, cut to what is kept of it
    "model/chat_completions.py",  # chat completions, and the items that their answers become
    "mcp/",  # JSON Schema and content of MCP
    "tools/tool.py",  # JSON Schema of what tools take
    "tools/agent_tools.py",
    "tools/mcp_tools.py",  # a server's tools, as a model is offered them
    "gateways/app_server/",  # JSON of the app-server protocol
    "gateways/exec_json.py",  # lines of one-shot runs
    "gateways/window/",  # events of the window's stream, and messages of ASGI
    "gateways/mcp_server.py",  # JSON Schema and content of MCP
    "telemetry/listener.py",  # messages of ASGI
    "model/credentials.py",  # what a keyring keeps
    "terminal/notifications.py",  # what a program of the person's is told
)
LINE = frozenset({"timestamp", "payload"})
"""Keys of a rollout's line, whose `type` is that of the line."""


def sources(words: str) -> Iterator[tuple[str, ast.Module]]:
    """The modules that have one of the words, a regular expression."""
    for path in sorted(ROOT.rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        if not name.startswith(OTHER_VOCABULARIES) and re.search(words, text := path.read_text("utf-8")):
            yield name, ast.parse(text)


def outside_of_constants(module: ast.AST) -> Iterator[ast.AST]:
    """Every node but those of upper-case constants: the JSON Schema and the offers of tools."""
    for node in ast.iter_child_nodes(module):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                if name.isupper():
                    continue
        yield node
        yield from outside_of_constants(node)


def spelled_out(module: ast.Module) -> Iterator[int]:
    """Lines of the objects with a `type` that are written as a dict: a display, or `dict(…)`."""
    for node in outside_of_constants(module):
        match node:
            case ast.Dict(keys=keys, values=values):
                named = {k.value: v for k, v in zip(keys, values, strict=True) if isinstance(k, ast.Constant)}
                if "type" in named and not LINE & named.keys() and is_tag(named["type"]):
                    yield node.lineno
            case ast.Call(func=ast.Name(id="dict"), keywords=keywords):
                if any(word.arg == "type" and is_tag(word.value) for word in keywords):
                    yield node.lineno


def is_tag(value: ast.expr) -> bool:
    """Whether a word, or a choice or a variable that may be one; not the marker of a stand-in."""
    return not (isinstance(value, ast.Name) and value.id.isupper())


@pytest.mark.parametrize(
    "model", [AgentMessageDelta, AgentReasoningDelta, AgentReasoningRawContentDelta], ids=lambda m: m.__name__
)
def test_streamed_text_is_what_its_model_is_written_as(
    model: type[AgentMessageDelta | AgentReasoningDelta | AgentReasoningRawContentDelta],
) -> None:
    assert list(text_delta(model, "wo").items()) == list(payload(model(delta="wo")).items())


@pytest.mark.parametrize("window", [None, 272_000])
@pytest.mark.parametrize("response_id", [None, ResponseId("r")])
@pytest.mark.parametrize("limits", [None, RateLimitSnapshot(primary=RateLimitWindow(used_percent=2.5))])
def test_token_count_is_what_its_model_is_written_as(
    window: int | None, response_id: ResponseId | None, limits: RateLimitSnapshot | None
) -> None:
    total, last = Usage(9, 8, 7, 6, 5), Usage(4, 3, 2, 1, 0)
    model = TokenCount(
        info=TokenUsageInfo(
            total_token_usage=total.wire(), last_token_usage=last.wire(), model_context_window=window
        ),
        rate_limits=limits,
        response_id=response_id,
    )
    known = payload(limits) if limits else None
    assert dumps(token_count(TokenInfo(total, last).written(window), known, response_id)) == dumps(
        payload(model)
    )
    assert dumps(token_count(None, known, response_id)) == dumps(
        payload(TokenCount(rate_limits=limits, response_id=response_id))
    )


@pytest.mark.parametrize("window", [None, 272_000])
@pytest.mark.parametrize("mode", ModeKind)
def test_begin_of_a_task_is_what_its_model_is_written_as(window: int | None, mode: ModeKind) -> None:
    model = TaskStarted(model_context_window=window, collaboration_mode_kind=mode)
    assert dumps(task_started(window, mode)) == dumps(payload(model))


@pytest.mark.parametrize("said", [None, "", "done"])
@pytest.mark.parametrize("response_id", [None, ResponseId("r")])
def test_end_of_a_task_is_what_its_model_is_written_as(
    said: str | None, response_id: ResponseId | None
) -> None:
    model = TaskComplete(last_agent_message=said, response_id=response_id)
    assert dumps(task_complete(said, response_id)) == dumps(payload(model))


@pytest.mark.parametrize("phase", [None, "commentary", "final_answer"])
def test_message_of_the_agent_is_what_its_model_is_written_as(phase: MessagePhase | None) -> None:
    assert dumps(agent_message("done", phase)) == dumps(payload(AgentMessage(message="done", phase=phase)))


@pytest.mark.parametrize("client_id", [None, "c"])
def test_input_of_texts_is_what_its_models_are_written_as(client_id: str | None) -> None:
    plain: list[JsonObject] = [{"type": "text", "text": "one"}, {"type": "text", "text": ""}]
    event = UserMessage(message="one\n", kind=UserMessageKind.PLAIN, client_id=client_id)
    assert dumps(user_message_event(plain, client_id)) == dumps(payload(event))
    parts = (InputText(text="one"), InputText(text=""))
    assert dumps(*input_messages(plain)) == dumps(payload(Message(role="user", content=parts)))
    # The long way, which an image makes input take.
    image: JsonObject = {"type": "image", "image_url": "data:,"}
    (message,) = input_messages([*plain, image])
    assert message["content"][:-1] == input_messages(plain)[0]["content"]
    told = user_message_event([*plain, image], client_id)
    assert told == {**user_message_event(plain, client_id), "images": ["data:,"]}


def test_no_payload_with_a_type_is_spelled_out_beside_its_model() -> None:
    found = [f"{name}:{line}" for name, module in sources(r'"type"|\btype=') for line in spelled_out(module)]
    assert found == [], "make it of its model (orchestrator.protocol.events, .items)"


@pytest.mark.parametrize(
    "written",
    [
        '{"type": "warning", "message": text}',
        '{"type": kind, "call_id": id}',
        '{"type": "a" if custom else "b"}',
        '{"message": text, **more, "type": "error"}',
        'dict(type="error", message=text)',
    ],
)
def test_payload_that_is_spelled_out_is_found(written: str) -> None:
    assert list(spelled_out(ast.parse(written))) == [1]


@pytest.mark.parametrize(
    "written",
    [
        '{"timestamp": at, "type": "event_msg", "payload": payload}',
        '{"type": INHERITED, "content": content}',
        "ev.WarningEvent(message=text)",
    ],
)
def test_line_or_model_is_not_taken_for_a_payload(written: str) -> None:
    assert not list(spelled_out(ast.parse(written)))


def test_tag_of_an_event_or_item_stands_in_no_call_that_would_make_one() -> None:
    """`make("agent_message", …)` would be a second constructor."""
    known = {*EVENTS, *tags(ResponseItem.__args__)}
    makers = {"event", "emit", "item"}
    found = [
        f"{name}:{node.lineno}"
        for name, module in sources(rf"\b({'|'.join(makers)})\(")
        for node in ast.walk(module)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute | ast.Name)
        and (node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id) in makers
        and any(isinstance(arg, ast.Constant) and arg.value in known for arg in node.args)
    ]
    assert found == []
