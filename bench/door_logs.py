"""Clients that come back: to a long thread, and behind many events that they have missed."""

from __future__ import annotations

import time

from bench.door_clients import Served, caller
from bench.figures import Figure, at_most, spread
from bench.lab import Fleet
from bench.scripted import Hand, user_input, whole_turn
from bench.shares import POOL, position_of
from orchestrator.broker.follow import EqCursor
from orchestrator.broker.records import SessionHead, Submit
from orchestrator.core.ids import SessionId
from orchestrator.gateways.sq_eq import number_of

LENGTH, QUICK_LENGTH = 100_000, 5_000
MISSED, QUICK_MISSED = 10_000, 1_000
TIMES = 10


async def logs(running: Fleet, served: Served, quick: bool) -> list[Figure]:
    """A long session of turns with a command each, which rests; nobody runs it."""
    length, missed = (QUICK_LENGTH, QUICK_MISSED) if quick else (LENGTH, MISSED)
    session = await running.session(pool=POOL)
    await _lived(running, session, length)
    head = await running.client.head(session)
    assert head is not None
    with_turns = await _resumed(served, session, f"`thread/resume` of {length:,} entries")
    without = await _resumed(served, session, "&emsp;without turns", excludeTurns=True)
    return [with_turns, without, *await _missed(running, served, head, missed)]


async def _lived(running: Fleet, session: SessionId, length: int) -> None:
    broker = running.opened.broker
    await broker.commits.submit(Submit(session, "script", "go", user_input(0)))
    hand = await Hand.take(broker, session)
    position, number = await position_of(running, session), 0
    while position.seq < length:
        for step in whole_turn(position, hand.epoch, number):
            await hand.commit(step)
            position = step.position
        number += 1


async def _resumed(served: Served, session: SessionId, name: str, **params: bool) -> Figure:
    took, turns = [], 0
    for _ in range(TIMES):
        async with caller(served) as client:
            began = time.monotonic()
            answer = await client.call("thread/resume", threadId=session, **params)
            took.append(time.monotonic() - began)
            turns = len(answer["thread"]["turns"])
    note = f"{turns:,} turns are answered, with their items; a new connection each time"
    return spread(name, took, at_most(150), note)


async def _missed(running: Fleet, served: Served, head: SessionHead, missed: int) -> list[Figure]:
    """From the connection to the last event: from the event queue, then from the log alone."""
    broker = running.opened.broker
    (place,) = await broker.logs.read_eq(head.session, head.eq_n - missed - 1, 1)
    last = number_of(EqCursor(place.n, place.seq, place.hash8))
    queued = [await _caught_up(served, head, last, missed) for _ in range(TIMES)]
    await broker.command("DEL", broker.keys.eq(head.session))
    # One line more: the warning of the gap.
    logged = [await _caught_up(served, head, last, missed + 1) for _ in range(TIMES)]
    note = f"a connection of lines with `last_event`; {TIMES} of them, one after the other"
    return [
        spread(f"{missed:,} missed events, in the event queue", queued, at_most(1_000), note),
        spread(f"{missed:,} missed events, in the log alone", logged, at_most(1_000), note),
    ]


async def _caught_up(served: Served, head: SessionHead, last: int, lines: int) -> float:
    began = time.monotonic()
    reader = await served.lines(head.session, last)
    for _ in range(lines):
        await reader.readline()
    return time.monotonic() - began
