"""Faults of servers and supervisors that go on serving: slow answers, refusals, a clock that is set.

A part of the nemesis (`sim/nemesis.py`), which draws them; each ends by itself, and at peace.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from random import Random

from redis import exceptions as foreign

from sim.double import Double
from sim.held_messages import HeldMessage, LateAnswer, LateBurial, VeryLateBurial
from sim.loop import Lane
from sim.machines import Machine, Operator, Process, Site
from sim.triggers import Trigger, starts_a_call

OUT_OF_MEMORY = partial(foreign.OutOfMemoryError, "command not allowed when used memory > 'maxmemory'.")
REFUSALS: tuple[Callable[[], foreign.RedisError], ...] = (
    OUT_OF_MEMORY,
    lambda: foreign.ReadOnlyError("You can't write against a read only replica."),
    lambda: foreign.BusyLoadingError("Redis is loading the dataset in memory"),
)
ANSWERS_S = (3.0, 4.9)
"""Longer than a renewal leaves, and just within the client's patience."""


class Degradations:
    """Faults that end no server, connection or process."""

    site: Site
    lane: Lane
    _double: Double
    _rng: Random
    _trigger: Trigger | None

    def _draw_machine(self) -> Machine | None:
        raise NotImplementedError

    def _called(self) -> Operator:
        raise NotImplementedError

    @property
    def living(self) -> list[Machine]:
        raise NotImplementedError

    def _end(self, victim: Process) -> None:
        raise NotImplementedError

    def lie_in_wait(self, kind: type[HeldMessage]) -> None:
        raise NotImplementedError

    def _cut_off(self, machine: str, after_s: float, lasts_s: float) -> None:
        raise NotImplementedError

    def recover(self) -> None:
        """Every server and supervisor is as it should be."""
        network = self.site.network
        network.refuses, network.answers_s = None, {}
        self.site.ledger.thaw()

    async def _late_answers(self) -> None:
        """All answers to a machine, or that to a claim's first renewal, take seconds; then it is cut off."""
        if self._rng.random() < 0.5:
            self.lie_in_wait(LateAnswer)
        elif machine := self._draw_machine():
            network, lasts_s = self.site.network, self._rng.uniform(3.0, 8.0)
            network.answers_s[machine.name] = ANSWERS_S
            self.site.loop.on(self.lane, network.answers_s.pop, machine.name, None, after=lasts_s)
            self._cut_off(machine.name, lasts_s - self._rng.uniform(0.0, 2.5), 12.0)

    async def _refuses(self) -> None:
        """Redis is out of memory, a replica now, or loads its data: for a while it takes nothing."""
        network = self.site.network
        network.refuses = self._rng.choice(REFUSALS)
        self.site.loop.on(self.lane, self._serves_again, after=self._rng.choice((0.3, 3.0, 8.0)))

    def _serves_again(self) -> None:
        self.site.network.refuses = None

    async def _forgets_scripts(self) -> None:
        """As after a restart, or `SCRIPT FLUSH`."""
        self._double.forget_scripts()

    async def _clock_step(self) -> None:
        """Sets the clock of Redis's host; by less than a lease lasts, or by more."""
        step_s = self._rng.choice((-8.0, -1.4, -0.5, 0.5, 1.4, 1.4, 8.0))
        self.site.trace.note("nemesis", "sets the clock by", step_s)
        self._double.step(step_s)

    async def _slow_supervisor(self) -> None:
        """A supervisor's host has much to do: it kills up to a second late."""
        if machine := self._draw_machine():
            machine.supervisor.slow_s = self._rng.uniform(0.1, 1.0)
            self.site.loop.on(self.lane, machine.supervisor.hurries, after=self._rng.uniform(5.0, 20.0))

    def _at_work(self) -> Machine | None:
        """A worker whose machine outlives it, under which something runs; that is its last hour."""
        found = [one for one in self.living if one.supervisor.running()]
        machine = self._rng.choice(found) if found else self._draw_machine()
        if machine is not None:
            machine.supervisor.outlives = True
        return machine

    async def _slow_death(self) -> None:
        """A worker is killed, and what runs under it is killed late; or its supervisor stands still first."""
        if machine := self._at_work():
            if self._rng.random() < 0.3:
                self.site.ledger.freeze(machine.supervisor)
                thaw = self.site.ledger.thaw
                self.site.loop.on(self.lane, thaw, machine.supervisor, after=self._rng.uniform(0.1, 12.0))
            else:
                machine.supervisor.slow_s = self._rng.uniform(0.05, 1.0)
            self._end(machine)

    async def _stuck_death(self) -> None:
        """A worker is killed, and a process of it waits for a disk: nothing can end it for a while."""
        if machine := self._at_work():
            until_s = self.site.loop.time() + self._rng.uniform(0.3, 2.5)
            for run in machine.supervisor.running():
                run.stuck_until_s = until_s
                self.site.watch.reach.saw("survived")
            self._end(machine)

    async def _revoked_death(self) -> None:
        """A session is taken from a worker, which is killed before it can say that it has stopped."""
        if (machine := self._at_work()) and machine.runners:
            session = self._rng.choice(machine.runners).claim.session
            if self._rng.random() < 0.5:
                machine.supervisor.slow_s = self._rng.uniform(0.05, 1.0)
            await self.takes(session)
            self._ends_later(machine)

    async def _cut_socket(self) -> None:
        """A worker's socket to its supervisor closes, and the worker lives: it may die a little later."""
        if machine := self._at_work():
            self.site.watch.reach.saw("cut_off")
            machine.supervisor.is_cut_off()
            if self._rng.random() < 0.3:
                self.site.loop.on(self.lane, self._ends_later, machine, after=self._rng.uniform(0.0, 2.0))

    def _ends_later(self, machine: Machine) -> None:
        if machine.alive:
            self._end(machine)

    async def _late_burial(self) -> None:
        """A word that a worker is dead lies in a socket; a worker is killed for it, and perhaps its session
        is taken from the next one."""
        machine = self._at_work()
        if machine is None:
            return
        held = [runner.claim.session for runner in machine.runners]
        if held and self._rng.random() < 0.5:
            self.lie_in_wait(VeryLateBurial)
            taken = self._takes_later(self._rng.choice(held), self._rng.uniform(0.5, 3.0))
            self.site.loop.start(Lane("operator"), taken, "takes")
        else:
            self.lie_in_wait(LateBurial)
        self._end(machine)

    async def _frozen_supervisor(self) -> None:
        """A supervisor alone is stopped (SIGSTOP), or hangs on a disk: it kills nothing meanwhile."""
        if machine := self._draw_machine():
            self.site.ledger.freeze(machine.supervisor)
            thaw = self.site.ledger.thaw
            self.site.loop.on(self.lane, thaw, machine.supervisor, after=self._rng.uniform(1.0, 12.0))

    async def _frozen_host(self) -> None:
        """A worker and its supervisor stand still behind the start of a call; or that one is slow."""
        self._trigger = Trigger(None, self._freezes, 1, starts_a_call)

    def _freezes(self, machine: Machine) -> None:
        self.site.loop.on(self.lane, self._stands_still, machine, after=self._rng.choice((0.0, 0.3, 1.0)))

    def _stands_still(self, machine: Machine) -> None:
        if machine.alive:
            lasts_s, supervisor = self._rng.uniform(6.5, 12.0), machine.supervisor
            machine.pause(lasts_s)
            if self._rng.random() < 0.4:
                supervisor.slow_s = self._rng.uniform(1.0, 1.8)
                self.site.loop.on(self.lane, supervisor.hurries, after=lasts_s)
                return
            self.site.ledger.freeze(supervisor)
            self.site.loop.on(self.lane, self.site.ledger.thaw, supervisor, after=lasts_s)

    async def _takes_later(self, session: str, after_s: float) -> None:
        await asyncio.sleep(after_s)
        await self.takes(session)

    async def takes(self, session: str) -> None:
        """Takes a session from its holder."""
        await self._called().revokes(session)

    async def gives_up(self, session: str) -> None:
        """Gives up what is on one machine alone (`dendro revoke --abandon-unsaved`)."""
        await self._called().gives_up(session)
