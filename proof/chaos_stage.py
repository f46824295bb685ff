"""The stage of a chaos run: servers, workers, upkeep and gateways, each behind a network of its own.

Everything lives in the folder of a lab, listens on loopback alone, and is stopped at the end. What the
machine does not permit is in `absent`, with the reason.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import struct
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench.lab import PATH, Fleet, Lab
from proof.chaos_script import LEDGER, PROGRAM, SERVER, SERVER_SOURCE, SOURCE
from proof.chaos_servers import Link, Servers, folders, now

ROOT = Path(__file__).resolve().parents[1]
WORKERS, GATEWAYS = 2, 2
DISK_MIB = {"single": 768, "sentinel": 512, "cluster": 256}
HOME_MIB = 256
SEAL_AFTER = 256
"""Entries that upkeep moves into the archive at once: few, so that runs have sealed logs."""
CLOCK = "clock"
"""The folder of a module by which a process has a clock that may be set, and of files that say by what."""
CLOCK_SOURCE = '''"""Sets the time of day of this process by the seconds that a file says; no other clock."""
import mmap, os, struct, time

with open(os.environ["CHAOS_CLOCK"], "rb") as _file:
    _set = mmap.mmap(_file.fileno(), 8, access=mmap.ACCESS_READ)
_time, _time_ns = time.time, time.time_ns
time.time = lambda: _time() + struct.unpack("d", _set)[0]
time.time_ns = lambda: _time_ns() + int(1e9 * struct.unpack("d", _set)[0])
'''
REFUSED = 2
"""The exit code of a start that said why it cannot be."""
NO_MOUNT = "needs the right to mount a small file system"
NO_RATE = "needs a server whose disk is a device of its own, and control groups of version 1 with blkio"


@dataclass
class Part:
    """A process of the product, which is started again whenever it was killed."""

    name: str
    argv: list[str]
    environ: dict[str, str]
    cwd: Path
    log: Path
    link: Link
    clock: Path
    source: Path
    process: subprocess.Popen[bytes] | None = None
    addresses: list[str] = field(default_factory=list)
    """Those that a gateway listens on."""
    wanted: bool = True
    """Whether it is to be there: while a fault has taken it, it is not."""
    told_before: int = 0
    """Bytes of its log from before it was started last."""

    def sets_clock(self, by_s: float) -> None:
        """Sets its time of day; 0 is the true one."""
        # In place: who looks meanwhile has mapped the file.
        with self.clock.open("r+b" if self.clock.exists() else "wb") as file:
            file.write(struct.pack("d", by_s))

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.told_before = log.tell()
            environ = {**self.environ, "PYTHONPATH": f"{self.clock.parent}:{self.source}"}
            self.process = subprocess.Popen(
                self.argv, env=environ, cwd=self.cwd, stdin=subprocess.DEVNULL, stdout=log, stderr=log
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
    servers: Servers
    always: bool
    """Whether Redis syncs each write: a killed one forgets nothing then."""
    parts: dict[str, Part] = field(default_factory=dict)
    disks: dict[str, Path] = field(default_factory=dict)
    earlier: Path | None = None
    """The product as it was, if git knows that."""
    absent: dict[str, str] = field(default_factory=dict)
    """Faults that the machine does not permit, each with the reason."""
    died: list[str] = field(default_factory=list)
    """Processes that ended by themselves."""
    refused: int = 0
    """Starts that ended with word of what Redis lacks, as those of a service may: it is started again."""

    @property
    def place(self) -> Lab:
        return self.running.lab

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


@contextmanager
def disks(place: Lab, topology: str) -> Iterator[dict[str, Path]]:
    """Small file systems for each server's log and for the home folder; none where nobody may mount them.

    That of a single server is on a device of its own, if the machine permits one, for it can be slow.
    """
    mounted: dict[str, Path] = {}
    sizes = {"home": HOME_MIB, **dict.fromkeys(folders(topology), DISK_MIB[topology])}
    try:
        for name, mib in sizes.items():
            folder = place.folder / name
            folder.mkdir(exist_ok=True)
            memory = "mount", "-t", "tmpfs", "-o", f"size={mib}m,mode=700", "dendro-chaos", str(folder)
            if (name == "redis" and _has_device(folder, mib)) or _runs(*memory):
                mounted[name] = folder
        yield mounted
    finally:
        for folder in mounted.values():
            _runs("umount", "-l", str(folder))


def _runs(*words: str) -> bool:
    """Whether a command of the system is there and ends well."""
    try:
        return subprocess.run(words, check=False, capture_output=True, env={"PATH": PATH}).returncode == 0
    except FileNotFoundError:
        return False


def _has_device(folder: Path, mib: int) -> bool:
    """Whether a file could be mounted there as a device."""
    image = folder.with_suffix(".img")
    with image.open("wb") as file:
        file.truncate(mib << 20)
    made = _runs("mkfs.ext4", "-q", "-F", "-O", "^has_journal", str(image))
    return made and _runs("mount", "-o", "loop", str(image), str(folder))


BLKIO = Path("/sys/fs/cgroup/blkio")
SLOW_BPS = 200_000


@contextmanager
def slow(disk: Path, pid: int) -> Iterator[None]:
    """A disk that takes few bytes a second of a process. Raises OSError where the machine forbids it.

    By the first version of control groups, of which a process may be a member beside any other's.
    """
    number = disk.stat().st_dev
    group = BLKIO / f"dendro-chaos-{pid}"
    group.mkdir()
    try:
        limit = f"{os.major(number)}:{os.minor(number)} {SLOW_BPS}"
        (group / "blkio.throttle.write_bps_device").write_text(limit)
        (group / "cgroup.procs").write_text(str(pid))
        yield
    finally:
        with contextlib.suppress(OSError):
            (BLKIO / "cgroup.procs").write_text(str(pid))
        group.rmdir()


def may_be_slow(disk: Path) -> bool:
    """Whether the machine permits a slow disk there."""
    own = subprocess.Popen(["sleep", "60"])
    try:
        with slow(disk, own.pid):
            return True
    except OSError:
        return False
    finally:
        own.kill()
        own.wait()


def prepare(running: Fleet) -> None:
    """Writes the files that commands and the MCP server need."""
    place = running.lab
    (place.workspace / PROGRAM).write_text(SOURCE)
    (place.folder / CLOCK).mkdir()
    (place.folder / CLOCK / "sitecustomize.py").write_text(CLOCK_SOURCE)
    serve_ledger(running, place.workspace / LEDGER)


def serve_ledger(running: Fleet, ledger: Path) -> None:
    """Gives workers that are hired from now on an MCP server, which writes into that file."""
    server = running.lab.folder / SERVER
    server.write_text(SERVER_SOURCE)
    home = running.settings.home
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    arguments = json.dumps(["-I", str(server), str(ledger)])
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
async def staged(
    running: Fleet, servers: Servers, *, always: bool, revision: str, concurrency: int
) -> AsyncIterator[Stage]:
    """A deployment that serves: its last worker is of an earlier `revision`, if there is one."""
    place = running.lab
    stage = Stage(running, servers, always)
    old = earlier(place, revision) if revision else None
    stage.earlier = old
    if old is None:
        why = f"git knows no revision {revision!r} here" if revision else "no revision was named"
        stage.absent |= dict.fromkeys(("a worker of an earlier version", "worker's version changed"), why)
    serve = ["serve", "--listen", "ws://127.0.0.1:0"]
    words = {f"worker {n}": ["worker", "--concurrency", str(concurrency)] for n in range(WORKERS)}
    words |= {"upkeep": ["upkeep"]} | {f"gateway {n}": serve for n in range(GATEWAYS)}
    async with contextlib.AsyncExitStack() as stack:
        for name, said in words.items():
            link = await stack.enter_async_context(servers.link().open())
            source = old if old is not None and name == f"worker {WORKERS - 1}" else ROOT
            stage.parts[name] = _part(stage, name, said, link, source)
        try:
            for part in stage.parts.values():
                part.start()
            yield stage
        finally:
            await asyncio.to_thread(_end, stage)


def _part(stage: Stage, name: str, words: list[str], link: Link, source: Path) -> Part:
    place, clock = stage.place, stage.place.folder / CLOCK
    file = name.replace(" ", "-")
    environ = place.environ(
        OPENAI_BASE_URL=stage.running.base_url,
        CHAOS_CLOCK=str(clock / file),
        DENDRO_UPKEEP_SEAL_AFTER=str(SEAL_AFTER),
        DENDRO_DEBUG="1",
    )
    environ |= stage.servers.environ(link)
    argv = [sys.executable, "-P", "-m", "orchestrator.cli.main", *words]
    part = Part(
        name, argv, environ, place.workspace, place.folder / f"{file}.log", link, clock / file, source
    )
    part.sets_clock(0.0)
    return part


def _end(stage: Stage) -> None:
    for part in stage.parts.values():
        if part.process is not None:
            part.signal(signal.SIGCONT)
            if part.left(20.0) is None:
                stage.died.append(f"{part.name} did not leave within 20 s")
                part.kill()
