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
from tests.runtime.players import calls, ends, message
from tests.runtime.stage import Stage, opened
from tests.runtime.wires import Gate
from tests.servers import RedisServer, start_redis

pytestmark = pytest.mark.realredis


@pytest.fixture
def durable(tmp_path: Path) -> Iterator[RedisServer]:
    with start_redis(tmp_path / "redis", config={"appendonly": "yes", "appendfsync": "always"}) as server:
        yield server


@pytest.fixture
async def stage(durable: RedisServer) -> AsyncIterator[Stage]:
    async with opened(durable.url) as stage:
        yield stage


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


async def chains(stage: Stage, session: SessionId) -> list[bytes]:
    return [entry.chain for entry in await stage.log(session)]


async def test_a_holder_of_the_lost_branch_is_refused_and_stops(stage: Stage, durable: RedisServer) -> None:
    past, session, command = TimeMachine(durable), await stage.session(), Gate()
    await stage.say(session)
    assert await stage.run(session) is Ended.PARKED
    await past.remember()
    kept = await chains(stage, session)

    stage.models.will([calls("c1"), ends()])
    stage.tools.gates["c1"] = command
    await stage.say(session)
    holder = asyncio.create_task(stage.runner(await stage.claimed(session)).run())
    await stage.tools.began("c1").wait()
    lost = (await chains(stage, session))[len(kept) :]
    await past.go_back()
    command.open()
    assert await holder is Ended.LOST
    assert await chains(stage, session) == kept, "nothing of the lost branch was written"

    stage.models.will([message("Another life.")])
    await stage.say(session)
    assert await stage.run(session) is Ended.PARKED
    now = await chains(stage, session)
    assert now[: len(kept)] == kept
    assert not set(lost) & set(now)
    assert await stage.digest(session) == await stage.live_digest(session)


async def test_a_holder_whose_claim_the_copy_knows_is_refused_by_what_it_built_on(
    stage: Stage, durable: RedisServer
) -> None:
    # The copy was made while the session was held: claim id and epoch are those of the holder.
    past, session = TimeMachine(durable), await stage.session()
    commands = {name: Gate() for name in ("c1", "c2")}
    stage.tools.gates.update(commands)
    stage.models.will([calls("c1"), ends()], [calls("c2"), ends()])
    await stage.say(session)
    holder = asyncio.create_task(stage.runner(await stage.claimed(session)).run())
    await stage.tools.began("c1").wait()
    await past.remember()
    kept = await chains(stage, session)
    commands["c1"].open()
    await stage.tools.began("c2").wait()
    await past.go_back()
    commands["c2"].open()
    assert await holder is Ended.LOST
    assert await chains(stage, session) == kept
    await holder_died(stage.broker, session)
    assert await stage.run(session) is Ended.PARKED
    assert stage.models.outputs()["c1"].startswith("in doubt")
    assert "c2" not in stage.models.outputs()
    assert stage.tools.started == {"c1": 1, "c2": 1}


async def test_a_cached_state_of_the_lost_branch_is_not_used(stage: Stage, durable: RedisServer) -> None:
    past, session = TimeMachine(durable), await stage.session()
    await stage.say(session)
    await stage.run(session)
    await past.remember()
    stage.models.will([message("In the lost branch.")])
    await stage.say(session)
    await stage.run(session)
    await past.go_back()
    await stage.say(session)
    assert await stage.run(session) is Ended.PARKED
    said = [event["message"] for event in await stage.logged_events(session, "agent_message")]
    assert said == ["Bye.", "Bye."]
    assert await stage.digest(session) == await stage.live_digest(session)


async def test_a_client_is_warned_and_shown_what_is_true_now(stage: Stage, durable: RedisServer) -> None:
    past, session = TimeMachine(durable), await stage.session()
    await stage.say(session)
    await stage.run(session)
    await stage.until(session, "task_complete")
    await past.remember()
    stage.models.will([message("In the lost branch.")])
    await stage.say(session)
    await stage.run(session)
    await stage.until(session, "task_complete")
    await past.go_back()
    (warning,) = [e for e in await stage.until(session, "warning") if e.type == "warning"]
    assert "earlier moment" in warning.msg["message"]
    stage.cursors.pop(session)
    said = [
        e.msg["message"] for e in await stage.until(session, "task_complete") if e.type == "agent_message"
    ]
    assert said == ["Bye."]


async def test_a_submission_of_the_lost_branch_can_be_sent_again(stage: Stage, durable: RedisServer) -> None:
    past, session = TimeMachine(durable), await stage.session()
    await past.remember()
    await stage.say(session, "remember me", "mine")
    await past.go_back()
    await stage.say(session, "remember me", "mine")
    assert await stage.run(session) is Ended.PARKED
    assert [fact["id"] for fact in await stage.facts(session, "task")] == ["mine"]


async def test_the_second_that_a_dying_machine_may_lose_is_counted_and_can_be_sent_again(
    stage: Stage, durable: RedisServer
) -> None:
    session, sizes = await stage.session(), []
    for number in range(12):
        await stage.say(session, f"number {number}", f"n{number}")
        sizes.append(_append_only_file(durable).stat().st_size)
    await asyncio.to_thread(durable.kill)
    with _append_only_file(durable).open("r+b") as file:
        # Commands that were not on the disk yet are lost, the first cut in its middle.
        file.truncate(sizes[8] + 10)
    await asyncio.to_thread(durable.start)
    kept = {entry.submission for entry in await stage.broker.read_sq(session)}
    lost = [number for number in range(12) if f"n{number}" not in kept]
    assert lost == [9, 10, 11]
    for number in lost:
        await stage.say(session, f"number {number}", f"n{number}")
    assert await stage.run(session) is Ended.PARKED
    assert [fact["id"] for fact in await stage.facts(session, "task")] == [f"n{n}" for n in range(12)]
    assert await stage.digest(session) == await stage.live_digest(session)


def _append_only_file(server: RedisServer) -> Path:
    """Redis 7 keeps the log's tail in a file of its own, 6.2 has one file."""
    return max(server.folder.rglob("appendonly*aof"), key=lambda path: path.stat().st_mtime_ns)
