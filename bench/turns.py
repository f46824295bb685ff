"""A user's turn from outside: submitted, watched to its end. What every bench of turns is made of."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, cast

from bench.lab import Fleet
from orchestrator.core.ids import SessionId
from orchestrator.protocol import ops
from orchestrator.protocol.ids import SubmissionId
from orchestrator.protocol.inputs import TextInput
from orchestrator.protocol.submission import Submission

PATIENCE_S = 60.0
_FAILURES = frozenset({"error", "stream_error", "turn_aborted"})


@dataclass(frozen=True, slots=True)
class Turn:
    """A turn on CLOCK_MONOTONIC, as its client saw it."""

    session: SessionId
    submitted: float
    completed: float
    commands: int
    """Commands that ran, each with exit code 0."""


async def take_turns(fleet: Fleet, session: SessionId, count: int, first: int = 0) -> list[Turn]:
    """`count` turns one after the other, each submitted when the client has seen the last one end.

    They are numbered from `first` on.
    """
    async with aclosing(cast(Any, fleet.client.follow(session))) as events:
        return [await _turn(fleet, session, f"turn-{n}", events) for n in range(first, first + count)]


async def submit_turn(
    fleet: Fleet, session: SessionId, name: str, text: str = "Say that you are done."
) -> None:
    """Submits a user's input under the id `name`."""
    op = ops.UserInput(items=(TextInput(text=text),))
    await fleet.client.submit(session, Submission(SubmissionId(name), op))


async def _turn(fleet: Fleet, session: SessionId, name: str, events: AsyncIterator[Any]) -> Turn:
    submitted, commands = time.monotonic(), 0
    await submit_turn(fleet, session, name)
    async with asyncio.timeout(PATIENCE_S):
        async for event in events:
            if event.id != name:
                continue
            if event.type in _FAILURES or event.msg.get("exit_code"):
                raise RuntimeError(f"{name} of {session} went wrong: {event.msg}")
            commands += event.type == "exec_command_end"
            if event.type == "task_complete":
                return Turn(session, submitted, time.monotonic(), commands)
    raise RuntimeError(f"the events of {session} ended")
