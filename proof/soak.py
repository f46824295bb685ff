"""`python -m proof.soak`: a deployment under load for minutes or hours; whatever grows without need is named.

Trees of ten agents live and end all the time: they are closed, archived and deleted within minutes, as in
another deployment within weeks. A tenth of them lives throughout, one in ten waits for a person before each
command, people come, look on and go, half of them at a gateway, and workers are drained and killed. Every few
seconds memory, descriptors, threads, keys, entries of streams, files and disk are counted, and a turn is
timed; at the end all is closed, and nothing may be left.

Exit code 1 if something grew or was left, and what; the page has the figures.
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
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from textwrap import wrap
from typing import Any, cast

import uvloop
from websockets.asyncio.client import connect

from bench.accounts import cpu_of
from bench.lab import Fleet, Lab, fleet, lab
from bench.machine import conditions
from bench.parked import used_kib, weight
from bench.tree_script import merged, order
from bench.turns import submit_turn
from orchestrator.broker.errors import UnknownSession
from orchestrator.core.counts import counted
from orchestrator.core.ids import SessionId
from orchestrator.protocol import ops
from orchestrator.protocol.ids import SubmissionId
from orchestrator.protocol.submission import Submission
from proof.chaos_clients import Wire
from proof.growth import (
    LEAST_POINTS,
    Series,
    disk_mib,
    files_below,
    growth,
    kind_of,
    kinds,
    of_process,
    slower,
    verdict,
)
from proof.soak_processes import LEAKS

TREE = 10
"""Agents of a tree, its root counted."""
WIDE = ("max_active_subagents=50",)
MINUTE_DAYS = 1 / 1440
AGES = (
    f"upkeep.archive_after_days={MINUTE_DAYS / 4}",
    f"upkeep.retention_days={MINUTE_DAYS}",
    "upkeep.seal_after=64",
)
"""A quarter of a minute until a closed tree is archived, and a minute until it is deleted."""
SAMPLE_S, CHURN_S, PATIENCE_S, EMPTY_S = 5.0, 60.0, 600.0, 240.0
EMPTY_MIB = 1.0
"""Redis may hold so much more at the end than at the begin."""
KEPT = frozenset(
    (
        "asked",
        "changed",
        "clock",
        "control",
        "deleted",
        "deleted_by",
        "dendro",
        "heard",
        "looked",
        "near",
        "open",
        "ready",
        "released",
        "spend",
    )
) | {"workers"}
"""Kinds of keys that outlive sessions on purpose, each with a bound (`orchestrator.broker.redis_keys`).

Notices for those who look on, the ids of what was deleted, for 30 days, usage by day, what is known of
workers and who of them waits, and the version of the deployment.
"""
BOUNDS = {"asked": 1_024, "changed": 1_024, "released": 256, "ready": 256, "near": 256, "jobs_ready": 256}
"""Entries that streams of these kinds keep; one is cut by whole nodes of at most 100 of them."""
NODE = 128
WORKERS, FOLLOWERS = 2, 6
AOF_BYTES = 4 << 20
"""From here on Redis writes its log anew whenever it has doubled, which shows within minutes."""


PARTS = {
    "data": "used_memory_dataset",
    "what it keeps beside them": "used_memory_overhead",
    "programs of scripts": "used_memory_vm_total",
    "room in pages that are in use": "allocator_frag_bytes",
    "pages that the allocator holds back": "allocator_rss_bytes",
    "outside of the allocator": "rss_overhead_bytes",
}
"""What Redis's process consists of, by the member of INFO that has the bytes."""


@dataclass
class Soak:
    """A run: what it has done so far, and what was measured of it."""

    running: Fleet
    until: float
    random: Random
    began: float = field(default_factory=time.monotonic)
    beside: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    """Upkeep and the gateway."""
    gateway: str = ""
    """Its address."""
    series: dict[tuple[str, str], list[tuple[float, float]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    done: Counter[str] = field(default_factory=Counter)
    roots: set[SessionId] = field(default_factory=set)
    probes: list[tuple[float, float]] = field(default_factory=list)
    costs: dict[str, float] = field(default_factory=dict)
    """Seconds of processors by part, of the whole run."""
    findings: list[str] = field(default_factory=list)
    parts: list[dict[str, float]] = field(default_factory=list)
    """What the memory of Redis's process consists of, look by look: MiB by part."""
    kept_kib: dict[str, float] = field(default_factory=dict)
    """What Redis keeps on purpose when all sessions are deleted, by kind of key."""

    @property
    def over(self) -> bool:
        return time.monotonic() >= self.until

    def put(self, name: str, value: float, unit: str) -> None:
        self.series[name, unit].append((time.monotonic() - self.began, value))


# ── load ──────────────────────────────────────────────────────────────────────────────────────────


async def tree_life(soak: Soak, lives: bool, asks: bool) -> None:
    """One place for trees: each is made, works, and makes room for the next; one that `lives` stays."""
    running = _asking(soak.running) if asks else soak.running
    while not soak.over:
        root = await running.session()
        soak.roots.add(root)
        await _works(soak, running, root, "turn-0", order(TREE - 1))
        turn = 0
        while lives and not soak.over:
            turn += 1
            await asyncio.sleep(15.0 * soak.random.uniform(0.5, 1.5))
            await _works(soak, running, root, f"turn-{turn}", "Say that you are done.")
        soak.done["trees"] += 1
        if not lives:
            await _closed(soak, root)


def _asking(running: Fleet) -> Fleet:
    environ = running.lab.environ(OPENAI_BASE_URL=running.base_url)
    return replace(running, settings=running.lab.settings(environ, *WIDE, "approval_policy=untrusted"))


async def _works(soak: Soak, running: Fleet, root: SessionId, turn: str, text: str) -> None:
    """A turn of a root, to its end; every request of the tree is answered."""
    async with aclosing(cast(Any, running.client.follow(root))) as events, asyncio.timeout(PATIENCE_S):
        await submit_turn(running, root, turn, text)
        async for event in events:
            if event.type == "exec_approval_request":
                soak.done["answers"] += 1
                who = {"agent_id": event.msg["agent_id"]} if "agent_id" in event.msg else {}
                answer = ops.ExecApproval(id=event.msg["call_id"], decision=cast(Any, "approved"), **who)
                name = SubmissionId(f"answer-{soak.done['answers']}")
                await running.client.submit(root, Submission(name, answer))
            elif event.type == "error":
                raise RuntimeError(f"{turn} of {root} failed: {event.msg['message']}")
            elif event.type == "task_complete" and event.id == turn:
                said = event.msg["last_agent_message"]
                if said != merged(TREE - 1):
                    raise RuntimeError(f"{turn} of {root} said: {said}")
                soak.done["turns"] += 1
                return


async def _closed(soak: Soak, root: SessionId) -> None:
    await soak.running.client.submit(root, Submission(SubmissionId("close"), ops.Shutdown()))


async def onlooker(soak: Soak) -> None:
    """A person who looks at one tree after the other, and leaves in the middle."""
    while not soak.over:
        await asyncio.sleep(soak.random.uniform(0.2, 2.0))
        if not soak.roots:
            continue
        root = soak.random.choice(sorted(soak.roots))
        with contextlib.suppress(TimeoutError, UnknownSession):
            # It may be deleted by now, also under its onlooker.
            async with (
                asyncio.timeout(soak.random.uniform(1.0, 10.0)),
                aclosing(cast(Any, soak.running.client.follow(root))) as events,
            ):
                async for _ in events:
                    soak.done["events shown"] += 1


async def visitor(soak: Soak) -> None:
    """A person who does the same at the gateway, and does not answer what is asked there."""
    while not soak.over:
        await asyncio.sleep(soak.random.uniform(0.2, 2.0))
        if not soak.roots:
            continue
        root = soak.random.choice(sorted(soak.roots))
        async with connect(soak.gateway, compression=None, max_size=None) as socket:
            wire = await Wire.greets(socket)
            with contextlib.suppress(LookupError, TimeoutError):
                await wire.call("thread/resume", threadId=root)
                async with asyncio.timeout(soak.random.uniform(1.0, 10.0)):
                    while True:
                        await wire.hears(10.0)
                        soak.done["messages of the gateway"] += 1


async def probe(soak: Soak) -> None:
    """One session whose turns are timed: what a person would wait for."""
    session, number = await soak.running.session(), 0
    soak.roots.add(session)
    async with aclosing(cast(Any, soak.running.client.follow(session))) as events:
        while not soak.over:
            number, began = number + 1, time.monotonic()
            await submit_turn(soak.running, session, f"turn-{number}")
            async with asyncio.timeout(PATIENCE_S):
                # Its worker may be killed meanwhile: it goes on with another.
                async for event in events:
                    if event.type == "task_complete" and event.id == f"turn-{number}":
                        break
            soak.probes.append((began - soak.began, time.monotonic() - began))
            soak.put("a turn of the probe", time.monotonic() - began, "s")
            await asyncio.sleep(2.0)


async def churn(soak: Soak) -> None:
    """Workers beside those that are measured: each is killed, or drained, a minute later."""
    number = 0
    while not soak.over:
        await asyncio.to_thread(soak.running.hire, 8)
        worker = soak.running.workers.pop()
        await asyncio.sleep(min(CHURN_S, max(0.0, soak.until - time.monotonic())))
        if number % 2:
            worker.send_signal(signal.SIGKILL)
            soak.done["workers killed"] += 1
        else:
            soak.done["workers drained"] += 1
        assert worker.stdin is not None
        worker.stdin.close()
        await asyncio.to_thread(worker.wait)
        number += 1


# ── measuring ─────────────────────────────────────────────────────────────────────────────────────


async def observe(soak: Soak) -> None:
    """Counts everything every few seconds until the run is over."""
    while not soak.over:
        await _sample(soak)
        await asyncio.sleep(SAMPLE_S)


async def _sample(soak: Soak) -> None:
    running = soak.running
    processes = {f"worker {n}": worker.pid for n, worker in enumerate(running.workers[:WORKERS])}
    processes |= {name: process.pid for name, process in soak.beside.items()}
    processes |= {"Redis": running.lab.redis.pid}
    for name, pid in processes.items():
        for what, (value, unit) in of_process(pid).items():
            soak.put(f"{what} of {name}", value, unit)
    soak.put("data of Redis", await used_kib(running) / 1024, "MiB")
    info = await _memory(running)
    soak.parts.append({part: float(info[name]) / 2**20 for part, name in PARTS.items() if name in info})
    for kind, count in kinds(await keys_of(running)).items():
        soak.put(f"keys {kind}", count, "keys")
    for kind, entries in (await _entries(running)).items():
        soak.put(f"entries {kind}{' beyond their bound' if kind in BOUNDS else ''}", entries, "entries")
    for part in ("home", "tmp", "redis"):
        folder = running.lab.folder / part
        soak.put(f"files in {part}", files_below(folder), "files")
        soak.put(f"disk of {part}", disk_mib(folder), "MiB")


async def _entries(running: Fleet) -> Counter[str]:
    """Entries of all streams, by kind of key; of those that have a bound, entries beyond it."""
    broker, names, found = running.opened.broker, await keys_of(running, "TYPE", "stream"), Counter[str]()
    for start in range(0, len(names), 500):
        some = names[start : start + 500]
        lengths = await asyncio.gather(*(broker.command("XLEN", name) for name in some))
        for name, length in zip(some, lengths, strict=True):
            bound = BOUNDS.get(kind_of(name), -NODE) + NODE
            found[kind_of(name)] += max(0, cast(int, length) - bound)
    return found


async def keys_of(running: Fleet, *only: str) -> list[str]:
    found, cursor = [], 0
    while True:
        cursor, names = cast(Any, await running.opened.broker.command("SCAN", cursor, "COUNT", 1000, *only))
        found += [name.decode() for name in names]
        if not int(cursor):
            return found
        cursor = int(cursor)


# ── the end ───────────────────────────────────────────────────────────────────────────────────────


async def emptied(soak: Soak, before_kib: float) -> None:
    """Closes what lives; whatever is left when upkeep had its time is a finding."""
    for root in sorted(soak.roots):
        head = await soak.running.client.head(root)
        if head is not None and head.status not in {"closed", "closing"}:
            await _closed(soak, root)
    until = time.monotonic() + EMPTY_S
    while (left := await _left(soak, before_kib)) and time.monotonic() < until:  # noqa: ASYNC110
        await asyncio.sleep(2.0)
    soak.findings += left


async def _left(soak: Soak, before_kib: float) -> list[str]:
    """Lines for what is left of sessions: their keys, files, objects; and the memory of Redis."""
    found = []
    names = await keys_of(soak.running)
    for kind, count in sorted(kinds(name for name in names if kind_of(name) not in KEPT).items()):
        found.append(f"{counted(count, 'key')} of the kind {kind} are left of deleted sessions")
    for folder, what in _places(soak.running.lab):
        if count := files_below(folder):
            found.append(f"{counted(count, 'file')} of {what} are left below {folder.name}")
    soak.kept_kib = dict.fromkeys(sorted(KEPT), 0.0)
    for name in names:
        if kind_of(name) in KEPT:
            soak.kept_kib[kind_of(name)] += await weight(soak.running, name)
    grown = (await _data_kib(soak.running) - before_kib - sum(soak.kept_kib.values())) / 1024
    if grown > EMPTY_MIB:
        found.append(f"the data of Redis take {grown:.1f} MiB more than at the begin, beside what is kept")
    return found


async def _data_kib(running: Fleet) -> float:
    """Memory of Redis's data, without its scripts and without the buffers of its clients."""
    return float((await _memory(running))["used_memory_dataset"]) / 1024


async def _memory(running: Fleet) -> dict[str, Any]:
    return cast(dict[str, Any], await running.opened.broker.command("INFO", "memory"))


def _places(place: Lab) -> list[tuple[Path, str]]:
    """Folders of what is kept of sessions; others may vanish while they are looked for."""
    homes = [Path(folder) for folder, _, _ in os.walk(place.folder / "home")]
    return [(path, f"the {path.name}") for path in homes if path.name in {"sessions", "archive", "copies"}]


# ── the run ───────────────────────────────────────────────────────────────────────────────────────


@contextlib.asynccontextmanager
async def _beside(soak: Soak, leaks: str) -> AsyncIterator[None]:
    """Upkeep and a gateway, which end with it."""
    words = {
        "upkeep": ["proof.soak_processes", "upkeep", *([leaks] if leaks else []), *AGES],
        "gateway": ["orchestrator.cli.main", "serve", "--listen", "ws://127.0.0.1:0"],
    }
    try:
        for name, argv in words.items():
            soak.beside[name] = await asyncio.to_thread(started, soak.running, name, argv)
        await said(soak.running, "upkeep", "ready")
        soak.gateway = (await said(soak.running, "gateway", r"listening on (ws://\S+)"))[1]
        yield
    finally:
        for process in soak.beside.values():
            assert process.stdin is not None
            process.stdin.close()
            process.terminate()
            await asyncio.to_thread(process.wait)


def started(running: Fleet, name: str, words: list[str]) -> subprocess.Popen[bytes]:
    root = Path(__file__).resolve().parents[1]
    environ = running.lab.environ(OPENAI_BASE_URL=running.base_url, PYTHONPATH=str(root), **running.environ)
    with (running.lab.folder / f"{name}.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", *words],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            env=environ,
            cwd=running.lab.workspace,
        )


async def said(running: Fleet, name: str, pattern: str) -> re.Match[str]:
    log = running.lab.folder / f"{name}.log"
    async with asyncio.timeout(PATIENCE_S):
        while (found := re.search(pattern, log.read_text(errors="replace"))) is None:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    return found


async def soaked(place: Lab, minutes: float, agents: int, seed: int, leaks: str) -> Soak:
    """Runs it to its end."""
    (place.folder / "tmp").mkdir()
    async with fleet(place, "soak", *WIDE) as running:
        running.environ["TMPDIR"] = str(place.folder / "tmp")
        await running.opened.broker.command("CONFIG", "SET", "auto-aof-rewrite-min-size", AOF_BYTES)
        before_kib = await _data_kib(running)
        soak = Soak(running, time.monotonic() + minutes * 60, Random(seed))
        for _ in range(WORKERS):
            running.hire(max(16, agents // WORKERS))
        async with _beside(soak, leaks):
            trees = max(2, agents // TREE)
            lives = [tree_life(soak, n % 10 == 1, n % 10 == 0) for n in range(trees)]
            people = [(onlooker, visitor)[n % 2](soak) for n in range(FOLLOWERS)]
            await _all(*lives, *people, probe(soak), churn(soak), observe(soak))
            soak.costs = _costs(soak)
            soak.findings += [v for s in _series(soak) if (v := verdict(s))]
            soak.findings += _slower(soak)
            await emptied(soak, before_kib)
    return soak


def _costs(soak: Soak) -> dict[str, float]:
    found = {part: cpu.own_s for part, cpu in soak.running.costs().items() if part != "client"}
    found |= {name: cpu_of(process.pid).own_s for name, process in soak.beside.items()}
    return found | {"commands": soak.running.costs()["worker"].below_s}


async def _all(*parts: Coroutine[Any, Any, None]) -> None:
    async with asyncio.TaskGroup() as group:
        for part in parts:
            group.create_task(part)


def _series(soak: Soak) -> list[Series]:
    return [Series(name, unit, tuple(points)) for (name, unit), points in sorted(soak.series.items())]


def _slower(soak: Soak) -> list[str]:
    half = (soak.until - soak.began) / 2
    first = [took for at, took in soak.probes if at < half]
    return slower(first, [took for at, took in soak.probes if at >= half])


def report(soak: Soak, minutes: float, agents: int, under: str) -> str:
    """The page, as Markdown."""
    lines = [
        "# Soak",
        "",
        "`make soak` writes this page; [testing](../testing.md#beyond-the-suites) says what it does. Memory",
        "of a process is its share of it (Pss). *Grows*: more than 1 % an hour, and surely so.",
        "",
        *wrap(f"{minutes:g} minutes with {agents} agents at a time. {under}.", 120),
        "",
        *wrap(f"Done: {', '.join(f'{count:,} {what}' for what, count in sorted(soak.done.items()))}.", 120),
        "",
        "| what | mean of the second half | growth in it | an hour | |",
        "|---|---:|---:|---:|---|",
    ]
    for series in _series(soak):
        found = growth(series.points)
        if found is None:
            continue
        word = "**grows**" if verdict(series) else ""
        lines.append(
            f"| {series.name} | {found.mean:,.1f} {series.unit} | {found.grown:+,.1f} | "
            f"{found.per_hour:+,.1f} ± {found.unsure:,.1f} | {word} |"
        )
    agents = soak.done["trees"] * TREE
    lines += ["", f"Seconds of processors, {agents:,} agents having come and gone:", ""]
    lines += [f"- {part}: {spent:,.0f}" for part, spent in soak.costs.items()]
    kept = ", ".join(f"{kind} {kib:,.0f}" for kind, kib in soak.kept_kib.items())
    lines += ["", *wrap(f"Left in Redis on purpose when all was deleted, in KiB: {kept}.", 120)]
    lines += _of_redis(soak.parts)
    lines += ["", "## Findings", "", *(f"- {one}" for one in soak.findings or ["none"]), ""]
    return "\n".join(lines)


def _of_redis(parts: Sequence[dict[str, float]]) -> list[str]:
    """What its process consists of over the run, each the mean of a quarter of it."""
    if len(parts) < 4 * LEAST_POINTS:
        return []
    share = len(parts) // 4
    quarters = [parts[n * share : (n + 1) * share] for n in range(4)]
    names = [name for name in PARTS if name in parts[0]]
    rows = [
        f"| {name} | "
        + " | ".join(f"{sum(of[name] for of in some) / share:,.1f}" for some in quarters)
        + " |"
        for name in names
    ]
    head = ["| MiB | first quarter | second | third | last |", "|---|---:|---:|---:|---:|"]
    return ["", "What the process of Redis consists of:", "", *head, *rows]


def main(argv: Sequence[str]) -> int:
    """Runs the soak that was asked for; answers the exit code."""
    parser = argparse.ArgumentParser(prog="python -m proof.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="how long (default: %(default)s)")
    parser.add_argument("--agents", type=int, default=100, help="at a time (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--page", type=Path, help="where the page is written")
    parser.add_argument(
        "--leak", default="", help=f"plant leaks, which must be found: {', '.join(LEAKS)}, or all"
    )
    given = parser.parse_args(argv)
    leaks = ",".join(LEAKS) if given.leak == "all" else given.leak
    if unknown := set(filter(None, leaks.split(","))) - set(LEAKS):
        parser.error(f"no such leak: {', '.join(sorted(unknown))}")
    with lab() as place:
        under = "; ".join(f"{name}: {value}" for name, value in conditions(place).items())
        soak = uvloop.run(soaked(place, given.minutes, given.agents, given.seed, leaks))
    page = report(soak, given.minutes, given.agents, under)
    if given.page:
        given.page.parent.mkdir(parents=True, exist_ok=True)
        given.page.write_text(page, encoding="utf-8")
    print(page)
    return 1 if soak.findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
