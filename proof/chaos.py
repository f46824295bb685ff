"""`python -m proof.chaos`: a deployment under several faults at once, held against what it promised.

Redis as users deploy it (one server, three Sentinels over three, or a cluster of 3 + 3), two workers (one of
them of an earlier version), two gateways, upkeep, and clients: some by the library, which submit, resubmit
and follow, some over WebSockets, which approve, and leave for the other gateway in the middle. A driver
draws faults from a seed, so that they overlap. It ends by itself: so many seconds of faults, then at most a
minute to come to rest. Exit code 1 if a rule of `proof.chaos_rules` is broken, if one judged nothing, or if a
run that was spoiled by hand is not refused.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import re
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import asdict, dataclass, replace
from itertools import combinations, product
from pathlib import Path
from typing import Any, TypeVar, cast

import uvloop

from bench.lab import Lab, fleet, lab
from bench.machine import conditions
from orchestrator.broker.errors import BrokerError, Unavailable
from orchestrator.core.entries import EVENT_MSG, decode_entry
from orchestrator.core.ids import SessionId
from orchestrator.rollouts.archive import Archive
from orchestrator.rollouts.full_log import full_log
from proof import chaos_defects
from proof.chaos_clients import Crowd, Person, caught_up, client, stops_what_was_given_up
from proof.chaos_faults import (
    COMMON,
    KINDS,
    LENGTHS_S,
    MORE,
    NEVER_HERE,
    Due,
    Nemesis,
    absent,
    pairs,
    schedule,
)
from proof.chaos_rules import LOGGED, REST_S, RULES, Entry, Log, Mark, Record, Verdict, deaf, judge
from proof.chaos_script import LEDGER, PROGRAM
from proof.chaos_servers import TOPOLOGIES, now, served
from proof.chaos_stage import Stage, disks, prepare, staged

T = TypeVar("T")
SESSIONS, PEOPLE, CONCURRENCY = 4, 2, 8
SAMPLE_S, UP_S = 0.2, 180.0
"""How often the size of Redis's log is noted; how long the deployment may take to serve at first."""
ABOUT = """\
Redis as users deploy it. *single*: one server (even seeds: `appendfsync always`; odd ones: `everysec`, and
it forgets its last second). *sentinel*: a primary and two replicas, `min-replicas-to-write 1`, and three
Sentinels; *cluster*: three primaries with a replica each. Of these two, even seeds have `effects = "none"`
(Sentinels: `down-after-milliseconds 8000`), odd ones `"wait"` (2000). What a failover may lose is as
[operations](../operations.md#durability-what-each-choice-loses) says.
Two workers, two gateways, upkeep; four clients by the library, which submit, resubmit and follow; two over
WebSockets, which approve each command, and leave for the other gateway in the middle of every second one.
*Forgotten*: acknowledged, and gone with what Redis lost. *Given up*: commands without an end.
*Away*: how long clients asked in vain, in seconds, where it was more than half a second. *Rest*: seconds
until all were at rest. *Returns*: approvals in which a client came to the other gateway.
*Failovers*: how often a fault ended with another primary, and the longest until all servers were whole."""
COLUMNS = (
    "servers",
    "seed",
    "faults",
    "promised",
    "forgotten",
    "commands",
    "given up",
    "repeated",
    "away, p50 / max",
    "rest",
    "returns",
    "drains, max s",
    "failovers, max s",
)
LONG_S, SLICE_S, AFTER_S = 120.0, 20.0, 10.0
TIMES, OFTEN = 5, 2
"""Of so many runs of a schedule so many fail where it is said to fail."""
SELDOM = ("asked_again", "leaves_in_time", "killed_is_dead")
"""Rules that may have nothing to judge in a run that is shorter; in a mere slice of one, any may."""
_RUNS = re.compile(rf"{re.escape(PROGRAM)}', '(\S+)'")


@dataclass(frozen=True, slots=True)
class Chaos:
    """A run: its stage, its clients and its faults."""

    stage: Stage
    crowd: Crowd
    nemesis: Nemesis


async def _notes_sizes(chaos: Chaos) -> None:
    sizes = chaos.nemesis.sizes
    while not chaos.crowd.over:
        with contextlib.suppress(OSError):
            if (log := chaos.nemesis.log()) is not None:
                sizes.append((now(), log, log.stat().st_size))
                del sizes[:-100]
        chaos.stage.watch()
        await asyncio.sleep(SAMPLE_S)


# ── at rest ───────────────────────────────────────────────────────────────────────────────────────


async def _rested(chaos: Chaos) -> float:
    """Seconds until nothing is due and nobody holds anything; more than `REST_S` if that does not come."""
    began = now()
    while now() - began <= REST_S:
        with contextlib.suppress(BrokerError):
            if not await _work_left(chaos):
                return now() - began
        await asyncio.sleep(0.5)
    return REST_S + 1.0


async def _work_left(chaos: Chaos) -> list[str]:
    broker, found = chaos.stage.running.opened.broker, list[str]()
    heads = await broker.logs.heads([SessionId(session) for session in _sessions(chaos)])
    for shard, pool in product(range(broker.config.shards), sorted({head.pool for head in heads})):
        for key in (broker.keys.due(shard, pool), broker.keys.leases(shard, pool)):
            for name in cast(Any, await broker.command("ZRANGE", key, 0, -1)):
                found.append(f"{name.decode()} in {key}")
    return found


def _sessions(chaos: Chaos) -> list[str]:
    return sorted({promise.session for promise in chaos.crowd.promised} | set(chaos.crowd.shown))


async def _read(chaos: Chaos, session: str) -> Log | None:
    broker = chaos.stage.running.opened.broker
    head = await broker.logs.head(SessionId(session))
    if head is None:
        return None
    # What a living session's log has behind a snapshot, upkeep moves into the archive.
    archive = Archive.at(chaos.stage.running.settings.upkeep.archive_url)
    stored = [one async for one in full_log(broker.logs, archive, SessionId(session))]
    told: list[tuple[str, str]] = []
    well: set[str] = set()
    asked: dict[str, str] = {}
    for one in stored:
        entry = decode_entry(one.payload)
        if entry.type != EVENT_MSG:
            continue
        msg: Any = entry.payload
        if msg["type"] in LOGGED or msg["type"] == "error":
            told.append((msg["type"], entry.id))
        if msg["type"] == "exec_command_begin" and (wrote := _RUNS.search(str(msg["command"]))):
            asked[msg["call_id"]] = wrote[1]
        if msg["type"] == "exec_command_end" and msg["exit_code"] == 0 and msg["call_id"] in asked:
            well.add(asked[msg["call_id"]])
    entries = tuple(Entry(one.seq, one.epoch, one.salt, one.payload, one.chain) for one in stored)
    return Log(entries, head.head, tuple(told), frozenset(well))


def _marks(place: Lab) -> tuple[Mark, ...]:
    """The ledger of commands."""
    path = place.workspace / LEDGER
    rows = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
    return tuple(Mark(row[1], row[0], int(row[2]), float(row[3])) for row in rows if len(row) == 4)


def _alive(pid: int, id: str) -> bool:
    """Whether the command of that id is still that process."""
    with contextlib.suppress(OSError):
        return id.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


# ── the run ───────────────────────────────────────────────────────────────────────────────────────


async def chaotic(place: Lab, run: Run) -> tuple[Chaos, Record]:
    """Runs a schedule to its end, and reads everything at rest."""
    several, even = run.servers != "single", run.seed % 2 == 0
    always, waits = several or even, several and not even
    place.redis.terminate()
    await asyncio.to_thread(place.redis.wait)
    async with AsyncExitStack() as stack:
        mounted = stack.enter_context(disks(place, run.servers))
        servers = await stack.enter_async_context(served(place, run.servers, always=always, waits=waits))
        overrides = "approval_policy=never", "sandbox_mode=danger-full-access", *servers.settings()
        running = await _entered(stack, lambda: fleet(place, "chaos", *overrides))
        prepare(running)
        staging = staged(running, servers, always=always, revision=run.beside, concurrency=CONCURRENCY)
        async with staging as stage:
            stage.disks = mounted
            stage.absent |= absent(mounted)
            crowd = Crowd(stage, now() + UP_S + run.seconds)
            chaos = Chaos(stage, crowd, Nemesis(stage, crowd.writes))
            with (place.folder / "ledger.log").open("a") as crowd.ledger:
                record = await _driven(chaos, run)
    # What left late is known when all have left.
    return chaos, replace(record, died=(*stage.died,))


async def _entered(stack: AsyncExitStack, make: Callable[[], AbstractAsyncContextManager[T]]) -> T:
    """Enters it when Redis serves: on a busy machine a primary misses its replicas for moments."""
    until = now() + UP_S
    while True:
        try:
            return await stack.enter_async_context(make())
        except Unavailable:
            if now() > until:
                raise
            await asyncio.sleep(0.5)


async def _driven(chaos: Chaos, run: Run) -> Record:
    crowd = chaos.crowd
    # No fault before the deployment serves: a start is no promise.
    await asyncio.wait_for(_serves(chaos), UP_S)
    crowd.until = now() + run.seconds
    async with asyncio.TaskGroup() as group:
        for number in range(SESSIONS):
            group.create_task(client(crowd, number))
        for number in range(PEOPLE):
            group.create_task(Person(crowd, number).lives())
        group.create_task(_notes_sizes(chaos))
        group.create_task(chaos.nemesis.inject(run.faults))
    await stops_what_was_given_up(crowd)
    chaos.stage.watch()
    return await _record(chaos, await _rested(chaos))


async def _serves(chaos: Chaos) -> None:
    """Returns when both workers and both gateways are up."""
    broker = chaos.stage.running.opened.broker
    gateways = [part for name, part in chaos.stage.parts.items() if name.startswith("gateway")]
    while len(await broker.claims.workers()) < 2 or not all(
        b"listening on" in g.log.read_bytes() for g in gateways
    ):
        chaos.stage.watch()
        await asyncio.sleep(0.1)


async def _record(chaos: Chaos, rested_s: float) -> Record:
    crowd = chaos.crowd
    logs = {name: log for name in _sessions(chaos) if (log := await _read(chaos, name)) is not None}
    for session, shown in crowd.shown.items():
        wanted = [event for event in logs[session].told if event[0] in LOGGED] if session in logs else []
        if wanted and shown.events != wanted:
            # It left before the end; whoever comes back is told the rest.
            await caught_up(crowd, session, wanted)
    marks = _marks(chaos.stage.place)
    return Record(
        promised=tuple(crowd.promised),
        seen={session: tuple(shown.events) for session, shown in crowd.shown.items()},
        injected=(*chaos.nemesis.injected, *chaos.nemesis.unasked),
        done=marks,
        logs=logs,
        rested_s=rested_s,
        left=tuple(await _work_left(chaos)),
        living=frozenset(mark.pid for mark in marks if mark.what == "begin" and _alive(mark.pid, mark.id)),
        returns=tuple(crowd.returns),
        drained=tuple(chaos.nemesis.drained),
        parts=len(chaos.stage.parts),
    )


def _row(run: Run, chaos: Chaos, record: Record) -> str:
    told = {id for log in record.logs.values() for type, id in log.told if type != "task_started"}
    promised = {promise.id for promise in record.promised}
    begun = Counter(mark.id for mark in record.done if mark.what == "begin")
    ended = sum(mark.what == "end" for mark in record.done)
    away = sorted(chaos.crowd.away_s) or [0.0]
    longest = max(chaos.nemesis.longest_s.values(), default=0.0)
    cells = (
        run.servers,
        run.seed,
        len(chaos.nemesis.injected),
        len(promised),
        len(promised - told),
        begun.total(),
        begun.total() - ended,
        sum(times - 1 for times in begun.values()),
        f"{away[len(away) // 2]:.1f} / {away[-1]:.1f}",
        f"{record.rested_s:.1f}",
        len(record.returns),
        f"{max((took or 0.0 for took in record.drained), default=0.0):.1f}",
        f"{chaos.nemesis.counts['failovers']} / {longest:.1f}",
    )
    return f"| {' | '.join(map(str, cells))} |"


def report(runs: Sequence[Ran], seconds: float, under: str) -> str:
    """The page, as Markdown."""
    kinds = Counter(fault.kind for _, chaos, _, _ in runs for fault in chaos.nemesis.injected)
    both = Counter(pair for _, chaos, _, _ in runs for pair in pairs(chaos.nemesis.injected))
    lines = [
        "# Chaos",
        "",
        f"{len(runs)} run{'s' * (len(runs) > 1)} of {seconds:g} s of faults each. {under}",
        "",
    ]
    lines += [ABOUT, "", f"| {' | '.join(COLUMNS)} |", f"|{'---:|' * len(COLUMNS)}"]
    lines += [_row(run, chaos, record) for run, chaos, record, _ in runs]
    lines += ["", "Faults: " + ", ".join(f"{kind} {n}" for kind, n in kinds.most_common()) + "."]
    common = set(combinations(sorted(COMMON), 2))
    met = f"{len(common & set(both))} of {len(common)}"
    lines += [
        f"{sum(kinds.values())} faults of {len(kinds)} kinds. Pairs that were there at once: {len(both)};"
        f" of the eight commonest {met}.",
        "",
        *_unmet(common - set(both)),
        "## Rules",
        "",
    ]
    refused_starts = sum(chaos.stage.refused for _, chaos, _, _ in runs)
    for _, chaos, _, _ in runs:
        chaos.crowd.counts["turns that were given up"] = len(chaos.crowd.given_up)
    asked = sum((chaos.crowd.counts + chaos.nemesis.counts for _, chaos, _, _ in runs), Counter[str]())
    lines[-2:-2] = [
        f"Starts that ended with word of what Redis lacked: {refused_starts}. "
        + "; ".join(f"{what}: {times}" for what, times in sorted(asked.items()))
        + ".",
        "",
    ]
    judged = sum((verdict.judged for _, _, _, verdict in runs), Counter[str]())
    lines += ["| rule | judged | refused |", "|---|---:|---:|"]
    for name, times in sorted(judged.items()):
        refused = sum(line.startswith(f"{name}: ") for _, _, _, one in runs for line in one.broken)
        lines.append(f"| {name} | {times:,} | {refused} |")
    lines += ["", "Each rule refuses a run that was spoiled by hand.", "", "## Left out", ""]
    left_out = {**NEVER_HERE}
    for _, chaos, _, _ in runs:
        left_out |= chaos.stage.absent
    lines += [f"- {what}: {why}" for what, why in left_out.items()]
    topologies = {run.servers for run, _, _, _ in runs}
    drawable = set(KINDS).union(*(MORE[one] for one in topologies))
    never = sorted(drawable - set(kinds) - set(left_out))
    left_out |= {one: "not asked for in these runs" for one in TOPOLOGIES if one not in topologies}
    lines += [f"- {kind}: these seeds do not draw it" for kind in never]
    found = [
        f"{run.servers}, seed {run.seed}: {line}" for run, _, _, verdict in runs for line in verdict.broken
    ]
    return "\n".join([*lines, "", "## Findings", "", *(f"- {one}" for one in found or ["none"]), ""])


def _unmet(missing: set[tuple[str, str]]) -> list[str]:
    if not missing:
        return []
    return ["Not together: " + "; ".join(" and ".join(pair) for pair in sorted(missing)) + ".", ""]


# ── one run, and a run that is made small ─────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Run:
    """All that a run follows from, as far as it is not chance: kept for a run that a rule refused."""

    servers: str
    seed: int
    seconds: float
    beside: str
    faults: list[Due]

    @classmethod
    def of_seed(
        cls, servers: str, seed: int, seconds: float, beside: str, often: Collection[str] = ()
    ) -> Run:
        return cls(servers, seed, seconds, beside, schedule(seed, seconds, servers, often))

    @classmethod
    def read(cls, file: Path) -> Run:
        said = json.loads(file.read_text())
        return cls(**{**said, "faults": [Due(**due) for due in said["faults"]]})

    def write(self, file: Path) -> None:
        file.write_text(json.dumps(asdict(self), indent=1) + "\n")

    def only(self, faults: Sequence[Due]) -> Run:
        """With these faults alone, and over soon behind the last one."""
        last = max((due.at for due in faults), default=0.0)
        return replace(self, faults=list(faults), seconds=min(self.seconds, last + AFTER_S))


Ran = tuple[Run, Chaos, Record, Verdict]


def _conditions(place: Lab) -> dict[str, str]:
    """Conditions of the machine. Commands run unconfined, for they write a ledger."""
    said = {**conditions(place), "Redis": str(place.server.version)}
    del said["commands"]
    return said


def judged(run: Run, kept: Path | None = None) -> tuple[Ran, str]:
    """Runs it, and holds it against the rules; with the conditions that it had.

    Of a run that is refused its schedule, the ledgers and what processes said are in the folder `kept`.
    """
    with lab() as place:
        under = "; ".join(f"{name}: {value}" for name, value in _conditions(place).items())
        try:
            chaos, record = uvloop.run(chaotic(place, run))
        except BaseException:
            if kept:
                _keep(place, run, kept / f"{run.servers}-{run.seed}")
            raise
        every = [rule.__name__ for rule in RULES]
        seldom = every if run.seconds < SLICE_S else SELDOM if run.seconds < LONG_S else ()
        verdict = judge(record, seldom=frozenset(seldom))
        unheard = [name for name in deaf(record, seldom) if verdict.judged[name]]
        verdict.broken += [f"{name}: its spoiled run is not refused" for name in unheard]
        if verdict.broken and kept:
            _keep(place, run, kept / f"{run.servers}-{run.seed}")
    faults = len(chaos.nemesis.injected)
    about = f"{run.servers}, seed {run.seed}: {faults} faults, {len(verdict.broken)} findings"
    print("\n".join((about, *verdict.broken)), file=sys.stderr, flush=True)
    return (run, chaos, record, verdict), under


def _keep(place: Lab, run: Run, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    run.write(folder / "schedule.json")
    for log in (*place.folder.glob("*.log"), place.workspace / LEDGER):
        if log.exists():
            shutil.copy(log, folder)


def shrunk(faults: Sequence[Due], fails: Callable[[Sequence[Due]], bool]) -> list[Due]:
    """Few and short faults of a schedule that `fails` with them: halves are left out, then single ones."""
    found, step = list(faults), len(faults)
    while step > 1:
        step, at = (step + 1) // 2, 0
        while at < len(found):
            fewer = found[:at] + found[at + step :]
            if fewer and fails(fewer):
                found = fewer
            else:
                at += step
    for number, due in enumerate(found):
        for shorter in (length for length in LENGTHS_S if length < due.lasts):
            shortened = [*found[:number], replace(due, lasts=shorter), *found[number + 1 :]]
            if fails(shortened):
                found = shortened
                break
    return found


def fails_often(run: Run) -> bool:
    """Whether a rule refuses `OFTEN` of `TIMES` runs; a run is no calculation, so one alone says little."""
    found = 0
    for number in range(TIMES):
        found += bool(judged(run)[0][3].broken)
        if found >= OFTEN or found + TIMES - number - 1 < OFTEN:
            break
    return found >= OFTEN


def _shrink(file: Path) -> int:
    run = Run.read(file)
    if not fails_often(run):
        print(f"{file}: fewer than {OFTEN} of {TIMES} runs fail", file=sys.stderr)
        return 0
    small = run.only(shrunk(run.faults, lambda faults: fails_often(run.only(faults))))
    small.write(file.with_suffix(".small.json"))
    print(f"{len(small.faults)} of {len(run.faults)} faults: {file.with_suffix('.small.json')}")
    return 1


def _replay(file: Path) -> int:
    refused = sum(bool(judged(Run.read(file))[0][3].broken) for _ in range(TIMES))
    print(f"{file}: {refused} of {TIMES} runs are refused")
    return 1 if refused else 0


def _planted(names: Sequence[str], page: Path | None) -> int:
    outcomes: list[chaos_defects.Outcome] = []
    with lab() as place:
        under = "; ".join(f"{name}: {value}" for name, value in _conditions(place).items())
    for defect in chaos_defects.named(names):
        outcomes.append(chaos_defects.hunted(defect))
        last = outcomes[-1]
        told = ", ".join(last.rules) or "no rule"
        print(
            f"{defect.name}: {'found' if last.found else 'NOT FOUND'} ({told}), {last.seeds} runs", flush=True
        )
        if page:
            page.write_text(chaos_defects.page(outcomes, under), encoding="utf-8")
    return 0 if all(one.found for one in outcomes) else 1


def main(argv: Sequence[str]) -> int:
    """Runs the seeds that were asked for; answers the exit code."""
    parser = argparse.ArgumentParser(prog="python -m proof.chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="of faults, a run (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="the first seed (default: %(default)s)")
    parser.add_argument("--runs", type=int, default=2, help="how many, a seed each (default: %(default)s)")
    parser.add_argument(
        "--servers",
        nargs="+",
        choices=TOPOLOGIES,
        default=["single"],
        help="how Redis is deployed: so many runs each (default: single)",
    )
    parser.add_argument(
        "--beside", default="", metavar="REVISION", help="of one of the workers (default: none)"
    )
    parser.add_argument(
        "--often",
        nargs="+",
        choices=KINDS,
        default=[],
        metavar="FAULT",
        help="kinds of faults that come ten times as often as else",
    )
    parser.add_argument("--page", type=Path, help="where the page is written")
    parser.add_argument(
        "--kept",
        type=Path,
        default=Path(".chaos"),
        help="folder for what is known of refused runs (%(default)s)",
    )
    parser.add_argument("--replay", type=Path, metavar="FILE", help=f"repeats such a schedule {TIMES} times")
    parser.add_argument("--shrink", type=Path, metavar="FILE", help="makes one small: fewer, shorter faults")
    parser.add_argument(
        "--planted",
        nargs="*",
        metavar="DEFECT",
        help="whether runs find planted defects (default: all of them)",
    )
    given = parser.parse_args(argv)
    if given.planted is not None:
        return _planted(given.planted, given.page)
    if given.replay:
        return _replay(given.replay)
    if given.shrink:
        return _shrink(given.shrink)
    runs: list[Ran] = []
    under = ""
    seeds = range(given.seed, given.seed + given.runs)
    for topology, seed in product(given.servers, seeds):
        run = Run.of_seed(topology, seed, given.seconds, given.beside, given.often)
        ran, conditions_then = judged(run, given.kept)
        under = under or conditions_then
        runs.append(ran)
        if given.page:
            # Half an hour is long: what is known so far is kept.
            given.page.parent.mkdir(parents=True, exist_ok=True)
            given.page.write_text(report(runs, given.seconds, under), encoding="utf-8")
    print(report(runs, given.seconds, under))
    return 1 if any(verdict.broken for _, _, _, verdict in runs) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
