"""Look-ups of agents' calls in their tree: numbers for new agents, the registry, logs.

Nothing here is decided, and nothing is kept but numbers that were taken and not used yet.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

from orchestrator.broker.broker import Broker
from orchestrator.broker.records import OpenApproval, TreeEntry
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
from orchestrator.core.ids import AgentId, SessionId, TreeId, new_session_id, shard_of
from orchestrator.core.registry import RegistryView, projected
from orchestrator.core.settings import SessionFacts
from orchestrator.core.tree import ROOT
from orchestrator.protocol.events import RequestResolved
from orchestrator.protocol.ids import CallId, SubmissionId
from orchestrator.protocol.wire import JsonMapping
from orchestrator.rollouts.full_log import read_all
from orchestrator.rollouts.objects import ArchiveUnavailable
from orchestrator.rollouts.rollout_file import path_beside
from orchestrator.rollouts.segments import BrokenArchive
from orchestrator.runtime.ports import Ports
from orchestrator.tools.agent_tools import BATCHED, NAMES
from orchestrator.tools.subagents import LogUnreadable, root_target, target_of

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

    async def target_and_below(self, agent_id: int) -> tuple[Target, ...]:
        """An agent, then those below it that are at work; empty if there is no such agent."""
        view = await self.registry()
        if agent_id == ROOT:
            return (root_target(self.facts.tree_id),)
        if agent_id not in view.agents:
            return ()
        below = (agent for agent in view.agents.values() if agent.below(agent_id) and agent.at_work)
        return (target_of(view.agents[agent_id]), *map(target_of, below))


def looks_up(call: Call) -> bool:
    """Whether a call reads what an earlier call of the same response may just have changed."""
    return call.name in NAMES and call.name not in BATCHED


def _pending(approval: OpenApproval, tree: str, at_ms: int) -> PendingBelow | None:
    asked = OpenRequest.read(orjson.loads(approval.payload))
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
