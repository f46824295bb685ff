"""A session's state, however it comes about: live, cached, from a snapshot, from the whole log."""

from __future__ import annotations

import asyncio

from orchestrator.runtime.loading import Cache
from orchestrator.runtime.runner import Ended
from tests.runtime.players import calls, ends
from tests.runtime.stage import Stage, opened
from tests.runtime.wires import Gate, lost


async def test_a_large_output_is_a_blob_and_the_state_is_the_same_live_and_replayed(stage: Stage) -> None:
    session = await stage.session()
    stage.tools.outputs["c1"] = "x" * 50_000
    stage.models.will([calls("c1"), ends()])
    await stage.say(session)
    assert await stage.run(session) is Ended.PARKED
    assert max(len(entry.payload) for entry in await stage.log(session)) < 8_192
    assert stage.models.outputs()["c1"] == "x" * 50_000
    assert await stage.digest(session) == await stage.live_digest(session)
    events = await stage.until(session, "task_complete")
    (end,) = [event for event in events if event.type == "exec_command_end"]
    assert end.msg["stdout"] == "x" * 50_000
    async with opened(stage.url) as another:
        await another.say(session)
        await another.run(session)
        assert another.models.outputs()["c1"] == "x" * 50_000


async def test_a_snapshot_is_taken_and_the_next_worker_reads_only_what_follows(stage: Stage) -> None:
    session = await stage.session()
    stage.models.will(*((calls(f"c{number}"), ends()) for number in range(30)))
    await stage.say(session)
    assert await stage.run(session) is Ended.PARKED
    head = await stage.broker.head(session)
    assert head is not None
    assert head.seq >= 256
    assert head.snapshot_seq >= 256
    async with opened(stage.url) as another:
        await another.say(session)
        assert await another.run(session) is Ended.PARKED
        reads = [args for name, args in another.wire.calls if name == "XRANGE" and ":rollout:" in args[1]]
        assert reads
        assert all(args[2] == f"({head.snapshot_seq}-0" for args in reads)
    assert await stage.digest(session) == await stage.live_digest(session)


async def test_a_snapshot_that_fits_no_log_is_passed_over(stage: Stage) -> None:
    session = await stage.session()
    stage.models.will(*((calls(f"c{number}"), ends()) for number in range(30)))
    await stage.say(session)
    await stage.run(session)
    for broken in (b"no snapshot at all", b'{"core":1,"seq":260,"head":"' + b"00" * 32 + b'"}\n{}'):
        await stage.broker.command("SET", stage.broker.keys.snapshot(session), broken)
        stage.cache = Cache()
        await stage.say(session)
        assert await stage.run(session) is Ended.PARKED
    assert await stage.digest(session) == await stage.live_digest(session)


async def test_a_cached_state_is_used_only_if_nobody_wrote_since(stage: Stage) -> None:
    session = await stage.session()
    await stage.say(session)
    await stage.run(session)

    def reads() -> int:
        return sum(name == "XRANGE" and ":rollout:" in args[1] for name, args in stage.wire.calls)

    before = reads()
    await stage.say(session)
    await stage.run(session)
    assert reads() == before, "the cache was current"
    async with opened(stage.url) as another:
        await another.say(session)
        await another.run(session)
    await stage.say(session)
    await stage.run(session)
    assert reads() > before, "another worker wrote meanwhile"
    assert len(await stage.logged_events(session, "task_complete")) == 4


async def test_a_broken_connection_costs_a_running_command_nothing(stage: Stage) -> None:
    session, command = await stage.session(), Gate()
    stage.tools.gates["c1"] = command
    stage.models.will([calls("c1"), ends()])
    await stage.say(session)
    runner = stage.runner(await stage.claimed(session))
    task = asyncio.create_task(runner.run())
    await stage.tools.began("c1").wait()
    for name in ("commit", "XRANGE", "snapshot", "emit", "put_blob", "GET"):
        stage.wire.before[name] = lost(2)
    runner.poke()
    stage.tools.outputs["c1"] = "y" * 50_000
    command.open()
    assert await task is Ended.PARKED
    assert stage.tools.started == {"c1": 1}
    assert not stage.tools.killed
    assert stage.models.outputs()["c1"] == "y" * 50_000


async def test_a_worker_that_cannot_read_a_text_at_once_reads_it_again(stage: Stage) -> None:
    session = await stage.session()
    stage.tools.outputs["c1"] = "z" * 50_000
    stage.models.will([calls("c1"), ends()])
    await stage.say(session)
    await stage.run(session)
    async with opened(stage.url) as another:
        await another.say(session)
        another.wire.before["GET"] = lost(3)
        assert await another.run(session) is Ended.PARKED
        assert another.models.outputs()["c1"] == "z" * 50_000
        assert not await another.logged_events(session, "error")


async def test_a_load_that_is_cut_is_gone_on_with(stage: Stage) -> None:
    session = await stage.session()
    await stage.say(session)
    stage.wire.before["XRANGE"] = lost(1)
    assert await stage.run(session) is Ended.PARKED
