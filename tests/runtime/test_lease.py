"""The lease protocol: who may believe in a claim, until when, and what ends with it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from queue import Queue
from typing import Any

import pytest

from orchestrator.broker.broker import Broker
from orchestrator.broker.errors import Unavailable
from orchestrator.broker.records import Claim
from orchestrator.config_keys import WorkerSettings
from orchestrator.core.ids import SessionId
from orchestrator.protocol import ops
from orchestrator.runtime.renewal import RETRY_S, Leases, Renewal
from tests.broker.doubles import FakeClock
from tests.runtime.connections import Gate, lost
from tests.runtime.harness import Harness, open_broker
from tests.runtime.players import calls, ends
from tests.runtime.test_worker_claims import at_work

FREQUENT = WorkerSettings.model_construct(renew_s=0.05, trust_s=30.0, stall_s=30.0)
BRIEF = WorkerSettings.model_construct(renew_s=0.05, trust_s=3.0, stall_s=30.0)
"""Trust that ends within the test, and not before a busy machine has started the command."""


class Held:
    """A claim on a real server, and leases that live by a clock of the test's own."""

    def __init__(self, harness: Harness, claim: Claim) -> None:
        self.clock = FakeClock(1_000.0)
        self.extended: list[float] = []
        self.leases = Leases(
            WorkerSettings(), lambda _, deadline: self.extended.append(deadline), self.clock.time
        )
        self.broker = harness.ports.broker
        self.claim = claim
        self.reached = 0
        self.leases.hold(claim, self.clock.time(), lambda: self.reached)

    def _extend(self, _: str, deadline: float) -> None:
        self.extended.append(deadline)


async def held(harness: Harness) -> Held:
    session = await harness.session()
    await harness.say(session)
    return Held(harness, (await harness.claimed(session)).claim)


async def test_a_renewed_claim_is_trusted_from_the_moment_the_renewal_was_sent(harness: Harness) -> None:
    it = await held(harness)
    it.clock.advance(3.0)

    async def slow(_: object) -> None:
        it.clock.advance(0.5)

    harness.connection.before["renew"] = slow
    it.leases.tick()
    (outcome,) = await it.leases.renew(it.broker)
    assert outcome.tip is not None
    assert it.extended == [1_004.0, 1_007.0], "not from the moment of the answer"
    it.clock.advance(3.4)
    assert not it.leases.distrusted()
    it.clock.advance(0.2)
    assert it.leases.distrusted() == [it.claim]


async def test_a_renewal_that_no_replica_has_extends_nothing(harness: Harness) -> None:
    """A primary that is cut off from its replicas answers OK all the same."""
    it, asked, confirmed = await held(harness), [], False

    async def confirm(_: Broker, claim: Claim, reached: int) -> bool:
        asked.append((claim, reached))
        return confirmed

    extended: list[float] = []
    leases = Leases(WorkerSettings(), lambda _, deadline: extended.append(deadline), it.clock.time, confirm)
    leases.hold(it.claim, it.clock.time(), lambda: 0)
    it.clock.advance(2.0)
    leases.tick()
    (outcome,) = await leases.renew(it.broker)
    assert outcome.tip is not None, "the claim is not over"
    assert asked == [(it.claim, 0)]
    assert extended == [1_004.0]
    assert leases.pause_s < 0.5, "what is left of the trust is short"
    confirmed = True
    await leases.renew(it.broker)
    assert extended == [1_004.0, 1_006.0]
    assert leases.pause_s == 2.0


async def test_each_of_a_workers_claims_counts_by_what_replicas_have_of_it(harness: Harness) -> None:
    first = await held(harness)
    second = await held(harness)
    trusted: list[str] = []

    async def confirm(_: Broker, claim: Claim, reached: int) -> bool:
        return claim == first.claim

    leases = Leases(WorkerSettings(), lambda claim, _: trusted.append(claim), first.clock.time, confirm)
    leases.hold(first.claim, first.clock.time(), lambda: 0)
    leases.hold(second.claim, first.clock.time(), lambda: 0)
    trusted.clear()
    leases.tick()
    await leases.renew(first.broker)
    assert trusted == [first.claim.claim_id]


async def test_a_stuck_loop_is_not_renewed_for(harness: Harness) -> None:
    it = await held(harness)
    it.leases.tick()
    it.clock.advance(4.1)
    assert await it.leases.renew(it.broker) == []
    assert harness.connection.sent["renew"] == 0
    assert it.leases.distrusted() == [it.claim]


async def test_a_renewal_that_is_not_answered_extends_nothing(harness: Harness) -> None:
    it = await held(harness)
    harness.connection.after["renew"] = lost(1)
    it.clock.advance(2.0)
    it.leases.tick()
    assert await it.leases.renew(it.broker) == []
    assert it.extended == [1_004.0]
    assert it.leases.pause_s < 0.5, "what is left of the trust is short"
    assert await it.leases.renew(it.broker) != []
    assert it.leases.pause_s == 2.0


async def test_node_that_does_not_answer_ends_the_trust_in_the_claims_that_it_has_alone(
    harness: Harness,
) -> None:
    it = await held(harness)
    failed: list[int] = []
    it.leases._unanswered = failed.append
    session = await harness.session()
    await harness.say(session)
    elsewhere = (await harness.claimed(session)).claim
    it.leases.hold(elsewhere, it.clock.time(), lambda: 0)
    harness.connection.clustered = True

    async def silent(args: Sequence[Any]) -> None:
        if session in args:
            raise Unavailable("its node does not answer")

    harness.connection.before["renew"] = silent
    it.clock.advance(2.0)
    it.leases.tick()
    (outcome,) = await it.leases.renew(it.broker)
    assert (outcome.claim, failed) == (it.claim, [1])
    assert it.leases.pause_s == RETRY_S
    it.clock.advance(3.0)
    assert it.leases.distrusted() == [elsewhere]


async def begins(harness: Harness, it: Held, took_s: Sequence[float], lost_round: int = -1) -> list[float]:
    """When each of the next rounds begins, if they take so long; the answer to one of them may be lost."""
    began: list[float] = []

    async def takes_long(_: object) -> None:
        it.clock.advance(took_s[len(began)])
        assert not it.leases.distrusted(), "trust ended while a round was on its way"

    harness.connection.before["renew"] = takes_long
    for at in range(len(took_s)):
        harness.connection.after["renew"] = lost(1 if at == lost_round else 0)
        it.leases.tick()
        begin = it.clock.time()
        await it.leases.renew(it.broker)
        began.append(begin)
        it.clock.advance(it.leases.pause_s)
        assert not it.leases.distrusted(), "trust ended between two rounds"
    return began


async def test_rounds_of_renewals_begin_two_seconds_apart_whatever_they_take(harness: Harness) -> None:
    it = await held(harness)
    assert await begins(harness, it, [0.0, 0.5, 1.5, 0.0]) == [1_000.0, 1_002.0, 1_004.0, 1_006.0]


async def test_round_of_three_seconds_is_followed_at_once_by_the_next(harness: Harness) -> None:
    it = await held(harness)
    assert await begins(harness, it, [3.0, 0.0, 0.0]) == [1_000.0, 1_003.0, 1_005.0]


async def test_rounds_of_two_seconds_each_lose_no_claim(harness: Harness) -> None:
    it = await held(harness)
    assert await begins(harness, it, [2.0] * 4) == [1_000.0, 1_002.0, 1_004.0, 1_006.0]


async def test_round_that_was_not_answered_is_tried_again_behind_its_end(harness: Harness) -> None:
    it = await held(harness)
    assert await begins(harness, it, [1.0, 0.5, 0.0], lost_round=0) == [
        1_000.0,
        1_001.0 + RETRY_S,
        1_003.0 + RETRY_S,
    ]


async def test_a_claim_that_was_taken_is_told_to_be_over(harness: Harness) -> None:
    it = await held(harness)
    await harness.broker.trees.revoke(it.claim.session)
    it.leases.tick()
    (outcome,) = await it.leases.renew(it.broker)
    assert outcome.tip is None
    assert it.extended == [1_004.0]


async def test_a_claim_over_a_log_that_went_back_is_told_to_be_over(harness: Harness) -> None:
    it = await held(harness)
    it.reached = 1_000
    it.leases.tick()
    (outcome,) = await it.leases.renew(it.broker)
    assert outcome.tip is None
    assert it.extended == [1_004.0]


async def test_a_claim_that_was_given_back_meanwhile_is_not_extended(harness: Harness) -> None:
    it = await held(harness)

    async def given_back(_: object) -> None:
        it.leases.let_go(it.claim)

    harness.connection.after["renew"] = given_back
    it.leases.tick()
    await it.leases.renew(it.broker)
    assert it.extended == [1_004.0]
    assert not it.leases.distrusted()


async def running_command(harness: Harness) -> SessionId:
    session = await harness.session()
    harness.models.will([calls("c1"), ends()])
    harness.tools.gates["c1"] = Gate()
    await harness.say(session)
    return session


async def killed(harness: Harness) -> None:
    while not harness.tools.killed:
        await asyncio.sleep(0.01)


async def test_renewals_carry_how_far_the_session_is_by_now(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, told = await running_command(harness), Queue[list[int]]()

    def noting() -> Broker:
        broker = open_broker(harness.url)
        renew = broker.claims.renew

        async def noted(claims: Sequence[Claim], reached: Sequence[int] | None = None) -> Any:
            told.put(list(reached or ()))
            return await renew(claims, reached)

        monkeypatch.setattr(broker.claims, "renew", noted)
        return broker

    async with at_work(harness.worker(times=FREQUENT, connect_renewal=noting)):
        await harness.tools.began("c1").wait()
        head = await harness.broker.logs.head(session)
        assert head is not None
        while not told.empty():
            told.get_nowait()
        # The first of them may have been on its way.
        renewals = [await asyncio.to_thread(told.get, timeout=20) for _ in range(2)]
        harness.tools.gates["c1"].open()
    assert renewals[-1] == [head.seq], "a log that went back to before that is no longer the claim's"


async def test_a_renewal_that_was_stopped_has_ended(harness: Harness) -> None:
    renewal = Renewal(lambda: open_broker(harness.url), FREQUENT, lambda *_: None, lambda _: None)
    renewal.start()
    before = {thread for thread in threading.enumerate() if thread.name == "dendro-renewal"}
    await asyncio.to_thread(renewal.stop)
    assert before
    assert not before & set(threading.enumerate())


async def test_a_worker_stops_its_commands_when_it_cannot_renew(harness: Harness) -> None:
    await running_command(harness)
    nowhere: list[Broker] = []

    def unreachable() -> Broker:
        nowhere.append(open_broker("unix:///nonexistent/socket"))
        return nowhere[-1]

    async with at_work(harness.worker(times=BRIEF, connect_renewal=unreachable)):
        await harness.tools.began("c1").wait()
        await asyncio.wait_for(killed(harness), 20)
    assert nowhere
    assert harness.tools.started["c1"] == 1


async def test_a_worker_whose_claim_was_revoked_stops_its_commands(harness: Harness) -> None:
    session = await running_command(harness)
    async with at_work(harness.worker(times=FREQUENT)):
        await harness.tools.began("c1").wait()
        await harness.broker.trees.revoke(session)
        await asyncio.wait_for(killed(harness), 20)
        await harness.until(session, "task_complete")
    assert harness.models.outputs()["c1"].startswith("in doubt")


async def test_a_renewal_tells_of_what_a_lost_poke_was_about(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await running_command(harness)

    async def unheard(*_: object) -> None:
        return None

    monkeypatch.setattr(harness.broker.claims, "notify", unheard)
    async with at_work(harness.worker(times=FREQUENT)):
        await harness.tools.began("c1").wait()
        await harness.submit(session, ops.Interrupt())
        await harness.until(session, "turn_aborted")
    assert harness.tools.killed == ["c1"]
