"""A submission that cannot be decided or committed ends with an `error`, and its session lives on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import orjson
import pytest

from orchestrator.broker.errors import DamagedEntry
from orchestrator.broker.records import Submit
from orchestrator.core import commands as c
from orchestrator.core import decide as decide_module
from orchestrator.core.ids import SessionId
from orchestrator.protocol import bounds, ops
from orchestrator.protocol.events import BackgroundEvent
from orchestrator.protocol.ids import SubmissionId
from orchestrator.protocol.submission import MalformedSubmission
from orchestrator.runtime import sq_entries, step
from orchestrator.runtime.runner import Ended
from orchestrator.runtime.sq_entries import command_of
from orchestrator.runtime.step import submission_of
from tests.runtime.connections import Gate
from tests.runtime.harness import Harness
from tests.runtime.players import USAGE, calls, ends
from tests.runtime.test_worker_claims import at_work

POISON = "poison"


async def thrown_in(harness: Harness, session: SessionId, op: dict[str, Any], id: str = "bad") -> str:
    """Puts a submission into the queue as a client of an earlier version did: past the door."""
    line = orjson.dumps({"id": id, "op": op})
    await harness.broker.commits.submit(Submit(session, "old-client", id, line))
    return id


def said(text: str = "go", **fields: Any) -> dict[str, Any]:
    return {"type": "user_input", "items": [{"type": "text", "text": text}], **fields}


async def errors(harness: Harness, session: SessionId) -> list[str]:
    return [event["message"] for event in await harness.logged_events(session, "error")]


BRICKS = {
    "an id of 300 kB": (said(), "i" * 300_000),
    "a model of 70 kB": ({"type": "override_turn_context", "model": "m" * 70_000}, "bad"),
    "a provider of 70 kB": ({"type": "configure_session", "model_provider": "m" * 70_000}, "bad"),
    "a schema of 2 MB": (said(final_output_json_schema={str(n): "y" * 60_000 for n in range(33)}), "bad"),
    "a folder of 80 kB": ({"type": "override_turn_context", "cwd": "/t" * 40_000}, "bad"),
    "50,000 folders": (
        {
            "type": "override_turn_context",
            "sandbox_policy": {
                "mode": "workspace-write",
                "writable_roots": [f"/r{n}/{'x' * 20}" for n in range(50_000)],
            },
        },
        "bad",
    ),
}


@pytest.mark.parametrize("name", BRICKS)
async def test_a_submission_accepted_by_an_earlier_version_becomes_an_error(
    harness: Harness, name: str
) -> None:
    session = await harness.session()
    await thrown_in(harness, session, *BRICKS[name])
    assert await harness.run(session) is Ended.PARKED
    (told,) = await errors(harness, session)
    assert "at most" in told
    await harness.say(session)
    assert await harness.run(session) is Ended.PARKED
    assert len(await harness.logged_events(session, "task_complete")) == 1


async def test_a_session_that_such_a_submission_had_quarantined_goes_on_once_it_is_readmitted(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await harness.session()
    await thrown_in(harness, session, *BRICKS["a schema of 2 MB"])
    for _ in range(4):
        # An earlier version: its claim ran out each time.
        claimed = await harness.claimed(session)
        await harness.broker.command("ZADD", harness.broker.keys.pool(1, "harness")[1], 1, session)
        assert claimed.claims_without_progress
    assert await harness.ports.broker.claims.claim_session(session, "w5", "c5") is None
    head = await harness.broker.logs.head(session)
    assert head is not None
    assert head.quarantined
    await harness.broker.trees.revoke(session)
    async with at_work(harness.worker()):
        await harness.until(session, "error")
        await harness.say(session)
        await harness.until(session, "task_complete")


async def test_the_door_refuses_what_holds_more_than_it_may(harness: Harness) -> None:
    session = await harness.session()
    with pytest.raises(MalformedSubmission, match=r"op\.model: at most 1,024 bytes"):
        await harness.submit(session, ops.OverrideTurnContext(model="m" * 70_000))
    head = await harness.broker.logs.head(session)
    assert head is not None
    assert head.sq_tip == head.cursor


async def test_a_session_is_not_created_with_settings_that_no_operation_could_set(harness: Harness) -> None:
    with pytest.raises(MalformedSubmission, match=r"op\.base_instructions: at most 1,048,576 bytes"):
        await harness.session(base_instructions="x" * (2 << 20))


async def test_long_instructions_reach_the_model_whole(harness: Harness) -> None:
    """Instructions stand beside the log; the first entries must not refer to what nobody has stored."""
    instructions = "Be careful. " * 20_000
    session = await harness.session(base_instructions=instructions)
    await harness.say(session)
    assert await harness.run(session) is Ended.PARKED
    assert harness.models.prompts[-1].instructions == instructions
    changed = "Be quick. " * 20_000
    await harness.submit(session, ops.ConfigureSession(base_instructions=changed))
    await harness.say(session)
    assert await harness.run(session) is Ended.PARKED
    assert harness.models.prompts[-1].instructions == changed


def unbounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raises the bounds of JSON: a step that does not fit into a commit is met all the same."""
    monkeypatch.setattr(bounds, "JSON", dict.fromkeys(bounds.JSON, 8 << 20))


async def test_a_step_that_is_too_large_becomes_an_error_at_once_and_its_neighbours_are_done(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    unbounded(monkeypatch)
    session = await harness.session(on_user_input="steer")
    await harness.submit(session, ops.GetPath(), "before")
    await thrown_in(harness, session, *BRICKS["a schema of 2 MB"])
    await harness.say(session, "hello", "after")
    assert await harness.run(session) is Ended.PARKED
    (told,) = await errors(harness, session)
    assert "more than one step can record" in told
    assert await harness.logged_events(session, "conversation_path")
    assert "hello" in str(harness.models.prompts[-1].input)
    assert await harness.digest(session) == await harness.live_digest(session)


Decide = Callable[..., Any]


def poisoned(monkeypatch: pytest.MonkeyPatch, error: Callable[[], BaseException]) -> list[str]:
    """Plants a defect: deciding the poison raises; answers who has met it."""
    met: list[str] = []

    def decide(state: Any, command: Any, moment: Any) -> Any:
        if isinstance(command, c.Submitted) and POISON in str(command.op):
            met.append(command.id)
            raise error()
        return decide_module.decide(state, command, moment)

    monkeypatch.setattr(step, "decide", decide)
    return met


async def test_a_defect_ends_the_claim_aloud_and_after_three_workers_the_submission(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    met = poisoned(monkeypatch, lambda: TypeError("a bug"))
    session = await harness.session()
    bad = await harness.say(session, POISON)
    good = await harness.say(session, "hello")
    assert await harness.run(session) is Ended.HANDED_ON
    told = (await harness.until(session, "warning"))[-1]
    assert told.id == bad
    assert "TypeError: a bug" in told.msg["message"]
    assert "try 1 of 3" in told.msg["message"]
    assert await errors(harness, session) == [], "another version may know what to do with it"
    assert await harness.run(session) is Ended.HANDED_ON
    assert await harness.run(session) is Ended.PARKED
    (error,) = await errors(harness, session)
    assert "internal error: TypeError: a bug" in error
    assert met == [bad] * 3
    (begun,) = await harness.facts(session, "task")
    assert begun["id"] == good
    assert await harness.digest(session) == await harness.live_digest(session)


async def test_a_defect_while_a_command_runs_ends_it_with_its_proof_and_never_runs_it_again(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    met = poisoned(monkeypatch, lambda: AttributeError("no such thing"))
    session = await harness.session(on_user_input="steer")
    harness.models.will([calls("c1"), ends()])
    harness.tools.gates["c1"] = Gate()
    await harness.say(session, "hello", "first")
    runner = harness.runner(await harness.claimed(session))
    running = asyncio.create_task(runner.run())
    await harness.tools.began("c1").wait()
    await harness.say(session, POISON, "second")
    runner.notify()
    assert await running is Ended.HANDED_ON
    assert harness.tools.killed == ["c1"]
    ended = [await harness.run(session)]
    while ended[-1] is Ended.HANDED_ON:
        ended.append(await harness.run(session))
    assert ended[-1] is Ended.PARKED
    assert 2 <= len(ended) <= 4
    assert met
    assert harness.tools.started["c1"] == 1
    (error,) = await errors(harness, session)
    assert "no such thing" in error
    assert await harness.logged_events(session, "task_complete")


async def test_an_impossible_command_of_a_person_is_answered(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    poisoned(monkeypatch, lambda: decide_module.IllegalCommand("Submitted", "idle", "not now"))
    session = await harness.session()
    await harness.say(session, POISON)
    assert await harness.run(session) is Ended.PARKED
    (error,) = await errors(harness, session)
    assert "not now" in error


async def test_what_kills_every_worker_that_decides_it_is_passed_over_before_its_session_is_quarantined(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    met = poisoned(monkeypatch, asyncio.CancelledError)
    session = await harness.session()
    await harness.say(session, POISON, "bad")
    await harness.say(session, "hello", "good")
    for _ in range(3):
        # The process dies: nobody is there to give the claim back, and its lease runs out.
        with pytest.raises(asyncio.CancelledError):
            await harness.run(session)
        await harness.broker.command("ZADD", harness.broker.keys.pool(1, "harness")[1], 1, session)
    assert await harness.run(session) is Ended.PARKED
    assert len(met) == 3
    (error,) = await errors(harness, session)
    assert "3 workers in a row were lost" in error
    (begun,) = await harness.facts(session, "task")
    assert begun["id"] == "good"


@pytest.mark.parametrize("why", [RecursionError("too deep"), DamagedEntry("a tree's log", 7, ValueError())])
async def test_an_entry_that_cannot_be_read_is_told_of_in_its_turn(
    why: Exception, harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreadable(entry: Any) -> Any:
        if POISON.encode() in entry.payload:
            raise why
        return command_of(entry)

    monkeypatch.setattr(sq_entries, "command_of", unreadable)
    session = await harness.session()
    await harness.say(session, "hello", "good")
    await harness.say(session, POISON, "bad")
    while (ended := await harness.run(session)) is Ended.HANDED_ON:
        pass
    assert ended is Ended.PARKED
    (error,) = await errors(harness, session)
    assert f"{type(why).__name__}: {why}" in error
    (begun,) = await harness.facts(session, "task")
    assert begun["id"] == "good"


async def test_what_a_model_says_and_no_rule_can_take_fails_its_task_by_name(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    def decide(state: Any, command: Any, moment: Any) -> Any:
        if isinstance(command, c.ItemCompleted):
            raise TypeError("a bug")
        return decide_module.decide(state, command, moment)

    monkeypatch.setattr(step, "decide", decide)
    session = await harness.session()
    await harness.say(session)
    assert await harness.run(session) is Ended.PARKED
    (error,) = await errors(harness, session)
    assert "the model's answer could not be recorded: internal error: TypeError: a bug" in error
    assert len(harness.models.prompts) == 1, "it is not paid for twice"


async def test_response_whose_end_no_rule_can_take_counts_what_it_used(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    def decide(state: Any, command: Any, moment: Any) -> Any:
        if isinstance(command, c.ResponseCompleted):
            raise TypeError("a bug")
        return decide_module.decide(state, command, moment)

    monkeypatch.setattr(step, "decide", decide)
    session = await harness.session()
    await harness.say(session)
    assert await harness.run(session) is Ended.PARKED
    assert await harness.facts(session, "request_ended") == [
        {"kind": "request_ended", "n": 1, "outcome": "failed", "usage": USAGE}
    ]


async def test_an_output_that_no_commit_can_carry_is_replaced_by_a_word_about_it(harness: Harness) -> None:
    session = await harness.session()
    harness.models.will([calls("c1"), ends()])
    harness.tools.events["c1"] = BackgroundEvent.model_validate({"message": "x", "rows": ["y" * 200] * 6_000})
    await harness.say(session)
    assert await harness.run(session) is Ended.PARKED
    assert "its output could not be recorded: it is more than one step" in harness.models.outputs()["c1"]
    assert harness.tools.started["c1"] == 1


def test_letter_that_cannot_be_decided_is_named_by_its_key() -> None:
    letter = c.MailArrived("message", {}, "message:0:1:c1", 1, False)
    assert submission_of(letter) == "message:0:1:c1"
    assert submission_of(c.Submitted(SubmissionId("u1"), ops.Interrupt(), "client")) == "u1"
    assert submission_of(c.BeginRequest()) == ""
