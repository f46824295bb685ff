"""What one session knows of its tree: its children, its inbox, its own standing.

Every session decides from its own log alone, so what it needs of others is here: a child
is what its letters told, never a look at the child. The registry of the whole tree is a
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

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.core.frozen import replace

ROOT = 0
ACTIVE = frozenset({"queued", "running"})
"""Statuses that hold one of the tree's slots."""

Payload = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Child:
    """A child as its parent knows it."""

    agent_id: int
    session: str
    origin: str
    status: str
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
    """It was told to end, and has not said yet that it and all below it has."""
    pruned: bool = False
    """Off the list; but what is below it may still be at work."""

    @property
    def active(self) -> bool:
        return self.status in ACTIVE


@dataclass(frozen=True, slots=True)
class Mail:
    """A letter that the model has not been given yet."""

    key: str
    kind: str
    """`message` or `completion`."""
    n: int
    """Its number in the session's queue: what a synthetic await is named after."""
    interrupt: bool
    at_ms: int
    sender: Mapping[str, Any]
    """The sender's card: agent_id, session_id, agent_path, parent ids, origin, label."""
    content: Mapping[str, Any]

    @property
    def agent_id(self) -> int:
        return int(self.sender["agent_id"])


@dataclass(frozen=True, slots=True)
class Watchdog:
    """A regular message to `agent_id`, sent again every `interval_ms`."""

    agent_id: int
    session: str
    interval_ms: int
    message: str
    generation: int


@dataclass(frozen=True, slots=True)
class TreeView:
    """The tree, as far as this session's own log tells of it."""

    children: Mapping[int, Child] = field(default_factory=dict)
    inbox: tuple[Mail, ...] = ()
    """In order of arrival; the two lanes are told apart by `interrupt`."""
    watchdogs: Mapping[int, Watchdog] = field(default_factory=dict)
    status: str = ""
    """Its own status; empty for a root, which has none."""
    slot: bool = False
    """Whether one of the tree's slots is held for it."""
    turns: int = 0
    """Tasks that came to an end: a completion is told apart by this number."""
    autos: int = 0
    """Tasks that no submission started."""
    label: str | None = None
    summary: str | None = None
    header: str | None = None
    started_ms: int = 0
    canceling: str = ""
    """Why it was cancelled. From here on nothing starts, and the end is told when all below it has ended."""
    to_end: tuple[int, ...] = ()
    """Children that are to end and were not told yet: they are more than one commit tells."""
    end_reason: str = ""
    """Why they are to end."""
    ended: bool = False
    """After a cancel: it has said that nothing of it, or below it, is left."""
    pruned: bool = False
    """Somebody took it off the list: it starts nothing any more."""
    evidence: str = "proved"
    """How surely what it ran is dead: `presumed` if its worker was lost meanwhile."""
    paused: str = ""
    """Which budget of the tree is spent, while that keeps the session from going on."""

    @property
    def active_children(self) -> tuple[Child, ...]:
        return tuple(child for child in self.children.values() if child.active and not child.pruned)

    @property
    def listed_children(self) -> Mapping[int, Child]:
        return {id: child for id, child in self.children.items() if not child.pruned}

    @property
    def ending_children(self) -> bool:
        """Whether some child is to end and has not yet said that it has."""
        return bool(self.to_end) or any(child.ending for child in self.children.values())

    @property
    def ends_in_pieces(self) -> bool:
        """Whether children are still to be told of their end, or mail to be let go that nobody will read."""
        return bool(self.to_end or (self.canceling and self.inbox))


# ── folding ───────────────────────────────────────────────────────────────────────────────────


def _agent(tree: TreeView, payload: Payload) -> TreeView:
    return replace(tree, **payload["changes"])


def _child(tree: TreeView, payload: Payload) -> TreeView:
    child = Child(**payload["child"])
    return replace(tree, children={**tree.children, child.agent_id: child})


def _child_changed(tree: TreeView, payload: Payload) -> TreeView:
    child = tree.children.get(payload["agent_id"])
    if child is None:
        return tree
    changed = replace(child, **payload["changes"])
    return replace(tree, children={**tree.children, child.agent_id: changed})


def _children_changed(tree: TreeView, payload: Payload) -> TreeView:
    named, changes = frozenset(payload["agent_ids"]), payload["changes"]
    children = {
        id: replace(child, **changes) if id in named else child for id, child in tree.children.items()
    }
    return replace(tree, children=children)


def _to_end(tree: TreeView, payload: Payload) -> TreeView:
    return replace(tree, to_end=tuple(payload["agent_ids"]), end_reason=payload["reason"])


def _told_to_end(tree: TreeView, payload: Payload) -> TreeView:
    return replace(tree, to_end=tree.to_end[payload["count"] :])


def _mail(tree: TreeView, payload: Payload) -> TreeView:
    return replace(tree, inbox=(*tree.inbox, Mail(**payload["mail"])))


def _mail_taken(tree: TreeView, payload: Payload) -> TreeView:
    taken = frozenset(payload["keys"])
    return replace(tree, inbox=tuple(mail for mail in tree.inbox if mail.key not in taken))


def _watchdog(tree: TreeView, payload: Payload) -> TreeView:
    watchdog = Watchdog(**payload["watchdog"])
    return replace(tree, watchdogs={**tree.watchdogs, watchdog.agent_id: watchdog})


def _watchdog_ended(tree: TreeView, payload: Payload) -> TreeView:
    gone = payload["agent_id"]
    return replace(tree, watchdogs={id: dog for id, dog in tree.watchdogs.items() if id != gone})


TREE_STEPS: Mapping[str, Callable[[TreeView, Payload], TreeView]] = {
    "agent": _agent,
    "child": _child,
    "child_changed": _child_changed,
    "children_changed": _children_changed,
    "to_end": _to_end,
    "told_to_end": _told_to_end,
    "mail": _mail,
    "mail_taken": _mail_taken,
    "watchdog": _watchdog,
    "watchdog_ended": _watchdog_ended,
}
"""The facts of the log that change this view, by their kind."""


def decode_tree(wire: Payload) -> TreeView:
    """The view that a snapshot holds."""
    nested = {
        "children": {id: Child(**child) for id, child in _by_number(wire["children"])},
        "to_end": tuple(wire["to_end"]),
        "inbox": tuple(Mail(**mail) for mail in wire["inbox"]),
        "watchdogs": {id: Watchdog(**dog) for id, dog in _by_number(wire["watchdogs"])},
    }
    return TreeView(**{**wire, **nested})


def _by_number(wire: Mapping[str, Payload]) -> list[tuple[int, Payload]]:
    """Agents in the order in which they were made; a snapshot's names are sorted as texts, 10 before 5."""
    return sorted((int(id), made) for id, made in wire.items())
