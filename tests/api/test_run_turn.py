"""A program that waits for a turn is told of its end, whatever the end is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count

import pytest

from orchestrator import Event, Turn, run_turn
from orchestrator.broker.errors import UnknownSession
from orchestrator.broker.follow import EqCursor
from orchestrator.broker.records import SessionHead
from orchestrator.core.decide.ops import MOST_QUEUED
from orchestrator.core.ids import SessionId, new_session_id
from orchestrator.gateways.submit import submit_op, under_its_id
from orchestrator.model.prompt import TextDelta
from orchestrator.model.provider_errors import FatalKind, FatalModelError
from orchestrator.protocol import ops
from orchestrator.protocol.inputs import TextInput
from orchestrator.protocol.scalars import Delivery
from orchestrator.terminal.faults import ExitCode
from orchestrator.terminal.live import LiveView
from orchestrator.terminal.watched_turn import Conversation, Seat
from orchestrator.views import SetAside
from tests.runtime.connections import Gate
from tests.runtime.harness import Harness, hasty_broker
from tests.runtime.players import ends, message
from tests.runtime.test_worker_claims import at_work


class Waiting:
    """A program that waits for a turn, and what it saw of it."""

    def __init__(self, harness: Harness, session: SessionId, delivery: Delivery) -> None:
        self.seen: asyncio.Queue[Event] = asyncio.Queue()
        self.turn = asyncio.create_task(
            run_turn(harness.client, session, "go", self.seen.put_nowait, delivery)
        )

    async def saw(self, type: str) -> Event:
        async with asyncio.timeout(30):
            while (event := await self.seen.get()).type != type:
                pass
        return event

    async def ended(self) -> Turn:
        async with asyncio.timeout(30):
            return await self.turn


@asynccontextmanager
async def waiting(
    harness: Harness, session: SessionId, delivery: Delivery = Delivery.QUEUE
) -> AsyncIterator[Waiting]:
    program = Waiting(harness, session, delivery)
    try:
        yield program
    finally:
        program.turn.cancel()
        await asyncio.gather(program.turn, return_exceptions=True)


@asynccontextmanager
async def beside_a_turn(harness: Harness) -> AsyncIterator[tuple[SessionId, str, Gate]]:
    """A session at work: its id, that of its turn, and what the model waits for."""
    session, gate = await harness.session(), Gate()
    harness.models.will([TextDelta("Hel"), gate, message("Hello."), ends()], [message("Mine."), ends()])
    async with at_work(harness.worker()):
        turn = await harness.say(session)
        await harness.until(session, "agent_message_delta")
        yield session, turn, gate


async def test_turn_of_a_session_at_rest_has_its_answer(harness: Harness) -> None:
    session = await harness.session()
    harness.models.will([message("Done."), ends()])
    async with at_work(harness.worker()), waiting(harness, session) as program:
        turn = await program.ended()
    assert (turn.answer, turn.status, turn.error) == ("Done.", "completed", "")


async def test_turn_that_the_model_failed_has_the_error(harness: Harness) -> None:
    session = await harness.session()
    harness.models.will([FatalModelError(FatalKind.BAD_REQUEST, "no such model", "bad_request")])
    async with at_work(harness.worker()), waiting(harness, session) as program:
        turn = await program.ended()
    assert turn.answer is None
    assert "no such model" in turn.error


async def test_prompt_waits_for_a_turn_of_its_own_behind_the_one_that_runs(harness: Harness) -> None:
    async with beside_a_turn(harness) as (session, other, gate), waiting(harness, session) as program:
        accepted = await program.saw("input_accepted")
        gate.open()
        turn = await program.ended()
    assert (turn.id, turn.answer) == (accepted.id, "Mine.")
    assert turn.id != other


async def test_prompt_that_joins_a_turn_ends_with_it(harness: Harness) -> None:
    async with (
        beside_a_turn(harness) as (session, other, gate),
        waiting(harness, session, Delivery.STEER) as program,
    ):
        await program.saw("input_accepted")
        gate.open()
        turn = await program.ended()
    assert (turn.id, turn.answer, turn.status) == (other, "Mine.", "completed")


async def test_turn_that_was_joined_and_interrupted_is_aborted(harness: Harness) -> None:
    async with (
        beside_a_turn(harness) as (session, other, _),
        waiting(harness, session, Delivery.STEER) as program,
    ):
        await program.saw("input_accepted")
        await harness.submit(session, ops.Interrupt())
        turn = await program.ended()
    assert (turn.id, turn.answer, turn.status, turn.aborted) == (other, None, "aborted", "interrupted")


async def terminal_behind(harness: Harness, session: SessionId, delivery: Delivery) -> Conversation:
    """A terminal that has handed in a prompt, as `dendro run` does."""
    talk = Conversation(Seat(harness.client, session, LiveView(), interactive=False), None)
    talk.task_id = await talk.submit(ops.UserInput(items=(TextInput(text="go"),), delivery=delivery))
    return talk


async def test_terminal_whose_prompt_joins_a_turn_ends_with_it(harness: Harness) -> None:
    async with beside_a_turn(harness) as (session, _, gate):
        at = EqCursor.at(await head_of(harness, session))
        talk = await terminal_behind(harness, session, Delivery.STEER)
        await harness.until(session, "input_accepted")
        gate.open()
        async with asyncio.timeout(30):
            assert await talk.run(at, None) is ExitCode.DONE


async def test_terminal_whose_prompt_was_taken_out_of_the_queue_fails(harness: Harness) -> None:
    async with beside_a_turn(harness) as (session, _, gate):
        at = EqCursor.at(await head_of(harness, session))
        talk = await terminal_behind(harness, session, Delivery.QUEUE)
        await harness.submit(session, ops.RemoveQueued(submission_id=str(talk.task_id)))
        async with asyncio.timeout(30):
            assert await talk.run(at, None) is ExitCode.FAILED
        gate.open()


async def test_prompt_that_was_taken_out_of_the_queue_has_no_turn(harness: Harness) -> None:
    async with beside_a_turn(harness) as (session, _, gate), waiting(harness, session) as program:
        accepted = await program.saw("input_accepted")
        await harness.submit(session, ops.RemoveQueued(submission_id=accepted.id))
        turn = await program.ended()
        gate.open()
    assert (turn.id, turn.status, turn.answer) == (accepted.id, "refused", None)
    assert "taken out of the queue" in turn.error


async def test_prompt_that_is_refused_has_no_turn(harness: Harness) -> None:
    async with beside_a_turn(harness) as (session, _, gate):
        for _ in range(MOST_QUEUED):
            op = ops.UserInput(items=(TextInput(text="more"),), delivery=Delivery.QUEUE)
            await harness.submit(session, op)
        async with waiting(harness, session) as program:
            turn = await program.ended()
        gate.open()
    assert (turn.status, turn.answer) == ("refused", None)
    assert f"{MOST_QUEUED} inputs wait" in turn.error


async def test_program_is_told_that_its_session_is_quarantined_meanwhile_or_was_before(
    harness: Harness,
) -> None:
    session = await harness.session()
    async with waiting(harness, session) as program, hasty_broker(harness.url) as broker:
        while not (await head_of(harness, session)).sq_tip:
            await asyncio.sleep(0)
        claims = count()
        while not (await head_of(harness, session)).quarantined:
            await broker.claims.claim_session(session, "w", f"c{next(claims)}")
        with pytest.raises(SetAside, match="quarantined"):
            await program.ended()
    with pytest.raises(SetAside, match="quarantined"):
        await run_turn(harness.client, session, "go")


async def test_turn_goes_on_with_another_worker_when_its_session_was_revoked(harness: Harness) -> None:
    async with beside_a_turn(harness) as (session, _, gate), waiting(harness, session) as program:
        await program.saw("input_accepted")
        await harness.broker.trees.revoke(session)
        gate.open()
        turn = await program.ended()
    assert turn.status in {"completed", "aborted"}


@pytest.mark.slow
async def test_program_is_told_that_its_session_was_deleted(harness: Harness) -> None:
    session = await harness.session()
    async with waiting(harness, session) as program:
        while not (await head_of(harness, session)).sq_tip:
            await asyncio.sleep(0)
        # A follower looks again when nothing has come for five seconds.
        await harness.broker.command("DEL", harness.broker.keys.session(session))
        with pytest.raises(UnknownSession):
            await program.ended()
    with pytest.raises(UnknownSession):
        await run_turn(harness.client, session, "go")


async def head_of(harness: Harness, session: SessionId) -> SessionHead:
    head = await harness.broker.logs.head(session)
    assert head is not None
    return head


async def test_op_for_a_session_that_is_gone_is_refused_by_its_name(harness: Harness) -> None:
    session = new_session_id(1, 1, 1)
    with pytest.raises(UnknownSession, match=session):
        await submit_op(harness.client, session, ops.Interrupt(), under_its_id)
