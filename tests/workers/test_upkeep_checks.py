"""Findings of upkeep: altered logs, sessions that nobody serves, deadlines that have passed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import orjson
import pytest
from redis import exceptions as foreign

from orchestrator.broker.connection import Connection
from orchestrator.broker.errors import BrokerError, Corrupt, Unavailable
from orchestrator.broker.records import Heard
from orchestrator.config_keys import RedisSettings
from orchestrator.core import entries as e
from orchestrator.core.blobs import externalise
from orchestrator.core.commit_parts import Timer, TreeEvent, TreePart
from orchestrator.core.ids import SessionId, TreeId
from orchestrator.rollouts.archive import Storage
from orchestrator.rollouts.object_store import ArchiveUnavailable
from orchestrator.rollouts.tree_log import tree_entries
from tests.workers.actors import NOON_MS, Author, head_of, is_told, mover_of, session_id, some_entries
from workers import upkeep as upkeep_module
from workers.upkeep import Upkeep, look, serve, without_trace
from workers.upkeep_checks import Looks, Round, fire_timers, unattended, verify_session, verify_some
from workers.upkeep_sealing import Moved, Mover, seal_session, seal_tree_log

pytestmark = pytest.mark.realredis


async def _half_sealed(mover: Mover) -> Author:
    author = await Author(mover.storage).is_born()
    await (await author.writes(some_entries(40))).snapshots()
    await author.writes(some_entries(20))
    assert await seal_session(mover, author.session) is Moved.DONE
    return author


async def test_whole_log_is_verified_wherever_it_is(mover: Mover, storage: Storage) -> None:
    author = await _half_sealed(mover)
    assert await verify_session(storage, author.session) is None


async def test_altered_log_is_reported(
    mover: Mover, storage: Storage, connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    author, sound = await _half_sealed(mover), await _half_sealed(mover)
    entries = await storage.broker.logs.read_rollout(author.session, 0, 100)
    key = storage.broker.keys.rollout(author.session)
    await connection.command("DEL", key)
    for entry in entries:
        payload = b"altered" if entry.seq == 50 else entry.payload
        fields = ("p", payload, "s", entry.salt, "e", entry.epoch, "h", entry.chain)
        await connection.command("XADD", key, f"{entry.seq}-0", *fields)
    with caplog.at_level(logging.ERROR, "dendro.upkeep"):
        assert await verify_some(storage, [SessionId(_unknown()), author.session, sound.session]) == 1
    (report,) = caplog.messages
    assert f"session {author.session}" in report
    assert "at 50" in report


async def test_sessions_behind_one_that_cannot_be_read_are_looked_at_all_the_same(
    mover: Mover,
    storage: Storage,
    connection: Connection,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    sealed, damaged, lost = (
        await _half_sealed(mover),
        await Author(storage).is_born(),
        await _half_sealed(mover),
    )
    sound = await Author(storage).is_born()
    await connection.command("HSET", storage.broker.keys.session(damaged.session), "seq", "many")
    await connection.command("XDEL", storage.broker.keys.rollout(lost.session), "60-0")
    bytes_of = storage.archive._objects.get

    def away_for_one(name: str) -> Any:
        if str(sealed.session) in name:
            raise ArchiveUnavailable("no answer from the store")
        return bytes_of(name)

    monkeypatch.setattr(storage.archive._objects, "get", away_for_one)
    sessions = [each.session for each in (sealed, damaged, lost, sound)]
    with caplog.at_level(logging.WARNING, "dendro.upkeep"):
        assert await verify_some(storage, sessions) == 2
        seen = [
            head.session
            async for heads in Looks().pages(storage.broker.logs, storage.broker.claims, NOON_MS, None)
            for head in heads
        ]
    assert set(seen) == set(sessions) - {damaged.session}
    told = "\n".join(caplog.messages)
    assert f"session {sealed.session}: not verified, as the archive does not answer" in told
    assert f"session {damaged.session}: it was altered or is damaged" in told
    assert f"session {lost.session}: its log was altered" in told
    assert "session left out: key" in told
    assert str(sound.session) not in told


@pytest.mark.parametrize("damaged", ["session", "rollout"])
async def test_key_of_another_type_is_found_and_those_behind_it_are_verified(
    mover: Mover, storage: Storage, caplog: pytest.LogCaptureFixture, damaged: str
) -> None:
    wrong, lost = await Author(storage).is_born(), await _half_sealed(mover)
    await wrong.writes(some_entries(3))
    key = getattr(storage.broker.keys, damaged)(wrong.session)
    await storage.broker.command("DEL", key)
    await storage.broker.command("SET", key, "x")
    await storage.broker.command("XDEL", storage.broker.keys.rollout(lost.session), "60-0")
    with caplog.at_level(logging.ERROR, "dendro.upkeep"):
        assert await verify_some(storage, [wrong.session, lost.session]) == 2
    assert key in caplog.messages[0]
    assert f"session {lost.session}: its log was altered" in caplog.messages[1]


async def test_list_names_the_session_that_cannot_be_read(storage: Storage, connection: Connection) -> None:
    damaged = await Author(storage).is_born()
    await connection.command("HSET", storage.broker.keys.session(damaged.session), "seq", "many")
    with pytest.raises(Corrupt, match=str(damaged.session)):
        await storage.broker.logs.sessions()


async def test_log_that_lost_its_end_is_reported(
    mover: Mover, storage: Storage, connection: Connection
) -> None:
    author = await _half_sealed(mover)
    await connection.command("XDEL", storage.broker.keys.rollout(author.session), "60-0")
    found = await verify_session(storage, author.session)
    assert found is not None
    assert found.seq == 60


async def test_segment_that_is_gone_is_reported(
    mover: Mover, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    author = await _half_sealed(mover)
    monkeypatch.setattr(storage.archive._objects, "get", lambda name: None)
    found = await verify_session(storage, author.session)
    assert found is not None
    assert (found.seq, "missing" in found.reason) == (1, True)


async def test_text_that_is_gone_is_reported(storage: Storage, connection: Connection) -> None:
    author = await Author(storage).is_born()
    blobs: dict[str, bytes] = {}
    output = {"type": "function_call_output", "call_id": "c", "output": "much " * 2_000}
    said = replace(e.item(output), payload=externalise(output, blobs))
    [digest] = [await storage.blobs.put(TreeId(author.session), content) for content in blobs.values()]
    await author.writes([said])
    assert await verify_session(storage, author.session) is None
    await connection.command("DEL", storage.broker.keys.blob(TreeId(author.session), digest))
    found = await verify_session(storage, author.session)
    assert found is not None
    assert (found.seq, digest[:16] in found.reason) == (1, True)


async def test_round_comes_to_every_session_before_it_comes_to_one_again(storage: Storage) -> None:
    turn, broker = Round(), storage.broker
    assert await turn.take(broker.logs, 2) == []
    born = [(await Author(storage, session_id(shard)).is_born()).session for shard in (3, 3, 3, 7, 15)]
    seen = [session for _ in range(3) for session in await turn.take(broker.logs, 2)]
    assert sorted(seen) == sorted(born)
    assert await turn.take(broker.logs, 9) == seen


async def test_round_passes_over_nothing_that_changed_at_one_moment_or_is_still_to_come(
    storage: Storage,
) -> None:
    turn, broker, key = Round(), storage.broker, storage.broker.keys.sessions(3)
    born = [(await Author(storage, session_id(3)).is_born()).session for _ in range(7)]
    await broker.command("ZADD", key, *(word for session in born for word in (NOON_MS, session)))
    seen = await turn.take(broker.logs, 3)
    await broker.command("ZADD", key, NOON_MS + 1, (set(born) - set(seen)).pop())
    seen += [session for _ in range(2) for session in await turn.take(broker.logs, 2)]
    assert sorted(seen) == sorted(born)


async def _away(*_: Any, **__: Any) -> None:
    raise Unavailable("no answer from Redis")


class _Queued:
    """A queue that keeps the names of its jobs."""

    def __init__(self) -> None:
        self.jobs: set[tuple[str, str]] = set()

    async def enqueue_job(self, name: str, subject: str, **_: Any) -> None:
        self.jobs.add((name, subject))


async def looked(queue: _Queued, upkeep: Upkeep) -> set[str]:
    """The sessions that one look has queued to be sealed."""
    queue.jobs.clear()
    await look({"redis": queue, "upkeep": upkeep})
    return {subject for _, subject in queue.jobs}


async def ripe(storage: Storage, shard: int = 3) -> str:
    """A session with a log that is to be sealed."""
    author = await Author(storage, session_id(shard)).is_born()
    await (await author.writes(some_entries(40))).snapshots()
    return str(author.session)


def upkeep_over(storage: Storage, **rules: Any) -> Upkeep:
    mover = replace(mover_of(storage), **rules)
    return Upkeep(mover, None, 0, lambda: pytest.fail("nobody is to be reaped"))


async def changed_ms_ago(storage: Storage, session: str, ago_ms: int) -> None:
    key = storage.broker.keys.sessions(storage.broker.keys.shard_of(SessionId(session)))
    await storage.broker.command("ZADD", key, await storage.broker.server_ms() - ago_ms, session)


async def test_what_others_have_changed_after_is_sealed_too_in_its_turn(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, most in {"MAX_LISTED": 1, "MAX_OLDER": 2, "PAGE": 1, "ROUND_LOOKS": 1}.items():
        monkeypatch.setattr(f"workers.upkeep_checks.{name}", most)
    due = {await ripe(storage, shard) for shard in (3, 3, 3, 7, 7)}
    queue, upkeep = _Queued(), upkeep_over(storage)
    assert set().union(*[await looked(queue, upkeep) for _ in range(3)]) == due


async def test_look_reads_what_changed_since_the_look_before_and_what_is_not_done_yet(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.upkeep_checks.MAX_OLDER", 0)
    old = await ripe(storage)
    queue, upkeep = _Queued(), upkeep_over(storage)
    assert await looked(queue, upkeep) == {old}
    new = await ripe(storage)
    await changed_ms_ago(storage, old, 3_600_000)
    assert await looked(queue, upkeep) == {old, new}, "the job may have failed"
    upkeep.mover = replace(upkeep.mover, seal_after=1_000)
    assert await looked(queue, upkeep) == set()
    await changed_ms_ago(storage, new, 3_600_000)
    upkeep.mover = replace(upkeep.mover, seal_after=2)
    assert await looked(queue, upkeep) == set(), "nothing of them has changed"


async def test_all_sessions_come_by_within_an_hour_of_looks(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, upkeep = _Queued(), upkeep_over(storage, seal_after=1_000)
    due = {await ripe(storage, shard) for shard in (3, 3, 7)}
    assert await looked(queue, upkeep) == set()
    for session in due:
        await changed_ms_ago(storage, session, 3_600_000)
    upkeep.mover = replace(upkeep.mover, seal_after=2)
    found = [await looked(queue, upkeep) for _ in range(4)]
    assert set().union(*found) == due
    assert found[0] != due, "one after the other"


async def test_session_that_has_rested_for_long_enough_is_read_when_that_is_over(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.upkeep_checks.MAX_OLDER", 0)
    now_ms = await storage.broker.server_ms()
    author = await Author(storage).is_born()
    await author.writes(some_entries(3), ended_ms=now_ms)
    queue, upkeep = _Queued(), upkeep_over(storage, seal_idle_ms=3_600_000)
    monkeypatch.setattr(type(storage.broker), "now_ms", lambda _: now_ms)
    assert await looked(queue, upkeep) == set()
    monkeypatch.setattr(type(storage.broker), "now_ms", lambda _: now_ms + 3_500_000)
    assert await looked(queue, upkeep) == set()
    monkeypatch.setattr(type(storage.broker), "now_ms", lambda _: now_ms + 3_610_000)
    assert await looked(queue, upkeep) == {author.session}


class _Changes:
    """The sessions of the one shard that there is, by the times at which they changed."""

    config = SimpleNamespace(shards=1)

    def __init__(self) -> None:
        self.at_ms: dict[str, int] = {}

    async def newest_of(self, shard: int, start: int, most: int) -> list[str]:
        return sorted(self.at_ms, key=self.at_ms.__getitem__, reverse=True)[start : start + most]

    async def changed_since(
        self, shard: int, since_ms: int, most: int, seen: int = 0
    ) -> list[tuple[str, int]]:
        changed = sorted((at, session) for session, at in self.at_ms.items() if at >= since_ms)
        return [(session, at) for at, session in changed][seen : seen + most]

    async def count_sessions(self) -> int:
        return 0

    async def heads(self, sessions: Sequence[str], damaged: Any) -> list[Any]:
        return [SimpleNamespace(session=session, pool="p") for session in sessions]

    async def at_work(self, shard: int, pools: Sequence[str]) -> list[Any]:
        return []


async def test_look_that_finds_more_than_it_reads_is_followed_by_one_that_goes_on_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("workers.upkeep_checks.MAX_LISTED", 2)
    changes, looks = cast(Any, _Changes()), Looks()
    seen: list[list[str]] = []
    for now_ms in range(1_000_000, 1_000_000 + 5 * 120_000, 120_000):
        seen.append(
            [head.session async for heads in looks.pages(changes, changes, now_ms, None) for head in heads]
        )
        if not changes.at_ms:
            changes.at_ms = {f"s{n}": now_ms + n for n in range(4)}
    assert seen == [[], ["s0", "s1"], ["s1", "s2"], ["s2", "s3"], ["s3"]]


async def test_look_that_breaks_off_is_made_good_by_the_next_one(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.upkeep_checks.MAX_OLDER", 0)
    queue, upkeep, now_ms = _Queued(), upkeep_over(storage), await storage.broker.server_ms()
    assert await looked(queue, upkeep) == set()
    due = await ripe(storage)
    await changed_ms_ago(storage, due, -100_000)
    with monkeypatch.context() as broken:
        broken.setattr(queue, "enqueue_job", _away)
        broken.setattr(type(storage.broker), "now_ms", lambda _: now_ms + 300_000)
        with pytest.raises(Unavailable):
            await looked(queue, upkeep)
    monkeypatch.setattr(type(storage.broker), "now_ms", lambda _: now_ms + 360_000)
    assert await looked(queue, upkeep) == {due}


@pytest.mark.parametrize("state", ["waits", "held", "set aside"])
async def test_each_session_that_is_held_or_waits_or_was_set_aside_is_read_by_each_look(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, state: str
) -> None:
    monkeypatch.setattr("workers.upkeep_checks.MAX_OLDER", 0)
    queue, upkeep, claims = _Queued(), upkeep_over(storage), storage.broker.claims
    pools = ("a", "b", "c")
    sessions = [(await Author(storage).is_born(pool=pool)).session for pool in pools]
    assert await looked(queue, upkeep) == set()
    await claims.heartbeat("w1", orjson.dumps({"pools": []}))
    for session in sessions:
        if state == "waits":
            await is_told(storage, session)
        elif state == "held":
            assert await claims.claim_session(session, "w1", f"holds {session}", parked=True) is not None
        else:
            await storage.broker.command("HSET", storage.broker.keys.session(session), "quarantined", "1")
        await changed_ms_ago(storage, session, 0 if state == "set aside" else 3_600_000)
    now_ms = await storage.broker.server_ms() + 40_000
    monkeypatch.setattr(type(storage.broker), "now_ms", lambda _: now_ms)
    told = {
        "waits": [f"1 session of pool {pool} waits, and no worker serves it" for pool in pools],
        "held": ["3 sessions are held by w1, which is silent"],
        "set aside": ["3 sessions are quarantined"],
    }[state]
    for _ in range(2):
        caplog.clear()
        assert await looked(queue, upkeep) == set()
        for session in sessions:
            await changed_ms_ago(storage, session, 3_600_000)
        assert [line for line in told if line not in caplog.text] == []


async def test_log_of_a_tree_that_rests_is_sealed(storage: Storage) -> None:
    mover = replace(mover_of(storage), seal_idle_ms=60_000)
    queue, told = _Queued(), TreePart(events=(TreeEvent((b'{"id":"","msg":{"type":"warning"}}',)),))
    authors = [await Author(storage).is_born() for _ in range(3)]
    for author in authors[:2]:
        await author.writes(some_entries(1), tree=told)
    resting, lately, _ = (TreeId(author.session) for author in authors)
    for tree, at_ms in ((resting, NOON_MS), (lately, storage.broker.now_ms())):
        await _told_at(storage, tree, at_ms)
    log_before = await storage.broker.logs.read_tree(resting)
    await look({"redis": queue, "upkeep": Upkeep(mover, None, 0, _nobody)})
    assert {job for job in queue.jobs if job[0] == "seal_tree"} == {("seal_tree", resting)}
    assert await seal_tree_log(mover, lately) is Moved.NOT_DUE
    assert await seal_tree_log(replace(mover, seal_idle_ms=None), resting) is Moved.NOT_DUE
    assert await seal_tree_log(mover, resting) is Moved.DONE
    assert await seal_tree_log(mover, resting) is Moved.NOT_DUE
    assert await storage.broker.command("XLEN", storage.broker.keys.tree(resting)) == 0
    assert await storage.broker.logs.read_tree(resting) == log_before
    queue.jobs.clear()
    await look({"redis": queue, "upkeep": Upkeep(mover, None, 0, _nobody)})
    assert not {job for job in queue.jobs if job[0] == "seal_tree"}


async def test_log_of_a_tree_is_sealed_to_its_end_however_long_it_is(storage: Storage) -> None:
    author = await Author(storage).is_born()
    some = TreePart(events=(TreeEvent((b'{"id":"","msg":{"type":"warning"}}',)),) * 100)
    for _ in range(3):
        await author.writes(some_entries(1), tree=some)
    tree, mover = TreeId(author.session), replace(mover_of(storage), seal_idle_ms=0)
    before = [entry async for entry in tree_entries(storage.broker.logs, tree)]
    assert len(before) == 300
    assert await seal_tree_log(mover, tree) is Moved.DONE
    assert await storage.broker.command("XLEN", storage.broker.keys.tree(tree)) == 0
    assert [entry async for entry in tree_entries(storage.broker.logs, tree)] == before


def _nobody() -> Any:
    pytest.fail("nobody is to be reaped")


async def _told_at(storage: Storage, tree: TreeId, at_ms: int) -> None:
    """The tree's only entry has another time."""
    broker = storage.broker
    key = broker.keys.tree(tree)
    ((entry_id, fields),) = cast(Any, await broker.command("XRANGE", key, "-", "+"))
    await broker.command("DEL", key)
    at = {**fields, b"t": b"%d" % at_ms}
    await broker.command("XADD", key, entry_id, *(part for pair in at.items() for part in pair))


@pytest.mark.parametrize("shard", [0, 3, 15])
async def test_timers_fire_without_any_worker(storage: Storage, shard: int) -> None:
    assert shard < storage.broker.config.shards <= 16
    author = await Author(storage, session_id(shard)).is_born()
    await author.writes(some_entries(1), timers_set=(Timer("t", 3, 1),))
    assert len(await fire_timers(storage.broker.claims)) == 1
    assert await fire_timers(storage.broker.claims) == []
    (entry,) = await storage.broker.logs.read_sq(author.session)
    assert (entry.kind, entry.submission, entry.generation) == ("timer", "t", 3)


async def test_operator_is_told_of_work_that_nobody_takes(storage: Storage) -> None:
    author = await Author(storage).is_born()
    await is_told(storage, author.session)
    head = await head_of(storage, author.session)
    alive = Heard("w1", orjson.dumps({"pools": ["default"]}), NOON_MS)
    assert not list(unattended([head], [alive], NOON_MS))
    (complaint,) = unattended([head], [replace(alive, state=b'{"pools":["gpu"]}')], NOON_MS)
    assert complaint == "1 session of pool default waits, and no worker serves it: start one there"
    (complaint,) = unattended([head], [replace(alive, heard_ms=NOON_MS - 31_000)], NOON_MS)
    assert complaint == "1 session of pool default waits, and no worker serves it: start one there"
    (complaint,) = unattended([head, head], [], NOON_MS)
    assert complaint == "2 sessions of pool default wait, and no worker serves it: start one there"
    (complaint,) = unattended([replace(head, holder="w1")], [alive], NOON_MS + 60_000)
    assert complaint == "1 session is held by w1, which is silent: another worker may take it"
    (complaint,) = unattended([replace(head, quarantined=True)], [alive], NOON_MS)
    assert complaint == f"1 session is quarantined, the first is {author.session}"


def _unknown() -> str:
    return "0198f000-0000-7003-8000-000000000000"


class Starved:
    """arq's worker, which ends with one error after the other, and then goes on."""

    errors: ClassVar[list[Exception]] = []
    goes_on = asyncio.Event()

    def __init__(self, **_: object) -> None:
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def async_run(self) -> None:
        if self.errors:
            raise self.errors.pop()
        self.goes_on.set()


@pytest.fixture
def starved(monkeypatch: pytest.MonkeyPatch) -> type[Starved]:
    monkeypatch.setattr("workers.upkeep.arq.Worker", Starved)
    monkeypatch.setattr(upkeep_module, "worker_settings", lambda *_: {})
    monkeypatch.setattr(upkeep_module, "RECONNECT_S", 0.0)
    monkeypatch.setattr(Starved, "goes_on", asyncio.Event())
    return Starved


async def test_upkeep_tries_again_whatever_redis_cannot_do_now(starved: type[Starved]) -> None:
    starved.errors = [
        foreign.OutOfMemoryError("command not allowed when used memory > 'maxmemory'."),
        foreign.ResponseError("MISCONF Errors writing to the AOF file: No space left on device"),
        foreign.ReadOnlyError("You can't write against a read only replica."),
        foreign.ConnectionError("Connection closed by server."),
        foreign.WatchError("A ConnectionError occurred on while watching one or more keys"),
    ]
    serving = asyncio.create_task(serve(cast(Any, None), RedisSettings(url="redis://127.0.0.1:1")))
    async with asyncio.timeout(20):
        await starved.goes_on.wait()
    assert not serving.done()
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)
    assert starved.errors == []


async def test_upkeep_ends_where_redis_lets_it_in_no_more(starved: type[Starved]) -> None:
    starved.errors = [foreign.AuthenticationError("WRONGPASS invalid username-password pair")]
    with pytest.raises(BrokerError, match=r"upkeep has no queue \(upkeep\.url, .*pair; check the user"):
        await serve(cast(Any, None), RedisSettings(url="redis://127.0.0.1:1"))


def test_store_that_is_away_is_told_of_in_a_line_and_a_defect_with_its_place(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = logging.getLogger("tests.jobs")
    log.addFilter(without_trace)
    for error in (ArchiveUnavailable("the archive is away"), KeyError("a defect")):
        try:
            raise error
        except (ArchiveUnavailable, KeyError) as met:
            log.exception("failed, %s", met)
    away, defect = caplog.records
    assert (away.exc_info, "the archive is away" in away.getMessage()) == (None, True)
    assert defect.exc_info
