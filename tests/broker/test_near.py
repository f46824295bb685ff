"""Notices of what became due: to the worker that had it last, else to one in turn, else to all."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from orchestrator.broker import claims as claims_module
from orchestrator.broker.broker import Broker
from orchestrator.broker.records import (
    BrokerConfig,
    Claimant,
    Claimed,
    Committed,
    Fenced,
    Look,
    Notices,
    Successor,
)
from orchestrator.core.commit_parts import OutboundMessage, Timer
from orchestrator.core.ids import SessionId, TreeId
from tests.broker.actors import POOL, SHARD, Backend, created, session_id, step, submitted

PATIENCE_S = 5.0
AT_ONCE_S = 0.05


class Ear:
    """A worker that listens."""

    def __init__(self, broker: Broker, name: str) -> None:
        self.broker, self.name = broker, name
        self.cursors: dict[str, str] = {}
        self.behind = ""

    async def begin(self) -> Ear:
        self.cursors = dict((await self._wait(AT_ONCE_S)).cursors)
        return self

    async def attend(self) -> None:
        self.behind = await self.broker.claims.attend(self.name, [POOL])
        self.cursors[self.broker.keys.near(self.name)] = self.behind

    async def _wait(self, seconds: float) -> Notices:
        return await self.broker.claims.wait_for_notices(POOL, self.name, self.cursors, seconds)

    async def hears(self, seconds: float = PATIENCE_S) -> tuple[list[SessionId], list[SessionId]]:
        """The sessions that all are told of, and those that this worker alone is told of."""
        notices = await self._wait(seconds)
        self.cursors = dict(notices.cursors)
        return list(notices.named.values()), [session for _, session in notices.alone]

    async def claim(self, claim_id: str, guess: SessionId | None = None) -> Claimed | None:
        return await self.broker.claims.claim(POOL, self.name, claim_id, SHARD, guess, attends=True)


@pytest.fixture
async def single(backend: Backend) -> AsyncIterator[Broker]:
    """A deployment on one server."""
    if backend.name == "cluster":
        pytest.skip("in a cluster all are told")
    opened = backend.broker(BrokerConfig(lease_s=60.0))
    yield opened
    await opened.aclose()


async def _parked(ear: Ear, claim_id: str = "c") -> SessionId:
    """A session that this worker had last, and that nobody holds."""
    session = await created(ear.broker)
    await submitted(ear.broker, session, claim_id)
    held = await ear.claim(claim_id, session)
    assert held is not None
    done = await ear.broker.commits.commit(step(held, held.claim, claim_id, cursor="1-0", release="park"))
    assert isinstance(done, Committed)
    assert done.released
    return session


async def _ears(broker: Broker, *names: str) -> list[Ear]:
    found = [await Ear(broker, name).begin() for name in names]
    for ear in found:
        await ear.attend()
    return found


async def test_worker_that_had_the_session_last_is_told_and_no_other(single: Broker) -> None:
    first, second = await _ears(single, "w1", "w2")
    session = await _parked(second)
    await first.hears(AT_ONCE_S)
    await second.hears(AT_ONCE_S)
    await submitted(single, session, "again")
    assert await second.hears() == ([], [session])
    assert await first.hears(AT_ONCE_S) == ([], [])


async def test_new_sessions_go_round_the_workers_that_have_room(single: Broker) -> None:
    first, second = await _ears(single, "w1", "w2")
    sessions = [await created(single) for _ in range(4)]
    for n, session in enumerate(sessions):
        await submitted(single, session, f"s{n}")
    one, other = (await first.hears())[1], (await second.hears())[1]
    assert sorted([*one, *other]) == sorted(sessions)
    assert len(one) == len(other)


async def test_all_are_told_where_nobody_wants_to_be_told_alone(broker: Broker) -> None:
    ear = await Ear(broker, "w1").begin()
    session = await created(broker)
    await submitted(broker, session)
    assert await ear.hears() == ([session], [])


async def test_all_workers_of_a_cluster_are_told(backend: Backend) -> None:
    if backend.name != "cluster":
        pytest.skip("on one server one is told")
    broker = backend.broker()
    assert broker.keys.nearby == ""
    ears = [await Ear(broker, name).begin() for name in ("w1", "w2")]
    session = await created(broker)
    await submitted(broker, session)
    for ear in ears:
        assert await ear.hears() == ([session], [])
    await broker.aclose()


async def test_worker_that_is_gone_is_told_of_nothing_and_another_one_is(single: Broker) -> None:
    first, second = await _ears(single, "w1", "w2")
    session = await _parked(first)
    await second.hears(AT_ONCE_S)
    await single.command("DEL", single.keys.near("w1"))
    await submitted(single, session, "again")
    assert await second.hears() == ([], [session])
    others = [await created(single) for _ in range(2)]
    for other in others:
        await submitted(single, other)
    assert await second.hears() == ([], others)
    assert await single.command("ZSCORE", single.keys.open(POOL), "w1") is None


async def test_worker_that_says_nothing_for_three_seconds_is_gone(single: Broker) -> None:
    await _ears(single, "w1")
    left_ms = await single.command("PTTL", single.keys.near("w1"))
    assert isinstance(left_ms, int)
    assert 2_000 < left_ms <= 3_000
    assert await single.claims.attends("w1")
    await single.command("DEL", single.keys.near("w1"))
    assert not await single.claims.attends("w1")


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others leave a session to the worker that was told alone for longer than a test takes."""
    monkeypatch.setattr(claims_module, "_NEAR_MS", 600_000)


@pytest.mark.usefixtures("patient")
async def test_others_pass_over_a_session_of_which_another_worker_was_just_told(single: Broker) -> None:
    first, second = await _ears(single, "w1", "w2")
    session = await _parked(first)
    await submitted(single, session, "again")
    assert await second.claim("c2", session) is None, "by a guess"
    assert await second.claim("c3") is None, "by a poll"
    other = await created(single)
    await submitted(single, other)
    held = await second.claim("c4", other)
    assert held is not None
    assert (held.claim.session, held.after) == (other, None), "and is told of nothing that comes next"
    held = await first.claim("c5", session)
    assert held is not None
    assert held.claim.session == session


@pytest.mark.usefixtures("patient")
async def test_look_finds_what_was_told_to_another_worker_only_when_a_moment_is_over(single: Broker) -> None:
    first, _ = await _ears(single, "w1", "w2")
    session = await _parked(first)
    await submitted(single, session, "again")
    assert await single.claims.look([POOL], "w2") == Look()
    assert await single.claims.look([POOL], "w1") == Look(claimable=((POOL, SHARD),)), "it is told itself"
    await single.command("HSET", single.keys.session(session), "due_ms", 1)
    assert await single.claims.look([POOL], "w2") == Look(claimable=((POOL, SHARD),)), "none said: nothing"


@pytest.mark.usefixtures("patient")
async def test_session_is_anybodys_again_after_a_moment(single: Broker) -> None:
    first, second = await _ears(single, "w1", "w2")
    session = await _parked(first)
    await submitted(single, session, "again")
    due_ms = await single.command("HGET", single.keys.session(session), "due_ms")
    assert isinstance(due_ms, bytes)
    await single.command("HSET", single.keys.session(session), "due_ms", int(due_ms) - 600_000)
    held = await second.claim("c2", session)
    assert held is not None
    assert held.claim.session == session


@pytest.mark.usefixtures("patient")
async def test_clock_that_was_put_back_leaves_a_session_to_nobody(single: Broker) -> None:
    first, second = await _ears(single, "w1", "w2")
    session = await _parked(first)
    await submitted(single, session, "again")
    await single.command("HSET", single.keys.session(session), "due_ms", 1 << 45)
    assert await second.claim("c2", session) is not None


@pytest.mark.usefixtures("patient")
async def test_worker_without_room_has_all_told_of_what_it_alone_was_told(single: Broker) -> None:
    first, second = await _ears(single, "w1", "w2")
    session, unread = await _parked(first, "c1"), await _parked(first, "c2")
    await first.hears(AT_ONCE_S)
    await second.hears(AT_ONCE_S)
    first.behind = first.cursors[single.keys.near("w1")]
    for one in (session, unread):
        await submitted(single, one, "again")
    told = await single.claims.turn_away("w1", [POOL], first.behind)
    assert told == ((POOL, session), (POOL, unread))
    await single.claims.pass_on(POOL, [session, unread])
    assert (await second.hears())[0] == [session], "the first of the shard's notices names one"
    assert await second.claim("c3", session) is not None
    assert await second.claim("c4", unread) is not None
    await submitted(single, third := await created(single))
    assert await second.hears() == ([], [third]), "nothing more is told to the other alone"


async def test_session_that_nobody_waits_for_is_told_of_to_nobody(single: Broker) -> None:
    (first,) = await _ears(single, "w1")
    session = await _parked(first)
    await first.hears(AT_ONCE_S)
    await single.claims.pass_on(POOL, [session])
    assert await first.hears(AT_ONCE_S) == ([], [])


async def test_letter_wakes_the_worker_that_had_its_receiver_last(single: Broker) -> None:
    first, second = await _ears(single, "w1", "w2")
    receiver = await _parked(first)
    held = await _held_by(second, receiver)
    mail = OutboundMessage(receiver, "message", b"a letter", "m")
    await first.hears(AT_ONCE_S)
    await single.commits.commit(step(held, held.claim, "k", outbox=(mail,)))
    assert await first.hears() == ([], [receiver])


async def test_who_claims_behind_a_commit_is_not_told_of_whom_it_had_last(single: Broker) -> None:
    first, second = await _ears(single, "w1", "w2")
    receiver = await _parked(first)
    held = await _held_by(first, receiver)
    mail = OutboundMessage(receiver, "message", b"a letter", "m")
    await first.hears(AT_ONCE_S)
    await second.hears(AT_ONCE_S)
    successor = Successor(receiver, Claimant(POOL, "w1", "next", attends=True), 0.0)
    done = await single.commits.commit(step(held, held.claim, "k", outbox=(mail,)), successor)
    assert isinstance(done, Committed)
    assert successor.claimed is not None
    assert (successor.claimed.claim.session, successor.claimed.claim.claim_id) == (receiver, "next")
    assert [entry.payload for entry in successor.claimed.first] == [b"a letter"]
    assert await first.hears(AT_ONCE_S) == await second.hears(AT_ONCE_S) == ([], [])


async def test_who_claims_behind_a_commit_leaves_to_another_worker_what_that_had_last(
    single: Broker,
) -> None:
    first, second = await _ears(single, "w1", "w2")
    receiver = await _parked(first)
    held = await _held_by(second, receiver)
    mail = OutboundMessage(receiver, "message", b"a letter", "m")
    await first.hears(AT_ONCE_S)
    successor = Successor(receiver, Claimant(POOL, "w2", "next", attends=True), 0.0)
    done = await single.commits.commit(step(held, held.claim, "k", outbox=(mail,)), successor)
    assert isinstance(done, Committed)
    assert successor.claimed is None
    assert await first.hears() == ([], [receiver])


async def test_session_is_claimed_behind_a_commit_that_is_refused_if_it_is_due(single: Broker) -> None:
    (first,) = await _ears(single, "w1")
    receiver = await _parked(first)
    held = await _held_by(first, receiver)
    await submitted(single, receiver, "again")
    mail = OutboundMessage(receiver, "message", b"a letter", "m")
    successor = Successor(receiver, Claimant(POOL, "w1", "next", attends=True), 0.0)
    late = replace(step(held, held.claim, "k", outbox=(mail,)), expect_seq=99)
    assert isinstance(await single.commits.commit(late, successor), Fenced)
    assert successor.claimed is not None


async def _held_by(ear: Ear, tree: SessionId) -> Claimed:
    session = await created(ear.broker, tree=TreeId(tree))
    await submitted(ear.broker, session)
    held = await ear.claim("held", session)
    assert held is not None
    return held


async def test_timer_wakes_the_worker_that_had_its_session_last(single: Broker) -> None:
    first, second = await _ears(single, "w1", "w2")
    session = await _parked(first)
    held = await first.broker.claims.claim_session(session, "upkeep", "u", parked=True)
    assert held is not None
    timer = Timer("t", 1, 1_000)
    await single.commits.commit(step(held, held.claim, "k", timers_set=(timer,), release="park"))
    await first.hears(AT_ONCE_S)
    await second.hears(AT_ONCE_S)
    assert await single.command("HGET", single.keys.session(session), "last") == b"", "it does not attend"
    await single.claims.fire(SHARD)
    one, other = (await first.hears(AT_ONCE_S))[1], (await second.hears(AT_ONCE_S))[1]
    assert [*one, *other] == [session]


async def test_worker_of_an_earlier_version_is_told_as_before(single: Broker) -> None:
    """It waits for the streams of all shards and says nothing of itself; its sessions have no last worker."""
    ear = await Ear(single, "old").begin()
    session = await created(single)
    await submitted(single, session)
    held = await single.claims.claim(POOL, "old", "c", SHARD, session)
    assert held is not None
    await ear.hears()
    await single.commits.commit(step(held, held.claim, "k", cursor="1-0", release="park"))
    await submitted(single, session, "again")
    assert await ear.hears() == ([session], [])


async def test_key_of_another_type_keeps_nobody_from_being_told(single: Broker) -> None:
    (first,) = await _ears(single, "w1")
    session = await _parked(first)
    await first.hears(AT_ONCE_S)
    for key in (single.keys.near("w1"), single.keys.open(POOL)):
        await single.command("DEL", key)
        await single.command("SET", key, "x")
    await submitted(single, session, "again")
    listening = await Ear(single, "w2").begin()
    assert await listening.claim("c2", session) is not None


async def test_worker_of_several_pools_is_told_alone_of_sessions_of_each_until_it_has_no_room(
    single: Broker,
) -> None:
    pools = (POOL, "gpu", "third")
    ear = await Ear(single, "w1").begin()
    ear.behind = await single.claims.attend("w1", pools)
    near = single.keys.near("w1")
    ear.cursors[near] = ear.behind
    first = [(pool, await created(single, pool=pool)) for pool in pools]
    for _, session in first:
        await submitted(single, session)
    notices = await single.claims.wait_for_notices(POOL, "w1", ear.cursors, PATIENCE_S)
    assert (notices.alone, notices.shards, notices.named) == (tuple(first), (), {})
    second = [(pool, await created(single, pool=pool)) for pool in pools[::-1]]
    for _, session in second:
        await submitted(single, session)
    assert await single.claims.turn_away("w1", pools, notices.cursors[near]) == tuple(second)
    for pool in pools:
        assert await single.command("ZSCORE", single.keys.open(pool), "w1") is None
        await single.claims.pass_on(pool, [session for of, session in second if of == pool])
    for pool in pools:
        listening = await single.claims.wait_for_notices(pool, "w2", {}, AT_ONCE_S)
        await submitted(single, await created(single, pool=pool))
        told = await single.claims.wait_for_notices(pool, "w2", listening.cursors, PATIENCE_S)
        assert told.shards == (SHARD,), "all are told again"


async def test_letter_to_a_pool_that_its_sender_does_not_claim_from_is_told_of_and_claimed_by_a_notice(
    single: Broker,
) -> None:
    pools = (POOL, "gpu")
    ear = await Ear(single, "w1").begin()
    ear.cursors[single.keys.near("w1")] = await single.claims.attend("w1", pools)
    sender = await created(single)
    await submitted(single, sender)
    held = await ear.claim("held", sender)
    assert held is not None
    receiver = await created(single, tree=TreeId(sender), pool="gpu")
    await ear.hears()
    successor = Successor(receiver, Claimant(POOL, "w1", "next", attends=True), 0.0)
    mail = OutboundMessage(receiver, "message", b"a letter", "m")
    done = await single.commits.commit(step(held, held.claim, "k", outbox=(mail,)), successor)
    assert isinstance(done, Committed)
    assert successor.claimed is None
    assert await ear.hears() == ([], [receiver])
    found = await single.claims.claim("gpu", "w1", "c", SHARD, receiver, attends=True)
    assert found is not None
    assert found.claim.session == receiver


async def test_notices_name_each_shard_with_what_became_due_there_and_each_session_that_was_given_something(
    broker: Broker,
) -> None:
    held = [await created(broker, session_id(shard)) for shard in (1, 3, 3)]
    for number, session in enumerate(held):
        await submitted(broker, session)
        assert await broker.claims.claim_session(session, "w1", f"c{number}") is not None
    listening = await broker.claims.wait_for_notices(POOL, "w1", {}, AT_ONCE_S)
    for session in held[1:]:
        for number in range(2):
            await submitted(broker, session, f"more {number}")
    due = {shard: [await created(broker, session_id(shard)) for _ in range(2)] for shard in (0, 15)}
    for some in due.values():
        for session in some:
            await submitted(broker, session)
    shards, named, notified = set[int](), dict[int, SessionId](), list[SessionId]()
    cursors = listening.cursors
    while len(shards) < 2 or len(notified) < 2:
        notices = await broker.claims.wait_for_notices(POOL, "w1", cursors, PATIENCE_S)
        shards |= set(notices.shards)
        named = {**notices.named, **named}
        notified += notices.notified
        cursors = notices.cursors
    assert (shards, named) == ({0, 15}, {shard: some[0] for shard, some in due.items()})
    assert notified == held[1:]
