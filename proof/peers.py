"""`python -m proof.peers`: the same work for Dendro and for what a user would take instead, in turns.

Each peer lives in `peers/NAME`: the versions that are installed for it, into an environment of its own below
`.peers`, and an adapter that this harness starts as a process and orders about (`peers.wire`). All of them
ask one model stub. A peer that cannot be had, or fails, stands on the page with the reason. Everything that
was started is ended, whoever started it, and the folders are removed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import hashlib
import itertools
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import orjson

from bench import broker
from bench.accounts import cpu_of, resident_mib
from bench.lab import PATH, lab
from bench.machine import conditions
from peers.jobs import STARTS
from proof import peers_script as script
from proof.peers_page import LEFT_OUT, page

ROOT = Path(__file__).resolve().parents[1]
PLACE = ROOT / ".peers"
BESIDE = "/var/tmp"
"""Peers live below it: Codex finds its own sandbox from no home that is below /tmp."""
PATIENCE_S, START_S, END_S, INSTALL_S = 60.0, 90.0, 10.0, 180.0
WARM, AT_ONCE = 3, 16
DENDRO, CLAIMED = "Dendro: submitted, claimed", "submit → claimed, idle"
"""The row of dispatch that is Dendro's, and its name in `bench.broker`."""
GLANCE_S = 0.01
MOST_LINE = 1 << 24
_SUBREAPER = 36
"""PR_SET_CHILD_SUBREAPER of prctl(2)."""


@dataclass(frozen=True, slots=True)
class Contender:
    """A row of the page: the folder of its adapter, and the variant that is asked of it."""

    name: str
    folder: str
    variant: str = ""


CONTENDERS = (
    Contender("bare loop", "bare"),
    Contender("openai-agents, SQLite", "openai_agents"),
    Contender("langgraph, SQLite", "langgraph", "sqlite"),
    Contender("langgraph, PostgreSQL", "langgraph", "postgres"),
    Contender("dbos, SQLite", "dbos", "sqlite"),
    Contender("dbos, PostgreSQL", "dbos", "postgres"),
    Contender("restate", "restate"),
    Contender("codex app-server, unconfined", "codex", "unconfined"),
    Contender("codex app-server, confined", "codex", "confined"),
    Contender("Dendro, unconfined", "dendro", "unconfined"),
    Contender("Dendro, confined", "dendro", "confined"),
)


QUEUES = ("arq", "taskiq", "dramatiq", "streaq", "celery")
"""Peers that dispatch jobs, and do nothing else."""


@dataclass(frozen=True, slots=True)
class Size:
    """The amount of work of a run."""

    rounds: int
    turns: int
    crowd: int
    idle: int
    fills: int
    calls: int
    """Of each turn that fills a long conversation."""
    jobs: int
    """Enqueued together; a tenth of them one by one."""
    patience_s: float
    """For a job to begin again whose worker was killed."""


FULL = Size(rounds=3, turns=20, crowd=50, idle=400, fills=15, calls=50, jobs=1_000, patience_s=75.0)
QUICK = Size(rounds=1, turns=5, crowd=20, idle=50, fills=3, calls=20, jobs=100, patience_s=15.0)


class Absent(Exception):
    """A peer cannot be had here, or failed at its work; the message is the reason."""


# ── environments ──────────────────────────────────────────────────────────────────────────────────


def python_of(name: str) -> Path:
    """The interpreter of a peer's environment, which is installed if it is not there; raises `Absent`."""
    folder = ROOT / "peers" / name
    lock, nodes = folder / "requirements.lock", folder / "package-lock.json"
    if not lock.exists() and not nodes.exists():
        return Path(sys.executable)
    place = PLACE / name
    wanted = hashlib.sha256(b"".join(one.read_bytes() for one in (lock, nodes) if one.exists())).hexdigest()
    if not (place / "ready").exists() or (place / "ready").read_text() != wanted:
        shutil.rmtree(place, ignore_errors=True)
        _install([sys.executable, "-m", "venv", str(place)])
        if lock.exists():
            quiet = ["--disable-pip-version-check", "--quiet", "--no-compile", "--no-deps"]
            _install([str(place / "bin/python"), "-m", "pip", "install", *quiet, "-r", str(lock)])
        if nodes.exists():
            shutil.copy(folder / "package.json", place)
            shutil.copy(nodes, place)
            # No script of a package runs: what it would download or report is not wanted.
            _install(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix", str(place)])
        (place / "ready").write_text(wanted)
    return place / "bin/python"


def _install(argv: Sequence[str]) -> None:
    name = Path(argv[0]).name
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=INSTALL_S)
    except FileNotFoundError:
        raise Absent(f"{name} is not installed") from None
    except subprocess.TimeoutExpired:
        raise Absent(f"{name} was not done after {INSTALL_S:g} s") from None
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "rror" in line] or done.stderr.splitlines()
        raise Absent(f"{name}: {lines[0] if lines else f'ended with {done.returncode}'}")


# ── processes ─────────────────────────────────────────────────────────────────────────────────────


class Adapter:
    """A peer's process, and the orders that it has not answered yet."""

    def __init__(self, process: asyncio.subprocess.Process, said: Path) -> None:
        self.process = process
        self._said = said
        self._numbers = itertools.count()
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._ready = self._expected()
        self._listening = asyncio.create_task(self._listen())

    def _expected(self) -> asyncio.Future[Any]:
        future = self._asked[next(self._numbers)] = asyncio.get_running_loop().create_future()
        return future

    async def ready(self) -> None:
        """Waits until it takes orders."""
        await self._within(self._ready, START_S)

    async def ask(self, op: str, *args: object) -> Any:
        """The result of an order; raises `Absent` with the peer's error, or with the last that it said."""
        number, asked = len(self._asked), self._expected()
        assert self.process.stdin is not None
        self.process.stdin.write(orjson.dumps({"n": number, "op": op, "args": args}) + b"\n")
        return await self._within(asked, PATIENCE_S)

    async def end(self) -> None:
        """Closes its input and waits for its end, not for ever."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.process.wait(), END_S)
        await asyncio.wait((self._listening,), timeout=1.0)
        self._listening.cancel()

    async def drop(self) -> None:
        """Kills it, if it still runs, and waits for its end."""
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.process.wait(), END_S)
        self._listening.cancel()

    async def _within(self, asked: asyncio.Future[Any], seconds: float) -> Any:
        try:
            answer = await asyncio.wait_for(asked, seconds)
        except TimeoutError:
            raise Absent(f"no answer within {seconds:g} s; {self._last_words()}") from None
        if answer is None:
            raise Absent(f"it has ended; {self._last_words()}")
        if "error" in answer:
            raise Absent(answer["error"])
        return answer["result"]

    async def _listen(self) -> None:
        assert self.process.stdout is not None
        while line := await self.process.stdout.readline():
            answer = orjson.loads(line)
            if not (asked := self._asked[answer["n"]]).done():
                asked.set_result(answer)
        for asked in self._asked.values():
            if not asked.done():
                asked.set_result(None)

    def _last_words(self) -> str:
        lines = self._said.read_text(errors="replace").split("\n")
        return next((f"its last words: {line.strip()}" for line in reversed(lines) if line.strip()), "silent")


class Stub:
    """The model stub's process, and its account."""

    def __init__(self, process: asyncio.subprocess.Process, base_url: str) -> None:
        self.process = process
        self.base_url = base_url
        self._http = httpx.AsyncClient(base_url=base_url.removesuffix("/v1"), trust_env=False)

    async def requests(self) -> int:
        """Requests that it has answered."""
        return int((await self._spent())["requests"])

    async def seconds(self) -> float:
        """Its own seconds, of all requests."""
        return float((await self._spent())["seconds"])

    async def told(self) -> list[str]:
        """The outputs of calls in the last request that it got."""
        asked = (await self._http.get("/requests")).json()
        items = asked[-1]["body"]["input"] if asked else []
        return [text_of(item["output"]) for item in items if item.get("type") == "function_call_output"]

    async def _spent(self) -> dict[str, float]:
        spent: dict[str, float] = (await self._http.get("/spent")).json()
        return spent

    async def end(self) -> None:
        """Closes its input and waits for its end."""
        await self._http.aclose()
        assert self.process.stdin is not None
        self.process.stdin.close()
        await self.process.wait()


def text_of(output: Any) -> str:
    """An output's text, whichever of its two forms it has."""
    return output if isinstance(output, str) else "".join(part.get("text", "") for part in output)


@asynccontextmanager
async def stubbed() -> AsyncIterator[Stub]:
    """A stub of its own."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bench.stub_process", "peers"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={"PATH": PATH, "PYTHONPATH": str(ROOT)},
    )
    assert process.stdout is not None
    stub = Stub(process, (await process.stdout.readline()).decode().strip())
    try:
        yield stub
    finally:
        await stub.end()


@dataclass(frozen=True, slots=True)
class Stage:
    """A contender, its folder, the stub that it asks, and all processes that were here before it."""

    contender: Contender
    folder: Path
    stub: Stub
    others: frozenset[int]
    adapters: list[Adapter] = field(default_factory=list)

    @property
    def ledger(self) -> Path:
        return self.folder / "ws" / script.LEDGER

    async def started(self) -> Adapter:
        """A new adapter on the folder; ready."""
        python = python_of(self.contender.folder)
        environ = {
            "PATH": PATH,
            "HOME": str(self.folder / "home"),
            "PYTHONPATH": str(ROOT),
            "PEER_FOLDER": str(self.folder),
            "PEER_MODEL": self.stub.base_url,
            "PEER_VARIANT": self.contender.variant,
            "PEER_NODE": str(PLACE / self.contender.folder / "node_modules"),
        }
        said = self.folder / "said"
        with said.open("a") as errors:
            process = await asyncio.create_subprocess_exec(
                *(str(python), "-P", "-m", f"peers.{self.contender.folder}.adapter"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                limit=MOST_LINE,
                cwd=self.folder / "ws",
                env=environ,
            )
        adapter = Adapter(process, said)
        self.adapters.append(adapter)
        await adapter.ready()
        return adapter


@asynccontextmanager
async def stage(contender: Contender, stub: Stub, place: Path) -> AsyncIterator[Stage]:
    """A folder of its own, which is removed with everything that still runs."""
    folder = _new_folder(place)
    held = Stage(contender, folder, stub, frozenset(_below()))
    try:
        yield held
    finally:
        await _swept(held.others, held.adapters)
        shutil.rmtree(folder, ignore_errors=True)


def _new_folder(place: Path) -> Path:
    folder = Path(tempfile.mkdtemp(dir=place))
    # A server that may not run as root reads below it.
    folder.chmod(0o711)
    for part in ("ws", "home"):
        (folder / part).mkdir()
    return folder


def adopts() -> None:
    """Makes this process the parent of all that loses its own below it: nothing escapes a sweep."""
    ctypes.CDLL(None, use_errno=True).prctl(_SUBREAPER, 1, 0, 0, 0)


def _below() -> list[int]:
    """The processes below this one."""
    parents: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents.setdefault(int(stat.read_text().rpartition(")")[2].split()[1]), []).append(
                int(stat.parent.name)
            )
    found, left = list[int](), [os.getpid()]
    while left:
        found += (children := parents.get(left.pop(), []))
        left += children
    return found


async def _swept(kept: frozenset[int], adapters: Sequence[Adapter]) -> None:
    """Kills adapters and whatever else is below this process and not kept, until nothing is."""
    until, awaited = time.monotonic() + END_S, {one.process.pid for one in adapters}
    while (left := set(_below()) - kept - awaited) and time.monotonic() < until:
        for pid in (*left, *awaited):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        await asyncio.sleep(GLANCE_S)
        for pid in left:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)  # noqa: ASYNC222  it does not wait
    for one in adapters:
        await one.drop()


def kept_bytes(folder: Path) -> int:
    """Bytes that a folder takes on the disk, files that vanish meanwhile left out."""
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            total += path.lstat().st_blocks * 512
    return total


# ── the work ──────────────────────────────────────────────────────────────────────────────────────


async def turn(adapter: Adapter, stub: Stub, id: str, text: str) -> tuple[str, float]:
    """Takes a turn; the conversation's id, and the seconds beyond those of the stub."""
    before, began = await stub.seconds(), time.monotonic()
    id = await adapter.ask("turn", id, text)
    took = time.monotonic() - began
    return id, took - (await stub.seconds() - before)


async def ran(stub: Stub) -> None:
    """Looks whether the commands of the turn before have run: one that fails at once would count as quick."""
    told = (await stub.told())[-script.COMMANDS :]
    if failed := [output for output in told if not re.search(rf"\b{script.ECHOED}\b", output)]:
        raise Absent(f"its commands fail: {' '.join(failed[0].split())[:200]}")


async def round_of(held: Stage, size: Size, *, idle: bool) -> dict[str, float]:
    """A round of a contender's: turns alone, then many at once; `idle`: conversations that rest, too."""
    adapter = await held.started()
    pid = adapter.process.pid
    for _ in range(WARM):
        await turn(adapter, held.stub, "", script.three())
        await ran(held.stub)
    kept, before = kept_bytes(held.folder), _cpu_s(pid)
    took = [(await turn(adapter, held.stub, "", script.three()))[1] for _ in range(size.turns)]
    alone = _cpu_s(pid)
    began = time.monotonic()
    await asyncio.gather(*(adapter.ask("turn", "", script.three()) for _ in range(size.crowd)))
    wall, crowd = time.monotonic() - began, _cpu_s(pid)
    found = {
        "turn_ms": statistics.median(took) * 1000,
        "turn_p99_ms": statistics.quantiles(took, n=100, method="inclusive")[98] * 1000,
        "turn_cpu_ms": (alone - before) / size.turns * 1000,
        "crowd_s": wall,
        "crowd_cpu_ms": (crowd - alone) / size.crowd * 1000,
        "pss_mib": resident_mib(pid),
        "kept_kib": (kept_bytes(held.folder) - kept) / (size.turns + size.crowd) / 1024,
    }
    if idle:
        left = iter(range(size.idle))

        async def rests() -> None:
            for _ in left:
                await adapter.ask("turn", "", script.nothing())

        await asyncio.gather(*(rests() for _ in range(AT_ONCE)))
        found["idle_kib"] = (resident_mib(pid) - found["pss_mib"]) / size.idle * 1024
    return found


def _cpu_s(pid: int) -> float:
    spent = cpu_of(pid)
    return spent.own_s + spent.below_s


async def long_of(held: Stage, size: Size) -> dict[str, float]:
    """A long conversation, gone on with by new processes."""
    adapter = await held.started()
    await adapter.ask("turn", "", script.nothing())
    # What a server sets aside, and gives back at its end, is no part of the conversation.
    await adapter.end()
    before, id = kept_bytes(held.folder), ""
    adapter = await held.started()
    for _ in range(size.fills):
        id = await adapter.ask("turn", id, script.many(size.calls))
    await adapter.end()
    kept = kept_bytes(held.folder) - before
    adapter = await held.started()
    began = time.monotonic()
    items = await adapter.ask("resume", id)
    read = time.monotonic() - began
    (_, first), (_, second) = [await turn(adapter, held.stub, id, script.nothing()) for _ in range(2)]
    return {
        "items": items,
        "read_ms": read * 1000,
        "first_ms": first * 1000,
        "next_ms": second * 1000,
        "kept_mib": kept / 2**20,
    }


# ── a kill ────────────────────────────────────────────────────────────────────────────────────────

SETTLED_S, ALONE_S, BACK_S = 1.0, 8.0, 10.0
"""The time before the kill, the time for others to go on, and for a process that is there again."""


async def killed_of(held: Stage, seconds: str) -> dict[str, Any]:
    """A SIGKILL in the second of three calls: who goes on, when, and what becomes of the call."""
    adapter = await held.started()
    id = await adapter.ask("turn", "", script.three())
    lost = asyncio.create_task(adapter.ask("turn", id, script.sleep(seconds)))
    await _until(lambda: begins(held.ledger) > 0, PATIENCE_S)
    # Some write a moment later what they did.
    await asyncio.sleep(SETTLED_S)
    requests = await held.stub.requests()
    if not await adapter.ask("kill"):
        adapter.process.kill()
        await adapter.process.wait()
    died = time.monotonic()

    async def goes_on(within: float) -> bool:
        until = time.monotonic() + within
        while time.monotonic() < until:
            if begins(held.ledger) > 1 or await held.stub.requests() > requests:
                return True
            await asyncio.sleep(GLANCE_S)
        return False

    who, alone = "itself", adapter.process.returncode is None
    went_on = alone and await goes_on(ALONE_S)
    if not went_on:
        who, died = "once restarted", time.monotonic()
        if alone:
            await adapter.ask("restart")
        else:
            adapter = await held.started()
        went_on = await goes_on(BACK_S)
    if not went_on:
        who, died = "once asked to", time.monotonic()
        await adapter.ask("resume", id)
        went_on = await goes_on(BACK_S)
    after, living = time.monotonic() - died, sleeping(seconds)
    begun = begins(held.ledger)
    told = (await held.stub.told())[-1:] if went_on and begun == 1 else []
    lost.cancel()
    await asyncio.gather(lost, return_exceptions=True)
    return {
        "who": who if went_on else "nobody",
        "after_s": after if went_on else None,
        "begun": begun,
        "living": living,
        "told": told,
    }


def begins(ledger: Path) -> int:
    """The begins in a ledger of commands."""
    return ledger.read_text().count("begin") if ledger.exists() else 0


def sleeping(seconds: str) -> int:
    """Commands of this run that sleep now."""
    wanted, found = f"sleep\0{seconds}\0".encode(), 0
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found += place.read_bytes() == wanted
    return found


async def _until(holds: Any, seconds: float) -> None:
    until = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > until:
            raise Absent(f"its command did not begin within {seconds:g} s")
        await asyncio.sleep(GLANCE_S)


# ── dispatch alone ────────────────────────────────────────────────────────────────────────────────


async def dispatched(held: Stage, size: Size) -> dict[str, float]:
    """Jobs one by one, then many together."""
    adapter = await held.started()
    await adapter.ask("enqueue", "warm", WARM)
    await _begun(held, f"warm-{WARM - 1}")
    took = []
    for number in range(size.jobs // 10):
        began = await adapter.ask("enqueue", f"alone{number}", 1)
        took.append(await _begun(held, f"alone{number}-0") - began)
    before = _cpu_s(adapter.process.pid)
    began = await adapter.ask("enqueue", "many", size.jobs)
    last = max([await _begun(held, f"many-{number}") for number in range(size.jobs)])
    spent = _cpu_s(adapter.process.pid) - before
    return {
        "start_ms": statistics.median(took) * 1000,
        "start_p99_ms": statistics.quantiles(took, n=100, method="inclusive")[98] * 1000,
        "jobs_s": size.jobs / (last - began),
        "job_cpu_ms": spent / size.jobs * 1000,
    }


async def recovered(held: Stage, size: Size) -> float | None:
    """Seconds from a worker's SIGKILL to the second begin of its job; another worker is there at once."""
    adapter = await held.started()
    await adapter.ask("enqueue", "sleep", 1)
    await _begun(held, "sleep-0")
    await adapter.ask("kill")
    died = time.monotonic()
    await adapter.ask("restart")
    while time.monotonic() < died + size.patience_s:
        if len(again := starts(held.folder).get("sleep-0", [])) > 1:
            return again[1] - died
        await asyncio.sleep(GLANCE_S)
    return None


async def _begun(held: Stage, id: str) -> float:
    until = time.monotonic() + PATIENCE_S
    while not (found := starts(held.folder).get(id)):
        if time.monotonic() > until:
            raise Absent(f"a job did not begin within {PATIENCE_S:g} s")
        await asyncio.sleep(GLANCE_S)
    return found[0]


def starts(folder: Path) -> dict[str, list[float]]:
    """The begins of jobs, by their ids."""
    place, found = folder / STARTS, dict[str, list[float]]()
    for line in place.read_text().split("\n")[:-1] if place.exists() else ():
        id, at = line.split()
        found.setdefault(id, []).append(float(at))
    return found


async def claimed(quick: bool) -> dict[str, float]:
    """Dendro's figures of the same: a submission, and a worker has its session."""
    with lab() as place:
        (found, *_) = [one for one in await broker.run(place, quick) if one.name == CLAIMED]
    assert found.p99 is not None
    return {"start_ms": found.value, "start_p99_ms": found.p99}


# ── the run ───────────────────────────────────────────────────────────────────────────────────────


@dataclass
class Run:
    """A comparison on its way: what was found, and the reasons of those of whom nothing was."""

    contenders: Sequence[Contender]
    queues: Sequence[Contender]
    size: Size
    place: Path
    until: float
    rounds: dict[str, list[dict[str, float]]] = field(default_factory=dict)
    once: dict[str, dict[str, Any]] = field(default_factory=dict)
    jobs: dict[str, list[dict[str, float]]] = field(default_factory=dict)
    again: dict[str, dict[str, float | None]] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)

    @contextlib.contextmanager
    def part(self, name: str, what: str) -> Iterator[None]:
        """A part of a contender's: a failure is noted as its reason."""
        began = time.monotonic()
        try:
            yield
        except (Absent, OSError, httpx.HTTPError) as reason:
            said = str(reason).replace(str(self.place), "…")
            self.absent[f"{name}, {what}"] = said or type(reason).__name__
        print(f"{name}, {what}: {time.monotonic() - began:.1f} s", file=sys.stderr, flush=True)

    def due(self, name: str, what: str) -> bool:
        """Whether a part is to be run: it has not failed before, and there is time."""
        if time.monotonic() > self.until:
            self.absent.setdefault(f"{name}, {what}", LEFT_OUT)
        return f"{name}, {what}" not in self.absent

    def left(self, what: str) -> Iterator[Contender]:
        """The contenders of a part that are here."""
        return (one for one in self.contenders if one.name in self.rounds and self.due(one.name, what))


def installed(run: Run) -> None:
    """Installs all peers; one that cannot be had is passed over from here on."""
    for folder in dict.fromkeys(one.folder for one in (*run.contenders, *run.queues)):
        with run.part(folder, "installation"):
            python_of(folder)
            run.rounds |= {one.name: [] for one in run.contenders if one.folder == folder}
            run.once |= {one.name: {} for one in run.contenders if one.folder == folder}
            run.jobs |= {one.name: [] for one in run.queues if one.folder == folder}


async def turns_of(run: Run, stub: Stub, number: int) -> None:
    """A round of turns."""
    for one in run.left("turns"):
        with run.part(one.name, "turns"):
            async with stage(one, stub, run.place) as held:
                run.rounds[one.name].append(await round_of(held, run.size, idle=number == 0))


async def jobs_of(run: Run, stub: Stub) -> None:
    """A round of jobs."""
    for one in run.queues:
        if one.name in run.jobs and run.due(one.name, "jobs"):
            with run.part(one.name, "jobs"):
                async with stage(one, stub, run.place) as held:
                    run.jobs[one.name].append(await dispatched(held, run.size))


async def kills_of(run: Run) -> None:
    """The kills, one contender after the other."""
    for number, one in enumerate(run.left("a kill")):
        with run.part(one.name, "a kill"):
            # A stub of its own: its last request is this contender's.
            async with stubbed() as stub, stage(one, stub, run.place) as held:
                run.once[one.name]["kill"] = await killed_of(held, f"60.{number + 1:03}")


async def recoveries_of(run: Run, stub: Stub) -> None:
    """The kills of workers of queues, all at once: most of it is waiting."""
    others, places = frozenset(_below()), list[Stage]()

    async def kill(one: Contender, variant: str) -> None:
        with run.part(one.name, f"recovery ({variant})"):
            place = Stage(replace(one, variant=variant), _new_folder(run.place), stub, others)
            places.append(place)
            run.again.setdefault(one.name, {})[variant] = await recovered(place, run.size)

    queues = [one for one in run.queues if one.name in run.jobs and run.due(one.name, "recovery")]
    await asyncio.gather(*(kill(one, variant) for one in queues for variant in ("default", "shortest")))
    await _swept(others, [adapter for each in places for adapter in each.adapters])


async def compared(run: Run, quick: bool) -> None:
    """All the work, the contenders in turns; whatever is done once stands behind the first round."""
    async with stubbed() as stub:
        await turns_of(run, stub, 0)
        await kills_of(run)
        for one in run.left("a long conversation"):
            with run.part(one.name, "a long conversation"):
                async with stage(one, stub, run.place) as held:
                    run.once[one.name]["long"] = await long_of(held, run.size)
        if run.queues and run.due(DENDRO, "jobs"):
            run.jobs[DENDRO] = [await claimed(quick)]
        await jobs_of(run, stub)
        await recoveries_of(run, stub)
        for number in range(1, run.size.rounds):
            await turns_of(run, stub, number)
            await jobs_of(run, stub)


def main(argv: Sequence[str]) -> int:
    """Compares, and writes the page; answers the exit code, which is 1 if Dendro failed at something."""
    parser = argparse.ArgumentParser(prog="python -m proof.peers", description=__doc__)
    parser.add_argument("--rounds", type=int, help=f"how often each takes its turn (default: {FULL.rounds})")
    parser.add_argument("--quick", action="store_true", help="small numbers: to see that it works")
    parser.add_argument("--minutes", type=float, help="no part begins later (default: 13, or 3 with --quick)")
    names = sorted({one.folder for one in CONTENDERS} | {*QUEUES})
    parser.add_argument("--only", action="append", choices=names, help="this one; may be repeated")
    parser.add_argument("--page", type=Path, help="where the page is written, and FILE.json beside it")
    given = parser.parse_args(argv)
    size = QUICK if given.quick else FULL
    if given.rounds:
        size = replace(size, rounds=given.rounds)
    minutes = given.minutes or (3.0 if given.quick else 13.0)
    contenders = [one for one in CONTENDERS if not given.only or one.folder in given.only]
    queues = [Contender(name, name, "default") for name in QUEUES if not given.only or name in given.only]
    adopts()
    # A run that is ended from outside cleans up, too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    began = time.monotonic()
    with lab() as under:
        found: dict[str, Any] = {"conditions": conditions(under), "size": asdict(size)}
    with tempfile.TemporaryDirectory(prefix="dendro-peers-", dir=BESIDE, ignore_cleanup_errors=True) as place:
        Path(place).chmod(0o711)
        run = Run(contenders, queues, size, Path(place), began + minutes * 60)
        installed(run)
        asyncio.run(compared(run, given.quick))
    found |= {"rounds": run.rounds, "once": run.once, "jobs": run.jobs, "again": run.again}
    found["absent"] = run.absent
    found["took_s"] = time.monotonic() - began
    found["conditions"]["load at the end"] = " ".join(f"{load:.2f}" for load in os.getloadavg())
    written = page(found)
    if given.page:
        given.page.parent.mkdir(parents=True, exist_ok=True)
        given.page.write_text(written, encoding="utf-8")
        given.page.with_suffix(".json").write_bytes(orjson.dumps(found, option=orjson.OPT_INDENT_2))
    print(written)
    return 1 if any(name.startswith("Dendro") and why != LEFT_OUT for name, why in run.absent.items()) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
