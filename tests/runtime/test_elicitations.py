"""Questions of MCP servers in the middle of calls: each is told apart, waits, and is withdrawn by itself."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from orchestrator.core import commands as c
from orchestrator.protocol.ids import CallId
from orchestrator.protocol.mcp import ElicitationAction
from orchestrator.runtime.side_work import Elicitations


class Heard:
    """The commands that the questions of a session become."""

    def __init__(self) -> None:
        self.told: list[c.Command] = []

    def push(self, command: c.Command) -> None:
        self.told.append(command)


def asks(asked: Elicitations, call_id: str, words: str = "may I?") -> asyncio.Task[ElicitationAction]:
    return asyncio.create_task(asked.ask(CallId(call_id), "files", words))


async def test_each_question_of_each_call_has_an_id_and_gets_its_own_decision() -> None:
    heard: Any = Heard()
    asked = Elicitations(heard)
    waiting = [asks(asked, call, words) for call, words in (("c1", "a?"), ("c2", "b?"), ("c1", "c?"))]
    await asyncio.sleep(0)
    assert heard.told == [
        c.Elicited(CallId("c1"), "c1-q1", "files", "a?"),
        c.Elicited(CallId("c2"), "c2-q1", "files", "b?"),
        c.Elicited(CallId("c1"), "c1-q2", "files", "c?"),
    ]
    # In another order than they came, each told more than once, and those of nobody.
    for id, decision in (("c1-q2", "cancel"), ("c2-q1", "accept"), ("c9-q1", "accept"), ("c1-q1", "decline")):
        asked.decided(id, decision)
        asked.decided(id, "accept")
    assert [await each for each in waiting] == ["decline", "accept", "cancel"]
    # One that is over is not asked again under its id.
    again = asks(asked, "c1")
    await asyncio.sleep(0)
    assert heard.told[-1] == c.Elicited(CallId("c1"), "c1-q3", "files", "may I?")
    asked.decided("c1-q1", "accept")
    asked.decided("c1-q3", "decline")
    assert await again == "decline"
    assert len(heard.told) == 4, "what was answered is not withdrawn"


@pytest.mark.parametrize("decision", [*ElicitationAction, "of a later version", ""])
async def test_decision_that_is_not_known_accepts_nothing(decision: str) -> None:
    asked = Elicitations(Heard())  # type: ignore[arg-type]
    waiting = asks(asked, "c1")
    await asyncio.sleep(0)
    asked.decided("c1-q1", decision)
    assert await waiting == (decision if decision in tuple(ElicitationAction) else "cancel")


@pytest.mark.parametrize("stopped", [0, 1, 2])
async def test_question_of_a_call_that_is_stopped_is_withdrawn_and_no_other_is(stopped: int) -> None:
    heard: Any = Heard()
    asked = Elicitations(heard)
    waiting = [asks(asked, call) for call in ("c1", "c2", "c1")]
    await asyncio.sleep(0)
    ids = [command.id for command in heard.told]
    waiting[stopped].cancel()
    await asyncio.wait({waiting[stopped]})
    assert waiting[stopped].cancelled()
    assert heard.told[3:] == [c.ElicitationDropped(ids[stopped])]
    for id in ids:
        asked.decided(id, "accept")
    left = [each for at, each in enumerate(waiting) if at != stopped]
    assert [await each for each in left] == ["accept", "accept"]
    assert len(heard.told) == 4
