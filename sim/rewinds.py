"""Faults of Redis itself: it is gone for a while, and comes back without the last of what it did.

A part of the nemesis (`sim/nemesis.py`), which draws them.
"""

from __future__ import annotations

import asyncio
from random import Random

from sim.double import Double
from sim.failover import Failover
from sim.held_messages import HeldMessage, LostText
from sim.loop import Lane
from sim.machines import Process, Site
from sim.network import Sent
from sim.triggers import Trigger, acts, bears, reserves, says, starts_a_call, stores


class Rewinds:
    """Faults that end the server, and may put its data back."""

    site: Site
    lane: Lane
    failover: Failover | None
    _double: Double
    _rng: Random
    _trigger: Trigger | None

    def _victim(self) -> Process | None:
        raise NotImplementedError

    def lie_in_wait(self, kind: type[HeldMessage]) -> None:
        raise NotImplementedError

    async def _down(self) -> None:
        await self._restart(0.0)

    async def _rewind_1s(self) -> None:
        """Killed under `everysec`: what it did in the last second is gone."""
        await self._restart(self._rng.random())

    async def _rewind(self) -> None:
        """Puts an older copy of the data back."""
        await self._restart(self._rng.uniform(1.0, 20.0))

    async def _restart(self, loses_s: float) -> None:
        if self.site.network.up:
            await asyncio.sleep(self._goes_down(loses_s))
            self._comes_up()

    def _goes_down(self, loses_s: float) -> float:
        """Redis is gone, and what it did last; for how long, is answered."""
        network, now = self.site.network, self.site.loop.time()
        if self.failover is not None:
            self.failover.heals()
        network.go_down()
        journal = self._double.journal
        kept = sum(at <= now - loses_s for at, _ in journal)
        if kept < len(journal):
            self._double.restore(kept)
            self.site.objects.put_back(now - loses_s)
            if network.replicas is not None:
                network.replicas.went_back(now - loses_s)
            self.site.watch.went_back(now - loses_s)
            self.site.trace.note("nemesis", "loses", len(journal) - kept, "commands", loses_s, "s")
        return self._rng.uniform(0.05, 3.0)

    def _comes_up(self) -> None:
        self.site.network.up = True
        if self._rng.random() < 0.5:
            # A restart forgets scripts; a broken connection does not.
            self._double.forget_scripts()

    async def _rewind_at(self) -> None:
        """Redis forgets what it has just been told, and a little more."""
        if victim := self._victim():
            some, few, one = (1, 2, 3, 5, 8), (1, 1, 2), (1,)
            counts, lefts = self._rng.choice(
                ((acts, some), (starts_a_call, few), (reserves, one), (reserves, one), (says, one))
            )
            anybody = counts in (says, reserves)
            self._trigger = Trigger(victim, self._forget, self._rng.choice(lefts), counts, anybody)

    async def _rewind_text(self) -> None:
        """Redis forgets a large text while the step that names it is on its way."""
        if self._rng.random() < 0.3:
            self._trigger = Trigger(None, self._forget, 1, stores, anybody=True)
        else:
            self.lie_in_wait(LostText)

    def loses(self, loses_s: float) -> float:
        """Takes Redis down with what it was told last, and brings it back; how long that takes."""
        down_s = self._goes_down(loses_s)
        self.site.loop.on(self.lane, self._comes_up, after=down_s)
        return down_s

    def forgets_birth(self) -> None:
        """A large text of the next session that is born with some is gone before the session is made."""
        stored: list[str] = []

        def counts(sent: Sent) -> bool:
            if bears(sent):
                stored.extend(str(key) for key in sent.args[3:6])
            return bool(stored)

        def strikes(_: object) -> None:
            text, agents = stored[0], stored[2]
            if not self._double.run("EXISTS", agents):
                self._double.run("DEL", text)

        self._trigger = Trigger(None, strikes, 1, counts, anybody=True)

    def _forget(self, victim: Process | None = None) -> None:
        loses_s = self._rng.choice((0.005, 0.005, 0.1, 1.0)) * self._rng.uniform(0.5, 1.0)
        self.loses(loses_s)
