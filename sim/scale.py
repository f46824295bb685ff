"""`python -m sim.scale`: what a fleet costs its Redis, by its size; laws of growth, fitted and enforced.

The same work is done by fleets of several sizes, over several numbers of shards, against one server and
against the nodes of a cluster; every command is counted, and every call and key inside of a script. Counts
depend on nothing but the product, so they need no quiet machine. A law says how a count may grow; what is
fitted to the counts is held against it, and gives the figures for fleets that nobody simulates.

Exit code 1 if a law is broken, and which.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count, product
from pathlib import Path
from random import Random
from statistics import linear_regression
from types import MappingProxyType
from typing import Any

from redis.crc import key_slot

from proof.growth import kind_of
from sim.archive_moves import UpkeepRules
from sim.campaign import _garbage_kept
from sim.double import Command, Double
from sim.fixture import Fixture
from sim.knobs import Knobs
from sim.loop import current_lane, silenced, unlisted
from sim.nemesis import Nemesis, Plan
from sim.network import scripts
from sim.people import Person, words
from sim.stories.calm import Apart, Keyed
from sim.workloads import Workload
from sim.world import World

WORKERS, SHARDS = (2, 8, 32, 128), (16, 64)
SLICE_WORKERS, SLICE_SHARDS = (8, 24), (4, 16)
NODES = 3
"""Nodes of the cluster, each with as many slots."""
STARTED_S, IDLE_S, BETWEEN_S = 20.0, 20.0, 0.25
SESSIONS, TURNS = 16, 2
SLOTS = 16_384
RESTED, SLICE_RESTED = (8, 32, 64), (4, 12)
"""Sessions that rest, and are archived."""
RESTING_S, CLOSED_S, ARCHIVED_S, DELETED_S = 300.0, 600.0, 1_000.0, 1_200.0
"""Upkeep deletes once an hour, 1,060 s behind its begin."""
TOLD = ("ready", "near", "jobs_ready")
"""Kinds of streams in which a worker is told of what it could take."""


# ── counting ──────────────────────────────────────────────────────────────────────────────────────


@dataclass
class Counts:
    """Counts over some time."""

    commands: Counter[str] = field(default_factory=Counter)
    """By script, or by command where it is no script."""
    nodes: Counter[int] = field(default_factory=Counter)
    """Commands by the node of a cluster that has their first key."""
    inside: Counter[str] = field(default_factory=Counter)
    """Calls inside of scripts, by script; one that asks for many keys counts as often."""
    told: Counter[str] = field(default_factory=Counter)
    """Blocking reads that were answered with entries, by the kind of the stream."""

    @property
    def sent(self) -> int:
        return sum(self.commands.values())

    @property
    def work(self) -> int:
        """Commands, and calls inside of scripts: what the server does."""
        return self.sent + sum(self.inside.values())


class Counted(Double):
    """A double that counts, and runs every script: also looks for work that find nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = Counts()
        self._calls = self._store.counts_calls()
        self._named: dict[bytes, str] = {}

    def know(self, source: bytes, sha: str) -> None:
        super().know(source, sha)
        self._named[sha.encode()] = source.partition(b"\n")[0].decode()

    def named(self, scripts: Mapping[str, Any]) -> None:
        """Names scripts in the counts."""
        self._named = {script.sha.encode(): name for name, script in scripts.items()}

    def idle_look(self, args: Sequence[Any]) -> Any:
        return None

    def take(self, name: str, command: Command) -> Any:
        script = self._named.get(command[1], "script") if name == "EVALSHA" else ""
        key = command[3] if script else command[1] if len(command) > 1 else b""
        self.count(script or name, key)
        before = self._calls()
        try:
            return super().take(name, command)
        finally:
            if script:
                self.counts.inside[script] += self._calls() - before

    def count(self, name: str, key: bytes) -> None:
        self.counts.commands[name] += 1
        self.counts.nodes[key_slot(key) * NODES // SLOTS] += 1

    def _execute(self, command: Command) -> Any:
        if command[0] == b"EVALSHA" and (source := self._known.get(command[1])) is not None:
            first = 3 + int(command[2])
            return self._store.run(self._now_us(), source, command[3:first], command[first:])
        return super()._execute(command)

    def since(self) -> Counts:
        """Counts since the last time that somebody asked."""
        counts, self.counts = self.counts, Counts()
        return counts

    def weights(self) -> dict[str, int]:
        """Every key with its bytes."""
        return {key.decode(): size for key, size in self._store.weights(self._now_us()).items()}


# ── a fleet ───────────────────────────────────────────────────────────────────────────────────────


class Steady(Apart):
    """A generator that chooses what stands last: all workers alike, with room for many turns."""

    def choice(self, seq: Sequence[Any]) -> Any:  # type: ignore[override]
        return seq[-1]


class InTurn(Steady):
    """A generator that goes through what there is: sessions are spread over the shards."""

    def __init__(self, seed: Any = None) -> None:
        super().__init__(seed)
        self._next = 0

    def randrange(self, start: int, stop: int | None = None, step: int = 1) -> int:
        self._next += 1
        return (self._next - 1) % start


@dataclass(frozen=True, slots=True)
class Size:
    """The size of a fleet, and how its Redis is set up."""

    workers: int
    shards: int
    clustered: bool = False

    def __str__(self) -> str:
        kind = f"cluster of {NODES} nodes" if self.clustered else "one server"
        return f"{self.workers} workers, {self.shards} shards, {kind}"


@dataclass
class Measured:
    """Costs of a fleet."""

    size: Size
    idle: Counts = field(default_factory=Counts)
    busy: Counts = field(default_factory=Counts)
    submissions: int = 0
    connections: float = 0.0
    """Of a worker, as it waits."""
    kinds: tuple[Counter[str], Counter[str]] = field(default_factory=lambda: (Counter(), Counter()))
    """Keys by kind behind the first turns, and behind the last."""
    cpu_s: float = 0.0

    @property
    def idle_work(self) -> float:
        """A second."""
        return self.idle.work / IDLE_S

    @property
    def told(self) -> float:
        """Workers that are told of a submission."""
        return sum(self.busy.told[kind] for kind in TOLD) / self.submissions

    @property
    def claims(self) -> float:
        """Claims that a submission costs."""
        return self.busy.commands["claim"] / self.submissions

    @property
    def lean(self) -> float:
        """How much more than the mean the busiest node has to do, idle or at work."""
        nodes = (self.idle.nodes, self.busy.nodes)
        return max(max(one.values()) * NODES / sum(one.values()) for one in nodes)

    @property
    def grown(self) -> Counter[str]:
        """Keys, by kind, that the same sessions have more behind another turn."""
        return self.kinds[1] - self.kinds[0]


@dataclass
class Kept:
    """Costs of so many sessions for upkeep, and what is left of them."""

    sessions: int
    resting: int = 0
    """Commands of upkeep over `RESTING_S`, while all sessions rest and nothing is due."""
    archiving: int = 0
    """Until all are archived."""
    bytes: int = 0
    """In Redis, when all are archived."""
    archived: Counter[str] = field(default_factory=Counter)
    """Keys by kind, when all are archived."""
    deleted: Counter[str] = field(default_factory=Counter)
    """And when all are deleted."""


def plain_seed() -> int:
    """A seed under which nothing of a deployment is out of the ordinary."""
    plain = Knobs(None, None, mixed=False, small=False, queue=1_000)
    return next(seed for seed in count() if Knobs.drawn(Random(f"dendro:{seed}:knobs")) == plain)


async def _nothing(fixture: Fixture) -> None:
    """The fleet's own course has the play."""


class Fleet(World):
    """A fleet from its start until its work is done; nothing fails, and nothing takes time on its way."""

    workloads: Mapping[str, Workload] = MappingProxyType({"scale": Workload("scale", _nothing)})
    calm = True
    drawn = Steady
    sessions = SESSIONS

    def __init__(self, size: Size, double: Counted) -> None:
        self.shards, self.clustered, self._size = size.shards, size.clustered, size
        super().__init__(plain_seed(), double, "scale")
        self._counted, self.measured = double, Measured(size)
        site = self.site
        site.model.rng = Keyed("scale", self._who_draws)
        site.model.row = lambda session: f"{session[-6:]}-"
        site.model.odds.opening, site.model.odds.calls, site.model.odds.asks = ("shell",), 0.0, 0.0
        site.network.states = self.views = self.reads_back = False
        site.watch.viewed = None
        self._lanes: defaultdict[str, set[str]] = defaultdict(set)
        self.sent: Counter[str] = Counter()
        """Commands by machine."""
        self._listen()

    def _listen(self) -> None:
        """Counts what the double is not asked: reads that block, and by which connections commands come."""
        network, counted = self.site.network, self._counted
        counted.named(scripts())
        block, reply_to, send = network._block, network._reply_to, network.send

        def blocks(sent: Any, future: Any) -> None:
            counted.count("XREAD", str(sent.args[sent.args.index("STREAMS") + 1]).encode())
            block(sent, future)

        def replies(future: Any, found: Any) -> None:
            if not future.done():
                counted.counts.told.update(kind_of(key.decode()) for key, _ in found or ())
            reply_to(future, found)

        async def sends(machine: str, args: tuple[Any, ...]) -> Any:
            self._lanes[machine].add(current_lane().name)
            self.sent[machine] += 1
            return await send(machine, args)

        network._block, network._reply_to, network.send = blocks, replies, sends  # type: ignore[method-assign]

    def _who_draws(self) -> str:
        try:
            task = asyncio.current_task()
        except RuntimeError:
            task = None
        return task.get_name() if task is not None else ""

    def _nemesis(self, rng: Random, plan: Plan) -> Nemesis:
        return Nemesis(self.site, self.double, Steady(rng.getrandbits(64)), Plan(0, 0.0, self._size.workers))

    def _set_faults(self, rng: Random) -> None:
        """There are none."""

    def _set_replicas(self, confirmed: float, *, failovers: bool) -> None:
        """There are none."""

    async def _direct(self) -> None:
        self.nemesis.calm.set()
        for at in range(self._size.workers):
            self.nemesis.start_worker()
            # Looks of all workers at one moment would be one look.
            await asyncio.sleep(1.0 / self._size.workers if at % 8 else 1.0 / 3)
        await self._course(Fixture(self.site, self.diary, Steady("people"), self.nemesis))
        self._finished = True
        self.loop.stop()

    async def _course(self, fixture: Fixture) -> None:
        measured, counted = self.measured, self._counted
        await asyncio.sleep(STARTED_S)
        counted.since()
        await asyncio.sleep(IDLE_S)
        measured.idle, measured.connections = counted.since(), self._connections()
        person = Person(self.site, "p1", InTurn("p1"), self.diary)
        making = person.does(self._makes(person), "makes")
        await asyncio.wait([making])
        sessions = making.result()
        for turn in range(TURNS):
            await asyncio.wait([person.does(self._asks(person, sessions, turn), "asks")])
            await self._rests()
            measured.kinds[min(turn, 1)].update(map(kind_of, counted.weights()))
        measured.busy, measured.submissions = counted.since(), TURNS * len(sessions)

    async def _makes(self, person: Person) -> list[str]:
        return [await person.creates("never") for _ in range(self.sessions)]

    async def _asks(self, person: Person, sessions: Sequence[str], turn: int) -> None:
        for session in sessions:
            await person.submits(session, words(f"words {turn} for {session}"))
            await asyncio.sleep(BETWEEN_S)

    async def _rests(self) -> None:
        while self.site.watch.resting():  # noqa: ASYNC110
            await asyncio.sleep(1.0)
        # What was told to nobody in particular is gone behind its time.
        await asyncio.sleep(10.0)

    def _connections(self) -> float:
        """Of a worker: one for the commands of each of its threads, to every node, and one for each read."""
        nodes = NODES if self._size.clustered else 1
        waits = Counter(one.machine for one in self.site.network._waiters if not one.future.done())
        workers = [machine.name for machine in self.nemesis.living]
        return sum(len(self._lanes[name]) * nodes + waits[name] for name in workers) / len(workers)


class Tidied(Fleet):
    """A worker and upkeep: sessions that rest, then are closed, archived, and deleted at last."""

    def __init__(self, sessions: int, double: Counted) -> None:
        self.sessions, self.kept = sessions, Kept(sessions)
        super().__init__(Size(1, 4), double)

    async def _course(self, fixture: Fixture) -> None:
        kept, loop = self.kept, self.loop
        person = Person(self.site, "p1", InTurn("p1"), self.diary)
        making = person.does(self._makes(person), "makes")
        await asyncio.wait([making])
        await asyncio.wait([person.does(self._asks(person, making.result(), 0), "asks")])
        await self._rests()
        rules = UpkeepRules(processes=1, seal_after=1_000, archive_after_s=30.0, retention_s=90.0)
        self.nemesis.keep_up(rules)
        await asyncio.sleep(CLOSED_S - RESTING_S - loop.time())
        before = self.sent["u1"]
        await asyncio.sleep(CLOSED_S - loop.time())
        kept.resting, before = self.sent["u1"] - before, self.sent["u1"]
        for session in making.result():
            await asyncio.wait([person.does(person.shuts(session), "shuts")])
        await asyncio.sleep(ARCHIVED_S - loop.time())
        kept.archiving = self.sent["u1"] - before
        left = self._counted.weights()
        kept.bytes, kept.archived = sum(left.values()), Counter(map(kind_of, left))
        await asyncio.sleep(DELETED_S - loop.time())
        kept.deleted = Counter(map(kind_of, self._counted.weights()))


@contextmanager
def _simulating() -> Iterator[Counted]:
    with _garbage_kept(), unlisted():
        yield Counted()
        with silenced():
            gc.collect()


def measured(size: Size) -> Measured:
    """Runs one fleet; raises RuntimeError if a rule of the simulator broke."""
    began = time.process_time()
    with _simulating() as double:
        fleet = Fleet(size, double)
        outcome = fleet.run()
    if outcome.violation is not None:
        raise RuntimeError(f"{size}: {outcome.violation}")
    fleet.measured.cpu_s = time.process_time() - began
    return fleet.measured


def tidied(sessions: int) -> Kept:
    """Lets so many sessions rest, and puts them away; raises RuntimeError as `measured` does."""
    with _simulating() as double:
        fleet = Tidied(sessions, double)
        outcome = fleet.run()
    if outcome.violation is not None:
        raise RuntimeError(f"{sessions} sessions at rest: {outcome.violation}")
    return fleet.kept


# ── laws ──────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Fit:
    """A count as `base + worker * workers + shard * shards + both * workers * shards`."""

    base: float
    worker: float
    shard: float
    both: float

    def at(self, workers: float, shards: float) -> float:
        return self.base + self.worker * workers + self.shard * shards + self.both * workers * shards

    def grown(self, workers: float, shards: float) -> float:
        """The same, without what the two do to each other."""
        return self.base + self.worker * workers + self.shard * shards

    def share(self, workers: float, shards: float) -> float:
        """How much of the count grows with workers and shards at once."""
        return self.both * workers * shards / self.at(workers, shards)


def fit(points: Sequence[Measured], count: Callable[[Measured], float]) -> Fit:
    """By regression over the shards for each number of workers, and of what that gives over the workers."""
    lines: list[tuple[int, float, float]] = []
    for workers in sorted({one.size.workers for one in points}):
        some = [one for one in points if one.size.workers == workers]
        line = linear_regression([one.size.shards for one in some], [count(one) for one in some])
        lines.append((workers, line.slope, line.intercept))
    fleets = [workers for workers, _, _ in lines]
    slopes = linear_regression(fleets, [slope for _, slope, _ in lines])
    bases = linear_regression(fleets, [base for _, _, base in lines])
    return Fit(bases.intercept, bases.slope, slopes.intercept, slopes.slope)


FULL_LOOKS = 8
"""From so many workers on all shards are looked at as often as they ever are."""
BOTH_SHARE = 0.20
TOLD_MOST, CLAIMS_MOST, LEAN_MOST = 2.0, 2.0, 2.0
RESTING_MOST, ARCHIVED_BYTES_MOST = 0.5, 4_096
"""Commands that a session at rest costs upkeep in five minutes (its head, once an hour); bytes in Redis of an
archived one, which are to become less: see `docs/scale.md`."""
DELETED_KEPT = frozenset(
    (
        "changed",
        "clock",
        "control",
        "deleted",
        "deleted_by",
        "heard",
        "looked",
        "near",
        "open",
        "ready",
        "released",
        "spend",
        "workers",
    )
)
"""Kinds of keys that outlive sessions, each with a bound of its own."""


def idle_fit(points: Sequence[Measured], *, clustered: bool) -> Fit:
    """The work of an idle fleet, a second."""
    some = [one for one in points if one.size.clustered is clustered and one.size.workers >= FULL_LOOKS]
    return fit(some, lambda one: one.idle_work)


def connections_fit(points: Sequence[Measured], *, clustered: bool) -> Fit:
    """The connections of all workers of an idle fleet."""
    some = [one for one in points if one.size.clustered is clustered and one.size.workers >= FULL_LOOKS]
    return fit(some, lambda one: one.connections * one.size.workers)


def broken(points: Sequence[Measured], rested: Sequence[Kept]) -> list[str]:
    """A line for each law that does not hold."""
    found: list[str] = []
    for clustered in sorted({one.size.clustered for one in points}):
        where = f"in a cluster of {NODES} nodes" if clustered else "on one server"
        largest = max((one.size for one in points), key=lambda size: (size.workers, size.shards))
        sized = [one.size for one in points if one.size.clustered is clustered]
        if len({size.shards for size in sized}) < 2 or len({size.workers for size in sized}) < 2:
            continue
        for what, law in (("idle work", idle_fit), ("connections", connections_fit)):
            share = law(points, clustered=clustered).share(largest.workers, largest.shards)
            if share > BOTH_SHARE:
                found.append(
                    f"{what} {where} grows with workers times shards: that is {share:.0%} of it with "
                    f"{largest.workers} workers and {largest.shards} shards, and may be {BOTH_SHARE:.0%}"
                )
    for one in points:
        if one.told > TOLD_MOST:
            found.append(
                f"{one.size}: {one.told:.1f} workers are told of a submission, and may be {TOLD_MOST:g}"
            )
        if one.claims > CLAIMS_MOST:
            found.append(
                f"{one.size}: a submission costs {one.claims:.1f} claims, and may cost {CLAIMS_MOST:g}"
            )
        if one.size.clustered and one.lean > LEAN_MOST:
            found.append(
                f"{one.size}: one node has {one.lean:.1f} times the mean, and may have {LEAN_MOST:g}"
            )
        found += [
            f"{one.size}: another turn of the same sessions leaves {times} more keys of the kind {kind}"
            for kind, times in sorted(one.grown.items())
        ]
    return found + _broken_by_upkeep(rested)


def resting_cost(rested: Sequence[Kept]) -> float:
    """Commands of upkeep for one more session at rest."""
    return linear_regression([one.sessions for one in rested], [one.resting for one in rested]).slope


def archived_bytes(rested: Sequence[Kept]) -> float:
    """Bytes that one more archived session has in Redis."""
    return linear_regression([one.sessions for one in rested], [one.bytes for one in rested]).slope


def _broken_by_upkeep(rested: Sequence[Kept]) -> list[str]:
    found: list[str] = []
    if len(rested) < 2:
        return found
    if (cost := resting_cost(rested)) > RESTING_MOST:
        found.append(
            f"a session at rest costs upkeep {cost:.2f} commands in {RESTING_S:g} s, "
            f"and may cost {RESTING_MOST:g}"
        )
    if (size := archived_bytes(rested)) > ARCHIVED_BYTES_MOST:
        found.append(f"an archived session has {size:,.0f} bytes, and may have {ARCHIVED_BYTES_MOST:,}")
    for kept in rested:
        found += [
            f"{kept.sessions} sessions: {times} keys of the kind {kind} are left when all are deleted"
            for kind, times in sorted(kept.deleted.items())
            if kind not in DELETED_KEPT
        ]
    return found


# ── the page ──────────────────────────────────────────────────────────────────────────────────────


PAPER = ((200, 64), (2_000, 256), (20_000, 1_024))
"""Workers and shards of fleets of 100, 1,000 and 10,000 machines."""


def page(points: Sequence[Measured], rested: Sequence[Kept]) -> str:
    """All counts, what is fitted to them, and what the fit gives for larger fleets, as Markdown."""
    lines = [
        "# Laws of growth, counted",
        "",
        "`make scale` writes this page; [scale](../scale.md) says what it means. Counted in the simulator:",
        f"the product's own scripts and workers, {SESSIONS} sessions with {TURNS} turns of a command each.",
        "*Work*: commands, and calls inside of scripts, a second, of a fleet that has nothing to do. *Told*:",
        "workers that hear of a submission. *Connections*: of a worker. *Node*: the busiest one of the",
        "cluster, idle or at work, against the mean.",
        "",
        "| workers | shards | Redis | commands, idle | work, idle | told | claims | connections | node |",
        "|---:|---:|---|---:|---:|---:|---:|---:|---:|",
    ]
    for one in points:
        size, sent = one.size, one.idle.sent / IDLE_S
        kind, lean = ("cluster", f"{one.lean:.2f}") if size.clustered else ("one server", "–")
        lines.append(
            f"| {size.workers} | {size.shards} | {kind} | {sent:,.1f} | {one.idle_work:,.1f} "
            f"| {one.told:.2f} | {one.claims:.2f} | {one.connections:.1f} | {lean} |"
        )
    lines += ["", "Commands of a turn (largest fleet):", ""]
    for one in (points[-2], points[-1]):
        whole = ", ".join(
            f"{name} {times / one.submissions:.2f}"
            for name, times in sorted(one.busy.commands.items())
            if name not in QUIET
        )
        lines.append(f"- {one.size}: {whole}")
    lines += [
        "",
        "| sessions | upkeep, at rest | upkeep, archiving | bytes, archived |",
        "|---:|---:|---:|---:|",
    ]
    lines += [f"| {one.sessions} | {one.resting} | {one.archiving} | {one.bytes:,} |" for one in rested]
    most = max(rested, key=lambda one: one.sessions)
    kinds = ", ".join(f"{kind} {times}" for kind, times in sorted(most.archived.items()))
    lines += [
        "",
        f"One more archived session: {archived_bytes(rested):,.0f} bytes of names and values.",
        f"Keys of {most.sessions} of them: {kinds}.",
        "",
        "## On paper",
        "",
        "| workers | shards | Redis | work a second, idle | connections of workers |",
        "|---:|---:|---|---:|---:|",
    ]
    for workers, shards in PAPER:
        for clustered in (False, True):
            work = idle_fit(points, clustered=clustered).grown(workers, shards)
            open_ = connections_fit(points, clustered=clustered).grown(workers, shards)
            kind = "cluster" if clustered else "one server"
            lines.append(f"| {workers:,} | {shards:,} | {kind} | {work:,.0f} | {open_:,.0f} |")
    lines += ["", "## Laws that do not hold", ""]
    return "\n".join([*lines, *(f"- {line}" for line in broken(points, rested) or ["none"]), ""])


QUIET = frozenset(("look", "heartbeat", "PEXPIRE", "XREAD", "renew"))
"""Commands that are sent by time, and not by turn."""


def run(
    workers: Sequence[int], shards: Sequence[int], rested: Sequence[int]
) -> tuple[list[Measured], list[Kept]]:
    """Counts fleets of all these sizes, and sessions at rest."""
    sizes = [Size(*size) for size in product(workers, shards, (False, True))]
    return [measured(size) for size in sizes], [tidied(sessions) for sessions in rested]


def main(argv: Sequence[str]) -> int:
    """Runs what was asked for; answers the exit code."""
    parser = argparse.ArgumentParser(prog="python -m sim.scale", description=__doc__)
    parser.add_argument("--slice", action="store_true", help="the small sizes of CI")
    parser.add_argument("--page", type=Path, help="where the page is written")
    given = parser.parse_args(argv)
    began = time.process_time()
    points, rested = run(
        *((SLICE_WORKERS, SLICE_SHARDS, SLICE_RESTED) if given.slice else (WORKERS, SHARDS, RESTED))
    )
    text = page(points, rested)
    if given.page:
        given.page.parent.mkdir(parents=True, exist_ok=True)
        given.page.write_text(text, encoding="utf-8")
    print(text)
    print(f"{time.process_time() - began:.1f} s of processor time")
    return 1 if broken(points, rested) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
