"""A worker goes back to turns that a compaction summed up: it reads the log for them, over losses too."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from orchestrator.core.ids import SessionId
from orchestrator.protocol import ops
from orchestrator.runtime import lookups
from orchestrator.runtime.runner import Ended
from tests.broker.actors import holder_died
from tests.runtime.connections import Gate, Hook
from tests.runtime.harness import Harness
from tests.runtime.players import calls, ends, message

LONG = "a very long answer " * 500


async def summed_up(harness: Harness) -> SessionId:
    """A session with turns `r1` (its output is stored beside the log) and `r2`, then a compaction."""
    session = await harness.session()
    harness.tools.outputs["c1"] = LONG
    harness.models.will(
        [calls("c1"), ends("r0")],
        [message("one"), ends("r1")],
        [message("two"), ends("r2")],
        [message("sum")],
    )
    for words in ("first", "second"):
        await harness.say(session, words)
        assert await harness.run(session) is Ended.PARKED
    await harness.submit(session, ops.Compact())
    assert await harness.run(session) is Ended.PARKED
    return session


async def goes_back(harness: Harness, session: SessionId, response_id: str, id: str = "back") -> None:
    item = {"type": "text", "text": "instead"}
    op = ops.UserInput.model_validate(
        {"type": "user_input", "items": [item], "last_response_id": response_id}
    )
    await harness.submit(session, op, id)


def on_the_log(gate: Gate) -> Hook:
    """Waits before entries of a log are read."""

    async def wait(args: Sequence[Any]) -> None:
        if b"rollout" in (args[1] if isinstance(args[1], bytes) else str(args[1]).encode()):
            await gate.wait()

    return wait


def texts(items: Sequence[Any]) -> list[str]:
    return [part["text"] for item in items for part in item.get("content") or ()]


async def test_request_is_the_conversation_of_then_and_the_new_words(harness: Harness) -> None:
    session = await summed_up(harness)
    await goes_back(harness, session, "r1")
    assert await harness.run(session) is Ended.PARKED
    then, now = harness.models.prompts[2].input, harness.models.prompts[-1].input
    assert [*now[:-1], then[-1]] == list(then), "turn 2 was asked with the same conversation"
    assert texts(now)[-1] == "instead"
    assert LONG in str(now)
    assert await harness.digest(session) == await harness.live_digest(session)


async def test_next_worker_finds_the_turn_that_a_lost_one_looked_for(harness: Harness) -> None:
    session = await summed_up(harness)
    gate = Gate()
    harness.connection.before["XRANGE"] = on_the_log(gate)
    await goes_back(harness, session, "r1")
    runner = harness.runner(await harness.claimed(session, "lost"))
    task = asyncio.create_task(runner.run())
    await gate.reached.wait()
    runner.lose()
    gate.open()
    assert await task is Ended.LOST
    await holder_died(harness.broker, session)
    assert await harness.run(session) is Ended.PARKED
    assert len(await harness.facts(session, "rewound")) == 1
    assert texts(harness.models.prompts[-1].input)[-2:] == ["one", "instead"]


async def test_other_submissions_are_answered_while_the_log_is_read(harness: Harness) -> None:
    session = await summed_up(harness)
    gate = Gate()
    harness.connection.before["XRANGE"] = on_the_log(gate)
    await goes_back(harness, session, "r1")
    runner = harness.runner(await harness.claimed(session))
    running = asyncio.create_task(runner.run())
    await gate.reached.wait()
    await harness.submit(session, ops.ListCustomPrompts(), "l1")
    runner.notify()
    assert (await harness.until(session, "list_custom_prompts_response"))[-1].id == "l1"
    gate.open()
    assert await running is Ended.PARKED
    assert texts(harness.models.prompts[-1].input)[-1] == "instead"


async def test_turn_that_the_log_does_not_have_fails_the_task(harness: Harness) -> None:
    session = await summed_up(harness)
    head = await harness.broker.logs.head(session)
    assert head is not None
    left = harness.cache.take(session)
    assert left is not None
    await goes_back(harness, session, "r1")
    harness.cache.keep(session, left)
    entries = await harness.log(session)
    gone = next(e.seq for e in entries if b'"response_id":"r1"' in e.payload)
    await harness.connection.command("XDEL", f"dendro:{{s1}}:rollout:{session}", f"{gone}-0")
    assert await harness.run(session) is Ended.PARKED
    (error,) = await harness.logged_events(session, "error")
    assert "cannot be gone back to: the log cannot be read back to it" in error["message"]
    assert (await harness.logged_events(session, "task_complete"))[-1]["last_agent_message"] is None


async def test_conversation_that_is_too_large_is_not_put_back(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await summed_up(harness)
    monkeypatch.setattr(lookups, "MOST_BYTES", 100)
    await goes_back(harness, session, "r1")
    assert await harness.run(session) is Ended.PARKED
    (error,) = await harness.logged_events(session, "error")
    assert "at most 100 can be put back" in error["message"]
    assert await harness.facts(session, "rewound") == []
