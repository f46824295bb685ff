"""Cancelled agents that nobody serves: who they are, and a worker that sees them to their end.

A cancel is a letter, and somebody has to read it. Where the workers of an agent's pool are gone,
any other worker takes the session as it lies and lets it decide what has arrived; it begins
nothing, so it needs neither the folder nor the model. Who they are is asked of the registry, and
when to ask is told by a timer that stands until the cancel is over: so no death of a process, at
whatever point, leaves a cancel that was begun without its end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from orchestrator.broker.broker import Broker
from orchestrator.broker.errors import UnknownSession
from orchestrator.broker.records import Fired
from orchestrator.core.draft import REAP_MS, STANDING_TIMERS
from orchestrator.core.ids import SessionId, TreeId
from orchestrator.core.registry import projected

SILENT_S = 2.0
"""How long a lease must have run out before its session counts as nobody's."""
GRACE_MS = 8_000
"""A lease and two seconds: time for the workers of the agents' own pools."""


@dataclass(frozen=True, slots=True)
class Forsaken:
    """What is left of a tree's cancels at one moment."""

    left: bool
    """Whether anybody has still to end, or to say so."""
    lying: tuple[SessionId, ...]
    """Those whom nobody holds, of these and the root, which tells them."""


async def forsaken(broker: Broker, tree: TreeId) -> Forsaken:
    """Who is marked in the tree and has not ended, or has not read that it should."""
    marked = [agent for agent in projected(await broker.agents(tree)).agents.values() if agent.marked]
    active = [SessionId(agent.session) for agent in marked if agent.active]
    # One that is done already owes its own parent word of the end, too.
    others = [SessionId(agent.session) for agent in marked if not agent.active]
    root = SessionId(tree)
    unread = await _unread(broker, [*others, root])
    # With nothing to read a session would be taken in vain, and be set aside after a few times.
    sessions = [*active, *unread]
    standings = await broker.revoke_tree(tree, sessions, SILENT_S) if sessions else ()
    lying = (standing.session for standing in standings if standing.state in ("free", "revoked"))
    return Forsaken(bool(active) or any(session != root for session in unread), tuple(lying))


async def _unread(broker: Broker, sessions: Iterable[SessionId]) -> list[SessionId]:
    heads = [await broker.head(session) for session in sessions]
    return [head.session for head in heads if head is not None and head.sq_tip != head.cursor]


async def trees_to_look_after(broker: Broker, fired: Sequence[Fired]) -> list[TreeId]:
    """The trees whose cancels were not over when these timers fired."""
    trees = []
    for timer in fired:
        if timer.timer in STANDING_TIMERS:
            with suppress(UnknownSession):
                trees.append((await broker.place(timer.session)).tree)
    return list(dict.fromkeys(trees))


@dataclass(slots=True)
class Reaper:
    """The trees in which a worker was told to look after a cancel."""

    broker: Broker
    adopt: Callable[[Sequence[SessionId]], None]
    grace_ms: int = GRACE_MS
    _since: dict[TreeId, int] = field(default_factory=dict)

    async def hear(self, fired: Sequence[Fired]) -> None:
        """Notes the trees of cancels that are not over."""
        for tree in await trees_to_look_after(self.broker, fired):
            self._since.setdefault(tree, self.broker.now_ms())

    async def look(self) -> None:
        """Adopts whom the workers of their own pools have left lying."""
        for tree, since_ms in list(self._since.items()):
            waited_ms = self.broker.now_ms() - since_ms
            if waited_ms < self.grace_ms:
                continue
            found = await forsaken(self.broker, tree)
            self.adopt(found.lying)
            if not found.left or waited_ms > self.grace_ms + REAP_MS:
                # The timer fires again where anything is left, for whoever lives then.
                del self._since[tree]
