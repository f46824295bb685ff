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
from tests.runtime.conftest import redis_server, stage
from tests.runtime.players import calls, ends
from tests.runtime.stage import Stage
from tests.runtime.wires import Gate

__all__ = ["redis_server", "stage"]
pytestmark = pytest.mark.realredis


async def limit_memory(stage: Stage, size: int) -> None:
    await stage.broker.command("CONFIG", "SET", "maxmemory", size)


@pytest.fixture(autouse=True)
async def unlimited(stage: Stage) -> Any:
    yield
    await limit_memory(stage, 0)


async def test_a_full_redis_refuses_a_submission_in_words_and_keeps_nothing_of_it(stage: Stage) -> None:
    session = await stage.session()
    await limit_memory(stage, 1)
    with pytest.raises(OutOfMemory, match="maxmemory"):
        await stage.say(session, id="refused")
    await limit_memory(stage, 0)
    head = await stage.broker.head(session)
    assert head is not None
    assert head.cursor == head.sq_tip
    await stage.say(session, id="refused")
    assert await stage.run(session) is Ended.PARKED
    assert [fact["id"] for fact in await stage.facts(session, "task")] == ["refused"]


async def test_a_command_that_ends_while_redis_is_full_is_recorded_when_there_is_room(stage: Stage) -> None:
    session, command, refused = await stage.session(), Gate(), asyncio.Event()
    stage.models.will([calls("c1"), ends()])
    stage.tools.gates["c1"] = command
    await stage.say(session)
    runner = asyncio.create_task(stage.runner(await stage.claimed(session)).run())
    await stage.tools.began("c1").wait()
    await limit_memory(stage, 1)
    sent = stage.wire.sent["commit"]

    async def noted(_: object) -> None:
        if stage.wire.sent["commit"] > sent + 2:
            refused.set()

    stage.wire.before["commit"] = noted
    command.open()
    await refused.wait()
    assert not runner.done()
    await limit_memory(stage, 0)
    assert await runner is Ended.PARKED
    assert stage.tools.started == {"c1": 1}
    assert stage.models.outputs()["c1"] == "output of c1"


async def test_a_worker_outlives_a_full_redis(stage: Stage) -> None:
    session, tried = await stage.session(), asyncio.Event()
    await stage.say(session)
    await limit_memory(stage, 1)

    async def noted(_: object) -> None:
        tried.set()

    stage.wire.before["claim"] = noted
    worker = stage.worker()
    running = asyncio.create_task(worker.run())
    await asyncio.wait_for(tried.wait(), 20)
    await limit_memory(stage, 0)
    await stage.until(session, "task_complete")
    worker.drain()
    await running


async def test_a_submission_sent_twice_is_acknowledged_twice_and_applied_once(stage: Stage) -> None:
    session = await stage.session()
    said = Submission(
        SubmissionId("twice"), ops.UserInput(items=cast(Any, ({"type": "text", "text": "once"},)))
    )
    first = await stage.client.submit(session, said)
    again = await stage.client.submit(session, said)
    assert (first.duplicate, again.duplicate, first.sq_id == again.sq_id) == (False, True, True)
    assert await stage.run(session) is Ended.PARKED
    assert (await stage.client.submit(session, said)).duplicate, "also when it was applied long ago"
    assert len(await stage.facts(session, "task")) == 1


async def test_a_submission_under_a_used_id_with_another_op_is_refused(stage: Stage) -> None:
    session = await stage.session()
    await stage.say(session, "one thing", "used")
    with pytest.raises(SubmissionConflict, match="used"):
        await stage.say(session, "another thing", "used")
    assert await stage.run(session) is Ended.PARKED
    assert [e["message"] for e in await stage.logged_events(session, "user_message")] == ["one thing"]
