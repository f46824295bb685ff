"""People at the door of the sessions: they give errands, answer approvals, interrupt, and keep count.

Everything that was acknowledged is written down, and every event that they were shown:
that is what the audit holds the log against.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, cast

from orchestrator.core.ids import SessionId
from orchestrator.gateways.client import Client
from orchestrator.protocol import ops
from orchestrator.protocol.ids import SubmissionId
from orchestrator.protocol.submission import Submission
from orchestrator.views.event import Event
from tests.crash.workload import errand

DELTAS = frozenset(
    {
        "agent_message_delta",
        "agent_reasoning_delta",
        "exec_command_output_delta",
        "agent_reasoning_section_break",
        "mcp_startup_update",
        "mcp_startup_complete",
        "raw_response_item",  # of calls about agents: the conversation holds them
    }
)
OVER = frozenset({"task_complete", "turn_aborted"})


@dataclass(frozen=True, slots=True)
class Character:
    """How one session is used."""

    name: str
    policy: str = "never"
    mode: str = "danger-full-access"
    interrupts: float = 0.0
    """How likely a command's begin makes the person interrupt; half of the time by new input."""


CAST = (
    Character("plain"),
    Character("sandboxed", mode="workspace-write"),
    Character("asked", policy="untrusted"),
    Character("impatient", interrupts=0.25),
    Character("asked and sandboxed", policy="untrusted", mode="workspace-write", interrupts=0.1),
    Character("plain"),
)


@dataclass
class Person:
    """The user of a session."""

    client: Client
    session: SessionId
    character: Character
    random: Random
    acknowledged: dict[str, str] = field(default_factory=dict)
    """Submission id → the type of its op."""
    errands: Callable[[Random, int], str] = errand
    """The tasks that the person gives, by number."""
    last_words: str = ""
    """The person's task at the very end; empty is one more errand."""
    decided: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    """(session, call id) → the decisions that were given, one for each time that it was asked."""
    events: list[Event] = field(default_factory=list)
    _said: list[Submission] = field(default_factory=list)
    _open: set[str] = field(default_factory=set)
    _settled: asyncio.Condition = field(default_factory=asyncio.Condition)
    _number: int = 0

    async def live(self, enough: asyncio.Event) -> None:
        """Gives one errand after the other until it is enough."""
        while not enough.is_set():
            await self.errand()
        # The last one goes undisturbed: whatever was in doubt has been told to the model by its end.
        self.character = Character("calm", self.character.policy, self.character.mode)
        if self.last_words:
            await self.ask(self.last_words)
        else:
            await self.errand()

    async def errand(self) -> None:
        """Gives a task and waits for its end, with everything that came of it."""
        self._number += 1
        await self.ask(self.errands(self.random, self._number))

    async def ask(self, text: str) -> None:
        """Says something, and returns when all that was asked for is over."""
        await self.begin(_words(text))

    async def begin(self, op: Any) -> None:
        """Submits an op that begins a task, and returns when all that was asked for is over."""
        await self._begin(op)
        async with self._settled:
            await self._settled.wait_for(lambda: not self._open)

    async def until(self, type: str) -> Event:
        """The next event of this type."""
        seen = len(self.events)
        async with self._settled:
            await self._settled.wait_for(lambda: any(e.type == type for e in self.events[seen:]))
        return next(e for e in self.events[seen:] if e.type == type)

    async def _begin(self, op: Any) -> None:
        id = SubmissionId(f"in-{self._number}-{len(self.acknowledged)}")
        self._open.add(id)
        self._said.append(Submission(id, op))
        await self._submit(id, op)

    async def say_again(self) -> list[SubmissionId]:
        """Sends all that was ever said once more, under the same ids; answers which of it was lost."""
        answers = [(said.id, await self.client.submit(self.session, said)) for said in self._said]
        lost = [id for id, answer in answers if not answer.duplicate]
        self._open.update(lost)
        return lost

    async def _submit(self, id: SubmissionId, op: Any) -> None:
        submission = Submission(id, op)
        first = await self.client.submit(self.session, submission)
        self.acknowledged[id] = op.type
        if self.random.random() < 0.3:
            again = await self.client.submit(self.session, submission)
            assert again.duplicate
            assert again.sq_id == first.sq_id, f"{id} was queued twice"

    async def watch(self) -> None:
        """Follows the session's events, and reacts, for ever."""
        async for event in self.client.follow(self.session):
            if event.type not in DELTAS:
                self.events.append(event)
            await self._react(event)
            async with self._settled:
                self._settled.notify_all()

    async def _react(self, event: Event) -> None:
        match event.type:
            case "exec_approval_request":
                await self._decide(event.msg, ops.ExecApproval)
            case "apply_patch_approval_request":
                await self._decide(event.msg, ops.PatchApproval)
            case "exec_command_begin" if self.random.random() < self.character.interrupts:
                await self._disturb()
            case kind if kind in OVER:
                self._open.discard(event.id)

    async def _decide(self, asked: Any, op: Any) -> None:
        """Answers a request of the person's session, or of an agent below it, which says who it is."""
        decision = "denied" if self.random.random() < 0.2 else "approved"
        call = (asked.get("session_id", self.session), asked["call_id"])
        self.decided.setdefault(call, []).append(decision)
        who = {"agent_id": asked["agent_id"]} if "agent_id" in asked else {}
        await self._submit(
            SubmissionId(f"answer-{len(self.acknowledged)}"), op(id=call[1], decision=decision, **who)
        )

    async def _disturb(self) -> None:
        if self.random.random() < 0.5:
            await self._submit(SubmissionId(f"stop-{len(self.acknowledged)}"), ops.Interrupt())
        else:
            self._number += 1
            await self._begin(_words(self.errands(self.random, self._number)))


def _words(text: str) -> ops.UserInput:
    return ops.UserInput(items=cast(Any, ({"type": "text", "text": text},)))


@contextlib.asynccontextmanager
async def watching(people: list[Person]) -> Any:
    """The people follow their sessions inside; what ends a follower ends the block."""
    tasks = [asyncio.create_task(person.watch(), name=f"watch {person.session}") for person in people]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
