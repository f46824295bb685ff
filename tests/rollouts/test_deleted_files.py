"""Rollout files of deleted sessions: which go from a machine's disk, and which stay whatever happens."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from pathlib import Path

import pytest

from orchestrator.broker.broker import Broker
from orchestrator.broker.connection import connect
from orchestrator.broker.port import Deployment
from orchestrator.broker.records import BrokerConfig
from orchestrator.config_keys import RedisSettings
from orchestrator.core.ids import SessionId, created_ms
from orchestrator.rollouts import deletion
from orchestrator.rollouts.deletion import AT_ONCE, DeletedFiles, removing
from orchestrator.rollouts.rollout_file import rollout_path
from orchestrator.settings import SettingsSources, load_settings
from orchestrator.wiring.worker_parts import running_worker
from tests.broker.actors import created, session_id
from tests.servers import start_redis

pytestmark = pytest.mark.realredis
DAY_MS = 86_400_000
LINE = b'{"type":"event_msg","payload":{},"seq":1,"chain":"00ff"}\n'


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with start_redis(tmp_path_factory.mktemp("redis")) as server:
        yield server.url


@pytest.fixture
async def broker(url: str, request: pytest.FixtureRequest) -> AsyncIterator[Broker]:
    connection = connect(RedisSettings(url=url))
    await connection.command("FLUSHALL")
    async with aclosing(Broker(connection, BrokerConfig(), asyncio.get_running_loop().time)) as broker:
        await broker.open()
        yield broker


def written(folder: Path, session: SessionId, content: bytes = LINE, days: int = 0) -> Path:
    path = rollout_path(folder, session, created_ms(session) + days * DAY_MS)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


async def deleted(broker: Broker) -> SessionId:
    session = await created(broker)
    await broker.trees.delete_session(session)
    return session


async def later(broker: Broker, monkeypatch: pytest.MonkeyPatch, after_ms: int) -> None:
    now_ms = await broker.server_ms() + after_ms

    async def server_ms(self: Broker) -> int:
        return now_ms

    monkeypatch.setattr(Deployment, "server_ms", server_ms)


@pytest.mark.parametrize("days", [-1, 0, 1])
async def test_file_goes_with_its_session_wherever_the_session_was_deleted(
    broker: Broker, tmp_path: Path, days: int
) -> None:
    path = written(tmp_path, await deleted(broker), LINE, days)
    assert await DeletedFiles(tmp_path).remove_some(broker) == 1
    assert not path.parent.exists(), "an empty day goes too"


async def test_file_of_a_session_that_lives_or_that_redis_has_lost_stays(
    broker: Broker, tmp_path: Path
) -> None:
    paths = [written(tmp_path, await created(broker)), written(tmp_path, session_id())]
    again = await deleted(broker)
    paths.append(written(tmp_path, again))
    await created(broker, again)
    beside = written(tmp_path, gone := await deleted(broker)).with_name(f"mine-{gone}.jsonl")
    beside.write_bytes(LINE)
    assert await DeletedFiles(tmp_path).remove_some(broker) == 1
    assert all(path.exists() for path in (*paths, beside))


@pytest.mark.parametrize("why", ["deleted", "redacted"])
async def test_file_goes_also_where_redis_s_clock_was_put_back_since_the_last_look(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    files, now_ms, ahead_ms = DeletedFiles(tmp_path), await broker.server_ms(), 2 * DAY_MS
    shard = broker.keys.shard_of(session_id())
    key = broker.keys.deleted(shard) if why == "deleted" else broker.keys.redactions(shard)
    look = files.remove_some if why == "deleted" else files.remove_redacted
    for at_ms in (now_ms + ahead_ms, now_ms - 1_000):
        session = session_id()
        path = written(tmp_path, session)
        await broker.command("ZADD", key, at_ms, session)
        with monkeypatch.context() as patched:
            await later(broker, patched, at_ms - now_ms + 1_000)
            assert await look(broker) == 1
        assert not path.exists()


@pytest.mark.parametrize("kind", ["other lines", "link", "folder", "written to"])
async def test_what_is_no_finished_copy_stays_and_nothing_else_waits_for_it(
    broker: Broker, tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = written(tmp_path, await deleted(broker), b'{"type":"session_meta"}\n')
    after = written(tmp_path, await deleted(broker))
    if kind in ("link", "folder"):
        path.unlink()
        path.symlink_to(written(tmp_path / "own", session_id())) if kind == "link" else path.mkdir()
    if kind == "written to":
        path.write_bytes(LINE)
    with path.open("rb") if kind == "written to" else Path(os.devnull).open("rb") as held:
        if kind == "written to":
            fcntl.flock(held, fcntl.LOCK_EX)
        with caplog.at_level(logging.WARNING, "dendro.worker"):
            assert await DeletedFiles(tmp_path).remove_some(broker) == 1
    assert path.exists()
    assert not after.exists()
    assert [str(path) in message for message in caplog.messages] == [True] * (kind != "written to")


async def test_file_stays_for_the_days_that_the_person_has_set(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, path = DeletedFiles(tmp_path, DAY_MS), written(tmp_path, await deleted(broker))
    assert await files.remove_some(broker) == 0
    await later(broker, monkeypatch, DAY_MS)
    assert await files.remove_some(broker) == 1
    assert not path.exists()


async def test_tree_that_is_larger_than_a_look_is_removed_by_several(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deletion, "AT_ONCE", 2)
    gone = [session_id() for _ in range(5)]
    for session in gone:
        written(tmp_path, session)
        await broker.command("ZADD", broker.keys.deleted(broker.keys.shard_of(session)), 1000, session)
    assert len({broker.keys.shard_of(session) for session in gone}) == 1
    files = DeletedFiles(tmp_path)
    assert [await files.remove_some(broker) for _ in range(4)] == [2, 2, 1, 0]
    written(tmp_path, gone[0])
    assert await files.remove_some(broker) == 0, "what was looked at costs nothing more"
    assert AT_ONCE > 2


async def test_that_a_session_was_deleted_is_known_for_thirty_days(broker: Broker) -> None:
    old, recent = session_id(), session_id()
    key, now_ms = broker.keys.deleted(broker.keys.shard_of(old)), await broker.server_ms()
    for session, days in ((old, 31), (recent, 29)):
        await broker.command("ZADD", key, now_ms - days * DAY_MS, session)
    gone = await deleted(broker)
    assert broker.keys.shard_of(gone) == broker.keys.shard_of(old)
    known = await broker.trees.deleted(broker.keys.shard_of(old), 0, now_ms + DAY_MS, 10)
    assert [session for session, _ in known] == [recent, gone]


class _Looking(DeletedFiles):
    """Says when it has looked, even if it could not."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.looked = asyncio.Event()

    async def remove_some(self, broker: Broker) -> int:
        try:
            return await super().remove_some(broker)
        finally:
            self.looked.set()


async def test_who_looks_does_so_at_once_and_goes_on_when_it_cannot(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(deletion, "LOOK_S", 0.0)
    path, files = written(tmp_path, await deleted(broker)), _Looking(tmp_path)
    key = broker.keys.deleted(0)
    await broker.command("SET", key, "no set")
    async with asyncio.timeout(20), removing(files, broker):
        await files.looked.wait()
        assert path.exists()
        await broker.command("DEL", key)
        while path.exists():
            files.looked.clear()
            await files.looked.wait()
    assert "were not looked for" in caplog.text


async def test_started_worker_removes_the_files_below_its_home(
    broker: Broker, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = load_settings(SettingsSources(tmp_path, {"HOME": str(tmp_path), "DENDRO_REDIS_URL": url}))
    path, looked = written(settings.home / "sessions", await deleted(broker)), asyncio.Event()
    remove_some = DeletedFiles.remove_some

    async def look(self: DeletedFiles, broker: Broker) -> int:
        removed = await remove_some(self, broker)
        looked.set()
        return removed

    monkeypatch.setattr(DeletedFiles, "remove_some", look)
    async with running_worker(settings, url):
        await asyncio.wait_for(looked.wait(), 20)
    assert not path.exists()
