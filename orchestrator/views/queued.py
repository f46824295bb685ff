"""The inputs that wait for a session's running task to end, from its snapshot and the log behind it."""

from __future__ import annotations

from orchestrator.broker.records import SessionHead
from orchestrator.core import facts as f
from orchestrator.core.blobs import references, resolve
from orchestrator.core.entries.stored import decode_entry, stored_kind
from orchestrator.core.evolve import evolve
from orchestrator.core.frozen import replace
from orchestrator.core.snapshot import decode_snapshot
from orchestrator.core.state import Queued, State
from orchestrator.rollouts.source import LogSource

_TOLD_BY = frozenset({f.InputQueued, f.TaskBegun, f.QueueOrdered, f.QueuedEdited})


async def waiting_inputs(found: LogSource, head: SessionHead) -> tuple[Queued, ...]:
    """The queue as the log has it; what no worker has read is not in it."""
    if head.status == "idle":
        return ()
    data = await found.broker.logs.snapshot_of(head.session)
    decoded = decode_snapshot(data, found.secret) if data else None
    state, after = State(), 0
    if decoded is not None and decoded[1] <= head.seq:
        state, after = State(queue=decoded[0].queue), decoded[1]
    async for stored in found.log(head.session, head.seq, after):
        if stored_kind(stored.payload) in _TOLD_BY:
            # The rule of the fold itself; nothing else of the state matters to it.
            state = evolve(state, decode_entry(stored.payload), stored.seq)
    return await _whole(found, head, state.queue)


async def _whole(found: LogSource, head: SessionHead, queue: tuple[Queued, ...]) -> tuple[Queued, ...]:
    wanted = {digest for each in queue for item in each.turn.items for digest in references(item)}
    if not wanted:
        return queue
    texts = await found.large_texts(head.tree, wanted)
    return tuple(
        replace(each, turn=replace(each.turn, items=tuple(resolve(i, texts.get) for i in each.turn.items)))
        for each in queue
    )
