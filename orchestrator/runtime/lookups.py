"""Look-ups of a session that its log owes: each runs beside the task, and may run twice.

A history is in Redis, which is asked until it answers; files have a time limit. What cannot be answered is an
error for its client, and never one for the session.
"""

from __future__ import annotations

from pathlib import Path

import orjson

from orchestrator.core import commands as c
from orchestrator.core.ids import SessionId
from orchestrator.core.settings import TurnSettings, context_window
from orchestrator.core.state import PendingLookUp, State
from orchestrator.protocol import events as ev
from orchestrator.protocol import ops
from orchestrator.protocol.catalog import HistoryEntry, ListedModel
from orchestrator.protocol.wire import EventModel
from orchestrator.rollouts.full_log import end_of_turn, full_log
from orchestrator.rollouts.objects import ArchiveUnavailable
from orchestrator.rollouts.segments import BrokenArchive
from orchestrator.rollouts.summary import Position
from orchestrator.runtime.library import PATIENCE_S
from orchestrator.runtime.loader import BEGINNING, BrokenLog, fold_entries
from orchestrator.runtime.runner_context import RunnerContext
from orchestrator.tables import ModelSettings

NOISE_BYTES = 8
MOST_LISTED = 2_000
"""Skills and errors of one answer, in all of its folders; models of one."""

Answer = EventModel | None


async def look_up(context: RunnerContext, key: str) -> c.LookedUp:
    """The outcome of a look-up that the state holds."""
    asked = context.journal.state.lookup(key)
    if asked is None:
        return c.LookedUp(key)
    try:
        if asked.turn is not None:
            return c.LookedUp(key, past=await state_after(context, asked.turn))
        return c.LookedUp(key, await _answer(context, asked, context.journal.state))
    except TimeoutError:
        why = (
            f"the files did not answer within {PATIENCE_S:g} s on the worker's machine: look at the disk or "
            "mount that they are on, and for pipes in the place of files"
        )
    except (OSError, ValueError) as error:
        why = str(error)
    except (BrokenLog, BrokenArchive, ArchiveUnavailable) as error:
        why = f"the log cannot be read back to it: {error}; `dendro verify` tells more"
    if asked.turn is not None:
        return c.LookedUp(key, error=f"{why}. Nothing was said to the model")
    return c.LookedUp(key, error=f"{asked.op['type']} was not answered: {why}. Ask again when that is mended")


async def _answer(context: RunnerContext, asked: PendingLookUp, state: State) -> Answer:
    op = ops.OPS[asked.op["type"]].model_validate(asked.op)
    match op:
        case ops.AddToHistory():
            await _add_to_history(context, asked, op.text)
            return None
        case ops.GetHistoryEntryRequest():
            return await _history_entry(context, asked.who, op)
        case ops.ListCustomPrompts():
            prompts = await context.ports.library.prompts()
            return ev.ListCustomPromptsResponse(custom_prompts=prompts)
        case ops.ListSkills():
            return await _skills(context, op, state.settings.cwd)
        case ops.ListMcpTools():
            return ev.McpListToolsResponse(tools=await context.ports.tools.of_servers(state))
        case ops.ListModels():
            return ev.ListModelsResponse(models=_models(context.ports.model_settings, state.settings))
        case _:
            raise ValueError("this version does not look that up")


async def _add_to_history(context: RunnerContext, asked: PendingLookUp, text: str) -> None:
    ports, session = context.ports, SessionId(context.claim.session)
    if not ports.library.keeps_history:
        return
    noise, key = ports.random_bytes(NOISE_BYTES), f"{session}|{asked.key}"
    add = (asked.who, key, (session, text), noise)
    await context.writing.insist(lambda: ports.broker.requests.add_to_history(*add))


async def _history_entry(context: RunnerContext, who: str, op: ops.GetHistoryEntryRequest) -> Answer:
    broker = context.ports.broker
    kept = await context.writing.insist(lambda: broker.requests.history_entry(who, op.log_id, op.offset))
    entry = (
        HistoryEntry(conversation_id=kept.session, ts=kept.at_ms // 1000, text=kept.text) if kept else None
    )
    return ev.GetHistoryEntryResponse(offset=op.offset, log_id=op.log_id, entry=entry)


def _models(known: ModelSettings, session: TurnSettings) -> tuple[ListedModel, ...]:
    """The default model, the session's, and those that have a price."""
    default = (known.model, known.provider)
    found = dict.fromkeys((default, (session.model, session.model_provider)))
    priced = sorted(known.prices.keys() - {model for model, _ in found})[: MOST_LISTED - len(found)]
    named: list[tuple[str, str | None]] = [*found, *((model, None) for model in priced)]
    return tuple(
        ListedModel(
            model=model,
            model_provider=provider,
            is_default=(model, provider) == default,
            context_window=context_window(model, known.context_window if model == known.model else None),
        )
        for model, provider in named
    )


async def _skills(context: RunnerContext, op: ops.ListSkills, cwd: str) -> Answer:
    entries, listed = [], 0
    for asked in op.cwds or (cwd,):
        entry = await context.ports.library.skills(str(Path(cwd, asked)), anew=op.force_reload)
        listed += len(entry.skills) + len(entry.errors)
        if listed > MOST_LISTED:
            raise ValueError(f"the folders have more than {MOST_LISTED:,} skills together; name fewer")
        entries.append(entry.model_copy(update={"cwd": asked}))
    return ev.ListSkillsResponse(skills=tuple(entries))


# ── earlier turns ─────────────────────────────────────────────────────────────────────────────────
# The state at the end of a turn that lies before a compaction: the log is folded up to it again.
#
# The log was proved when the session was claimed; here it is proved up to the same head, so that nothing
# that was put into it since is taken for what was said.


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
