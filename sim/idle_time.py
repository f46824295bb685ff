"""Lets time pass where nothing but idle looks for work would happen.

A fleet looks for work each second, and so does a simulated one; most of what a simulation costs
would be looks that find nothing. There is a lull when no session is due or held, no worker has a
session in its hands, and nothing runs. Then nothing can be found until somebody else acts: a
person, a fault, a command that is still on its way, a deadline. Time passes at once until a
little before the first of these, and whoever only looks sleeps that much longer: its next look
stays as far away as it was. How much is left is the seed's choice, so that looks and what
happens next meet at any distance.

Nothing of the product is changed or left out: it is what it would see if all machines slept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

from sim.loop import Lane
from sim.machines import Machine, Site

LOOK_S = 0.5
LEFT_S = (0.6, 1.6)
"""Longer than a worker's tick: it has recovered from its sleep before anything happens."""


class IdleTime:
    """Watches for lulls, all through a simulation."""

    def __init__(self, site: Site, machines: Callable[[], list[Machine]], rng: Random) -> None:
        self._site = site
        self._machines = machines
        self._rng = rng
        self._lane = Lane("lulls")
        self._resting: set[Lane] = {self._lane, site.network.waiting}

    def begin(self) -> None:
        self._site.loop.on(self._lane, self._look, after=LOOK_S)

    def _look(self) -> None:
        self.skip()
        self._site.loop.on(self._lane, self._look, after=LOOK_S)

    def skip(self, *also: Lane) -> None:
        """Lets time pass if there is a lull; what is on `also` does not end it."""
        site, machines = self._site, self._machines()
        if any(machine.runners for machine in machines) or not site.watch.idle() or site.ledger.running():
            return
        resting = {*self._resting, *also, *_lanes(machines)}
        ends = [site.loop.next_timer(resting), site.watch.next_deadline_s()]
        known = [end for end in ends if end is not None]
        lasts_s = min(known, default=0.0) - site.loop.time() - self._rng.uniform(*LEFT_S)
        if lasts_s > 0.0:
            site.loop.skip(lasts_s, resting)


def _lanes(machines: list[Machine]) -> Iterator[Lane]:
    for machine in machines:
        yield from (*machine.lanes, machine.supervisor.lane)
