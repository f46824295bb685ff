"""A session's view of its tree: its children, its inbox, its own status.

Every session decides from its own log alone, so what it needs of others is here: a child
is what its messages told, never a look at the child. The registry of the whole tree is a
projection (`core.registry`); nothing here is read from it.

An agent stands in one of these, and only its own commits say so, but for two: the parent
creates it, and the parent has read its result.

    queued ──► running ──► ready ──► idle          (ready: its result was not read yet)
                 ▲  │                  │
                 │  ├──► failed ───────┤  a message starts it again
                 │  └──► canceled      │  for good: nothing starts it again
                 └─────────────────────┘
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Literal, TypedDict

from orchestrator.core.frozen import record
from orchestrator.core.ids import AgentId, SessionId
from orchestrator.protocol.wire import JsonMapping

ROOT = AgentId(0)
AgentStatus = Literal["queued", "running", "ready", "idle", "failed", "canceled"]
ACTIVE: frozenset[str] = frozenset({"queued", "running"})
"""Statuses that hold one of the tree's slots."""
Evidence = Literal["proved", "presumed"]
"""How surely what an agent ran is dead: `presumed` if its worker was lost meanwhile."""
MailKind = Literal["message", "completion"]

Payload = JsonMapping


class AgentCard(TypedDict):
    """An agent's record but for its status: a message names its sender by it."""

    agent_id: AgentId
    parent_agent_id: int | None
    session_id: SessionId
    parent_session_id: str | None
    origin: str
    label: str | None
    summary: str | None
    reasoning_header: str | None
    started_at_ms: int
    agent_path: str


class AgentRecord(AgentCard):
    """An agent as this version's registry has it; one of another version may have more, or less."""

    status: str
    turn: int


@record
class Child:
    """A child as its parent knows it."""

    agent_id: AgentId
    session: SessionId
    origin: str
    status: AgentStatus
    started_ms: int
    label: str | None = None
    summary: str | None = None
    header: str | None = None
    """The heading of its reasoning, as of its last completion."""
    initial_messages: int = 0
    turn: int = 0
    """The number of its last task that is known to have ended."""
    helper: bool = False
    """Made by `spawn_subagent`: its result goes to that call alone."""
    ending: bool = False
    """The child was told to end, and has not said yet that it and all below it has."""
    pruned: bool = False
    """The child is off the list; but agents below it may still be at work."""

    @property
    def active(self) -> bool:
        return self.status in ACTIVE


class ChildChanges(TypedDict, total=False):
    """Fields of a child that change."""

    status: AgentStatus
    label: str
    summary: str | None
    header: str | None
    turn: int
    ending: bool
    pruned: bool


@record
class Mail:
    """A message that the model has not been given yet."""

    key: str
    kind: MailKind
    n: int
    """The message's number in the session's queue: a synthetic await is named after it."""
    interrupt: bool
    at_ms: int
    sender: JsonMapping
    """The sender's card: agent_id, session_id, agent_path, parent ids, origin, label."""
    content: JsonMapping

    @property
    def agent_id(self) -> AgentId:
        return AgentId(int(self.sender["agent_id"]))


@record
class Watchdog:
    """A regular message to `agent_id`, sent again every `interval_ms`."""

    agent_id: AgentId
    session: SessionId
    interval_ms: int
    message: str
    generation: int


@record
class TreeView:
    """The tree, as far as this session's own log tells of it."""

    children: Mapping[AgentId, Child] = field(default_factory=dict)
    inbox: tuple[Mail, ...] = ()
    """In order of arrival; the two lanes are told apart by `interrupt`."""
    watchdogs: Mapping[AgentId, Watchdog] = field(default_factory=dict)
    status: AgentStatus | None = None
    """The agent's own status; a root has none."""
    slot: bool = False
    """Whether the agent holds one of the tree's slots."""
    turns: int = 0
    """Tasks that came to an end: a completion is told apart by this number."""
    autos: int = 0
    """Tasks that no submission started."""
    label: str | None = None
    summary: str | None = None
    header: str | None = None
    started_ms: int = 0
    canceling: str | None = None
    """The reason of this agent's cancellation. From here on nothing starts, and the end is told when all
    below has ended."""
    to_end: tuple[AgentId, ...] = ()
    """Children that are to end and were not told yet: they are more than one commit tells."""
    end_reason: str | None = None
    """The reason why the children are to end."""
    end_by: JsonMapping | None = None
    """The person who asked for their end (`Sender`), as letters name them; None if nobody is known."""
    ended: bool = False
    """After a cancel: the agent has said that nothing of it, or below it, is left."""
    pruned: bool = False
    """The agent was taken off the list: it starts nothing any more."""
    evidence: Evidence = "proved"
    ended_below: Evidence = "proved"
    """How surely the agents below that were cancelled are dead: `evidence` begins each task with it."""
    paused: str | None = None
    """The budget of the tree that is spent, while that keeps the session from going on."""

    @property
    def active_children(self) -> tuple[Child, ...]:
        return tuple(child for child in self.children.values() if child.active and not child.pruned)

    @property
    def listed_children(self) -> Mapping[AgentId, Child]:
        return {id: child for id, child in self.children.items() if not child.pruned}

    @property
    def ending_children(self) -> bool:
        """Whether some child is to end and has not yet said that it has."""
        return bool(self.to_end) or any(child.ending for child in self.children.values())


class TreeChanges(TypedDict, total=False):
    """Fields of the view that an agent's own commits change."""

    status: AgentStatus
    slot: bool
    turns: int
    autos: int
    label: str | None
    summary: str | None
    header: str | None
    started_ms: int
    canceling: str
    ended: bool
    pruned: bool
    evidence: Evidence
    ended_below: Evidence
    paused: str | None


STORED_EMPTY = ("status", "canceling", "end_reason", "paused")
"""Fields of the view whose None is an empty text in a snapshot."""
USUAL_TREE: Mapping[str, object] = {"end_by": None, "ended_below": "proved"}
"""Fields that snapshots leave out where they are as usual: those of earlier versions have none."""


def decode_tree(wire: Payload) -> TreeView:
    """The view that a snapshot holds."""
    nested = {
        "children": {id: Child(**child) for id, child in _by_number(wire["children"])},
        "to_end": tuple(wire["to_end"]),
        "inbox": tuple(Mail(**mail) for mail in wire["inbox"]),
        "watchdogs": {id: Watchdog(**dog) for id, dog in _by_number(wire["watchdogs"])},
        **{name: wire[name] or None for name in STORED_EMPTY},
    }
    return TreeView(**{**wire, **nested})


def _by_number(wire: Mapping[str, Payload]) -> list[tuple[AgentId, Payload]]:
    """Agents in the order in which they were made; a snapshot's names are sorted as texts, 10 before 5."""
    return sorted((AgentId(int(id)), made) for id, made in wire.items())


# ── cancel flags ──────────────────────────────────────────────────────────────────────────────────


def cancel_flag(agent_id: int) -> str:
    """The registry's field that stands from an agent's cancellation on."""
    return f"cancel:{agent_id}"


def pruned_flag(agent_id: int) -> str:
    return f"x:{agent_id}"


def cancel_flags(ancestors: tuple[int, ...], agent_id: int) -> tuple[str, ...]:
    """The fields that must not stand where an agent starts anything; a root is never marked."""
    return (*(cancel_flag(id) for id in (*ancestors, agent_id) if id), pruned_flag(agent_id))
