"""Interrupts, replacements, and a worker that leaves: what runs is stopped, once, and recorded as it was."""

from __future__ import annotations

import asyncio
from typing import Any

from orchestrator.model.prompt import TextDelta
from orchestrator.protocol import ops
from orchestrator.runtime.runner import Ended, Runner
from tests.runtime.connections import Gate
from tests.runtime.harness import Harness
from tests.runtime.players import calls, ends, message


async def running(harness: Harness, session: str, **config: Any) -> tuple[Runner, asyncio.Task[Ended]]:
    claimed = await harness.claimed(session)  # type: ignore[arg-type]
    runner = harness.runner(claimed, **config)
    return runner, asyncio.create_task(runner.run())


async def test_an_interrupt_closes_the_stream_and_keeps_what_was_said(harness: Harness) -> None:
    session, silence = await harness.session(), Gate()
    harness.models.will([message("First."), TextDelta("Sec"), silence])
    await harness.say(session)
    runner, task = await running(harness, session)
    await silence.reached.wait()
    await harness.submit(session, ops.Interrupt())
    runner.notify()
    assert await task is Ended.PARKED
    assert harness.models.streaming == 0
    assert [e["reason"] for e in await harness.logged_events(session, "turn_aborted")] == ["interrupted"]
    assert [e["message"] for e in await harness.logged_events(session, "agent_message")] == ["First."]


async def test_an_interrupt_waits_for_the_proof_that_the_command_is_dead(harness: Harness) -> None:
    session, death = await harness.session(), Gate()
    harness.models.will([calls("c1"), ends()])
    harness.tools.gates["c1"], harness.tools.deaths["c1"] = Gate(), death
    await harness.say(session)
    runner, task = await running(harness, session)
    await harness.tools.began("c1").wait()
    await harness.submit(session, ops.Interrupt())
    runner.notify()
    await death.reached.wait()
    assert not await harness.logged_events(session, "turn_aborted"), "not before the proof"
    death.open()
    assert await task is Ended.PARKED
    assert harness.tools.killed == ["c1"]
    assert not await harness.logged_events(session, "exec_command_end")
    await harness.say(session)
    assert await harness.run(session) is Ended.PARKED
    assert "aborted by user" in harness.models.outputs()["c1"]


async def test_new_input_replaces_the_task_that_runs_a_command(harness: Harness) -> None:
    session = await harness.session()
    harness.models.will([calls("c1"), ends()])
    harness.tools.gates["c1"] = Gate()
    await harness.say(session, "first")
    runner, task = await running(harness, session)
    await harness.tools.began("c1").wait()
    await harness.say(session, "second")
    runner.notify()
    assert await task is Ended.PARKED
    assert [e["reason"] for e in await harness.logged_events(session, "turn_aborted")] == ["replaced"]
    assert [fact["outcome"] for fact in await harness.facts(session, "task_ended")] == [
        "replaced",
        "completed",
    ]
    assert harness.tools.started == {"c1": 1}


async def test_a_poke_that_meets_a_read_under_way_is_not_forgotten(harness: Harness) -> None:
    session, reading, silence = await harness.session(), Gate(), Gate()
    harness.models.will([silence])
    await harness.say(session)
    runner, task = await running(harness, session)
    await silence.reached.wait()

    harness.connection.after["XRANGE"] = reading.wait
    runner.notify()
    await reading.reached.wait()
    await harness.submit(session, ops.Interrupt())
    runner.notify()
    del harness.connection.after["XRANGE"]
    reading.open()
    assert await asyncio.wait_for(task, 20) is Ended.PARKED


async def test_a_leaving_worker_lets_a_command_end_within_its_grace(harness: Harness) -> None:
    session, command = await harness.session(), Gate()
    harness.models.will([calls("c1"), ends()])
    harness.tools.gates["c1"] = command
    await harness.say(session)
    runner, task = await running(harness, session, drain_grace_s=60)
    await harness.tools.began("c1").wait()
    runner.drain()
    command.open()
    assert await task is Ended.YIELDED
    assert not harness.tools.killed
    assert len(harness.models.prompts) == 1, "the next request is another worker's"
    assert await harness.run(session) is Ended.PARKED
    assert harness.models.outputs()["c1"] == "output of c1"


async def test_a_command_that_outlives_the_grace_is_killed_and_recorded_as_killed(harness: Harness) -> None:
    session = await harness.session()
    harness.models.will([calls("c1"), ends()])
    harness.tools.gates["c1"] = Gate()
    await harness.say(session)
    runner, task = await running(harness, session, drain_grace_s=0.01)
    await harness.tools.began("c1").wait()
    runner.drain()
    assert await task is Ended.YIELDED
    (end,) = await harness.logged_events(session, "exec_command_end")
    assert end["exit_code"] == -1
    assert "the worker was shut down" in end["stderr"]
    assert await harness.run(session) is Ended.PARKED
    assert "the worker was shut down" in harness.models.outputs()["c1"]
    assert harness.tools.started == {"c1": 1}


async def test_nothing_is_started_again_while_the_grace_ends(harness: Harness) -> None:
    session, death, silence = await harness.session(), Gate(), Gate()
    harness.models.will([calls("c1"), silence])
    harness.tools.gates["c1"], harness.tools.deaths["c1"] = Gate(), death
    await harness.say(session)
    runner, task = await running(harness, session, drain_grace_s=0.01)
    await harness.tools.began("c1").wait()
    runner.drain()
    await death.reached.wait()
    # The stream is closed already, the command is not dead yet: a notice makes the runner look.
    await harness.submit(session, ops.GetPath())
    runner.notify()
    await harness.until(session, "conversation_path")
    death.open()
    assert await task is Ended.YIELDED
    assert harness.tools.started == {"c1": 1}
    assert len(harness.models.prompts) == 1


async def test_a_command_that_starts_while_the_worker_is_told_to_leave_has_a_grace_as_well(
    harness: Harness,
) -> None:
    session, committing = await harness.session(), Gate()
    harness.models.will([calls("c1"), ends()])
    harness.tools.gates["c1"] = Gate()
    await harness.say(session)
    sent = 0

    async def second(_: object) -> None:
        nonlocal sent
        sent += 1
        if sent == 2:
            await committing.wait()

    harness.connection.after["commit"] = second
    runner, task = await running(harness, session, drain_grace_s=0.05)
    await committing.reached.wait()
    runner.drain()
    committing.open()
    assert await asyncio.wait_for(task, 20) is Ended.YIELDED
    assert harness.tools.killed == ["c1"] or not harness.tools.started


async def test_an_approval_for_a_session_whose_worker_left_is_served_by_the_next_one(
    harness: Harness,
) -> None:
    session, slow = await harness.session(policy="untrusted"), Gate()
    harness.models.will([calls("c1", ask=True), slow])
    await harness.say(session)
    runner, task = await running(harness, session, drain_grace_s=0.01)
    await harness.until(session, "exec_approval_request")
    runner.drain()
    await task
    await harness.approve(session, "c1")
    assert await harness.run(session) is Ended.PARKED
    assert harness.tools.started == {"c1": 1}


async def test_a_lost_claim_stops_a_command_while_a_commit_is_on_its_way(harness: Harness) -> None:
    session, committing, silence = await harness.session(), Gate(), Gate()
    harness.models.will([calls("c1"), silence, message("More.")])
    harness.tools.gates["c1"] = Gate()
    await harness.say(session)
    runner, task = await running(harness, session)
    await harness.tools.began("c1").wait()
    harness.connection.before["commit"] = committing.wait
    silence.open()
    await committing.reached.wait()
    runner.lose()
    while not harness.tools.killed:
        await asyncio.sleep(0)
    assert not committing.opened.is_set(), "the commit is still unanswered"
    committing.open()
    assert await task is Ended.LOST
    assert harness.tools.started == {"c1": 1}


async def test_a_leaving_worker_ends_a_task_with_very_many_calls_to_its_last_piece(harness: Harness) -> None:
    session = await harness.session(policy="untrusted")
    harness.models.will([*(calls(f"c{number}", ask=True) for number in range(400)), ends()])
    await harness.say(session)
    assert await harness.run(session) is Ended.PARKED
    await harness.submit(session, ops.Interrupt())
    runner = harness.runner(await harness.claimed(session))
    runner.drain()
    assert await runner.run() is Ended.PARKED, "nothing is left for whoever comes next"
    assert [e["reason"] for e in await harness.logged_events(session, "turn_aborted")] == ["interrupted"]
