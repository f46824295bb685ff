"""The stage of a chaos run: one server, workers, upkeep and gateways, each behind a network of its own.

Everything lives in the folder of a lab, listens on loopback alone, and is stopped at the end. What the
machine does not permit is in `absent`, with the reason.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench.lab import PATH, Fleet, Lab
from proof.chaos_script import LEDGER, PROGRAM, SERVER, SERVER_SOURCE, SOURCE

ROOT = Path(__file__).resolve().parents[1]
WORKERS, GATEWAYS = 2, 2
DISK_MIB = {"redis": 768, "home": 256}
CHUNK = 1 << 16
REFUSED = 2
"""The exit code of a start that said why it cannot be."""
NO_MOUNT = "needs the right to mount a small file system"


def now() -> float:
    """CLOCK_BOOTTIME, on which all ledgers are."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Link:
    """The network between one process and Redis: TCP on loopback, late, cut or silent as it is told to be."""

    def __init__(self, target: Path) -> None:
        self._target = target
        self.delay_s = 0.0
        self.held: set[str] = set()
        """Ways on which nothing arrives: `up` to Redis, `down` from it."""
        self.eats_answers = False
        """Each connection ends when Redis has answered on it, before that arrives."""
        self.port = 0

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Link]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            answers, redis = await asyncio.open_unix_connection(self._target)
        except OSError:
            writer.close()
            return
        ways = [
            asyncio.create_task(self._pump(reader, redis, "up")),
            asyncio.create_task(self._pump(answers, writer, "down")),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            redis.close()
            writer.close()

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, way: str) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(CHUNK):
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                while way in self.held:  # noqa: ASYNC110  many wait, and it is over within seconds
                    await asyncio.sleep(0.05)
                if way == "down" and self.eats_answers:
                    return
                sink.write(data)
                await sink.drain()


@dataclass
class Part:
    """A process of the product, which is started again whenever it was killed."""

    name: str
    argv: list[str]
    environ: Mapping[str, str]
    cwd: Path
    log: Path
    link: Link
    process: subprocess.Popen[bytes] | None = None
    addresses: list[str] = field(default_factory=list)
    """Those that a gateway listens on."""
    wanted: bool = True
    """Whether it is to be there: while a fault has taken it, it is not."""
    told_before: int = 0
    """Bytes of its log from before it was started last."""

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.told_before = log.tell()
            self.process = subprocess.Popen(
                self.argv, env=self.environ, cwd=self.cwd, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        self.wanted = True

    @property
    def has_served(self) -> bool:
        """Whether it has said so since it was started last."""
        told = self.log.read_bytes()[self.told_before :]
        return b"listening on" in told or b"serving" in told

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kills it; it is not missed until it is started again."""
        assert self.process is not None
        self.wanted = False
        self.process.kill()
        self.process.wait()

    def left(self, patience_s: float) -> float | None:
        """Tells it to leave; seconds until it did, or None."""
        assert self.process is not None
        self.wanted, began = False, now()
        self.signal(signal.SIGTERM)
        try:
            self.process.wait(patience_s)
        except subprocess.TimeoutExpired:
            return None
        return now() - began


@dataclass
class Stage:
    """The deployment."""

    running: Fleet
    always: bool
    """Whether Redis syncs each write: a killed one forgets nothing then."""
    redis: subprocess.Popen[bytes]
    parts: dict[str, Part] = field(default_factory=dict)
    disks: dict[str, Path] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    """Faults that the machine does not permit, each with the reason."""
    died: list[str] = field(default_factory=list)
    """Processes that ended by themselves."""
    refused: int = 0
    """Starts that ended with word of what Redis lacks, as those of a service may: it is started again."""

    @property
    def place(self) -> Lab:
        return self.running.lab

    def start_redis(self) -> None:
        self.redis = start_redis(self.place, always=self.always)

    def watch(self) -> None:
        """Notes what ended by itself, and starts it again."""
        for part in self.parts.values():
            code = part.process.poll() if part.process is not None else None
            if not part.wanted or code is None:
                continue
            if code == REFUSED and not part.has_served:
                self.refused += 1
            else:
                self.died.append(f"{part.name} ended by itself with {code}")
            part.start()


def start_redis(place: Lab, *, always: bool) -> subprocess.Popen[bytes]:
    """Redis with an append-only file, which may be told to sleep."""
    socket = place.folder / "s"
    socket.unlink(missing_ok=True)
    where = ["--port", "0", "--unixsocket", str(socket), "--dir", str(place.folder / "redis"), "--save", ""]
    durable = ["--appendonly", "yes", "--appendfsync", "always" if always else "everysec"]
    process = subprocess.Popen(
        [place.server.path, *where, *durable, "--enable-debug-command", "local"], stdout=subprocess.DEVNULL
    )
    while not socket.exists():
        if process.poll() is not None:
            raise RuntimeError(f"{place.server.path} ended with {process.returncode}")
        time.sleep(0.01)
    return process


@contextmanager
def disks(place: Lab) -> Iterator[dict[str, Path]]:
    """Small file systems for Redis's log and for the home folder; none where nobody may mount them."""
    mounted: dict[str, Path] = {}
    try:
        for name, mib in DISK_MIB.items():
            folder = place.folder / name
            words = ["mount", "-t", "tmpfs", "-o", f"size={mib}m,mode=700", "dendro-chaos", str(folder)]
            if subprocess.run(words, check=False, capture_output=True, env={"PATH": PATH}).returncode == 0:
                mounted[name] = folder
        yield mounted
    finally:
        for folder in mounted.values():
            subprocess.run(["umount", "-l", str(folder)], check=False, env={"PATH": PATH})


def prepare(running: Fleet) -> None:
    """Writes the files that commands and the MCP server need."""
    place = running.lab
    (place.workspace / PROGRAM).write_text(SOURCE)
    server = place.folder / SERVER
    server.write_text(SERVER_SOURCE)
    home = running.settings.home
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    arguments = json.dumps(["-I", str(server), str(place.workspace / LEDGER)])
    table = f"[mcp_servers.ledger]\ncommand = {json.dumps(sys.executable)}\nargs = {arguments}\n"
    (home / "dendro.toml").write_text(table)


def earlier(place: Lab, revision: str) -> Path | None:
    """The product as it was at a revision; None where git has none of that name."""
    folder = place.folder / "earlier"
    folder.mkdir()
    packed = subprocess.run(
        ["git", "-C", str(ROOT), "archive", revision, "orchestrator", "workers"],
        check=False,
        capture_output=True,
    )
    if packed.returncode:
        return None
    subprocess.run(["tar", "-x", "-C", str(folder)], input=packed.stdout, check=True)
    return folder


@asynccontextmanager
async def staged(running: Fleet, *, always: bool, revision: str, concurrency: int) -> AsyncIterator[Stage]:
    """A deployment that serves: its last worker is of an earlier `revision`, if there is one."""
    place = running.lab
    stage = Stage(running, always, place.redis)
    old = earlier(place, revision) if revision else None
    if old is None:
        stage.absent["a worker of an earlier version"] = f"git knows no revision {revision!r} here"
    serve = ["serve", "--listen", "ws://127.0.0.1:0"]
    words = {f"worker {n}": ["worker", "--concurrency", str(concurrency)] for n in range(WORKERS)}
    words |= {"upkeep": ["upkeep"]} | {f"gateway {n}": serve for n in range(GATEWAYS)}
    async with contextlib.AsyncExitStack() as stack:
        for name, said in words.items():
            link = await stack.enter_async_context(Link(place.folder / "s").open())
            source = old if old is not None and name == f"worker {WORKERS - 1}" else ROOT
            stage.parts[name] = _part(running, name, said, link, source)
        try:
            for part in stage.parts.values():
                part.start()
            yield stage
        finally:
            await asyncio.to_thread(_end, stage)


def _part(running: Fleet, name: str, words: list[str], link: Link, source: Path) -> Part:
    place = running.lab
    environ = place.environ(
        OPENAI_BASE_URL=running.base_url,
        PYTHONPATH=str(source),
        DENDRO_REDIS_URL=f"redis://127.0.0.1:{link.port}",
        DENDRO_DEBUG="1",
    )
    argv = [sys.executable, "-P", "-m", "orchestrator.cli.main", *words]
    log = place.folder / f"{name.replace(' ', '-')}.log"
    return Part(name, argv, environ, place.workspace, log, link)


def _end(stage: Stage) -> None:
    for part in stage.parts.values():
        if part.process is not None:
            part.signal(signal.SIGCONT)
            if part.left(20.0) is None:
                stage.died.append(f"{part.name} did not leave within 20 s")
                part.kill()
    if keep := os.environ.get("CHAOS_LOGS"):
        for part in stage.parts.values():
            shutil.copy(part.log, keep)
