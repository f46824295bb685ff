"""Questions of MCP servers in the middle of a call, and the word of their start: how many, and whose."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from orchestrator.core.calls import Call, Mcp
from orchestrator.core.commands import CallFinished
from orchestrator.core.settings import SessionFacts, TurnSettings
from orchestrator.core.state import State
from orchestrator.mcp.server_records import Answer, Question, Started
from orchestrator.protocol.events import McpToolCallEnd, WarningEvent
from orchestrator.protocol.ids import CallId
from orchestrator.protocol.mcp import ElicitationAction, McpReady
from orchestrator.protocol.wire import JsonObject
from orchestrator.tools.mcp_tools import McpToolbox
from orchestrator.tools.tool_context import CallSite

ACCEPT, DECLINE = ElicitationAction.ACCEPT, ElicitationAction.DECLINE


@dataclass
class Asking:
    """Stands where the servers are: each call asks questions, and keeps the answers."""

    questions: Sequence[bool] = ()
    """Whether a person can answer each of them by yes or no."""
    answers: list[ElicitationAction] = field(default_factory=list)
    running: bool = False
    interrupted: bool = False

    async def start(self, session: str, cwd: Path, report: Any) -> Started:
        if not self.running:
            report("files", McpReady())
        self.running = True
        if self.interrupted:
            raise asyncio.CancelledError
        return Started(ready=("files",))

    async def call(self, tool: tuple[str, str], arguments: object, cwd: Path, ask: Any) -> Answer:
        for number, answerable in enumerate(self.questions, 1):
            self.answers.append(await ask(Question(tool[0], number, f"question {number}?", answerable)))
        return Answer("done", "done")


@dataclass
class Person:
    """Somebody who accepts all that they are asked."""

    asked: list[str] = field(default_factory=list)

    async def answer(self, call_id: CallId, server: str, message: str) -> ElicitationAction:
        self.asked.append(message)
        return ACCEPT


def state(session: str = "s1", **facts: Any) -> State:
    given = SessionFacts(session_id=cast(Any, session), tree_id=cast(Any, session), **facts)
    return State(facts=given, settings=TurnSettings("/w", "never", {"mode": "read-only"}, "m"))


async def ran(tools: McpToolbox, person: Person | None, at: State) -> CallFinished:
    work = Mcp("files", "wipe", None, "/w").work(sandboxed=False)
    call = Call(CallId("c1"), "mcp__files__wipe", {}, work=work)
    ask = None if person is None else person.answer
    return await tools.run(call, work, CallSite("claim", at, lambda _: None, ask=ask))


def warned(done: CallFinished) -> list[str]:
    """The warnings of a call's end, which stand before the event of it."""
    *warnings, end = done.events
    assert isinstance(end, McpToolCallEnd)
    assert all(isinstance(each, WarningEvent) for each in warnings)
    return [str(cast(WarningEvent, each).message) for each in warnings]


def named(number: int, why: str, warning: str) -> bool:
    return f"'question {number}?'; its question was declined: " in warning and why in warning


@pytest.mark.parametrize("count", [1, 8, 9, 11])
async def test_person_is_asked_eight_questions_of_a_call_and_each_further_one_is_declined_with_a_warning(
    count: int,
) -> None:
    servers = Asking([True] * count)
    tools = McpToolbox(cast(Any, servers))
    # The next call has as many questions again.
    for _ in range(2):
        person, servers.answers = Person(), []
        warnings = warned(await ran(tools, person, state()))
        assert person.asked == [f"question {number}?" for number in range(1, count + 1)][:8]
        assert servers.answers == [ACCEPT] * min(count, 8) + [DECLINE] * max(0, count - 8)
        assert len(warnings) == max(0, count - 8)
        assert all(named(at, "at most 8 questions", each) for at, each in enumerate(warnings, 9))


@pytest.mark.parametrize(
    ("facts", "there", "why"),
    [({"helper_call": "h1"}, True, "it asks nobody"), ({}, False, "nobody can be asked here")],
)
async def test_question_is_declined_with_a_warning_for_a_helper_and_where_nobody_can_be_asked(
    facts: dict[str, Any], there: bool, why: str
) -> None:
    servers, person = Asking([True] * 3), Person()
    done = await ran(McpToolbox(cast(Any, servers)), person if there else None, state(**facts))
    assert (person.asked, servers.answers) == ([], [DECLINE] * 3)
    assert [named(at, why, each) for at, each in enumerate(warned(done), 1)] == [True] * 3


async def test_question_for_more_than_yes_or_no_is_declined_with_a_warning_among_others_that_are_put() -> (
    None
):
    servers, person = Asking([True, False, True, False]), Person()
    warnings = warned(await ran(McpToolbox(cast(Any, servers)), person, state()))
    assert person.asked == ["question 1?", "question 3?"]
    assert servers.answers == [ACCEPT, DECLINE, ACCEPT, DECLINE]
    why = "a person can answer yes or no, and it wants more"
    assert [named(at, why, each) for at, each in zip((2, 4), warnings, strict=True)] == [True, True]


async def test_warnings_about_the_questions_of_a_call_have_a_bound() -> None:
    done = await ran(McpToolbox(cast(Any, Asking([False] * 40))), Person(), state())
    assert len(warned(done)) == 8


async def test_each_session_is_told_once_that_its_servers_have_started() -> None:
    tools, told = McpToolbox(cast(Any, Asking())), list[str]()
    for session in ("s1", "s2", "s1", "s3", "s2"):
        shown: list[JsonObject] = []
        await tools.prepare(state(session), shown.append)
        told += [session for event in shown if event["type"] == "mcp_startup_complete"]
    assert told == ["s1", "s2", "s3"]


async def test_session_is_told_of_all_behind_each_start_that_it_is_told_of() -> None:
    """A client shows that servers start until it hears that all have."""
    servers = Asking()
    tools, kinds = McpToolbox(cast(Any, servers)), list[Any]()
    for servers.running, servers.interrupted in (
        (False, False),
        (False, False),
        (False, True),
        (True, False),
    ):
        with suppress(asyncio.CancelledError):
            await tools.prepare(state(), lambda event: kinds.append(event["type"]))
    await tools.prepare(state(), lambda event: kinds.append(event["type"]))
    assert kinds == ["mcp_startup_update", "mcp_startup_complete"] * 3
