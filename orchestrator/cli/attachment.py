"""Being attached: an agent's events on one side, a person's lines on the other.

Whatever happens arrives in one queue and is handled one after the other. Nothing here ends
the agent: leaving leaves it as it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.broker.errors import UnknownSession
from orchestrator.broker.follow import EqCursor
from orchestrator.cli.conversation import View
from orchestrator.cli.faults import Fault, deleted
from orchestrator.cli.leaving import Left, ctrl_c
from orchestrator.cli.prompts import ANSWERS, QUESTION, reminder, scrolls
from orchestrator.cli.stdio import read_stdin
from orchestrator.core.ids import SessionId
from orchestrator.gateways.approvals import answer_op
from orchestrator.gateways.client import Client
from orchestrator.gateways.submit import new_submission_id
from orchestrator.protocol import ops
from orchestrator.protocol.ids import SubmissionId
from orchestrator.protocol.submission import Submission
from orchestrator.views.agents import Addressed
from orchestrator.views.approvals import open_requests_of
from orchestrator.views.event import Event
from orchestrator.views.messages import with_messages
from orchestrator.views.open_requests import OpenRequests
from orchestrator.wiring.opening import Opened

LINE_BYTES = 32 << 10
STOP = "/stop"
WORDS = f"{STOP} stops what it does, !TEXT stops it and says TEXT, //TEXT says /TEXT"


@dataclass(slots=True)
class Attachment:
    """One person beside one agent."""

    found: Opened
    target: Addressed
    view: View
    _open: OpenRequests = field(init=False)
    _news: asyncio.Queue[Event | str | None] = field(default_factory=asyncio.Queue)
    _client: Client | None = None

    def __post_init__(self) -> None:
        self._open = OpenRequests(self.target.session)

    @property
    def client(self) -> Client:
        if self._client is None:
            self._client = self.found.client()
        return self._client

    async def run(self) -> None:
        """Until the person leaves; raises `Fault` if the agent is deleted."""
        tree = self.target.tree
        for asked in await open_requests_of(self.found, tree):
            if self.target.session in (asked.session, SessionId(tree)):
                self._open.add(asked.named_request)
        if self._open.first is not None:
            self._put(self._open.first)
        with ctrl_c() as left:
            reading = (self._listen(left), self._read(left), self._handle(left))
            try:
                await asyncio.gather(*reading)
            except UnknownSession as error:
                raise Fault(deleted(self.target.session)) from error
        self.view.note("left; it works on")

    async def _listen(self, left: Left) -> None:
        heard = self.client.follow(self.target.session, EqCursor.at(self.target.head))
        events = with_messages(self.found, self.target.head, heard)
        while (event := await left.unless(_next(events))) is not None:
            self._news.put_nowait(event)

    async def _read(self, left: Left) -> None:
        """Lines as they are typed; the end of input is the wish to leave."""
        while not left.is_set():
            data = await left.unless(read_stdin(LINE_BYTES))
            if not data:
                self._news.put_nowait(None)
                return
            for line in data.decode("utf-8", "replace").splitlines():
                self._news.put_nowait(line.strip())

    async def _handle(self, left: Left) -> None:
        while not left.is_set():
            match await left.unless(self._news.get()):
                case None:
                    left.set()
                case Event() as event:
                    self._event(event)
                case str() as line if line:
                    await self._typed(line)

    # ── events ────────────────────────────────────────────────────────────────────────────────

    def _event(self, event: Event) -> None:
        self.view.event(event)
        before = self._open.first
        self._open.hear(event)
        after = self._open.first
        if after is not None and after is not before:
            self._put(after)
        elif after is not None and scrolls(event):
            self.view.note(f"{reminder(after)}\n{QUESTION}")

    def _put(self, request: Mapping[str, Any]) -> None:
        self.view.ask(request)
        self.view.note(QUESTION)

    # ── what is typed ─────────────────────────────────────────────────────────────────────────

    async def _typed(self, line: str) -> None:
        decision = ANSWERS.get(line.lower()) if self._open else None
        if decision is not None:
            await self._submit(self.target.session, answer_op(self._open.take_first(), decision))
            if self._open.first is not None:
                self._put(self._open.first)
        else:
            text, interrupt = (line[1:].strip(), True) if line.startswith("!") else (line, False)
            if text.startswith("/") and not text.startswith("//"):
                await self._word(text)
                return
            op = ops.MessageAgent(
                agent_id=self.target.agent_id, text=text.removeprefix("/"), interrupt=interrupt
            )
            await self._submit(self.target.root, op)

    async def _word(self, line: str) -> None:
        if line == STOP:
            await self._submit(self.target.session, ops.Interrupt())
        else:
            self.view.note(f"{line.split()[0]} means nothing here; {WORDS}")

    async def _submit(self, session: SessionId, op: ops.Op) -> None:
        await self.client.submit(session, Submission(SubmissionId(new_submission_id()), op))


async def _next(events: AsyncIterator[Event]) -> Event:
    return await anext(events)
