"""The state at the end of a turn that lies before a compaction: the log is folded up to it again.

The log was proved when the session was claimed; here it is proved up to the same head, so that nothing that
was put into it since is taken for what was said.
"""

from __future__ import annotations

import orjson

from orchestrator.core.ids import SessionId
from orchestrator.core.state import State
from orchestrator.rollouts.full_log import full_log
from orchestrator.rollouts.position import Position
from orchestrator.rollouts.turn_ends import end_of_turn
from orchestrator.runtime.loader import BEGINNING, BrokenLog, fold_entries
from orchestrator.runtime.runner_context import RunnerContext

MOST_BYTES = 32 << 20
"""Bytes of a conversation that is put back, without its large texts: it becomes one stored text."""


async def state_after(context: RunnerContext, response_id: str) -> State | None:
    """The state at the end of the turn; None if the session was lost meanwhile.

    Raises `ValueError` if the log has no such turn or the conversation is too large, `BrokenLog` if the log
    cannot be trusted, and the archive's errors for a sealed part that cannot be read.
    """
    end = context.journal.position
    return await context.writing.insist(lambda: _state_after(context, end, response_id))


async def _state_after(context: RunnerContext, end: Position, response_id: str) -> State:
    ports, session = context.ports, SessionId(context.claim.session)
    secret = context.config.chain_key.secret if context.config.chain_key else b""
    turn = await end_of_turn(
        full_log(ports.broker.logs, ports.archive, session, 0, end.seq), secret, response_id
    )
    if turn.broken is not None or (turn.last, turn.head) != (end.seq, end.head):
        raise BrokenLog(f"its entries do not lead to entry {end.seq}")
    if not turn.seq:
        raise ValueError("the log has no turn that ended so")
    entries = full_log(ports.broker.logs, ports.archive, session, 0, turn.seq)
    state = (await fold_entries(ports, BEGINNING, entries, secret)).state
    if (size := len(orjson.dumps(list(state.history), default=dict))) > MOST_BYTES:
        raise ValueError(f"the conversation has {size:,} bytes, and at most {MOST_BYTES:,} can be put back")
    return state
