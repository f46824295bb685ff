"""Writing an imported session, so that it is there whole or not at all.

What fits into one script is created by one. More is written under a claim, behind a bar:
from its birth until the last commit the session demands a core version that nobody has, so that
no worker takes a half of it, not even after this process was killed. A failure deletes it again.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from orchestrator.broker.records import (
    Claimed,
    CommitRequest,
    Committed,
    Fenced,
    NewTree,
    Refused,
    Unstored,
)
from orchestrator.broker.seal import LogWriter, event_of, seal
from orchestrator.core import CORE_VERSION
from orchestrator.core.blobs import references
from orchestrator.core.calls import timer_of
from orchestrator.core.chain import GENESIS
from orchestrator.core.commit_parts import Approval, NewEntry, NewEvent, Timer, approval, new_session
from orchestrator.core.entries.stored import Encoded, encode_entry, kind_of
from orchestrator.core.evolve import fold
from orchestrator.core.frozen import record, replace
from orchestrator.core.ids import SessionId
from orchestrator.core.state import State
from orchestrator.core.timers import approval_timer
from orchestrator.core.turn_calls import Call
from orchestrator.protocol.events import SessionConfigured
from orchestrator.rollouts.errors import RolloutError
from orchestrator.rollouts.import_plan import ImportPlan
from orchestrator.rollouts.position import Position
from orchestrator.rollouts.source import LogSource
from orchestrator.rollouts.summary import session_meta

PIECE_ENTRIES = 200
PIECE_BYTES = 512 << 10
"""Below what one commit may carry (256 entries, 1 MB): Redis serves nobody else meanwhile."""
BAR = 1 << 30
IMPORTING = "importing"
"""The status of a session that is not whole yet. One that stays so is deleted by upkeep."""
ATTEMPTS = 3
"""How often the texts of a step are stored, if Redis loses them before it."""
ASKS = (
    "exec_approval_request",
    "apply_patch_approval_request",
    "ask_user_question_request",
    "request_user_input",
    "plan_approval_request",
)


@record
class Piece:
    """The entries and events that a script writes, and the log's `seq` and head after it."""

    entries: tuple[NewEntry, ...]
    events: tuple[NewEvent, ...]
    seq: int
    head: bytes


BEFORE = Piece((), (), 0, GENESIS)


@record
class _Ending:
    """The fields that become visible when the session is complete."""

    status: str
    meta: bytes
    approvals: tuple[Approval, ...]
    timers: tuple[Timer, ...]


async def store(
    found: LogSource, plan: ImportPlan, blobs: Mapping[str, bytes], now_ms: int, writer: str
) -> SessionId:
    """Creates the session of a plan, in the name of `writer`.

    Raises the broker's errors, and leaves nothing behind then.
    """
    contents = dict(blobs)
    encoded = [encode_entry(entry, at_ms, contents) for entry, at_ms in plan.entries]
    cuts = _cuts(encoded)
    # Folded as it is stored: that is what a replay will be compared with.
    state = fold(State(), (each.entry for each in encoded), 1)
    ending = _ending(state, encoded, contents, now_ms)
    whole = len(cuts) == 1 and not ending.approvals
    first = _chained(cuts[0], BEFORE, 0, found.secret)
    born = replace(
        new_session(plan.facts, state.settings),
        entries=first.entries,
        events=first.events,
        meta=ending.meta,
        status=ending.status if whole else IMPORTING,
    )
    named = tuple(contents) if whole else _texts_of(cuts[0], contents)
    new = NewTree(born, announced=bool(plan.packs), texts=named, min_core=0 if whole else BAR)
    await _create(found, new, contents)
    if not whole:
        try:
            left = {name: text for name, text in contents.items() if name not in named}
            await _continue(found, born.session, first, cuts[1:], ending, left, writer)
        except BaseException:
            await found.broker.trees.revoke(born.session)
            # Whoever it was lost to made it due, and nobody has been told of it.
            await found.broker.trees.delete_session(born.session, owed=True)
            raise
    return born.session


async def _create(found: LogSource, new: NewTree, texts: Mapping[str, bytes]) -> None:
    """Stores the texts that a birth names, and makes the session."""
    for _ in range(ATTEMPTS):
        await found.texts.store(new.root.tree, {name: texts[name] for name in new.texts}, unborn=True)
        if not isinstance(await found.broker.commits.create(new), Unstored):
            return
    raise _lost(new.root.session)


def _lost(session: SessionId) -> RolloutError:
    return RolloutError(f"session {session} was not imported: Redis lost large texts of it; import it again")


async def _continue(
    found: LogSource,
    session: SessionId,
    first: Piece,
    cuts: Sequence[list[Encoded]],
    ending: _Ending,
    texts: Mapping[str, bytes],
    writer: str,
) -> None:
    """Writes the rest under a claim; the last commit lowers the bar and parks the session."""
    claimed = await found.broker.claims.claim_session(
        session, writer, uuid.uuid4().hex, parked=True, core=BAR
    )
    if claimed is None:
        raise RolloutError(f"session {session} was taken by a worker while it was being imported")
    try:
        await _write_rest(found, claimed, first, cuts, ending, texts)
    except BaseException:
        # Nobody may delete what somebody holds.
        await found.broker.claims.release(claimed.claim)
        raise


async def _write_rest(
    found: LogSource,
    claimed: Claimed,
    first: Piece,
    cuts: Sequence[list[Encoded]],
    ending: _Ending,
    texts: Mapping[str, bytes],
) -> None:
    claim, last_commit = claimed.claim, claimed.last_commit

    async def commit(before: Piece, piece: Piece, **more: Any) -> Committed:
        nonlocal last_commit
        at = (before.seq, before.head, last_commit)
        request = CommitRequest(claim, uuid.uuid4().hex, *at, piece.entries, piece.events, **more)
        answer = await _committed(found, request, texts)
        if not isinstance(answer, Committed):
            raise RolloutError(f"session {claim.session} was not imported: {answer.reason}")
        last_commit = answer.last_commit
        return answer

    before, left = first, dict(texts)
    for cut in cuts:
        piece = _chained(cut, before, claim.epoch, found.secret)
        own = _texts_of(cut, left)
        await commit(before, piece, texts=own)
        before, left = piece, {name: left[name] for name in left if name not in own}
    last = await commit(
        before,
        _chained([], before, claim.epoch, found.secret),
        texts=tuple(left),
        min_core=CORE_VERSION,
        status=ending.status,
        approvals_open=ending.approvals,
        timers_set=ending.timers,
        release="park",
    )
    if not last.released:
        # Somebody has spoken to it meanwhile: it is due.
        await found.broker.claims.release(claim)


async def _committed(
    found: LogSource, request: CommitRequest, texts: Mapping[str, bytes]
) -> Committed | Fenced | Refused:
    """Stores the texts that a commit names, and sends it; again, if Redis lost one between."""
    for _ in range(ATTEMPTS):
        await found.texts.store(request.claim.tree, {name: texts[name] for name in request.texts})
        answer = await found.broker.commits.commit(request)
        if not isinstance(answer, Unstored):
            return answer
    raise _lost(request.claim.session)


def _texts_of(cut: Sequence[Encoded], texts: Collection[str]) -> tuple[str, ...]:
    """The texts that these entries refer to; one that the file lacked is left out."""
    named = dict.fromkeys(digest for each in cut for digest in references(each.entry.payload))
    return tuple(digest for digest in named if digest in texts)


def _cuts(encoded: Sequence[Encoded]) -> list[list[Encoded]]:
    cuts: list[list[Encoded]] = [[]]
    size = 0
    for each in encoded:
        if cuts[-1] and (len(cuts[-1]) >= PIECE_ENTRIES or size + len(each.line) > PIECE_BYTES):
            cuts.append([])
            size = 0
        cuts[-1].append(each)
        size += len(each.line)
    return cuts


def _chained(cut: Sequence[Encoded], before: Piece, epoch: int, secret: bytes) -> Piece:
    """The entries behind `before`, as written under `epoch`; old events are history, not news."""
    entries, events = [], []
    seq, head, writer = before.seq, before.head, LogWriter(os.urandom, secret, epoch)
    for each in cut:
        seq += 1
        entries.append(seal(each.line, seq, head, writer))
        head = entries[-1].chain
        if kind_of(each.entry.type, each.entry.payload) is SessionConfigured:
            events.append(event_of(each, seq, head))
    return Piece(tuple(entries), tuple(events), seq, head)


def _ending(state: State, encoded: Sequence[Encoded], blobs: dict[str, bytes], now_ms: int) -> _Ending:
    meta = session_meta(Position(state, len(encoded), GENESIS), now_ms)
    awaiting = state.task.requests if state.task else ()
    timeout = state.facts.approval_timeout_ms
    timers = [
        Timer(approval_timer(call.call_id), timer, now_ms + timeout)
        for call in awaiting
        if timeout is not None and (timer := timer_of(call.work))
    ]
    approvals = [_approval(encoded, state.task.id, call, blobs) for call in awaiting if state.task]
    return _Ending(state.status, meta, tuple(approvals), tuple(timers))


def _approval(encoded: Sequence[Encoded], turn: str, call: Call, blobs: dict[str, bytes]) -> Approval:
    """The fleet's queue shows it again, as it was asked."""
    asked = next(
        each.entry.payload
        for each in reversed(encoded)
        if each.entry.payload.get("type") in ASKS
        and call.call_id in (each.entry.payload.get("call_id"), each.entry.payload.get("callId"))
    )
    request = {"kind": call.work.kind if call.work else "", "turn": turn, "event": asked}
    return approval(call.call_id, request, blobs)
