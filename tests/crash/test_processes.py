"""Workers that are stopped, told to leave, or killed all at once."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from orchestrator.tools.patch.writer import PREFIX
from tests.crash.deadly import HOLD
from tests.crash.driver import CrashHarness, crash_harness, rested, violations
from tests.crash.people import Character, watching
from tests.crash.points import HELD_PATCH, Point
from tests.crash.workload import patch_files

pytestmark = [pytest.mark.realredis, pytest.mark.slow]
WITHIN_S = 60.0


async def taken_over(harness: CrashHarness, epoch: int) -> None:
    """Returns when somebody claimed the first session after `epoch`."""
    while True:
        head = await harness.people[0].client.head(harness.people[0].session)
        assert head is not None
        if head.epoch > epoch:
            return
        await asyncio.sleep(0.05)


async def epoch_of(harness: CrashHarness) -> int:
    head = await harness.people[0].client.head(harness.people[0].session)
    assert head is not None
    return head.epoch


async def running_command(harness: CrashHarness) -> Path:
    """The process of the long command that has just begun."""
    begun = await harness.people[0].until("exec_command_begin")
    file = harness.ledger.folder / f"alive-{begun.msg['call_id']}"
    while not (file.exists() and file.read_text().strip()):
        await asyncio.sleep(0.02)
    return Path("/proc", file.read_text().strip())


async def test_a_worker_that_was_stopped_past_its_lease_finds_its_command_dead_and_its_claim_gone() -> None:
    async with asyncio.timeout(WITHIN_S), crash_harness(1, sessions=1) as harness, watching(harness.people):
        person = harness.people[0]
        zombie = await harness.fork_server.start()
        errand = asyncio.create_task(person.ask("errand 1: long"))
        command = await running_command(harness)
        epoch = await epoch_of(harness)
        zombie.signal(signal.SIGSTOP)
        assert command.exists()
        await harness.fork_server.start()
        await taken_over(harness, epoch)
        assert not command.exists(), "nothing of the old holder runs beside the new one"
        await errand
        zombie.signal(signal.SIGCONT)
        # It goes on to its next write, is refused, and is of use again.
        await person.ask("errand 2: exec patch exec")
        await rested(harness)
        zombie.signal(signal.SIGTERM)
        assert await zombie.ended == 0
        assert not list(harness.ledger.folder.glob("alive-*-on"))
        assert len(harness.ledger.told) == 1, "the command that was killed is in doubt"
        assert await violations(harness) == []


async def test_a_worker_that_was_stopped_in_the_middle_of_a_patch_writes_no_more_of_it() -> None:
    async with asyncio.timeout(WITHIN_S), crash_harness(4, sessions=1) as harness, watching(harness.people):
        person, folder = harness.people[0], harness.ledger.folder
        hold = folder / HOLD
        os.mkfifo(hold)
        zombie = await harness.fork_server.start(Point(HELD_PATCH, 1))
        errand = asyncio.create_task(person.ask("errand 1: patch"))
        begun = await person.until("patch_apply_begin")
        met = await asyncio.to_thread(os.open, hold, os.O_WRONLY)
        epoch = await epoch_of(harness)
        zombie.signal(signal.SIGSTOP)
        await harness.fork_server.start()
        await taken_over(harness, epoch)
        os.close(met)
        with pytest.raises(OSError, match="No such device or address"):
            os.open(hold, os.O_WRONLY | os.O_NONBLOCK)
        files = patch_files(folder, person.session, begun.msg["call_id"])
        assert [file.exists() for file in files] == [True, False]
        await errand
        assert (person.session, begun.msg["call_id"]) in harness.ledger.told, "the patch is in doubt"
        zombie.signal(signal.SIGCONT)
        # It goes on to its next write, is refused, and is of use again.
        await person.ask("errand 2: patch exec")
        await rested(harness)
        zombie.signal(signal.SIGTERM)
        assert await zombie.ended == 0
        assert [file.exists() for file in files] == [True, False]
        assert not list(folder.glob(f"{PREFIX}*"))
        assert await violations(harness) == []


async def test_a_session_that_is_revoked_goes_on_when_the_command_of_its_holder_is_dead() -> None:
    async with asyncio.timeout(WITHIN_S), crash_harness(5, sessions=1) as harness, watching(harness.people):
        person = harness.people[0]
        workers = [await harness.fork_server.start(), await harness.fork_server.start()]
        errand = asyncio.create_task(person.ask("errand 1: long"))
        command = await running_command(harness)
        assert command.exists()
        revoked = await harness.deployment.broker.trees.revoke(person.session)
        await taken_over(harness, revoked)
        assert not command.exists(), "nothing of the old holder runs beside the new one"
        await errand
        await rested(harness)
        for worker in workers:
            worker.signal(signal.SIGTERM)
            assert await worker.ended == 0
        assert not list(harness.ledger.folder.glob("alive-*-on"))
        assert len(harness.ledger.told) == 1, "the command that was killed is in doubt"
        assert await violations(harness) == []


async def test_a_worker_whose_supervisor_was_killed_goes_on_under_another() -> None:
    async with asyncio.timeout(WITHIN_S), crash_harness(6, sessions=1) as harness, watching(harness.people):
        person = harness.people[0]
        worker = await harness.fork_server.start()
        errand = asyncio.create_task(person.ask("errand 1: long exec patch"))
        command = await running_command(harness)
        children = Path("/proc", str(worker.pid), "task", str(worker.pid), "children").read_text().split()
        reads_scripts = b"orchestrator.tools.commands.bash_grammar"
        [supervisor] = [
            one for one in children if reads_scripts not in Path("/proc", one, "cmdline").read_bytes()
        ]
        os.kill(int(supervisor), signal.SIGKILL)
        await errand
        assert not command.exists()
        assert not list(harness.ledger.folder.glob("alive-*-on"))
        assert len(harness.ledger.executions()) == 2
        await rested(harness)
        assert await violations(harness) == []


async def test_sessions_go_on_after_all_workers_were_killed_at_once() -> None:
    async with asyncio.timeout(WITHIN_S), crash_harness(2, sessions=4) as harness, watching(harness.people):
        workers = [await harness.fork_server.start(), await harness.fork_server.start()]
        enough = asyncio.Event()
        lives = asyncio.gather(*(person.live(enough) for person in harness.people))
        await asyncio.gather(*(person.until("exec_command_begin") for person in harness.people))
        for worker in workers:
            worker.kill_group()
        enough.set()
        await asyncio.gather(*(worker.ended for worker in workers))
        await harness.fork_server.start()
        await lives
        await rested(harness)
        assert await violations(harness) == []


async def test_a_worker_that_is_told_to_leave_hands_its_sessions_over_without_a_doubt() -> None:
    async with asyncio.timeout(WITHIN_S), crash_harness(3, sessions=3) as harness, watching(harness.people):
        for person in harness.people:
            person.character = Character("plain")
        leaving = await harness.fork_server.start()
        asked = [asyncio.create_task(p.ask("errand 1: slow exec slow patch")) for p in harness.people]
        await asyncio.gather(*(person.until("exec_command_begin") for person in harness.people))
        await harness.fork_server.start()
        leaving.signal(signal.SIGTERM)
        assert await leaving.ended == 0
        await asyncio.gather(*asked)
        await rested(harness)
        assert not harness.ledger.told
        assert await violations(harness) == []
