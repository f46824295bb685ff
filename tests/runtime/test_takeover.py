"""A worker is lost in the middle: what the next one finds, judges, tells and does again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from orchestrator.broker.errors import Unavailable
from orchestrator.broker.records import Claimed
from orchestrator.core.ids import SessionId
from orchestrator.core.snapshot import CORE_VERSION
from orchestrator.model.events import TextDelta
from orchestrator.protocol import ops
from orchestrator.runtime.runner import Ended
from tests.broker.actors import holder_died
from tests.runtime.players import calls, ends, message
from tests.runtime.stage import Stage, hasty_broker, open_broker
from tests.runtime.wires import Gate


async def lost_during(stage: Stage, session: SessionId, began: asyncio.Event) -> None:
    """A worker takes the session and is lost once `began` is set; its effects end with it."""
    runner = stage.runner(await stage.claimed(session, "lost"))
    task = asyncio.create_task(runner.run())
    await began.wait()
    runner.lose()
    assert await task is Ended.LOST
    await holder_died(stage.broker, session)


async def test_a_command_of_a_lost_worker_is_in_doubt_and_is_not_run_again(stage: Stage) -> None:
    session = await stage.session()
    stage.models.will([calls("c1"), ends()])
    stage.tools.gates["c1"] = Gate()
    await stage.say(session)
    await lost_during(stage, session, stage.tools.began("c1"))
    assert await stage.run(session) is Ended.PARKED
    assert stage.tools.started == {"c1": 1}
    assert stage.models.outputs()["c1"].startswith("in doubt")
    (end,) = await stage.logged_events(session, "exec_command_end")
    assert (end["exit_code"], end["stderr"][:8]) == (-1, "in doubt")
    (warning,) = await stage.logged_events(session, "warning")
    assert "c1" in warning["message"]


@pytest.mark.parametrize(
    ("verdict", "runs", "told"),
    [
        ("none", 2, "output of p1"),
        ("all", 1, "Success. Updated the following files"),
        ("in_doubt", 1, "in doubt"),
    ],
)
async def test_a_patch_of_a_lost_worker_is_what_its_files_say(
    stage: Stage, verdict: str, runs: int, told: str
) -> None:
    session = await stage.session()
    stage.models.will([calls("p1", "apply_patch"), ends()])
    stage.tools.gates["p1"], stage.tools.verdicts["p1"] = Gate(), verdict
    await stage.say(session)
    await lost_during(stage, session, stage.tools.began("p1"))
    stage.tools.gates.clear()
    assert await stage.run(session) is Ended.PARKED
    assert stage.tools.started == {"p1": runs}
    assert stage.models.outputs()["p1"].startswith(told)
    ends_told = await stage.logged_events(session, "patch_apply_end")
    assert [end["success"] for end in ends_told] == [verdict != "in_doubt"]


async def test_a_stream_of_a_lost_worker_is_void_and_said_to_be(stage: Stage) -> None:
    session, silence = await stage.session(), Gate()
    stage.models.will([message("Kept."), TextDelta("void"), silence], [message("Whole."), ends()])
    await stage.say(session)
    await lost_during(stage, session, silence.reached)
    assert await stage.run(session) is Ended.PARKED
    said = [event["message"] for event in await stage.logged_events(session, "agent_message")]
    assert said in (["Kept.", "Whole."], ["Whole."]), "a whole item may have been in the log already"
    (error,) = await stage.logged_events(session, "stream_error")
    assert "the worker was lost" in error["message"]
    kinds = [event["type"] for event in await stage.logged_events(session)]
    assert kinds.index("stream_error") < kinds.index("task_complete")


async def test_an_interrupt_that_a_lost_worker_had_begun_is_finished_by_the_next(stage: Stage) -> None:
    session, death = await stage.session(), Gate()
    stage.models.will([calls("c1"), ends()])
    stage.tools.gates["c1"], stage.tools.deaths["c1"] = Gate(), death
    await stage.say(session)
    runner = stage.runner(await stage.claimed(session, "lost"))
    task = asyncio.create_task(runner.run())
    await stage.tools.began("c1").wait()
    await stage.submit(session, ops.Interrupt())
    runner.poke()
    await death.reached.wait()
    await holder_died(stage.broker, session)
    runner.lose()
    assert await stage.run(session) is Ended.PARKED
    death.open()
    assert await task is Ended.LOST
    assert [e["reason"] for e in await stage.logged_events(session, "turn_aborted")] == ["interrupted"]
    assert len(await stage.facts(session, "task_ended")) == 1


async def test_a_writer_whose_claim_was_taken_writes_nothing(stage: Stage) -> None:
    session = await stage.session()
    stage.models.will([calls("c1"), ends()])
    command = stage.tools.gates["c1"] = Gate()
    await stage.say(session)
    zombie = asyncio.create_task(stage.runner(await stage.claimed(session, "zombie")).run())
    await stage.tools.began("c1").wait()
    await holder_died(stage.broker, session)
    assert await stage.run(session) is Ended.PARKED
    written = await stage.log(session)
    command.open()
    assert await zombie is Ended.LOST
    assert await stage.log(session) == written
    assert [fact["outcome"] for fact in await stage.facts(session, "task_ended")] == ["completed"]


async def test_a_release_whose_answer_was_lost_is_not_an_error(stage: Stage) -> None:
    session = await stage.session()
    await stage.say(session)
    sent: list[Any] = []

    async def lose_the_last(args: Any) -> None:
        sent.append(args)
        if len(sent) in (2, 4):
            raise Unavailable("cut")

    stage.wire.after["commit"] = lose_the_last
    assert await stage.run(session) is Ended.PARKED
    head = await stage.broker.head(session)
    assert head is not None
    assert (head.holder, head.status) == (None, "idle")
    assert len(await stage.logged_events(session, "task_complete")) == 1


async def test_a_session_that_kills_each_of_five_workers_is_set_aside(stage: Stage) -> None:
    session = await stage.session()
    await stage.say(session)
    log = stage.broker.keys.rollout(session)
    entry = (await stage.log(session))[1]
    await stage.broker.command("XDEL", log, f"{entry.seq}-0")
    claims: list[Claimed | None] = []
    async with hasty_broker(stage.url) as broker:
        for number in range(6):
            claims.append(await broker.claim_session(session, f"w{number}", f"c{number}"))
            if claims[-1] is None:
                break
            with pytest.raises(Exception, match=r"entries are missing|does not follow"):
                await stage.runner(claims[-1]).run()
    assert [claim is not None for claim in claims] == [True] * 4 + [False]
    head = await stage.broker.head(session)
    assert head is not None
    assert head.quarantined
    assert not stage.models.prompts
    assert (await stage.until(session, "error"))[-1].id == ""


async def test_an_older_worker_leaves_alone_what_a_newer_one_has_written(stage: Stage) -> None:
    session = await stage.session()
    stage.models.will([message("Done."), ends()], [message("Again."), ends()])
    await stage.say(session)
    assert await stage.run(session) is Ended.PARKED
    await stage.say(session)
    older = open_broker(stage.url, core_version=CORE_VERSION - 1)
    assert await older.claim_session(session, "older", "c1") is None
    await older.aclose()
    assert await stage.run(session) is Ended.PARKED
    assert len(await stage.logged_events(session, "task_complete")) == 2
