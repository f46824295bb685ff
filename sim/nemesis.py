"""Faults and their times: one plan a seed, drawn before anything runs.

Every fault ends by itself or is ended by `peace`: what is left to show then is that
everything comes to rest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from orchestrator.core import CORE_VERSION
from sim.archive_moves import UpkeepRules
from sim.degradations import Degradations
from sim.double import Double
from sim.failover import Failover
from sim.held_messages import (
    HeldMessage,
    LateClaim,
    LateCommit,
    LateCopy,
    LateStopped,
    LostText,
    SlowCommit,
)
from sim.loop import Lane
from sim.machines import POOL, Machine, Operator, Process, Site
from sim.network import Sent, session_of
from sim.rewinds import Rewinds
from sim.triggers import Trigger, acts, cancels_processes, ends, starts_a_call, stops_processes
from sim.upkeep import SimQueue, UpkeepProcess


@dataclass(frozen=True, slots=True)
class Plan:
    """How a seed's faults are mixed."""

    faults: int
    lasts_s: float
    workers: int


KINDS = (
    ("kill", 8),
    ("kill_at", 8),
    ("pause", 6),
    ("pause_at", 8),
    ("stall", 3),
    ("cut", 4),
    ("down", 2),
    ("rewind_1s", 2),
    ("rewind", 1),
    ("drain", 3),
    ("start", 3),
    ("hints", 2),
    ("night", 1),
    ("late_commit", 4),
    ("late_claim", 4),
    ("slow_commit", 4),
    ("wedge", 2),
    ("revoke", 2),
    ("late_answers", 4),
    ("refuses", 2),
    ("forgets_scripts", 1),
    ("clock_step", 2),
    ("slow_supervisor", 2),
    ("frozen_supervisor", 2),
    ("end_at", 6),
)


class Nemesis(Degradations, Rewinds):
    """Carries out a plan against the machines of a simulation."""

    def __init__(self, site: Site, double: Double, rng: Random, plan: Plan) -> None:
        self.site = site
        self.lane = Lane("nemesis")
        self.machines: list[Machine] = []
        self.upkeep: list[UpkeepProcess] = []
        """Where a play asks for it."""
        self._double = double
        self._rng = rng
        self.plan = plan
        self.weights = dict(KINDS)
        """How often each fault is chosen; a play may have faults that suit it."""
        self._started = 0
        self._trigger: Trigger | None = None
        self._held: HeldMessage | None = None
        self.calm = asyncio.Event()
        """Faults are over."""
        self.abandoned = asyncio.Event()
        """Workers have gone for good."""
        self.abandoned_a_cancel = False
        """Whether they went when a cancel had begun and was not over."""
        self.deserted = False
        """Whether workers that are gone stay away."""
        self._leaving: tuple[str, ...] = ()
        self._operator: Operator | None = None
        self._queue: SimQueue | None = None
        self.failover: Failover | None = None
        """Where replicas are asked, and one of them is promoted."""
        site.network.arrived = self._arrived
        site.folders.stops = self._stops
        site.network.detour = self._waylaid

    def start_worker(self, pools: tuple[str, ...] = (POOL,)) -> Machine:
        self._started += 1
        # An upgrade is on its way; at its end all are of one version.
        older = self.site.knobs.mixed and not self.calm.is_set() and self._rng.random() < 0.4
        core = CORE_VERSION - older
        rng = self.site.drawn(self._rng.getrandbits(64))
        machine = Machine(self.site, f"w{self._started}", rng, pools, core)
        self.machines.append(machine)
        self.site.trace.note("nemesis", "starts", machine.name)
        return machine

    def abandon(self, pools: tuple[str, ...], within_s: float) -> None:
        """Kills the workers of these pools as soon as a cancel has begun; nobody replaces the workers."""
        self._leaving = pools
        self.site.loop.on(self.lane, self._abandon, after=within_s)

    def _abandon(self) -> None:
        pools, self._leaving = self._leaving, ()
        if not pools:
            return
        self.deserted = POOL in pools
        self.abandoned_a_cancel = bool(self.site.watch.ending())
        for machine in self.living:
            if not set(pools).isdisjoint(machine.pools):
                self.site.trace.note("nemesis", "abandons", machine.name)
                machine.kill()
        self.abandoned.set()

    def desert_at(self, counts: Callable[[Sent], bool], lasts_s: float) -> None:
        """Kills all workers when such a command takes effect; for a while nobody replaces them."""

        def strikes(_: Process | None) -> None:
            self.site.trace.note("nemesis", "deserts", str(lasts_s))
            self.deserted = True
            for machine in self.living:
                machine.kill()
            self.site.loop.on(self.lane, self.man, POOL, after=lasts_s)

        self._trigger = Trigger(None, strikes, 1, counts, anybody=True)

    def man(self, pool: str) -> None:
        """The pool is served again, and what waited for that is late from now on."""
        self.deserted = False
        self._peace_is_later()
        self.start_worker((pool,))
        self._replace()

    async def hides(self, session: str, lasts_s: float) -> None:
        """Leaves of a session only its log, in an archive that nobody reaches for a while."""
        self.site.trace.note("nemesis", "hides", session)
        self._double.run("DEL", self.site.watch.keys.snapshot(session))
        self.site.objects.away = True
        for machine in self.living:
            machine.kill()
        self._replace()
        self._peace_is_later()
        await asyncio.sleep(lasts_s)
        self._archive_back()
        self._peace_is_later()

    def _peace_is_later(self) -> None:
        """Faults were over already, and are now."""
        if self.site.watch.peace_s:
            self.site.watch.peace_s = self.site.loop.time()

    def passes(self, seconds: float) -> None:
        """Time passes for everybody, while nobody runs; what waited is late from then on."""
        self.site.loop.skip(seconds)
        self._peace_is_later()

    def keep_up(self, rules: UpkeepRules) -> None:
        """Upkeep runs from here on, and its processes go through what workers go through."""
        self._queue = SimQueue(self.site.loop, Random(self._rng.getrandbits(64)))
        self.site.watch.archive_moves.rules = rules
        self.weights |= {"lost_queue": 2}
        self._start_upkeep()

    def _start_upkeep(self) -> None:
        """As many processes as there are to be."""
        rules = self.site.watch.archive_moves.rules
        if rules is None or self._queue is None:
            return
        while sum(one.alive and not one.draining for one in self.upkeep) < rules.processes:
            name = f"u{len(self.upkeep) + 1}"
            rng = self.site.drawn(self._rng.getrandbits(64))
            self.upkeep.append(UpkeepProcess(self.site, name, rng, self._queue, rules))
            self.site.trace.note("nemesis", "starts", name)

    @property
    def living(self) -> list[Machine]:
        return [machine for machine in self.machines if machine.alive]

    async def injects(self) -> None:
        """The whole plan, then peace."""
        if self.failover is not None:
            self.failover.mans = self.start_worker
            self.failover.begins(self.plan.lasts_s)
        for _ in range(self.plan.faults):
            await asyncio.sleep(self._rng.expovariate(self.plan.faults / self.plan.lasts_s))
            name = self._rng.choices(list(self.weights), list(self.weights.values()))[0]
            self.site.trace.note("nemesis", name)
            self.site.watch.reach.met("fault", name)
            await getattr(self, f"_{name}")()
        await asyncio.sleep(self._rng.uniform(0.0, 4.0))
        self.peace()

    def peace(self) -> None:
        """No more faults; whoever left is replaced."""
        network = self.site.network
        network.faults.clear()
        self.site.model.faults.clear()
        self.site.files.full.clear()
        self.site.objects.away = False
        self.site.folders.faulty = False
        self.site.folders.full.clear()
        if self.site.folders.keys is not None:
            self.site.folders.keys.mends()
        self._trigger = None
        if self.failover is not None:
            self.failover.ends()
        self.recover()
        self._clear_ambush()
        self.site.watch.peace_s = self.site.loop.time()
        self.calm.set()
        for machine in self.living:
            if machine.core < CORE_VERSION:
                machine.drain()
        while not self.deserted and self._manned() < self.plan.workers:
            self.start_worker()
        self._start_upkeep()
        self.site.trace.note("nemesis", "peace")

    def _manned(self) -> int:
        return sum(POOL in machine.pools and not machine.draining for machine in self.living)

    # ── faults ────────────────────────────────────────────────────────────────────────────────

    def _victim(self) -> Process | None:
        living: list[Process] = [*self.living, *(one for one in self.upkeep if one.alive)]
        return self._rng.choice(living) if living else None

    async def _kill(self) -> None:
        if victim := self._victim():
            self._end(victim)

    def _end(self, victim: Process) -> None:
        self.site.trace.note("nemesis", "kills", victim.name)
        victim.kill()
        if self._rng.random() < 0.7 or len(self.living) < 1:
            self.site.loop.on(self.lane, self._replace, after=self._rng.uniform(0.0, 5.0))

    def _replace(self) -> None:
        if self._manned() < self.plan.workers and not self.deserted:
            self.start_worker()
        self._start_upkeep()

    async def _kill_at(self) -> None:
        """Kills a process around the moment when a command of it takes effect."""
        if victim := self._victim():
            self._trigger = Trigger(victim, self._end, self._rng.choice((1, 1, 2, 3, 5, 8, 13)), acts)

    async def _pause_at(self) -> None:
        """Pauses a process at a command of it, until others have had its session for a while."""
        if victim := self._victim():
            counts, lefts = self._rng.choice(((acts, (1, 1, 2, 3, 5, 8, 13)), (starts_a_call, (1, 1, 2))))
            self._trigger = Trigger(victim, self._stop, self._rng.choice(lefts), counts)

    async def _end_at(self, *, stops: bool = False) -> None:
        """Ends or stops the next process that stops a task or ends an agent, in the middle of that."""
        strikes = self._stop if stops else self._rng.choice((self._end, self._stop))
        self._trigger = Trigger(None, strikes, 1, ends)

    async def _lose_processes(self) -> None:
        """Ends or stops the next process that kills processes of a session, before it has seen their end."""
        strikes = self._rng.choice((self._end, self._end, self._stop))
        counts = self._rng.choice((stops_processes, cancels_processes, cancels_processes))
        self._trigger = Trigger(None, strikes, 1, counts)

    async def _freeze_at(self) -> None:
        """Stops a supervisor as a call is to start, and its worker, or cuts that off, past its deadline."""
        if victim := self._draw_machine():
            self._trigger = Trigger(victim, self._freezes, self._rng.choice((1, 1, 2)), starts_a_call)

    def _freezes(self, victim: Machine) -> None:
        stands_s = self._rng.uniform(4.2, 9.0)
        self.site.ledger.freeze(victim.supervisor)
        if self._rng.random() < 0.7:
            self._cut_off(victim.name, 0.0, stands_s)
        else:
            victim.pause(stands_s)
        thaw, after = self.site.ledger.thaw, stands_s + self._rng.choice((0.01, 0.5)) * self._rng.random()
        self.site.loop.on(self.lane, thaw, victim.supervisor, after=after)

    def _draw_machine(self) -> Machine | None:
        return self._rng.choice(self.living) if self.living else None

    def _stop(self, victim: Process) -> None:
        victim.pause(self._rng.uniform(5.0, 12.0))

    def _stops(self, worker: str) -> None:
        for machine in self.living:
            if machine.name == worker:
                self._stop(machine)

    def _arrived(self, sent: Sent, reply: Any) -> None:
        """The command took effect; its reply is on the way and will find nobody, or somebody in a hurry."""
        if self.failover is not None:
            self.failover.saw(sent)
        if self._held is not None and self._held.saw(sent, reply):
            self._held = None
        if sent.name == "claim" and (self.site.watch.poisonous or self.site.watch.readmitted_s):
            self._poisons(sent, reply)
        if self._leaving and sent.name == "commit" and self.site.watch.ending():
            self.site.loop.on(self.lane, self._abandon, after=self._rng.choice((0.0, 0.003, 0.03)))
        trigger = self._trigger
        if trigger is None or (
            trigger.victim is not None and trigger.victim.name != sent.machine and not trigger.anybody
        ):
            return
        if not trigger.counts(sent):
            return
        if trigger.victim is None and not trigger.anybody:
            trigger.victim = next((one for one in self.living if one.name == sent.machine), None)
            if trigger.victim is None:
                return
        trigger.left -= 1
        if not trigger.left:
            self._trigger = None
            # At once, or as soon as the reply was heard and a few steps were made.
            self.site.loop.on(
                self.lane, self._strike, trigger, after=self._rng.choice((0.0, 0.001, 0.003, 0.01))
            )

    def _poisons(self, sent: Sent, reply: Any) -> None:
        """Kills the machine that was given a poisonous session; gives back what Redis quarantines anew."""
        session = session_of(sent.name, sent.args)
        if reply and reply[0] == b"QUARANTINED" and self.site.watch.unmended(session):
            self.site.loop.start(self.lane, self.readmits(session), "readmits")
        if session in self.site.watch.poisonous and reply and reply[0] == b"OK":
            for machine in self.living:
                if machine.name == sent.machine:
                    self.site.loop.on(self.lane, self._dies, machine, after=self._rng.uniform(0.0, 0.0015))

    def _dies(self, machine: Machine) -> None:
        if machine.alive:
            machine.kill()
            self.site.loop.on(self.lane, self._replace, after=self._rng.uniform(0.0, 2.0))

    async def readmits(self, session: str) -> None:
        """Revokes a session whose fault an operator has mended (`dendro revoke`)."""
        self.site.watch.poisonous.discard(session)
        self.site.watch.readmitted_s[session] = self.site.watch.now_s
        if self._operator is None:
            self._operator = Operator(self.site)
        await self._operator.revokes(session)

    def _strike(self, trigger: Trigger) -> None:
        if trigger.anybody or (trigger.victim is not None and trigger.victim.alive):
            trigger.strikes(trigger.victim)

    async def _pause(self) -> None:
        if victim := self._victim():
            victim.pause(self._rng.choice((0.5, 3.0, 5.0, 7.0, 15.0)) * self._rng.uniform(0.5, 1.5))

    async def _stall(self) -> None:
        if victim := self._victim():
            victim.stall(self._rng.choice((1.0, 4.0, 9.0)) * self._rng.uniform(0.5, 1.5))

    async def _cut(self) -> None:
        if victim := self._victim():
            self._cut_off(victim.name, 0.0, self._rng.uniform(0.2, 12.0))

    def _cut_off(self, machine: str, after_s: float, lasts_s: float) -> None:
        self.site.loop.on(self.lane, self._sever, machine, after=after_s)
        self.site.loop.on(self.lane, self._mend, machine, after=after_s + lasts_s)

    def _sever(self, machine: str) -> None:
        self.site.network.cut[machine] = self.site.network.cut.get(machine, 0) + 1

    def _mend(self, machine: str) -> None:
        self.site.network.cut[machine] -= 1

    async def _late_commit(self) -> None:
        self.lie_in_wait(LateCommit)

    async def _late_claim(self) -> None:
        self.lie_in_wait(LateClaim)

    async def _slow_commit(self) -> None:
        self.lie_in_wait(SlowCommit)

    async def _late_copy(self) -> None:
        self.lie_in_wait(LateCopy)

    async def _late_stopped(self) -> None:
        """Takes a session from a worker, whose word that it has stopped is late."""
        held = {runner.claim.session: machine for machine in self.living for runner in machine.runners}
        if held:
            session = self._rng.choice(sorted(held))
            self._clear_ambush()
            self._held = LateStopped(self.site, self._rng, held[session].name, self._cut_off)
            await self._revokes(session)

    def lie_in_wait(self, kind: type[HeldMessage]) -> None:
        """See `sim/held_messages.py`; one at a time."""
        self._clear_ambush()
        if victim := self._victim():
            self._held = kind(self.site, self._rng, victim.name, self._cut_off)
            if isinstance(self._held, LostText):
                self._held.forgets = self.loses

    def _waylaid(self, sent: Sent, future: asyncio.Future[Any]) -> bool:
        return self._held is not None and self._held.takes(sent, future)

    def _clear_ambush(self) -> None:
        if self._held is not None:
            self._held.lets_go()
            self._held = None

    async def _wedge(self) -> None:
        """A worker renews its claims and does nothing else; sometimes somebody takes one."""
        if victim := self._victim():
            # Behind peace a timer may be half a minute late, and this may be the only worker.
            victim.wedge(self._rng.uniform(5.0, 25.0))
            if self._rng.random() < 0.5:
                await asyncio.sleep(self._rng.uniform(0.0, 5.0))
                await self._revoke()

    async def _revoke(self) -> None:
        """Takes a session, whoever holds it (`dendro revoke`, `dendro cancel --force`)."""
        if sessions := sorted(self.site.watch.sessions):
            await self._revokes(self._rng.choice(sessions))

    async def _revokes(self, session: str) -> None:
        await self._called().revokes(session)

    def _called(self) -> Operator:
        if self._operator is None:
            self._operator = Operator(self.site)
        return self._operator

    async def _drain(self) -> None:
        if victim := self._victim():
            called = isinstance(victim, Machine) and len(self.machines) % 2
            if isinstance(victim, Machine) and called and await self._called().sends_home(victim.name):
                victim.draining = True
            else:
                victim.drain()
            self.site.loop.on(self.lane, self._replace, after=self._rng.uniform(0.0, 3.0))

    async def _start(self) -> None:
        if len(self.living) < self.plan.workers + 1 and not self.deserted:
            self.start_worker()

    async def _hints(self) -> None:
        """Hints that nobody gave, and pokes for sessions that nobody holds."""
        keys, watch = self.site.watch.keys, self.site.watch
        for session, seen in watch.sessions.items():
            ready = keys.ready(keys.shard_of(session), seen.pool)
            for _ in range(self._rng.randrange(3)):
                self._double.run("XADD", ready, "*", "s", session)
            for machine in self.living:
                self._double.run("XADD", keys.control(machine.name), "*", "s", session)

    async def _lost_queue(self) -> None:
        """The server of upkeep's queue has lost its data."""
        if self._queue is not None:
            self._queue.lose()

    async def _full_disk(self) -> None:
        """A machine's disk takes nothing more for a while; a part of what it is given may be there."""
        if victim := self._victim():
            self.site.files.full.add(victim.name)
            again = self.site.files.full.discard
            self.site.loop.on(self.lane, again, victim.name, after=self._rng.uniform(1.0, 20.0))

    async def _archive_away(self) -> None:
        """Cuts everybody off from the archive for a while."""
        self.site.objects.away = True
        self.site.loop.on(self.lane, self._archive_back, after=self._rng.uniform(1.0, 40.0))

    def _archive_back(self) -> None:
        self.site.objects.away = False

    async def _lost_snapshot(self) -> None:
        """Deletes a session's snapshot: the log that the snapshot was made of is left, wherever that is."""
        if sessions := sorted(self.site.watch.sessions):
            self._double.run("DEL", self.site.watch.keys.snapshot(self._rng.choice(sessions)))

    async def _kill_keeper(self) -> None:
        """A worker's supervisor dies with all that it kept; the next command has another."""
        if self.living:
            self._rng.choice(self.living).supervisor.kill_now()

    async def _night(self) -> None:
        """Every machine sleeps for hours, Redis's too. Nobody may hold anything then."""
        if not self.site.watch.leased():
            self.site.loop.skip(self._rng.choice((10.0, 3600.0, 40_000.0)))
