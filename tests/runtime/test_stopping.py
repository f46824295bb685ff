"""Interrupts, replacements, and a worker that leaves: what runs is stopped, once, and recorded as it was."""

from __future__ import annotations

import asyncio
from typing import Any

from orchestrator.model.events import TextDelta
from orchestrator.protocol import ops
from orchestrator.runtime.runner import Ended, Runner
from tests.runtime.players import calls, ends, message
from tests.runtime.stage import Stage
from tests.runtime.wires import Gate


async def running(stage: Stage, session: str, **config: Any) -> tuple[Runner, asyncio.Task[Ended]]:
    claimed = await stage.claimed(session)  # type: ignore[arg-type]
    runner = stage.runner(claimed, **config)
    return runner, asyncio.create_task(runner.run())


async def test_an_interrupt_closes_the_stream_and_keeps_what_was_said(stage: Stage) -> None:
    session, silence = await stage.session(), Gate()
    stage.models.will([message("First."), TextDelta("Sec"), silence])
    await stage.say(session)
    runner, task = await running(stage, session)
    await silence.reached.wait()
    await stage.submit(session, ops.Interrupt())
    runner.poke()
    assert await task is Ended.PARKED
    assert stage.models.streaming == 0
    assert [e["reason"] for e in await stage.logged_events(session, "turn_aborted")] == ["interrupted"]
    assert [e["message"] for e in await stage.logged_events(session, "agent_message")] == ["First."]


async def test_an_interrupt_waits_for_the_proof_that_the_command_is_dead(stage: Stage) -> None:
    session, death = await stage.session(), Gate()
    stage.models.will([calls("c1"), ends()])
    stage.tools.gates["c1"], stage.tools.deaths["c1"] = Gate(), death
    await stage.say(session)
    runner, task = await running(stage, session)
    await stage.tools.began("c1").wait()
    await stage.submit(session, ops.Interrupt())
    runner.poke()
    await death.reached.wait()
    assert not await stage.logged_events(session, "turn_aborted"), "not before the proof"
    death.open()
    assert await task is Ended.PARKED
    assert stage.tools.killed == ["c1"]
    assert not await stage.logged_events(session, "exec_command_end")
    await stage.say(session)
    assert await stage.run(session) is Ended.PARKED
    assert "aborted by user" in stage.models.outputs()["c1"]


async def test_new_input_replaces_the_task_that_runs_a_command(stage: Stage) -> None:
    session = await stage.session()
    stage.models.will([calls("c1"), ends()])
    stage.tools.gates["c1"] = Gate()
    await stage.say(session, "first")
    runner, task = await running(stage, session)
    await stage.tools.began("c1").wait()
    await stage.say(session, "second")
    runner.poke()
    assert await task is Ended.PARKED
    assert [e["reason"] for e in await stage.logged_events(session, "turn_aborted")] == ["replaced"]
    assert [fact["outcome"] for fact in await stage.facts(session, "task_ended")] == ["replaced", "completed"]
    assert stage.tools.started == {"c1": 1}


async def test_a_poke_that_meets_a_read_under_way_is_not_forgotten(stage: Stage) -> None:
    session, reading, silence = await stage.session(), Gate(), Gate()
    stage.models.will([silence])
    await stage.say(session)
    runner, task = await running(stage, session)
    await silence.reached.wait()

    stage.wire.after["XRANGE"] = reading.wait
    runner.poke()
    await reading.reached.wait()
    await stage.submit(session, ops.Interrupt())
    runner.poke()
    del stage.wire.after["XRANGE"]
    reading.open()
    assert await asyncio.wait_for(task, 20) is Ended.PARKED


async def test_a_leaving_worker_lets_a_command_end_within_its_grace(stage: Stage) -> None:
    session, command = await stage.session(), Gate()
    stage.models.will([calls("c1"), ends()])
    stage.tools.gates["c1"] = command
    await stage.say(session)
    runner, task = await running(stage, session, drain_grace_s=60)
    await stage.tools.began("c1").wait()
    runner.drain()
    command.open()
    assert await task is Ended.YIELDED
    assert not stage.tools.killed
    assert len(stage.models.prompts) == 1, "the next request is another worker's"
    assert await stage.run(session) is Ended.PARKED
    assert stage.models.outputs()["c1"] == "output of c1"


async def test_a_command_that_outlives_the_grace_is_killed_and_recorded_as_killed(stage: Stage) -> None:
    session = await stage.session()
    stage.models.will([calls("c1"), ends()])
    stage.tools.gates["c1"] = Gate()
    await stage.say(session)
    runner, task = await running(stage, session, drain_grace_s=0.01)
    await stage.tools.began("c1").wait()
    runner.drain()
    assert await task is Ended.YIELDED
    (end,) = await stage.logged_events(session, "exec_command_end")
    assert end["exit_code"] == -1
    assert "the worker was shut down" in end["stderr"]
    assert await stage.run(session) is Ended.PARKED
    assert "the worker was shut down" in stage.models.outputs()["c1"]
    assert stage.tools.started == {"c1": 1}


async def test_nothing_is_started_again_while_the_grace_ends(stage: Stage) -> None:
    session, death, silence = await stage.session(), Gate(), Gate()
    stage.models.will([calls("c1"), silence])
    stage.tools.gates["c1"], stage.tools.deaths["c1"] = Gate(), death
    await stage.say(session)
    runner, task = await running(stage, session, drain_grace_s=0.01)
    await stage.tools.began("c1").wait()
    runner.drain()
    await death.reached.wait()
    # The stream is closed already, the command is not dead yet: a poke makes the runner look.
    await stage.submit(session, ops.GetPath())
    runner.poke()
    await stage.until(session, "conversation_path")
    death.open()
    assert await task is Ended.YIELDED
    assert stage.tools.started == {"c1": 1}
    assert len(stage.models.prompts) == 1


async def test_a_command_that_starts_while_the_worker_is_told_to_leave_has_a_grace_as_well(
    stage: Stage,
) -> None:
    session, committing = await stage.session(), Gate()
    stage.models.will([calls("c1"), ends()])
    stage.tools.gates["c1"] = Gate()
    await stage.say(session)
    sent = 0

    async def second(_: object) -> None:
        nonlocal sent
        sent += 1
        if sent == 2:
            await committing.wait()

    stage.wire.after["commit"] = second
    runner, task = await running(stage, session, drain_grace_s=0.05)
    await committing.reached.wait()
    runner.drain()
    committing.open()
    assert await asyncio.wait_for(task, 20) is Ended.YIELDED
    assert stage.tools.killed == ["c1"] or not stage.tools.started


async def test_an_approval_for_a_session_whose_worker_left_is_served_by_the_next_one(stage: Stage) -> None:
    session, slow = await stage.session(policy="untrusted"), Gate()
    stage.models.will([calls("c1", ask=True), slow])
    await stage.say(session)
    runner, task = await running(stage, session, drain_grace_s=0.01)
    await stage.until(session, "exec_approval_request")
    runner.drain()
    await task
    await stage.approve(session, "c1")
    assert await stage.run(session) is Ended.PARKED
    assert stage.tools.started == {"c1": 1}


async def test_a_lost_claim_stops_a_command_while_a_commit_is_on_its_way(stage: Stage) -> None:
    session, committing, silence = await stage.session(), Gate(), Gate()
    stage.models.will([calls("c1"), silence, message("More.")])
    stage.tools.gates["c1"] = Gate()
    await stage.say(session)
    runner, task = await running(stage, session)
    await stage.tools.began("c1").wait()
    stage.wire.before["commit"] = committing.wait
    silence.open()
    await committing.reached.wait()
    runner.lose()
    while not stage.tools.killed:
        await asyncio.sleep(0)
    assert not committing.opened.is_set(), "the commit is still unanswered"
    committing.open()
    assert await task is Ended.LOST
    assert stage.tools.started == {"c1": 1}


async def test_a_leaving_worker_ends_a_task_with_very_many_calls_to_its_last_piece(stage: Stage) -> None:
    session = await stage.session(policy="untrusted")
    stage.models.will([*(calls(f"c{number}", ask=True) for number in range(400)), ends()])
    await stage.say(session)
    assert await stage.run(session) is Ended.PARKED
    await stage.submit(session, ops.Interrupt())
    runner = stage.runner(await stage.claimed(session))
    runner.drain()
    assert await runner.run() is Ended.PARKED, "nothing is left for whoever comes next"
    assert [e["reason"] for e in await stage.logged_events(session, "turn_aborted")] == ["interrupted"]
