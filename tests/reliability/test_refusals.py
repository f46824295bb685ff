"""Redis that is full, and submissions that come twice."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from orchestrator.broker.errors import OutOfMemory, SubmissionConflict
from orchestrator.protocol import ops
from orchestrator.protocol.ids import SubmissionId
from orchestrator.protocol.submission import Submission
from orchestrator.runtime.runner import Ended
from tests.runtime.conftest import harness, redis_server
from tests.runtime.connections import Gate
from tests.runtime.harness import Harness
from tests.runtime.players import calls, ends

__all__ = ["harness", "redis_server"]
pytestmark = pytest.mark.realredis


async def limit_memory(harness: Harness, size: int) -> None:
    await harness.broker.command("CONFIG", "SET", "maxmemory", size)


@pytest.fixture(autouse=True)
async def unlimited(harness: Harness) -> Any:
    yield
    await limit_memory(harness, 0)


async def test_a_full_redis_refuses_a_submission_in_words_and_keeps_nothing_of_it(harness: Harness) -> None:
    session = await harness.session()
    await limit_memory(harness, 1)
    with pytest.raises(OutOfMemory, match="maxmemory"):
        await harness.say(session, id="refused")
    await limit_memory(harness, 0)
    head = await harness.broker.logs.head(session)
    assert head is not None
    assert head.cursor == head.sq_tip
    await harness.say(session, id="refused")
    assert await harness.run(session) is Ended.PARKED
    assert [fact["id"] for fact in await harness.facts(session, "task")] == ["refused"]


async def test_a_command_that_ends_while_redis_is_full_is_recorded_when_there_is_room(
    harness: Harness,
) -> None:
    session, command, refused = await harness.session(), Gate(), asyncio.Event()
    harness.models.will([calls("c1"), ends()])
    harness.tools.gates["c1"] = command
    await harness.say(session)
    runner = asyncio.create_task(harness.runner(await harness.claimed(session)).run())
    await harness.tools.began("c1").wait()
    await limit_memory(harness, 1)
    sent = harness.connection.sent["commit"]

    async def noted(_: object) -> None:
        if harness.connection.sent["commit"] > sent + 2:
            refused.set()

    harness.connection.before["commit"] = noted
    command.open()
    await refused.wait()
    assert not runner.done()
    await limit_memory(harness, 0)
    assert await runner is Ended.PARKED
    assert harness.tools.started == {"c1": 1}
    assert harness.models.outputs()["c1"] == "output of c1"


async def test_a_worker_outlives_a_full_redis(harness: Harness) -> None:
    session, tried = await harness.session(), asyncio.Event()
    await harness.say(session)
    await limit_memory(harness, 1)

    async def noted(_: object) -> None:
        tried.set()

    harness.connection.before["claim"] = noted
    worker = harness.worker()
    running = asyncio.create_task(worker.run())
    await asyncio.wait_for(tried.wait(), 20)
    await limit_memory(harness, 0)
    await harness.until(session, "task_complete")
    worker.drain()
    await running


async def test_a_submission_sent_twice_is_acknowledged_twice_and_applied_once(harness: Harness) -> None:
    session = await harness.session()
    said = Submission(
        SubmissionId("twice"), ops.UserInput(items=cast(Any, ({"type": "text", "text": "once"},)))
    )
    first = await harness.client.submit(session, said)
    again = await harness.client.submit(session, said)
    assert (first.duplicate, again.duplicate, first.sq_id == again.sq_id) == (False, True, True)
    assert await harness.run(session) is Ended.PARKED
    assert (await harness.client.submit(session, said)).duplicate, "also when it was applied long ago"
    assert len(await harness.facts(session, "task")) == 1


async def test_a_submission_under_a_used_id_with_another_op_is_refused(harness: Harness) -> None:
    session = await harness.session()
    await harness.say(session, "one thing", "used")
    with pytest.raises(SubmissionConflict, match="used"):
        await harness.say(session, "another thing", "used")
    assert await harness.run(session) is Ended.PARKED
    assert [e["message"] for e in await harness.logged_events(session, "user_message")] == ["one thing"]
