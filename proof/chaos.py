"""`python -m proof.chaos`: a deployment under several faults at once, held against what it promised.

One server, two workers, upkeep and clients, which submit, resubmit and follow; a driver that draws faults
from a seed, so that they overlap. It ends by itself: so many seconds of faults, then at most a minute to
come to rest. Exit code 1 if a rule of `proof.chaos_rules` is broken, if one judged nothing, or if a run that
was spoiled by hand is not refused.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import combinations, product
from pathlib import Path
from random import Random
from typing import Any, cast

import uvloop

from bench.lab import Fleet, Lab, _dismiss, _start_redis, fleet, lab
from bench.machine import conditions
from orchestrator.broker.errors import BrokerError, UnknownSession
from orchestrator.broker.follow import BEGINNING
from orchestrator.broker.records import StoredEntry
from orchestrator.core.entries import EVENT_MSG, decode_entry
from orchestrator.core.ids import SessionId
from orchestrator.protocol import ops
from orchestrator.protocol.ids import SubmissionId
from orchestrator.protocol.inputs import TextInput
from orchestrator.protocol.submission import Submission
from proof.chaos_rules import REST_S, Entry, Fault, Log, Mark, Promise, Record, Verdict, deaf, judge
from proof.chaos_script import LEDGER, PROGRAM, SOURCE, order
from proof.soak import _started as started_upkeep

WORKERS, SESSIONS, CONCURRENCY = 2, 6, 8
SAMPLE_S, FORGOTTEN_S = 0.2, 1.0
"""How often the size of Redis's log is noted, and how much of its end a server that forgets has lost."""
NEVER_HERE = {
    "full disk": "needs a file system of its own",
    "clock step": "needs libfaketime, or a time namespace",
    "network partition": "needs a network namespace; connections are cut at the server instead",
    "gateways": "clients speak to Redis by the library, not yet through a gateway",
}
"""Faults and parts of a deployment that this run leaves out, each with the reason."""
LOGGED = frozenset(
    ("task_started", "task_complete", "turn_aborted", "exec_command_begin", "exec_command_end")
)
_RUNS = re.compile(rf"{re.escape(PROGRAM)}', '(\S+)'")


@dataclass(frozen=True, slots=True)
class Due:
    """A fault of a schedule: when, which, at which of its targets, and for how long."""

    at: float
    kind: str
    target: int
    lasts: float


KINDS: Mapping[str, int] = {
    "worker killed": 4,
    "worker frozen": 5,
    "supervisor killed": 2,
    "upkeep killed": 1,
    "upkeep frozen": 2,
    "redis frozen": 3,
    "redis killed": 2,
    "connections cut": 4,
}
"""How often each fault is drawn against the others."""
FORGETS = "redis forgets"


def schedule(seed: int, seconds: float) -> list[Due]:
    """The faults of a run: each begins about a second behind the one before, whether that is over or not.

    Every second seed also has a server that loses the last second of its log.
    """
    drawn, at, found = Random(f"chaos:{seed}"), 1.0, list[Due]()
    weights = {**KINDS, **({FORGETS: 2} if seed % 2 else {})}
    while at < seconds:
        kind = drawn.choices(list(weights), list(weights.values()))[0]
        found.append(Due(at, kind, drawn.randrange(WORKERS), drawn.choice((0.3, 1.5, 4.0, 8.0))))
        at += drawn.expovariate(1 / 1.2)
    return found


@dataclass
class Chaos:
    """A run: what clients were promised, and what was done to the deployment."""

    running: Fleet
    until: float
    upkeep: subprocess.Popen[bytes]
    redis: subprocess.Popen[bytes]
    promised: list[Promise] = field(default_factory=list)
    seen: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    injected: list[Fault] = field(default_factory=list)
    sizes: deque[tuple[float, Path, int]] = field(default_factory=lambda: deque(maxlen=100))
    restarting: asyncio.Lock = field(default_factory=asyncio.Lock)
    ledger: Any = None
    counts: Counter[str] = field(default_factory=Counter)
    away_s: list[float] = field(default_factory=list)
    """Seconds for which clients asked in vain."""

    @property
    def over(self) -> bool:
        return _now() >= self.until

    def writes(self, line: str) -> None:
        """Adds to the ledger of promises and faults, on the disk before anything else happens."""
        self.ledger.write(line + "\n")
        self.ledger.flush()
        os.fsync(self.ledger.fileno())


def _now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


# ── clients ───────────────────────────────────────────────────────────────────────────────────────


async def _insists(chaos: Chaos, ask: Callable[[], Awaitable[Any]]) -> Any:
    """Asks until the deployment answers, and notes how long it was away."""
    began = 0.0
    while True:
        try:
            found = await ask()
        except UnknownSession:
            raise
        except BrokerError:
            began = began or _now()
            await asyncio.sleep(0.1)
            continue
        if began:
            chaos.away_s.append(_now() - began)
        return found


async def client(chaos: Chaos, number: int) -> None:
    """Submits until it is acknowledged, and waits for the outcome; goes on elsewhere if a session is lost."""
    drawn = Random(f"client:{number}")
    while not chaos.over:
        session = await _insists(chaos, chaos.running.session)
        following = asyncio.create_task(_follows(chaos, session))
        try:
            for turn in range(6):
                if not chaos.over:
                    await _turn(chaos, session, f"{session}/{turn}", drawn.choice((0.1, 0.4, 1.5)))
        except UnknownSession:
            chaos.counts["sessions that were forgotten"] += 1
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


async def _turn(chaos: Chaos, session: SessionId, id: str, seconds: float) -> None:
    op = ops.UserInput(items=(TextInput(text=order(id, seconds)),))
    submission = Submission(SubmissionId(id), op)
    await _insists(chaos, lambda: chaos.running.client.submit(session, submission))
    promise = Promise(session, id, _now())
    chaos.promised.append(promise)
    chaos.writes(f"promised {promise.at:.3f} {id}")
    until = _now() + 25.0
    while _now() < until and not chaos.over:
        if any(event in (("task_complete", id), ("turn_aborted", id)) for event in chaos.seen[session]):
            return
        await asyncio.sleep(0.05)


async def _follows(chaos: Chaos, session: SessionId) -> None:
    """Follows, and comes back to its place whenever the deployment was away."""
    seen, cursor, sure = chaos.seen.setdefault(session, []), BEGINNING, 0
    while True:
        # Behind its place it is told again what it has seen.
        del seen[sure:]
        try:
            async with aclosing(cast(Any, chaos.running.client.follow(session, cursor))) as events:
                async for event in events:
                    if event.type in LOGGED:
                        seen.append((event.type, event.id))
                    if event.cursor is not None:
                        cursor, sure = event.cursor, len(seen)
        except UnknownSession:
            return
        except BrokerError:
            chaos.counts["followers that came back"] += 1
            await asyncio.sleep(0.1)


# ── faults ────────────────────────────────────────────────────────────────────────────────────────


async def inject(chaos: Chaos, plan: Sequence[Due]) -> None:
    """Injects the plan; faults overlap, and all are over at its end."""
    began, faults = _now(), list[asyncio.Task[None]]()
    for due in plan:
        await asyncio.sleep(max(0.0, began + due.at - _now()))
        faults.append(asyncio.create_task(_fault(chaos, due)))
    await asyncio.gather(*faults)


async def _fault(chaos: Chaos, due: Due) -> None:
    began, kind = _now(), due.kind
    chaos.writes(f"begins {began:.3f} {kind} {due.target}")
    lasts = min(due.lasts, 4.0) if kind.startswith("redis") else due.lasts
    worker = chaos.running.workers[due.target]
    if kind == "worker killed":
        worker.kill()
        await asyncio.to_thread(worker.wait)
        await asyncio.sleep(lasts)
        if chaos.running.workers[due.target] is worker:
            await asyncio.to_thread(chaos.running.hire, CONCURRENCY)
            chaos.running.workers[due.target] = chaos.running.workers.pop()
    elif kind == "worker frozen":
        await _frozen(worker.pid, lasts)
    elif kind == "supervisor killed":
        for pid in _children(worker.pid)[:1]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    elif kind == "upkeep frozen":
        await _frozen(chaos.upkeep.pid, lasts)
    elif kind == "upkeep killed":
        chaos.upkeep.kill()
        await asyncio.to_thread(chaos.upkeep.wait)
        chaos.upkeep = started_upkeep(chaos.running, "")
    elif kind == "redis frozen":
        async with chaos.restarting:
            await _frozen(chaos.redis.pid, lasts)
    elif kind in ("redis killed", FORGETS):
        async with chaos.restarting:
            await _restarted(chaos, lasts, forgets=kind == FORGETS)
    elif kind == "connections cut":
        with contextlib.suppress(BrokerError):
            await chaos.running.opened.broker.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    fault = Fault(kind, str(due.target), began, _now(), loses=kind == FORGETS)
    chaos.injected.append(fault)
    chaos.writes(f"ends {fault.ended:.3f} {kind} {due.target}")


async def _frozen(pid: int, seconds: float) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)
        await asyncio.sleep(seconds)
        os.kill(pid, signal.SIGCONT)


def _children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


async def _restarted(chaos: Chaos, seconds: float, *, forgets: bool) -> None:
    place = chaos.running.lab
    chaos.redis.kill()
    await asyncio.to_thread(chaos.redis.wait)
    log = _log_of(place)
    if forgets and log is not None:
        early = [size for at, path, size in chaos.sizes if path == log and at <= _now() - FORGOTTEN_S]
        if early:
            os.truncate(log, min(early[-1], log.stat().st_size))
    (place.folder / "s").unlink(missing_ok=True)
    await asyncio.sleep(seconds)
    chaos.redis = await asyncio.to_thread(_start_redis, place.server, place.folder)


def _log_of(place: Lab) -> Path | None:
    """The file that Redis appends to now."""
    return max((place.folder / "redis").rglob("*.aof"), key=lambda path: path.stat().st_mtime, default=None)


async def _notes_sizes(chaos: Chaos) -> None:
    while not chaos.over:
        with contextlib.suppress(OSError):
            if (log := _log_of(chaos.running.lab)) is not None:
                chaos.sizes.append((_now(), log, log.stat().st_size))
        await asyncio.sleep(SAMPLE_S)


# ── at rest ───────────────────────────────────────────────────────────────────────────────────────


async def _rested(chaos: Chaos) -> float:
    """Seconds until nothing is due and nobody holds anything; more than `REST_S` if that does not come."""
    began = _now()
    while _now() - began <= REST_S:
        with contextlib.suppress(BrokerError):
            if not await _work_left(chaos):
                return _now() - began
        await asyncio.sleep(0.5)
    return REST_S + 1.0


async def _work_left(chaos: Chaos) -> list[str]:
    broker, found = chaos.running.opened.broker, list[str]()
    heads = await broker.logs.heads([SessionId(session) for session in chaos.seen])
    for shard, pool in product(range(broker.config.shards), sorted({head.pool for head in heads})):
        for key in (broker.keys.due(shard, pool), broker.keys.leases(shard, pool)):
            for name in cast(Any, await broker.command("ZRANGE", key, 0, -1)):
                found.append(f"{name.decode()} in {key}")
    return found


async def _read(chaos: Chaos, session: str) -> Log | None:
    broker = chaos.running.opened.broker
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


async def chaotic(place: Lab, seed: int, seconds: float) -> tuple[Chaos, Record]:
    """Runs a schedule to its end, and reads everything at rest."""
    (place.folder / "tmp").mkdir()
    (place.workspace / PROGRAM).write_text(SOURCE)
    plan = schedule(seed, seconds)
    async with fleet(place, "chaos", "approval_policy=never", "sandbox_mode=danger-full-access") as running:
        for _ in range(WORKERS):
            running.hire(CONCURRENCY)
        chaos = Chaos(running, _now() + seconds, started_upkeep(running, ""), place.redis)
        with (place.folder / "ledger.log").open("a") as chaos.ledger:
            try:
                async with asyncio.TaskGroup() as group:
                    for number in range(SESSIONS):
                        group.create_task(client(chaos, number))
                    group.create_task(_notes_sizes(chaos))
                    group.create_task(inject(chaos, plan))
                rested_s = await _rested(chaos)
                record = await _record(chaos, rested_s)
            finally:
                _dismiss(chaos.upkeep)
        running.dismiss_workers()
        if chaos.redis is not place.redis:
            chaos.redis.terminate()
            chaos.redis.wait(10.0)
    return chaos, record


async def _record(chaos: Chaos, rested_s: float) -> Record:
    sessions = {promise.session for promise in chaos.promised} | set(chaos.seen)
    logs = {session: log for session in sorted(sessions) if (log := await _read(chaos, session)) is not None}
    marks = _marks(chaos.running.lab)
    return Record(
        tuple(chaos.promised),
        {session: tuple(events) for session, events in chaos.seen.items()},
        tuple(chaos.injected),
        marks,
        logs,
        rested_s,
        tuple(await _work_left(chaos)),
        frozenset(mark.pid for mark in marks if mark.what == "begin" and _alive(mark.pid, mark.id)),
    )


def pairs(injected: Sequence[Fault]) -> Counter[tuple[str, str]]:
    """Pairs of kinds that were there at the same time."""
    return Counter(
        cast(tuple[str, str], tuple(sorted((one.kind, other.kind))))
        for one, other in combinations(injected, 2)
        if one.began <= other.ended and other.began <= one.ended
    )


def report(runs: Sequence[tuple[int, Chaos, Record, Verdict]], seconds: float, under: str) -> str:
    """The page, as Markdown."""
    kinds = Counter(fault.kind for _, chaos, _, _ in runs for fault in chaos.injected)
    both = Counter(pair for _, chaos, _, _ in runs for pair in pairs(chaos.injected))
    lines = ["# Chaos", "", f"{len(runs)} runs of {seconds:g} s of faults each. {under}", ""]
    lines += [
        "One server (`appendfsync everysec`), two workers, upkeep, six clients at a time that submit,",
        "resubmit and follow. *Forgotten*: acknowledged, and gone with the last second of Redis's log.",
        "*Given up*: commands that wrote no end. *Away*: how long clients asked in vain, in seconds.",
        "*Rest*: seconds until everybody was at rest.",
        "",
        "| seed | faults | promised | forgotten | commands | given up | repeated | away, p50 / max | rest |",
        "|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for seed, chaos, record, _ in runs:
        told = {id for log in record.logs.values() for type, id in log.told if type != "task_started"}
        lost = sum(promise.id not in told for promise in record.promised)
        begun = Counter(mark.id for mark in record.done if mark.what == "begin")
        ends = Counter(mark.id for mark in record.done if mark.what == "end")
        away = sorted(chaos.away_s) or [0.0]
        lines.append(
            f"| {seed} | {len(chaos.injected)} | {len(record.promised)} | {lost} | {sum(begun.values())} "
            f"| {sum(begun.values()) - sum(ends.values())} | {sum(n - 1 for n in begun.values())} "
            f"| {away[len(away) // 2]:.1f} / {away[-1]:.1f} | {record.rested_s:.1f} |"
        )
    lines += ["", "Faults: " + ", ".join(f"{kind} {n}" for kind, n in kinds.most_common()) + "."]
    lines += [f"Pairs of kinds that were there at once: {len(both)}.", "", "## Rules", ""]
    judged = sum((verdict.judged for _, _, _, verdict in runs), Counter[str]())
    lines += ["| rule | judged | refused |", "|---|---:|---:|"]
    for name, times in sorted(judged.items()):
        refused = sum(line.startswith(f"{name}: ") for _, _, _, one in runs for line in one.broken)
        lines.append(f"| {name} | {times:,} | {refused} |")
    lines += ["", "Each rule refuses a run that was spoiled by hand.", "", "## Left out", ""]
    lines += [f"- {what}: {why}" for what, why in NEVER_HERE.items()]
    found = [f"seed {seed}: {line}" for seed, _, _, verdict in runs for line in verdict.broken]
    return "\n".join([*lines, "", "## Findings", "", *(f"- {one}" for one in found or ["none"]), ""])


def main(argv: Sequence[str]) -> int:
    """Runs the seeds that were asked for; answers the exit code."""
    parser = argparse.ArgumentParser(prog="python -m proof.chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="of faults, a run (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="the first seed (default: %(default)s)")
    parser.add_argument("--runs", type=int, default=2, help="how many, a seed each (default: %(default)s)")
    parser.add_argument("--page", type=Path, help="where the page is written")
    given = parser.parse_args(argv)
    runs = []
    for seed in range(given.seed, given.seed + given.runs):
        with lab() as place:
            under = "; ".join(f"{name}: {value}" for name, value in conditions(place).items())
            chaos, record = uvloop.run(chaotic(place, seed, given.seconds))
        # A follower is shown what Redis then forgets: such a run says nothing of that rule.
        seldom = frozenset(("live_as_replayed",)) if record.forgets() else frozenset[str]()
        verdict = judge(record, seldom=seldom)
        verdict.broken += [f"{name}: its spoiled run is not refused" for name in deaf(record)]
        runs.append((seed, chaos, record, verdict))
    page = report(runs, given.seconds, under)
    if given.page:
        given.page.parent.mkdir(parents=True, exist_ok=True)
        given.page.write_text(page, encoding="utf-8")
    print(page)
    return 1 if any(verdict.broken for _, _, _, verdict in runs) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
