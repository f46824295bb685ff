"""Nothing starts before the step that decided it is in the log; nothing starts twice."""

from __future__ import annotations

import asyncio

from orchestrator.runtime.runner import Ended
from tests.runtime.players import calls, ends, message
from tests.runtime.stage import Stage
from tests.runtime.wires import Gate, lost


async def test_a_command_that_ends_while_another_step_is_being_committed_is_not_run_again(
    stage: Stage,
) -> None:
    session, running, streaming, committing = await stage.session(), Gate(), Gate(), Gate()
    stage.models.will([calls("c1"), streaming, ends()])
    stage.tools.gates["c1"] = running
    await stage.say(session)
    runner = stage.runner(await stage.claimed(session))
    task = asyncio.create_task(runner.run())
    await stage.tools.began("c1").wait()

    stage.wire.before["commit"] = committing.wait
    streaming.open()
    await committing.reached.wait()
    running.open()
    while not stage.tools.ended:
        await asyncio.sleep(0)
    del stage.wire.before["commit"]
    committing.open()

    assert await task is Ended.PARKED
    assert stage.tools.started == {"c1": 1}
    assert len(stage.models.prompts) == 2, "nor is a request sent again"


async def test_a_session_is_given_back_although_its_stream_ends_after_its_last_word(stage: Stage) -> None:
    session, closing = await stage.session(), Gate()
    stage.models.will([message("Done."), ends(), closing])
    await stage.say(session)
    runner = asyncio.create_task(stage.runner(await stage.claimed(session)).run())
    await stage.until(session, "task_complete")
    closing.open()
    assert await runner is Ended.PARKED
    head = await stage.broker.head(session)
    assert head is not None
    assert head.holder is None


async def test_a_command_whose_step_lost_its_answer_is_started_once(stage: Stage) -> None:
    session = await stage.session()
    stage.models.will([calls("c1")])
    stage.wire.after["commit"] = lost(4)
    await stage.say(session)
    assert await stage.run(session) is Ended.PARKED
    assert stage.tools.started == {"c1": 1}
    running = [fact for fact in await stage.facts(session, "call") if fact["phase"] == "running"]
    assert len(running) == 1
    assert len(await stage.facts(session, "task")) == 1


async def test_nothing_starts_while_its_step_is_not_answered(stage: Stage) -> None:
    session, held = await stage.session(), Gate()
    stage.models.will([calls("c1")])
    await stage.say(session)
    stage.wire.before["commit"] = held.wait
    runner = asyncio.create_task(stage.runner(await stage.claimed(session)).run())
    await held.reached.wait()
    assert not stage.models.prompts, "the request is not begun in the log"
    held.open()
    assert await runner is Ended.PARKED


async def test_nothing_starts_after_a_step_that_was_fenced(stage: Stage) -> None:
    session = await stage.session()
    await stage.say(session)

    async def revoked(_: object) -> None:
        await stage.broker.revoke(session)

    stage.wire.before["commit"] = revoked
    before = len(await stage.log(session))
    assert await stage.run(session) is Ended.LOST
    assert not stage.models.prompts
    assert len(await stage.log(session)) == before, "nothing was written either"
