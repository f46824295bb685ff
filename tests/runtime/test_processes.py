"""A session with a process keeps its claim and no turn's place, and what holds it dies with the claim."""

from __future__ import annotations

import asyncio
from base64 import b64encode

import pytest

from orchestrator.core.calls import Call
from orchestrator.core.commands import CallFinished
from orchestrator.core.frozen import replace
from orchestrator.core.history import message_text
from orchestrator.core.ids import SessionId
from orchestrator.core.outstanding import outstanding
from orchestrator.model.provider_errors import RetryableModelError
from orchestrator.protocol import events as ev
from orchestrator.protocol import ops
from orchestrator.protocol.ids import CallId
from orchestrator.protocol.scalars import OutputStream
from orchestrator.protocol.wire import written
from orchestrator.runtime import worker
from orchestrator.runtime.runner import Ended, Runner
from orchestrator.tools.tool_context import CallSite
from tests.core.driver import RULES, op
from tests.runtime.connections import Gate
from tests.runtime.harness import Harness
from tests.runtime.players import calls, ends, message
from tests.runtime.test_worker_claims import at_work


async def starts(harness: Harness, session: SessionId) -> None:
    """The session's first task leaves a process."""
    harness.models.will([calls("c1", "exec_command"), ends()])
    await harness.say(session, id="u1")


async def test_session_with_a_process_keeps_its_claim_until_the_process_ends(harness: Harness) -> None:
    session = await harness.session()
    await starts(harness, session)
    runner = harness.runner(await harness.claimed(session))
    running = asyncio.create_task(runner.run())
    await harness.until(session, "task_complete")
    shown = ev.ExecCommandOutputDelta(call_id=CallId("c1"), stream=OutputStream.STDOUT, chunk=b"up")
    harness.tools.lasting_deltas["c1"](written(shown))
    (delta,) = await harness.until(session, "exec_command_output_delta")
    assert delta.id == "u1"
    # As in the middle of a step, which shows it behind what came before.
    runner._arrivals.resting = False
    harness.tools.lasting_deltas["c1"](written(shown))
    (delta,) = await harness.until(session, "exec_command_output_delta")
    assert delta.id == "u1"
    head = await harness.broker.logs.head(session)
    assert head is not None
    assert head.holder is not None
    assert runner.keeps_processes_only
    harness.tools.processes[1].open()
    assert await running is Ended.PARKED
    (end,) = await harness.logged_events(session, "exec_command_end")
    assert end["call_id"] == "c1"
    assert harness.tools.killed == []


async def test_process_takes_no_turns_place_of_its_worker(harness: Harness) -> None:
    first, second = await harness.session(), await harness.session()
    await starts(harness, first)
    async with at_work(harness.worker(concurrency=1, drain_grace_s=60.0)):
        await harness.until(first, "task_complete")
        await harness.say(second)
        await harness.until(second, "task_complete")
        await harness.say(first)
        await harness.until(first, "task_complete")
        assert harness.tools.killed == []


async def test_turn_that_waits_for_its_next_attempt_beside_a_process_takes_a_place(
    harness: Harness,
) -> None:
    session, waits, due = await harness.session(), asyncio.Event(), asyncio.Event()

    async def sleep(seconds: float) -> None:
        if seconds > 1.0:
            waits.set()
            await due.wait()
        else:
            await asyncio.sleep(seconds)

    harness.ports = replace(harness.ports, sleep=sleep)
    runner, running = await serves(harness, session)
    assert await keeps_processes_only(runner)
    harness.models.will([RetryableModelError("cut", delay_s=2.0)], [message("Again."), ends()])
    await harness.say(session, id="u2")
    runner.notify()
    await waits.wait()
    assert not await keeps_processes_only(runner)
    due.set()
    await harness.until(session, "task_complete")
    assert await keeps_processes_only(runner)
    harness.tools.processes[1].open()
    assert await running is Ended.PARKED


async def keeps_processes_only(runner: Runner) -> bool:
    """Whether it does, as soon as the runner waits for news."""
    while not runner._arrivals.resting:
        await asyncio.sleep(0)
    return runner.keeps_processes_only


async def test_worker_holds_a_bounded_number_of_sessions_with_processes(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "MOST_KEPT", 2)
    sessions = [await harness.session() for _ in range(3)]
    async with at_work(harness.worker(concurrency=1, drain_grace_s=60.0)):
        for session in sessions[:2]:
            await starts(harness, session)
            await harness.until(session, "task_complete")
        await harness.say(sessions[2])
        await harness.say(sessions[0], id="u2")
        await harness.until(sessions[0], "task_complete")
        assert await harness.logged_events(sessions[2], "task_started") == []
        harness.tools.processes[1].open()
        await harness.until(sessions[2], "task_complete")


async def test_worker_that_leaves_ends_an_idle_sessions_process_at_once(harness: Harness) -> None:
    session = await harness.session()
    await starts(harness, session)
    async with at_work(harness.worker(drain_grace_s=600.0)):
        await harness.until(session, "task_complete")
    assert harness.tools.killed == ["process 1"]
    (warning,) = await harness.logged_events(session, "warning")
    assert warning["message"] == "process 1 (true) is gone: its worker was shut down"
    state = (await harness.replayed(session)).state
    assert "is gone: its worker was shut down" in message_text(list(state.history)[-1])
    assert outstanding(state, RULES) == ()


async def serves(harness: Harness, session: SessionId) -> tuple[Runner, asyncio.Task[Ended]]:
    """A runner of a session at rest whose process lives, and has said something since."""
    await starts(harness, session)
    runner = harness.runner(await harness.claimed(session))
    running = asyncio.create_task(runner.run())
    await harness.until(session, "task_complete")
    said = {"call_id": "c1", "stream": "stderr", "chunk": "c2VydmVz"}
    harness.tools.lasting_deltas["c1"]({"type": "exec_command_output_delta", **said})
    await harness.until(session, "exec_command_output_delta")
    return runner, running


async def test_next_holder_finds_the_process_gone(harness: Harness) -> None:
    session = await harness.session()
    lost, running = await serves(harness, session)
    lost.lose(fenced=True)
    assert await running is Ended.LOST
    assert harness.tools.killed == ["process 1"], "the claim is over when this is proved"
    assert harness.tools.abandoned == [lost.claim.claim_id]
    await harness.broker.trees.revoke(session)
    assert await harness.run(session) is Ended.PARKED
    (end,) = await harness.logged_events(session, "exec_command_end")
    assert (end["exit_code"], end["process_id"]) == (-1, "1")
    assert end["aggregated_output"].endswith("; its output until then:\nserves")


async def test_process_and_command_that_are_lost_together_each_end_with_what_clients_had_seen(
    harness: Harness,
) -> None:
    session = await harness.session()
    lost, running = await serves(harness, session)
    harness.models.will([calls("c2"), ends()])
    harness.tools.gates["c2"], harness.tools.deltas["c2"] = Gate(), ["cnVucw=="]
    await harness.say(session, id="u2")
    lost.notify()
    await harness.until(session, "exec_command_output_delta")
    lost.lose(fenced=True)
    assert await running is Ended.LOST
    await harness.broker.trees.revoke(session)
    assert await harness.run(session) is Ended.PARKED
    over = await harness.logged_events(session, "exec_command_end")
    told = {end["call_id"]: end["aggregated_output"].rpartition("until then:\n")[2] for end in over}
    assert told == {"c1": "serves", "c2": "runs"}


@pytest.mark.parametrize("tool", ["shell", "exec_command"])
@pytest.mark.parametrize("earlier", ["shell", "exec_command"])
async def test_what_is_lost_beside_a_process_shows_nothing_of_an_earlier_command_of_its_id(
    harness: Harness, earlier: str, tool: str
) -> None:
    session = await harness.session()
    lost, running = await serves(harness, session)
    harness.tools.deltas["c2"] = [b64encode(b"earlier").decode()]
    harness.models.will([calls("c2", earlier), ends()])
    await harness.say(session, id="u2")
    lost.notify()
    await harness.until(session, "task_complete")
    if earlier == "exec_command":
        harness.tools.processes[2].open()
        await harness.until(session, "exec_command_end")
    harness.tools.gates["c2"] = Gate()
    harness.tools.deltas["c2"] = [b64encode(b"later").decode()]
    harness.models.will([calls("c2", tool), ends()])
    await harness.say(session, id="u3")
    lost.notify()
    await harness.until(session, "exec_command_output_delta")
    if tool == "exec_command":
        harness.tools.gates["c2"].open()
        await harness.until(session, "task_complete")
    lost.lose(fenced=True)
    assert await running is Ended.LOST
    await harness.broker.trees.revoke(session)
    assert await harness.run(session) is Ended.PARKED
    over = await harness.logged_events(session, "exec_command_end")
    assert [end["call_id"] for end in over[:-2]] == ["c2"]
    told = {end["call_id"]: end["aggregated_output"].rpartition("until then:\n")[2] for end in over[-2:]}
    assert told == {"c1": "serves", "c2": "later"}


@pytest.mark.parametrize("tool", ["shell", "exec_command"])
async def test_process_and_what_a_later_turn_began_under_its_id_each_end_with_what_that_one_had_shown(
    harness: Harness, tool: str
) -> None:
    """Ids of calls are a model's: some begin with the same one in each turn."""
    session = await harness.session()
    lost, running = await serves(harness, session)
    first = harness.tools.lasting_deltas["c1"]
    harness.tools.gates["c1"] = Gate()
    harness.tools.deltas["c1"] = [b64encode(b"later").decode()]
    harness.models.will([calls("c1", tool), ends()])
    await harness.say(session, id="u2")
    lost.notify()
    await harness.until(session, "exec_command_output_delta")
    if tool == "exec_command":
        harness.tools.gates["c1"].open()
        await harness.until(session, "task_complete")
    first({"type": "exec_command_output_delta", "call_id": "c1", "stream": "stdout", "chunk": "IG9u"})
    await harness.until(session, "exec_command_output_delta")
    lost.lose(fenced=True)
    assert await running is Ended.LOST
    await harness.broker.trees.revoke(session)
    assert await harness.run(session) is Ended.PARKED
    over = await harness.logged_events(session, "exec_command_end")
    told = [end["aggregated_output"].rpartition("until then:\n")[2] for end in over]
    assert told == ["serves on", "later"]


async def test_command_that_is_lost_in_its_second_run_shows_nothing_of_the_first_one_beside_a_process(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its sandbox stopped the first one, and a person let it run without."""
    session = await harness.session("on-failure")
    confined = op("override_turn_context", sandbox_policy={"mode": "workspace-write"})
    await harness.submit(session, confined)
    lost, running = await serves(harness, session)
    run = harness.tools.run

    async def is_stopped(call: Call, site: CallSite) -> CallFinished:
        done = await run(call, site)
        if call.call_id == "c2":
            harness.tools.gates["c2"] = Gate()
            harness.tools.deltas["c2"] = [b64encode(b"later").decode()]
        return replace(done, sandbox_denied=call.call_id == "c2")

    monkeypatch.setattr(harness.tools, "run", is_stopped)
    harness.tools.deltas["c2"] = [b64encode(b"earlier").decode()]
    harness.models.will([calls("c2"), ends()])
    await harness.say(session, id="u2")
    lost.notify()
    await harness.until(session, "exec_approval_request")
    await harness.approve(session, "c2")
    lost.notify()
    await harness.until(session, "exec_command_output_delta")
    lost.lose(fenced=True)
    assert await running is Ended.LOST
    await harness.broker.trees.revoke(session)
    assert await harness.run(session) is Ended.PARKED
    over = (await harness.logged_events(session, "exec_command_end"))[-2:]
    told = {end["call_id"]: end["aggregated_output"].rpartition("until then:\n")[2] for end in over}
    assert told == {"c1": "serves", "c2": "later"}


async def test_shutdown_is_complete_behind_the_end_of_the_process(harness: Harness) -> None:
    session = await harness.session()
    await starts(harness, session)
    async with at_work(harness.worker()):
        await harness.until(session, "task_complete")
        await harness.submit(session, ops.Shutdown(), "bye")
        await harness.until(session, "shutdown_complete")
    kinds = [event["type"] for event in await harness.logged_events(session)]
    assert kinds[-2:] == ["exec_command_end", "shutdown_complete"]
    assert harness.tools.killed == ["process 1"]


async def test_session_with_a_process_does_not_yield_to_others(harness: Harness) -> None:
    session, waiting = await harness.session(), False
    await starts(harness, session)
    config = {"quantum_s": 0.0, "others_wait": lambda: waiting}
    runner = harness.runner(await harness.claimed(session), **config)
    running = asyncio.create_task(runner.run())
    await harness.until(session, "task_complete")
    waiting = True
    await harness.say(session)
    runner.notify()
    await harness.until(session, "task_complete")
    assert not running.done()
    harness.tools.processes[1].open()
    assert await running is Ended.PARKED
