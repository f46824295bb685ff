"""Nothing starts before the step that decided it is in the log; nothing starts twice."""

from __future__ import annotations

import asyncio

from orchestrator.runtime.runner import Ended
from tests.runtime.connections import Gate, lost
from tests.runtime.harness import Harness
from tests.runtime.players import calls, ends, message


async def test_a_command_that_ends_while_another_step_is_being_committed_is_not_run_again(
    harness: Harness,
) -> None:
    session, running, streaming, committing = await harness.session(), Gate(), Gate(), Gate()
    harness.models.will([calls("c1"), streaming, ends()])
    harness.tools.gates["c1"] = running
    await harness.say(session)
    runner = harness.runner(await harness.claimed(session))
    task = asyncio.create_task(runner.run())
    await harness.tools.began("c1").wait()

    harness.connection.before["commit"] = committing.wait
    streaming.open()
    await committing.reached.wait()
    running.open()
    while not harness.tools.ended:
        await asyncio.sleep(0)
    del harness.connection.before["commit"]
    committing.open()

    assert await task is Ended.PARKED
    assert harness.tools.started == {"c1": 1}
    assert len(harness.models.prompts) == 2, "nor is a request sent again"


async def test_a_session_is_given_back_although_its_stream_ends_after_its_last_word(harness: Harness) -> None:
    session, closing = await harness.session(), Gate()
    harness.models.will([message("Done."), ends(), closing])
    await harness.say(session)
    runner = asyncio.create_task(harness.runner(await harness.claimed(session)).run())
    await harness.until(session, "task_complete")
    closing.open()
    assert await runner is Ended.PARKED
    head = await harness.broker.logs.head(session)
    assert head is not None
    assert head.holder is None


async def test_a_command_whose_step_lost_its_answer_is_started_once(harness: Harness) -> None:
    session = await harness.session()
    harness.models.will([calls("c1")])
    harness.connection.after["commit"] = lost(4)
    await harness.say(session)
    assert await harness.run(session) is Ended.PARKED
    assert harness.tools.started == {"c1": 1}
    running = [fact for fact in await harness.facts(session, "call") if fact["phase"] == "running"]
    assert len(running) == 1
    assert len(await harness.facts(session, "task")) == 1


async def test_nothing_starts_while_its_step_is_not_answered(harness: Harness) -> None:
    session, held = await harness.session(), Gate()
    harness.models.will([calls("c1")])
    await harness.say(session)
    harness.connection.before["commit"] = held.wait
    runner = asyncio.create_task(harness.runner(await harness.claimed(session)).run())
    await held.reached.wait()
    assert not harness.models.prompts, "the request is not begun in the log"
    held.open()
    assert await runner is Ended.PARKED


async def test_nothing_starts_after_a_step_that_was_fenced(harness: Harness) -> None:
    session = await harness.session()
    await harness.say(session)

    async def revoked(_: object) -> None:
        await harness.broker.trees.revoke(session)

    harness.connection.before["commit"] = revoked
    before = len(await harness.log(session))
    assert await harness.run(session) is Ended.LOST
    assert not harness.models.prompts
    assert len(await harness.log(session)) == before, "nothing was written either"
