"""A workload about those who follow the fleet: what they were told, held against what Redis has."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from random import Random
from typing import Any

from orchestrator.broker.errors import BrokerError
from orchestrator.broker.fleet_feed import FleetFeed
from orchestrator.broker.records import SessionHead
from orchestrator.broker.replies import HEAD_FIELDS, session_head
from orchestrator.core.ids import SessionId, TreeId
from sim.fixture import Fixture
from sim.loop import Lane
from sim.machines import Clock, Site, broker_on

QUIET_S = 20.0
"""Time in which a follower that meets no fault has read what was told, and has looked behind a quiet time."""
TRIES = 40
RETRY_S = 0.1

Play = Callable[[Fixture], Awaitable[None]]
Row = tuple[str, str, str, str, bool, bool, bool]


def row_of(head: SessionHead) -> Row:
    """The row that lists show of a session."""
    title = str(head.summary.get("title"))
    return (
        *(head.status, head.holder or "", head.name, title),
        *(head.quarantined, head.archived, head.shelved),
    )


class Follower:
    """A process that follows the fleet, and now and then puts a root away, or back."""

    def __init__(self, site: Site, name: str, rng: Random) -> None:
        self.lane, self.name = Lane(name), name
        self._site, self._rng = site, rng
        clock = Clock(site.loop, rng.uniform(0.0, 1e6), 1.0 + rng.uniform(-2e-3, 2e-3))
        self.broker, self._connection = broker_on(site, name, clock)
        self.rows: dict[str, Row] = {}
        self._reads_anew = False

    def follows(self) -> asyncio.Task[None]:
        return self._site.loop.start(self.lane, self._follow(), f"{self.name}:follows")

    async def _follow(self) -> None:
        feed = self.broker.fleet_feed("")
        while True:
            try:
                await self._told(feed)
            except BrokerError:
                await asyncio.sleep(RETRY_S)

    async def _told(self, feed: FleetFeed) -> None:
        if self._reads_anew:
            # What changes meanwhile is told behind it.
            self.rows, self._reads_anew = await self._whole(), False
        changes = await feed.changes()
        if changes.anew:
            self._reads_anew = True
            self._site.watch.reach.saw("follows_anew")
        if changes.heads:
            self._site.watch.reach.saw("followed")
        self.rows |= {str(head.session): row_of(head) for head in changes.heads}
        for session in changes.gone:
            self.rows.pop(str(session), None)

    async def _whole(self) -> dict[str, Row]:
        ids = [session async for page in self.broker.logs.session_ids() for session in page]
        return {str(head.session): row_of(head) for head in await self.broker.logs.heads(ids)}

    async def shelves(self, times: int) -> None:
        for _ in range(times):
            await asyncio.sleep(20.0 * self._rng.random())
            if roots := [one for one, seen in self._site.watch.sessions.items() if one == seen.tree]:
                chosen = SessionId(self._rng.choice(roots))
                with suppress(BrokerError):
                    await self.broker.trees.enlist(chosen, shelve=self._rng.random() < 0.5)
                with suppress(BrokerError):
                    await self._recounts(TreeId(chosen))

    async def _recounts(self, tree: TreeId) -> None:
        """A tree is as if an earlier version had made it, and is counted soon, or twice, or never."""
        if self._rng.random() < 0.7:
            await self._connection.command("HDEL", self.broker.keys.session(tree), "states")
        for _ in range(self._rng.choice((0, 1, 2))):
            await asyncio.sleep(2.0 * self._rng.random())
            if await self.broker.trees.recount(tree) is not None:
                self._site.watch.reach.saw("recounted")


async def followed(fixture: Fixture, plays: Sequence[Play]) -> None:
    """Another play, while one or two follow what lists show of its sessions."""
    rng, site = fixture.rng, fixture.site
    followers = [Follower(site, f"f{n + 1}", Random(rng.getrandbits(64))) for n in range(rng.choice((1, 2)))]
    for one in followers:
        one.follows()
    shelver = site.loop.start(followers[0].lane, followers[0].shelves(rng.choice((0, 2, 4))), "shelves")
    await rng.choice(plays)(fixture)
    await asyncio.wait([shelver])
    await fixture.nemesis.calm.wait()
    for _ in range(TRIES):
        before = truth_of(site)
        await asyncio.sleep(QUIET_S)
        if truth_of(site) == before:
            break
    else:
        return
    for one in followers:
        for session in before.keys() | one.rows.keys():
            if (told := one.rows.get(session)) != (there := before.get(session)):
                site.watch.broken("followed", f"{one.name} was told of {session} {told}, and it is {there}")


def truth_of(site: Site) -> dict[str, Any]:
    """The row of each session by Redis, as `row_of` has it."""
    found = {}
    for session in site.watch.sessions:
        fields = site.watch.fields(session)
        head = session_head(SessionId(session), [fields.get(name.encode()) for name in HEAD_FIELDS])
        if head is not None:
            found[session] = row_of(head)
    return found
