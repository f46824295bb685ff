"""A worker's claims outlive it, and are given back by the process that waits for the word of its death."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import aclosing, closing
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import pytest

from orchestrator.broker.broker import Broker
from orchestrator.broker.connection import connect
from orchestrator.broker.errors import BrokerError, OutOfMemory, Unavailable
from orchestrator.broker.records import BrokerConfig, Claim
from orchestrator.config_keys import RedisSettings
from orchestrator.core.ids import SessionId, TreeId
from orchestrator.runtime.burial import Burial, Register, bury_all, held_claims
from tests.broker.actors import claimed, created, submitted
from tests.servers import RedisServer, start_redis

PATIENCE_S = 20.0


def claim(number: int, pool: str = "default") -> Claim:
    return Claim(SessionId(f"s{number}"), TreeId(f"t{number}"), "w1", f"c{number}", number, pool)


# ── register ──────────────────────────────────────────────────────────────────────────────────────


def test_claims_that_are_held_are_read_from_the_register_and_no_others() -> None:
    register = Register()
    for number in range(5):
        register.hold(claim(number))
    for number in (0, 3):
        register.let_go(claim(number))
    register.hold(claim(7, "a pool with blanks, “quotes” and ümlauts"))
    found = held_claims(register.descriptor)
    assert sorted(one.epoch for one in found) == [1, 2, 4, 7]
    assert claim(7, "a pool with blanks, “quotes” and ümlauts") in found


def test_register_grows_no_larger_than_what_is_held_at_once() -> None:
    register = Register()
    for number in range(100):
        register.hold(claim(number))
        register.let_go(claim(number))
    assert os.fstat(register.descriptor).st_size <= 2048


def test_claim_that_is_written_or_let_go_twice_stands_once_or_not_at_all() -> None:
    register = Register()
    register.hold(claim(1))
    register.hold(claim(1))
    assert held_claims(register.descriptor) == [claim(1)]
    register.let_go(claim(1))
    register.let_go(claim(1))
    assert held_claims(register.descriptor) == []


def again(number: int, session: int) -> Claim:
    """Another claim of the same worker on a session."""
    return replace(claim(session), claim_id=f"c{number}", epoch=number)


@pytest.mark.parametrize("others", [0, 1, 3])
@pytest.mark.parametrize("ends", list(permutations((10, 11, 12))), ids=str)
def test_each_claim_of_a_worker_on_one_session_stands_until_it_is_let_go_itself(
    ends: tuple[int, ...], others: int
) -> None:
    """A claim that was lost is let go when its runner ends, maybe behind the next claims."""
    register, held = Register(), {number: again(number, 1) for number in range(10, 13)}
    for number, one in held.items():
        register.hold(one)
        for other in range(others):
            register.hold(claim(100 * number + other))
    for number in ends:
        # A runner that is told of its loss lets go, and again when it ends.
        for _ in range(2):
            register.let_go(held[number])
        left = {one.claim_id for one in held.values()} - {
            f"c{each}" for each in ends[: ends.index(number) + 1]
        }
        found = held_claims(register.descriptor)
        assert {one.claim_id for one in found if one.session == "s1"} == left
        assert len(found) == len(left) + 3 * others
    os.close(register.descriptor)


def test_claim_that_comes_while_the_last_one_of_its_session_is_held_is_in_the_register() -> None:
    """A worker that has lost a session may be given it again before it has noticed."""
    register = Register()
    for number in range(10, 15):
        register.hold(again(number, 1))
        register.let_go(again(number - 1, 1))
        assert held_claims(register.descriptor) == [again(number, 1)]
    os.close(register.descriptor)


def test_claim_too_large_for_its_place_is_left_to_its_lease() -> None:
    register = Register()
    register.hold(claim(1, "p" * 2000))
    register.hold(claim(2))
    assert held_claims(register.descriptor) == [claim(2)]


@pytest.mark.parametrize("cut", [1, 5, 40])
def test_record_that_a_death_has_torn_is_none(cut: int) -> None:
    register = Register()
    register.hold(claim(1))
    whole = os.pread(register.descriptor, 200, 1024)
    os.ftruncate(register.descriptor, 1024 + cut)
    assert held_claims(register.descriptor) == []
    os.pwrite(register.descriptor, whole[:-1] + bytes(60), 1024)
    os.pwrite(register.descriptor, b"?", 1024 + cut)
    assert held_claims(register.descriptor) == []


def test_forbidden_register_has_no_claims() -> None:
    register = Register()
    register.hold(claim(1))
    register.forbid()
    register.hold(claim(2))
    assert held_claims(register.descriptor) == []


# ── giving back ───────────────────────────────────────────────────────────────────────────────────


class Port:
    """A port that answers by a script, and then as a server does."""

    def __init__(self, *errors: BrokerError) -> None:
        self._errors = list(errors)
        self.asked: list[list[int]] = []

    async def bury(self, claims: Sequence[Claim]) -> list[bool]:
        self.asked.append([one.epoch for one in claims])
        if self._errors:
            raise self._errors.pop(0)
        return [True] * len(claims)


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    async def sleep(self, seconds: float) -> None:
        self.now_s += seconds


async def test_server_that_does_not_answer_or_is_full_is_asked_again() -> None:
    port, clock = Port(Unavailable("away"), OutOfMemory("full")), Clock()
    await bury_all(port, [claim(1), claim(2)], 6.0, clock, clock.sleep)
    assert port.asked == [[1, 2]] * 3


async def test_nothing_is_asked_when_the_leases_are_over() -> None:
    port, clock = Port(*[Unavailable("away")] * 100), Clock()
    await bury_all(port, [claim(1)], 1.0, clock, clock.sleep)
    assert len(port.asked) <= 11


async def test_damaged_session_does_not_hold_up_the_others() -> None:
    port, clock = Port(BrokerError("damaged")), Clock()
    await bury_all(port, [claim(number) for number in range(300)], 6.0, clock, clock.sleep)
    assert [len(one) for one in port.asked] == [256, 44]


# ── the waiting process ───────────────────────────────────────────────────────────────────────────


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    with start_redis(tmp_path / "redis") as server, closing(server.client()) as client:
        client.config_set("requirepass", "hush-hush")
        yield server


def settings_for(server: RedisServer) -> RedisSettings:
    return RedisSettings().at(server.url.replace("unix://", "unix://:hush-hush@"))


def broker_for(settings: RedisSettings) -> Broker:
    return Broker(connect(settings), BrokerConfig(lease_s=60.0), time.monotonic)


async def waits(broker: Broker) -> None:
    """Returns when a process waits, and has a connection."""
    until = time.monotonic() + PATIENCE_S
    while "dendro-burial" not in str(await broker.command("CLIENT", "LIST")):
        assert time.monotonic() < until, "no process waits"
        await asyncio.sleep(0.01)


async def waiting(
    broker: Broker, settings: RedisSettings
) -> tuple[SessionId, Burial, subprocess.Popen[bytes]]:
    """A session that is held, and the process that waits for the death of its holder."""
    await broker.open()
    session = await created(broker)
    await submitted(broker, session)
    burial = Burial(settings, 60.0, os.environ)
    burial.hold((await claimed(broker, session)).claim)
    burial._start()
    await waits(broker)
    assert burial._process is not None
    return session, burial, burial._process


@pytest.mark.realredis
async def test_claims_are_given_back_at_the_word_and_the_process_ends(redis: RedisServer) -> None:
    async with aclosing(broker_for(settings_for(redis))) as broker:
        session, burial, process = await waiting(broker, settings_for(redis))
        shown = (
            Path(f"/proc/{process.pid}/cmdline").read_bytes()
            + Path(f"/proc/{process.pid}/environ").read_bytes()
        )
        assert b"hush" not in shown, "who can list processes must not read the password"
        os.write(burial.descriptors[2], b"b")
        assert await asyncio.to_thread(process.wait, PATIENCE_S) == 0
        assert await broker.claims.claim_session(session, "w2", "c2") is not None
        burial.close()


@pytest.mark.realredis
async def test_claims_stay_where_nobody_says_the_word(redis: RedisServer) -> None:
    async with aclosing(broker_for(settings_for(redis))) as broker:
        session, burial, process = await waiting(broker, settings_for(redis))
        os.close(burial._writing)
        assert await asyncio.to_thread(process.wait, PATIENCE_S) == 0
        assert await broker.claims.claim_session(session, "w2", "c2") is None
        burial._writing = os.open(os.devnull, os.O_RDONLY)
        burial.close()


def test_process_that_waits_loads_no_part_of_a_worker_that_it_does_not_need() -> None:
    loaded = "import sys, orchestrator.runtime.burial; print(*sys.modules)"
    words = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True)
    names = set(words.stdout.split())
    assert not names & {"orchestrator.runtime.runner", "orchestrator.core.decide", "httpx", "redis"}
