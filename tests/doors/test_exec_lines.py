"""Lines of exec-json, made of the projector's changes: items by number, plans, errors, figures."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from orchestrator.broker.follow import BEGINNING, EqCursor
from orchestrator.core.ids import SessionId
from orchestrator.gateways.client import Client
from orchestrator.gateways.exec_json import ExecWriter, OneTurn, Run
from orchestrator.protocol.events import TokenUsage
from orchestrator.protocol.ops import UserInput
from orchestrator.protocol.scalars import ExecCommandSource
from orchestrator.protocol.submission import Submission
from orchestrator.views.event import Event
from orchestrator.views.turns import turn_records as r
from tests.acceptance.conversation import PATIENCE_S

TURN, ITEM = r.TurnId("t"), r.ItemId("t-1")


def lines(*changes: r.Change, writer: ExecWriter | None = None) -> list[dict[str, Any]]:
    writer = writer or ExecWriter()
    return [line for change in changes for line in writer.receive(change)]


def plan(*done: bool) -> r.PlanUpdated:
    steps = tuple((f"step {n}", "completed" if one else "pending") for n, one in enumerate(done))
    return r.PlanUpdated(TURN, None, steps)


def ended(status: r.TurnStatus, fault: r.Fault | None = None) -> r.TurnCompleted:
    return r.TurnCompleted(r.Turn(TURN, status, fault=fault))


def test_warnings_stand_between_the_thread_and_its_turn() -> None:
    writer = ExecWriter()
    told = [
        *writer.opened(SessionId("id"), ("no such key",)),
        *lines(r.TurnStarted(r.Turn(TURN)), writer=writer),
    ]
    assert told == [
        {"type": "thread.started", "thread_id": "id"},
        {"type": "item.completed", "item": {"id": "item_0", "type": "error", "message": "no such key"}},
        {"type": "turn.started"},
    ]


def test_plan_begins_changes_and_ends_with_its_turn() -> None:
    told = lines(plan(False, False), plan(True, False), ended(r.TurnStatus.COMPLETED))
    assert [line["type"] for line in told] == [
        "item.started",
        "item.updated",
        "item.completed",
        "turn.completed",
    ]
    assert {line["item"]["id"] for line in told[:3]} == {"item_0"}
    assert told[2]["item"]["items"] == [
        {"text": "step 0", "completed": True},
        {"text": "step 1", "completed": False},
    ]


def test_reader_is_told_whole_texts_only_and_no_reasoning_that_is_hidden() -> None:
    message, thought = r.AgentMessage(ITEM, "hi"), r.Reasoning(ITEM, ("**a**", "b"))
    told = lines(
        r.ItemStarted(TURN, message),
        r.ItemDelta(TURN, ITEM, r.DeltaKind.MESSAGE, "hi"),
        r.ItemCompleted(TURN, r.Reasoning(r.ItemId("x"))),
        r.ItemCompleted(TURN, thought),
    )
    assert told == [
        {"type": "item.completed", "item": {"id": "item_0", "type": "reasoning", "text": "**a**\nb"}}
    ]


@pytest.mark.parametrize(
    ("status", "shown"), [("completed", "completed"), ("declined", "declined"), ("interrupted", "failed")]
)
def test_command_keeps_its_number_from_its_begin_to_its_end(status: str, shown: str) -> None:
    began = r.CommandExecution(ITEM, ("bash", "-lc", "echo it's"), "/w", source=ExecCommandSource.AGENT)
    done = r.CommandExecution(ITEM, began.command, "/w", r.ItemStatus(status), output="it's\n", exit_code=0)
    first, last = lines(r.ItemStarted(TURN, began), r.ItemCompleted(TURN, done))
    command = "bash -lc 'echo it'\"'\"'s'"
    assert first["item"] == {
        "id": "item_0",
        "type": "command_execution",
        "command": command,
        "aggregated_output": "",
        "exit_code": None,
        "status": "in_progress",
    }
    assert last["item"] == {**first["item"], "aggregated_output": "it's\n", "exit_code": 0, "status": shown}


def test_tools_of_dendro_are_shown_as_those_of_a_server() -> None:
    call = r.DynamicToolCall(
        ITEM, "watchdog", {"a": 1}, "dendro", r.ItemStatus.FAILED, output="no", success=False
    )
    [told] = lines(r.ItemCompleted(TURN, call))
    assert told["item"] == {
        "id": "item_0",
        "type": "mcp_tool_call",
        "server": "dendro",
        "tool": "watchdog",
        "arguments": {"a": 1},
        "result": None,
        "error": {"message": "no"},
        "status": "failed",
    }


def test_images_of_a_clients_tool_are_blocks_of_an_answer_of_a_server() -> None:
    parts = (
        {"type": "input_text", "text": "seen"},
        {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgoA"},
        {"type": "input_image", "image_url": "https://example.org/a.png"},
    )
    call = r.DynamicToolCall(
        ITEM, "look", None, None, r.ItemStatus.COMPLETED, output="seen", success=True, parts=parts
    )
    [told] = lines(r.ItemCompleted(TURN, call))
    assert told["item"]["result"]["content"] == [
        {"type": "text", "text": "seen"},
        {"type": "image", "data": "iVBORw0KGgoA", "mimeType": "image/png"},
        {"type": "resource_link", "uri": "https://example.org/a.png", "name": "image"},
    ]


def test_failed_turn_tells_why_and_an_interrupted_one_that_it_was() -> None:
    fault = r.Fault("no money")
    told = lines(r.TurnError(TURN, fault, will_retry=False), ended(r.TurnStatus.FAILED, fault))
    assert told == [
        {"type": "error", "message": "no money"},
        {"type": "turn.failed", "error": {"message": "no money"}},
    ]
    [stopped] = lines(ended(r.TurnStatus.INTERRUPTED))
    assert stopped == {"type": "turn.failed", "error": {"message": "the turn was interrupted"}}


def test_figures_are_those_of_the_thread() -> None:
    before = TokenUsage(input_tokens=100, output_tokens=20)
    [untold] = lines(ended(r.TurnStatus.COMPLETED), writer=ExecWriter(before))
    assert untold["usage"]["input_tokens"] == 100
    total = TokenUsage(input_tokens=300, cached_input_tokens=50, output_tokens=60, reasoning_output_tokens=5)
    told = lines(
        r.TokenUsageUpdated(TURN, total, before), ended(r.TurnStatus.COMPLETED), writer=ExecWriter(before)
    )
    assert told[-1]["usage"] == {
        "input_tokens": 300,
        "cached_input_tokens": 50,
        "cache_write_input_tokens": 0,
        "output_tokens": 60,
        "reasoning_output_tokens": 5,
    }


NOT_TAKEN = "c1 was not answered: answers have to be signed here; it stays open"


class Refusing(Client):
    """A session whose turn asks about a command, and its word on the refusal of a run that joined it."""

    def __init__(self, says: str) -> None:
        self._says, self._handed_in = says, list[Submission]()

    async def submit(self, session: SessionId, submission: Submission) -> None:  # type: ignore[override]
        self._handed_in.append(submission)

    async def follow(self, session: SessionId, cursor: EqCursor) -> AsyncIterator[Event]:  # type: ignore[override]
        mine = self._handed_in[0].id
        yield Event(mine, {"type": "input_accepted", "turn_id": "t", "delivery": "steered"})
        yield Event("t", {"type": "exec_approval_request", "call_id": "c1", "command": ["make"], "cwd": "/w"})
        refusal = self._handed_in[1]
        if self._says == "decided":
            told = {"call_id": "c1", "turn_id": "t"} | {
                "decision": "approved",
                "who": "ada",
                "resolved_at_ms": 1,
            }
            yield Event("t", {"type": "request_resolved", **told})
        yield Event(refusal.id, {"type": "error", "message": NOT_TAKEN})
        yield Event("t", {"type": "task_complete", "last_agent_message": "done"})


@pytest.mark.parametrize(
    ("says", "completed", "last"),
    [
        ("no", False, {"type": "turn.failed", "error": {"message": NOT_TAKEN}}),
        ("decided", True, {"type": "turn.completed"}),
    ],
)
async def test_run_ends_whose_refusal_a_session_does_not_take(
    says: str, completed: bool, last: dict[str, Any]
) -> None:
    written = list[bytes]()

    async def write(line: bytes) -> None:
        written.append(line)

    turn = OneTurn(Run(Refusing(says), SessionId("s"), write, print), ExecWriter())
    turn.know([Event("t", {"type": "task_started", "model_context_window": 1})])
    async with asyncio.timeout(PATIENCE_S):
        assert await turn.hold(UserInput(items=()), BEGINNING) is completed
    assert json.loads(written[-1]).items() >= last.items()


@pytest.mark.parametrize("status", [one for one in r.TurnStatus if one is not r.TurnStatus.IN_PROGRESS])
def test_plan_ends_with_its_turn_however_that_ends(status: r.TurnStatus) -> None:
    told = lines(plan(False), ended(status, r.Fault("it broke")))
    last = "turn.completed" if status is r.TurnStatus.COMPLETED else "turn.failed"
    assert [line["type"] for line in told] == ["item.started", "item.completed", last]
