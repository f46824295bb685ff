"""A submission that cannot be decided or committed ends with an `error`, and its session lives on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import orjson
import pytest

from orchestrator.broker.records import Submit
from orchestrator.core import commands as c
from orchestrator.core import decide as decide_module
from orchestrator.core.ids import SessionId
from orchestrator.protocol import bounds, ops
from orchestrator.protocol.events import BackgroundEvent
from orchestrator.protocol.ids import SubmissionId
from orchestrator.protocol.submission import MalformedSubmission
from orchestrator.runtime import arrivals
from orchestrator.runtime import runner as runners
from orchestrator.runtime.defects import submission_of
from orchestrator.runtime.intake import command_of
from orchestrator.runtime.runner import Ended
from tests.runtime.players import USAGE, calls, ends
from tests.runtime.stage import Stage
from tests.runtime.test_worker_claims import at_work
from tests.runtime.wires import Gate

POISON = "poison"


async def thrown_in(stage: Stage, session: SessionId, op: dict[str, Any], id: str = "bad") -> str:
    """Puts a submission into the queue as a client of an earlier version did: past the door."""
    line = orjson.dumps({"id": id, "op": op})
    await stage.broker.submit(Submit(session, "old-client", id, line))
    return id


def said(text: str = "go", **fields: Any) -> dict[str, Any]:
    return {"type": "user_input", "items": [{"type": "text", "text": text}], **fields}


async def errors(stage: Stage, session: SessionId) -> list[str]:
    return [event["message"] for event in await stage.logged_events(session, "error")]


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
async def test_a_submission_accepted_by_an_earlier_version_becomes_an_error(stage: Stage, name: str) -> None:
    session = await stage.session()
    await thrown_in(stage, session, *BRICKS[name])
    assert await stage.run(session) is Ended.PARKED
    (told,) = await errors(stage, session)
    assert "at most" in told
    await stage.say(session)
    assert await stage.run(session) is Ended.PARKED
    assert len(await stage.logged_events(session, "task_complete")) == 1


async def test_a_session_that_such_a_submission_had_set_aside_goes_on_once_it_is_readmitted(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await stage.session()
    await thrown_in(stage, session, *BRICKS["a schema of 2 MB"])
    for _ in range(4):
        # An earlier version: its claim ran out each time.
        claimed = await stage.claimed(session)
        await stage.broker.command("ZADD", stage.broker.keys.pool(1, "stage")[1], 1, session)
        assert claimed.claims_without_progress
    assert await stage.ports.broker.claim_session(session, "w5", "c5") is None
    head = await stage.broker.head(session)
    assert head is not None
    assert head.quarantined
    await stage.broker.revoke(session)
    async with at_work(stage.worker()):
        await stage.until(session, "error")
        await stage.say(session)
        await stage.until(session, "task_complete")


async def test_the_door_refuses_what_holds_more_than_it_may(stage: Stage) -> None:
    session = await stage.session()
    with pytest.raises(MalformedSubmission, match=r"op\.model: at most 1,024 bytes"):
        await stage.submit(session, ops.OverrideTurnContext(model="m" * 70_000))
    head = await stage.broker.head(session)
    assert head is not None
    assert head.sq_tip == head.cursor


async def test_a_session_is_not_created_with_settings_that_no_operation_could_set(stage: Stage) -> None:
    with pytest.raises(MalformedSubmission, match=r"op\.base_instructions: at most 1,048,576 bytes"):
        await stage.session(base_instructions="x" * (2 << 20))


async def test_long_instructions_reach_the_model_whole(stage: Stage) -> None:
    """Instructions stand beside the log; the first entries must not refer to what nobody has stored."""
    instructions = "Be careful. " * 20_000
    session = await stage.session(base_instructions=instructions)
    await stage.say(session)
    assert await stage.run(session) is Ended.PARKED
    assert stage.models.prompts[-1].instructions == instructions
    changed = "Be quick. " * 20_000
    await stage.submit(session, ops.ConfigureSession(base_instructions=changed))
    await stage.say(session)
    assert await stage.run(session) is Ended.PARKED
    assert stage.models.prompts[-1].instructions == changed


def unbounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raises the bounds of JSON: a step that does not fit into a commit is met all the same."""
    monkeypatch.setattr(bounds, "JSON", dict.fromkeys(bounds.JSON, 8 << 20))


async def test_a_step_that_is_too_large_becomes_an_error_at_once_and_its_neighbours_are_done(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    unbounded(monkeypatch)
    session = await stage.session(on_user_input="steer")
    await stage.submit(session, ops.GetPath(), "before")
    await thrown_in(stage, session, *BRICKS["a schema of 2 MB"])
    await stage.say(session, "hello", "after")
    assert await stage.run(session) is Ended.PARKED
    (told,) = await errors(stage, session)
    assert "more than one step can record" in told
    assert await stage.logged_events(session, "conversation_path")
    assert "hello" in str(stage.models.prompts[-1].input)
    assert await stage.digest(session) == await stage.live_digest(session)


Decide = Callable[..., Any]


def poisoned(monkeypatch: pytest.MonkeyPatch, error: Callable[[], BaseException]) -> list[str]:
    """Plants a defect: deciding the poison raises; answers who has met it."""
    met: list[str] = []

    def decide(state: Any, command: Any, moment: Any) -> Any:
        if isinstance(command, c.Submitted) and POISON in str(command.op):
            met.append(command.id)
            raise error()
        return decide_module.decide(state, command, moment)

    monkeypatch.setattr(runners, "decide", decide)
    return met


async def test_a_defect_ends_the_claim_aloud_and_after_three_workers_the_submission(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    met = poisoned(monkeypatch, lambda: TypeError("a bug"))
    session = await stage.session()
    bad = await stage.say(session, POISON)
    good = await stage.say(session, "hello")
    assert await stage.run(session) is Ended.HANDED_ON
    told = (await stage.until(session, "warning"))[-1]
    assert told.id == bad
    assert "TypeError: a bug" in told.msg["message"]
    assert "try 1 of 3" in told.msg["message"]
    assert await errors(stage, session) == [], "another version may know what to do with it"
    assert await stage.run(session) is Ended.HANDED_ON
    assert await stage.run(session) is Ended.PARKED
    (error,) = await errors(stage, session)
    assert "internal error: TypeError: a bug" in error
    assert met == [bad] * 3
    (begun,) = await stage.facts(session, "task")
    assert begun["id"] == good
    assert await stage.digest(session) == await stage.live_digest(session)


async def test_a_defect_while_a_command_runs_ends_it_with_its_proof_and_never_runs_it_again(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    met = poisoned(monkeypatch, lambda: AttributeError("no such thing"))
    session = await stage.session(on_user_input="steer")
    stage.models.will([calls("c1"), ends()])
    stage.tools.gates["c1"] = Gate()
    await stage.say(session, "hello", "first")
    runner = stage.runner(await stage.claimed(session))
    running = asyncio.create_task(runner.run())
    await stage.tools.began("c1").wait()
    await stage.say(session, POISON, "second")
    runner.poke()
    assert await running is Ended.HANDED_ON
    assert stage.tools.killed == ["c1"]
    ended = [await stage.run(session)]
    while ended[-1] is Ended.HANDED_ON:
        ended.append(await stage.run(session))
    assert ended[-1] is Ended.PARKED
    assert 2 <= len(ended) <= 4
    assert met
    assert stage.tools.started["c1"] == 1
    (error,) = await errors(stage, session)
    assert "no such thing" in error
    assert await stage.logged_events(session, "task_complete")


async def test_an_impossible_command_of_a_person_is_answered(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    poisoned(monkeypatch, lambda: decide_module.IllegalCommand("Submitted", "idle", "not now"))
    session = await stage.session()
    await stage.say(session, POISON)
    assert await stage.run(session) is Ended.PARKED
    (error,) = await errors(stage, session)
    assert "not now" in error


async def test_what_kills_every_worker_that_decides_it_is_passed_over_before_its_session_is_set_aside(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    met = poisoned(monkeypatch, asyncio.CancelledError)
    session = await stage.session()
    await stage.say(session, POISON, "bad")
    await stage.say(session, "hello", "good")
    for _ in range(3):
        # The process dies: nobody is there to give the claim back, and its lease runs out.
        with pytest.raises(asyncio.CancelledError):
            await stage.run(session)
        await stage.broker.command("ZADD", stage.broker.keys.pool(1, "stage")[1], 1, session)
    assert await stage.run(session) is Ended.PARKED
    assert len(met) == 3
    (error,) = await errors(stage, session)
    assert "3 workers in a row were lost" in error
    (begun,) = await stage.facts(session, "task")
    assert begun["id"] == "good"


async def test_an_entry_that_cannot_be_read_is_told_of_in_its_turn(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreadable(entry: Any) -> Any:
        if POISON.encode() in entry.payload:
            raise RecursionError("too deep")
        return command_of(entry)

    monkeypatch.setattr(arrivals, "command_of", unreadable)
    session = await stage.session()
    await stage.say(session, "hello", "good")
    await stage.say(session, POISON, "bad")
    while (ended := await stage.run(session)) is Ended.HANDED_ON:
        pass
    assert ended is Ended.PARKED
    (error,) = await errors(stage, session)
    assert "RecursionError: too deep" in error
    (begun,) = await stage.facts(session, "task")
    assert begun["id"] == "good"


async def test_what_a_model_says_and_no_rule_can_take_fails_its_task_by_name(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def decide(state: Any, command: Any, moment: Any) -> Any:
        if isinstance(command, c.ItemCompleted):
            raise TypeError("a bug")
        return decide_module.decide(state, command, moment)

    monkeypatch.setattr(runners, "decide", decide)
    session = await stage.session()
    await stage.say(session)
    assert await stage.run(session) is Ended.PARKED
    (error,) = await errors(stage, session)
    assert "the model's answer could not be recorded: internal error: TypeError: a bug" in error
    assert len(stage.models.prompts) == 1, "it is not paid for twice"


async def test_response_whose_end_no_rule_can_take_counts_what_it_used(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def decide(state: Any, command: Any, moment: Any) -> Any:
        if isinstance(command, c.ResponseCompleted):
            raise TypeError("a bug")
        return decide_module.decide(state, command, moment)

    monkeypatch.setattr(runners, "decide", decide)
    session = await stage.session()
    await stage.say(session)
    assert await stage.run(session) is Ended.PARKED
    assert await stage.facts(session, "request_ended") == [
        {"kind": "request_ended", "n": 1, "outcome": "failed", "usage": USAGE}
    ]


async def test_an_output_that_no_commit_can_carry_is_replaced_by_a_word_about_it(stage: Stage) -> None:
    session = await stage.session()
    stage.models.will([calls("c1"), ends()])
    stage.tools.events["c1"] = BackgroundEvent.model_validate({"message": "x", "rows": ["y" * 200] * 6_000})
    await stage.say(session)
    assert await stage.run(session) is Ended.PARKED
    assert "its output could not be recorded: it is more than one step" in stage.models.outputs()["c1"]
    assert stage.tools.started["c1"] == 1


def test_letter_that_cannot_be_decided_is_named_by_its_key() -> None:
    letter = c.MailArrived("message", {}, "message:0:1:c1", 1, False)
    assert submission_of(letter) == "message:0:1:c1"
    assert submission_of(c.Submitted(SubmissionId("u1"), ops.Interrupt(), "client")) == "u1"
    assert submission_of(c.BeginRequest()) == ""
