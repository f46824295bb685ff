"""Workers that are stopped, told to leave, or killed all at once."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from orchestrator.tools.patch.writing import PREFIX
from tests.crash.deadly import HOLD
from tests.crash.driver import Theatre, rested, theatre, violations
from tests.crash.people import Character, watching
from tests.crash.points import HELD_PATCH, Point
from tests.crash.workload import patch_files

pytestmark = [pytest.mark.realredis, pytest.mark.slow]
WITHIN_S = 60.0


async def taken_over(stage: Theatre, epoch: int) -> None:
    """Returns when somebody claimed the first session after `epoch`."""
    while True:
        head = await stage.people[0].client.head(stage.people[0].session)
        assert head is not None
        if head.epoch > epoch:
            return
        await asyncio.sleep(0.05)


async def epoch_of(stage: Theatre) -> int:
    head = await stage.people[0].client.head(stage.people[0].session)
    assert head is not None
    return head.epoch


async def running_command(stage: Theatre) -> Path:
    """The process of the long command that has just begun."""
    begun = await stage.people[0].until("exec_command_begin")
    file = stage.ledger.folder / f"alive-{begun.msg['call_id']}"
    while not (file.exists() and file.read_text().strip()):
        await asyncio.sleep(0.02)
    return Path("/proc", file.read_text().strip())


async def test_a_worker_that_was_stopped_past_its_lease_finds_its_command_dead_and_its_claim_gone() -> None:
    async with asyncio.timeout(WITHIN_S), theatre(1, sessions=1) as stage, watching(stage.people):
        person = stage.people[0]
        zombie = await stage.nursery.start()
        errand = asyncio.create_task(person.ask("errand 1: long"))
        command = await running_command(stage)
        epoch = await epoch_of(stage)
        zombie.signal(signal.SIGSTOP)
        assert command.exists()
        await stage.nursery.start()
        await taken_over(stage, epoch)
        assert not command.exists(), "nothing of the old holder runs beside the new one"
        await errand
        zombie.signal(signal.SIGCONT)
        # It goes on to its next write, is refused, and is of use again.
        await person.ask("errand 2: exec patch exec")
        await rested(stage)
        zombie.signal(signal.SIGTERM)
        assert await zombie.ended == 0
        assert not list(stage.ledger.folder.glob("alive-*-on"))
        assert len(stage.ledger.told) == 1, "the command that was killed is in doubt"
        assert await violations(stage) == []


async def test_a_worker_that_was_stopped_in_the_middle_of_a_patch_writes_no_more_of_it() -> None:
    async with asyncio.timeout(WITHIN_S), theatre(4, sessions=1) as stage, watching(stage.people):
        person, folder = stage.people[0], stage.ledger.folder
        hold = folder / HOLD
        os.mkfifo(hold)
        zombie = await stage.nursery.start(Point(HELD_PATCH, 1))
        errand = asyncio.create_task(person.ask("errand 1: patch"))
        begun = await person.until("patch_apply_begin")
        met = await asyncio.to_thread(os.open, hold, os.O_WRONLY)
        epoch = await epoch_of(stage)
        zombie.signal(signal.SIGSTOP)
        await stage.nursery.start()
        await taken_over(stage, epoch)
        os.close(met)
        with pytest.raises(OSError, match="No such device or address"):
            os.open(hold, os.O_WRONLY | os.O_NONBLOCK)
        files = patch_files(folder, person.session, begun.msg["call_id"])
        assert [file.exists() for file in files] == [True, False]
        await errand
        assert (person.session, begun.msg["call_id"]) in stage.ledger.told, "the patch is in doubt"
        zombie.signal(signal.SIGCONT)
        # It goes on to its next write, is refused, and is of use again.
        await person.ask("errand 2: patch exec")
        await rested(stage)
        zombie.signal(signal.SIGTERM)
        assert await zombie.ended == 0
        assert [file.exists() for file in files] == [True, False]
        assert not list(folder.glob(f"{PREFIX}*"))
        assert await violations(stage) == []


async def test_a_session_that_is_revoked_goes_on_when_the_command_of_its_holder_is_dead() -> None:
    async with asyncio.timeout(WITHIN_S), theatre(5, sessions=1) as stage, watching(stage.people):
        person = stage.people[0]
        workers = [await stage.nursery.start(), await stage.nursery.start()]
        errand = asyncio.create_task(person.ask("errand 1: long"))
        command = await running_command(stage)
        assert command.exists()
        revoked = await stage.deployment.broker.revoke(person.session)
        await taken_over(stage, revoked)
        assert not command.exists(), "nothing of the old holder runs beside the new one"
        await errand
        await rested(stage)
        for worker in workers:
            worker.signal(signal.SIGTERM)
            assert await worker.ended == 0
        assert not list(stage.ledger.folder.glob("alive-*-on"))
        assert len(stage.ledger.told) == 1, "the command that was killed is in doubt"
        assert await violations(stage) == []


async def test_a_worker_whose_supervisor_was_killed_goes_on_under_another() -> None:
    async with asyncio.timeout(WITHIN_S), theatre(6, sessions=1) as stage, watching(stage.people):
        person = stage.people[0]
        worker = await stage.nursery.start()
        errand = asyncio.create_task(person.ask("errand 1: long exec patch"))
        command = await running_command(stage)
        [supervisor] = Path("/proc", str(worker.pid), "task", str(worker.pid), "children").read_text().split()
        os.kill(int(supervisor), signal.SIGKILL)
        await errand
        assert not command.exists()
        assert not list(stage.ledger.folder.glob("alive-*-on"))
        assert len(stage.ledger.executions()) == 2
        await rested(stage)
        assert await violations(stage) == []


async def test_sessions_go_on_after_all_workers_were_killed_at_once() -> None:
    async with asyncio.timeout(WITHIN_S), theatre(2, sessions=4) as stage, watching(stage.people):
        workers = [await stage.nursery.start(), await stage.nursery.start()]
        enough = asyncio.Event()
        lives = asyncio.gather(*(person.live(enough) for person in stage.people))
        await asyncio.gather(*(person.until("exec_command_begin") for person in stage.people))
        for worker in workers:
            worker.kill_group()
        enough.set()
        await asyncio.gather(*(worker.ended for worker in workers))
        await stage.nursery.start()
        await lives
        await rested(stage)
        assert await violations(stage) == []


async def test_a_worker_that_is_told_to_leave_hands_its_sessions_over_without_a_doubt() -> None:
    async with asyncio.timeout(WITHIN_S), theatre(3, sessions=3) as stage, watching(stage.people):
        for person in stage.people:
            person.character = Character("plain")
        leaving = await stage.nursery.start()
        asked = [asyncio.create_task(p.ask("errand 1: slow exec slow patch")) for p in stage.people]
        await asyncio.gather(*(person.until("exec_command_begin") for person in stage.people))
        await stage.nursery.start()
        leaving.signal(signal.SIGTERM)
        assert await leaving.ended == 0
        await asyncio.gather(*asked)
        await rested(stage)
        assert not stage.ledger.told
        assert await violations(stage) == []
