"""Look-ups of a session that its log owes: each runs beside the task, and may run twice.

A history is in Redis, which is asked until it answers; files have a time limit. What cannot be answered is an
error for its client, and never one for the session.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from orchestrator.broker.broker import Broker
from orchestrator.broker.records import OpenApproval, TreeEntry
from orchestrator.config_keys import ModelSettings
from orchestrator.core import commands as c
from orchestrator.core.calls import Call
from orchestrator.core.commands import DecidedBelow, PendingBelow, Target
from orchestrator.core.commit_parts import OpenRequest
from orchestrator.core.entries import (
    decode_entry,
    is_event,
    line_ms,
    published_event,
    published_kind,
    stored_kind,
)
from orchestrator.core.frozen import replace
from orchestrator.core.ids import AgentId, SessionId, TreeId, new_session_id, shard_of
from orchestrator.core.registry import Agent, RegistryView, projected
from orchestrator.core.settings import SessionFacts, TurnSettings, context_window
from orchestrator.core.state import PendingLookUp, State
from orchestrator.core.tree import ROOT
from orchestrator.instructions.skills import RecordedSkills
from orchestrator.protocol import events as ev
from orchestrator.protocol import ops
from orchestrator.protocol.catalog import HistoryEntry, ListedModel, SkillErrorInfo, SkillsListEntry
from orchestrator.protocol.events import RequestResolved
from orchestrator.protocol.ids import CallId, SubmissionId
from orchestrator.protocol.wire import EventModel, JsonMapping
from orchestrator.rollouts.full_log import end_of_turn, full_log, read_all
from orchestrator.rollouts.object_store import ArchiveUnavailable
from orchestrator.rollouts.rollout_file import path_beside
from orchestrator.rollouts.segments import BrokenArchive
from orchestrator.rollouts.session_summary import Position
from orchestrator.runtime.loader import BEGINNING, BrokenLog, fold_entries
from orchestrator.runtime.machine_files import PATIENCE_S
from orchestrator.runtime.ports import Ports
from orchestrator.runtime.runner_context import RunnerContext
from orchestrator.tools.agent_tools import BATCHED, NAMES
from orchestrator.tools.subagents import LogUnreadable, root_target, target_of

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
            return await _skills(context.ports, state, op)
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


async def _skills(ports: Ports, state: State, op: ops.ListSkills) -> Answer:
    cwd, entries, listed = state.settings.cwd, [], 0
    async with asyncio.timeout(PATIENCE_S):
        for asked in op.cwds or (cwd,):
            entry = await _skills_of(ports, state, str(Path(cwd, asked)), anew=op.force_reload)
            listed += len(entry.skills) + len(entry.errors)
            if listed > MOST_LISTED:
                raise ValueError(f"the folders have more than {MOST_LISTED:,} skills together; name fewer")
            entries.append(entry.model_copy(update={"cwd": asked}))
    return ev.ListSkillsResponse(skills=tuple(entries))


async def _skills_of(ports: Ports, state: State, folder: str, *, anew: bool) -> SkillsListEntry:
    if state.facts.within(folder) is None:
        return await ports.library.skills(folder, anew=anew)
    beside = await ports.library.skills("", anew=anew)
    try:
        found = await ports.folders.skills(state, folder)
    except OSError as error:
        # Those of the person can be used meanwhile.
        found = RecordedSkills(errors=(SkillErrorInfo(path=folder, message=str(error)),))
    skills, errors = (*found.skills, *beside.skills), (*found.errors, *beside.errors)
    return SkillsListEntry(cwd=folder, skills=skills, errors=errors)


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


# ── tree lookups ──────────────────────────────────────────────────────────────────────────────────
# Look-ups of agents' calls in their tree: numbers for new agents, the registry, logs.
#
# Nothing here is decided, and nothing is kept but numbers that were taken and not used yet.


_ENTRIES_READ = 2_000
"""Entries at the end of an agent's log that a look reads at most."""
_TREE_PAGE = 500
_TREE_PAGES = 10
"""Pages of the tree log in which a decision is looked for: an answer to an older one is told that nothing is
pending."""


@dataclass(slots=True)
class TreeLookups:
    """A session's view of its tree; implements the `Tree` port of the subagent tools."""

    ports: Ports
    facts: SessionFacts
    _numbers: list[int]
    _given: dict[str, tuple[AgentId, SessionId, str | None]]

    @classmethod
    def of(cls, ports: Ports, facts: SessionFacts) -> TreeLookups:
        return cls(ports, facts, [], {})

    @property
    def version(self) -> str:
        return self.ports.version

    @property
    def _broker(self) -> Broker:
        return self.ports.broker

    @property
    def _tree(self) -> TreeId:
        return TreeId(self.facts.tree_id)

    async def reserve(self, call: str, wanted: int) -> tuple[AgentId, SessionId, str | None]:
        """A new agent's number, session id and rollout path; `wanted` are taken in one go.

        A call that is assessed again, because its step was refused, is given the same again.
        """
        if call not in self._given:
            self._given[call] = await self._new(wanted)
        return self._given[call]

    async def _new(self, wanted: int) -> tuple[AgentId, SessionId, str | None]:
        if not self._numbers:
            self._numbers = list(await self._broker.trees.reserve(self._tree, max(1, wanted)))
        number, now_ms = self._numbers.pop(0), self._broker.now_ms()
        noise = int.from_bytes(self.ports.random_bytes(8), "big")
        session = new_session_id(now_ms, shard_of(self._tree, self._broker.config.shards), noise)
        return AgentId(number), session, path_beside(self.facts.rollout_path, session, now_ms)

    async def registry(self) -> RegistryView:
        """The agents of the tree, as the last commits said."""
        return projected(await self._broker.trees.agents(self._tree))

    async def log(self, session: str) -> list[tuple[int, int, dict[str, Any]]]:
        """The newest events of an agent's log, oldest first: (entry number, milliseconds, Event)."""
        head = await self._broker.logs.head(SessionId(session))
        if head is None:
            return []
        first = max(0, head.seq - _ENTRIES_READ)
        try:
            entries = await read_all(self._broker.logs, self.ports.archive, head.session, first, head.seq)
        except (BrokenArchive, ArchiveUnavailable) as error:
            # The caller's own session is whole: its model is told, its worker goes on.
            raise LogUnreadable(str(error)) from None
        found = []
        for stored in entries:
            if is_event(stored_kind(stored.payload)):
                entry = decode_entry(stored.payload)
                found.append((stored.seq, line_ms(stored.payload), {"id": entry.id, "msg": entry.payload}))
        return found

    async def pending_below(self, at_ms: int) -> tuple[PendingBelow, ...]:
        """The requests of agents below a root that stood open when an answer was given (Redis's clock)."""
        opened = await self._broker.requests.approvals()
        found = (_pending(approval, self.facts.tree_id, at_ms) for approval in opened)
        return tuple(pending for pending in found if pending is not None)

    async def decided_below(self, id: str, agent_id: int | None) -> tuple[DecidedBelow, ...]:
        """The requests under a call's or a turn's id that were settled lately, oldest first."""
        found: list[DecidedBelow] = []
        before: int | None = None
        for _ in range(_TREE_PAGES):
            page = await self._broker.logs.read_tree_back(self._tree, before, _TREE_PAGE)
            found += (decided for decided in map(_decided, page) if decided is not None)
            if len(page) < _TREE_PAGE:
                break
            before = page[-1].tree_seq
        meant = [d for d in found if id in (d.call_id, d.turn) and agent_id in (None, d.agent_id)]
        return tuple(reversed(meant))

    async def target_and_below(self, agent_id: int, spoken_to: Collection[int] = ()) -> tuple[Target, ...]:
        """An agent, then those below it that are at work; empty if there is no such agent.

        A message that is still to be sent makes those at work who are `spoken_to`.
        """
        view = await self.registry()
        if agent_id == ROOT:
            return (root_target(self.facts.tree_id),)
        if agent_id not in view.agents:
            return ()
        line = (_waking(agent, spoken_to) for agent in view.agents.values() if agent.below(agent_id))
        target = _waking(view.agents[agent_id], spoken_to)
        return (target_of(target), *(target_of(agent) for agent in line if agent.at_work))


def _waking(agent: Agent, spoken_to: Collection[int]) -> Agent:
    regular, interrupts = agent.pending
    return replace(agent, pending=(regular + 1, interrupts)) if agent.agent_id in spoken_to else agent


def looks_up(call: Call) -> bool:
    """Whether a call reads what an earlier call of the same response may just have changed."""
    return call.name in NAMES and call.name not in BATCHED


def _pending(approval: OpenApproval, tree: str, at_ms: int) -> PendingBelow | None:
    value = OpenRequest.stated(approval.payload)
    if value is None:
        # It hides none of the requests that can be read.
        return None
    asked = OpenRequest.read(value)
    if asked.tree != tree or not asked.agent_id or approval.opened_ms > at_ms:
        return None
    return PendingBelow(
        asked.agent_id,
        approval.session,
        CallId(approval.key),
        asked.turn,
        asked.sandboxed,
        asked.kind,
        _asks_for_a_secret(asked.event),
    )


def _asks_for_a_secret(event: JsonMapping) -> bool:
    return any(question.get("isSecret") for question in event.get("questions") or ())


def _decided(entry: TreeEntry) -> DecidedBelow | None:
    told = published_event(entry.payload) if published_kind(entry.payload) is RequestResolved else None
    if not (isinstance(told, RequestResolved) and told.agent_id):
        # What the root itself had asked stands in its own log.
        return None
    digest = orjson.loads(entry.about).get("response", "") if entry.about else ""
    return DecidedBelow(
        AgentId(told.agent_id), told.call_id, SubmissionId(told.turn_id), told.decision, told.who, digest
    )
