"""`python -m proof.week`: thousands of sessions wait for a person for a week, by a clock that is set.

Everybody's clock is set an hour ahead, 168 times: that of Redis, by which the product tells ages, and those
of workers and the gateway. After each step upkeep does all of its jobs. Beside the sessions that wait stand
some that have a time limit, some that nobody closed, some that are closed, and trees whose roots await
agents that wait. On day 7 everything is stopped and started anew, and every session is answered.

Exit code 1 if a session was touched, lost or not answered, or if something grew; the page has the figures.
"""

from __future__ import annotations

import argparse
import asyncio
import mmap
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence, Set
from contextlib import ExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from textwrap import wrap
from typing import Any, cast

import uvloop
from websockets.asyncio.client import connect

from bench.accounts import cpu_of
from bench.lab import Fleet, Lab, attached, lab, stub_of
from bench.machine import conditions
from bench.parked import commands_of, park_by_commits, park_by_work, used_kib, weight
from bench.tree_script import merged, order
from bench.turns import submit_turn, take_turns
from orchestrator.core.ids import SessionId, TreeId
from orchestrator.protocol import ops
from orchestrator.protocol.ids import CallId, SubmissionId
from orchestrator.protocol.submission import Submission
from orchestrator.rollouts.archive import Archive, Storage
from orchestrator.runtime.loader import restore_session
from orchestrator.wiring.deployment import chain_key, session_pool
from proof.chaos_clients import Wire
from proof.soak import keys_of, said, started
from proof.soak_processes import AtOnce
from workers.upkeep import look, retain, timers, upkeep_of, verify

DAYS, HOURS = 7, 24
HOUR_S, DAY_S = 3_600, 86_400
TIMED_DAYS, IDLE_ARCHIVED_DAYS, ENDED_GONE_DAYS = 3, 2, 3
"""An approval with a time limit is denied so long behind its begin; by the end of these days, what nobody
closed is archived, and what is closed deleted."""
UPKEEP = ("upkeep.archive_after_days=0.5", "upkeep.archive_idle_days=1", "upkeep.retention_days=2")
REST_S, TURN_S = 120.0, 120.0
AT_ONCE, WORKERS, CONCURRENCY = 48, 2, 24
AGENTS = 3
"""Of a tree whose root awaits them."""
MORE_MIB, MORE_SHARE, MORE_COMMANDS = 1.0, 0.02, 0.2
"""Redis may hold and do so much more on the last day than on the second."""


# ── the clock ─────────────────────────────────────────────────────────────────────────────────────

# libfaketime ends a Redis that is built with jemalloc: both ask each other before they are ready.
CLOCK_SOURCE = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile long long *ahead_s;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("PROOF_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *found = mmap(NULL, sizeof(long long), PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (found != MAP_FAILED) ahead_s = found;
}

int clock_gettime(clockid_t clock, struct timespec *at) {
    int failed = syscall(SYS_clock_gettime, clock, at);
    if (!failed && ahead_s && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        at->tv_sec += *ahead_s;
    return failed;
}

int gettimeofday(struct timeval *at, void *zone) {
    struct timespec now;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &now)) return -1;
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *at) {
    struct timespec now;
    if (clock_gettime(CLOCK_REALTIME, &now)) return -1;
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}
"""


class Clock:
    """CLOCK_REALTIME of the processes that are started with `environ`: as far ahead as was last set."""

    def __init__(self, folder: Path, compiler: str) -> None:
        self._offset, self._library = folder / "clock", folder / "clock.so"
        self._offset.write_bytes(bytes(8))
        source = folder / "clock.c"
        source.write_text(CLOCK_SOURCE)
        subprocess.run([compiler, "-shared", "-fPIC", "-O2", "-o", self._library, source], check=True)
        self.ahead_s = 0

    @property
    def environ(self) -> dict[str, str]:
        return {"LD_PRELOAD": str(self._library), "PROOF_CLOCK": str(self._offset)}

    def advance(self, seconds: int) -> None:
        self.ahead_s += seconds
        with self._offset.open("r+b") as file, mmap.mmap(file.fileno(), 8) as shared:
            shared[:] = struct.pack("q", self.ahead_s)


def compiler() -> str | None:
    """The compiler that makes a clock which can be set; None where there is none."""
    return shutil.which("cc")


# ── the week ──────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Day:
    """What was counted in a day."""

    number: int
    commands: Counter[str]
    """Of Redis, by all: looks of upkeep and of workers, and who fires what is due."""
    mib: float
    keys: int
    redis_s: float
    """Seconds of processors."""
    workers_s: float
    took_s: float


@dataclass
class Week:
    """Sessions by what they are there for, and what was seen of them."""

    clock: Clock
    base_url: str = ""
    """Of the model server, which is nobody's: it stays as it is."""
    parked: list[SessionId] = field(default_factory=list)
    timed: list[SessionId] = field(default_factory=list)
    """Their approvals have a time limit."""
    roots: list[SessionId] = field(default_factory=list)
    """Of trees that await agents."""
    idle: list[SessionId] = field(default_factory=list)
    ended: list[SessionId] = field(default_factory=list)
    marks: dict[SessionId, tuple[int, int]] = field(default_factory=dict)
    """Length of the log and epoch of each that waits, as the week began."""
    kinds: dict[str, int] = field(default_factory=dict)
    days: list[Day] = field(default_factory=list)
    answered: int = 0
    at_gateway: int = 0
    answering_s: float = 0.0
    findings: list[str] = field(default_factory=list)

    @property
    def waiting(self) -> int:
        """Sessions and agents that wait for a person without end."""
        return len(self.parked) + AGENTS * len(self.roots)

    def finds(self, wrong: bool, text: str) -> None:
        if wrong:
            self.findings.append(text)


def beside(sessions: int) -> int:
    """How many there are of each other kind; twice as many of those that wait came there by the real path."""
    return max(2, sessions // 50)


async def parks(week: Week, running: Fleet, sessions: int) -> None:
    """Day 0: everybody comes to where it waits."""
    some = beside(sessions)
    calm, asking = _with(running, "approval_policy=never"), _with(running, "approval_policy=untrusted")
    limit = f"approval_timeout_s={TIMED_DAYS * DAY_S}"
    limited = _with(running, "approval_policy=untrusted", limit)
    week.parked += (by_work := [await asking.session() for _ in range(sessions - len(week.parked))])
    week.timed = [await limited.session() for _ in range(some)]
    await _many([*by_work, *week.timed], lambda session: park_by_work(asking, session))
    week.idle = [await calm.session() for _ in range(some)]
    week.ended = [await calm.session() for _ in range(some)]
    await _many([*week.idle, *week.ended], lambda session: take_turns(calm, session, 1))
    for session in week.ended:
        await running.client.submit(session, Submission(SubmissionId("close"), ops.Shutdown()))
    week.roots = [await asking.session() for _ in range(max(1, some // 4))]
    for root in week.roots:
        await submit_turn(asking, root, "turn-0", order(AGENTS))
    while await running.opened.broker.requests.count_open_requests() < week.waiting + some:  # noqa: ASYNC110
        await asyncio.sleep(0.1)
    await rests(running)
    heads = await running.opened.broker.logs.heads(week.parked)
    week.marks = {head.session: (head.seq, head.epoch) for head in heads}


def _with(running: Fleet, *overrides: str) -> Fleet:
    environ = running.lab.environ(OPENAI_BASE_URL=running.base_url)
    return replace(running, settings=running.lab.settings(environ, *overrides))


async def _many(
    sessions: Sequence[SessionId], does: Callable[[SessionId], Coroutine[Any, Any, object]]
) -> None:
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(session: SessionId) -> None:
        async with gate:
            await does(session)

    async with asyncio.TaskGroup() as group:
        for session in sessions:
            group.create_task(one(session))


async def rests(running: Fleet) -> None:
    """Waits until no session is due, and none is in a worker's hands."""
    broker, pool = running.opened.broker, session_pool(running.settings)
    keys = [key(s, pool) for key in (broker.keys.due, broker.keys.leases) for s in range(broker.keys.shards)]
    async with asyncio.timeout(REST_S):
        quiet = 0
        while quiet < 2:
            counts = await asyncio.gather(*(broker.command("ZCARD", key) for key in keys))
            quiet = 0 if any(counts) else quiet + 1
            await asyncio.sleep(0.05)


async def passes(week: Week, running: Fleet) -> None:
    """Seven days, hour by hour."""
    queue = AtOnce()
    upkeep = upkeep_of(_with(running, *UPKEEP).settings, _storage(running), running.lab.redis_url)
    queue.ctx["upkeep"] = upkeep
    for day in range(1, DAYS + 1):
        began, commands = time.monotonic(), await commands_of(running)
        redis_s, workers_s = _spent(running)
        for _ in range(HOURS):
            week.clock.advance(HOUR_S)
            for job in (timers, look, retain, verify):
                await job(queue.ctx)
            await rests(running)
        commands = await commands_of(running) - commands
        now_redis_s, now_workers_s = _spent(running)
        keys = await keys_of(running)
        mib = (await used_kib(running) - await _at_work_kib(week, running)) / 1024
        spent = now_redis_s - redis_s, now_workers_s - workers_s
        week.days.append(Day(day, commands, mib, len(keys), *spent, time.monotonic() - began))
        week.findings += wrong_with(week, day, await _seen(week, running))
        print(f"day {day} has passed in {week.days[-1].took_s:.0f} s", file=sys.stderr, flush=True)


async def _at_work_kib(week: Week, running: Fleet) -> float:
    """What logs take that grow by turns: a root whose agents wait asks its model again each hour."""
    of = running.opened.broker.keys.rollout
    return sum([await weight(running, of(root)) for root in week.roots])


def _storage(running: Fleet) -> Storage:
    opened, settings = running.opened, running.settings
    key = chain_key(settings)
    secret = key.secret if key else b""
    return Storage(opened.broker, opened.blobs, Archive.at(settings.upkeep.archive_url, secret), secret)


def _spent(running: Fleet) -> tuple[float, float]:
    return cpu_of(running.lab.redis.pid).own_s, sum(cpu_of(one.pid).own_s for one in running.workers)


@dataclass(frozen=True, slots=True)
class Seen:
    """What there is at the end of a day."""

    marks: Mapping[SessionId, tuple[int, int]]
    """Of those that wait, as in the week's."""
    asked: Set[SessionId]
    """Sessions with an open approval."""
    idle_archived: Sequence[bool]
    ended_left: int


async def _seen(week: Week, running: Fleet) -> Seen:
    logs = running.opened.broker.logs
    marks = {head.session: (head.seq, head.epoch) for head in await logs.heads(week.parked)}
    asked = {one.session for one in await running.opened.broker.requests.approvals()}
    idle = [head.archived for head in await logs.heads(week.idle)]
    return Seen(marks, asked, idle, len(await logs.heads(week.ended)))


def wrong_with(week: Week, day: int, seen: Seen) -> list[str]:
    """A line for each rule that a day's end breaks."""
    found = []
    if gone := set(week.parked) - set(seen.marks):
        found.append(f"{len(gone)} sessions that wait are gone")
    if touched := [one for one, mark in seen.marks.items() if mark != week.marks[one]]:
        found.append(f"{len(touched)} sessions that wait were claimed or written to")
    if silent := set(week.parked) - seen.asked:
        found.append(f"{len(silent)} sessions that wait are not in the queue of approvals")
    ended = sum(one not in seen.asked for one in week.timed)
    if ended != (len(week.timed) if day >= TIMED_DAYS else 0):
        found.append(f"{ended} approvals that have a limit of {TIMED_DAYS} days are over")
    if day >= IDLE_ARCHIVED_DAYS and not all(seen.idle_archived):
        found.append(f"{seen.idle_archived.count(False)} sessions that nobody closed are not archived")
    if day >= ENDED_GONE_DAYS and seen.ended_left:
        found.append(f"{seen.ended_left} closed sessions are not deleted")
    return [f"day {day}: {line}" for line in found]


def grown(days: Sequence[Day]) -> list[str]:
    """A line for each cost of the last day that is more than that of the second, when all rest."""
    first, last = days[1], days[-1]
    then, now = first.commands.total(), last.commands.total()
    costs = (
        ("MiB in Redis", first.mib, last.mib, first.mib * (1 + MORE_SHARE) + MORE_MIB),
        ("keys", first.keys, last.keys, first.keys),
        ("commands of Redis", then, now, then * (1 + MORE_COMMANDS)),
    )
    return [
        f"day {last.number} has {now:,.0f} {what}, and day {first.number} had {then:,.0f}"
        for what, then, now, limit in costs
        if now > limit
    ]


# ── the answers ───────────────────────────────────────────────────────────────────────────────────


async def answers(week: Week, running: Fleet, gateway: str) -> None:
    """Day 7, all being new: every session that waits is answered, one in twenty at the gateway."""
    began, broker = time.monotonic(), running.opened.broker
    asked = {one.session: one.key for one in await broker.requests.approvals()}
    week.finds(len(asked) != week.waiting, f"{len(asked)} sessions and agents ask, and {week.waiting} waited")
    at_gateway = set(week.parked[::20])
    number = {session: n for n, session in enumerate(week.parked)}

    async def one(session: SessionId) -> None:
        try:
            async with asyncio.timeout(TURN_S):
                if session in at_gateway:
                    await _at_gateway(gateway, session)
                    week.at_gateway += 1
                else:
                    await _answered(running, session, asked[session], approves=number[session] % 4 == 0)
        except (KeyError, LookupError, RuntimeError, TimeoutError) as error:
            week.findings.append(f"{session} was not answered: {type(error).__name__} {error}")
        else:
            week.answered += 1

    await _many(week.parked, one)
    await _many(week.idle, lambda session: _spoken_to(running, session))
    for root in week.roots:
        await _tree_answered(week, running, root)
    week.answering_s = time.monotonic() - began


async def _spoken_to(running: Fleet, session: SessionId) -> None:
    """A turn of a session that was idle for a week; raises for one that goes wrong."""
    await restore_session(_storage(running), session)
    await take_turns(running, session, 1, first=1)


async def _answered(running: Fleet, session: SessionId, call: str, *, approves: bool) -> None:
    decision = cast(Any, "approved" if approves else "denied")
    async with aclosing(cast(Any, running.client.follow(session))) as events:
        answer = ops.ExecApproval(id=CallId(call), decision=decision)
        await running.client.submit(session, Submission(SubmissionId("answer"), answer))
        ran = 0
        async for event in events:
            ran += event.type == "exec_command_begin"
            if event.type in {"error", "turn_aborted"}:
                raise RuntimeError(str(event.msg))
            if event.type == "task_complete":
                break
    if ran != approves:
        raise RuntimeError(f"{decision}, and its command ran {ran} times")


async def _at_gateway(gateway: str, session: SessionId) -> None:
    """Comes to the thread, is asked there, and allows it."""
    async with connect(gateway, compression=None, max_size=None) as socket:
        wire = await Wire.greets(socket)
        await wire.call("thread/resume", threadId=session)
        while True:
            while wire.heard:
                message = wire.heard.popleft()
                if message["method"].endswith("requestApproval"):
                    await wire.answers(message)
                elif message["method"] == "turn/completed":
                    if (status := message["params"]["turn"]["status"]) != "completed":
                        raise RuntimeError(f"its turn is {status}")
                    return
            await wire.hears(TURN_S)


async def _tree_answered(week: Week, running: Fleet, root: SessionId) -> None:
    broker = running.opened.broker
    async with aclosing(cast(Any, running.client.follow(root))) as events:
        calls = {one.session: one.key for one in await broker.requests.approvals()}
        agents = [head for head in await broker.logs.heads(list(calls)) if head.tree == TreeId(root)]
        week.finds(len(agents) != AGENTS, f"{len(agents)} of {AGENTS} agents of a tree still ask")
        for head in agents:
            call, agent = CallId(calls[head.session]), head.agent_id
            answer = ops.ExecApproval(id=call, decision=cast(Any, "approved"), agent_id=agent)
            await running.client.submit(root, Submission(SubmissionId(f"answer-{agent}"), answer))
        try:
            async with asyncio.timeout(TURN_S):
                async for event in events:
                    if event.type == "task_complete" and event.id == "turn-0":
                        said = event.msg["last_agent_message"]
                        week.finds(said != merged(AGENTS), f"the root of a tree said: {said}")
                        return
        except TimeoutError:
            week.findings.append(f"the tree {root} did not come to its end")


# ── the run ───────────────────────────────────────────────────────────────────────────────────────


@asynccontextmanager
async def _serving(week: Week, place: Lab, sessions: int = 0) -> AsyncIterator[tuple[Fleet, str]]:
    """Workers and a gateway, which end with it; before they come so many sessions are made that wait."""
    async with attached(place, week.base_url, *UPKEEP) as running:
        running.environ |= week.clock.environ
        if sessions:
            week.parked = await park_by_commits(_with(running, "approval_policy=untrusted"), sessions)
        for _ in range(WORKERS):
            await asyncio.to_thread(running.hire, CONCURRENCY)
        words = ["orchestrator.cli.main", "serve", "--listen", "ws://127.0.0.1:0"]
        gateway = await asyncio.to_thread(started, running, "gateway", words)
        try:
            yield running, (await said(running, "gateway", r"listening on (ws://\S+)"))[1]
        finally:
            gateway.terminate()
            await asyncio.to_thread(gateway.wait)


async def _until_day_7(week: Week, place: Lab, sessions: int) -> None:
    async with _serving(week, place, sessions - 2 * beside(sessions)) as (running, _):
        await parks(week, running, sessions)
        await passes(week, running)
        week.findings += grown(week.days)


async def _day_7(week: Week, place: Lab) -> None:
    async with _serving(week, place) as (running, gateway):
        await answers(week, running, gateway)


def waited(folder: Path, compiler: str, sessions: int) -> tuple[Week, str]:
    """A week in a folder, and under what it passed; day 7 has a server of its own over the same files."""
    week = Week(Clock(folder, compiler))
    with ExitStack() as stack:
        with lab(folder, week.clock.environ) as place:
            under = "; ".join(f"{name}: {value}" for name, value in conditions(place).items())
            _, week.base_url = stack.enter_context(stub_of(place, "soak:0.5"))
            uvloop.run(_until_day_7(week, place, sessions))
        with lab(folder, week.clock.environ) as place:
            uvloop.run(_day_7(week, place))
    return week, under


def report(week: Week, sessions: int, under: str) -> str:
    """The page, as Markdown."""
    lines = [
        "# A week of waiting",
        "",
        "`make week` writes this page. Sessions wait for a person while the clocks of Redis, workers and",
        "a gateway are set ahead hour by hour; after each hour upkeep does all of its jobs. Behind the",
        "last hour everything is stopped and started anew, and all are answered.",
        "",
        f"{sessions:,} sessions wait. Beside them:",
        "",
        f"- {len(week.timed)} whose approval has a limit of {TIMED_DAYS} days",
        f"- {len(week.idle)} that nobody closes, and {len(week.ended)} that are closed",
        f"- {len(week.roots)} trees whose roots await {AGENTS} agents each, which wait for approvals: these",
        "  roots ask their model every hour; their logs, which grow until they are sealed, are not counted",
        "",
        *wrap(under + ".", 120),
        "",
        "| day | commands of Redis | data of Redis, MiB | keys | Redis, CPU s | workers, CPU s | took, s |",
        "|---:|---:|---:|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {day.number} | {day.commands.total():,} | {day.mib:,.1f} | {day.keys:,} | {day.redis_s:.1f} "
        f"| {day.workers_s:.1f} | {day.took_s:.0f} |"
        for day in week.days
    ]
    lines += [
        "",
        f"Answered behind the restart: {week.answered:,} of {len(week.parked):,}, {week.at_gateway:,} of "
        f"them at the gateway, in {week.answering_s:,.0f} s.",
        "",
        "## Findings",
        "",
        *(f"- {one}" for one in week.findings or ["none"]),
        "",
    ]
    return "\n".join(lines)


def main(argv: Sequence[str]) -> int:
    """Lets the week pass that was asked for; answers the exit code."""
    parser = argparse.ArgumentParser(prog="python -m proof.week", description=__doc__)
    parser.add_argument("--sessions", type=int, default=10_000, help="that wait (default: %(default)s)")
    parser.add_argument("--page", type=Path, help="where the page is written")
    given = parser.parse_args(argv)
    if (found := compiler()) is None:
        print("skipped: the clock that can be set is made by a C compiler, and there is no cc on PATH")
        return 2
    with tempfile.TemporaryDirectory(prefix="dendro-week-") as folder:
        week, under = waited(Path(folder), found, given.sessions)
    page = report(week, given.sessions, under)
    if given.page:
        given.page.parent.mkdir(parents=True, exist_ok=True)
        given.page.write_text(page, encoding="utf-8")
    print(page)
    return 1 if week.findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
