"""Pools: what waits in each and for how long, who serves it, and who asks people, whatever the shard."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import orjson
import pytest

from orchestrator.broker import logs, trees, worker_state
from orchestrator.broker.broker import Broker
from orchestrator.broker.connection import Connection
from orchestrator.broker.errors import Corrupt
from orchestrator.broker.records import BrokerConfig, Committed, PoolQueue, Unserved
from orchestrator.broker.worker_state import MachineFacts, Pace, WorkerState
from orchestrator.core.commit_parts import Approval
from orchestrator.core.ids import SessionId
from tests.broker.actors import POOL, Backend, claimed, created, session_id, step, submitted
from tests.broker.doubles import FakeClock, redis_time
from tests.broker.families import OP
from tests.stated import StatedRedis

SHARDS = (0, 3, 15)
POOLS = (POOL, "gpu", "other")
ASKED_FOR = (POOL, "gpu")


@pytest.fixture
def clock() -> Iterator[FakeClock]:
    with redis_time(FakeClock()) as fake:
        yield fake


@pytest.fixture
async def timed(clock: FakeClock) -> AsyncIterator[Broker]:
    """A broker whose server and process live by one clock."""
    client = StatedRedis()
    broker = Broker(Connection(client, client), BrokerConfig(lease_s=3_600.0), clock.monotonic)
    yield broker
    await broker.aclose()


async def _due(broker: Broker, pool: str, shard: int) -> SessionId:
    return await created(broker, session_id(shard), pool=pool, submissions=OP)


async def _held(broker: Broker, pool: str, shard: int) -> SessionId:
    session = await _due(broker, pool, shard)
    await claimed(broker, session, "w1", f"claim of {session}")
    return session


async def _lost(broker: Broker, pool: str, shard: int, since_ms: int) -> SessionId:
    """A session whose holder was lost then."""
    session = await _held(broker, pool, shard)
    await broker.command("ZADD", broker.keys.leases(shard, pool), since_ms, session)
    return session


async def test_sessions_without_a_worker_are_those_of_every_shard_of_each_pool_that_is_asked_for(
    broker: Broker,
) -> None:
    due, lost = set(), {}
    for number, (pool, shard) in enumerate((pool, shard) for pool in POOLS for shard in SHARDS):
        waits, gone = await _due(broker, pool, shard), await _lost(broker, pool, shard, 1_000 + number)
        await _held(broker, pool, shard)
        await created(broker, session_id(shard), pool=pool)
        if pool in ASKED_FOR:
            due.add(waits)
            lost[gone] = 1_000 + number
    assert await broker.claims.unserved(ASKED_FOR) == Unserved(lost, frozenset(due))
    assert await broker.claims.unserved([]) == Unserved()


@pytest.mark.parametrize("shard", SHARDS)
async def test_sessions_at_work_are_those_of_one_shard_that_wait_or_are_held_in_each_pool(
    broker: Broker, shard: int
) -> None:
    found = set()
    for pool in POOLS:
        for other in SHARDS:
            both = {await _due(broker, pool, other), await _held(broker, pool, other)}
            await created(broker, session_id(other), pool=pool)
            found |= both if pool in ASKED_FOR and other == shard else set()
    assert set(await broker.claims.at_work(shard, ASKED_FOR)) == found


async def test_queue_of_a_pool_has_all_of_its_shards_and_the_age_of_what_was_not_read_for_longest(
    timed: Broker, clock: FakeClock
) -> None:
    await _due(timed, "other", 0)
    clock.advance(10.0)
    read = await _held(timed, POOL, 15)
    clock.advance(10.0)
    await _due(timed, POOL, 3)
    held = await claimed(timed, read, "w1", f"claim of {read}")
    done = await timed.commits.commit(step(held, held.claim, "k", cursor="1-0", release="yield"))
    assert isinstance(done, Committed)
    await _held(timed, POOL, 0)
    clock.advance(5.0)
    assert await timed.claims.queue_of(POOL) == PoolQueue(due=2, leased=1, age_ms=5_000), "one has read all"
    await submitted(timed, read, "unread")
    clock.advance(2.0)
    assert await timed.claims.queue_of(POOL) == PoolQueue(due=2, leased=1, age_ms=7_000)
    (oldest,) = await timed.claims.at_work(3, [POOL])
    await timed.command("HSET", timed.keys.session(oldest), "eq", "many")
    assert await timed.claims.queue_of(POOL) == PoolQueue(due=2, leased=1, age_ms=2_000), "one cannot be read"
    await timed.command("HSET", timed.keys.session(oldest), "eq", "0")
    queue = timed.keys.sq(oldest)
    await timed.command("XADD", queue, "2-0", "k", "no entry")
    await timed.command("XTRIM", queue, "MINID", "2")
    assert await timed.claims.queue_of(POOL) == PoolQueue(due=2, leased=1, age_ms=2_000), "its queue cannot"
    with pytest.raises(Corrupt, match="entry 2: it lacks its field 'p'"):
        await claimed(timed, oldest, "w2", "takes")
    assert await timed.claims.queue_of(POOL) == PoolQueue(due=1, leased=2, age_ms=2_000)
    assert await timed.claims.queue_of("other") == PoolQueue(due=1, leased=0, age_ms=27_000)
    assert await timed.claims.queue_of("nobody's") == PoolQueue(due=0, leased=0, age_ms=0)


async def test_worker_that_was_lost_is_listed_behind_those_heard_since_and_forgotten_after_a_day(
    timed: Broker, clock: FakeClock
) -> None:
    async def beats(worker: str) -> None:
        await timed.claims.heartbeat(worker, worker.encode())

    async def listed() -> list[tuple[str, bytes]]:
        return [(one.worker, one.state) for one in await timed.claims.workers()]

    for worker in ("b", "a"):
        await beats(worker)
        clock.advance(1.0)
    clock.advance(86_397.0)
    await beats("c")
    assert await listed() == [("c", b"c"), ("a", b"a"), ("b", b"b")]
    assert await timed.claims.drain("b")
    clock.advance(1.5)
    await beats("c")
    assert await listed() == [("c", b"c"), ("a", b"a")]
    assert not await timed.claims.drain("b")
    await beats("b")
    assert not await timed.claims.heartbeat("b", b"b"), "it is another worker of this name"


async def test_open_requests_are_listed_and_counted_over_all_shards_in_the_order_in_which_they_were_opened(
    timed: Broker, clock: FakeClock
) -> None:
    one, other, third = sessions = [await _due(timed, POOL, shard) for shard in (15, 1, 15)]
    at = {session: await claimed(timed, session, "w1", f"claim of {session}") for session in sessions}
    for session, key in ((one, "call:1"), (other, "call:1"), (third, "call:1"), (one, "call:0")):
        held = at[session]
        opens = step(held, held.claim, f"{key} of {session}", (), approvals_open=(Approval(key, b"?"),))
        done = await timed.commits.commit(opens)
        assert isinstance(done, Committed)
        at[session] = await claimed(timed, session, "w1", f"claim of {session}")
        clock.advance(1.0)
    listed = [(asked.session, asked.key) for asked in await timed.requests.approvals()]
    assert listed == [(one, "call:1"), (other, "call:1"), (third, "call:1"), (one, "call:0")]
    for session in sessions:
        own = [(asked.session, asked.key) for asked in await timed.requests.approvals(session)]
        assert own == [row for row in listed if row[0] == session]
    assert await timed.requests.approvals_of([]) == ()
    assert await timed.requests.askers() == {one: 2, other: 1, third: 1}
    assert await timed.requests.count_open_requests() == 4


async def test_each_session_is_served_as_its_own_pool_says_however_many_are_asked_about(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_state, "_SESSIONS_A_CALL", 2)
    monkeypatch.setattr(logs, "_HEADS", 2)
    due, held, parked = [], [], []
    for pool in (POOL, "gpu"):
        for shard in (3, 3, 1):
            due.append(await _due(broker, pool, shard))
            held.append(await _held(broker, pool, shard))
            parked.append(await created(broker, session_id(shard), pool=pool))
    heads = await broker.logs.heads([*held, *parked, *due])
    assert [head.session for head in heads] == [*held, *parked, *due]
    found = await broker.logs.serving(heads)
    assert [one for one in found if found[one].held] == [one for one in found if one in held]
    assert {one for one in found if found[one].due} == set(due)
    assert found.keys() == {*due, *held, *parked}


async def test_session_that_cannot_be_read_hides_no_other_from_who_asks_for_those_that_can(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "_HEADS", 2)
    sessions = [await created(broker, session_id(shard)) for shard in (3, 1, 3, 0, 3)]
    for bad in (sessions[0], sessions[3]):
        await broker.command("HSET", broker.keys.session(bad), "seq", "many")
    damaged: dict[SessionId, Corrupt] = {}
    gone = session_id()
    found = await broker.logs.heads([*sessions[:4], gone, sessions[4]], damaged)
    assert [head.session for head in found] == [sessions[1], sessions[2], sessions[4]]
    keys = {sessions[at]: broker.keys.session(sessions[at]) for at in (0, 3)}
    assert {one: error.key for one, error in damaged.items()} == keys
    with pytest.raises(Corrupt):
        await broker.logs.heads(sessions)


async def test_sessions_that_changed_are_found_by_when_in_each_shard_and_over_all(
    timed: Broker, clock: FakeClock
) -> None:
    made, times = [], []
    for number in range(8):
        made.append(await created(timed, session_id((3, 5)[number % 2])))
        times.append(clock.now_ms())
        clock.advance(1.0)
    assert await timed.logs.newest(3) == tuple(made[:4:-1])
    assert [head.session for head in await timed.logs.sessions(2)] == made[:5:-1]
    assert await timed.logs.newest_of(3, 1, 2) == [made[4], made[2]]
    of_shard = list(zip(made, times, strict=True))[1::2]
    assert list(await timed.logs.changed_since(5, times[3], 10)) == of_shard[1:]
    assert list(await timed.logs.changed_since(5, times[3] + 1, 10)) == of_shard[2:]
    assert list(await timed.logs.changed_since(5, 0, 2, start=1)) == of_shard[1:3]
    assert list(await timed.logs.changed_since(5, 0, 10, until_ms=times[5])) == of_shard[:3]
    assert list(await timed.logs.changed_since(5, 0, 10, until_ms=times[5] - 1)) == of_shard[:2]
    assert await timed.logs.count_sessions() == 8


async def test_deleted_sessions_are_found_by_when_in_each_shard(timed: Broker, clock: FakeClock) -> None:
    made = [await created(timed, session_id((3, 5)[number % 2])) for number in range(6)]
    for session in made:
        await timed.trees.delete_session(session)
        clock.advance(1.0)
    gone = [(session, clock.now_ms() - 1_000 * (6 - number)) for number, session in enumerate(made)]
    for shard, some in ((3, gone[::2]), (5, gone[1::2])):
        since, last = some[1][1], some[2][1]
        assert list(await timed.trees.deleted(shard, since, last, 10)) == some[1:]
        assert list(await timed.trees.deleted(shard, since + 1, last, 10)) == some[2:]
        assert list(await timed.trees.deleted(shard, 0, last - 1, 10)) == some[:2]
        assert list(await timed.trees.deleted(shard, 0, last, 1, start=1)) == some[1:2]
    assert [await timed.trees.deleted_at(session) for session in made] == [at for _, at in gone]
    assert await timed.trees.deleted_at(session_id()) is None


def test_state_of_a_worker_is_read_whatever_version_has_sent_it() -> None:
    facts = MachineFacts("host", 7, "1.2", 3, 5, 6, 0.5, "/w", "m1", "no room")
    paces = {POOL: Pace(1.0, 2.0, 3), "gpu": Pace()}
    state = WorkerState((POOL, "gpu"), 1, 2, draining=True, paces=paces, facts=facts)
    assert worker_state.decoded(worker_state.encoded(state)) == state
    sent = orjson.loads(worker_state.encoded(state))
    newer = {**sent, "gpus": 2, "paces": {pool: {**pace, "more": 1} for pool, pace in sent["paces"].items()}}
    assert worker_state.decoded(orjson.dumps(newer)) == state
    older = {"pools": [POOL], "held": 1, "room": 2, "paces": {POOL: {"claims_per_s": 4.0}}}
    expected = WorkerState((POOL,), 1, 2, paces={POOL: Pace(claims_per_s=4.0)})
    assert worker_state.decoded(orjson.dumps(older)) == expected
    assert worker_state.decoded(b"") == WorkerState((), 0, 0)


async def test_page_of_lapsed_sessions_that_need_a_newer_worker_hides_none_behind_it(
    backend: Backend,
) -> None:
    new = backend.broker(BrokerConfig(core_version=2, lease_s=60.0))
    old = backend.broker(BrokerConfig(core_version=1, lease_s=60.0))
    for number in range(20):
        lapsed = await _lost(new, POOL, 3, number)
        await new.command("HSET", new.keys.session(lapsed), "min_core", "2")
    last = await _lost(old, POOL, 3, 100)
    found = await old.claims.claim(POOL, "w2", "c2", 3)
    assert found is not None
    assert found.claim.session == last
    await new.aclose()
    await old.aclose()


async def test_worker_hears_what_is_said_to_it_alone_where_it_asks_for_that_and_nowhere_else(
    broker: Broker,
) -> None:
    held = await _held(broker, POOL, 3)
    deaf, hears = [
        await broker.claims.wait_for_notices(POOL, "w1", {}, 0.01, own=own) for own in (False, True)
    ]
    await submitted(broker, held, "more")
    await broker.claims.notify([(held, "w1"), (session_id(), "w2")])
    due = await _due(broker, POOL, 1)
    deaf = await broker.claims.wait_for_notices(POOL, "w1", deaf.cursors, 5.0, own=False)
    assert (deaf.named, deaf.notified) == ({1: due}, ())
    while not hears.notified:
        hears = await broker.claims.wait_for_notices(POOL, "w1", hears.cursors, 5.0)
    assert hears.notified == (held,)


@pytest.mark.parametrize("fault", ["gone", "damaged"])
async def test_session_that_is_gone_keeps_no_other_from_the_lists_and_so_many_are_brought_there_at_once(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    monkeypatch.setattr(trees, "MOST_LISTED", 3)
    made = [await created(broker, session_id(3)) for _ in range(6)]
    for session in made[:5]:
        await broker.command("HDEL", broker.keys.session(session), "recency")
    heads = await broker.logs.heads(made)
    await broker.command("DEL", broker.keys.session(made[0]))
    if fault == "damaged":
        await broker.command("SET", broker.keys.session(made[0]), "x")
    assert await broker.trees.enlist_missing(heads) == 3
    again = await broker.logs.heads(made[1:])
    assert [head.session for head in again if not head.recency_ms] == made[3:5]
    assert await broker.trees.enlist_missing(again) == 2
    assert await broker.trees.enlist_missing(await broker.logs.heads(made[1:])) == 0
