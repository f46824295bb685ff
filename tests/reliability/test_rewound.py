"""Redis put back to an earlier copy of its data: the lost branch stays lost."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from orchestrator.core.ids import SessionId
from orchestrator.runtime.runner import Ended
from tests.broker.actors import holder_died
from tests.runtime.connections import Gate
from tests.runtime.harness import Harness, opened
from tests.runtime.players import calls, ends, message
from tests.servers import RedisServer, start_redis

pytestmark = pytest.mark.realredis


@pytest.fixture
def durable(tmp_path: Path) -> Iterator[RedisServer]:
    with start_redis(tmp_path / "redis", config={"appendonly": "yes", "appendfsync": "always"}) as server:
        yield server


@pytest.fixture
async def harness(durable: RedisServer) -> AsyncIterator[Harness]:
    async with opened(durable.url) as harness:
        yield harness


class TimeMachine:
    """Copies a server's data, and puts the copy back."""

    def __init__(self, server: RedisServer) -> None:
        self._server = server
        self._copy = server.folder.with_name("copy")

    async def remember(self) -> None:
        await asyncio.to_thread(self._server.terminate)
        shutil.copytree(self._server.folder, self._copy)
        await asyncio.to_thread(self._server.start)

    async def go_back(self) -> None:
        await asyncio.to_thread(self._server.kill)
        shutil.rmtree(self._server.folder)
        shutil.copytree(self._copy, self._server.folder)
        await asyncio.to_thread(self._server.start)


async def chains(harness: Harness, session: SessionId) -> list[bytes]:
    return [entry.chain for entry in await harness.log(session)]


async def test_a_holder_of_the_lost_branch_is_refused_and_stops(
    harness: Harness, durable: RedisServer
) -> None:
    past, session, command = TimeMachine(durable), await harness.session(), Gate()
    await harness.say(session)
    assert await harness.run(session) is Ended.PARKED
    await past.remember()
    kept = await chains(harness, session)

    harness.models.will([calls("c1"), ends()])
    harness.tools.gates["c1"] = command
    await harness.say(session)
    holder = asyncio.create_task(harness.runner(await harness.claimed(session)).run())
    await harness.tools.began("c1").wait()
    lost = (await chains(harness, session))[len(kept) :]
    await past.go_back()
    command.open()
    assert await holder is Ended.LOST
    assert await chains(harness, session) == kept, "nothing of the lost branch was written"

    harness.models.will([message("Another life.")])
    await harness.say(session)
    assert await harness.run(session) is Ended.PARKED
    now = await chains(harness, session)
    assert now[: len(kept)] == kept
    assert not set(lost) & set(now)
    assert await harness.digest(session) == await harness.live_digest(session)


async def test_a_holder_whose_claim_the_copy_knows_is_refused_by_what_it_built_on(
    harness: Harness, durable: RedisServer
) -> None:
    # The copy was made while the session was held: claim id and epoch are those of the holder.
    past, session = TimeMachine(durable), await harness.session()
    commands = {name: Gate() for name in ("c1", "c2")}
    harness.tools.gates.update(commands)
    harness.models.will([calls("c1"), ends()], [calls("c2"), ends()])
    await harness.say(session)
    holder = asyncio.create_task(harness.runner(await harness.claimed(session)).run())
    await harness.tools.began("c1").wait()
    await past.remember()
    kept = await chains(harness, session)
    commands["c1"].open()
    await harness.tools.began("c2").wait()
    await past.go_back()
    commands["c2"].open()
    assert await holder is Ended.LOST
    assert await chains(harness, session) == kept
    await holder_died(harness.broker, session)
    assert await harness.run(session) is Ended.PARKED
    assert harness.models.outputs()["c1"].startswith("in doubt")
    assert "c2" not in harness.models.outputs()
    assert harness.tools.started == {"c1": 1, "c2": 1}


async def test_a_cached_state_of_the_lost_branch_is_not_used(harness: Harness, durable: RedisServer) -> None:
    past, session = TimeMachine(durable), await harness.session()
    await harness.say(session)
    await harness.run(session)
    await past.remember()
    harness.models.will([message("In the lost branch.")])
    await harness.say(session)
    await harness.run(session)
    await past.go_back()
    await harness.say(session)
    assert await harness.run(session) is Ended.PARKED
    said = [event["message"] for event in await harness.logged_events(session, "agent_message")]
    assert said == ["Bye.", "Bye."]
    assert await harness.digest(session) == await harness.live_digest(session)


async def test_a_client_is_warned_and_shown_what_is_true_now(harness: Harness, durable: RedisServer) -> None:
    past, session = TimeMachine(durable), await harness.session()
    await harness.say(session)
    await harness.run(session)
    await harness.until(session, "task_complete")
    await past.remember()
    harness.models.will([message("In the lost branch.")])
    await harness.say(session)
    await harness.run(session)
    await harness.until(session, "task_complete")
    await past.go_back()
    (warning,) = [e for e in await harness.until(session, "warning") if e.type == "warning"]
    assert "earlier moment" in warning.msg["message"]
    harness.cursors.pop(session)
    said = [
        e.msg["message"] for e in await harness.until(session, "task_complete") if e.type == "agent_message"
    ]
    assert said == ["Bye."]


async def test_a_submission_of_the_lost_branch_can_be_sent_again(
    harness: Harness, durable: RedisServer
) -> None:
    past, session = TimeMachine(durable), await harness.session()
    await past.remember()
    await harness.say(session, "remember me", "mine")
    await past.go_back()
    await harness.say(session, "remember me", "mine")
    assert await harness.run(session) is Ended.PARKED
    assert [fact["id"] for fact in await harness.facts(session, "task")] == ["mine"]


async def test_the_second_that_a_dying_machine_may_lose_is_counted_and_can_be_sent_again(
    harness: Harness, durable: RedisServer
) -> None:
    session, sizes = await harness.session(), []
    for number in range(12):
        await harness.say(session, f"number {number}", f"n{number}")
        sizes.append(_append_only_file(durable).stat().st_size)
    await asyncio.to_thread(durable.kill)
    with _append_only_file(durable).open("r+b") as file:
        # Commands that were not on the disk yet are lost, the first cut in its middle.
        file.truncate(sizes[8] + 10)
    await asyncio.to_thread(durable.start)
    kept = {entry.submission for entry in await harness.broker.logs.read_sq(session)}
    lost = [number for number in range(12) if f"n{number}" not in kept]
    assert lost == [9, 10, 11]
    for number in lost:
        await harness.say(session, f"number {number}", f"n{number}")
    assert await harness.run(session) is Ended.PARKED
    assert [fact["id"] for fact in await harness.facts(session, "task")] == [f"n{n}" for n in range(12)]
    assert await harness.digest(session) == await harness.live_digest(session)


def _append_only_file(server: RedisServer) -> Path:
    """Redis 7 keeps the log's tail in a file of its own, 6.2 has one file."""
    return max(server.folder.rglob("appendonly*aof"), key=lambda path: path.stat().st_mtime_ns)
