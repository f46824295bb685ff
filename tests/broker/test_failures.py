"""Servers that die, come back poorer, stall, or refuse: what is lost, and what callers are told."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
from redis import exceptions as foreign

from orchestrator.broker.broker import Broker
from orchestrator.broker.connection import ScriptCall, connect, mapped
from orchestrator.broker.errors import BrokerError, Misconfigured, OutOfMemory, Unavailable
from orchestrator.broker.records import BrokerConfig, Committed, Fenced, Renewed
from orchestrator.config_keys import RedisSettings
from tests.broker.actors import (
    POOL,
    SHARD,
    Backend,
    RecordingConnection,
    claimed,
    created,
    step,
    submitted,
    working,
)
from tests.broker.conftest import SERVERS
from tests.servers import RedisServer, required, start_redis

pytestmark = pytest.mark.realredis
Answer = TypeVar("Answer")


@pytest.fixture(params=SERVERS)
def binary(request: pytest.FixtureRequest) -> Path:
    find, name = SERVERS[request.param]
    return required(find(), name)


@asynccontextmanager
async def broker_of(server: RedisServer, **config: Any) -> AsyncIterator[Broker]:
    connection = connect(RedisSettings(url=server.url, command_timeout_s=2.0))
    async with aclosing(Broker(connection, BrokerConfig(**config), lambda: 0.0)) as broker:
        yield broker


async def until_answered(ask: Callable[[], Awaitable[Answer]]) -> Answer:
    """Repeats a request on a broken connection, as a worker does, until Redis answers."""
    while True:
        try:
            return await ask()
        except Unavailable:
            continue


@pytest.mark.parametrize(("fsync", "how"), [("everysec", "terminate"), ("always", "kill")])
async def test_nothing_acknowledged_is_lost_over_a_restart(
    tmp_path: Path, binary: Path, fsync: str, how: str
) -> None:
    durable = {"appendonly": "yes", "appendfsync": fsync}
    with start_redis(tmp_path, binary, durable) as server:
        async with broker_of(server) as broker:
            held = await working(broker)
            request = step(held, held.claim, "k1", cursor="1-0")
            first = await broker.commits.commit(request)
            await submitted(broker, held.claim.session, "s2")
            getattr(server, how)()
            server.start()
            again = await until_answered(lambda: broker.commits.commit(request))
            assert isinstance(again, Committed)
            assert isinstance(first, Committed)
            assert (again.seq, again.head) == (first.seq, first.head)
            assert [e.submission for e in await broker.logs.read_sq(held.claim.session)] == ["s2"]
            assert isinstance((await broker.claims.renew([held.claim]))[0], Renewed)


async def test_holder_from_a_lost_branch_is_refused_after_a_restore(tmp_path: Path, binary: Path) -> None:
    with start_redis(tmp_path, binary) as server:
        async with broker_of(server, lease_s=0.0) as broker:
            held = await working(broker)
            await broker.command("SAVE")
            copy = shutil.copy(tmp_path / "dump.rdb", tmp_path / "earlier.rdb")
            ahead = await broker.commits.commit(step(held, held.claim, "lost", [b"lost"]))
            assert isinstance(ahead, Committed)
            other = await claimed(broker, held.claim.session, "w2", "on the lost branch")
            server.kill()
            shutil.copy(copy, tmp_path / "dump.rdb")
            server.start()
        async with broker_of(server, lease_s=0.0) as broker:
            on_lost_log = await broker.commits.commit(step(ahead, held.claim, "k2"))
            assert isinstance(on_lost_log, Fenced)
            fresh = await claimed(broker, held.claim.session, "w3", "on the new branch")
            assert fresh.claim.epoch == other.claim.epoch
            same_epoch = await broker.commits.commit(step(fresh, other.claim, "k3"))
            assert same_epoch == Fenced(fresh.claim.epoch, "claim")
            assert await broker.logs.read_rollout(held.claim.session) == ()


async def test_restored_holder_that_wrote_nothing_since_may_go_on(tmp_path: Path, binary: Path) -> None:
    with start_redis(tmp_path, binary) as server:
        async with broker_of(server) as broker:
            held = await working(broker)
            await broker.command("SAVE")
            server.kill()
            server.start()
        async with broker_of(server) as broker:
            assert isinstance(await broker.commits.commit(step(held, held.claim, "k1")), Committed)


class _DeafConnection(RecordingConnection):
    """Loses the next reply after the command took effect."""

    deaf = False

    async def run(self, call: ScriptCall) -> list[Any]:
        reply = await super().run(call)
        if self.deaf:
            self.deaf = False
            raise Unavailable("the reply was lost")
        return reply


class _FullConnection(RecordingConnection):
    """Has no memory left for what a script's caller sends behind it."""

    full = False

    async def run(self, call: ScriptCall) -> list[Any]:
        if self.full and call.script.name == "fire":
            raise OutOfMemory("used memory > maxmemory")
        return await super().run(call)

    async def commands(self, rows: Sequence[Sequence[Any]]) -> list[Any]:
        if self.full:
            raise OutOfMemory("used memory > maxmemory")
        return await super().commands(rows)


async def test_what_is_kept_is_acknowledged_where_redis_has_no_memory_for_word_of_it(server: Backend) -> None:
    connection = _FullConnection(server.connect())
    async with aclosing(server.broker(BrokerConfig(lease_s=60.0), connection=connection)) as broker:
        held = await working(broker)
        connection.full = True
        taken = await submitted(broker, held.claim.session, "s2")
        assert (taken.duplicate, taken.holder) == (False, "w1")
        await broker.claims.fire_soon(0)


async def test_commit_whose_reply_was_lost_is_answered_when_sent_again(server: Backend) -> None:
    connection = _DeafConnection(server.connect())
    async with aclosing(server.broker(BrokerConfig(lease_s=60.0), connection=connection)) as broker:
        held = await working(broker)
        connection.deaf = True
        request = step(held, held.claim, "k1", cursor="1-0", release="park")
        with pytest.raises(Unavailable):
            await broker.commits.commit(request)
        again = await broker.commits.commit(request)
        assert isinstance(again, Committed)
        assert again.released
        assert len(await broker.logs.read_rollout(held.claim.session)) == 1


async def test_forgotten_scripts_are_sent_again(server: Backend) -> None:
    async with aclosing(server.broker(BrokerConfig(lease_s=60.0))) as broker:
        first, second = await working(broker), await working(broker)
        await broker.command("SCRIPT", "FLUSH")
        answers = await broker.claims.renew([first.claim, second.claim])
        assert [type(answer) for answer in answers] == [Renewed, Renewed]
        await broker.command("SCRIPT", "FLUSH")
        assert isinstance(await broker.commits.commit(step(first, first.claim, "k")), Committed)


async def test_server_that_is_gone_stalled_or_a_replica_is_unavailable(tmp_path: Path, binary: Path) -> None:
    with start_redis(tmp_path, binary) as server:
        connection = connect(RedisSettings(url=server.url, command_timeout_s=1.0))
        async with aclosing(Broker(connection, BrokerConfig(), lambda: 0.0)) as broker:
            session = await created(broker)
            os.kill(server.pid, signal.SIGSTOP)
            with pytest.raises(Unavailable):
                await submitted(broker, session)
            os.kill(server.pid, signal.SIGCONT)
            await broker.command("REPLICAOF", "127.0.0.1", "1")
            with pytest.raises(Unavailable):
                await submitted(broker, session, "s2")
            await broker.command("REPLICAOF", "NO", "ONE")
            assert not (await submitted(broker, session, "s2")).duplicate
            server.kill()
            with pytest.raises(Unavailable):
                await submitted(broker, session, "s3")
            with pytest.raises(Unavailable):
                await broker.claims.wait_for_notices(POOL, "w1", {}, 1.0)


async def test_busy_server_is_unavailable(tmp_path: Path, binary: Path) -> None:
    with start_redis(tmp_path, binary, {"lua-time-limit": "5"}) as server:
        async with broker_of(server) as broker:
            session = await created(broker)
            blocker = connect(RedisSettings(url=server.url, command_timeout_s=0.5))
            with pytest.raises(Unavailable):
                await blocker.command("EVAL", "while true do end", 0)
            with pytest.raises(Unavailable, match="BUSY"):
                await submitted(broker, session)
            await broker.command("SCRIPT", "KILL")
            await blocker.aclose()
            await until_answered(lambda: submitted(broker, session))


async def test_wrong_password_is_a_misconfiguration(tmp_path: Path, binary: Path) -> None:
    with start_redis(tmp_path, binary) as server:
        async with broker_of(server) as broker:
            await broker.command("CONFIG", "SET", "requirepass", "secret")
        async with broker_of(server) as broker:
            with pytest.raises(Misconfigured):
                await broker.open()
        connection = connect(RedisSettings(url=f"unix://:secret@{server.socket}"))
        await connection.command("CONFIG", "SET", "requirepass", "")
        await connection.aclose()


ERRORS: Sequence[tuple[Exception, type[BrokerError]]] = [
    (foreign.ConnectionError("gone"), Unavailable),
    (foreign.TimeoutError("silence"), Unavailable),
    (foreign.BusyLoadingError("loading"), Unavailable),
    (foreign.ReadOnlyError("replica"), Unavailable),
    (foreign.ClusterDownError("CLUSTERDOWN"), Unavailable),  # type: ignore[no-untyped-call]  # redis-py
    (foreign.ResponseError("MISCONF Redis is configured to save RDB snapshots"), Unavailable),
    (foreign.ResponseError("BUSY Redis is busy running a script"), Unavailable),
    (
        foreign.ResponseError("Error running script (call to f_1): @user_script:9: OOM command not allowed"),
        OutOfMemory,
    ),
    (foreign.OutOfMemoryError("command not allowed"), OutOfMemory),
    (foreign.AuthenticationError("no"), Misconfigured),
    (foreign.NoPermissionError("no"), Misconfigured),
    (foreign.ResponseError("something else"), BrokerError),
]


@pytest.mark.parametrize(("error", "kind"), ERRORS)
def test_foreign_errors_become_ours(error: Exception, kind: type[BrokerError]) -> None:
    assert type(mapped(error)) is kind


def test_error_that_is_nobody_s_stays_what_it_is() -> None:
    error = KeyError("a bug of ours")
    assert mapped(error) is error


async def test_claims_of_a_server_that_forgot_all_are_fenced(server: Backend) -> None:
    async with aclosing(server.broker(BrokerConfig(lease_s=60.0))) as broker:
        held = await working(broker)
        await server.look()[0].execute_command("FLUSHALL")
        assert await broker.claims.renew([held.claim]) == [Fenced(0, "claim")]
        assert await broker.commits.commit(step(held, held.claim, "k")) == Fenced(0, "unknown session")
        assert await broker.claims.claim(POOL, "w1", "c2", SHARD) is None
