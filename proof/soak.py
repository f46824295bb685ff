"""`python -m proof.soak`: a deployment under load for minutes or hours; whatever grows without need is named.

Trees of ten agents live and end all the time: they are closed, archived and deleted within minutes, as in
another deployment within weeks. A tenth of them lives throughout, one in ten waits for a person before each
command, people come, look on and go, half of them at a gateway, and workers are drained and killed. Every few
seconds memory, descriptors, threads, keys, entries of streams, files and disk are counted, and a turn is
timed; at the end all is closed, and nothing may be left.

SIGINT to its process ends the load early; the run is judged by what was measured until then.

With `--kept FOLDER` a run has sittings, each of `--sitting` minutes or until SIGTERM: behind one all
processes end, as on a machine that is shut down, and the same command goes on with what Redis, the home and
the measures have in the folder. The last one judges.

Exit code 1 if something grew or was left, and what; the page has the figures.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import math
import os
import re
import signal
import subprocess
import sys
import time
from base64 import b64encode
from collections import Counter, defaultdict, deque
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from io import BytesIO
from itertools import chain
from pathlib import Path
from random import Random
from textwrap import wrap
from typing import Any, Literal, cast
from urllib.parse import urlsplit

import orjson
import uvloop
from PIL import Image
from websockets.asyncio.client import connect

from bench.accounts import cpu_of
from bench.heap import told
from bench.lab import Fleet, Lab, fleet, lab
from bench.machine import conditions
from bench.parked import weight
from bench.tree_script import merged
from bench.turns import submit_turn
from orchestrator.broker.errors import UnknownSession
from orchestrator.core.counts import counted
from orchestrator.core.ids import SessionId, TreeId
from orchestrator.protocol import ops
from orchestrator.protocol.ids import SubmissionId
from orchestrator.protocol.inputs import ImageInput, TextInput
from orchestrator.protocol.submission import Submission
from orchestrator.wiring.open_deployment import Opened, portable_session
from proof.chaos_clients import Wire
from proof.chaos_script import LEDGER
from proof.chaos_stage import serve_ledger
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
from proof.soak_script import PROBE, THINK_S, Work, task

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
WARM_S = 1_800.0
"""For so long nothing is judged where processes were started anew in a run's middle: their caches fill."""
KEPT_FILE = "soak.json"
COPIES_S = 60
"""For so long a machine keeps its copy of a folder that nobody works in."""
MORE, MOST_TYPES = 1_000, 12
"""Types of so many more objects are told of, and so many types of a process."""
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
        "history_keys",
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
workers and who of them waits, persons' keys of their message history, and the version of the deployment.
"""
NAMES = {"deleted": "ZCARD", "deleted_by": "HLEN"}
"""Kinds that have the ids of what was deleted, for 30 days, and what counts them."""
WEIGHED, SAMPLES = 4_096, 100
"""Names that are written to learn what one takes, and that are looked at where there are many."""
BOUNDS = {"asked": 1_024, "changed": 1_024, "released": 256, "ready": 256, "near": 256, "jobs_ready": 256}
"""Entries that streams of these kinds keep; one is cut by whole nodes of at most 100 of them."""
NODE = 128
WORKERS, FOLLOWERS = 2, 6
ENDED = 20
"""Closed trees that people still look at."""
PROBES, COMPACTED_AFTER = 20, 20
"""Turns of a session whose turns are timed, and of one that stays until it is compacted."""
RESTS_S, RESTS = 300.0, 40
"""So long a tree that stays rests between turns, more or less, and how often at least in a run.

With a turn every minute its log would be twice as long at a long run's end as in its middle, and whatever
reads it would be found to grow.
"""
GO_ON = ops.UserInput(items=(TextInput(text="Say that you are done."),))
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
    random: Random
    minutes: float
    """How long the load is meant to last in all sittings, or did."""
    sitting_s: float = math.inf
    """The longest that it lasts before everything ends and is started anew."""
    began: float = field(default_factory=time.monotonic)
    """Its begin, on this machine's clock: in a later sitting as if there had been none before."""
    sittings: list[float] = field(default_factory=list)
    """Seconds of load before each of them."""
    beside: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    """Upkeep and the gateway."""
    gateway: str = ""
    """Its address."""
    series: dict[tuple[str, str], list[tuple[float, float]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    done: Counter[str] = field(default_factory=Counter)
    living: set[SessionId] = field(default_factory=set)
    """Roots that are not closed yet."""
    ended: deque[SessionId] = field(default_factory=lambda: deque(maxlen=ENDED))
    """Those that were closed last: people look at them, too, and some are deleted by then."""
    stay: set[SessionId] = field(default_factory=set)
    """Agents of the trees that live throughout."""
    turns: dict[SessionId, int] = field(default_factory=dict)
    """How many turns the root of each of those has had."""
    waiting: list[SessionId] = field(default_factory=list)
    """Such roots of the sitting before, which nobody goes on with yet."""
    probes: list[tuple[float, float]] = field(default_factory=list)
    costs: dict[str, float] = field(default_factory=dict)
    """Seconds of processors by part, of the whole run."""
    findings: list[str] = field(default_factory=list)
    parts: list[dict[str, float]] = field(default_factory=list)
    """What the memory of Redis's process consists of, look by look: MiB by part."""
    kept_kib: dict[str, float] = field(default_factory=dict)
    """What Redis keeps on purpose when all sessions are deleted, by kind of key."""
    before_kib: float = 0.0
    """Data of Redis at the begin."""
    left_mib: float = 0.0
    """Data of Redis at the end beside those, more than at the begin."""
    unseen: dict[str, float] = field(default_factory=dict)
    """Bytes of a name, by the kind of its key, that Redis does not count as the key's."""
    types: dict[str, list[Mapping[str, int]]] = field(default_factory=lambda: defaultdict(list))
    """Objects by their types, look by look, of each process."""
    heaps: dict[str, list[dict[str, float]]] = field(default_factory=lambda: defaultdict(list))
    """What the memory of each process consists of, look by look of this sitting: MiB by part."""

    @property
    def at_s(self) -> float:
        """Seconds of load until now."""
        return time.monotonic() - self.began

    @property
    def until_s(self) -> float:
        """When the sitting's load ends, in seconds of load."""
        return min(self.minutes * 60, self.sittings[-1] + self.sitting_s)

    @property
    def over(self) -> bool:
        return self.at_s >= self.until_s

    @property
    def judged(self) -> bool:
        """Whether the run ends with this sitting."""
        return self.until_s >= self.minutes * 60

    @property
    def since_s(self) -> float:
        """From here on it is judged: its second half, but for the caches of processes that are new in it."""
        if len(self.sittings) == 1:
            return self.minutes * 30
        start_s, end_s = self.sittings[-1], self.minutes * 60
        return max(end_s / 2, start_s + min(WARM_S, (end_s - start_s) / 2))

    def end(self) -> None:
        """Ends the load now: the run is judged by what was measured."""
        self.minutes = min(self.minutes, self.at_s / 60)

    def rest(self) -> None:
        """Ends the sitting now."""
        self.sitting_s = min(self.sitting_s, self.at_s - self.sittings[-1])

    def any_root(self) -> SessionId | None:
        """A root that somebody looks at."""
        roots = [*sorted(self.living), *self.ended]
        return self.random.choice(roots) if roots else None

    def stays(self, key: str) -> bool:
        """Whether a key is one of an agent whose tree lives throughout."""
        return key.rpartition(":")[2] in self.stay

    def put(self, name: str, value: float, unit: str) -> None:
        self.series[name, unit].append((self.at_s, value))

    def keep(self, file: Path) -> None:
        """Writes what the next sitting goes on with."""
        kept = {
            **{name: getattr(self, name) for name in _KEPT_AS_IS},
            **{name: sorted(getattr(self, name)) for name in ("living", "ended", "stay")},
            "at_s": self.until_s,
            "done": dict(self.done),
            # Sessions name their model's address.
            "port": urlsplit(self.running.base_url).port,
            "probes": self.probes,
            "series": [[name, unit, points] for (name, unit), points in self.series.items()],
        }
        file.with_suffix(".new").write_bytes(orjson.dumps(kept))
        file.with_suffix(".new").rename(file)

    def go_on(self, file: Path) -> None:
        """Takes over what the sitting before has measured, and what lives of it, if there was one."""
        if not file.exists():
            self.sittings.append(0.0)
            return
        kept = orjson.loads(file.read_bytes())
        for name in _KEPT_AS_IS:
            setattr(self, name, kept[name])
        for name, unit, points in kept["series"]:
            self.series[name, unit] += [(at, value) for at, value in points]
        self.probes += [(at, took) for at, took in kept["probes"]]
        self.done.update(kept["done"])
        self.living |= set(kept["living"])
        self.ended.extend(kept["ended"])
        self.stay |= set(kept["stay"])
        self.waiting += self.turns
        self.sittings.append(kept["at_s"])
        self.began = time.monotonic() - kept["at_s"]


_KEPT_AS_IS = ("sittings", "turns", "costs", "parts", "before_kib", "unseen")


# ── load ──────────────────────────────────────────────────────────────────────────────────────────


Life = Literal["plain", "asks", "stays", "portable", "tool", "picture", "fork", "compact"]
LIVES: Sequence[Life] = (
    *("asks", "stays", "portable", "tool", "picture", "fork", "compact"),
    *("plain", "plain", "plain"),
)
"""What one tree in ten does each; three are plain.

Its commands wait for a person; it lives throughout; it has portable folders, its agents one each, which are
merged; its agents call an MCP server; its root is shown a picture; it is forked at the gateway, and the fork
answered there; its root's conversation is compacted, and goes on.
"""
_WORK: Mapping[str, Work] = {"portable": "notes", "tool": "tool"}
_TOLD: Mapping[Life, str] = {
    "plain": "plain trees",
    "asks": "trees that asked",
    "stays": "trees that stayed",
    "portable": "trees with folders",
    "tool": "trees with a tool",
    "picture": "trees with a picture",
    "fork": "trees that were forked",
    "compact": "trees that were compacted",
}


async def tree_life(soak: Soak, life: Life) -> None:
    """One place for trees: each is made, works, and makes room for the next; one that stays does not."""
    running = _asking(soak.running) if life == "asks" else soak.running
    stays = life == "stays"
    while not soak.over:
        if stays and soak.waiting:
            root = soak.waiting.pop()
        else:
            root = await _first_turn(soak, running, life)
        if stays:
            soak.turns.setdefault(root, 0)
            members = await running.opened.broker.trees.members(TreeId(root))
            soak.stay |= {head.session for head in members}
        while stays and await _rests(soak):
            soak.turns[root] = turn = soak.turns[root] + 1
            # A conversation that goes on for ever is compacted now and then.
            op = GO_ON if turn % COMPACTED_AFTER else ops.Compact()
            await _works(soak, running, root, f"turn-{turn}", op)
        if life == "compact":
            await _works(soak, running, root, "turn-1", ops.Compact())
            soak.done["compactions"] += 1
            await _works(soak, running, root, "turn-2", GO_ON)
        if life == "fork":
            await _forks(soak, root)
        if not stays:
            soak.done[_TOLD[life]] += 1
            await _closed(soak, root)


async def _rests(soak: Soak) -> bool:
    """Waits until a tree that stays is gone on with; False once the load is to end."""
    rests_s = min(RESTS_S, soak.minutes * 60 / RESTS) * soak.random.uniform(0.5, 1.5)
    await asyncio.sleep(min(rests_s, max(0.0, soak.until_s - soak.at_s)))
    return not soak.over


async def _first_turn(soak: Soak, running: Fleet, life: Life) -> SessionId:
    """Makes a root, which makes its agents and hears them out."""
    root = await _portable(running) if life == "portable" else await running.session()
    soak.living.add(root)
    first = TextInput(text=task(TREE - 1, _WORK.get(life, "command")))
    picture = (ImageInput(image_url=_picture(soak)),) if life == "picture" else ()
    await _works(soak, running, root, "turn-0", ops.UserInput(items=(first, *picture)), merged(TREE - 1))
    return root


def _asking(running: Fleet) -> Fleet:
    environ = running.lab.environ(OPENAI_BASE_URL=running.base_url)
    return replace(running, settings=running.lab.settings(environ, *WIDE, "approval_policy=untrusted"))


async def _portable(running: Fleet) -> SessionId:
    """A session with a copy of the lab's folder."""
    wish = ops.WorkspaceSource(folder=str(running.lab.workspace))
    opened = Opened(running.settings, running.opened)
    return await portable_session(opened, running.client, wish)


def _picture(soak: Soak) -> str:
    """A picture that no other is like, as a data URL: 100 by 100 pixels of noise."""
    written = BytesIO()
    Image.frombytes("RGB", (100, 100), soak.random.randbytes(30_000)).save(written, "PNG")
    return f"data:image/png;base64,{b64encode(written.getvalue()).decode()}"


async def _works(
    soak: Soak, running: Fleet, root: SessionId, turn: str, op: ops.Op, says: str | None = None
) -> None:
    """A turn of a root, to its end, with the answer that it `says`; every request of the tree is answered."""
    async with aclosing(cast(Any, running.client.follow(root))) as events, asyncio.timeout(PATIENCE_S):
        await running.client.submit(root, Submission(SubmissionId(turn), op))
        async for event in events:
            if event.type == "exec_approval_request":
                soak.done["answers"] += 1
                who = {"agent_id": event.msg["agent_id"]} if "agent_id" in event.msg else {}
                answer = ops.ExecApproval(id=event.msg["call_id"], decision=cast(Any, "approved"), **who)
                name = SubmissionId(f"answer-{soak.done['answers']}")
                await running.client.submit(root, Submission(name, answer))
            elif event.type == "error":
                raise RuntimeError(f"{turn} of {root} failed: {event.msg['message']}")
            elif event.type == "patch_apply_end":
                soak.done["folders merged" if event.msg["success"] else "folders with conflicts"] += 1
            elif event.type == "task_complete" and event.id == turn:
                said = event.msg.get("last_agent_message")
                if says is not None and said != says:
                    raise RuntimeError(f"{turn} of {root} said: {said}")
                soak.done["turns"] += 1
                return


async def _forks(soak: Soak, source: SessionId) -> None:
    """A person forks the tree's root at the gateway, and has one turn with the fork."""
    async with connect(soak.gateway, compression=None, max_size=None) as socket:
        wire = await Wire.greets(socket)
        thread = (await wire.call("thread/fork", threadId=source))["thread"]["id"]
        soak.living.add(thread)
        go = [{"type": "text", "text": "Say that you are done."}]
        turn = (await wire.call("turn/start", threadId=thread, input=go))["turn"]["id"]
        async with asyncio.timeout(PATIENCE_S):
            while not any(
                said["method"] == "turn/completed" and said["params"]["turn"]["id"] == turn
                for said in wire.heard
            ):
                wire.heard.clear()
                await wire.hears(PATIENCE_S)
    soak.done["forks"] += 1
    await _closed(soak, thread)


async def _closed(soak: Soak, root: SessionId) -> None:
    await soak.running.client.submit(root, Submission(SubmissionId("close"), ops.Shutdown()))
    soak.living.discard(root)
    soak.ended.append(root)


async def onlooker(soak: Soak) -> None:
    """A person who looks at one tree after the other, and leaves in the middle."""
    while not soak.over:
        await asyncio.sleep(soak.random.uniform(0.2, 2.0))
        if (root := soak.any_root()) is None:
            continue
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
        if (root := soak.any_root()) is None:
            continue
        async with connect(soak.gateway, compression=None, max_size=None) as socket:
            wire = await Wire.greets(socket)
            with contextlib.suppress(LookupError, TimeoutError):
                await wire.call("thread/resume", threadId=root)
                async with asyncio.timeout(soak.random.uniform(1.0, 10.0)):
                    while True:
                        await wire.hears(10.0)
                        soak.done["messages of the gateway"] += 1


async def probe(soak: Soak) -> None:
    """Sessions of some turns each, which are timed: what a person would wait for beside the model."""
    number = 0
    while not soak.over:
        session = await soak.running.session()
        soak.living.add(session)
        async with aclosing(cast(Any, soak.running.client.follow(session))) as events:
            for _ in range(PROBES):
                if not soak.over:
                    number += 1
                    await _timed(soak, session, f"turn-{number}", events)
        await _closed(soak, session)


async def _timed(soak: Soak, session: SessionId, turn: str, events: AsyncIterator[Any]) -> None:
    began = time.monotonic()
    await submit_turn(soak.running, session, turn, PROBE)
    async with asyncio.timeout(PATIENCE_S):
        # Its worker may be killed meanwhile: it goes on with another.
        async for event in events:
            if event.type == "task_complete" and event.id == turn:
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
        await asyncio.sleep(min(CHURN_S, max(0.0, soak.until_s - soak.at_s)))
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
    names = await keys_of(running)
    kept_mib = sum((await _kept_kib(soak, names)).values()) / 1024
    stay_mib = sum([await weight(running, name, SAMPLES) for name in names if soak.stays(name)]) / 1024
    processes = {f"worker {n}": worker.pid for n, worker in enumerate(running.workers[:WORKERS])}
    processes |= {name: process.pid for name, process in soak.beside.items()}
    processes |= {"Redis": running.lab.redis.pid}
    for name, pid in processes.items():
        for what, (value, unit) in of_process(pid).items():
            kept = kept_mib + stay_mib if (what, name) == ("memory", "Redis") else 0.0
            soak.put(f"{what} of {name}", value - kept, unit)
        if heap := told(running.lab.folder / "heap", pid):
            soak.put(f"objects of {name}", heap.blocks / 1000, "thousand")
            soak.put(f"heap in use of {name}", heap.held / 2**20, "MiB")
            soak.types[name].append(heap.types)
            parts = {part: size / 2**20 for part, size in heap.parts.items()}
            # Stacks, data of programs, and, less than nothing, free pages that were given back.
            rest = soak.series[f"memory of {name}", "MiB"][-1][1] - sum(parts.values())
            soak.heaps[name].append(parts | {"beside them": rest})
    info = await _memory(running)
    soak.put("data of Redis", float(info["used_memory"]) / 2**20 - kept_mib - stay_mib, "MiB")
    soak.parts.append({part: float(info[name]) / 2**20 for part, name in PARTS.items() if name in info})
    for kind, count in kinds(names).items():
        soak.put(f"keys {kind}", count, "keys")
    for kind, entries in (await _entries(soak)).items():
        soak.put(f"entries {kind}{' beyond their bound' if kind in BOUNDS else ''}", entries, "entries")
    for part in ("home", "tmp", "redis"):
        folder = running.lab.folder / part
        soak.put(f"files in {part}", files_below(folder), "files")
        if part != "redis":
            # A session that lives on has a log that grows.
            soak.put(f"disk of {part}", disk_mib(folder, but=soak.stay), "MiB")
    # Its log holds what it keeps, too.
    disk = disk_mib(running.lab.folder / "redis")
    soak.put("disk of redis by its data", disk / (float(info["used_memory_dataset"]) / 2**20), "times")


async def _kept_kib(soak: Soak, names: Sequence[str]) -> dict[str, float]:
    """What the kinds of keys take that outlive sessions on purpose."""
    found, running = dict.fromkeys(sorted(KEPT), 0.0), soak.running
    for name in names:
        if (kind := kind_of(name)) in NAMES:
            found[kind] += await weight(running, name, SAMPLES)
            count = cast(int, await running.opened.broker.command(NAMES[kind], name))
            found[kind] += soak.unseen[kind] * count / 1024
        elif kind in KEPT:
            found[kind] += await weight(running, name)
    return found


async def unseen_bytes(running: Fleet) -> dict[str, float]:
    """Bytes of each name that `MEMORY USAGE` leaves out: some allocators round its node up."""
    found, command = {}, running.opened.broker.command
    key, ids = running.opened.broker.keys.of_shard(0, "weighed"), [f"{n:036}" for n in range(WEIGHED)]
    flat: dict[str, tuple[Any, ...]] = {
        "deleted": ("ZADD", *chain.from_iterable((1764460800000, id) for id in ids)),
        "deleted_by": ("HSET", *chain.from_iterable((id, f"1764460800000 {id}") for id in ids)),
    }
    for kind, (add, *pairs) in flat.items():
        before_kib = await _data_kib(running)
        await command(add, key, *pairs)
        grown_kib = await _data_kib(running) - before_kib
        found[kind] = max(0.0, grown_kib - await weight(running, key)) * 1024 / WEIGHED
        await command("DEL", key)
    return found


async def _entries(soak: Soak) -> Counter[str]:
    """Entries of all streams, by kind of key; of those that have a bound, entries beyond it.

    But for those of trees that live throughout, which grow with their turns until they have 10,000.
    """
    broker, found = soak.running.opened.broker, Counter[str]()
    names = [name for name in await keys_of(soak.running, "TYPE", "stream") if not soak.stays(name)]
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


async def emptied(soak: Soak) -> None:
    """Closes what lives; whatever is left of sessions when upkeep had its time is a finding."""
    for root in sorted(soak.living):
        await _closed(soak, root)
    until = time.monotonic() + EMPTY_S
    while (left := await _left(soak)) and time.monotonic() < until:  # noqa: ASYNC110
        await asyncio.sleep(2.0)
    soak.findings += left


async def _left(soak: Soak) -> list[str]:
    """Lines for what is left of sessions: their keys, files, objects."""
    found = []
    names = await keys_of(soak.running)
    for kind, count in sorted(kinds(name for name in names if kind_of(name) not in KEPT).items()):
        found.append(f"{counted(count, 'key')} of the kind {kind} are left of deleted sessions")
    for folder, what in _places(soak.running.lab):
        if count := files_below(folder):
            found.append(f"{counted(count, 'file')} of {what} are left below {folder.name}")
    return found


async def bare(soak: Soak) -> None:
    """Takes what is kept on purpose out of Redis, where nobody works any more; the rest was there before."""
    names = [name for name in await keys_of(soak.running) if kind_of(name) in KEPT]
    soak.kept_kib = await _kept_kib(soak, names)
    for name in names:
        await soak.running.opened.broker.command("DEL", name)
    grown = (await _data_kib(soak.running) - soak.before_kib) / 1024
    soak.left_mib = grown
    if grown > EMPTY_MIB:
        soak.findings.append(f"the data of Redis take {grown:.1f} MiB more than at the begin")


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
        "gateway": ["proof.soak_processes", "dendro", "serve", "--listen", "ws://127.0.0.1:0"],
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


@dataclass(frozen=True, slots=True)
class Run:
    """The run that was asked for."""

    minutes: float
    agents: int
    leaks: str = ""
    seed: int = 1
    think_s: float = THINK_S
    sitting_s: float = math.inf
    goes_on: bool = False
    """Whether its folder stays."""


async def soaked(place: Lab, run: Run) -> Soak:
    """Runs it to its end, or to that of a sitting."""
    for part in ("tmp", "heap"):
        (place.folder / part).mkdir(exist_ok=True)
    kept = place.folder / KEPT_FILE
    port = orjson.loads(kept.read_bytes())["port"] if kept.exists() else 0
    async with fleet(place, f"soak:{run.think_s:g}", *WIDE, port=port) as running:
        running.environ |= {
            "TMPDIR": str(place.folder / "tmp"),
            "BENCH_HEAP": str(place.folder / "heap"),
            "DENDRO_WORKSPACE_KEEP_S": str(COPIES_S),
        }
        (place.folder / LEDGER).touch()
        serve_ledger(running, place.folder / LEDGER)
        # Of each command that was ever called Redis would keep how long it took, some 20 KiB.
        for key, value in (("auto-aof-rewrite-min-size", AOF_BYTES), ("latency-tracking", "no")):
            await running.opened.broker.command("CONFIG", "SET", key, value)
        soak = Soak(running, Random(run.seed), run.minutes, run.sitting_s)
        soak.go_on(kept)
        if len(soak.sittings) == 1:
            soak.before_kib = await _data_kib(running)
            soak.unseen = await unseen_bytes(running)
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, soak.end)
        if run.goes_on:
            loop.add_signal_handler(signal.SIGTERM, soak.rest)
        for _ in range(WORKERS):
            running.hire(max(16, run.agents // WORKERS))
        async with _beside(soak, run.leaks):
            trees = max(2, run.agents // TREE)
            lives = [tree_life(soak, LIVES[n % len(LIVES)]) for n in range(trees)]
            people = [(onlooker, visitor)[n % 2](soak) for n in range(FOLLOWERS)]
            await _all(*lives, *people, probe(soak), churn(soak), observe(soak))
            _add_costs(soak)
            if soak.judged:
                await _judged(soak)
        running.dismiss_workers()
        if soak.judged:
            await bare(soak)
        else:
            soak.keep(kept)
    return soak


async def _judged(soak: Soak) -> None:
    ledger = (soak.running.lab.folder / LEDGER).read_text()
    soak.done["calls of the MCP server"] = ledger.count("end ")
    soak.done[_TOLD["stays"]] = len(soak.turns)
    soak.findings += [v for s in _series(soak) if (v := verdict(s, soak.since_s))]
    soak.findings += _slower(soak)
    await emptied(soak)


def _add_costs(soak: Soak) -> None:
    """Adds what the processes of this sitting took to what those before did."""
    costs = soak.running.costs()
    found = {part: cpu.own_s for part, cpu in costs.items() if part != "client"}
    found |= {name: cpu_of(process.pid).own_s for name, process in soak.beside.items()}
    for part, spent in (found | {"commands": costs["worker"].below_s}).items():
        soak.costs[part] = soak.costs.get(part, 0.0) + spent


async def _all(*parts: Coroutine[Any, Any, None]) -> None:
    async with asyncio.TaskGroup() as group:
        for part in parts:
            group.create_task(part)


def _series(soak: Soak) -> list[Series]:
    return [Series(name, unit, tuple(points)) for (name, unit), points in sorted(soak.series.items())]


def _slower(soak: Soak) -> list[str]:
    first = [took for at, took in soak.probes if at < soak.minutes * 30]
    return slower(first, [took for at, took in soak.probes if at >= soak.since_s])


def report(soak: Soak, load: str, under: str) -> str:
    """The page, as Markdown."""
    lines = [
        "# Soak",
        "",
        "`make soak` writes this page; [testing](../testing.md#beyond-the-suites) says what it does. Memory",
        "of a process is what it has allocated, without programs and files: its share of those grows when",
        "others that run the same end. Memory and data of Redis are those beside what it keeps on purpose",
        "(last of all). *Grows*: more than 1 % an hour, and surely so. A run of several sittings starts all",
        "processes anew behind each; it is judged from half an hour behind the last start on, or from the",
        "middle of the last sitting if that comes before.",
        "",
        *wrap(f"{load}. {under}.", 120),
        "",
        *wrap(f"Done: {', '.join(f'{count:,} {what}' for what, count in sorted(soak.done.items()))}.", 120),
        "",
        f"| what | mean from minute {soak.since_s / 60:.0f} on | growth in it | an hour | |",
        "|---|---:|---:|---:|---|",
    ]
    for series in _series(soak):
        found = growth(series.points, soak.since_s)
        if found is None:
            continue
        word = "**grows**" if verdict(series, soak.since_s) else ""
        lines.append(
            f"| {series.name} | {found.mean:,.1f} {series.unit} | {found.grown:+,.1f} | "
            f"{found.per_hour:+,.1f} ± {found.unsure:,.1f} | {word} |"
        )
    agents = TREE * sum(soak.done[kind] for kind in _TOLD.values())
    lines += ["", f"Seconds of processors, {agents:,} agents having come and gone:", ""]
    lines += [f"- {part}: {spent:,.0f}" for part, spent in soak.costs.items()]
    lines += _quarters("What the process of Redis consists of", soak.parts)
    for name, looks in soak.heaps.items():
        lines += _quarters(f"What the memory of {name} consists of, in the last sitting", looks)
    lines += _of_types(soak.types)
    each = sum(soak.kept_kib.get(kind, 0.0) for kind in NAMES) * 1024 / max(1, agents)
    kept = ", ".join(f"{kind} {kib:,.0f}" for kind, kib in soak.kept_kib.items())
    told = (
        f"Left in Redis on purpose when all was deleted, in KiB: {kept}. Names: {each:,.0f} bytes an agent. "
        f"Beside it the data of Redis take {soak.left_mib:+.2f} MiB more than at the begin."
    )
    lines += ["", *wrap(told, 120)]
    lines += ["", "## Findings", "", *(f"- {one}" for one in soak.findings or ["none"]), ""]
    return "\n".join(lines)


def _quarters(told: str, looks: Sequence[Mapping[str, float]]) -> list[str]:
    """A table of what a process consists of, each part's mean of a quarter of the looks."""
    if len(looks) < 4 * LEAST_POINTS:
        return []
    share = len(looks) // 4
    quarters = [looks[n * share : (n + 1) * share] for n in range(4)]
    rows = [
        f"| {name} | "
        + " | ".join(f"{sum(of[name] for of in some) / share:,.1f}" for some in quarters)
        + " |"
        for name in looks[0]
    ]
    head = ["| MiB | first quarter | second | third | last |", "|---|---:|---:|---:|---:|"]
    return ["", f"{told}:", "", *head, *rows]


def _of_types(types: Mapping[str, Sequence[Mapping[str, int]]]) -> list[str]:
    """The types whose objects became more in the second half of the sitting, by process: means of a tenth.

    Objects that the collector knows: neither strings nor numbers, nor what stays from a process's start.
    """
    lines = []
    for name, looks in types.items():
        if (share := len(looks) // 10) < LEAST_POINTS:
            continue
        middle, last = (_means(some) for some in (looks[len(looks) // 2 :][:share], looks[-share:]))
        more = {kind: last[kind] - middle[kind] for kind in last if last[kind] - middle[kind] >= MORE}
        most = sorted(more, key=lambda kind: -more[kind])[:MOST_TYPES]
        told = ", ".join(f"`{kind}` {middle[kind]:,.0f} → {last[kind]:,.0f}" for kind in most)
        lines += wrap(f"- {name}: {told or 'none'}", 120, subsequent_indent="  ", break_long_words=False)
    head = f"Objects that became more by {MORE:,} or more between the middle and the end of the last sitting:"
    return ["", head, "", *lines] if lines else []


def _means(looks: Sequence[Mapping[str, int]]) -> Counter[str]:
    found = Counter[str]()
    for look in looks:
        found.update(look)
    return Counter({kind: round(count / len(looks)) for kind, count in found.items()})


def main(argv: Sequence[str]) -> int:
    """Runs the soak that was asked for; answers the exit code."""
    parser = argparse.ArgumentParser(prog="python -m proof.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="how long (default: %(default)s)")
    parser.add_argument("--agents", type=int, default=100, help="at a time (default: %(default)s)")
    parser.add_argument("--think", type=float, default=THINK_S, help="seconds (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--page", type=Path, help="where the page is written")
    parser.add_argument(
        "--leak", default="", help=f"plant leaks, which must be found: {', '.join(LEAKS)}, or all"
    )
    parser.add_argument("--kept", type=Path, help="a folder that stays: the run goes on with what is there")
    parser.add_argument("--sitting", type=float, help="minutes after which it ends, to be gone on with")
    given = parser.parse_args(argv)
    leaks = ",".join(LEAKS) if given.leak == "all" else given.leak
    if unknown := set(filter(None, leaks.split(","))) - set(LEAKS):
        parser.error(f"no such leak: {', '.join(sorted(unknown))}")
    if given.sitting and not given.kept:
        parser.error("--sitting needs --kept: without a folder that stays nothing can go on")
    sitting_s = given.sitting * 60 if given.sitting else math.inf
    run = Run(given.minutes, given.agents, leaks, given.seed, given.think, sitting_s, bool(given.kept))
    if given.kept:
        given.kept.mkdir(parents=True, exist_ok=True)
    with lab(given.kept and given.kept.resolve()) as place:
        under = "; ".join(f"{name}: {value}" for name, value in conditions(place).items())
        soak = uvloop.run(soaked(place, run))
    if not soak.judged:
        print(f"{soak.until_s / 60:.0f} of {soak.minutes:.0f} minutes are done. The same command goes on.")
        return 0
    load = f"{soak.minutes:.0f} minutes with {given.agents:,} agents at a time"
    if len(soak.sittings) > 1:
        starts = ", ".join(f"{at / 60:.0f}" for at in soak.sittings)
        load += f" in {len(soak.sittings)} sittings, which began at minutes {starts}"
    page = report(soak, f"{load}, whose model thinks {given.think:g} s", under)
    if given.page:
        given.page.parent.mkdir(parents=True, exist_ok=True)
        given.page.write_text(page, encoding="utf-8")
    print(page)
    return 1 if soak.findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
