"""The lease protocol: who may believe in a claim, until when, and what ends with it."""

from __future__ import annotations

import asyncio

import pytest

from orchestrator.broker.broker import Broker
from orchestrator.broker.records import Claim
from orchestrator.core.ids import SessionId
from orchestrator.protocol import ops
from orchestrator.runtime.renewal import Leases
from orchestrator.tables import WorkerSettings
from tests.broker.doubles import FakeClock
from tests.runtime.players import calls, ends
from tests.runtime.stage import Stage, open_broker
from tests.runtime.test_worker_claims import at_work
from tests.runtime.wires import Gate, lost

FREQUENT = WorkerSettings.model_construct(renew_s=0.05, trust_s=30.0, stall_s=30.0)
BRIEF = WorkerSettings.model_construct(renew_s=0.05, trust_s=3.0, stall_s=30.0)
"""Trust that ends within the test, and not before a busy machine has started the command."""


class Held:
    """A claim on a real server, and leases that live by a clock of the test's own."""

    def __init__(self, stage: Stage, claim: Claim) -> None:
        self.clock = FakeClock(1_000.0)
        self.extended: list[float] = []
        self.leases = Leases(
            WorkerSettings(), lambda _, deadline: self.extended.append(deadline), self.clock.time
        )
        self.broker = stage.ports.broker
        self.claim = claim
        self.reached = 0
        self.leases.hold(claim, self.clock.time(), lambda: self.reached)

    def _extend(self, _: str, deadline: float) -> None:
        self.extended.append(deadline)


async def held(stage: Stage) -> Held:
    session = await stage.session()
    await stage.say(session)
    return Held(stage, (await stage.claimed(session)).claim)


async def test_a_renewed_claim_is_trusted_from_the_moment_the_renewal_was_sent(stage: Stage) -> None:
    it = await held(stage)
    it.clock.advance(3.0)

    async def slow(_: object) -> None:
        it.clock.advance(0.5)

    stage.wire.before["renew"] = slow
    it.leases.tick()
    (verdict,) = await it.leases.renew(it.broker)
    assert verdict.tip is not None
    assert it.extended == [1_004.0, 1_007.0], "not from the moment of the answer"
    it.clock.advance(3.4)
    assert not it.leases.distrusted()
    it.clock.advance(0.2)
    assert it.leases.distrusted() == [it.claim]


async def test_a_renewal_that_no_replica_has_extends_nothing(stage: Stage) -> None:
    """A primary that is cut off from its replicas answers OK all the same."""
    it, asked, confirmed = await held(stage), [], False

    async def confirm(_: Broker, claim: Claim, reached: int) -> bool:
        asked.append((claim, reached))
        return confirmed

    extended: list[float] = []
    leases = Leases(WorkerSettings(), lambda _, deadline: extended.append(deadline), it.clock.time, confirm)
    leases.hold(it.claim, it.clock.time(), lambda: 0)
    it.clock.advance(2.0)
    leases.tick()
    (verdict,) = await leases.renew(it.broker)
    assert verdict.tip is not None, "the claim is not over"
    assert asked == [(it.claim, 0)]
    assert extended == [1_004.0]
    assert leases.pause_s < 0.5, "what is left of the trust is short"
    confirmed = True
    await leases.renew(it.broker)
    assert extended == [1_004.0, 1_006.0]
    assert leases.pause_s == 2.0


async def test_a_stuck_loop_is_not_renewed_for(stage: Stage) -> None:
    it = await held(stage)
    it.leases.tick()
    it.clock.advance(4.1)
    assert await it.leases.renew(it.broker) == []
    assert stage.wire.sent["renew"] == 0
    assert it.leases.distrusted() == [it.claim]


async def test_a_renewal_that_is_not_answered_extends_nothing(stage: Stage) -> None:
    it = await held(stage)
    stage.wire.after["renew"] = lost(1)
    it.clock.advance(2.0)
    it.leases.tick()
    assert await it.leases.renew(it.broker) == []
    assert it.extended == [1_004.0]
    assert it.leases.pause_s < 0.5, "what is left of the trust is short"
    assert await it.leases.renew(it.broker) != []
    assert it.leases.pause_s == 2.0


async def test_a_claim_that_was_taken_is_told_to_be_over(stage: Stage) -> None:
    it = await held(stage)
    await stage.broker.revoke(it.claim.session)
    it.leases.tick()
    (verdict,) = await it.leases.renew(it.broker)
    assert verdict.tip is None
    assert it.extended == [1_004.0]


async def test_a_claim_over_a_log_that_went_back_is_told_to_be_over(stage: Stage) -> None:
    it = await held(stage)
    it.reached = 1_000
    it.leases.tick()
    (verdict,) = await it.leases.renew(it.broker)
    assert verdict.tip is None
    assert it.extended == [1_004.0]


async def test_a_claim_that_was_given_back_meanwhile_is_not_extended(stage: Stage) -> None:
    it = await held(stage)

    async def given_back(_: object) -> None:
        it.leases.let_go(it.claim)

    stage.wire.after["renew"] = given_back
    it.leases.tick()
    await it.leases.renew(it.broker)
    assert it.extended == [1_004.0]
    assert not it.leases.distrusted()


async def running_command(stage: Stage) -> SessionId:
    session = await stage.session()
    stage.models.will([calls("c1"), ends()])
    stage.tools.gates["c1"] = Gate()
    await stage.say(session)
    return session


async def killed(stage: Stage) -> None:
    while not stage.tools.killed:
        await asyncio.sleep(0.01)


async def test_a_worker_stops_its_commands_when_it_cannot_renew(stage: Stage) -> None:
    await running_command(stage)
    nowhere: list[Broker] = []

    def unreachable() -> Broker:
        nowhere.append(open_broker("unix:///nonexistent/socket"))
        return nowhere[-1]

    async with at_work(stage.worker(times=BRIEF, connect_renewal=unreachable)):
        await stage.tools.began("c1").wait()
        await asyncio.wait_for(killed(stage), 20)
    assert nowhere
    assert stage.tools.started["c1"] == 1


async def test_a_worker_whose_claim_was_revoked_stops_its_commands(stage: Stage) -> None:
    session = await running_command(stage)
    async with at_work(stage.worker(times=FREQUENT)):
        await stage.tools.began("c1").wait()
        await stage.broker.revoke(session)
        await asyncio.wait_for(killed(stage), 20)
        await stage.until(session, "task_complete")
    assert stage.models.outputs()["c1"].startswith("in doubt")


async def test_a_renewal_tells_of_what_a_lost_poke_was_about(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await running_command(stage)

    async def unheard(*_: object) -> None:
        return None

    monkeypatch.setattr(stage.broker, "poke", unheard)
    async with at_work(stage.worker(times=FREQUENT)):
        await stage.tools.began("c1").wait()
        await stage.submit(session, ops.Interrupt())
        await stage.until(session, "turn_aborted")
    assert stage.tools.killed == ["c1"]
