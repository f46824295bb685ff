"""Doors that ask a pool's workers for jobs, and the bench at which workers do these."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import replace
from random import Random
from typing import Any

from orchestrator.broker.errors import BrokerError
from orchestrator.core.ids import SessionId
from orchestrator.gateways.pool_jobs import JobError, PoolJobs
from orchestrator.protocol.jobs import CommandResult, RunCommand
from orchestrator.runtime.worker import LEAVES
from sim.fixture import Fixture, new_session, used
from sim.loop import Lane
from sim.machines import POOL, Clock, Site, broker_on

CALM_S = 30.0
"""Time behind the last fault after which every worker does what it should."""
BUSY_S = 300
"""Time within which everybody has ended what was begun."""
MORTAL_S = 8.0
MOST_LEAVERS = 4


class Asker:
    """A door's process."""

    def __init__(self, site: Site, name: str, rng: Random) -> None:
        self.lane, self.name = Lane(name), name
        self._site, self._rng, self._asked = site, rng, 0
        self.met_leaver = False
        """The worker of the last job that was not done was told to leave."""
        clock = Clock(site.loop, rng.uniform(0.0, 1e6), 1.0 + rng.uniform(-2e-3, 2e-3))
        broker, _ = broker_on(site, name, clock)
        self._jobs = PoolJobs(broker, POOL, str, monotonic=clock, sleep=site.loop.sleep)

    def does(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        return self._site.loop.start(self.lane, work, f"{self.name}:{name}")

    async def notes(self, session: str) -> None:
        """Keeps a note about a session again and again, as other doors do, under a few names."""
        for _ in range(self._rng.choice((1, 4))):
            name, was, value = (self._rng.choice(("seen", "origin", "", "3")) for _ in range(3))
            await asyncio.sleep(2.0 * self._rng.random())
            with suppress(BrokerError):
                await self._jobs.broker.requests.note(SessionId(session), name, value.encode(), was.encode())

    async def works(self, times: int) -> None:
        """Asks for one job after the other; some are given up."""
        rng = self._rng
        for _ in range(times):
            await asyncio.sleep(rng.choice((0.0, 0.3, 5.0)) * rng.random())
            await self.asks(rng.choice((None, None, 0.3, 3.0, 8.0)), rng.choice((1_000, 20_000)))

    async def asks(self, patience_s: float | None = None, limit_ms: int = 60_000) -> bool:
        """Whether a job was done; one that takes longer than that is given up."""
        self._asked += 1
        id = f"{self.name}.{self._asked}"
        jobs = replace(self._jobs, new_id=lambda: id)
        job = RunCommand(command=("true",), timeout_ms=limit_ms)
        self._site.trace.note(self.name, "wants", id)
        try:
            async with asyncio.timeout(patience_s):
                result = await jobs.do(job, CommandResult)
        except (JobError, BrokerError, TimeoutError) as error:
            self._site.trace.note(self.name, "goes without", id, type(error).__name__, error)
            self.met_leaver = str(error) == LEAVES
            return False
        self._site.watch.jobs.heard(id, result.stdout)
        return True


async def jobs(fixture: Fixture) -> None:
    """Doors that ask a pool's workers for commands, sometimes beside a session; they give up, and die."""
    rng, site, working = fixture.rng, fixture.site, []
    if rng.random() < 0.5:
        person = fixture.person()
        session = await new_session(fixture, person, "never")
        notes = Asker(site, "notes", Random(rng.getrandbits(64)))
        working.append(notes.does(notes.notes(session), "notes"))
        working.append(person.does(used(fixture, person, session, 2), "uses"))
    for number in range(rng.choice((1, 3, 6))):
        asker = Asker(site, f"d{number + 1}", Random(rng.getrandbits(64)))
        asking = asker.does(asker.works(rng.choice((1, 2, 4))), "works")
        if rng.random() < 0.2:
            site.loop.on(Lane("killer"), site.loop.kill, asker.lane, after=MORTAL_S * rng.random())
        else:
            working.append(asking)
    if working:
        await asyncio.wait(working)
    await fixture.nemesis.calm.wait()
    await asyncio.sleep(CALM_S)
    for _ in range(BUSY_S):
        if not site.watch.leased():
            break
        await asyncio.sleep(1.0)
    last = Asker(site, "d0", Random(rng.getrandbits(64)))
    # Workers that were told to leave before may hear of it as late as now, a job each.
    for _ in range(1 + MOST_LEAVERS):
        asked = last.does(last.asks(), "asks")
        await asyncio.wait([asked])
        if asked.result() or not last.met_leaver:
            break
    if not asked.result():
        site.watch.broken("jobs_kept", "a job was not done, and nothing went wrong")
