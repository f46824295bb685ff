"""The Redis of a chaos run, as users deploy it: one server, Sentinels over three of them, or a cluster.

A server has an address of its own on loopback, from which it also calls others, and a front: the address
that it tells, where a link knows who calls. So it can be cut off from the others, and not from clients.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import subprocess
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from threading import Thread
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

from bench.lab import Lab

TOPOLOGIES = ("single", "sentinel", "cluster")
CHUNK = 1 << 16
SERVICE, QUORUM, SENTINELS, REPLICAS, PRIMARIES = "main", 2, 3, 2, 3
PORT, BUS_PORT = 6379, 16379
DOWN_MS = {True: 2000, False: 8000}
"""After how long Sentinels take a primary for dead: as docs/operations.md says, or sooner under `wait`."""
NODE_TIMEOUT_MS = 3000
WHOLE_S = 120.0
"""Within which servers that run and reach each other are a deployment again."""
SLOTS = 16384
Place = Path | tuple[str, int]
_runs = itertools.count()


def now() -> float:
    """CLOCK_BOOTTIME, on which all ledgers are."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


async def until_true(patience_s: float, is_so: Callable[[], Awaitable[bool]]) -> bool:
    """Asks again and again; answers whether it came to be so within these seconds."""
    until = now() + patience_s
    while not (found := await is_so()) and now() < until:  # noqa: ASYNC110  servers tell nobody
        await asyncio.sleep(0.1)
    return found


@cache
def _network() -> asyncio.AbstractEventLoop:
    """The loop of all links, in a thread of its own: servers hear each other also while the driver waits."""
    loop = asyncio.new_event_loop()
    Thread(target=loop.run_forever, daemon=True).start()
    return loop


class Link:
    """The network between a process and others: TCP on loopback, late, cut or silent as it is told to be."""

    def __init__(self, *targets: Place, told: Mapping[int, int] | None = None) -> None:
        """`told`: ports that servers tell, each with the place of its target, to which we lead as well."""
        self._targets = targets
        self._told = told or {}
        self._ours: list[tuple[bytes, bytes]] = []
        self.delay_s = 0.0
        self.held: set[str] = set()
        """Ways on which nothing arrives: `up` to Redis, `down` from it."""
        self.apart: set[str] = set()
        """Hosts from which, and to which, nothing arrives."""
        self.eats_answers = False
        """Each connection ends when Redis has answered on it, before that arrives."""
        self.ports: list[int] = []

    @property
    def port(self) -> int:
        return self.ports[0]

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Link]:
        async with AsyncExitStack() as stack:
            for target in self._targets:
                listening = asyncio.start_server(self._serving(target), "127.0.0.1", 0)
                begun = asyncio.run_coroutine_threadsafe(listening, _network())
                server = await asyncio.wrap_future(begun)
                stack.callback(_network().call_soon_threadsafe, server.close)
                self.ports.append(server.sockets[0].getsockname()[1])
            for port, number in self._told.items():
                self._ours += _ways_of_telling(port, self.ports[number])
            yield self

    def _serving(self, target: Place) -> Any:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._serve(target, reader, writer)

        return serve

    async def _serve(self, target: Place, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host = writer.get_extra_info("peername")[0]
        try:
            if isinstance(target, Path):
                answers, redis = await asyncio.open_unix_connection(target)
            else:
                answers, redis = await asyncio.open_connection(*target)
        except OSError:
            writer.close()
            return
        ways = [
            asyncio.create_task(self._pump(reader, redis, "up", host)),
            asyncio.create_task(self._pump(answers, writer, "down", host)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            redis.close()
            writer.close()

    async def _pump(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, way: str, host: str
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(CHUNK):
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                while way in self.held or host in self.apart:  # noqa: ASYNC110  over within seconds
                    await asyncio.sleep(0.05)
                if way == "down":
                    if self.eats_answers:
                        return
                    for theirs, ours in self._ours:
                        data = data.replace(theirs, ours)
                sink.write(data)
                await sink.drain()


def _ways_of_telling(port: int, ours: int) -> list[tuple[bytes, bytes]]:
    """How a Sentinel, `CLUSTER SLOTS` and a redirection name a port, in front of ours in the same way.

    All ports that the kernel chooses have five digits, so no length changes.
    """
    words = "\r\n127.0.0.1\r\n$5\r\n{}\r\n", "\r\n127.0.0.1\r\n:{}\r\n", " 127.0.0.1:{}\r\n"
    return [(form.format(port).encode(), form.format(ours).encode()) for form in words]


@dataclass
class Server:
    """A process of Redis: a server or a Sentinel. Its data survives."""

    name: str
    argv: list[str]
    at: Place
    fronts: tuple[Link, ...] = ()
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts it and returns when it serves or listens."""
        if isinstance(self.at, Path):
            self.at.unlink(missing_ok=True)
        self.process = subprocess.Popen(self.argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        while isinstance(self.at, Path) and not self.at.exists():
            if self.process.poll() is not None:
                raise RuntimeError(f"{self.name} ended with {self.process.returncode}")
            time.sleep(0.01)

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def ended(self) -> bool:
        return self.process is None or self.process.poll() is not None

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    @property
    def host(self) -> str:
        return self.at[0] if isinstance(self.at, tuple) else ""

    async def says(self, *words: str | int, patience_s: float = 10.0) -> Any:
        """Its answer, or None: it refuses, or does not answer within seconds."""
        where: Any = (
            {"unix_socket_path": str(self.at)}
            if isinstance(self.at, Path)
            else {"host": self.at[0], "port": self.at[1], "socket_connect_timeout": patience_s}
        )
        client: Any = Redis(socket_timeout=patience_s, **where)
        try:
            return await client.execute_command(*words)
        except (RedisError, OSError, RuntimeError):
            # The last is uvloop's word for a transport that closed under the client.
            return None
        finally:
            await client.aclose()


@dataclass
class Servers:
    """All servers of a deployment, and who of them is a primary."""

    kind: str
    waits: bool
    """Whether `effects = "wait"`."""
    redis: list[Server] = field(default_factory=list)
    sentinels: list[Server] = field(default_factory=list)
    queue: list[Server] = field(default_factory=list)
    """The single server of upkeep's queue, where Redis is a cluster."""

    @property
    def everyone(self) -> Iterable[Server]:
        return (*self.redis, *self.sentinels, *self.queue)

    def settings(self) -> list[str]:
        """Overrides for a process that reaches the servers directly."""
        return self._settings({server.name: server.at for server in self.everyone})

    def link(self) -> Link:
        """The network of a process of the product."""
        told = {server.fronts[0].port: number for number, server in enumerate(self.redis) if server.fronts}
        return Link(*(s.at for s in (*self.redis, *self.sentinels, *self.queue)), told=told)

    def environ(self, link: Link) -> dict[str, str]:
        """Variables for a process that reaches the servers by a link."""
        ours = zip(self.everyone, link.ports, strict=True)
        said = self._settings({server.name: ("127.0.0.1", port) for server, port in ours})
        named = (line.partition("=") for line in said)
        return {f"DENDRO_{name.replace('.', '_').upper()}": value for name, _, value in named}

    def _settings(self, at: Mapping[str, Place]) -> list[str]:
        """Settings of a process that reaches the servers at these places."""
        first = _url(at[self.redis[0].name])
        if self.kind == "single":
            return [f"redis.url={first}"]
        effects = f"effects={'wait' if self.waits else 'none'}"
        if self.kind == "sentinel":
            hosts = ",".join(_url(at[one.name]).removeprefix("redis://") for one in self.sentinels)
            # All of them: Sentinels may promote one that has read less than another.
            confirming = f"redis.wait_replicas={REPLICAS}"
            return [f"redis.url=redis+sentinel://{hosts}/{SERVICE}/0", effects, confirming]
        queue = _url(at[self.queue[0].name])
        return [f"redis.url={first}", "redis.cluster=true", f"upkeep.url={queue}", effects]

    # ── roles ─────────────────────────────────────────────────────────────────────────────────

    async def primaries(self) -> list[Server]:
        """The servers that serve, as the deployment has agreed."""
        if self.kind == "single":
            return self.redis
        fronts = await (self._named() if self.kind == "sentinel" else self._with_slots())
        return [server for server in self.redis if server.fronts[0].port in fronts]

    async def _named(self) -> set[int]:
        words = "SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE
        said = await asyncio.gather(*(one.says(*words, patience_s=1.0) for one in self.sentinels))
        return {int(one[1]) for one in said if one}

    async def _with_slots(self) -> set[int]:
        """Ports of those that have slots, as most nodes say."""
        said = await asyncio.gather(*(one.says("CLUSTER", "SLOTS", patience_s=1.0) for one in self.redis))
        views = Counter(frozenset(int(row[2][1]) for row in one) for one in said if one)
        return set(views.most_common(1)[0][0]) if views else set()

    async def primary(self, number: int) -> Server:
        """A primary, awaited while there is none."""
        found: list[Server] = []

        async def are_there() -> bool:
            found[:] = await self.primaries()
            return bool(found)

        await until_true(WHOLE_S, are_there)
        return found[number % len(found)]

    async def replica(self, number: int) -> Server:
        """A server that is no primary."""
        primaries = await self.primaries()
        found = [server for server in self.redis if server not in primaries]
        return found[number % len(found)]

    async def whole(self) -> None:
        """Returns when all serve, agree, and every replica follows its primary."""
        if not await until_true(WHOLE_S, self._is_whole):
            raise RuntimeError(f"the servers are not whole again within {WHOLE_S:.0f} s")

    async def _is_whole(self) -> bool:
        if self.kind == "single":
            return True
        ask = (server.says("ROLE", patience_s=1.0) for server in self.redis)
        roles = dict(zip((id(server) for server in self.redis), await asyncio.gather(*ask), strict=True))
        primaries = await self.primaries()
        wanted = 1 if self.kind == "sentinel" else PRIMARIES
        if len(primaries) != wanted or not all(roles.values()):
            return False
        fronts = {server.fronts[0].port for server in primaries}
        for server in self.redis:
            role = roles[id(server)]
            if (role[0] == b"master") != (server in primaries):
                return False
            if role[0] == b"slave" and (role[3] != b"connected" or int(role[2]) not in fronts):
                return False
        if self.kind == "cluster":
            said = await asyncio.gather(*(one.says("CLUSTER", "INFO", patience_s=1.0) for one in self.redis))
            return all(one and b"cluster_state:ok" in _raw(one) for one in said)
        return all(len(roles[id(server)][2]) == REPLICAS for server in primaries)

    # ── faults that only several servers have ─────────────────────────────────────────────────

    def cut_off(self, server: Server) -> None:
        """From now on nothing passes between it and the other servers; clients reach all."""
        others = {one.host for one in self.everyone if one is not server}
        for front in server.fronts:
            front.apart |= others
        for one in self.redis:
            if one is not server:
                for front in one.fronts:
                    front.apart.add(server.host)

    def heal(self) -> None:
        for one in self.redis:
            for front in one.fronts:
                front.apart.clear()

    async def take_over(self, number: int) -> None:
        """Asks for a failover, with all alive."""
        if self.kind == "sentinel":
            await self.sentinels[number % SENTINELS].says("SENTINEL", "FAILOVER", SERVICE)
        else:
            await (await self.replica(number)).says("CLUSTER", "FAILOVER")

    async def move(self, slot: int) -> int:
        """Moves a slot with all its keys to the next primary, as `redis-cli --cluster reshard` does."""
        rows = await self.redis[0].says("CLUSTER", "SLOTS")
        primaries = await self.primaries()
        port = next((row[2][1] for row in rows or () if row[0] <= slot <= row[1]), 0)
        source = next((server for server in primaries if server.fronts[0].port == port), None)
        if source is None or len(primaries) < 2:
            return 0
        target = primaries[(primaries.index(source) + 1) % len(primaries)]
        told = {one.name: await one.says("CLUSTER", "MYID") for one in (source, target)}
        if None in told.values():
            # Its connection was cut: the slot stays.
            return 0
        ids = {name: _raw(id).decode() for name, id in told.items()}
        await target.says("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[source.name])
        await source.says("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[target.name])
        moved, until = 0, now() + WHOLE_S
        while (keys := await source.says("CLUSTER", "GETKEYSINSLOT", slot, 20)) and now() < until:
            words = "MIGRATE", target.host, PORT, "", 0, 5000, "KEYS"
            if await source.says(*words, *(_raw(key) for key in keys)) is None:
                # Its connection was cut, or the other one cannot take them now.
                await asyncio.sleep(0.2)
            else:
                moved += len(keys)
        for one in (target, source, *(other for other in primaries if other not in (source, target))):
            await one.says("CLUSTER", "SETSLOT", slot, "NODE", ids[target.name])
        return moved


def _url(place: Place) -> str:
    return f"unix://{place}" if isinstance(place, Path) else f"redis://{place[0]}:{place[1]}"


def _raw(said: Any) -> Any:
    """An answer that the library has taken apart, or not."""
    if isinstance(said, dict):
        return "\n".join(f"{name}:{value}" for name, value in said.items()).encode()
    return said if isinstance(said, bytes | type(None)) else str(said).encode()


# ── starting them ─────────────────────────────────────────────────────────────────────────────────


def folders(kind: str) -> list[str]:
    """Folders of the lab in which servers keep their data."""
    return ["redis"] if kind == "single" else [f"redis{n}" for n in range(3 if kind == "sentinel" else 6)]


@asynccontextmanager
async def served(place: Lab, kind: str, *, always: bool, waits: bool) -> AsyncIterator[Servers]:
    """The servers of a deployment, which serve; stopped at the end."""
    servers = Servers(kind, waits)
    run = os.getpid() * 8 + next(_runs) % 8
    base = f"127.{1 + run // 250 % 250}.{1 + run % 250}."
    durable = ["--save", "", "--appendonly", "yes", "--appendfsync", "always" if always else "everysec"]
    common = [*durable, "--enable-debug-command", "local"]
    async with AsyncExitStack() as stack:
        if kind == "single":
            servers.redis.append(_single(place, common))
        for number, name in enumerate(folders(kind) if kind != "single" else ()):
            servers.redis.append(await _one_of(stack, place, kind, name, base + str(number + 1), common))
        if kind == "sentinel":
            servers.sentinels += [_sentinel(place, servers, base, n) for n in range(SENTINELS)]
        if kind == "cluster":
            servers.queue.append(_queue(place, base))
        try:
            for server in servers.everyone:
                await asyncio.to_thread(server.start)
            await _joined(servers)
            yield servers
        finally:
            for server in servers.everyone:
                await asyncio.to_thread(server.kill)


def _single(place: Lab, common: list[str]) -> Server:
    socket = place.folder / "s"
    where = ["--port", "0", "--unixsocket", str(socket), "--dir", str(place.folder / "redis")]
    return Server("redis", [str(place.server.path), *where, *common], socket)


async def _one_of(
    stack: AsyncExitStack, place: Lab, kind: str, name: str, host: str, common: list[str]
) -> Server:
    (place.folder / name).mkdir(exist_ok=True)
    front = await stack.enter_async_context(Link((host, PORT)).open())
    log = str(place.folder / f"{name}.log")
    where = ["--bind", host, "--bind-source-addr", host, "--port", str(PORT), "--logfile", log]
    prompt = ["--dir", str(place.folder / name), "--repl-diskless-sync-delay", "0", "--repl-timeout", "10"]
    fronts, said = [front], list[str]()
    if kind == "cluster":
        bus = await stack.enter_async_context(Link((host, BUS_PORT)).open())
        fronts.append(bus)
        said = [
            *("--cluster-enabled", "yes", "--cluster-node-timeout", str(NODE_TIMEOUT_MS)),
            *("--cluster-port", str(BUS_PORT), "--cluster-announce-ip", "127.0.0.1"),
            *("--cluster-announce-port", str(front.port), "--cluster-announce-bus-port", str(bus.port)),
        ]
    else:
        said = ["--replica-announce-ip", "127.0.0.1", "--replica-announce-port", str(front.port)]
        said += ["--min-replicas-to-write", "1", "--min-replicas-max-lag", "2"]
    argv = [str(place.server.path), *where, *prompt, *common, *said]
    return Server(name, argv, (host, PORT), tuple(fronts))


def _sentinel(place: Lab, servers: Servers, base: str, number: int) -> Server:
    folder, host = place.folder / f"sentinel{number}", f"{base}{number + 21}"
    folder.mkdir()
    # It writes into its configuration what it learns, so it needs a file.
    file = folder / "sentinel.conf"
    lines = [
        *(f"bind {host}", f"bind-source-addr {host}", "port 26379", f"dir {folder}"),
        *(f'logfile "{place.folder / folder.name}.log"', "protected-mode no"),
        f"sentinel monitor {SERVICE} 127.0.0.1 {servers.redis[0].fronts[0].port} {QUORUM}",
        f"sentinel down-after-milliseconds {SERVICE} {DOWN_MS[servers.waits]}",
        f"sentinel failover-timeout {SERVICE} 6000",
        f"sentinel parallel-syncs {SERVICE} {REPLICAS}",
    ]
    file.write_text("\n".join(lines) + "\n")
    return Server(folder.name, [str(place.server.path), str(file), "--sentinel"], (host, 26379))


def _queue(place: Lab, base: str) -> Server:
    (place.folder / "queue").mkdir()
    host = f"{base}31"
    where = ["--bind", host, "--port", str(PORT), "--dir", str(place.folder / "queue"), "--save", ""]
    return Server("queue", [str(place.server.path), *where], (host, PORT))


async def _joined(servers: Servers) -> None:
    """Makes a deployment of servers that have just been started."""
    if servers.kind == "single":
        return
    for server in servers.everyone:
        while await server.says("PING", patience_s=1.0) is None:
            if server.ended:
                raise RuntimeError(f"{server.name} ended")
            await asyncio.sleep(0.05)
    if servers.kind == "sentinel":
        for replica in servers.redis[1:]:
            await replica.says("REPLICAOF", "127.0.0.1", servers.redis[0].fronts[0].port)
    else:
        await _clustered(servers.redis)
    await servers.whole()
    if servers.kind == "sentinel" and not await until_true(WHOLE_S, lambda: _known(servers)):
        raise RuntimeError("the Sentinels do not find each other, or the primary not its replicas")


async def _known(servers: Servers) -> bool:
    """Whether every Sentinel knows the others and the replicas."""
    for one in servers.sentinels:
        said = await one.says("SENTINEL", "MASTER", SERVICE) or []
        about = dict(zip(said[::2], said[1::2], strict=True))
        known = int(about.get(b"num-other-sentinels", 0)), int(about.get(b"num-slaves", 0))
        if known != (SENTINELS - 1, REPLICAS):
            return False
    # A command that writes is refused while too few replicas have answered, as they do each second.
    for _ in range(3):
        if await servers.redis[0].says("DEL", "ready") is None:
            return False
        await asyncio.sleep(1.1)
    return True


async def _clustered(nodes: Sequence[Server]) -> None:
    for number, node in enumerate(nodes):
        await node.says("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        if number < PRIMARIES:
            first, after = (SLOTS * (number + more) // PRIMARIES for more in (0, 1))
            await node.says("CLUSTER", "ADDSLOTSRANGE", first, after - 1)
    for node in nodes[1:]:
        front, bus = node.fronts
        await nodes[0].says("CLUSTER", "MEET", "127.0.0.1", front.port, bus.port)
    ids = [_raw(await node.says("CLUSTER", "MYID")).decode() for node in nodes]
    for number, node in enumerate(nodes[PRIMARIES:]):
        until = now() + WHOLE_S
        while await node.says("CLUSTER", "REPLICATE", ids[number]) is None:
            if now() > until:
                raise RuntimeError(f"{node.name} knows no node {ids[number]}")
            await asyncio.sleep(0.1)
