"""Arrivals of a claimed session: the entries of its SQ, and the results of its effects.

All of them wait in one inbox, in the order of arrival, with what a decision needs to know of other agents
already looked up. This module does not know what an arrival means, nor whether the step that decides it is
committed; only how far the SQ was read and decided.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial

from orchestrator.broker.errors import BrokerError
from orchestrator.broker.records import START, SqEntry
from orchestrator.core import commands as c
from orchestrator.core.decide.draft import Note
from orchestrator.core.frozen import replace
from orchestrator.core.ids import SessionId
from orchestrator.core.settings import NO_HISTORY
from orchestrator.core.timers import REAP_BELOW_TIMER, REAP_TIMER
from orchestrator.protocol.ops import (
    CancelAgent,
    ConfigureSession,
    MessageAgent,
    OverrideTurnContext,
    ResolveElicitation,
    UserTurn,
)
from orchestrator.runtime.bisect import Arrival
from orchestrator.runtime.input_files import with_files
from orchestrator.runtime.intake import Unreadable
from orchestrator.runtime.lookups import NOISE_BYTES
from orchestrator.runtime.reaper import taken_at_once
from orchestrator.runtime.runner_context import RunnerContext
from orchestrator.runtime.secrets import with_texts
from orchestrator.runtime.trees import TreeLookups

SQ_PAGE = 100


class Arrivals:
    """The arrivals of one session that are not decided yet, and the signal that there are more."""

    def __init__(self, context: RunnerContext) -> None:
        claimed = context.claimed
        self.inbox: deque[Arrival] = deque()
        self.unread = claimed.sq_tip != claimed.cursor
        """Whether the SQ may hold entries that were not read."""
        self.cursor = claimed.cursor
        """The place of the SQ entry decided last; the log has consumed it once that step is committed."""
        self.resting = False
        """Whether the runner waits for news, so that no step is under way."""
        self._context = context
        self._read_to = claimed.cursor
        self._wake = asyncio.Event()

    def __bool__(self) -> bool:
        """Whether anything is left to read or to decide."""
        return bool(self.inbox) or self.unread

    # ── what is told ──────────────────────────────────────────────────────────────────────────

    def notify(self, tip: str | None) -> None:
        """Notes that the SQ may hold news; `tip`, if known, is its last entry."""
        if tip is None or self._is_news(tip):
            self.unread = True
            self.wake()

    def tip_is(self, tip: str) -> None:
        """Notes the SQ's tip that a commit saw; the runner, in a step, looks again without being woken."""
        self.unread = self.unread or self._is_news(tip)

    def push(self, command: c.Command) -> None:
        """Adds the result of an effect."""
        self.add((command, None))

    def add(self, arrival: Arrival) -> None:
        self.inbox.append(arrival)
        self.wake()

    def wake(self) -> None:
        self._wake.set()

    async def news(self) -> None:
        """Returns when an arrival, or a sign of one, has come since the last time."""
        self.resting = True
        await self._wake.wait()
        self._wake.clear()
        self.resting = False

    # ── the SQ ────────────────────────────────────────────────────────────────────────────────

    async def accept_first(self) -> None:
        """Takes the entries that came with the claim."""
        first = self._context.claimed.first
        await self._accept(first)
        if not self._is_news(self._context.claimed.sq_tip):
            self.unread = False

    async def read(self) -> None:
        """Reads the SQ to its end, or until a step has enough to decide."""
        session = self._context.claim.session
        while self.unread and len(self.inbox) < SQ_PAGE:
            self.unread = False
            page = await self._context.writing.insist(
                lambda: self._context.ports.broker.logs.read_sq(session, self._read_to, SQ_PAGE)
            )
            if page is None:
                return
            # A notice during the read may be about an entry that came after it.
            self.unread = self.unread or len(page) == SQ_PAGE
            await self._accept(page)

    async def _accept(self, entries: tuple[SqEntry, ...]) -> None:
        for entry in entries:
            self.inbox.append((await self._command(entry), entry.place))
            self._read_to = entry.id

    async def _command(self, entry: SqEntry) -> c.Command | Note | Unreadable:
        try:
            command = await self._with_lookups(await with_texts(self._context, entry), entry)
            if not isinstance(command, c.Submitted):
                return command
            ports, state = self._context.ports, self._context.journal.state
            servers = partial(ports.tools.of_servers, state)
            return await with_files(ports.library, servers, command, self._folder)
        except BrokerError:
            raise
        except Exception as error:
            # It is told of in its turn, behind what came before it.
            return Unreadable(entry.submission, error)

    def pass_over_first(self, instead: Callable[[str], Note]) -> None:
        """Replaces the oldest entry that came with the claim by the note `instead` of its id."""
        first = self._context.claimed.first[:1]
        for entry in first:
            place = next(at for at, (_, sq_place) in enumerate(self.inbox) if sq_place == entry.place)
            self.inbox[place] = (instead(entry.submission), entry.place)

    async def _with_lookups(self, command: c.Command | Note, entry: SqEntry) -> c.Command | Note:
        """Looks up the agents and requests below that a person's op may be meant for."""
        if isinstance(command, c.TimerFired) and command.id in (REAP_TIMER, REAP_BELOW_TIMER):
            return replace(command, left=await self._reap())
        state, writing = self._context.journal.state, self._context.writing
        if isinstance(command, c.Submitted) and isinstance(command.op, ConfigureSession):
            return await self._with_history(command)
        if not isinstance(command, c.Submitted) or not state.facts.is_root:
            return command
        lookups = TreeLookups.of(self._context.ports, state.facts)
        match command.op:
            case op if isinstance(op, c.AnswerOp) and state.tree.children:
                return await self._with_requests(command, op, lookups, entry.at_ms)
            case MessageAgent(agent_id=agent_id) | CancelAgent(agent_id=agent_id):
                agents = await writing.insist(lambda: lookups.target_and_below(agent_id))
                return replace(command, agents=agents or ())
            case _:
                return command

    async def _with_history(self, command: c.Submitted) -> c.Submitted:
        """Looks up the sender's history of prompts, for the answer that tells of it."""
        ports = self._context.ports
        if not ports.library.keeps_history:
            return command
        noise = ports.random_bytes(NOISE_BYTES)
        head = await self._context.writing.insist(
            lambda: ports.broker.requests.history_head(command.who, noise)
        )
        return replace(command, history=head or NO_HISTORY)

    def _folder(self) -> str:
        """The folder in which the next input will find the session: the last that was named before it."""
        state = self._context.journal.state
        waiting = [arrival for arrival, _ in self.inbox if isinstance(arrival, c.Submitted)]
        queued = [turn.turn.op for turn in state.queue]
        for op in (*(each.op for each in reversed(waiting)), *reversed(queued)):
            if isinstance(op, OverrideTurnContext | ConfigureSession | UserTurn) and op.cwd:
                return op.cwd
        return state.settings.cwd

    async def _with_requests(
        self, command: c.Submitted, op: c.AnswerOp, lookups: TreeLookups, at_ms: int
    ) -> c.Submitted:
        """Looks up what an answer can mean in the tree: pending requests, or else those settled before."""
        writing = self._context.writing
        below = await writing.insist(lambda: lookups.pending_below(at_ms)) or ()
        task = self._context.journal.state.task
        own: set[str] = {call.call_id for call in task.requests} if task is not None else set()
        own |= {asked.id for asked in task.open_elicitations} if task is not None else set()
        meant = str(op.request_id) if isinstance(op, ResolveElicitation) else op.id
        if meant in own or any(meant in (asked.call_id, asked.turn) for asked in below):
            return replace(command, below=below)
        decided = await writing.insist(lambda: lookups.decided_below(meant, op.agent_id))
        return replace(command, below=below, decided=decided or ())

    async def _reap(self) -> bool:
        """Takes cancelled agents from workers that do nothing with them; whether any agent has yet to end.

        This worker ends the agents that no worker held, which needs no folder and no model of theirs.
        """
        context, state = self._context, self._context.journal.state
        ending = [SessionId(child.session) for child in state.tree.children.values() if child.ending]
        found = await context.writing.insist(
            lambda: taken_at_once(context.ports.broker, context.claim.tree, state.facts.agent_id, ending)
        )
        if found is None:
            return False
        context.config.adopt(found.lying)
        return found.left

    def _is_news(self, tip: str) -> bool:
        return _number(tip) > _number(self._read_to)

    # ── the cursor ────────────────────────────────────────────────────────────────────────────

    @property
    def moved(self) -> bool:
        """Whether entries were decided that the log has not consumed."""
        return self.cursor != self._consumed

    def rewind(self) -> None:
        """Goes back to the log's cursor: the step that decided the last entries was not committed."""
        self.cursor = self._consumed

    @property
    def _consumed(self) -> str:
        return self._context.writing.cursor(self._context.claimed.cursor)


def _number(place: str) -> int:
    return int((place or START).partition("-")[0])
