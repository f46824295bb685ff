"""Processes of the fleet, and its workers: the product's own, that can be killed, stopped and stuck.

A worker's machine has a main thread, a thread that renews, and a supervisor. Its clock is wrong, and goes
a little too fast or too slow; nothing of the product may depend on that.
"""

from __future__ import annotations

import asyncio
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

from orchestrator.broker.blobs import Blobs
from orchestrator.broker.broker import Broker
from orchestrator.broker.connection import Connection
from orchestrator.broker.errors import BrokerError
from orchestrator.broker.records import BrokerConfig, Claim
from orchestrator.broker.worker_state import MachineFacts
from orchestrator.config_keys import LogSettings, WorkerSettings
from orchestrator.core import CORE_VERSION
from orchestrator.core.facts import Claimed
from orchestrator.core.frozen import replace
from orchestrator.core.ids import SessionId
from orchestrator.core.settings import SessionFacts
from orchestrator.core.state import State, TaskPhase, task_phase
from orchestrator.model.canonical import CanonicalRequests
from orchestrator.rollouts.archive import Archive, Storage
from orchestrator.runtime.burial import bury_all
from orchestrator.runtime.loader import restore_session
from orchestrator.runtime.ports import AboutWorker, Ports
from orchestrator.runtime.renewal import Leases, Report
from orchestrator.runtime.runner import Runner, RunnerConfig
from orchestrator.runtime.sq_entries import PatientTexts
from orchestrator.runtime.worker import Worker, WorkerConfig
from sim.accounts import ACCOUNTING, MODEL_SETTINGS
from sim.answers import is_signed
from sim.bench import SimBench
from sim.files import SimFiles
from sim.folders import PORTABLE, Folders
from sim.keepers import Owner
from sim.knobs import Knobs
from sim.ledger import Ledger, SimSupervisor
from sim.lookups import SimLibrary
from sim.loop import Lane, SimLoop
from sim.machine_folders import SimFolders
from sim.model_script import ModelScript, SimModels
from sim.network import Line, Network
from sim.objects import SimObjects
from sim.requests import Sent
from sim.spans import Spans
from sim.tool_calls import OWN_MODELS, RULES, SimTools
from sim.trace import Trace
from sim.watch import Watch

POOL = "default"
BURIALS = 0.6
"""The share of workers whose supervisor outlives them."""
WEDGED_TICK_S = 0.5


@dataclass(frozen=True, slots=True)
class Site:
    """Objects that all machines of a simulation share."""

    loop: SimLoop
    network: Network
    ledger: Ledger
    model: ModelScript
    watch: Watch
    trace: Trace
    config: BrokerConfig
    objects: SimObjects
    """The storage under the archive."""
    files: SimFiles
    """Where rollouts' files are."""
    knobs: Knobs
    folders: Folders
    """Portable folders, as hosts and the store have them."""
    benches: bool
    """Whether workers do jobs of their pools."""
    signs: bool
    """Whether workers take signed approvals alone."""
    compacts_at: int | None
    """The tokens of a response from which on workers compact by themselves; None: nearly a whole window."""
    spans: Spans | None
    """Hears of the spans of all workers, where they tell any."""
    drawn: type[Random] = Random
    """The kind of generator that a process draws from."""
    clustered: bool = False
    """Whether processes speak to Redis as to a cluster, each slot by itself."""


@dataclass(frozen=True, slots=True)
class Clock:
    """A machine's clock: off by an offset, and a little fast or slow."""

    loop: SimLoop
    offset_s: float
    rate: float

    def __call__(self) -> float:
        return self.offset_s + self.loop.time() * self.rate

    def simulated(self, reading_s: float) -> float:
        """The simulated time at which it shows a reading."""
        return (reading_s - self.offset_s) / self.rate


def broker_on(
    site: Site, machine: str, clock: Clock, core: int = CORE_VERSION, host: str = ""
) -> tuple[Broker, Connection]:
    """A connection of one process, which is of some version; `host` has its copies of folders."""
    ways = Line(site.network, machine), Line(site.network, machine)
    connection = Connection(*ways, clustered=site.clustered)
    config = replace(site.config, core_version=core, machine=host)
    return Broker(connection, config, clock), connection


def archive_of(site: Site) -> Archive:
    """Where every process finds what left Redis."""
    return Archive(site.objects.opened(), site.knobs.secret)


def storage_on(site: Site, machine: str, clock: Clock) -> Storage:
    """Redis and the archive, as one process sees them."""
    broker, connection = broker_on(site, machine, clock)
    return storage_of(site, broker, connection, clock)


def storage_of(site: Site, broker: Broker, connection: Connection, clock: Clock) -> Storage:
    """The same, by a connection that is there."""
    return Storage(
        broker, Blobs(connection, broker.keys), archive_of(site), site.knobs.secret, monotonic=clock
    )


class SimRenewal(Leases):
    """The renewal thread, on a lane of its own."""

    def __init__(self, machine: Machine, report: Report) -> None:
        confirm = None if machine.site.knobs.confirmed is None else self._has_replicas
        outliving = machine.supervisor
        super().__init__(machine.settings, machine.extend, machine.clock, confirm, outliving=outliving)
        self._machine = machine
        self._report = report
        self._stopped = False

    async def _has_replicas(self, broker: Broker, claim: Claim, seq: int) -> bool:
        """Whether replicas have a renewal, before the next one is due."""
        confirmed = await broker.claims.confirmed(claim, seq, 1, self._settings.renew_s / 2)
        if not confirmed:
            self._machine.site.watch.reach.saw("counts_for_nothing")
        return confirmed

    def start(self) -> None:
        self.tick()
        machine = self._machine
        machine.site.loop.start(machine.renewing, self._renew_for_ever(), "renewal")

    def stop(self) -> None:
        self._stopped = True

    async def _renew_for_ever(self) -> None:
        machine = self._machine
        broker, _ = broker_on(machine.site, machine.name, machine.clock, machine.core)
        while True:
            await machine.sleep(self.pause_s)
            if self._stopped:
                return
            verdicts = await self.renew(broker)
            if verdicts:
                machine.site.loop.on(machine.main, self._report, verdicts)


class Operator:
    """An operator who takes sessions from their holders, and sends workers home."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._broker, _ = broker_on(site, "operator", Clock(site.loop, 0.0, 1.0))

    async def revokes(self, session: str) -> None:
        """Asks once; whether it took effect is not looked after."""
        with suppress(BrokerError):
            await self._broker.trees.revoke(SessionId(session))

    async def gives_up(self, session: str) -> None:
        """Gives up what is unsaved of its folder, and asks once."""
        with suppress(BrokerError):
            await self._broker.trees.abandon_unsaved(SessionId(session), "operator")

    async def sends_home(self, worker: str) -> bool:
        """Whether Redis has taken it, and knows the worker."""
        with suppress(BrokerError):
            return await self._broker.claims.drain(worker)
        return False


async def _there(facts: SessionFacts, cwd: str) -> str | None:
    return None


def _about(machine: str, state: State, worker: str) -> AboutWorker:
    """The settings of a machine are its name and a long list; the rules are those of the session's mode."""
    texts = [f"settings of {machine}\n{'-' * 5_000}", f"rules for {state.in_force.sandbox_policy['mode']}"]
    kept = {hashlib.sha256(text.encode()).hexdigest(): text for text in texts}
    settings, rules = kept
    return AboutWorker(Claimed(worker, machine, "sim", "0", settings=settings, rules=rules), kept)


class Process(ABC):
    """Lanes that live, stand still and die together."""

    def __init__(self, site: Site, name: str, rng: Random) -> None:
        self.site = site
        self.name = name
        self.clock = Clock(site.loop, rng.uniform(0.0, 1e6), 1.0 + rng.uniform(-2e-3, 2e-3))
        self.main = Lane(name)
        self.alive = True
        self.draining = False
        self.awake_s = site.loop.time()
        """When it began, or was let go after it had stood still."""
        self.held_s = self.awake_s
        """Since when it had stood still then."""
        self._holds = 0

    @property
    def is_held(self) -> bool:
        """Whether a lane of it stands still, since `held_s` or later."""
        return self._holds > 0

    def sleep(self, seconds: float) -> Coroutine[Any, Any, None]:
        """Sleeps by the machine's clock."""
        return self.site.loop.sleep(seconds / self.clock.rate)

    @property
    @abstractmethod
    def lanes(self) -> tuple[Lane, ...]:
        """The process's threads."""

    @abstractmethod
    def kill(self) -> None:
        """SIGKILL: nothing of it runs again."""

    @abstractmethod
    def drain(self) -> None:
        """SIGTERM."""

    def pause(self, seconds: float) -> None:
        """SIGSTOP for a while: the process, and not its supervisor."""
        self._hold(self.lanes, seconds)

    def stall(self, seconds: float) -> None:
        """The main loop is stuck; the thread that renews is not."""
        self._hold((self.main,), seconds)

    def wedge(self, seconds: float) -> None:
        """Holds the process: it seems to live and does nothing."""
        self.stall(seconds)

    def _hold(self, lanes: tuple[Lane, ...], seconds: float) -> None:
        if not self._holds:
            self.held_s = self.site.loop.time()
        self._holds += len(lanes)
        for lane in lanes:
            self.site.loop.hold(lane)
            self.site.loop.on(self.site.network.lane, self._wakes, lane, after=seconds)

    def _wakes(self, lane: Lane) -> None:
        self.awake_s = self.site.loop.time()
        self._holds -= 1
        self.site.loop.let_go(lane)


class SimWorker(Worker):
    """The product's; how many turns it runs is looked at whenever it asks for one more session."""

    watch: Watch

    async def _claim_one(self, pool: str, shard: int, guess: SessionId | None) -> SessionId | None:
        held = list(self._runners.values())
        turns, most = sum(map(_is_to_ask, held)), self._config.runner.worker.concurrency
        if any(runner.keeps_processes_only for runner in held):
            self.watch.reach.saw("places")
        if turns >= most:
            self.watch.broken("places", f"{self._config.name} asks for more beside {turns} turns of {most}")
        return await super()._claim_one(pool, shard, guess)


def _is_to_ask(runner: Runner) -> bool:
    """Whether the turn of its session has a request in flight, or owes one for which it is held."""
    state = runner._journal.position.state if runner.status and not runner._lost else None
    if state is None or state.task is None or state.tree.paused:
        return False
    return task_phase(state.task) in (TaskPhase.REQUESTING, TaskPhase.OWING)


class Machine(Process):
    """A worker process from its start to its end."""

    def __init__(
        self, site: Site, name: str, rng: Random, pools: tuple[str, ...] = (POOL,), core: int = CORE_VERSION
    ) -> None:
        super().__init__(site, name, rng)
        self.pools = pools
        self.core = core
        self.settings = WorkerSettings()
        self.renewing = Lane(f"{name}/renew")
        self.supervisor = SimSupervisor(site.loop, site.ledger, name, self.clock.simulated, self.clock)
        self.supervisor.word = self._is_dead
        # Else its machine dies with it, or nobody waits for its death.
        self.supervisor.outlives = Random(f"{name}:burial:{rng.getstate()[1][:4]}").random() < BURIALS
        host = site.folders.host_of(name)
        self._broker, connection = broker_on(site, name, self.clock, core, host)
        broker = self._broker
        tools = SimTools(
            site.model, site.ledger, self.supervisor, name, site.watch.rights.starting, site.folders
        )
        drawn = Random(f"{name}:folders:{rng.getstate()[1][:4]}")
        for lane in self.lanes:
            site.folders.owners[lane] = Owner(name, self.clock.simulated)
        trust_s = self.settings.trust_s
        self._folders = SimFolders(site.folders, drawn, name, self.clock, trust_s)
        ports = Ports(
            broker=broker,
            texts=PatientTexts(Blobs(connection, broker.keys), self.sleep, archive_of(site).text),
            models=SimModels(site.model, name, site.watch.requests, self._sender),
            tools=tools,
            # The same table for as long as the site lasts: a workload writes limits into it.
            model_settings=MODEL_SETTINGS.model_copy(update={"providers": site.model.providers}),
            workspace=_there,
            library=SimLibrary(Random(f"{name}:library:{rng.getstate()[1][:4]}"), self.sleep),
            archive=archive_of(site),
            restore=partial(restore_session, storage_of(site, broker, connection, self.clock)),
            files=site.files.opened_on(name),
            folders=self._folders,
            monotonic=self.clock,
            boottime=self.clock,
            sleep=self.sleep,
            random_bytes=rng.randbytes,
            jitter=lambda: rng.uniform(0.9, 1.1),
            signers=is_signed,
            canonical=CanonicalRequests(),
            about=partial(_about, name),
            observer=site.spans.of_worker(name, self.clock) if site.spans is not None else None,
        )
        rules = OWN_MODELS if site.knobs.own_models else RULES
        rules = replace(rules, auto_compact_limit=site.compacts_at) if site.compacts_at else rules
        runner = RunnerConfig(
            rules=replace(rules, signed_answers="required") if site.signs else rules,
            chain_key=site.knobs.chain_key,
            accounting=ACCOUNTING,
            confirm_effects=None if site.knobs.confirmed is None else self._confirmed,
            # Not validated: snapshots come more often than a person may ask for.
            log=LogSettings.model_construct(
                snapshot_every=rng.choice((12, 40, 256)), rollout_deltas=rng.random() < 0.1
            ),
            worker=WorkerSettings(
                quantum_s=rng.choice((1.0, 30.0)),
                drain_grace_s=rng.choice((0.5, 10.0)),
                concurrency=rng.choice((1, 2, 16)),
            ),
        )
        bench = SimBench(site.watch.jobs, site.model, site.ledger, self.supervisor, name)
        facts = MachineFacts(machine_id=host, core=core, workspaces=PORTABLE.root)
        config = WorkerConfig(name, pools, runner, bench=bench if site.benches else None, facts=lambda: facts)
        self.worker = SimWorker(ports, config, lambda report: SimRenewal(self, report))
        self.worker.watch = site.watch
        tools.session_of = self._session_of
        self.task = site.loop.start(self.main, self.worker.run(), "worker")

    @property
    def lanes(self) -> tuple[Lane, Lane]:
        return self.main, self.renewing

    @property
    def runners(self) -> list[Runner]:
        return list(self.worker._runners.values())

    def extend(self, claim: str, deadline_boottime: float) -> None:
        """Tells a claim's deadline to all that may act for it."""
        self.supervisor.extend(claim, deadline_boottime)
        self._folders.extend(claim, deadline_boottime)

    def _session_of(self, claim: str) -> str:
        runner = self.worker._runners.get(claim)
        return runner.claim.session if runner is not None else ""

    async def _confirmed(self, claim: Claim, seq: int) -> bool:
        """Whether replicas have the log up to there in time (`effects = "wait"`)."""
        confirmed = await self._broker.claims.confirmed(claim, seq, 1, 1.0)
        if not confirmed:
            self.site.watch.reach.saw("unconfirmed")
        return confirmed

    def _sender(self) -> Sent:
        """For whom the running task asks a model: it is one of a runner's effects, and named after it."""
        task = asyncio.current_task()
        assert task is not None
        session, _, n = task.get_name().split(":")
        claim = next(
            runner.claim.claim_id
            for runner in self.runners
            if any(task is running for running, _ in runner._side_work._effects._running.values())
        )
        return Sent(
            session,
            int(n),
            claim,
            self.name,
            lambda: self.supervisor.trusted_until_s(claim),
            self._stood_still,
        )

    def _stood_still(self) -> tuple[float, float]:
        return self.held_s, self.awake_s

    def kill(self) -> None:
        """SIGKILL: nothing of it runs again, and its supervisor's pipe closes."""
        self.alive = False
        self.site.watch.live_state.worker_ends(self.runners)
        for lane in self.lanes:
            self.site.loop.kill(lane)
        self.supervisor.loses_worker()
        self.site.folders.killed(self.name)
        self.site.files.crashed(self.name)

    def _is_dead(self) -> None:
        """The process that waits for the worker's death hears that nothing of it runs."""
        self.site.loop.start(Lane(f"{self.name}/burial"), self._is_buried(), "burial")

    async def _is_buried(self) -> None:
        broker, _ = broker_on(self.site, self.name, self.clock, self.core)
        await bury_all(broker.claims, self.supervisor.left(), self.clock() + 6.0, self.clock, self.sleep)

    def wedge(self, seconds: float) -> None:
        """Lets the worker renew and do nothing else: its loop turns, and no step of it comes to an end."""
        self._hold((self.main,), seconds)
        self.site.loop.start(self.renewing, self._ticks(seconds), "wedged")

    async def _ticks(self, seconds: float) -> None:
        for _ in range(int(seconds / WEDGED_TICK_S)):
            self.worker._renewal.tick()
            await asyncio.sleep(WEDGED_TICK_S)

    def drain(self) -> None:
        self.draining = True
        self.site.loop.on(self.main, self.worker.drain)
