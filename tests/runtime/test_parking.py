"""Waiting is a record: nobody holds a session that waits for a person or for a clock."""

from __future__ import annotations

import asyncio

from orchestrator.broker.records import Claim
from orchestrator.core.ids import SessionId
from orchestrator.model.errors import RateLimited, RetryableModelError
from orchestrator.protocol import ops
from orchestrator.runtime.runner import Ended
from tests.runtime.players import calls, ends, message
from tests.runtime.stage import Stage, opened


async def nobody_holds(stage: Stage, session: SessionId) -> bool:
    head = await stage.broker.head(session)
    assert head is not None
    keys = stage.broker.keys
    shard = keys.shard_of(session)
    places = [await stage.broker.command("ZCARD", key) for key in keys.pool(shard, "stage")[:2]]
    return head.holder is None and places == [0, 0]


async def test_an_approval_holds_no_worker_and_is_served_by_another_process_later(stage: Stage) -> None:
    session = await stage.session(policy="untrusted")
    stage.models.will([calls("c1", ask=True), ends()])
    await stage.say(session)
    assert await stage.run(session) is Ended.PARKED
    assert await nobody_holds(stage, session)
    assert [a.key for a in await stage.broker.approvals(session)] == ["c1"]
    async with opened(stage.url) as another:
        await another.approve(session, "c1")
        assert await another.run(session) is Ended.PARKED
        assert another.tools.started == {"c1": 1}
        assert another.models.outputs()["c1"] == "output of c1"
    assert not stage.tools.started
    assert not await stage.broker.approvals(session)
    (answer,) = await stage.facts(session, "answer")
    assert (answer["decision"], answer["who"]) == ("approved", "ann")


async def test_a_denied_command_never_runs_and_the_model_reads_why(stage: Stage) -> None:
    session = await stage.session(policy="untrusted")
    stage.models.will([calls("c1", ask=True), ends()])
    await stage.say(session)
    await stage.run(session)
    await stage.approve(session, "c1", "denied")
    assert await stage.run(session) is Ended.PARKED
    assert not stage.tools.started
    assert "rejected" in stage.models.outputs()["c1"]


async def test_an_approval_that_nobody_gives_in_time_is_denied_by_its_timer(stage: Stage) -> None:
    session = await stage.session(policy="untrusted", approval_timeout_ms=1)
    stage.models.will([calls("c1", ask=True), ends()])
    await stage.say(session)
    assert await stage.run(session) is Ended.PARKED
    while not await stage.broker.fire(1):
        await asyncio.sleep(0)
    assert await stage.run(session) is Ended.PARKED
    (answer,) = await stage.facts(session, "answer")
    assert (answer["decision"], answer["who"]) == ("denied", "timer")
    assert not stage.tools.started


async def test_a_provider_that_asks_for_a_long_wait_parks_the_session_until_its_timer(stage: Stage) -> None:
    session = await stage.session()
    stage.models.will([RateLimited("slow down", 3600.0)], [message("Now."), ends()])
    await stage.say(session)
    assert await stage.run(session) is Ended.PARKED
    assert await nobody_holds(stage, session)
    head = await stage.broker.head(session)
    assert head is not None
    assert head.status == "retrying"
    assert not await stage.logged_events(session, "stream_error"), "nothing went wrong"
    await _let_an_hour_pass(stage, session)
    assert await stage.run(session) is Ended.PARKED
    assert [e["message"] for e in await stage.logged_events(session, "agent_message")] == ["Now."]


async def _let_an_hour_pass(stage: Stage, session: SessionId) -> None:
    timers = stage.broker.keys.timers(stage.broker.keys.shard_of(session))
    found = await stage.broker.command("ZRANGE", timers, 0, -1)
    assert isinstance(found, list)
    (member,) = found
    await stage.broker.command("ZADD", timers, "XX", 1, member)
    assert len(await stage.broker.fire(1)) == 1


async def test_a_session_that_waits_for_a_provider_can_be_interrupted(stage: Stage) -> None:
    session = await stage.session()
    stage.models.will([RateLimited("slow down", 3600.0)])
    await stage.say(session)
    await stage.run(session)
    await stage.submit(session, ops.Interrupt())
    assert await stage.run(session) is Ended.PARKED
    assert await stage.logged_events(session, "turn_aborted")
    timers = stage.broker.keys.timers(stage.broker.keys.shard_of(session))
    assert await stage.broker.command("ZCARD", timers) == 0


async def test_a_short_retry_is_waited_for_with_the_session_held(stage: Stage) -> None:
    session = await stage.session()
    stage.models.will([RetryableModelError("cut", delay_s=0.01)], [message("Again."), ends()])
    await stage.say(session)
    assert await stage.run(session) is Ended.PARKED
    (error,) = await stage.logged_events(session, "stream_error")
    assert "retrying 1/5" in error["message"]
    assert len(stage.models.prompts) == 2


async def test_a_session_gives_way_after_its_quantum_and_goes_on_later(stage: Stage) -> None:
    session = await stage.session()
    stage.models.will([calls("c1"), ends()], [calls("c2"), ends()])
    await stage.say(session)
    assert await stage.run(session, quantum_s=0.0, others_wait=lambda: True) is Ended.YIELDED
    stopped_at = stage.tools.started.copy()
    head = await stage.broker.head(session)
    assert head is not None
    assert (head.holder, head.status) == (None, "running")
    due = stage.broker.keys.due(stage.broker.keys.shard_of(session), "stage")
    assert await stage.broker.command("ZCARD", due) == 1
    assert await stage.run(session) is Ended.PARKED
    assert sum(stopped_at.values()) < 2
    assert stage.tools.started == {"c1": 1, "c2": 1}


async def test_nobody_gives_way_while_nobody_waits(stage: Stage) -> None:
    session = await stage.session()
    stage.models.will([calls("c1"), ends()])
    await stage.say(session)
    assert await stage.run(session, quantum_s=0.0) is Ended.PARKED


async def test_a_command_is_not_run_where_replicas_do_not_confirm_it(stage: Stage) -> None:
    session = await stage.session()
    answers = iter([False, True])

    async def confirmed(claim: Claim, seq: int) -> bool:
        return next(answers)

    stage.models.will([calls("c1"), ends()], [calls("c2"), ends()])
    await stage.say(session)
    assert await stage.run(session, confirm_effects=confirmed) is Ended.PARKED
    assert stage.tools.started == {"c2": 1}
    assert "replicas did not confirm" in stage.models.outputs()["c1"]
