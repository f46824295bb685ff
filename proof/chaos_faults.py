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
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from random import Random
from typing import Any, cast

from redis.crc import key_slot

from proof.chaos_rules import LOSSES, Fault
from proof.chaos_script import SERVER, TROUBLE
from proof.chaos_servers import Link, Server, now, until_true
from proof.chaos_stage import GATEWAYS, NO_MOUNT, NO_RATE, ROOT, WORKERS, Part, Stage, may_be_slow, slow

BETWEEN_S, FORGOTTEN_S, DRAIN_S, FAILOVER_S = 1.2, 1.0, 60.0, 30.0
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
    "worker's clock set": 3,
    "redis disk slow": 2,
    "worker's version changed": 3,
}
"""How often each fault is drawn against the others; the first eight are the commonest."""
SEVERAL: Mapping[str, int] = {
    "primary killed": 3,
    "primary frozen": 3,
    "primary cut off": 3,
    "replica killed": 2,
    "replica cut off": 2,
    "failover asked": 2,
}
"""Faults of several servers. A primary is away until another one is there, and then comes back."""
MORE: Mapping[str, Mapping[str, int]] = {
    "single": {},
    "sentinel": {**SEVERAL, "sentinel killed": 2},
    "cluster": {**SEVERAL, "slot moved": 4},
}
CLOCKS_S = dict(zip(LENGTHS_S, (5.0, -5.0, 3600.0, -3600.0), strict=True))
"""By how much a clock is set, by the length of the fault."""
COMMON = tuple(KINDS)[:8]
NEVER_HERE = {
    "Redis's clock set": "libfaketime does not start in a Redis with jemalloc; the simulator sets it",
    "store away or slow": "the store is a folder of the home disk, which is full at times",
    "tokens revoked": "gateways on loopback ask for none",
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


def schedule(seed: int, seconds: float, topology: str = "single", often: Collection[str] = ()) -> list[Due]:
    """The faults of a run: each begins about a second behind the one before, whether that is over or not.

    Half of them are drawn to meet a kind that they have not met; kinds that come `often` come ten times as
    often. With every second seed a single server also loses the last second of its log.
    """
    drawn, at, found = Random(f"chaos:{topology}:{seed}"), 1.0, list[Due]()
    weights = {**KINDS, **MORE[topology], **({FORGETS: 2} if seed % 2 and topology == "single" else {})}
    weights |= {kind: 10 * weights[kind] for kind in often}
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


def lost_by_failover(topology: str, *, asked: bool, waits: bool) -> Collection[str]:
    """What may be lost where a replica becomes the primary; `asked` for it while all were there."""
    if asked and topology == "cluster":
        # The node waits until its replica has read everything.
        return ()
    if waits:
        return ("promises",)
    # A Sentinel that is asked promotes one, and tells the others a second later: the old primary serves on.
    return LOSSES if asked or topology == "cluster" else ("promises", "begins")


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
    unasked: list[Fault] = field(default_factory=list)
    """Failovers that came between two faults of servers: a busy machine may bring them, or a fault whose
    servers looked whole before they had agreed that a primary was away."""
    sizes: list[tuple[float, Path, int]] = field(default_factory=list)
    """Sizes that Redis's log had."""
    drained: list[float | None] = field(default_factory=list)
    """Seconds that each worker took to leave; None for one that did not."""
    counts: Counter[str] = field(default_factory=Counter)
    longest_s: dict[str, float] = field(default_factory=dict)
    """Seconds from a fault to servers that are whole again under another primary, by its kind."""
    _restarting: asyncio.Lock = field(default_factory=asyncio.Lock)
    """One fault of servers at a time: what is promised holds where they were whole before."""
    _serving: tuple[float, frozenset[str]] | None = None
    """The names of the primaries, and when they were last seen to serve, of several servers."""
    _taken: dict[str, asyncio.Lock] = field(default_factory=dict)
    """One for each process: who is killed is not drained meanwhile."""

    async def inject(self, plan: Sequence[Due]) -> None:
        """Injects the plan; faults overlap, and all are over at its end."""
        began, faults = now(), list[asyncio.Task[None]]()
        for due in plan:
            await asyncio.sleep(max(0.0, began + due.at - now()))
            if due.kind in OF_SERVERS and self.stage.servers.kind != "single" and self._restarting.locked():
                self.counts["faults left out, as the servers were not whole"] += 1
            elif due.kind not in self.stage.absent:
                faults.append(asyncio.create_task(self._fault(due)))
        await asyncio.gather(*faults)
        if self.stage.servers.kind != "single":
            async with self._restarting:
                await self._primaries()

    async def _fault(self, due: Due) -> None:
        began = now()
        self.writes(f"begins {began:.3f} {due.kind} {due.target}")
        several = due.kind in OF_SERVERS and self.stage.servers.kind != "single"
        loses = await (self._until_whole(due) if several else self._alone(due))
        fault = Fault(due.kind, str(due.target), began, now(), loses=loses)
        self.injected.append(fault)
        self.writes(f"ends {fault.ended:.3f} {due.kind} {due.target}")

    async def _alone(self, due: Due) -> Collection[str]:
        """Does a fault; answers what Redis may have forgotten."""
        await FAULTS[due.kind](self, due)
        return LOSSES if due.kind == FORGETS or (due.kind == "redis killed" and not self.stage.always) else ()

    async def _until_whole(self, due: Due) -> Collection[str]:
        """Does a fault of one of several servers; answers what a failover may have forgotten.

        As docs/operations.md has it: what was on its way to the replica. With `effects = "wait"` no command
        has begun of which it lacks the begin, and nobody counts on a claim that it lacks. Without, Sentinels
        that wait for long enough promote no replica before the holders of the old primary have stopped.
        """
        servers = self.stage.servers
        async with self._restarting:
            before = await self._primaries()
            began = now()
            await FAULTS[due.kind](self, due)
            await servers.whole()
            self._serving = now(), frozenset(server.name for server in await servers.primaries())
            if self._serving[1] == before:
                return ()
        self.counts["failovers"] += 1
        self.longest_s[due.kind] = max(self.longest_s.get(due.kind, 0.0), now() - began)
        return lost_by_failover(servers.kind, asked=due.kind == "failover asked", waits=servers.waits)

    async def _primaries(self) -> frozenset[str]:
        """The names of the primaries, as soon as all servers are whole; notes if others served before."""
        servers, before = self.stage.servers, self._serving
        await servers.whole()
        self._serving = now(), frozenset(server.name for server in await servers.primaries())
        if before is not None and before[1] != self._serving[1]:
            loses = lost_by_failover(servers.kind, asked=False, waits=servers.waits)
            self.unasked.append(Fault("failover", "unasked", before[0], self._serving[0], loses=loses))
            self.counts["failovers that no fault asked for"] += 1
            self.writes(f"saw {self._serving[0]:.3f} a failover that no fault asked for")
        return self._serving[1]

    async def server(self, due: Due) -> Server:
        """The primary, or one of several."""
        return await self.stage.servers.primary(due.target)

    async def _till_another_is_there(self, primary: Server) -> None:
        await until_true(FAILOVER_S, lambda: self._is_replaced({primary.name}))

    async def _is_replaced(self, names: set[str]) -> bool:
        """Whether there are primaries, and not all of these among them."""
        found = {server.name for server in await self.stage.servers.primaries()}
        return bool(found) and not names <= found

    def worker(self, due: Due) -> Part:
        return self.stage.parts[f"worker {due.target % WORKERS}"]

    def gateway(self, due: Due) -> Part:
        return self.stage.parts[f"gateway {due.target % GATEWAYS}"]

    def link(self, due: Due) -> Link:
        """The network of a worker, or of a gateway: each length comes to one of either.

        A worker has to be away for longer than a claim, too: another one takes what it was at work on.
        """
        odd = (due.target + LENGTHS_S.index(due.lasts)) % 2
        part = self.gateway(due) if odd else self.worker(due)
        return part.link

    # ── processes ─────────────────────────────────────────────────────────────────────────────

    async def killed(self, part: Part, seconds: float) -> None:
        async with self._taken.setdefault(part.name, asyncio.Lock()):
            await asyncio.to_thread(part.kill)
            await asyncio.sleep(seconds)
            await asyncio.to_thread(part.start)

    async def drained_worker(self, due: Due, *, changes: bool = False) -> None:
        """Tells a worker to leave, and starts it again.

        One that `changes` comes back as the other version. The first worker never does: sessions that this
        version has made may want a worker of this version.
        """
        part = self.stage.parts[f"worker {WORKERS - 1}"] if changes else self.worker(due)
        async with self._taken.setdefault(part.name, asyncio.Lock()):
            took = await asyncio.to_thread(part.left, DRAIN_S)
            self.drained.append(took)
            if took is None:
                await asyncio.to_thread(part.kill)
            if changes and self.stage.earlier is not None:
                part.source = ROOT if part.source == self.stage.earlier else self.stage.earlier
                self.counts["workers set back" if part.source != ROOT else "workers upgraded"] += 1
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

    @contextlib.asynccontextmanager
    async def _restart(self) -> AsyncIterator[None]:
        """Holds off whoever else would restart a single server; with several, `_until_whole` does."""
        async with self._restarting if self.stage.servers.kind == "single" else contextlib.nullcontext():
            yield

    async def redis_frozen(self, due: Due) -> None:
        async with self._restart():
            await frozen((await self.server(due)).pid, min(due.lasts, SHORT_S))

    async def redis_killed(self, due: Due, *, forgets: bool = False) -> None:
        async with self._restart():
            server = await self.server(due)
            await asyncio.to_thread(server.kill)
            if forgets and (log := self.log()) is not None:
                early = [size for at, path, size in self.sizes if path == log and at <= now() - FORGOTTEN_S]
                if early:
                    os.truncate(log, min(early[-1], log.stat().st_size))
            await asyncio.sleep(min(due.lasts, SHORT_S))
            await asyncio.to_thread(server.start)

    async def primary_away(self, due: Due, how: str) -> None:
        """Takes a primary away until another one is there, and gives it back with what it has kept."""
        server = await self.server(due)
        if how == "killed":
            await asyncio.to_thread(server.kill)
        elif how == "frozen":
            os.kill(server.pid, signal.SIGSTOP)
        else:
            self.stage.servers.cut_off(server)
        try:
            await self._till_another_is_there(server)
            await asyncio.sleep(due.lasts / 4)
        finally:
            if how == "killed":
                await asyncio.to_thread(server.start)
            elif how == "frozen":
                os.kill(server.pid, signal.SIGCONT)
            else:
                self.stage.servers.heal()

    async def replica_killed(self, due: Due) -> None:
        server = await self.stage.servers.replica(due.target)
        await asyncio.to_thread(server.kill)
        await asyncio.sleep(due.lasts)
        await asyncio.to_thread(server.start)

    async def replica_cut_off(self, due: Due) -> None:
        self.stage.servers.cut_off(await self.stage.servers.replica(due.target))
        await asyncio.sleep(due.lasts)
        self.stage.servers.heal()

    async def sentinel_killed(self, due: Due) -> None:
        found = self.stage.servers.sentinels
        server = found[due.target % len(found)]
        await asyncio.to_thread(server.kill)
        await asyncio.sleep(due.lasts)
        await asyncio.to_thread(server.start)

    async def failover_asked(self, due: Due) -> None:
        before = await self.stage.servers.primaries()
        await self.stage.servers.take_over(due.target)
        await until_true(FAILOVER_S, lambda: self._is_replaced({server.name for server in before}))

    async def slot_moved(self, due: Due) -> None:
        """Moves the slot of a shard, with what runs in it."""
        shard = int(10 * due.at) % self.stage.running.opened.broker.config.shards
        keys = await self.stage.servers.move(key_slot(f"{{s{shard}}}".encode()))
        self.counts["keys that moved with their slot"] += keys

    def log(self) -> Path | None:
        """The file that Redis appends to now."""
        found = (self.stage.place.folder / "redis").rglob("*.aof")
        return max(found, key=lambda path: path.stat().st_mtime, default=None)

    async def says(self, due: Due, *words: str | int) -> Any:
        return await (await self.server(due)).says(*words)

    async def cut(self, due: Due) -> None:
        """Cuts all connections of clients, again and again."""
        until = now() + min(due.lasts, CUTS_S)
        words = "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"
        while True:
            await asyncio.gather(*(server.says(*words) for server in self.stage.servers.redis))
            if now() >= until:
                return
            await asyncio.sleep(CUTS_S / 5)

    async def out_of_memory(self, due: Due) -> None:
        server = await self.server(due)
        await server.says("CONFIG", "SET", "maxmemory", 1)
        await asyncio.sleep(min(due.lasts, SHORT_S))
        async with self._restart():
            await server.says("CONFIG", "SET", "maxmemory", 0)

    async def redis_disk_full(self, due: Due) -> None:
        async with self._restart():
            server = await self.server(due)
            await self.disk_full(server.name, due.lasts)
            if server.ended:
                # One that syncs each write ends where it cannot.
                self.counts["Redis ended with a full disk"] += 1
                await asyncio.to_thread(server.start)

    async def disk_full(self, name: str, seconds: float) -> None:
        """Leaves no room on a disk."""
        ballast = self.stage.disks[name] / f"ballast-{now()}"
        with ballast.open("wb") as file:
            room = os.statvfs(ballast)
            with contextlib.suppress(OSError):
                os.posix_fallocate(file.fileno(), 0, room.f_bavail * room.f_frsize)
        await asyncio.sleep(min(seconds, SHORT_S))
        ballast.unlink(missing_ok=True)

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

    async def disk_slow(self, due: Due) -> None:
        server = await self.server(due)
        with contextlib.suppress(OSError), slow(self.stage.disks[server.name], server.pid):
            await asyncio.sleep(min(due.lasts, SHORT_S))

    async def clock_set(self, due: Due) -> None:
        """Sets the time of day of a worker, and back."""
        part = self.worker(due)
        part.sets_clock(CLOCKS_S[due.lasts])
        await asyncio.sleep(max(due.lasts, 1.5))
        part.sets_clock(0.0)


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
    "worker's version changed": lambda it, due: it.drained_worker(due, changes=True),
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
    "redis sleeps": lambda it, due: it.says(due, "DEBUG", "SLEEP", str(min(due.lasts, SHORT_S))),
    "connections cut": lambda it, due: it.cut(due),
    "clients paused": lambda it, due: it.says(
        due, "CLIENT", "PAUSE", int(1000 * min(due.lasts, SHORT_S)), "ALL"
    ),
    "scripts forgotten": lambda it, due: it.says(due, "SCRIPT", "FLUSH"),
    "redis out of memory": lambda it, due: it.out_of_memory(due),
    "redis disk full": lambda it, due: it.redis_disk_full(due),
    "home disk full": lambda it, due: it.disk_full("home", due.lasts),
    "network slow": lambda it, due: it.network(due, slow_s=0.3),
    "network away": lambda it, due: it.network(due, ways=("up", "down")),
    "network away upwards": lambda it, due: it.network(due, ways=("up",)),
    "network away downwards": lambda it, due: it.network(due, ways=("down",)),
    "answers cut": lambda it, due: it.answers_cut(due),
    "provider refuses": lambda it, due: it.provider("429", due.lasts),
    "provider fails": lambda it, due: it.provider("500", due.lasts),
    "provider cut off": lambda it, due: it.provider("cut", due.lasts),
    "redis disk slow": lambda it, due: it.disk_slow(due),
    "worker's clock set": lambda it, due: it.clock_set(due),
    "primary killed": lambda it, due: it.primary_away(due, "killed"),
    "primary frozen": lambda it, due: it.primary_away(due, "frozen"),
    "primary cut off": lambda it, due: it.primary_away(due, "cut off"),
    "replica killed": lambda it, due: it.replica_killed(due),
    "replica cut off": lambda it, due: it.replica_cut_off(due),
    "failover asked": lambda it, due: it.failover_asked(due),
    "sentinel killed": lambda it, due: it.sentinel_killed(due),
    "slot moved": lambda it, due: it.slot_moved(due),
}
OF_SERVERS = frozenset((*SEVERAL, "sentinel killed", "slot moved", "redis killed", "redis frozen")) | {
    "redis sleeps",
    "redis out of memory",
    "redis disk full",
    "clients paused",
}
"""Faults of which several servers have one at a time, and are whole again behind each."""


def absent(disks: Mapping[str, Path]) -> dict[str, str]:
    """Faults that this machine does not permit."""
    missing = {} if "redis" in disks and may_be_slow(disks["redis"]) else {"redis disk slow": NO_RATE}
    found = {"redis", "home"} - {"home" if name == "home" else "redis" for name in disks}
    return missing | {f"{name} disk full": NO_MOUNT for name in sorted(found)}
