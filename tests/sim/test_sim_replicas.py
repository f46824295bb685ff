"""The simulated primary asks a replica, and lives on when that is promoted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from random import Random
from typing import Any

import pytest
from redis import exceptions as foreign

from orchestrator.broker.broker import Broker
from orchestrator.broker.connection import Connection
from orchestrator.broker.records import BrokerConfig, Claim
from orchestrator.broker.redis_keys import Keys
from orchestrator.core.ids import SessionId, TreeId
from sim.campaign import run_batch
from sim.double import Double, opened
from sim.loop import Lane, SimLoop
from sim.network import Line, Network
from sim.replicas import Replicas
from sim.trace import Trace

CLAIM = Claim(SessionId("01a3185c-5000-7000-aa5f-46d64e241ee0"), TreeId("t"), "w1", "c1", 1, "default")
HASH = Keys("d:", 1).session(CLAIM.session)


@pytest.fixture
def double() -> Iterator[Double]:
    with opened() as server:
        yield server


class Fleet:
    """A server whose replica confirms everything, and the machine w1 that uses it."""

    def __init__(self, double: Double, likely: float = 1.0) -> None:
        self.loop = SimLoop(Random(1))
        double.reset(self.loop.time)
        self.double = double
        self.network = Network(self.loop, double, Random(2), Trace(self.loop.time))
        self.replicas = self.network.replicas = Replicas(double, self.loop.time, Random(3), likely)
        line = Line(self.network, "w1")
        self.broker = Broker(Connection(line, line), BrokerConfig(prefix="d:", shards=1), self.loop.time)

    def confirms(self, seq: int) -> bool:
        heard: list[bool] = []

        async def asks() -> None:
            heard.append(await self.broker.claims.confirmed(CLAIM, seq, 1, 1.0))

        self._does(asks())
        return heard[0]

    def writes(self, *command: Any) -> None:
        async def says() -> None:
            await Line(self.network, "w1").execute_command(*command)

        self._does(says())

    def _does(self, work: Any) -> None:
        self.loop.start(Lane("w1"), work, "works")
        self.loop.run(1_000)
        assert not self.loop.failures


def test_holder_is_told_what_the_replica_has_of_its_log(double: Double) -> None:
    fleet = Fleet(double)
    with closing(fleet.loop):
        fleet.writes("HSET", HASH, "claim", "c1", "seq", 4)
        assert [fleet.confirms(4), fleet.confirms(5)] == [True, False]


def test_promoted_replica_has_what_was_confirmed_and_the_old_primary_confirms_nothing(double: Double) -> None:
    fleet = Fleet(double)
    with closing(fleet.loop):
        fleet.writes("HSET", HASH, "claim", "c1", "seq", 4)
        assert fleet.confirms(4)
        fleet.writes("HSET", HASH, "seq", 5)
        fleet.replicas.fails_over({"w1": True}, behind_s=10.0)
        fleet.writes("HSET", HASH, "seq", 6)
        assert double.hash(HASH)[b"seq"] == b"4"
        assert not fleet.confirms(4)
        fleet.replicas.heals()
        assert [fleet.confirms(4), fleet.confirms(5)] == [True, False]


def test_full_server_confirms_nothing_and_its_holder_is_told_so(double: Double) -> None:
    fleet = Fleet(double)
    with closing(fleet.loop):
        fleet.writes("HSET", HASH, "claim", "c1", "seq", 4)
        fleet.network.refuses = lambda: foreign.OutOfMemoryError("used memory > 'maxmemory'")
        assert not fleet.confirms(4)


def test_sessions_go_on_at_the_primary_that_was_promoted() -> None:
    outcomes, _ = run_batch(range(12), "primaries")
    assert [outcome.violation for outcome in outcomes] == [None] * 12
    assert sum(outcome.reach["fault second_primary"] for outcome in outcomes) > 3
