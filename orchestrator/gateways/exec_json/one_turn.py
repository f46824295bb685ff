"""A turn from its submission to its end, written as it happens.

What is written belongs to one turn alone: the one that the submission begins, or that it joins.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

import orjson

from orchestrator.broker.errors import UnknownSession
from orchestrator.broker.follow import EqCursor
from orchestrator.core.frozen import record
from orchestrator.core.ids import SessionId
from orchestrator.gateways.client import Client
from orchestrator.gateways.exec_json.writer import ExecWriter, Line
from orchestrator.gateways.submit import new_submission_id
from orchestrator.gateways.turns import Quarantined, Refused, TurnFollower
from orchestrator.protocol import ops
from orchestrator.protocol.ids import SubmissionId
from orchestrator.protocol.submission import Submission
from orchestrator.views.errors import SetAside
from orchestrator.views.event import Event
from orchestrator.views.turns import records as r
from orchestrator.views.turns.projector import Projector


@record
class Run:
    """A run's place: the session, the way out, and whether people are asked what it cannot decide."""

    client: Client
    session: SessionId
    write: Callable[[bytes], Awaitable[None]]
    say: Callable[[str], None]
    """Says something to a person, apart from the lines."""
    asks_people: bool = False


@dataclass(slots=True)
class OneTurn:
    """The turn of a run."""

    run: Run
    writer: ExecWriter
    id: str = field(default_factory=new_submission_id)
    _projector: Projector = field(init=False)
    _follower: TurnFollower = field(init=False)
    over: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self._projector = Projector(self.run.session)
        self._follower = TurnFollower(self.run.client, self.run.session, self.id)

    async def open(self, warnings: tuple[str, ...]) -> None:
        """Writes which thread it is, and what has no effect."""
        await self._write(self.writer.opened(self.run.session, warnings))

    def know(self, events: Iterable[Event]) -> None:
        """Takes the events of a turn that runs already, and that the submission may join."""
        for event in events:
            self._projector.receive(event)

    async def hold(self, op: ops.Op, cursor: EqCursor) -> bool:
        """Hands in the op and writes its turn; whether the turn completed.

        Raises the errors of `Client.submit`, `SetAside` if the session is quarantined, and `UnknownSession`
        if it is deleted meanwhile.
        """
        await self.run.client.submit(self.run.session, Submission(SubmissionId(self.id), op))
        try:
            async for event in self.run.client.follow(self.run.session, cursor):
                completed = await self._receive(event)
                if completed is not None:
                    return completed
        finally:
            self.over.set()
        raise UnknownSession(self.run.session)

    async def interrupt(self) -> None:
        """Asks for the end of the turn; returns when it has come."""
        op = ops.Interrupt()
        await self.run.client.submit(self.run.session, Submission(SubmissionId(new_submission_id()), op))
        await self.over.wait()

    async def _receive(self, event: Event) -> bool | None:
        joined = self._follower.joined
        end = await self._follower.receive(event)
        if self._follower.joined and not joined:
            await self._write(self.writer.joined())
        if isinstance(end, Refused):
            await self._write(self.writer.refused(end.message))
            return False
        completed = False
        for change in self._projector.receive(event):
            if isinstance(change, r.RequestOpened):
                await self._asked(change)
            if _turn_of(change) != self._follower.turn:
                continue
            await self._write(self.writer.receive(change))
            if isinstance(change, r.TurnCompleted):
                completed = change.turn.status is r.TurnStatus.COMPLETED
        if isinstance(end, Quarantined):
            raise SetAside(self.run.session)
        return None if end is None else completed

    async def _asked(self, opened: r.RequestOpened) -> None:
        """Refuses what needs a person, or says that a person is waited for."""
        if self.run.asks_people:
            self.run.say("waits for a person: dendro approvals")
            return
        op = opened.request.refused()
        await self.run.client.submit(self.run.session, Submission(SubmissionId(new_submission_id()), op))

    async def _write(self, lines: Iterable[Line]) -> None:
        for line in lines:
            await self.run.write(orjson.dumps(line) + b"\n")


def _turn_of(change: r.Change) -> str | None:
    match change:
        case r.TurnStarted(turn) | r.TurnCompleted(turn):
            return turn.id
        case r.StatusChanged() | r.NameChanged() | r.TurnsDropped() | r.QueueChanged():
            return None
        case _:
            return change.turn
