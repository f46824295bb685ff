"""Cancelled agents that nobody serves: who they are, and a worker that sees them to their end.

A cancel is a message, and somebody has to read it. Where the workers of an agent's pool are gone,
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
from orchestrator.broker.errors import Corrupt, UnknownSession
from orchestrator.broker.logs import Logs
from orchestrator.broker.records import Fired
from orchestrator.core.commit_parts import REAP_MS, STANDING_TIMERS
from orchestrator.core.frozen import record
from orchestrator.core.ids import SessionId, TreeId
from orchestrator.core.registry import listed_agents
from orchestrator.core.tree import ROOT
from orchestrator.runtime import log

SILENT_S = 2.0
"""Seconds for which a lease must have run out before its session counts as unheld."""
GRACE_MS = 8_000
"""A lease and two seconds: time for the workers of the agents' own pools."""


@record
class Unended:
    """The agents of a tree's cancels that are not over at one moment."""

    active: tuple[SessionId, ...]
    owing: tuple[SessionId, ...]
    """Agents at rest that have something to read, or that a worker holds: they may owe a report of their
    end."""

    @property
    def sessions(self) -> tuple[SessionId, ...]:
        return (*self.active, *self.owing)


@record
class Forsaken:
    """The rest of a tree's cancels at one moment."""

    left: bool
    """Whether any agent has still to end, or to report its end."""
    lying: tuple[SessionId, ...]
    """The sessions that no worker holds: of these agents, and of the agents that tell them."""


async def unended(
    broker: Broker, tree: TreeId, under: int = ROOT, known: Iterable[SessionId] = ()
) -> Unended:
    """The agents below one that are marked and have not ended, or not reported their end.

    `known` are other sessions that may owe a report: one session knows of them and the registry does not.
    """
    # One that cannot be read owes nothing that anybody could bring to an end; so below.
    agents = listed_agents(await broker.trees.agents(tree)).values()
    marked = [agent for agent in agents if agent.marked and agent.below(under)]
    active = tuple(SessionId(agent.session) for agent in marked if agent.active)
    # One that is done already owes its own parent word of the end, too.
    resting = (SessionId(agent.session) for agent in marked if not agent.active)
    others = [session for session in dict.fromkeys((*known, *resting)) if session not in active]
    heads = await broker.logs.heads(others, {})
    # With nothing to read a parked one would be taken in vain, and be quarantined after a few times.
    owing = (head.session for head in heads if not head.parked)
    return Unended(active, tuple(owing))


async def forsaken(broker: Broker, tree: TreeId) -> Forsaken:
    """The rest of a whole tree's cancels; `lying` are sessions that no worker has served for a while.

    The root is asked about as well: it tells the others.
    """
    root = SessionId(tree)
    found = await unended(broker, tree, known=(root,))
    states = await broker.trees.revoke_tree(tree, found.sessions, SILENT_S) if found.sessions else ()
    lying = (state.session for state in states if state.state in ("free", "revoked"))
    return Forsaken(any(session != root for session in found.sessions), tuple(lying))


async def taken_at_once(broker: Broker, tree: TreeId, under: int, known: Iterable[SessionId]) -> Forsaken:
    """Takes the claims of unended agents below one that has waited long enough, from living workers too.

    `lying` are the agents that no worker held. They have waited in vain for a worker of their pool; the
    next worker of the others finds the cancel.
    """
    found = await unended(broker, tree, under, known)
    states = await broker.trees.revoke_tree(tree, found.sessions) if found.sessions else ()
    lying = (state.session for state in states if state.state == "free")
    return Forsaken(bool(found.active), tuple(lying))


async def trees_with_cancels(logs: Logs, fired: Sequence[Fired]) -> list[TreeId]:
    """The trees whose cancels were not over when these timers fired."""
    trees = []
    for timer in fired:
        if timer.timer in STANDING_TIMERS:
            with suppress(UnknownSession, Corrupt):
                trees.append((await logs.place(timer.session)).tree)
    return list(dict.fromkeys(trees))


@dataclass(slots=True)
class Reaper:
    """The trees in which a worker was told to look after a cancel."""

    broker: Broker
    adopt: Callable[[Sequence[SessionId]], None]
    grace_ms: int = GRACE_MS
    _since: dict[TreeId, int] = field(default_factory=dict)

    async def receive(self, fired: Sequence[Fired]) -> None:
        """Notes the trees of cancels that are not over."""
        for tree in await trees_with_cancels(self.broker.logs, fired):
            self._since.setdefault(tree, self.broker.now_ms())

    async def poll(self) -> None:
        """Adopts agents that the workers of their own pools have left unended."""
        for tree, told_ms in list(self._since.items()):
            now_ms = self.broker.now_ms()
            # By a clock that was put back it would have been told of in a time to come.
            self._since[tree] = min(told_ms, now_ms)
            waited_ms = now_ms - self._since[tree]
            if waited_ms < self.grace_ms:
                continue
            found = await self._looked_at(tree)
            self.adopt(found.lying)
            if not found.left or waited_ms > self.grace_ms + REAP_MS:
                # The timer fires again where anything is left, for the workers that live then.
                del self._since[tree]

    async def _looked_at(self, tree: TreeId) -> Forsaken:
        """The rest of a tree's cancels; of one that cannot be read nothing, and it hides no other."""
        try:
            return await forsaken(self.broker, tree)
        except Corrupt as error:
            log.warning("tree %s: its cancels were not looked after: %s", tree, error)
            return Forsaken(True, ())
