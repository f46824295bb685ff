"""The fault of a second primary: a replica is promoted for some, while others still reach the old server.

A part of the nemesis (`sim/nemesis.py`) where replicas are asked; it draws from a generator of its own.
What the product promises of it is in `docs/claims.md` ("A primary that is cut off").
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from sim.degradations import REFUSALS
from sim.loop import Lane
from sim.machines import Machine, Site
from sim.network import Sent
from sim.triggers import starts_a_call

OUT_OF_MEMORY = REFUSALS[0]
MOMENTS = ("runs", "runs", "begins", "begins", "whenever")
"""While a command runs, when the decision to run one was written, or at any other time."""
LOOK_S = 0.2
MOST_LOOKS = 40
FULL = 0.1
"""How likely there is no memory left, for a moment, when a call is about to begin."""
GIVES_UP = 0.3
"""How likely a replica is promoted when a session was given up that was announced and never made."""
SOON_S = 12.0
LASTS_S = (1.0, 5.0, 9.0, 14.0)
BEHIND_S = (0.0, 0.005, 0.3, 2.0)
"""How much the promoted replica lacks of what nobody was told that it has."""


class Failover:
    """The failovers of a simulation, at moments at which they matter."""

    def __init__(self, site: Site, rng: Random, living: Callable[[], list[Machine]], times: int) -> None:
        self._site = site
        self._rng = rng
        self._living = living
        self.mans: Callable[[], object] = lambda: None
        """Told where no worker reaches the new primary."""
        self.gives_up = GIVES_UP
        self.lasts_s = LASTS_S
        self._lane = Lane("failover")
        self._left = times
        self._waits_for_a_begin = False
        self._over = False

    def begins(self, within_s: float) -> None:
        """The next one is to come about then."""
        moment, after_s = self._rng.choice(MOMENTS), self._rng.uniform(0.1, 1.0) * min(within_s, SOON_S)
        self._site.loop.on(self._lane, self._look, moment, MOST_LOOKS, after=after_s)

    def _look(self, moment: str, left: int) -> None:
        running = [run.machine for run in self._site.ledger.running()]
        if moment == "begins" and left:
            self._waits_for_a_begin = True
        elif moment == "whenever" or not left:
            self._splits("")
        elif running:
            self._splits(self._rng.choice(running))
        else:
            self._site.loop.on(self._lane, self._look, moment, left - 1, after=LOOK_S)

    def saw(self, sent: Sent) -> None:
        """A command took effect at the one primary that there is."""
        if self._waits_for_a_begin and starts_a_call(sent):
            self._waits_for_a_begin = False
            after_s = self._rng.choice((0.0, 0.0005, 0.02, 0.3)) * self._rng.random()
            if self._rng.random() < FULL:
                self._is_full()
            self._site.loop.on(self._lane, self._splits, sent.machine, after=after_s)
        elif sent.name == "give_up" and self._rng.random() < self.gives_up and not self._over:
            self._left += 1
            after_s = self._rng.choice((0.005, 0.05, 0.3)) * self._rng.random()
            self._site.loop.on(self._lane, self._splits, "", after=after_s)
        elif sent.name == "renew" and self._rng.random() < FULL / 10:
            self._is_full()

    def _is_full(self) -> None:
        """Redis takes nothing for a moment: what was written cannot be confirmed."""
        network = self._site.network
        if network.refuses is None:
            network.refuses = OUT_OF_MEMORY
            self._site.loop.on(self._lane, self._serves_again, after=self._rng.uniform(0.0, 0.3))

    def _serves_again(self) -> None:
        if self._site.network.refuses is OUT_OF_MEMORY:
            self._site.network.refuses = None

    def _splits(self, machine: str) -> None:
        """The replica is promoted; a machine, and some others, do not learn of it, or it does at once."""
        site, replicas = self._site, self._site.network.replicas
        if not self._left or replicas is None or replicas.left is not None or not site.network.up:
            return
        self._left -= 1
        workers = [one.name for one in self._living()]
        stay = {name: self._rng.random() < 0.3 for name in workers}
        if machine in stay:
            stay[machine] = self._rng.random() < 0.8
        site.trace.note("nemesis", "promotes", *(name for name in workers if stay[name]), "stay")
        site.watch.reach.met("fault", "second_primary")
        to_s = replicas.fails_over(stay, self._rng.choice(BEHIND_S) * self._rng.random())
        site.network.breaks(lambda name: not replicas.stays(name))
        site.objects.put_back(to_s, folders_only=True)
        site.watch.parts(to_s, replicas.stays)
        if all(stay.values()):
            self.mans()
        site.loop.on(
            self._lane, self.heals, after=self._rng.choice(self.lasts_s) * self._rng.uniform(0.5, 1.0)
        )

    def heals(self) -> None:
        """Everybody reaches the new primary."""
        replicas = self._site.network.replicas
        if replicas is not None and replicas.left is not None:
            self._site.network.breaks(replicas.stays)
            replicas.heals()
            self._site.watch.is_one_again()
            self._site.trace.note("nemesis", "the old primary is a replica")
            if self._left:
                self.begins(SOON_S)

    def ends(self) -> None:
        """No more faults."""
        self._left, self._over = 0, True
        self.heals()
