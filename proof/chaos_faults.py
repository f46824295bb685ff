"""Faults of a chaos run: a schedule from a seed, drawn so that kinds meet, and how each is done."""

# Files of /proc and of small disks: nothing waits for them.
# ruff: noqa: ASYNC240

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from random import Random
from typing import Any, cast

from redis.asyncio import Redis
from redis.exceptions import RedisError

from proof.chaos_rules import Fault
from proof.chaos_script import SERVER, TROUBLE
from proof.chaos_stage import GATEWAYS, NO_MOUNT, WORKERS, Link, Part, Stage, now

BETWEEN_S, FORGOTTEN_S, DRAIN_S = 1.2, 1.0, 60.0
LENGTHS_S = (0.3, 1.5, 4.0, 8.0)
CUTS_S, SHORT_S = 1.5, 4.0
"""The longest that connections are cut again and again, and that Redis, a disk or the provider is away: less
than a lease."""
FORGETS = "redis forgets"
KINDS: Mapping[str, int] = {
    "worker killed": 4,
    "worker frozen": 5,
    "worker drained": 4,
    "supervisor killed": 4,
    "gateway killed": 4,
    "redis frozen": 4,
    "connections cut": 5,
    "network slow": 4,
    "redis killed": 2,
    "redis sleeps": 3,
    "clients paused": 3,
    "redis out of memory": 2,
    "redis disk full": 2,
    "home disk full": 2,
    "scripts forgotten": 2,
    "network away": 3,
    "network away upwards": 2,
    "network away downwards": 2,
    "answers cut": 3,
    "gateway frozen": 2,
    "supervisor frozen": 2,
    "upkeep killed": 1,
    "upkeep frozen": 2,
    "worker out of memory": 1,
    "provider refuses": 2,
    "provider fails": 2,
    "provider cut off": 2,
    "MCP server killed": 3,
}
"""How often each fault is drawn against the others; the first eight are the commonest."""
COMMON = tuple(KINDS)[:8]
NEVER_HERE = {
    "clock step": "needs libfaketime, or a time namespace, which the machine lacks",
    "slow disk": "needs a block device whose rate may be limited",
    "store away or slow": "upkeep puts nothing into the store within minutes",
    "tokens revoked": "gateways on loopback ask for none",
    "sentinel and cluster": "one server alone; failovers are in the simulator and in tests of servers",
    "two machines": "one machine; portable folders are in `make machines`",
}
"""Faults and parts of a deployment that this run leaves out, each with the reason."""


@dataclass(frozen=True, slots=True)
class Due:
    """A fault of a schedule: when, which, at which of its targets, and for how long."""

    at: float
    kind: str
    target: int
    lasts: float


def schedule(seed: int, seconds: float) -> list[Due]:
    """The faults of a run: each begins about a second behind the one before, whether that is over or not.

    Half of them are drawn to meet a kind that they have not met. Every second seed also has a server that
    loses the last second of its log.
    """
    drawn, at, found = Random(f"chaos:{seed}"), 1.0, list[Due]()
    weights = {**KINDS, **({FORGETS: 2} if seed % 2 else {})}
    unmet = set(combinations(sorted(COMMON), 2))
    while at < seconds:
        there = {due.kind for due in found[-8:] if due.at + due.lasts > at}
        new = sorted(
            kind for pair in unmet for kind in pair if there & {*pair} - {kind} and kind not in there
        )
        kind = drawn.choice(new) if new and drawn.random() < 0.5 else ""
        kind = kind or drawn.choices(list(weights), list(weights.values()))[0]
        found.append(Due(at, kind, drawn.randrange(WORKERS), drawn.choice(LENGTHS_S)))
        unmet -= {cast(tuple[str, str], tuple(sorted((kind, other)))) for other in there}
        at += drawn.expovariate(1 / BETWEEN_S)
    return found


def pairs(injected: Sequence[Fault]) -> Counter[tuple[str, str]]:
    """Pairs of kinds that were there at the same time."""
    return Counter(
        cast(tuple[str, str], tuple(sorted((one.kind, other.kind))))
        for one, other in combinations(injected, 2)
        if one.kind != other.kind and one.began <= other.ended and other.began <= one.ended
    )


@dataclass
class Nemesis:
    """Does faults to a stage, and writes down each, with its begin and its end."""

    stage: Stage
    writes: Callable[[str], None]
    injected: list[Fault] = field(default_factory=list)
    sizes: list[tuple[float, Path, int]] = field(default_factory=list)
    """Sizes that Redis's log had."""
    drained: list[float | None] = field(default_factory=list)
    """Seconds that each worker took to leave; None for one that did not."""
    counts: Counter[str] = field(default_factory=Counter)
    _restarting: asyncio.Lock = field(default_factory=asyncio.Lock)
    _taken: dict[str, asyncio.Lock] = field(default_factory=dict)
    """One for each process: who is killed is not drained meanwhile."""

    async def inject(self, plan: Sequence[Due]) -> None:
        """Injects the plan; faults overlap, and all are over at its end."""
        began, faults = now(), list[asyncio.Task[None]]()
        for due in plan:
            await asyncio.sleep(max(0.0, began + due.at - now()))
            if due.kind not in self.stage.absent:
                faults.append(asyncio.create_task(self._fault(due)))
        await asyncio.gather(*faults)

    async def _fault(self, due: Due) -> None:
        began = now()
        self.writes(f"begins {began:.3f} {due.kind} {due.target}")
        await FAULTS[due.kind](self, due)
        loses = due.kind == FORGETS or (due.kind == "redis killed" and not self.stage.always)
        fault = Fault(due.kind, str(due.target), began, now(), loses=loses)
        self.injected.append(fault)
        self.writes(f"ends {fault.ended:.3f} {due.kind} {due.target}")

    def worker(self, due: Due) -> Part:
        return self.stage.parts[f"worker {due.target % WORKERS}"]

    def gateway(self, due: Due) -> Part:
        return self.stage.parts[f"gateway {due.target % GATEWAYS}"]

    def link(self, due: Due) -> Link:
        """The network of a worker, or of a gateway for every other length."""
        part = self.worker(due) if due.lasts in LENGTHS_S[::2] else self.gateway(due)
        return part.link

    # ── processes ─────────────────────────────────────────────────────────────────────────────

    async def killed(self, part: Part, seconds: float) -> None:
        async with self._taken.setdefault(part.name, asyncio.Lock()):
            await asyncio.to_thread(part.kill)
            await asyncio.sleep(seconds)
            await asyncio.to_thread(part.start)

    async def drained_worker(self, due: Due) -> None:
        part = self.worker(due)
        async with self._taken.setdefault(part.name, asyncio.Lock()):
            took = await asyncio.to_thread(part.left, DRAIN_S)
            self.drained.append(took)
            if took is None:
                await asyncio.to_thread(part.kill)
            await asyncio.to_thread(part.start)

    async def starved(self, part: Part, seconds: float) -> None:
        """Leaves the process no more memory than it has, and then kills it, as the kernel does."""
        async with self._taken.setdefault(part.name, asyncio.Lock()):
            part.wanted = False
            with contextlib.suppress(OSError, ValueError):
                pages = int(Path(f"/proc/{part.pid}/statm").read_text().split()[0])
                most = pages * resource.getpagesize() + (1 << 20)
                resource.prlimit(part.pid, resource.RLIMIT_AS, (most, most))
            await asyncio.sleep(min(seconds, SHORT_S))
            await asyncio.to_thread(part.kill)
            await asyncio.to_thread(part.start)

    async def supervisor(self, due: Due, number: signal.Signals) -> None:
        for pid in _children(self.worker(due).pid):
            with contextlib.suppress(OSError):
                if b"supervisor_process" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(pid, number)
                    if number is signal.SIGSTOP:
                        await asyncio.sleep(due.lasts)
                        os.kill(pid, signal.SIGCONT)
                    return

    async def server_killed(self, due: Due) -> None:
        """The MCP servers of the worker."""
        server = str(self.stage.place.folder / SERVER).encode()
        for pid in await asyncio.to_thread(_descendants, self.worker(due).pid):
            with contextlib.suppress(OSError):
                if server in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                    os.kill(pid, signal.SIGKILL)
                    self.counts["MCP servers killed"] += 1

    # ── Redis ─────────────────────────────────────────────────────────────────────────────────

    async def redis_frozen(self, due: Due) -> None:
        async with self._restarting:
            await frozen(self.stage.redis.pid, min(due.lasts, SHORT_S))

    async def redis_killed(self, due: Due, *, forgets: bool = False) -> None:
        async with self._restarting:
            self.stage.redis.kill()
            await asyncio.to_thread(self.stage.redis.wait)
            if forgets and (log := self.log()) is not None:
                early = [size for at, path, size in self.sizes if path == log and at <= now() - FORGOTTEN_S]
                if early:
                    os.truncate(log, min(early[-1], log.stat().st_size))
            await asyncio.sleep(min(due.lasts, SHORT_S))
            await asyncio.to_thread(self.stage.start_redis)

    def log(self) -> Path | None:
        """The file that Redis appends to now."""
        found = (self.stage.place.folder / "redis").rglob("*.aof")
        return max(found, key=lambda path: path.stat().st_mtime, default=None)

    async def says(self, *words: str | int) -> Any:
        """Tells Redis something, if it answers within seconds."""
        client: Any = Redis(unix_socket_path=str(self.stage.place.folder / "s"), socket_timeout=10.0)
        try:
            return await client.execute_command(*words)
        except (RedisError, OSError):
            return None
        finally:
            await client.aclose()

    async def cut(self, due: Due) -> None:
        """Cuts all connections, again and again."""
        until = now() + min(due.lasts, CUTS_S)
        while True:
            await self.says("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            if now() >= until:
                return
            await asyncio.sleep(CUTS_S / 5)

    async def out_of_memory(self, due: Due) -> None:
        await self.says("CONFIG", "SET", "maxmemory", 1)
        await asyncio.sleep(min(due.lasts, SHORT_S))
        async with self._restarting:
            await self.says("CONFIG", "SET", "maxmemory", 0)

    async def disk_full(self, name: str, seconds: float) -> None:
        """Leaves no room on a disk."""
        ballast = self.stage.disks[name] / f"ballast-{now()}"
        async with self._restarting if name == "redis" else contextlib.nullcontext():
            with ballast.open("wb") as file:
                room = os.statvfs(ballast)
                with contextlib.suppress(OSError):
                    os.posix_fallocate(file.fileno(), 0, room.f_bavail * room.f_frsize)
            await asyncio.sleep(min(seconds, SHORT_S))
            ballast.unlink(missing_ok=True)
            if name == "redis" and self.stage.redis.poll() is not None:
                # One that syncs each write ends where it cannot.
                self.counts["Redis ended with a full disk"] += 1
                await asyncio.to_thread(self.stage.start_redis)

    # ── network, provider ─────────────────────────────────────────────────────────────────────

    async def network(self, due: Due, *, ways: Sequence[str] = (), slow_s: float = 0.0) -> None:
        link = self.link(due)
        link.held |= {*ways}
        link.delay_s = slow_s or link.delay_s
        await asyncio.sleep(due.lasts)
        link.held -= {*ways}
        link.delay_s = 0.0 if slow_s else link.delay_s

    async def answers_cut(self, due: Due) -> None:
        link = self.link(due)
        link.eats_answers = True
        await asyncio.sleep(min(due.lasts, 1.5))
        link.eats_answers = False

    async def provider(self, trouble: str, seconds: float) -> None:
        file = self.stage.place.folder / TROUBLE
        file.write_text(trouble)
        await asyncio.sleep(min(seconds, SHORT_S))
        file.write_text("")


async def frozen(pid: int, seconds: float) -> None:
    """Stops a process for so long."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)
        await asyncio.sleep(seconds)
        os.kill(pid, signal.SIGCONT)


def _children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def _descendants(pid: int) -> list[int]:
    found = _children(pid)
    for one in found:
        found += _children(one)
    return found


FAULTS: Mapping[str, Callable[[Nemesis, Due], Awaitable[Any]]] = {
    "worker killed": lambda it, due: it.killed(it.worker(due), due.lasts),
    "worker frozen": lambda it, due: frozen(it.worker(due).pid, due.lasts),
    "worker drained": lambda it, due: it.drained_worker(due),
    "worker out of memory": lambda it, due: it.starved(it.worker(due), due.lasts),
    "supervisor killed": lambda it, due: it.supervisor(due, signal.SIGKILL),
    "supervisor frozen": lambda it, due: it.supervisor(due, signal.SIGSTOP),
    "gateway killed": lambda it, due: it.killed(it.gateway(due), min(due.lasts, SHORT_S)),
    "gateway frozen": lambda it, due: frozen(it.gateway(due).pid, due.lasts),
    "upkeep killed": lambda it, due: it.killed(it.stage.parts["upkeep"], due.lasts),
    "upkeep frozen": lambda it, due: frozen(it.stage.parts["upkeep"].pid, due.lasts),
    "MCP server killed": lambda it, due: it.server_killed(due),
    "redis frozen": lambda it, due: it.redis_frozen(due),
    "redis killed": lambda it, due: it.redis_killed(due),
    FORGETS: lambda it, due: it.redis_killed(due, forgets=True),
    "redis sleeps": lambda it, due: it.says("DEBUG", "SLEEP", str(min(due.lasts, SHORT_S))),
    "connections cut": lambda it, due: it.cut(due),
    "clients paused": lambda it, due: it.says("CLIENT", "PAUSE", int(1000 * min(due.lasts, SHORT_S)), "ALL"),
    "scripts forgotten": lambda it, due: it.says("SCRIPT", "FLUSH"),
    "redis out of memory": lambda it, due: it.out_of_memory(due),
    "redis disk full": lambda it, due: it.disk_full("redis", due.lasts),
    "home disk full": lambda it, due: it.disk_full("home", due.lasts),
    "network slow": lambda it, due: it.network(due, slow_s=0.3),
    "network away": lambda it, due: it.network(due, ways=("up", "down")),
    "network away upwards": lambda it, due: it.network(due, ways=("up",)),
    "network away downwards": lambda it, due: it.network(due, ways=("down",)),
    "answers cut": lambda it, due: it.answers_cut(due),
    "provider refuses": lambda it, due: it.provider("429", due.lasts),
    "provider fails": lambda it, due: it.provider("500", due.lasts),
    "provider cut off": lambda it, due: it.provider("cut", due.lasts),
}


def absent(disks: Mapping[str, Path]) -> dict[str, str]:
    """Faults that this machine does not permit."""
    return {f"{name} disk full": NO_MOUNT for name in ("redis", "home") if name not in disks}
