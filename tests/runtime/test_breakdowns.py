"""Something inside a worker breaks: it is told, contained, and never passed over."""

from __future__ import annotations

import asyncio

from orchestrator.model.events import TextDelta
from orchestrator.runtime.runner import Ended
from tests.runtime.players import calls, ends, message
from tests.runtime.stage import Stage
from tests.runtime.test_worker_claims import at_work
from tests.runtime.wires import Gate


async def test_a_tool_that_breaks_down_ends_its_command_for_people_and_model(stage: Stage) -> None:
    session = await stage.session()
    stage.tools.fails["c1"] = RuntimeError("out of descriptors")
    stage.models.will([calls("c1"), ends()])
    await stage.say(session)
    assert await stage.run(session) is Ended.PARKED
    assert "out of descriptors" in stage.models.outputs()["c1"]
    (end,) = await stage.logged_events(session, "exec_command_end")
    assert end["exit_code"] == -1


async def test_a_model_client_that_breaks_down_fails_the_task_and_not_the_session(stage: Stage) -> None:
    session = await stage.session()
    stage.models.will([RuntimeError("a bug")])
    await stage.say(session)
    assert await stage.run(session) is Ended.PARKED
    (error,) = await stage.logged_events(session, "error")
    assert "a bug" in error["message"]
    await stage.say(session)
    assert await stage.run(session) is Ended.PARKED
    assert [fact["outcome"] for fact in await stage.facts(session, "task_ended")] == ["failed", "completed"]


async def test_a_damaged_session_does_not_hide_those_behind_it(stage: Stage) -> None:
    damaged, sound = await stage.session(), await stage.session()
    await stage.say(damaged)
    await stage.broker.command("SET", stage.broker.keys.sq(damaged), "not a stream")
    await stage.say(sound)
    async with at_work(stage.worker()):
        await stage.until(sound, "task_complete")
        await stage.say(sound)
        await stage.until(sound, "task_complete")


async def test_a_delta_that_comes_while_another_is_being_sent_is_sent_as_well(stage: Stage) -> None:
    session, sending, more, silence = await stage.session(), Gate(), Gate(), Gate()
    stage.models.will([TextDelta("one"), more, TextDelta("two"), silence, message("one two"), ends()])
    await stage.say(session)
    stage.wire.before["emit"] = sending.wait
    running = asyncio.create_task(stage.run(session))
    await sending.reached.wait()
    more.open()
    await silence.reached.wait()
    del stage.wire.before["emit"]
    sending.open()
    assert (await stage.until(session, "agent_message_delta"))[-1].msg["delta"] == "one"
    assert (await stage.until(session, "agent_message_delta"))[-1].msg["delta"] == "two"
    assert not silence.opened.is_set()
    silence.open()
    assert await running is Ended.PARKED
