"""`python -m proof.soak`: a deployment under load for minutes or hours; whatever grows without need is named.

Trees of ten agents live and end all the time: they are closed, archived and deleted within minutes, as in
another deployment within weeks. A tenth of them lives throughout, one in ten waits for a person before each
command, people come, look on and go, and workers are drained and killed. Every few seconds memory,
descriptors, threads, keys and files are counted; at the end all is closed, and nothing may be left.

Exit code 1 if something grew or was left, and what; the page has the figures.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
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
from typing import Any, cast

import uvloop

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
from proof.growth import Series, files_below, growth, kind_of, kinds, of_process, verdict
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
SAMPLE_S, CHURN_S, PATIENCE_S, EMPTY_S = 5.0, 60.0, 120.0, 240.0
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
WORKERS, FOLLOWERS = 2, 5


@dataclass
class Soak:
    """A run: what it has done so far, and what was measured of it."""

    running: Fleet
    until: float
    random: Random
    began: float = field(default_factory=time.monotonic)
    upkeep: subprocess.Popen[bytes] | None = None
    series: dict[tuple[str, str], list[tuple[float, float]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    done: Counter[str] = field(default_factory=Counter)
    roots: set[SessionId] = field(default_factory=set)
    probes: list[tuple[float, float]] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)
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
    assert soak.upkeep is not None
    processes = {f"worker {n}": worker.pid for n, worker in enumerate(running.workers[:WORKERS])}
    processes |= {"upkeep": soak.upkeep.pid}
    for name, pid in processes.items():
        for what, (value, unit) in of_process(pid).items():
            soak.put(f"{what} of {name}", value, unit)
    soak.put("memory of Redis", await used_kib(running) / 1024, "MiB")
    for kind, count in kinds(await _keys(running)).items():
        soak.put(f"keys {kind}", count, "keys")
    for part in ("home", "tmp"):
        soak.put(f"files in {part}", files_below(running.lab.folder / part), "files")


async def _keys(running: Fleet) -> list[str]:
    found, cursor = [], 0
    while True:
        cursor, names = cast(Any, await running.opened.broker.command("SCAN", cursor, "COUNT", 1000))
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
    names = await _keys(soak.running)
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
    info = cast(dict[str, Any], await running.opened.broker.command("INFO", "memory"))
    return float(info["used_memory_dataset"]) / 1024


def _places(place: Lab) -> list[tuple[Path, str]]:
    homes = [path for path in (place.folder / "home").rglob("*") if path.is_dir()]
    return [(path, f"the {path.name}") for path in homes if path.name in {"sessions", "archive", "copies"}]


# ── the run ───────────────────────────────────────────────────────────────────────────────────────


@contextlib.asynccontextmanager
async def _upkeep(running: Fleet, leak: str) -> AsyncIterator[subprocess.Popen[bytes]]:
    process = await asyncio.to_thread(_started, running, leak)
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        if not await asyncio.to_thread(process.stdout.readline):
            raise RuntimeError("upkeep ended before it was ready")
        yield process
    finally:
        process.stdin.close()
        await asyncio.to_thread(process.wait)
        process.stdout.close()


def _started(running: Fleet, leak: str) -> subprocess.Popen[bytes]:
    argv = [sys.executable, "-m", "proof.soak_processes", "upkeep", *([leak] if leak else []), *AGES]
    root = Path(__file__).resolve().parents[1]
    return subprocess.Popen(
        argv,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=running.lab.environ(OPENAI_BASE_URL=running.base_url, PYTHONPATH=str(root)),
        cwd=running.lab.workspace,
    )


async def soaked(place: Lab, minutes: float, agents: int, seed: int, leak: str) -> Soak:
    """Runs it to its end."""
    (place.folder / "tmp").mkdir()
    async with fleet(place, "soak", *WIDE) as running:
        before_kib = await _data_kib(running)
        soak = Soak(running, time.monotonic() + minutes * 60, Random(seed))
        for _ in range(WORKERS):
            running.hire(max(16, agents // WORKERS))
        async with _upkeep(running, leak) as upkeep:
            soak.upkeep = upkeep
            trees = max(2, agents // TREE)
            lives = [tree_life(soak, n % 10 == 1, n % 10 == 0) for n in range(trees)]
            await _all(
                *lives, *(onlooker(soak) for _ in range(FOLLOWERS)), probe(soak), churn(soak), observe(soak)
            )
            soak.findings += [v for s in _series(soak) if (v := verdict(s))]
            soak.findings += _slower(soak)
            await emptied(soak, before_kib)
    return soak


async def _all(*parts: Coroutine[Any, Any, None]) -> None:
    async with asyncio.TaskGroup() as group:
        for part in parts:
            group.create_task(part)


def _series(soak: Soak) -> list[Series]:
    return [Series(name, unit, tuple(points)) for (name, unit), points in sorted(soak.series.items())]


def _slower(soak: Soak) -> list[str]:
    """A line if the probe's slowest turns of the second half are half again as slow as those of the first."""
    half = (soak.until - soak.began) / 2
    first = sorted(took for at, took in soak.probes if at < half)
    second = sorted(took for at, took in soak.probes if at >= half)
    if len(first) < 20 or len(second) < 20:
        return []
    before, now = first[int(len(first) * 0.99)], second[int(len(second) * 0.99)]
    return [f"the probe's p99 went from {before:.2f} to {now:.2f} s"] if now > 1.5 * before + 0.2 else []


def report(soak: Soak, minutes: float, agents: int, under: str) -> str:
    """The page, as Markdown."""
    lines = [
        "# Soak",
        "",
        f"{minutes:g} minutes with {agents} agents at a time. {under}",
        "",
        f"Done: {', '.join(f'{count:,} {what}' for what, count in sorted(soak.done.items()))}.",
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
    kept = ", ".join(f"{kind} {kib:,.0f}" for kind, kib in soak.kept_kib.items())
    lines += ["", f"Left in Redis on purpose when all was deleted, in KiB: {kept}."]
    lines += ["", "## Findings", "", *(f"- {one}" for one in soak.findings or ["none"]), ""]
    return "\n".join(lines)


def main(argv: Sequence[str]) -> int:
    """Runs the soak that was asked for; answers the exit code."""
    parser = argparse.ArgumentParser(prog="python -m proof.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="how long (default: %(default)s)")
    parser.add_argument("--agents", type=int, default=100, help="at a time (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--page", type=Path, help="where the page is written")
    parser.add_argument("--leak", choices=sorted(LEAKS), default="", help="plant a leak, which must be found")
    given = parser.parse_args(argv)
    with lab() as place:
        under = "; ".join(f"{name}: {value}" for name, value in conditions(place).items())
        soak = uvloop.run(soaked(place, given.minutes, given.agents, given.seed, given.leak))
    page = report(soak, given.minutes, given.agents, under)
    if given.page:
        given.page.parent.mkdir(parents=True, exist_ok=True)
        given.page.write_text(page, encoding="utf-8")
    print(page)
    return 1 if soak.findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
