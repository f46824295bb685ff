"""NDJSON connections: Submissions in, Events out, one JSON object a line.

The drop-in for Codex's `proto`, and the framing of every stream transport. A line that
cannot be served is answered by an `error` event and never ends the connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from enum import StrEnum

import orjson

from orchestrator.broker.errors import BrokerError, UnknownSession
from orchestrator.broker.follow import BEGINNING, EqCursor
from orchestrator.broker.records import SessionHead
from orchestrator.core.entries import EventKind
from orchestrator.core.frozen import record
from orchestrator.core.ids import SessionId
from orchestrator.gateways.bursts import Burst, Numbers
from orchestrator.gateways.client import AWAITING, PAUSED, QUARANTINED, Client, standing
from orchestrator.gateways.principals import NotPermitted
from orchestrator.protocol import events as ev
from orchestrator.protocol import ops
from orchestrator.protocol.codec import Frame, LineSplitter, OverlongLine, parse_submission
from orchestrator.protocol.submission import MalformedSubmission, Submission
from orchestrator.protocol.wire import UNSET, EventModel, written
from orchestrator.requests import ServerRequest
from orchestrator.views.asked_requests import OpenRequests
from orchestrator.views.event import without_places

READ_BYTES = 1 << 16


class Ending(StrEnum):
    """The reason why a connection is over."""

    SHUT_DOWN = "shut_down"
    AT_REST = "at_rest"
    WAITING = "waiting"
    """Input has ended, and the session waits for an answer that this connection cannot give any more."""
    QUARANTINED = "quarantined"
    """Input has ended, and no worker may take the session until a person readmits it."""


class DeletedMeanwhile(UnknownSession):
    """The session of a connection was there, and is not any more."""

    def __str__(self) -> str:
        return f"session {self.session} was deleted: nothing of it is left to go on with"


_OF_PROCESSES = frozenset[EventKind]({ev.ExecCommandBegin, ev.ExecCommandEnd, ev.ShutdownComplete})


@record
class Streams:
    """The two directions of a connection."""

    read: Callable[[int], Awaitable[bytes]]
    """Up to n bytes; empty at the end."""
    write: Callable[[bytes], Awaitable[None]]


@record
class LineOptions:
    """Differences of a connection from standard input and output."""

    numbers: Numbers | None = None
    """The `seq` of an event from that of the event before; without it lines have none."""
    number: int = 0
    """The `seq` of the last event that the client has."""
    first_line: int = 1
    """The number of the first line that is still to be read."""


class NdjsonConnection:
    """Serves one session to one connection."""

    def __init__(
        self,
        client: Client,
        session: SessionId,
        streams: Streams,
        line_limit: int,
        options: LineOptions = LineOptions(),
    ) -> None:
        self._client = client
        self._session = session
        self._streams = streams
        self._splitter = LineSplitter(line_limit, options.first_line)
        self._options = options
        self._number = options.number
        self._writing = asyncio.Lock()
        self._ended: asyncio.Future[Ending] = asyncio.get_running_loop().create_future()
        self._eof = False
        self._leaving = False
        """Whether the client was told that a person is waited for: two looks may meet."""
        self._published = 0
        """The number of the last event written."""
        self._published_at = asyncio.get_running_loop().time()
        self._asking = OpenRequests(session)
        self._processes: set[str] = set()
        """Calls of this session whose commands may go on behind them, and have not ended."""

    async def serve(self, cursor: EqCursor = BEGINNING) -> Ending:
        """Runs until `shutdown_complete`, or until input has ended and nothing runs any more."""
        self._published = cursor.n
        tasks = [asyncio.create_task(self._publish_events(cursor)), asyncio.create_task(self._receive())]
        for task in tasks:
            task.add_done_callback(self._watched)
        try:
            ending = await self._ended
            async with self._writing:
                return ending
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _watched(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) and not self._ended.done():
            deleted = isinstance(error, UnknownSession)
            self._ended.set_exception(DeletedMeanwhile(self._session) if deleted else error)

    # ── out ───────────────────────────────────────────────────────────────────────────────────

    async def _publish_events(self, cursor: EqCursor) -> None:
        async for burst in self._client.bursts(self._session, cursor):
            lines = burst.lines(self._options.numbers, self._number)
            # Before they are written: an error that waits behind them is sent with the number of the last.
            self._number = burst.number(self._options.numbers, self._number)
            if lines:
                await self._write(lines)
            self._note(burst)
            if self._eof:
                await self._leave_if_at_rest()

    def _note(self, burst: Burst) -> None:
        """Records the last event that was sent, and the requests that this connection may have to answer."""
        last = burst.events[-1]
        self._published = last.cursor.n if last.cursor else self._published
        self._published_at = asyncio.get_running_loop().time()
        for event in burst.noted():
            self._asking.receive(event)
            if event.kind not in _OF_PROCESSES:
                continue
            match event.told:
                case ev.ExecCommandBegin(call_id=call_id, process_id=str()):
                    self._processes.add(call_id)
                case ev.ExecCommandEnd(call_id=call_id):
                    self._processes.discard(call_id)
                case ev.ShutdownComplete():
                    self._end(Ending.SHUT_DOWN)
                case _:
                    pass

    async def _write(self, lines: bytes) -> None:
        # Standard output is written by a thread: what came first has to be out before the next is begun.
        async with self._writing:
            await self._streams.write(lines)

    async def _error(self, id: str, message: str) -> None:
        await self._publish(id, ev.Error(message=message, codex_error_info=UNSET))

    async def _publish(self, id: str, message: EventModel) -> None:
        seq = {} if self._options.numbers is None else {"seq": self._number}
        await self._write(orjson.dumps({"id": id, "msg": written(message), **seq}) + b"\n")

    # ── in ────────────────────────────────────────────────────────────────────────────────────

    async def _receive(self) -> None:
        while data := await self._streams.read(READ_BYTES):
            for line in self._splitter.feed(data):
                await self._line(line)
        for line in self._splitter.close():
            await self._line(line)
        self._eof = True
        await self._client.until([self._session], self._leave_if_at_rest)

    async def _line(self, line: Frame) -> None:
        if isinstance(line, OverlongLine):
            await self._error("", f"line {line.number}: longer than {line.limit} bytes; it was skipped")
            return
        try:
            submission = parse_submission(line.content)
        except MalformedSubmission as error:
            place = f"line {line.number}: " if not error.submission_id else ""
            await self._error(error.submission_id, f"{place}{error}")
            return
        await self._submit(submission)

    async def _submit(self, submission: Submission) -> None:
        op = submission.op
        if isinstance(op, ops.ConfigureSession) and op.session_id not in (None, self._session):
            await self._error(submission.id, "another session cannot be resumed on this connection")
            return
        if not self._client.keeps(op):
            return
        try:
            await self._client.submit(self._session, submission)
        except (BrokerError, MalformedSubmission, NotPermitted) as error:
            why = without_places(str(error)) if self._client.namespace else str(error)
            await self._error(submission.id, why)

    # ── the end ───────────────────────────────────────────────────────────────────────────────

    async def _leave_if_at_rest(self) -> bool:
        """After the end of input: ends if nothing is queued, nothing runs, and every event was sent."""
        await self._leave_if_done(await self._client.head(self._session))
        return self._ended.done()

    async def _leave_if_done(self, head: SessionHead | None) -> None:
        if head is not None and head.quarantined and not self._owes_events(head):
            self._end(Ending.QUARANTINED)
            return
        if head is None or head.has_unread or self._owes_events(head):
            return
        if head.holder and not self._keeps_processes_only(head):
            return
        if head.status in ("idle", "closed"):
            self._end(Ending.AT_REST)
        elif head.status in AWAITING:
            await self._leave_waiting({head.status})
        elif statuses := await standing(self._client, head):
            await self._leave_waiting(statuses)

    async def _leave_waiting(self, statuses: Collection[str]) -> None:
        """Ends beside a tree that only a person can move; stays if it only waits for something else."""
        if PAUSED in statuses:
            text = (
                f"input has ended while the tree's budget is spent; session {self._session} stays parked "
                f"until a person adds some: dendro budget {self._session}"
            )
        elif open := self._open_in(statuses):
            text = (
                f"input has ended while {open}; session {self._session} stays parked until a person answers"
            )
        elif QUARANTINED in statuses:
            text = (
                f"input has ended while an agent is quarantined; session {self._session} stays parked until "
                "a person lets it run again: dendro revoke ID"
            )
        else:
            return
        if not self._leaving:
            self._leaving = True
            await self._publish("", ev.WarningEvent(message=text))
            self._end(Ending.WAITING)

    def _open_in(self, statuses: Collection[str]) -> str:
        """The requests that wait for a person; empty if none does."""
        calls = sorted({request.call_id for request in self._asking})
        asked = {
            "a question" if request.questions or isinstance(request, ServerRequest) else "an approval"
            for request in self._asking
        }
        # The request itself may have left the EQ before this connection came.
        asked = asked or {AWAITING[status] for status in statuses if status in AWAITING}
        waiting = f" ({', '.join(calls)})" if calls else ""
        return (
            f"{' and '.join(sorted(asked))} {'are' if len(asked) > 1 else 'is'} open{waiting}"
            if asked
            else ""
        )

    def _keeps_processes_only(self, head: SessionHead) -> bool:
        """Whether a held session does nothing but keep processes, which may live for ever."""
        rests = head.status == "idle" or head.status in AWAITING
        quiet_s = asyncio.get_running_loop().time() - self._published_at
        return bool(self._processes) and rests and quiet_s >= QUIET_S

    def _owes_events(self, head: SessionHead) -> bool:
        """Whether the follower is behind. After a gap no number can be compared: then quiet has to do."""
        if self._writing.locked():
            return True
        quiet_s = asyncio.get_running_loop().time() - self._published_at
        return head.eq_n > self._published and quiet_s < QUIET_S

    def _end(self, ending: Ending) -> None:
        if not self._ended.done():
            self._ended.set_result(ending)


QUIET_S = 2.0
