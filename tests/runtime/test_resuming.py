"""A session's state, however it comes about: live, cached, from a snapshot, from the whole log."""

from __future__ import annotations

import asyncio

from orchestrator.runtime.loader import Cache
from orchestrator.runtime.runner import Ended
from tests.runtime.connections import Gate, lost
from tests.runtime.harness import Harness, opened
from tests.runtime.players import calls, ends


async def test_a_large_output_is_a_blob_and_the_state_is_the_same_live_and_replayed(harness: Harness) -> None:
    session = await harness.session()
    harness.tools.outputs["c1"] = "x" * 50_000
    harness.models.will([calls("c1"), ends()])
    await harness.say(session)
    assert await harness.run(session) is Ended.PARKED
    assert max(len(entry.payload) for entry in await harness.log(session)) < 8_192
    assert harness.models.outputs()["c1"] == "x" * 50_000
    assert await harness.digest(session) == await harness.live_digest(session)
    events = await harness.until(session, "task_complete")
    (end,) = [event for event in events if event.type == "exec_command_end"]
    assert end.msg["stdout"] == "x" * 50_000
    async with opened(harness.url) as another:
        await another.say(session)
        await another.run(session)
        assert another.models.outputs()["c1"] == "x" * 50_000


async def test_a_snapshot_is_taken_and_the_next_worker_reads_only_what_follows(harness: Harness) -> None:
    session = await harness.session()
    harness.models.will(*((calls(f"c{number}"), ends()) for number in range(30)))
    await harness.say(session)
    assert await harness.run(session) is Ended.PARKED
    head = await harness.broker.logs.head(session)
    assert head is not None
    assert head.seq >= 256
    assert head.snapshot_seq >= 256
    async with opened(harness.url) as another:
        await another.say(session)
        assert await another.run(session) is Ended.PARKED
        reads = [
            args for name, args in another.connection.calls if name == "XRANGE" and ":rollout:" in args[1]
        ]
        assert reads
        assert all(args[2] == f"({head.snapshot_seq}-0" for args in reads)
    assert await harness.digest(session) == await harness.live_digest(session)


async def test_a_snapshot_that_fits_no_log_is_passed_over(harness: Harness) -> None:
    session = await harness.session()
    harness.models.will(*((calls(f"c{number}"), ends()) for number in range(30)))
    await harness.say(session)
    await harness.run(session)
    for broken in (b"no snapshot at all", b'{"core":1,"seq":260,"head":"' + b"00" * 32 + b'"}\n{}'):
        await harness.broker.command("SET", harness.broker.keys.snapshot(session), broken)
        harness.cache = Cache()
        await harness.say(session)
        assert await harness.run(session) is Ended.PARKED
    assert await harness.digest(session) == await harness.live_digest(session)


async def test_a_cached_state_is_used_only_if_nobody_wrote_since(harness: Harness) -> None:
    session = await harness.session()
    await harness.say(session)
    await harness.run(session)

    def reads() -> int:
        return sum(name == "XRANGE" and ":rollout:" in args[1] for name, args in harness.connection.calls)

    before = reads()
    await harness.say(session)
    await harness.run(session)
    assert reads() == before, "the cache was current"
    async with opened(harness.url) as another:
        await another.say(session)
        await another.run(session)
    await harness.say(session)
    await harness.run(session)
    assert reads() > before, "another worker wrote meanwhile"
    assert len(await harness.logged_events(session, "task_complete")) == 4


async def test_a_broken_connection_costs_a_running_command_nothing(harness: Harness) -> None:
    session, command = await harness.session(), Gate()
    harness.tools.gates["c1"] = command
    harness.models.will([calls("c1"), ends()])
    await harness.say(session)
    runner = harness.runner(await harness.claimed(session))
    task = asyncio.create_task(runner.run())
    await harness.tools.began("c1").wait()
    for name in ("commit", "XRANGE", "snapshot", "emit", "put_blob", "GET"):
        harness.connection.before[name] = lost(2)
    runner.notify()
    harness.tools.outputs["c1"] = "y" * 50_000
    command.open()
    assert await task is Ended.PARKED
    assert harness.tools.started == {"c1": 1}
    assert not harness.tools.killed
    assert harness.models.outputs()["c1"] == "y" * 50_000


async def test_a_worker_that_cannot_read_a_text_at_once_reads_it_again(harness: Harness) -> None:
    session = await harness.session()
    harness.tools.outputs["c1"] = "z" * 50_000
    harness.models.will([calls("c1"), ends()])
    await harness.say(session)
    await harness.run(session)
    async with opened(harness.url) as another:
        await another.say(session)
        another.connection.before["GET"] = lost(3)
        assert await another.run(session) is Ended.PARKED
        assert another.models.outputs()["c1"] == "z" * 50_000
        assert not await another.logged_events(session, "error")


async def test_a_load_that_is_cut_is_gone_on_with(harness: Harness) -> None:
    session = await harness.session()
    await harness.say(session)
    harness.connection.before["XRANGE"] = lost(1)
    assert await harness.run(session) is Ended.PARKED
