"""`python -m proof.chaos`: a deployment under several faults at once, held against what it promised.

One server, two workers (one of them of an earlier version), two gateways, upkeep, and clients: some by the
library, which submit, resubmit and follow, some over WebSockets, which approve, and leave for the other
gateway in the middle of that. A driver draws faults from a seed, so that they overlap. It ends by itself: so
many seconds of faults, then at most a minute to come to rest. Exit code 1 if a rule of `proof.chaos_rules` is
broken, if one judged nothing, or if a run that was spoiled by hand is not refused.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import re
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product
from pathlib import Path
from typing import Any, cast

import uvloop

from bench.lab import Lab, fleet, lab
from bench.machine import conditions
from orchestrator.broker.errors import BrokerError
from orchestrator.broker.records import StoredEntry
from orchestrator.core.entries import EVENT_MSG, decode_entry
from orchestrator.core.ids import SessionId
from proof.chaos_clients import Crowd, Person, caught_up, client
from proof.chaos_faults import COMMON, KINDS, NEVER_HERE, Nemesis, absent, pairs, schedule
from proof.chaos_rules import LOGGED, REST_S, RULES, Entry, Log, Mark, Record, Verdict, deaf, judge
from proof.chaos_script import LEDGER, PROGRAM
from proof.chaos_stage import Stage, disks, now, prepare, staged, start_redis

SESSIONS, PEOPLE, CONCURRENCY = 4, 2, 8
SAMPLE_S, UP_S = 0.2, 60.0
"""How often the size of Redis's log is noted; how long the deployment may take to serve at first."""
ABOUT = """\
One server (even seeds: `appendfsync always`; odd ones: `everysec`, and it forgets its last second), two
workers, two gateways, upkeep; four clients by the library, which submit, resubmit and follow; two over
WebSockets, which approve each command, and leave for the other gateway in the middle of every second one.
*Forgotten*: acknowledged, and gone with the last second of Redis's log. *Given up*: commands without an end.
*Away*: how long clients asked in vain, in seconds, where it was more than half a second. *Rest*: seconds
until all were at rest. *Returns*: approvals in which a client came to the other gateway."""
COLUMNS = (
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
)
LONG_S, SLICE_S = 120.0, 20.0
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
    stored: list[StoredEntry] = []
    after = 0
    while page := await broker.logs.read_rollout(SessionId(session), after):
        stored += page
        after = page[-1].seq
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


async def chaotic(place: Lab, seed: int, seconds: float, revision: str = "") -> tuple[Chaos, Record]:
    """Runs a schedule to its end, and reads everything at rest."""
    always = seed % 2 == 0
    place.redis.terminate()
    await asyncio.to_thread(place.redis.wait)
    with disks(place) as mounted:
        first = start_redis(place, always=always)
        overrides = "approval_policy=never", "sandbox_mode=danger-full-access"
        async with fleet(place, "chaos", *overrides) as running:
            prepare(running)
            try:
                async with staged(
                    running, always=always, revision=revision, concurrency=CONCURRENCY
                ) as stage:
                    stage.redis, stage.disks = first, mounted
                    stage.absent |= absent(mounted)
                    crowd = Crowd(stage, now() + UP_S + seconds)
                    chaos = Chaos(stage, crowd, Nemesis(stage, crowd.writes))
                    with (place.folder / "ledger.log").open("a") as crowd.ledger:
                        record = await _driven(chaos, seed, seconds)
            finally:
                first.kill()
                stage.redis.kill()
                await asyncio.to_thread(stage.redis.wait)
    # What left late is known when all have left.
    return chaos, replace(record, died=(*stage.died,))


async def _driven(chaos: Chaos, seed: int, seconds: float) -> Record:
    crowd = chaos.crowd
    # No fault before the deployment serves: a start is no promise.
    await asyncio.wait_for(_serves(chaos), UP_S)
    crowd.until = now() + seconds
    async with asyncio.TaskGroup() as group:
        for number in range(SESSIONS):
            group.create_task(client(crowd, number))
        for number in range(PEOPLE):
            group.create_task(Person(crowd, number).lives())
        group.create_task(_notes_sizes(chaos))
        group.create_task(chaos.nemesis.inject(schedule(seed, seconds)))
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
        injected=tuple(chaos.nemesis.injected),
        done=marks,
        logs=logs,
        rested_s=rested_s,
        left=tuple(await _work_left(chaos)),
        living=frozenset(mark.pid for mark in marks if mark.what == "begin" and _alive(mark.pid, mark.id)),
        returns=tuple(crowd.returns),
        drained=tuple(chaos.nemesis.drained),
        parts=len(chaos.stage.parts),
    )


def _row(seed: int, chaos: Chaos, record: Record) -> str:
    told = {id for log in record.logs.values() for type, id in log.told if type != "task_started"}
    promised = {promise.id for promise in record.promised}
    begun = Counter(mark.id for mark in record.done if mark.what == "begin")
    ended = sum(mark.what == "end" for mark in record.done)
    away = sorted(chaos.crowd.away_s) or [0.0]
    cells = (
        seed,
        len(record.injected),
        len(promised),
        len(promised - told),
        begun.total(),
        begun.total() - ended,
        sum(times - 1 for times in begun.values()),
        f"{away[len(away) // 2]:.1f} / {away[-1]:.1f}",
        f"{record.rested_s:.1f}",
        len(record.returns),
        f"{max((took or 0.0 for took in record.drained), default=0.0):.1f}",
    )
    return f"| {' | '.join(map(str, cells))} |"


def report(runs: Sequence[tuple[int, Chaos, Record, Verdict]], seconds: float, under: str) -> str:
    """The page, as Markdown."""
    kinds = Counter(fault.kind for _, chaos, _, _ in runs for fault in chaos.nemesis.injected)
    both = Counter(pair for _, chaos, _, _ in runs for pair in pairs(chaos.nemesis.injected))
    lines = ["# Chaos", "", f"{len(runs)} runs of {seconds:g} s of faults each. {under}", ""]
    lines += [ABOUT, "", f"| {' | '.join(COLUMNS)} |", f"|{'---:|' * len(COLUMNS)}"]
    lines += [_row(seed, chaos, record) for seed, chaos, record, _ in runs]
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
    never = sorted(set(KINDS) - set(kinds) - set(left_out))
    lines += [f"- {kind}: these seeds do not draw it" for kind in never]
    found = [f"seed {seed}: {line}" for seed, _, _, verdict in runs for line in verdict.broken]
    return "\n".join([*lines, "", "## Findings", "", *(f"- {one}" for one in found or ["none"]), ""])


def _unmet(missing: set[tuple[str, str]]) -> list[str]:
    if not missing:
        return []
    return ["Not together: " + "; ".join(" and ".join(pair) for pair in sorted(missing)) + ".", ""]


def main(argv: Sequence[str]) -> int:
    """Runs the seeds that were asked for; answers the exit code."""
    parser = argparse.ArgumentParser(prog="python -m proof.chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="of faults, a run (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="the first seed (default: %(default)s)")
    parser.add_argument("--runs", type=int, default=2, help="how many, a seed each (default: %(default)s)")
    parser.add_argument(
        "--beside", default="", metavar="REVISION", help="of one of the workers (default: none)"
    )
    parser.add_argument("--page", type=Path, help="where the page is written")
    given = parser.parse_args(argv)
    runs = []
    for seed in range(given.seed, given.seed + given.runs):
        with lab() as place:
            under = "; ".join(f"{name}: {value}" for name, value in conditions(place).items())
            chaos, record = uvloop.run(chaotic(place, seed, given.seconds, given.beside))
        every = [rule.__name__ for rule in RULES]
        seldom = every if given.seconds < SLICE_S else SELDOM if given.seconds < LONG_S else ()
        verdict = judge(record, seldom=frozenset(seldom))
        unheard = [name for name in deaf(record, seldom) if verdict.judged[name]]
        verdict.broken += [f"{name}: its spoiled run is not refused" for name in unheard]
        runs.append((seed, chaos, record, verdict))
    page = report(runs, given.seconds, under)
    if given.page:
        given.page.parent.mkdir(parents=True, exist_ok=True)
        given.page.write_text(page, encoding="utf-8")
    print(page)
    return 1 if any(verdict.broken for _, _, _, verdict in runs) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
