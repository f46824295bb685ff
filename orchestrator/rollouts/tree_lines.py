"""Lines of the tree's log in an exported log: the lifecycle and mailboxes of a parent's agents.

No rollout holds them, since many sessions' commits write them: they are in the tree's log, in one
order (`tree_seq`). A file for readers has the lines merged in by time, each with the entry of
the session that caused it. The lines have no place in this log's chain, and a reader of the file as a
log skips them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from orchestrator.broker.broker import Broker
from orchestrator.broker.records import SessionHead, TreeEntry
from orchestrator.core.entries import EVENT_MSG, timestamp
from orchestrator.core.entries.stored import EventKind, published_kind, read_event
from orchestrator.core.tree import ROOT
from orchestrator.protocol.agents import LifecycleChange, SubagentSummary
from orchestrator.protocol.events import AgentInbox, EventMsg, SubagentLifecycle
from orchestrator.rollouts.tree_log import tree_entries

_TOLD = frozenset[EventKind]({SubagentLifecycle, AgentInbox})


class TreeLines:
    """The lines of one session's agents, in the order of the tree's log, a stretch at a time."""

    def __init__(self, broker: Broker, head: SessionHead) -> None:
        self._head = head
        self._children: set[int] = set()
        self._entries = tree_entries(broker.logs, head.tree)
        self._next: TreeEntry | None = None

    async def before(self, at_ms: int | None) -> bytes:
        """The lines written before `at_ms`, or all, from where the last call ended."""
        lines: list[bytes] = []
        while True:
            entry = self._next or await anext(self._entries, None)
            if entry is None or (at_ms is not None and entry.at_ms >= at_ms):
                self._next = entry
                return b"".join(lines)
            self._next = None
            # Asked for before it is decoded: most of a tree's log is about other things.
            if published_kind(entry.payload) in _TOLD:
                told = orjson.loads(entry.payload)
                if self._concerns(read_event(told["msg"])):
                    lines.append(_line(entry, told))

    def _concerns(self, event: EventMsg) -> bool:
        """Whether the session's queue has the event: the root's of all agents, others' of children."""
        if self._head.agent_id == ROOT:
            return True
        match event:
            case SubagentLifecycle(event=change, subagent=SubagentSummary() as agent):
                if change is LifecycleChange.CREATED and agent.parent_agent_id == self._head.agent_id:
                    self._children.add(agent.agent_id)
                return agent.agent_id in self._children
            case SubagentLifecycle(agent_id=agent_id) | AgentInbox(agent_id=agent_id):
                return agent_id in self._children
            case _:
                return False


def _line(entry: TreeEntry, told: Mapping[str, Any]) -> bytes:
    caused_by = {"session_id": entry.session, "seq": entry.seq, "chain": entry.head.hex()}
    value = {
        "timestamp": timestamp(entry.at_ms),
        "type": EVENT_MSG,
        "payload": told["msg"],
        "id": told["id"],
        "tree_seq": entry.tree_seq,
        "caused_by": caused_by,
    }
    return orjson.dumps(value) + b"\n"
