"""A simulation from its seed to its verdict."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from random import Random
from typing import Any

import orjson

from orchestrator.broker.errors import BrokerError
from orchestrator.broker.records import BrokerConfig
from orchestrator.broker.redis_keys import Keys
from orchestrator.core.frozen import replace
from orchestrator.runtime import log
from sim.audit import audit
from sim.births import packing
from sim.double import Double
from sim.exported import Exported
from sim.failover import Failover
from sim.files import SimFiles
from sim.fixture import Fixture
from sim.folder_rules import FolderRules
from sim.folders import Folders
from sim.gateways import numbered
from sim.idle_time import IdleTime
from sim.invariants import Broken, Violation
from sim.knobs import Knobs
from sim.ledger import Ledger
from sim.loop import Lane, SimLoop, current_lane
from sim.machine_folders import keeping
from sim.machines import Machine, Site
from sim.model_script import ModelScript
from sim.nemesis import Nemesis, Plan
from sim.network import Network, Sent, session_of
from sim.objects import SimObjects
from sim.pack_keys import SimKeys
from sim.people import Diary, Person
from sim.placement import Placement
from sim.read_back import ReadBack
from sim.replicas import Replicas
from sim.spans import Spans
from sim.trace import Trace
from sim.undecidable import Stumbled
from sim.viewed import Viewed
from sim.watch import QUARANTINED, Watch
from sim.workloads import WORKLOADS, Workload, chosen
from workers.upkeep import log as upkeep_log

LOGS = (log, upkeep_log, logging.getLogger("dendro.app_server"), logging.getLogger("dendro.notary"))
REST_WITHIN_S = 400.0
"""Of simulated time, from the last fault until everything has come to rest."""
MOST_STEPS = 400_000
LOOK_S = 0.5
CLUSTERED = 0.1
"""The share of seeds in which processes speak to Redis as to a cluster."""
FAILOVERS = 0.5
"""The share of seeds with replicas in which one is promoted."""
SHOWN_WITHIN_S = 8.0
"""Seconds after which the last commit's events have reached every follower."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a seed."""

    seed: int
    workload: str
    violation: Violation | None
    commits: int
    commands: int
    steps: int
    simulated_s: float
    reach: Counter[str]
    """Counts of the cases that the seed reached (`sim/reach.py`)."""
    digest: str = ""
    """Of the trace, and of what all sessions and trees have told at the end: where it was asked for."""
    lines: tuple[str, ...] = ()
    """The trace."""


STATED, STATED_OFTEN = 6, 2
"""Every so many-th seed compares each script's run with its statement: it costs a tenth."""
ALONE = frozenset(("limits", "budgets", "archives", "outages", "letters", "jobs", "burials", "resting"))
"""Workloads that do so more often: nobody else comes to their scripts."""


SEALED: Mapping[str, float] = {"contents": 0.7, "folders": 0.5}
"""Workloads with keys of packs, and the share of their seeds that have some."""
SMALL_WINDOWS: Mapping[str, float] = {"compactions": 0.6}
"""Workloads whose conversations are compacted by themselves, and the share of their seeds."""
COMPACTS_AT = 100
VIEWED, VIEWED_OFTEN = 8, 3
"""Every so many-th seed compares what people are shown with what logs say."""
TURNED = frozenset(("turns", "queues", "doors", "crowds", "asks", "reviews", "reruns", "heirs"))
"""Workloads that do so more often: turns of many kinds are theirs, and cost little."""
READ, READ_OFTEN = 10, 2
"""Every so many-th seed reads every log back from an export of it."""
KEPT = frozenset(("files", "archives", "outages", "forks", "resting"))
"""Workloads that do so more often: large texts, inherited conversations and sealed logs are theirs."""


class World:
    """Everything of one seed. `run` may be called once."""

    workloads: Mapping[str, Workload] = WORKLOADS
    calm = False
    """Whether nothing takes time on its way, and lanes go in the order in which they have something to do."""
    drawn: type[Random] = Random
    """The kind of generator that a process draws from."""
    shards = 0
    """How many there are; 0: the seed's choice."""
    clustered: bool | None = None
    """Whether Redis is spoken to as a cluster; None: the seed's choice."""

    def __init__(self, seed: int, double: Double, workload: str | None = None) -> None:
        self.seed = seed
        master = Random(f"dendro:{seed}")
        self.loop = SimLoop(Random(master.getrandbits(64)))
        self.loop.first_ready = self.calm
        self.trace = Trace(self.loop.time)
        double.reset(self.loop.time)
        shards, page = master.choice((1, 1, 2)), master.choice((2, 32))
        knobs = Knobs.drawn(Random(f"dendro:{seed}:knobs"))
        # Stories have one model.
        self.knobs = replace(knobs, own_models=knobs.own_models and not self.calm)
        config = BrokerConfig(shards=self.shards or shards, watch_s=6.0, max_tries=100, page=page)
        config = replace(config, sq_max_entries=self.knobs.queue, quarantine_event=orjson.dumps(QUARANTINED))
        network = Network(self.loop, double, Random(master.getrandbits(64)), self.trace)
        network.instant = self.calm
        ledger = Ledger(self.loop, self.trace)
        objects = SimObjects(self.loop.time)
        watch = Watch(
            self.loop, double, Keys(config.prefix, config.shards), ledger, objects, self.knobs.secret
        )
        model = ModelScript(self.loop, Random(master.getrandbits(64)), self.trace, self._model_complains)
        model.heard, model.said, model.broke = watch.asked, watch.conversations.said, watch.broke
        self.workload = self.workloads[workload or chosen(seed, master)]
        config = replace(config, **self.workload.broker)
        fails_over = Random(f"dendro:{seed}:fails over").random() < self.workload.replicas
        self._fails_over = fails_over and not self.calm
        if self._fails_over:
            self.knobs = replace(self.knobs, confirmed=self.knobs.confirmed or 1.0)
        files = SimFiles(self.loop.time, Random(f"dendro:{seed}:files"))
        self.exported = Exported(watch, files)
        self.read_back = ReadBack(watch, double, objects, self.knobs.secret)
        self.reads_back = seed % (READ_OFTEN if self.workload.name in KEPT else READ) == 0
        self.viewed = Viewed(watch, double, objects, config, Random(f"dendro:{seed}:viewed"))
        self.views = seed % (VIEWED_OFTEN if self.workload.name in TURNED else VIEWED) == 0
        if self.views:
            watch.viewed = self.viewed.committed
        drawn = Random(f"dendro:{seed}:hosts")
        folders = Folders(objects, self.loop, drawn, hosts=drawn.choice((1, 2, 2, 2)))
        folders.most_packs = drawn.choice((1, 2, 3))
        if drawn.random() < SEALED.get(self.workload.name, 0.0):
            folders.keys = SimKeys(folders.root, drawn)
        watch.folders = FolderRules(watch, ledger, folders, Placement(watch, double, watch.keys, folders))
        if Random(f"dendro:{seed}:compacts").random() < SMALL_WINDOWS.get(self.workload.name, 0.0):
            watch.compacts_at = COMPACTS_AT
        self.site = Site(
            self.loop,
            network,
            ledger,
            model,
            watch,
            self.trace,
            config,
            objects,
            files,
            self.knobs,
            folders,
            self.workload.benches,
            self.workload.signs,
            watch.compacts_at,
            Spans(watch, self.viewed.logs) if self.workload.traces else None,
            self.drawn,
            Random(f"dendro:{seed}:clustered").random() < CLUSTERED
            if self.clustered is None
            else self.clustered,
        )
        self.double = double
        watch.answers.signed = self.workload.signs
        self._show_all(watch)
        self.diary = Diary()
        self._set_faults(master)
        plan = Plan(
            faults=max(self.workload.faults, master.choice((0, 2, 5, 10))),
            lasts_s=max(self.workload.lasts_s, master.choice((8.0, 20.0, 40.0))),
            workers=master.choice((1, 2, 2, 3)),
        )
        self.nemesis = self._nemesis(Random(master.getrandbits(64)), plan)
        plan = self.nemesis.plan
        if self.knobs.confirmed is not None:
            self._set_replicas(self.knobs.confirmed, failovers=plan.faults > 0)
        self.idle_time = IdleTime(self.site, lambda: self.nemesis.living, Random(master.getrandbits(64)))
        watch.rights.lives = self._lives
        self._plan = plan
        self._master = master
        self._finished = False

    def _nemesis(self, rng: Random, plan: Plan) -> Nemesis:
        return Nemesis(self.site, self.double, rng, plan)

    def _lives(self, worker: str) -> bool:
        return any(machine.name == worker for machine in self.nemesis.living)

    def _show_all(self, watch: Watch) -> None:
        """Lets the watch see what happens anywhere."""
        network = self.site.network
        network.wrote = watch.wrote
        network.states = self.seed % (STATED_OFTEN if self.workload.name in ALONE else STATED) == 0
        network.misstated = lambda name, unlike: watch.broken("scripts", f"{name}: {unlike}")
        network.heard, network.renews = self._heard, watch.renewals.leaves
        self.site.ledger.saw = watch.reach.saw
        self.site.files.saw = watch.reach.saw

    def _set_replicas(self, confirmed: float, *, failovers: bool) -> None:
        """Replicas that take a share of what is written; one of them may be promoted."""
        rng = Random(f"dendro:{self.seed}:replicas")
        self.site.network.replicas = Replicas(self.double, self.loop.time, rng, confirmed)
        if self._fails_over or (failovers and rng.random() < FAILOVERS):
            times = rng.choice((1, 2, 3)) if self._fails_over else 1
            self.nemesis.failover = Failover(self.site, rng, lambda: self.nemesis.living, times)

    def _heard(self, sent: Sent, reply: Any) -> None:
        """As soon as a holder has taken in what became of its commit, what it knows is compared."""
        self.site.watch.renewals.answered(sent, reply)
        self.loop.call_soon(self._compare, sent.machine, session_of(sent.name, sent.args))

    def _compare(self, machine: str, session: str) -> None:
        for one in self.nemesis.living:
            if one.name == machine:
                for runner in one.runners:
                    if runner.claim.session == session:
                        self.site.watch.live_state.compare(runner)

    def _set_faults(self, rng: Random) -> None:
        faults, failures = self.site.network.faults, self.site.model.faults
        if rng.random() < 0.7:
            faults.slow = rng.choice((0.0, 0.05, 0.3))
            faults.lost_before, faults.lost_after, faults.late = (
                rng.choice((0.0, 0.01, 0.05)) for _ in range(3)
            )
            faults.late_wake = rng.choice((0.0, 0.2))
        if rng.random() < 0.6:
            failures.limited, failures.refused, failures.cut, failures.slow = (
                rng.choice((0.0, 0.05, 0.2)) for _ in range(4)
            )
            failures.fatal = failures.too_long = rng.choice((0.0, 0.05, 0.15))
        failures.unserved = Random(f"dendro:{self.seed}:unserved").random() < 0.5

    def _model_complains(self, seen: str) -> None:
        if self.loop.time() > self.site.watch.went_back_s + 5.0:
            self.site.watch.broken("outputs", seen)

    def run(self, *, traced: bool = False) -> Outcome:
        """Runs the seed to its end, or to the first broken rule; `traced` tells the trace as well."""
        watch, self.trace.kept = self.site.watch, traced or self.calm
        with _errors_told(self), self.knobs.set(), packing(), numbered(self.seed), keeping(self.site.folders):
            try:
                self.loop.start(Lane("director"), self._direct(), "director")
                self.loop.run(MOST_STEPS)
                if self._finished and not watch.violation:
                    for machine in self.nemesis.living:
                        watch.live_state.worker_ends(machine.runners)
                    audit(self)
            except Broken:
                pass
            except Exception as error:
                # A rule met what it cannot read: no log, file or event of the product is so.
                self.loop.failures.append(error)
            violation = watch.violation or self._crash()
        outcome = Outcome(
            self.seed,
            self.workload.name,
            violation,
            watch.commits,
            self.site.network.commands,
            self.loop.steps,
            self.loop.time(),
            self._reached(),
            f"{self.trace.digest()}{self._told()}" if traced else "",
            tuple(self.trace.lines()) if traced else (),
        )
        # The clean-up of what is suspended has nobody to tell any more.
        for one in LOGS:
            one.disabled = True
        try:
            self.loop.close()
        finally:
            self.site.ledger.close()
            self.site.folders.close()
            for one in LOGS:
                one.disabled = False
        return outcome

    def _told(self) -> str:
        """A digest of every log's head, every event queue and every tree's log."""
        told, keys = hashlib.sha256(), self.site.watch.keys
        for session, seen in sorted(self.site.watch.sessions.items()):
            told.update(f"{session} {seen.seq}".encode() + seen.head)
            events = self.double.stream_after(keys.eq(session), 0)
            for entry_id, fields in (*events, *self.double.tree_after(keys, session, 0)):
                told.update(entry_id + b"\0".join(chain.from_iterable(fields.items())))
        return told.hexdigest()

    def _reached(self) -> Counter[str]:
        reach, site = self.site.watch.reach, self.site
        reach.counts["case no_crash"] += site.network.lost
        for case, times in (("refused", site.network.refused), ("unknown_scripts", self.double.unknown)):
            if times:
                reach.counts[f"case {case}"] += times
        if self._plan.faults and self._finished:
            reach.saw("rest")
        return reach.counts

    def _crash(self) -> Violation | None:
        now = self.loop.time()
        for error in self.loop.failures:
            if isinstance(error, Broken):
                return error.violation
            return Violation("no_crash", now, f"{type(error).__name__}: {error}")
        if self.loop.steps > MOST_STEPS:
            return Violation("rest", now, f"no rest after {MOST_STEPS} steps")
        if not self._finished:
            return Violation("rest", now, "nothing is left that could ever happen")
        return None

    # ── the course of a simulation ────────────────────────────────────────────────────────────

    async def _direct(self) -> None:
        for _ in range(self._plan.workers):
            self.nemesis.start_worker()
        self.idle_time.begin()
        injecting = self.loop.start(self.nemesis.lane, self.nemesis.injects(), "nemesis")
        fixture = self._fixture(Random(self._master.getrandbits(64)))
        await self.workload.play(fixture)
        await injecting
        await self._has_said_all(fixture)
        looks = int(REST_WITHIN_S / LOOK_S)
        resting = False
        while not resting:
            looks = await self._come_to_rest(fixture, looks)
            # The last events are on their way to the followers; a timer may wake somebody meanwhile.
            await asyncio.sleep(SHOWN_WITHIN_S)
            shown_s = self.loop.time() - SHOWN_WITHIN_S / 2
            resting = not self.site.watch.resting() and self.site.watch.written_s < shown_s
        self.site.watch.secrets.is_gone()
        await self._is_at_rest(fixture)
        self._finished = True
        self.loop.stop()

    def _fixture(self, rng: Random) -> Fixture:
        return Fixture(self.site, self.diary, rng, self.nemesis)

    async def _has_said_all(self, fixture: Fixture) -> None:
        """People have said all that they have to say, and faults are over."""
        if self.views:
            self.viewed.look()

    async def _is_at_rest(self, fixture: Fixture) -> None:
        """Everything has come to rest."""

    async def _come_to_rest(self, fixture: Fixture, looks: int) -> int:
        """Until every session is at rest; how many looks are left of those that may be taken."""
        watch = self.site.watch
        while watch.resting():
            looks -= 1
            if not looks:
                watch.broken("rest", "; ".join(watch.resting()))
            if (late_s := watch.latest_timer_s()) > 30.0:
                watch.broken("deadlines", f"a timer is {late_s:.1f} s late")
            if late := watch.late_awaits():
                watch.broken("awaits", "; ".join(late))
            await fixture.answer_all()
            self.idle_time.skip(current_lane())
            await asyncio.sleep(LOOK_S)
        return looks


class _Told(logging.Handler):
    """The product's log is lines of the trace; an error that it did not expect is a failure."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.INFO if world.trace.kept else logging.ERROR)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        self._world.trace.note("log", record.levelname.lower(), record.getMessage())
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and not isinstance(error, BrokerError | Broken) and not Stumbled.caused(error):
            watch = self._world.site.watch
            seen = f"{record.getMessage()}: {type(error).__name__}: {error}"
            watch.violation = watch.violation or Violation("no_crash", self._world.loop.time(), seen)
            self._world.loop.stop()


@contextmanager
def _errors_told(world: World) -> Iterator[None]:
    handler, before = _Told(world), [(one, one.level, one.propagate) for one in LOGS]
    for one in LOGS:
        one.addHandler(handler)
        one.setLevel(handler.level)
        one.propagate = False
    try:
        yield
    finally:
        for one, level, propagate in before:
            one.removeHandler(handler)
            one.setLevel(level)
            one.propagate = propagate


__all__ = ["Machine", "Outcome", "Person", "World"]
