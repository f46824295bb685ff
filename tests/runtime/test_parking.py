"""Waiting is a record: nobody holds a session that waits for a person or for a clock."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import orjson
import pytest

from orchestrator.broker.records import Claim
from orchestrator.core.ids import SessionId
from orchestrator.model.prompt import TextDelta
from orchestrator.model.provider_errors import RateLimited, RetryableModelError
from orchestrator.protocol import ops
from orchestrator.runtime.runner import Ended
from tests.garbage import freed_at_once
from tests.runtime.connections import Gate
from tests.runtime.harness import Harness, opened
from tests.runtime.players import calls, ends, message


async def nobody_holds(harness: Harness, session: SessionId) -> bool:
    head = await harness.broker.logs.head(session)
    assert head is not None
    keys = harness.broker.keys
    shard = keys.shard_of(session)
    places = [await harness.broker.command("ZCARD", key) for key in keys.pool(shard, "harness")[:2]]
    return head.holder is None and places == [0, 0]


async def test_an_approval_holds_no_worker_and_is_served_by_another_process_later(harness: Harness) -> None:
    session = await harness.session(policy="untrusted")
    harness.models.will([calls("c1", ask=True), ends()])
    await harness.say(session)
    assert await harness.run(session) is Ended.PARKED
    assert await nobody_holds(harness, session)
    assert [a.key for a in await harness.broker.requests.approvals(session)] == ["c1"]
    async with opened(harness.url) as another:
        await another.approve(session, "c1")
        assert await another.run(session) is Ended.PARKED
        assert another.tools.started == {"c1": 1}
        assert another.models.outputs()["c1"] == "output of c1"
    assert not harness.tools.started
    assert not await harness.broker.requests.approvals(session)
    (answer,) = await harness.facts(session, "answer")
    assert (answer["decision"], answer["who"]) == ("approved", "ann")


async def test_a_denied_command_never_runs_and_the_model_reads_why(harness: Harness) -> None:
    session = await harness.session(policy="untrusted")
    harness.models.will([calls("c1", ask=True), ends()])
    await harness.say(session)
    await harness.run(session)
    await harness.approve(session, "c1", "denied")
    assert await harness.run(session) is Ended.PARKED
    assert not harness.tools.started
    assert "rejected" in harness.models.outputs()["c1"]


async def test_an_approval_that_nobody_gives_in_time_is_denied_by_its_timer(harness: Harness) -> None:
    session = await harness.session(policy="untrusted", approval_timeout_ms=1)
    harness.models.will([calls("c1", ask=True), ends()])
    await harness.say(session)
    assert await harness.run(session) is Ended.PARKED
    while not await harness.broker.claims.fire(1):
        await asyncio.sleep(0)
    assert await harness.run(session) is Ended.PARKED
    (answer,) = await harness.facts(session, "answer")
    assert (answer["decision"], answer["who"]) == ("denied", "timer")
    assert not harness.tools.started


async def test_a_provider_that_asks_for_a_long_wait_parks_the_session_until_its_timer(
    harness: Harness,
) -> None:
    session = await harness.session()
    harness.models.will([RateLimited("slow down", 3600.0)], [message("Now."), ends()])
    await harness.say(session)
    assert await harness.run(session) is Ended.PARKED
    assert await nobody_holds(harness, session)
    head = await harness.broker.logs.head(session)
    assert head is not None
    assert head.status == "retrying"
    assert not await harness.logged_events(session, "stream_error"), "nothing went wrong"
    await _let_an_hour_pass(harness, session)
    assert await harness.run(session) is Ended.PARKED
    assert [e["message"] for e in await harness.logged_events(session, "agent_message")] == ["Now."]


async def _let_an_hour_pass(harness: Harness, session: SessionId) -> None:
    timers = harness.broker.keys.timers(harness.broker.keys.shard_of(session))
    found = await harness.broker.command("ZRANGE", timers, 0, -1)
    assert isinstance(found, list)
    (member,) = found
    await harness.broker.command("ZADD", timers, "XX", 1, member)
    assert len(await harness.broker.claims.fire(1)) == 1


async def test_a_session_that_waits_for_a_provider_can_be_interrupted(harness: Harness) -> None:
    session = await harness.session()
    harness.models.will([RateLimited("slow down", 3600.0)])
    await harness.say(session)
    await harness.run(session)
    await harness.submit(session, ops.Interrupt())
    assert await harness.run(session) is Ended.PARKED
    assert await harness.logged_events(session, "turn_aborted")
    timers = harness.broker.keys.timers(harness.broker.keys.shard_of(session))
    assert await harness.broker.command("ZCARD", timers) == 0


async def test_retry_comes_up_to_a_tenth_sooner_or_later(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = []
    for place in (min, max):
        monkeypatch.setattr(random, "uniform", place)
        drawn.append(harness.ports.jitter())
    assert drawn == [0.9, 1.1]


async def test_a_short_retry_is_waited_for_with_the_session_held(harness: Harness) -> None:
    session = await harness.session()
    harness.models.will([RetryableModelError("cut", delay_s=0.01)], [message("Again."), ends()])
    await harness.say(session)
    assert await harness.run(session) is Ended.PARKED
    (error,) = await harness.logged_events(session, "stream_error")
    assert "retrying 1/5" in error["message"]
    assert len(harness.models.prompts) == 2


async def test_a_session_gives_way_after_its_quantum_and_goes_on_later(harness: Harness) -> None:
    session = await harness.session()
    harness.models.will([calls("c1"), ends()], [calls("c2"), ends()])
    await harness.say(session)
    assert await harness.run(session, quantum_s=0.0, others_wait=lambda: True) is Ended.YIELDED
    stopped_at = harness.tools.started.copy()
    head = await harness.broker.logs.head(session)
    assert head is not None
    assert (head.holder, head.status) == (None, "running")
    due = harness.broker.keys.due(harness.broker.keys.shard_of(session), "harness")
    assert await harness.broker.command("ZCARD", due) == 1
    assert await harness.run(session) is Ended.PARKED
    assert sum(stopped_at.values()) < 2
    assert harness.tools.started == {"c1": 1, "c2": 1}


async def test_session_whose_quantum_ends_while_its_step_is_committed_is_not_left_lying(
    harness: Harness,
) -> None:
    session, clock, ahead_s = await harness.session(), harness.ports.monotonic, 0.0

    async def passes(_: object) -> None:
        nonlocal ahead_s
        ahead_s += 3600.0

    harness.ports = replace(harness.ports, monotonic=lambda: clock() + ahead_s)
    harness.connection.after["commit"] = passes
    await harness.submit(session, ops.ListSkills(), "l1")
    async with asyncio.timeout(20):
        while await harness.run(session, quantum_s=60.0, others_wait=lambda: True) is Ended.YIELDED:
            assert ahead_s
    assert await harness.logged_events(session, "list_skills_response")


async def test_nobody_gives_way_while_nobody_waits(harness: Harness) -> None:
    session = await harness.session()
    harness.models.will([calls("c1"), ends()])
    await harness.say(session)
    assert await harness.run(session, quantum_s=0.0) is Ended.PARKED


RUNS = b'"phase":"running"'


async def test_a_command_is_not_run_where_replicas_do_not_confirm_it(harness: Harness) -> None:
    session = await harness.session()
    answers = iter([False, True])

    async def confirmed(claim: Claim, seq: int) -> bool:
        begun = [one.seq for one in await harness.broker.logs.read_rollout(session) if RUNS in one.payload]
        assert begun[-1] <= seq, "the call's begin is among what replicas have"
        return next(answers)

    harness.models.will([calls("c1"), ends()], [calls("c2"), ends()])
    await harness.say(session)
    assert await harness.run(session, confirm_effects=confirmed) is Ended.PARKED
    assert harness.tools.started == {"c2": 1}
    assert "replicas did not confirm" in harness.models.outputs()["c1"]


async def test_lists_know_the_first_words_while_the_first_turn_runs(harness: Harness) -> None:
    session = await harness.session()
    harness.models.will([calls("c1"), ends()])
    gate = harness.tools.gates["c1"] = Gate()
    await harness.say(session, "mend the parser")
    running = asyncio.create_task(harness.run(session))
    await harness.tools.began("c1").wait()
    head = await harness.broker.logs.head(session)
    assert head is not None
    assert orjson.loads(head.meta)["title"] == "mend the parser"
    gate.open()
    assert await running is Ended.PARKED


async def test_session_that_is_given_back_leaves_the_worker_s_memory_at_once(harness: Harness) -> None:
    with freed_at_once():
        session = await harness.session()
        # The last words are still on their way when the turn ends.
        harness.models.will([calls("c1"), ends()], [TextDelta("done"), message("done"), ends()])
        await harness.say(session)
        assert await harness.run(session) is Ended.PARKED
        # What was cancelled at the end has its turn.
        await asyncio.sleep(0)
        await asyncio.sleep(0)
