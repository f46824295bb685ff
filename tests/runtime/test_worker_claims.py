"""Claims of a worker: what it takes, when it looks, and what it does with them when it leaves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from orchestrator.broker import claims as claims_module
from orchestrator.broker.worker_state import MachineFacts, WorkerState, decoded, encoded
from orchestrator.core.ids import SessionId
from orchestrator.core.settings import PortableFolder
from orchestrator.runtime import worker as worker_module
from orchestrator.runtime.worker import Worker
from tests.runtime.connections import Gate
from tests.runtime.folders import ScriptedFolders
from tests.runtime.harness import POOL, Harness, open_broker
from tests.runtime.players import calls


@asynccontextmanager
async def at_work(worker: Worker) -> AsyncIterator[Worker]:
    """The worker runs inside and is drained at the end."""
    running = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        worker.drain()
        await asyncio.wait_for(running, 30)


async def test_a_busy_worker_takes_over_what_a_dead_one_held(harness: Harness) -> None:
    # In another shard, where no hint of the busy session's leads.
    busy, orphan = await harness.session(), await harness.session(shard=0)
    # The lease outlasts the worker's first look, so that only a later one can find it run out.
    brief = open_broker(harness.url, lease_s=1.0)
    await harness.say(orphan)
    assert await brief.claims.claim_session(orphan, "dead", "claim") is not None
    await brief.aclose()
    over = asyncio.Event()

    async def keep_busy() -> None:
        while not over.is_set():
            await harness.say(busy)
            await harness.until(busy, "task_complete")

    async with at_work(harness.worker()):
        talk = asyncio.create_task(keep_busy())
        await harness.until(orphan, "task_complete")
        over.set()
        await talk


async def test_a_draining_worker_does_not_run_what_it_was_just_about_to_claim(harness: Harness) -> None:
    session, claiming = await harness.session(), Gate()
    harness.tools.gates["c1"] = Gate()
    harness.models.will([calls("c1")])
    harness.connection.after["claim"] = claiming.wait
    await harness.say(session)
    worker = harness.worker()
    async with asyncio.timeout(20):
        running = asyncio.create_task(worker.run())
        await claiming.reached.wait()
        worker.drain()
        claiming.open()
        await running
    assert not harness.tools.started
    head = await harness.broker.logs.head(session)
    assert head is not None
    assert head.holder is None
    assert len(await harness.facts(session, "task")) <= 1


async def test_a_worker_that_slept_until_its_claim_was_answered_begins_nothing(harness: Harness) -> None:
    late, other = await harness.session(), await harness.session()
    boottime, slept_s, claimed = harness.ports.boottime, 0.0, asyncio.Event()

    async def sleeps(_: object) -> None:
        nonlocal slept_s
        slept_s = 3600.0
        del harness.connection.after["claim"]
        claimed.set()

    harness.ports = replace(harness.ports, boottime=lambda: boottime() + slept_s)
    harness.connection.after["claim"] = sleeps
    await harness.say(late)
    async with asyncio.timeout(20), at_work(harness.worker()):
        await claimed.wait()
        await harness.say(other)
        await harness.until(other, "task_complete")
    assert await harness.facts(late, "task") == []
    head = await harness.broker.logs.head(late)
    assert head is not None
    assert head.holder == "w1"


async def test_each_commit_shows_that_a_worker_is_alive_however_late_its_ticks_are(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "TICK_S", 3600.0)
    session, worker, ticks = await harness.session(), harness.worker(), list[int]()
    monkeypatch.setattr(worker._renewal, "tick", lambda: ticks.append(harness.connection.sent["commit"]))
    async with asyncio.timeout(30), at_work(worker):
        await harness.say(session)
        await harness.until(session, "task_complete")
        await worker._emptied()
        assert [sent for sent in ticks if sent] == list(range(1, harness.connection.sent["commit"] + 1))


async def test_a_worker_whose_heartbeat_breaks_leaves_and_says_why(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = harness.worker()

    async def broken(*_: object, **more: object) -> None:
        raise RuntimeError("the heart stopped")

    monkeypatch.setattr(worker._ports.broker.claims, "heartbeat", broken)
    async with asyncio.timeout(20):
        with pytest.raises(RuntimeError, match="the heart stopped"):
            await worker.run()


async def test_worker_that_a_person_sends_home_leaves_and_is_listed_no_more(harness: Harness) -> None:
    worker = harness.worker()
    name = worker._config.name
    await harness.broker.claims.heartbeat(name, b"{}")
    assert await harness.broker.claims.drain(name)
    async with asyncio.timeout(20):
        await worker.run()
    assert await harness.broker.claims.workers() == ()


async def test_worker_comes_back_for_what_it_left_to_another_machine(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "POLL_S", 3600.0)
    broker, session = harness.ports.broker, await harness.session()
    broker.config = replace(broker.config, machine="m2", leave_s=0.2)
    there = WorkerState((POOL,), 0, 2, facts=MachineFacts(machine_id="m1"))
    await broker.claims.heartbeat("w-m1", encoded(there))
    await broker.command("HSET", broker.keys.session(session), "copy_on", "m1", "unsaved", "")
    await harness.say(session)
    async with asyncio.timeout(20), at_work(harness.worker()):
        await harness.until(session, "task_complete")
    left = await broker.command("HGET", broker.keys.session(session), "left_ms")
    assert left is None


@pytest.fixture
def without_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers look once, when they start, and others leave to a worker for long what it was told alone.

    A worker that wants to be told alone says so with each look: once is enough here, too.
    """
    monkeypatch.setattr(worker_module, "POLL_S", 3600.0)
    monkeypatch.setattr(claims_module, "_NEAR_MS", 600_000)
    monkeypatch.setattr(claims_module, "_ATTENDS_MS", 600_000)


@pytest.mark.usefixtures("without_looks")
async def test_session_comes_back_to_the_worker_that_had_it_last(harness: Harness) -> None:
    sessions = [await harness.session() for _ in range(4)]
    async with asyncio.timeout(20), at_work(harness.worker(name="w1")), at_work(harness.worker(name="w2")):
        await _attended(harness, "w1", "w2")
        holders: list[list[str]] = []
        for _ in range(3):
            for session in sessions:
                await harness.say(session)
                await harness.until(session, "task_complete")
            holders.append([await _last(harness, session) for session in sessions])
    assert holders[0] == holders[1] == holders[2]
    assert sorted(holders[0]) == ["w1", "w1", "w2", "w2"], "new ones go round"


async def test_worker_offers_to_take_a_session_if_it_has_room_for_it_and_nobody_waits(
    harness: Harness,
) -> None:
    session = await harness.session()
    async with asyncio.timeout(20), at_work(harness.worker(name="w1", concurrency=1)) as worker:
        await _attended(harness, "w1")
        await harness.say(session)
        await harness.until(session, "task_complete")
        # A worker that was full for a moment attends again at its next look.
        while worker._runners or worker._to_poll or not worker._behind:
            await asyncio.sleep(0.01)
        assert worker.offer(session, "other") is None
        worker._to_poll[POOL, 0] = None
        assert worker.offer(session, POOL) is None
        worker._to_poll.clear()
        offered = worker.offer(session, POOL)
        assert offered is not None
        assert worker.offer(session, POOL) is None, "its room is promised"
        await worker.settle(offered)
        while worker._to_poll or not worker._behind:
            await asyncio.sleep(0.01)
        assert worker.offer(session, POOL) is not None


@pytest.mark.usefixtures("without_looks")
async def test_full_worker_has_others_told_of_what_it_alone_was_told(harness: Harness) -> None:
    long, short = await harness.session(), await harness.session()
    async with asyncio.timeout(20), at_work(harness.worker(name="w1", concurrency=1)):
        await _attended(harness, "w1")
        await harness.say(short)
        await harness.until(short, "task_complete")
        harness.tools.gates["c1"] = Gate()
        harness.models.will([calls("c1")])
        await harness.say(long)
        await harness.tools.gates["c1"].reached.wait()
        async with at_work(harness.worker(name="w2")):
            await _attended(harness, "w2")
            await harness.say(short)
            await harness.until(short, "task_complete")
            assert await _last(harness, short) == "w2"
        harness.tools.gates["c1"].open()
        await harness.until(long, "task_complete")


async def test_full_worker_has_others_told_of_sessions_of_each_of_its_pools(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[str, SessionId]] = []

    async def pass_on(pool: str, sessions: Iterable[SessionId]) -> None:
        told.extend((pool, one) for one in sessions)

    monkeypatch.setattr(harness.ports.broker.claims, "pass_on", pass_on)
    one, two, three = [await harness.session() for _ in range(3)]
    worker = harness.worker(pools=(POOL, "other", "third"))
    worker._add_alone([(POOL, one), ("other", two), ("third", three)])
    await worker._turn_away()
    assert sorted(told) == sorted([(POOL, one), ("other", two), ("third", three)])


MAY_NOT = {
    "it is another machine's": ("copy_on", "m1", "unsaved", "1"),
    "it needs a newer version": ("min_core", "1000000"),
}


@pytest.mark.usefixtures("without_looks")
@pytest.mark.parametrize("why", MAY_NOT)
async def test_worker_has_others_told_of_each_session_that_it_alone_was_told_of_and_may_not_take(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    monkeypatch.setattr(claims_module, "LOOK_AGAIN_S", 3600.0)
    broker, passed = harness.ports.broker, asyncio.Queue[SessionId]()
    broker.config = replace(broker.config, machine="m2", leave_s=3600.0)
    there = WorkerState((POOL,), 0, 2, facts=MachineFacts(machine_id="m1"))
    await broker.claims.heartbeat("w-m1", encoded(there))
    pass_on = broker.claims.pass_on

    async def passes_on(pool: str, sessions: Collection[SessionId]) -> None:
        await pass_on(pool, sessions)
        for session in sessions:
            passed.put_nowait(session)

    monkeypatch.setattr(broker.claims, "pass_on", passes_on)
    sessions = [await harness.session() for _ in range(2)]
    due = broker.keys.due(broker.keys.shard_of(sessions[0]), POOL)
    for session in sessions:
        await broker.command("HSET", broker.keys.session(session), *MAY_NOT[why])
    async with asyncio.timeout(20), at_work(harness.worker(name="w1")):
        await _attended(harness, "w1")
        for _ in range(2):
            for session in sessions:
                await harness.say(session)
            assert {await passed.get() for _ in sessions} == set(sessions)
            # Somebody takes them and parks them, before this worker would ask again.
            await broker.command("ZREM", due, *sessions)


@pytest.mark.usefixtures("without_looks")
async def test_worker_that_leaves_is_told_of_nothing_alone(harness: Harness) -> None:
    session = await harness.session()
    async with asyncio.timeout(20), at_work(harness.worker(name="w1")):
        await _attended(harness, "w1")
        await harness.say(session)
        await harness.until(session, "task_complete")
    keys = harness.broker.keys
    assert await harness.broker.command("EXISTS", keys.near("w1")) == 0
    assert await harness.broker.command("ZSCORE", keys.open(POOL), "w1") is None
    async with asyncio.timeout(20), at_work(harness.worker(name="w2")):
        await _attended(harness, "w2")
        await harness.say(session)
        await harness.until(session, "task_complete")


async def test_worker_that_leaves_waits_for_no_redis_that_is_silent(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "GOODBYE_S", 0.05)
    silent = Gate()
    worker = harness.worker(name="w1")
    async with asyncio.timeout(20):
        running = asyncio.create_task(worker.run())
        await _attended(harness, "w1")
        harness.connection.before = {"turn_away": silent.wait, "heartbeat": silent.wait}
        worker.drain()
        await running
    assert silent.reached.is_set()


async def _attended(harness: Harness, *names: str) -> None:
    """Returns when these workers have said that they want to be told alone."""
    for name in names:
        while not await harness.broker.command("EXISTS", harness.broker.keys.near(name)):
            await asyncio.sleep(0)


async def _last(harness: Harness, session: SessionId) -> str:
    last = await harness.broker.command("HGET", harness.broker.keys.session(session), "last")
    assert isinstance(last, bytes)
    return last.decode()


async def test_worker_that_leaves_does_not_wait_for_what_it_left_to_another_machine(
    harness: Harness,
) -> None:
    broker, session, looked = harness.ports.broker, await harness.session(), Gate()
    broker.config = replace(broker.config, machine="m2", leave_s=60.0)
    there = WorkerState((POOL,), 0, 2, facts=MachineFacts(machine_id="m1"))
    await broker.claims.heartbeat("w-m1", encoded(there))
    await broker.command("HSET", broker.keys.session(session), "copy_on", "m1", "unsaved", "1")
    harness.connection.after["claim"] = looked.wait
    await harness.say(session)
    worker = harness.worker()
    async with asyncio.timeout(20):
        running = asyncio.create_task(worker.run())
        await looked.reached.wait()
        looked.open()
        worker.drain()
        await running
    assert await harness.facts(session, "task") == []


@pytest.mark.parametrize("since", ["its start", "its first heartbeat"])
async def test_worker_without_room_says_so_and_takes_portable_sessions_when_nobody_else_can(
    since: str, harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "HEARTBEAT_S", 0.0)
    folders, lacks, said = ScriptedFolders(), "no room: make some", asyncio.Event()
    folders.lacks = lacks if since == "its start" else ""
    facts = MachineFacts(machine_id="m2", workspaces="/w")
    worker = harness.worker()
    worker._ports = replace(harness.ports, folders=folders)
    worker._config = replace(worker._config, facts=lambda: facts)
    broker, other = harness.ports.broker, WorkerState((POOL,), 0, 2, facts=replace(facts, machine_id="m1"))
    broker.config = replace(broker.config, machine="m2")
    await harness.broker.claims.heartbeat("w-m1", encoded(other))
    portable = await harness.session(portable=PortableFolder("/w", "repo"))
    plain = await harness.session()

    async def heard(_: Sequence[object]) -> None:
        (one,) = [one for one in await harness.broker.claims.workers() if one.worker == worker._config.name]
        if (told := decoded(one.state).facts) is not None and told.unfit == lacks:
            monkeypatch.setattr(worker_module, "HEARTBEAT_S", 3600.0)
            said.set()
        folders.lacks = lacks

    async def asked() -> None:
        for session in (portable, plain):
            await harness.say(session)

    harness.connection.after["heartbeat"] = heard
    if since == "its start":
        await asked()
    async with asyncio.timeout(30), at_work(worker):
        await said.wait()
        if since != "its start":
            await asked()
        await harness.until(plain, "task_complete")
        assert await harness.facts(portable, "task") == []
        await harness.broker.claims.heartbeat("w-m1", encoded(other), left=True)
        await harness.until(portable, "task_complete")
