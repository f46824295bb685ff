"""Upkeep processes: the product's own jobs at their own times, on machines that die like the rest.

arq is what is simulated here, as far as upkeep relies on it: a job is in the queue at most once by its
id, it is taken by one process at a time, and what a process had in hand when it died is handed out
again when the mark has expired that it was at work. The queue is a server of its own, so it does not go
back with the deployment's Redis; it may be lost altogether.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from random import Random
from typing import Any, cast

import orjson

from orchestrator.broker.errors import BrokerError, OutOfMemory, Unavailable
from orchestrator.core.facts import Claimed
from orchestrator.rollouts.object_store import ArchiveUnavailable
from orchestrator.rollouts.segments import BrokenArchive
from orchestrator.runtime.loader import BrokenLog
from orchestrator.runtime.worker import Worker
from orchestrator.workspaces.stored_packs import Packs
from sim.archive_moves import UpkeepRules
from sim.crons import Hourly
from sim.double import EPOCH_S
from sim.loop import Lane, SimLoop
from sim.machines import Machine, Process, Site, storage_on
from workers.upkeep import RECONNECT_S, Upkeep, worker_settings
from workers.upkeep_sealing import Mover

POLL_S = 0.5
"""How late a process hears of a job."""
MARK_S = 10.0
"""How much longer than a job may take its mark stays."""


@dataclass(slots=True)
class Job:
    """A line of the queue."""

    id: str
    name: str
    arguments: bytes
    due_s: float
    taken_until_s: float = 0.0


@dataclass(slots=True)
class SimQueue:
    """arq's queue, which outlives every process."""

    loop: SimLoop
    rng: Random
    default_queue_name: str = "upkeep"
    job_serializer: Callable[[Any], bytes] = orjson.dumps
    job_deserializer: Callable[[bytes], Any] = orjson.loads
    heard: list[tuple[Lane, Callable[[], None]]] = field(default_factory=list)
    """Lanes and callbacks that are notified of the queue's changes."""
    _jobs: dict[str, Job] = field(default_factory=dict)
    _cron_ids: set[str] = field(default_factory=set)

    async def enqueue_job(
        self, name: str, *arguments: Any, _job_id: str, _defer_by: float | None = None
    ) -> None:
        """Puts a job into the queue unless it is there."""
        await asyncio.sleep(self.rng.uniform(0.0, 0.01))
        self.put(Job(_job_id, name, self.job_serializer(arguments), self.loop.time() + (_defer_by or 0.0)))

    def put(self, job: Job) -> None:
        self._jobs.setdefault(job.id, job)
        self._tell()

    def put_cron(self, job: Job) -> None:
        """The first process to come queues it, for all."""
        if job.id not in self._cron_ids:
            self._cron_ids.add(job.id)
            self.put(job)

    def take(self, mark_s: float) -> Job | None:
        """A job that is due and that nobody is at work on."""
        now = self.loop.time()
        due = [job for job in self._jobs.values() if job.due_s <= now and job.taken_until_s <= now]
        job = min(due, key=lambda job: job.due_s, default=None)
        if job is not None:
            job.taken_until_s = now + mark_s
        return job

    def next_s(self) -> float | None:
        """When there may be something to take."""
        return min((max(job.due_s, job.taken_until_s) for job in self._jobs.values()), default=None)

    def done(self, job: Job) -> None:
        if self._jobs.get(job.id) is job:
            del self._jobs[job.id]

    def given_back(self, job: Job) -> None:
        job.taken_until_s = 0.0
        self._tell()

    def lose(self) -> None:
        """The server has lost its data."""
        self._jobs.clear()

    def _tell(self) -> None:
        self.heard = [(lane, call) for lane, call in self.heard if not lane.dead]
        for lane, call in self.heard:
            self.loop.on(lane, call, after=self.rng.uniform(0.0, POLL_S))


class UpkeepProcess(Process):
    """`dendro upkeep`."""

    def __init__(self, site: Site, name: str, rng: Random, queue: SimQueue, rules: UpkeepRules) -> None:
        super().__init__(site, name, rng)
        self._queue = queue
        self._rng = rng
        self._woken = asyncio.Event()
        self._jobs: set[asyncio.Task[None]] = set()
        self._reapers: list[Machine] = []
        storage = storage_on(site, name, self.clock)
        mover = Mover(
            storage,
            name,
            rules.seal_after,
            int(rules.archive_after_s * 1000),
            None if rules.idle_after_s is None else int(rules.idle_after_s * 1000),
            lambda n: rng.randbytes(n).hex(),
            None if rules.seal_idle_s is None else int(rules.seal_idle_s * 1000),
        )
        retention_ms = None if rules.retention_s is None else int(rules.retention_s * 1000)
        packs = Packs(site.objects.opened()) if rules.packs else None
        about = Claimed(name, name, "uid:1", "0")
        upkeep = Upkeep(mover, retention_ms, rules.verify_sessions, self._reaping, packs=packs, about=about)
        self._settings = worker_settings(upkeep, cast(Any, queue))
        self._hourly = {cron.name: Hourly(cron) for cron in self._settings["cron_jobs"]}
        queue.heard.append((self.main, self._woken.set))
        self.task = site.loop.start(self.main, self._serves(), "upkeep")

    @property
    def lanes(self) -> tuple[Lane, ...]:
        return (self.main, *(lane for machine in self._reapers for lane in machine.lanes))

    def kill(self) -> None:
        self.alive = False
        for machine in self._reapers:
            machine.kill()
        self.site.loop.kill(self.main)

    def drain(self) -> None:
        self.draining = True
        self.site.loop.on(self.main, self.task.cancel)

    # ── the process ───────────────────────────────────────────────────────────────────────────

    async def _serves(self) -> None:
        """As the product's `serve` does it."""
        try:
            while True:
                with suppress(Unavailable):
                    await self._works()
                await self.sleep(RECONNECT_S)
        finally:
            self.alive = False

    async def _works(self) -> None:
        settings = self._settings
        context = {"redis": self._queue, **settings["ctx"]}
        await settings["on_startup"](context)
        known = {job.name: job.coroutine for job in (*settings["functions"], *settings["cron_jobs"])}
        for cron in settings["cron_jobs"]:
            cron.next_run = None
        try:
            while True:
                self._queue_crons()
                while len(self._jobs) < settings["max_jobs"] and (job := self._taken()) is not None:
                    self._begin(job, known, context)
                await self._nap()
        finally:
            for task in self._jobs:
                task.cancel()
            if self._jobs:
                await asyncio.wait(self._jobs)

    def _taken(self) -> Job | None:
        return self._queue.take(self._settings["job_timeout"] + MARK_S)

    def _now(self) -> datetime:
        return datetime.fromtimestamp(EPOCH_S + self.site.loop.time(), UTC)

    def _queue_crons(self) -> None:
        now = self._now()
        for cron in self._settings["cron_jobs"]:
            if cron.next_run is None and not cron.run_at_startup:
                cron.next_run = self._hourly[cron.name].after(now)
            due: datetime = cron.next_run or now
            if due <= now:
                id = f"{cron.name}:{due.timestamp()}"
                self._queue.put_cron(Job(id, cron.name, b"[]", self.site.loop.time()))
                cron.next_run = self._hourly[cron.name].after(now)

    async def _nap(self) -> None:
        """Until there is something to do, at the latest."""
        nexts: list[datetime] = [cron.next_run for cron in self._settings["cron_jobs"]]
        crons = (next_run.timestamp() - EPOCH_S for next_run in nexts)
        queued_s = self._queue.next_s() if len(self._jobs) < self._settings["max_jobs"] else None
        wakes_s = min((*crons, *(() if queued_s is None else (queued_s,))))
        # A cron's time is told to the microsecond, and a sum of seconds may fall short of it.
        most_s = max(0.0, wakes_s - self.site.loop.time()) + 0.001
        with suppress(TimeoutError):
            async with asyncio.timeout(most_s):
                await self._woken.wait()
        self._woken.clear()

    # ── jobs ──────────────────────────────────────────────────────────────────────────────────

    def _begin(self, job: Job, known: Mapping[str, Any], context: dict[str, Any]) -> None:
        arguments = self._queue.job_deserializer(job.arguments)
        self.site.trace.note(self.name, "job", job.name, *(text[-4:] for text in arguments))
        work = self._does(job, partial(known[job.name], context, *arguments))
        task = self.site.loop.start(self.main, work, job.name)
        self._jobs.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._jobs.discard(task)
        self._woken.set()

    async def _does(self, job: Job, work: Callable[[], Awaitable[Any]]) -> None:
        began_s, condemned = self.site.loop.time(), self.site.watch.archive_moves.condemned()
        try:
            async with asyncio.timeout(self._settings["job_timeout"]):
                result = await work()
        except asyncio.CancelledError:
            self._queue.given_back(job)
            raise
        except (Unavailable, OutOfMemory, ArchiveUnavailable, TimeoutError) as error:
            self.site.trace.note(self.name, "failed", job.name, error)
        except (BrokerError, BrokenLog, BrokenArchive) as error:
            self.site.trace.note(self.name, "failed", job.name, error)
            self.site.watch.archive_moves.failed(job.name, error, began_s)
        else:
            self.site.trace.note(self.name, "did", job.name, "" if result is None else result)
            if job.name.endswith("retain"):
                self.site.watch.archive_moves.retained(condemned, began_s)
            if job.name.endswith("verify") and result:
                self.site.watch.archive_moves.failed(job.name, f"{result} logs do not verify", began_s)
        self._queue.done(job)

    @asynccontextmanager
    async def _reaping(self) -> AsyncIterator[Worker]:
        """The worker of no pool, on threads of this process."""
        name = f"{self.name}/reaper"
        machine = Machine(self.site, name, Random(self._rng.getrandbits(64)), pools=())
        self._reapers.append(machine)
        try:
            yield machine.worker
        finally:
            machine.drain()
            await machine.task
            self._reapers.remove(machine)
