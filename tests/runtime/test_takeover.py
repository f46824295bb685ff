"""A worker is lost in the middle: what the next one finds, judges, tells and does again."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from typing import Any

import pytest

from orchestrator.broker.errors import Unavailable
from orchestrator.broker.records import Claimed
from orchestrator.core import CORE_VERSION
from orchestrator.core.ids import SessionId
from orchestrator.model.prompt import TextDelta
from orchestrator.protocol import ops
from orchestrator.runtime.runner import Ended
from orchestrator.tools.exec.command import MODEL_BYTES
from tests.broker.actors import holder_died
from tests.runtime.connections import Gate
from tests.runtime.harness import Harness, hasty_broker, open_broker
from tests.runtime.players import calls, ends, message


async def lost_during(harness: Harness, session: SessionId, began: asyncio.Event) -> None:
    """A worker takes the session and is lost once `began` is set; its effects end with it."""
    runner = harness.runner(await harness.claimed(session, "lost"))
    task = asyncio.create_task(runner.run())
    await began.wait()
    runner.lose()
    assert await task is Ended.LOST
    await holder_died(harness.broker, session)


async def test_a_command_of_a_lost_worker_is_in_doubt_and_is_not_run_again(harness: Harness) -> None:
    session = await harness.session()
    harness.models.will([calls("c1"), ends()])
    harness.tools.gates["c1"] = Gate()
    await harness.say(session)
    await lost_during(harness, session, harness.tools.began("c1"))
    assert await harness.run(session) is Ended.PARKED
    assert harness.tools.started == {"c1": 1}
    assert harness.models.outputs()["c1"].startswith("in doubt")
    (end,) = await harness.logged_events(session, "exec_command_end")
    assert (end["exit_code"], end["stderr"][:8]) == (-1, "in doubt")
    (warning,) = await harness.logged_events(session, "warning")
    assert "c1" in warning["message"]


async def lost_while_showing(harness: Harness, session: SessionId, *said: bytes) -> None:
    """A worker is lost behind a command that has shown all this."""
    harness.models.will([calls("c1"), ends()])
    harness.tools.gates["c1"] = Gate()
    harness.tools.deltas["c1"] = [b64encode(data).decode() for data in said]
    await harness.say(session)
    runner = harness.runner(await harness.claimed(session, "lost"))
    task = asyncio.create_task(runner.run())
    for _ in said:
        await harness.until(session, "exec_command_output_delta")
    runner.lose()
    assert await task is Ended.LOST
    await holder_died(harness.broker, session)


async def test_output_that_was_seen_of_a_lost_command_is_in_the_log_and_told_to_the_model(
    harness: Harness,
) -> None:
    session = await harness.session()
    await lost_while_showing(harness, session, b"first \xc3", b"\xbc\nlast\n")
    assert await harness.run(session) is Ended.PARKED
    (end,) = await harness.logged_events(session, "exec_command_end")
    assert end["stdout"] == "first \N{LATIN SMALL LETTER U WITH DIAERESIS}\nlast\n"
    told = harness.models.outputs()["c1"]
    assert told.startswith("in doubt")
    assert told.endswith("; its output until then:\n" + end["stdout"])


async def test_output_of_a_lost_command_is_bounded_as_any_output(harness: Harness) -> None:
    session = await harness.session()
    await lost_while_showing(harness, session, b"begin\n", *[b"x" * 4000 + b"\n"] * 40, b"end\n")
    assert await harness.run(session) is Ended.PARKED
    told = harness.models.outputs()["c1"]
    assert len(told) < MODEL_BYTES + 500
    assert "begin\n" in told
    assert told.endswith("end\n")
    assert "[... omitted" in told


async def test_output_that_the_event_queue_does_not_keep_is_said_to_be_lost(harness: Harness) -> None:
    session = await harness.session()
    await lost_while_showing(harness, session, b"gone")
    await harness.broker.command("DEL", harness.broker.keys.eq(session))
    assert await harness.run(session) is Ended.PARKED
    assert harness.models.outputs()["c1"].endswith("what it had shown until then is not kept any more")


async def test_output_of_an_earlier_command_of_the_same_id_is_not_the_lost_ones(harness: Harness) -> None:
    session = await harness.session()
    harness.models.will([calls("c1"), ends()])
    harness.tools.deltas["c1"] = [b64encode(b"earlier").decode()]
    await harness.say(session)
    assert await harness.run(session) is Ended.PARKED
    await harness.until(session, "task_complete")
    await lost_while_showing(harness, session, b"later")
    assert await harness.run(session) is Ended.PARKED
    first, second = await harness.logged_events(session, "exec_command_end")
    assert (first["exit_code"], second["stdout"]) == (0, "later")


@pytest.mark.parametrize(
    ("verdict", "runs", "told"),
    [
        ("none", 2, "output of p1"),
        ("all", 1, "Success. Updated the following files"),
        ("in_doubt", 1, "in doubt"),
    ],
)
async def test_a_patch_of_a_lost_worker_is_what_its_files_say(
    harness: Harness, verdict: str, runs: int, told: str
) -> None:
    session = await harness.session()
    harness.models.will([calls("p1", "apply_patch"), ends()])
    harness.tools.gates["p1"], harness.tools.verdicts["p1"] = Gate(), verdict
    await harness.say(session)
    await lost_during(harness, session, harness.tools.began("p1"))
    harness.tools.gates.clear()
    assert await harness.run(session) is Ended.PARKED
    assert harness.tools.started == {"p1": runs}
    assert harness.models.outputs()["p1"].startswith(told)
    ends_told = await harness.logged_events(session, "patch_apply_end")
    assert [end["success"] for end in ends_told] == [verdict != "in_doubt"]


async def test_a_stream_of_a_lost_worker_is_void_and_said_to_be(harness: Harness) -> None:
    session, silence = await harness.session(), Gate()
    harness.models.will([message("Kept."), TextDelta("void"), silence], [message("Whole."), ends()])
    await harness.say(session)
    await lost_during(harness, session, silence.reached)
    assert await harness.run(session) is Ended.PARKED
    said = [event["message"] for event in await harness.logged_events(session, "agent_message")]
    assert said in (["Kept.", "Whole."], ["Whole."]), "a whole item may have been in the log already"
    (error,) = await harness.logged_events(session, "stream_error")
    assert "the worker was lost" in error["message"]
    kinds = [event["type"] for event in await harness.logged_events(session)]
    assert kinds.index("stream_error") < kinds.index("task_complete")


async def test_an_interrupt_that_a_lost_worker_had_begun_is_finished_by_the_next(harness: Harness) -> None:
    session, death = await harness.session(), Gate()
    harness.models.will([calls("c1"), ends()])
    harness.tools.gates["c1"], harness.tools.deaths["c1"] = Gate(), death
    await harness.say(session)
    runner = harness.runner(await harness.claimed(session, "lost"))
    task = asyncio.create_task(runner.run())
    await harness.tools.began("c1").wait()
    await harness.submit(session, ops.Interrupt())
    runner.notify()
    await death.reached.wait()
    await holder_died(harness.broker, session)
    runner.lose()
    assert await harness.run(session) is Ended.PARKED
    death.open()
    assert await task is Ended.LOST
    assert [e["reason"] for e in await harness.logged_events(session, "turn_aborted")] == ["interrupted"]
    assert len(await harness.facts(session, "task_ended")) == 1


async def test_a_writer_whose_claim_was_taken_writes_nothing(harness: Harness) -> None:
    session = await harness.session()
    harness.models.will([calls("c1"), ends()])
    command = harness.tools.gates["c1"] = Gate()
    await harness.say(session)
    zombie = asyncio.create_task(harness.runner(await harness.claimed(session, "zombie")).run())
    await harness.tools.began("c1").wait()
    await holder_died(harness.broker, session)
    assert await harness.run(session) is Ended.PARKED
    written = await harness.log(session)
    command.open()
    assert await zombie is Ended.LOST
    assert await harness.log(session) == written
    assert [fact["outcome"] for fact in await harness.facts(session, "task_ended")] == ["completed"]


async def test_a_release_whose_answer_was_lost_is_not_an_error(harness: Harness) -> None:
    session = await harness.session()
    await harness.say(session)
    sent: list[Any] = []

    async def lose_the_last(args: Any) -> None:
        sent.append(args)
        if len(sent) in (2, 4):
            raise Unavailable("cut")

    harness.connection.after["commit"] = lose_the_last
    assert await harness.run(session) is Ended.PARKED
    head = await harness.broker.logs.head(session)
    assert head is not None
    assert (head.holder, head.status) == (None, "idle")
    assert len(await harness.logged_events(session, "task_complete")) == 1


async def test_a_session_that_kills_each_of_five_workers_is_quarantined(harness: Harness) -> None:
    session = await harness.session()
    await harness.say(session)
    log = harness.broker.keys.rollout(session)
    entry = (await harness.log(session))[1]
    await harness.broker.command("XDEL", log, f"{entry.seq}-0")
    claims: list[Claimed | None] = []
    async with hasty_broker(harness.url) as broker:
        for number in range(6):
            claims.append(await broker.claims.claim_session(session, f"w{number}", f"c{number}"))
            if claims[-1] is None:
                break
            with pytest.raises(Exception, match=r"entries are missing|does not follow"):
                await harness.runner(claims[-1]).run()
    assert [claim is not None for claim in claims] == [True] * 4 + [False]
    head = await harness.broker.logs.head(session)
    assert head is not None
    assert head.quarantined
    assert not harness.models.prompts
    assert (await harness.until(session, "error"))[-1].id == ""


async def test_an_older_worker_leaves_alone_what_a_newer_one_has_written(harness: Harness) -> None:
    session = await harness.session()
    harness.models.will([message("Done."), ends()], [message("Again."), ends()])
    await harness.say(session)
    assert await harness.run(session) is Ended.PARKED
    await harness.say(session)
    older = open_broker(harness.url, core_version=CORE_VERSION - 1)
    assert await older.claims.claim_session(session, "older", "c1") is None
    await older.aclose()
    assert await harness.run(session) is Ended.PARKED
    assert len(await harness.logged_events(session, "task_complete")) == 2
