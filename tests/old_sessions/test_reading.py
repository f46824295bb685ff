"""Today's code reads, folds and verifies what an older version wrote, in Redis, archive and files."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import fakeredis
import pytest

from orchestrator.broker.blobs import Blobs
from orchestrator.broker.broker import Broker
from orchestrator.broker.connection import Connection, connect
from orchestrator.broker.records import BrokerConfig
from orchestrator.config_keys import RedisSettings
from orchestrator.core.ids import SessionId
from orchestrator.core.snapshot import digest
from orchestrator.rollouts.archive import Archive, Storage
from orchestrator.rollouts.file_format import read_rollout
from orchestrator.rollouts.replay import fold_file
from orchestrator.runtime.loader import end_of, folded
from tests.old_sessions.kept import NAMES, Kept
from tests.servers import RedisServer, start_redis
from workers.upkeep_checks import verify_session


@pytest.fixture(scope="module")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with start_redis(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(params=NAMES)
def kept(request: pytest.FixtureRequest) -> Kept:
    return Kept.of(request.param)


@pytest.fixture(params=["double", pytest.param("server", marks=pytest.mark.realredis)])
async def storage(request: pytest.FixtureRequest, kept: Kept) -> AsyncIterator[Storage]:
    """The old deployment in a Redis, and its archive."""
    if request.param == "double":
        double = fakeredis.FakeServer()
        kept.put_into(fakeredis.FakeRedis(server=double))
        client = fakeredis.FakeAsyncRedis(server=double)
        connection = Connection(client, client)
    else:
        server: RedisServer = request.getfixturevalue("shared_server")
        with server.client() as redis:
            redis.flushall()
            kept.put_into(redis)
        connection = connect(RedisSettings(url=server.url))
    broker = Broker(connection, BrokerConfig(), time.monotonic)
    await broker.open()
    yield Storage(
        broker, Blobs(connection, broker.keys), Archive.at(kept.archive.as_uri(), kept.secret), kept.secret
    )
    await broker.aclose()


async def test_old_sessions_fold_to_the_state_of_then_and_verify(storage: Storage, kept: Kept) -> None:
    for session, then in kept.sessions.items():
        head = await storage.broker.logs.head(SessionId(session))
        assert head is not None
        assert (head.seq, head.head.hex()) == (then["seq"], then["head"])
        position = await folded(storage, end_of(head), storage.secret)
        assert digest(position.state) == then["state_sha256"], session
        assert await verify_session(storage, head.session) is None


def test_old_files_fold_to_the_state_of_then(kept: Kept, tmp_path: Path) -> None:
    names = kept.files()
    assert {name.split(".", 1)[1] for name in names} == {"jsonl", "full.jsonl", "rollout.jsonl"}
    for name in names:
        result = fold_file(kept.file(name, tmp_path), None, kept.key, accept_old_header=True)
        assert result.broken is None, f"{name}: {result.broken}"
        if result.kind == "full":
            assert result.matches is not False
            session = name.split(".")[0]
            assert digest(result.state) == kept.sessions[session]["state_sha256"]


def test_old_files_are_of_the_kinds_that_they_were_written_as(kept: Kept, tmp_path: Path) -> None:
    kinds = set()
    for name in kept.files():
        with kept.file(name, tmp_path).open("rb") as file:
            text = read_rollout(file)
            kinds.add((text.kind, text.header.key_id if text.header else None))
    key_id = kept.environ.get("DENDRO_CHAIN_KEY_ID", "")
    assert kinds == {("full", key_id), ("exported", None)}


def test_kept_sessions_are_what_they_are_called(kept: Kept) -> None:
    assert all(json.dumps(then["verify"]).count("follow from each other") for then in kept.sessions.values())
    assert len(kept.sessions) > len(kept.index["made"]), "a tree has several"
