"""A conversation beside an agent that works, as `dendro attach`: leaving leaves the agent as it is."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field

from orchestrator.broker.errors import UnknownSession
from orchestrator.broker.follow import EqCursor
from orchestrator.core.ids import SessionId
from orchestrator.core.tree import ROOT
from orchestrator.gateways.client import Client
from orchestrator.gateways.submit import new_submission_id
from orchestrator.protocol import ops
from orchestrator.protocol.ids import SubmissionId
from orchestrator.protocol.submission import Submission
from orchestrator.requests import Request
from orchestrator.terminal.chat import STOP, WOULD_STOP, is_word
from orchestrator.terminal.faults import Fault, deleted
from orchestrator.terminal.live import reminder
from orchestrator.terminal.streams import STDIN, Echo, Left, ctrl_c, read_stdin
from orchestrator.terminal.text import one_line
from orchestrator.terminal.watched_turn import (
    NOT_SENT,
    TYPED_IN_VAIN,
    Prompt,
    Typed,
    View,
    scrolls,
    who_goes_on,
)
from orchestrator.views.agent_past import with_messages
from orchestrator.views.approvals import open_requests_of
from orchestrator.views.asked_requests import OpenRequests
from orchestrator.views.event import Event
from orchestrator.views.find import Addressed
from orchestrator.wiring.open_deployment import Opened

MOST_TYPED = 32 << 10
MOST_LINE = 1 << 20
TO_AN_AGENT = f"{STOP} stops what it does, {STOP} TEXT stops it and says TEXT, //TEXT says /TEXT"
COMMANDS_AT_ROOT = "!COMMAND runs in the root of the tree alone: dendro run --resume, or attach to agent 0"


@dataclass(slots=True)
class Attachment:
    """A person attached to an agent."""

    found: Opened
    target: Addressed
    view: View
    _open: OpenRequests = field(init=False)
    _news: asyncio.Queue[Event | Typed | None] = field(default_factory=asyncio.Queue)
    _client: Client | None = None
    _prompt: Prompt | None = None
    _echo: Echo = field(default_factory=Echo)

    def __post_init__(self) -> None:
        self._open = OpenRequests(self.target.session)

    @property
    def client(self) -> Client:
        if self._client is None:
            self._client = self.found.client(via="terminal")
        return self._client

    async def run(self) -> None:
        """Runs until the person leaves; raises `Fault` if the agent is deleted."""
        tree = self.target.tree
        for asked in await open_requests_of(self.found, tree):
            if self.target.session not in (asked.session, SessionId(tree)):
                continue
            if asked.request.answered_by == "program":
                self.view.note(one_line(f"waiting for a program: {asked.subject}"))
            else:
                self._open.add(asked.named_request)
        if self._open.first is not None:
            self._put(self._open.first)
        with ctrl_c() as left:
            reading = (self._listen(left), self._read(left), self._handle(left))
            try:
                await asyncio.gather(*reading)
            except UnknownSession as error:
                raise Fault(deleted(self.target.session)) from error
            finally:
                self._echo.set(hides=False)
        self.view.note(f"left{await self._goes_on()}")

    async def _goes_on(self) -> str:
        head = await self.client.head(self.target.session)
        if head is None or head.let_go:
            return ""
        if head.parked:
            return "; it waits as it did"
        return f"; {await who_goes_on(self.found, self.target.session, None)}"

    async def _listen(self, left: Left) -> None:
        heard = self.client.follow(self.target.session, EqCursor.at(self.target.head))
        events = with_messages(self.found, self.target.head, heard)
        while (event := await left.unless(_next(events))) is not None:
            self._news.put_nowait(event)

    async def _read(self, left: Left) -> None:
        """Lines as they are typed; the end of input is the wish to leave."""
        lines = _Lines(os.isatty(STDIN))
        while not left.is_set():
            data = await left.unless(read_stdin(MOST_TYPED))
            for line in lines.feed(data or b""):
                if line is None:
                    self.view.note(
                        f"a line of more than {MOST_LINE:,} bytes is nothing to say: it was not sent"
                    )
                    continue
                typed = line.decode("utf-8", "replace").strip()
                self._news.put_nowait(Typed(typed, self._echo.hid_a_line()))
            if not data:
                self._news.put_nowait(None)
                return

    async def _handle(self, left: Left) -> None:
        while not left.is_set():
            match await left.unless(self._news.get()):
                case None:
                    left.set()
                case Event() as event:
                    self._event(event)
                case Typed(str() as line, hidden):
                    await self._typed(line, hidden=hidden)

    # ── events ────────────────────────────────────────────────────────────────────────────────

    def _event(self, event: Event) -> None:
        self.view.event(event)
        before = self._open.first
        self._open.receive(event)
        after = self._open.first
        if after is not None and after is not before:
            if before is not None:
                self._asking(after).comes_instead()
            self._put(after)
        elif after is None and before is not None:
            self._asking(before).was_settled()
        elif after is not None and scrolls(event):
            self.view.note(f"{reminder(after)}\n{self._asking(after).text}")
        self._hide()

    def _put(self, request: Request) -> None:
        self._asking(request).was_shown(self.view.ask(request))
        self.view.note(self._asking(request).text)
        self._hide()

    def _hide(self) -> None:
        """From here on the terminal shows what is typed, unless a secret is asked for."""
        request = self._open.first
        self._echo.set(hides=request is not None and self._asking(request).hides)

    def _asking(self, request: Request) -> Prompt:
        """The prompt of a request, with what was answered of it so far."""
        if self._prompt is None or self._prompt.request is not request:
            self._prompt = Prompt(request)
        return self._prompt

    # ── what is typed ─────────────────────────────────────────────────────────────────────────

    async def _typed(self, line: str, *, hidden: bool) -> None:
        request = self._open.first
        if hidden and line and not (request is not None and self._asking(request).hides):
            # Somebody else has answered while it was typed: nobody else may read it.
            self.view.note(TYPED_IN_VAIN)
        elif request is not None and self._asking(request).answers(line):
            # An empty line, too: it leaves a question out that may be left.
            await self._take(self._asking(request), line)
        elif line and request is None and self._prompt is not None and self._prompt.was_meant(line):
            self.view.note(NOT_SENT)
        elif line:
            await self._say(line)

    async def _say(self, line: str) -> None:
        """Executes a line that answers no request."""
        word, _, rest = line.partition(" ")
        if line.startswith("!"):
            await self._run_command(line[1:].strip())
        elif is_word(line) and not (word == STOP and rest.strip()):
            await self._word(line)
        else:
            text, interrupt = (rest.strip(), True) if word == STOP else (line.removeprefix("/"), False)
            op = ops.MessageAgent(agent_id=self.target.agent_id, text=text, interrupt=interrupt)
            await self._submit(self.target.root, op)

    async def _run_command(self, command: str) -> None:
        head = await self.client.head(self.target.session)
        if self.target.agent_id != ROOT:
            self.view.note(COMMANDS_AT_ROOT)
        elif head is not None and not head.at_rest:
            self.view.note(WOULD_STOP)
        elif command:
            await self._submit(self.target.session, ops.RunUserShellCommand(command=command))

    async def _take(self, prompt: Prompt, line: str) -> None:
        """Takes a line that is for the open request."""
        op = prompt.take(line)
        if op is None:
            self.view.note(f"{prompt.fault}\n{prompt.text}".lstrip())
            self._hide()
            return
        self._open.take_first()
        self._hide()
        await self._submit(self.target.session, op)
        if self._open.first is not None:
            self._put(self._open.first)

    async def _word(self, line: str) -> None:
        if line == STOP:
            await self._submit(self.target.session, ops.Interrupt())
        else:
            self.view.note(f"{line.split()[0]} means nothing here; {TO_AN_AGENT}")

    async def _submit(self, session: SessionId, op: ops.Op) -> None:
        await self.client.submit(session, Submission(SubmissionId(new_submission_id()), op))


class _Lines:
    """The lines of what is read: a terminal gives whole ones, a pipe as much as was written, or fits.

    Cut as bytes: a text has more ends of lines than a keyboard, and what is pasted may hold them.
    """

    def __init__(self, whole: bool) -> None:
        self._whole = whole
        self._begun = b""
        self._too_long = False

    def feed(self, data: bytes) -> Iterator[bytes | None]:
        """The lines that these bytes end, all of them at the end of input; None for one that is too long."""
        done, newline, begun = (self._begun + data).rpartition(b"\n")
        if self._whole or not data:
            done, newline, begun = done + newline + begun, b"", b""
        self._begun = begun
        for line in (done + newline).splitlines():
            if not self._too_long:
                yield line
            self._too_long = False
        if len(self._begun) > MOST_LINE:
            if not self._too_long:
                yield None
            self._begun, self._too_long = b"", True


async def _next(events: AsyncIterator[Event]) -> Event:
    return await anext(events)
