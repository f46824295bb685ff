"""Writing: commits that are sent until they are answered, and deltas in between.

One writer at a time per session: a delta that is being emitted is in the EQ before the
commit behind it, whatever connection either travels on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, TypeVar

import orjson

from orchestrator.broker import records
from orchestrator.broker.errors import OutOfMemory, Unavailable, UnknownSession
from orchestrator.core.chain import GENESIS
from orchestrator.core.commit_parts import NewEvent, TreePart
from orchestrator.core.frozen import record
from orchestrator.core.ids import SessionId
from orchestrator.rollouts.object_store import ArchiveUnavailable
from orchestrator.rollouts.segments import BrokenArchive
from orchestrator.rollouts.session_summary import Position
from orchestrator.runtime import log
from orchestrator.runtime.journal import Step
from orchestrator.runtime.loader import BrokenLog
from orchestrator.runtime.ports import Ports

# ── deltas ────────────────────────────────────────────────────────────────────────────────────────
# Deltas on their way to the EQ: coalesced, and never overtaken by what they lead up to.
#
# Pending deltas ride in the next commit. If none comes soon they are emitted by themselves, after 20 ms
# or 4 KB, whichever is first.


COALESCE_S = 0.020
COALESCE_BYTES = 4096
PIECE_CHARS = 4096
"""Characters of one event: a server may send megabytes as one delta, and an event queue is bounded by its
number of events. With this it is bounded by bytes, too."""
TAKEN_BYTES = 256 << 10
"""Bytes of deltas that one commit, or one emit, carries; older deltas are emitted before it."""

_OF_THE_WORKER = frozenset({"mcp_startup_update", "mcp_startup_complete"})
"""Events that belong to no task: they tell of the worker's own servers (January 2026)."""

_JOINED: Mapping[str, str] = {
    "agent_message_delta": "agent_message_content_delta",
    "agent_message_content_delta": "agent_message_delta",
    "agent_reasoning_delta": "reasoning_content_delta",
    "reasoning_content_delta": "agent_reasoning_delta",
    "agent_reasoning_raw_content_delta": "reasoning_raw_content_delta",
    "reasoning_raw_content_delta": "agent_reasoning_raw_content_delta",
    "plan_delta": "",
}
"""Kinds of text that are joined, each with the other event that tells of the same text."""


_PLACE = ("item_id", "summary_index", "content_index")


@record
class Delta:
    """An event message that belongs to no entry."""

    task_id: str
    message: Mapping[str, Any]
    lasting: bool = False
    """Whether it is shown behind the end of its task, too."""

    def event(self, seq: int, head: bytes) -> NewEvent:
        """The event, as one that belongs to entry `seq`."""
        id = event_id(self.task_id, self.message)
        return NewEvent(orjson.dumps({"id": id, "msg": self.message}), seq, head[:4].hex())


class Deltas:
    """Event messages of one session that belong to no entry."""

    def __init__(self) -> None:
        self._pending: list[tuple[str, dict[str, Any]]] = []
        self._taken: list[tuple[str, dict[str, Any]]] = []
        self._bytes = 0

    def __bool__(self) -> bool:
        return bool(self._pending)

    @property
    def full(self) -> bool:
        return self._bytes >= COALESCE_BYTES

    def add(self, task_id: str, message: Mapping[str, Any]) -> None:
        """Queues one delta; text that continues the last one of its kind is joined to it."""
        text = message.get("delta")
        if (last := self._continued(task_id, message)) is not None:
            last["delta"] += text
            self._bytes += _length(text)
            return
        self._pending.append((task_id, dict(message)))
        self._bytes += _size(self._pending[-1])

    def _continued(self, task_id: str, message: Mapping[str, Any]) -> dict[str, Any] | None:
        """The pending text that this one continues: the last, or the one before it if both tell one text."""
        kind = message["type"]
        if kind not in _JOINED:
            return None
        for last_id, last in reversed(self._pending[-2:]):
            if last_id == task_id and last["type"] == kind:
                room = len(last.get("delta") or "") < PIECE_CHARS
                return last if room and all(last.get(name) == message.get(name) for name in _PLACE) else None
            if last["type"] != _JOINED[kind]:
                return None
        return None

    @property
    def many(self) -> bool:
        """Whether the pending deltas are more than one commit should carry beside its entries."""
        # What stands beside a text, and how it is written, is counted only where it may matter.
        if self._bytes <= TAKEN_BYTES // _MOST_WRITTEN:
            return False
        sizes = (len(payload) for pending in self._pending for payload in _payloads(*pending))
        return any(size > TAKEN_BYTES for size in accumulate(sizes))

    def take(self, seq: int, head: bytes = GENESIS) -> list[NewEvent]:
        """The oldest pending deltas, as events that belong to entry `seq`: all unless they are `many`."""
        events, size, taken = [], 0, 0
        for task_id, message in self._pending:
            if size > TAKEN_BYTES:
                break
            taken += 1
            for payload in _payloads(task_id, message):
                events.append(NewEvent(payload, seq, head[:4].hex()))
                size += len(payload)
        self._taken, self._pending = self._pending[:taken], self._pending[taken:]
        self._bytes = sum(map(_size, self._pending))
        return events

    def give_back(self) -> None:
        """Takes back those that were taken last, of which nothing was written."""
        self._pending[:0], self._taken = self._taken, []
        self._bytes = sum(map(_size, self._pending))


def event_id(task_id: str, message: Mapping[str, Any]) -> str:
    """The id under which an event is shown that came up while a task ran."""
    return "" if message["type"] in _OF_THE_WORKER else task_id


def pieces(text: str) -> Sequence[str]:
    """The text, in several pieces if it is longer than one event should have."""
    if len(text) <= PIECE_CHARS:
        return (text,)
    return [text[start : start + PIECE_CHARS] for start in range(0, len(text), PIECE_CHARS)]


def _payloads(task_id: str, message: Mapping[str, Any]) -> Iterator[bytes]:
    """The events of one delta, as they are written."""
    text, id = message.get("delta") or "", event_id(task_id, message)
    for piece in pieces(text):
        told = message if piece is text else {**message, "delta": piece}
        yield orjson.dumps({"id": id, "msg": told})


_MOST_WRITTEN = 16
"""A delta is written in at most so many times the bytes that are counted of it."""


def _size(pending: tuple[str, Mapping[str, Any]]) -> int:
    message = pending[1]
    return _length(message.get("delta") or message.get("chunk")) + 64


def _length(text: str | None) -> int:
    """The bytes of a text."""
    return 0 if not text else len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


# ── commits ───────────────────────────────────────────────────────────────────────────────────────


T = TypeVar("T")

RESEND_S = 0.05
RESEND_MAX_S = 1.0
ARCHIVE_S = 2.0
"""Seconds until an archive that could not be read is tried again."""
OWED = frozenset({"completion", "status", "ended"})
"""Messages of an agent to its parent that have to arrive."""


class Writing:
    """The writes of one claim."""

    def __init__(self, ports: Ports, claim: records.Claim, last_commit: str) -> None:
        self._ports = ports
        self._claim = claim
        self._last_commit = last_commit
        """The id of the session's last commit: beside the log, the next commit is built on it."""
        self._turn = asyncio.Lock()
        self._deltas = Deltas()
        self._flush: asyncio.Task[None] | None = None
        self._shown_at: Position | None = None
        """Where the log stood when the last delta came; a commit takes those before it along."""
        self._given_up = False
        self._cursor: str | None = None

    def cursor(self, at_claim: str) -> str:
        """The SQ entry that the log has consumed."""
        return self._cursor or at_claim

    def give_up(self) -> None:
        """Stops sending again: the claim is over, whatever became of the last commit."""
        self._given_up = True

    def close(self) -> None:
        if self._flush is not None:
            self._flush.cancel()
            # A task that was cancelled knows where, and so this claim and its state.
            self._flush = None

    async def commit(
        self,
        step: Step,
        cursor: str,
        release: records.Release,
        meta: bytes | None,
        successor: records.Successor | None = None,
    ) -> records.Committed | records.Fenced | records.Refused | None:
        """Sends a step until it is answered; None if the claim was given up meanwhile."""
        if step.blobs:
            await self.insist(lambda: self._ports.texts.store_new(self._claim.tree, step.blobs))
        async with self._turn:
            while self._deltas.many and not self._given_up:
                await self._emit_pending()
            request = self._request(step, cursor, release, meta)
            answer = await self.insist(lambda: self._stand(request, step.blobs, successor))
            if isinstance(answer, records.Refused):
                self._deltas.give_back()
        if isinstance(answer, records.Committed):
            self._cursor, self._last_commit = cursor, answer.last_commit
        return answer

    async def _stand(
        self,
        request: records.CommitRequest,
        texts: Mapping[str, bytes],
        successor: records.Successor | None,
    ) -> records.Committed | records.Fenced | records.Refused:
        """Sends a commit once, and again if Redis lost texts that it names: they are stored anew before."""
        answer = await self._ports.broker.commits.commit(request, successor)
        if isinstance(answer, records.Unstored):
            log.warning(
                "session %s: Redis lost %d texts, storing them again",
                self._claim.session,
                len(answer.digests),
            )
            lost = {digest: texts[digest] for digest in answer.digests}
            await self._ports.texts.store(self._claim.tree, lost)
            answer = await self._ports.broker.commits.commit(request, successor)
        if isinstance(answer, records.Unstored):
            raise Unavailable("Redis lost the texts of a step twice")
        if isinstance(answer, records.Refused) and await self._brought_back(answer, request):
            return await self._stand(request, texts, successor)
        return answer

    async def _brought_back(self, answer: records.Refused, request: records.CommitRequest) -> bool:
        """Whether the step was refused because it speaks to an archived agent, which is there again now.

        What an agent owes its parent waits for an archive that is away.
        """
        if answer.reason != "archived_target" or self._ports.restore is None:
            return False
        try:
            await self._ports.restore(SessionId(answer.detail))
        except (BrokenLog, BrokenArchive, ArchiveUnavailable, UnknownSession) as error:
            log.warning("session %s: agent %s stays archived: %s", self._claim.session, answer.detail, error)
            owed = any(mail.to == answer.detail and mail.kind in OWED for mail in request.tree.outbox)
            if not (owed and isinstance(error, ArchiveUnavailable)):
                return False
            await self._ports.sleep(ARCHIVE_S)
        return not self._given_up

    def _request(
        self, step: Step, cursor: str, release: records.Release, meta: bytes | None
    ) -> records.CommitRequest:
        pending = self._deltas.take(step.base.seq, step.base.head)
        tree = step.tree or TreePart()
        return records.CommitRequest(
            claim=self._claim,
            commit_id=self._ports.random_bytes(16).hex(),
            expect_seq=step.base.seq,
            expect_head=step.base.head,
            expect_commit=self._last_commit,
            entries=tuple(step.entries),
            events=(*pending, *step.events),
            cursor=cursor,
            timers_set=tuple(step.timers_set),
            timers_clear=tuple(step.timers_clear),
            approvals_open=tuple(step.approvals_open),
            approvals_close=tuple(step.approvals_close),
            texts=tuple(step.blobs),
            tree=tree.behind(len(pending)) if pending and tree.events else tree,
            budget=step.budget or records.BudgetPart(),
            status=step.position.state.status,
            meta=meta,
            name=_new_name(step),
            # With the claim's first entries: from here on an older worker might fold another state.
            min_core=self._ports.broker.config.core_version if self._cursor is None else None,
            folder=_folder_place(step, self._ports.folders.machine, first=self._cursor is None),
            ended_seq=step.ended_seq,
            release=release,
        )

    async def insist(self, send: Callable[[], Awaitable[T]]) -> T | None:
        """Sends a request again until it is answered; None if the claim was given up meanwhile.

        Whether the last attempt arrived is unknown, and every script may be sent again.
        """
        delay = RESEND_S
        while not self._given_up:
            try:
                return await send()
            except (Unavailable, OutOfMemory) as error:
                log.warning("session %s: not answered, sending again: %s", self._claim.session, error)
                await self._ports.sleep(delay)
                delay = min(delay * 2, RESEND_MAX_S)
        return None

    def delta(self, delta: Delta, position: Position) -> None:
        """Queues an event that belongs to no entry; it rides in the next commit, or goes by itself soon."""
        self._deltas.add(delta.task_id, delta.message)
        self._shown_at = position
        if self._flush is None or self._flush.done():
            self._flush = self._ports.spawn(self._flush_soon(), f"{self._claim.session}:deltas")

    async def _flush_soon(self) -> None:
        # What arrives while the last ones are on their way is nobody else's to send.
        while self._deltas and not self._given_up:
            if not self._deltas.full:
                await self._ports.sleep(COALESCE_S)
            async with self._turn:
                await self._emit_pending()

    async def _emit_pending(self) -> None:
        if self._shown_at is not None and (
            events := self._deltas.take(self._shown_at.seq, self._shown_at.head)
        ):
            try:
                await self._ports.broker.commits.emit(self._claim, events)
            except (Unavailable, OutOfMemory) as error:
                # The finished item will carry the text; nothing but liveliness is lost.
                log.warning(
                    "session %s: %d deltas were not shown: %s", self._claim.session, len(events), error
                )


def _folder_place(step: Step, machine: str, *, first: bool) -> records.FolderPlace | None:
    """The place of a portable session's folder, if the step changes it, or is the first of this claim."""
    before, now = step.base.state.workspace, step.position.state.workspace
    if step.position.state.facts.portable is None or (now is before and not first):
        return None
    if now.unsaved is not None:
        return records.FolderPlace(now.unsaved.machine, unsaved=True, settled=before.unsaved is None)
    # A copy that fell back, or could not be made, is no reason to wait for its machine.
    there = now.machine if now.epoch and not now.failures else ""
    return records.FolderPlace(there, failed_on=machine if now.failures > before.failures else "")


def _new_name(step: Step) -> str | None:
    """The name that the step gives the session; None if it gives none."""
    before, now = step.base.state, step.position.state
    # The same record, unless a fact has changed something in it: this is asked of every step.
    return now.name if now.extras is not before.extras and now.name != before.name else None
