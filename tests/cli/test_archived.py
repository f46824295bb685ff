"""A session that upkeep has archived comes back when somebody speaks to it, and goes on."""

from __future__ import annotations

import time

import pytest

from orchestrator.broker.connection import connect
from orchestrator.config_keys import RedisSettings
from orchestrator.core.ids import SessionId
from tests.cli.machine import Machine, events, says
from tests.servers import RedisServer
from tests.workers.actors import DAY_MS, mover_of, storage_over
from workers.upkeep_sealing import Moved, archive_session

pytestmark = [pytest.mark.realredis, pytest.mark.slow]


async def archived(machine: Machine, server: RedisServer, session: str) -> None:
    """Moves a closed session away, as upkeep does after its days."""
    connection = connect(RedisSettings(url=server.url))
    try:
        storage = storage_over(connection, machine.folder.parent / "home" / "archive")
        await storage.broker.open()
        in_two_days = round(time.time() * 1000) + 2 * DAY_MS
        assert await archive_session(mover_of(storage), SessionId(session), in_two_days) is Moved.DONE
    finally:
        await connection.aclose()


async def test_person_goes_on_with_an_archived_session(machine: Machine, redis_server: RedisServer) -> None:
    with machine.model(says("and on")) as user:
        shut = user.run("proto", input='{"id":"9","op":{"type":"shutdown"}}\n')
        session = str(events(shut.stdout)[0]["session_id"])
        await archived(user, redis_server, session)
        ran = user.run("run", "--resume", session, "go on", "--json")
        assert ran.returncode == 0, ran.stderr
        assert events(ran.stdout)[-1]["last_agent_message"] == "and on"
        assert "live fold  equal at entry" in user.run("replay", session).stdout


async def test_person_is_told_that_the_archive_is_away(machine: Machine, redis_server: RedisServer) -> None:
    with machine.model(says("and on")) as user:
        shut = user.run("proto", input='{"id":"9","op":{"type":"shutdown"}}\n')
        session = str(events(shut.stdout)[0]["session_id"])
        await archived(user, redis_server, session)
        mounted = machine.folder.parent / "home" / "archive"
        away = mounted.rename(mounted.with_name("away"))
        mounted.mkdir()
        for command in (("run", "--resume", session, "go on"), ("replay", session)):
            refused = user.run(*command)
            assert refused.returncode == 1, command
            assert "is it mounted?" in refused.stderr
            assert "internal error" not in refused.stderr
        mounted.rmdir()
        away.rename(mounted)
        assert user.run("run", "--resume", session, "go on").returncode == 0
