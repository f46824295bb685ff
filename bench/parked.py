"""Ten thousand sessions that wait for a person: what they cost while nobody answers.

Some come there by the real path (worker, stub, approval policy), the rest by commits of the same decisions:
through HTTP they would take minutes to make, and lie in Redis just the same. A worker is alive while they
are looked at, and alone before they are made.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import orjson

from bench.figures import Figure, at_most
from bench.lab import Fleet, Lab, fleet
from bench.scripted import COMMAND, Hand, begun, called, user_input
from bench.shares import position_of
from bench.turns import PATIENCE_S, submit_turn
from orchestrator.broker.records import Submit
from orchestrator.broker.redis_keys import Keys
from orchestrator.core.ids import SessionId, TreeId
from orchestrator.wiring.deployment import session_pool

_SAMPLE = 200
_AT_ONCE = 16
_LULL_S = 0.3
"""Of the second between two looks: none of them is over before, none begins within."""
_GLANCE_S = 0.02
_EACH_KIB = 8.0
_BESIDE = frozenset({"rollout", "snapshot"})
"""Key types that the target leaves out: they grow with the work, not with the waiting."""


@dataclass(frozen=True, slots=True)
class Watched:
    """Some seconds of a deployment in which nothing happens."""

    commands_per_s: float
    """Commands at Redis; those that scripts run count too."""
    redis_share: float
    worker_share: float
    """Of a core."""


async def run(lab: Lab, quick: bool) -> list[Figure]:
    """Watches a lone worker, parks the sessions, watches again, and weighs the keys."""
    total, real = (1_000, 100) if quick else (10_000, 300)
    watch_s = 2.0 if quick else 5.0
    async with fleet(lab, str(_scenario(lab.folder)), "approval_policy=untrusted") as running:
        running.hire(32)
        alone = await watch(running, watch_s)
        running.dismiss_workers()
        before = await used_kib(running)
        crowd = await park_by_commits(running, total - real)
        running.hire(32)
        asked = [await running.session() for _ in range(real)]
        await asyncio.gather(*(park_by_work(running, session) for session in asked))
        grown_kib = (await used_kib(running) - before) / total
        with_them, claims = await watch(running, watch_s), await held(running)
        weights = await _weights(running, [*asked[: _SAMPLE // 2], *crowd[: _SAMPLE // 2]], total)
    note = f"{total:,} sessions awaiting an approval, {real} of them by the real path, one worker alive"
    return [
        Figure("worker slots held by parked sessions", claims, "slots", at_most(0), note=note),
        *_polling(alone, with_them),
        *_by_key(weights),
        Figure("Redis memory per session, everything", grown_kib, "KiB", note="growth of used_memory"),
    ]


def _polling(alone: Watched, with_them: Watched) -> list[Figure]:
    more = with_them.commands_per_s - alone.commands_per_s
    note = (
        f"{alone.commands_per_s:.1f}/s before they were made: "
        "a look at all shards each second, and the heartbeat"
    )
    return [
        Figure("Redis commands with them parked", with_them.commands_per_s, "/s", at_most(10), note=note),
        Figure(
            "  more than without them",
            max(0.0, more),
            "/s",
            at_most(5),
            note="noise of the look and the heartbeat",
        ),
        Figure(
            "  CPU of Redis meanwhile",
            with_them.redis_share * 100,
            "%",
            note=f"{alone.redis_share * 100:.1f} % before",
        ),
        Figure(
            "  CPU of the worker meanwhile",
            with_them.worker_share * 100,
            "%",
            note=f"{alone.worker_share * 100:.1f} % before",
        ),
    ]


def _by_key(weights: dict[str, float]) -> list[Figure]:
    beside = sum(kib for kind, kib in weights.items() if kind not in _BESIDE)
    rows = [Figure(f"  of it: {kind}", kib, "KiB") for kind, kib in weights.items() if kind not in _BESIDE]
    apart = [
        Figure(f"  beside it: {kind}", weights[kind], "KiB") for kind in sorted(_BESIDE) if weights.get(kind)
    ]
    target = at_most(_EACH_KIB)
    return [
        Figure(
            "Redis memory per parked session",
            beside,
            "KiB",
            target,
            note="MEMORY USAGE, rollout and snapshot apart",
        ),
        *rows,
        *apart,
    ]


# ── making them ───────────────────────────────────────────────────────────────────────────────


def _scenario(folder: Path) -> Path:
    file = folder / "parked.json"
    file.write_bytes(orjson.dumps([{"items": [{"call": "shell", "args": {"command": COMMAND}}]}]))
    return file


async def park_by_work(running: Fleet, session: SessionId) -> None:
    async with aclosing(cast(Any, running.client.follow(session))) as events:
        await submit_turn(running, session, "turn-0")
        async with asyncio.timeout(PATIENCE_S):
            async for event in events:
                if event.type == "exec_approval_request":
                    return


async def park_by_commits(running: Fleet, count: int) -> list[SessionId]:
    sessions: list[SessionId] = []

    async def make() -> None:
        while len(sessions) < count:
            session = await running.session()
            sessions.append(session)
            await _park(running, session)

    await asyncio.gather(*(make() for _ in range(_AT_ONCE)))
    return sessions


async def _park(running: Fleet, session: SessionId) -> None:
    """In the two commits of a worker: the turn begins; its command has to be asked about."""
    broker = running.opened.broker
    payload = user_input(0)
    await broker.commits.submit(Submit(session, running.client.client_id, "turn-0", payload))
    position = await position_of(running, session)
    hand = await Hand.take(broker, session)
    step = begun(position, hand.epoch, payload)
    await hand.commit(step)
    step = called(step.position, hand.epoch)
    assert step.position.state.status == "awaiting_approval"
    await hand.commit(step, "park")


# ── looking at them ───────────────────────────────────────────────────────────────────────────


async def watch(running: Fleet, seconds: float) -> Watched:
    """Looks on for so long, after a moment in which what was begun may end."""
    await asyncio.sleep(1.0)
    first = await _lull(running)
    costs, began = running.costs(), time.monotonic()
    await asyncio.sleep(seconds)
    spent, wall_s = running.costs(), time.monotonic() - began
    last = await _lull(running)
    rate = (last.commands - first.commands) / (last.since - first.since)
    shares = {part: (spent[part].own_s - costs[part].own_s) / wall_s for part in ("redis", "worker")}
    return Watched(rate, shares["redis"], shares["worker"])


@dataclass(frozen=True, slots=True)
class _Lull:
    """A moment between two looks: what was asked until then, and when the last look ended."""

    commands: int
    since: float


async def _lull(running: Fleet) -> _Lull:
    """Waits for one: a worker asks in bursts, and a watch that cuts one in two counts a burst too many."""
    asked, since = (await commands_of(running)).total(), 0.0
    while not since or time.monotonic() - since < _LULL_S:
        await asyncio.sleep(_GLANCE_S)
        if (now := (await commands_of(running)).total()) != asked:
            asked, since = now, time.monotonic()
    return _Lull(asked, since)


async def commands_of(running: Fleet) -> Counter[str]:
    """Commands that Redis has served so far, those that scripts run too, by name."""
    info = cast(dict[str, Any], await running.opened.broker.command("INFO", "commandstats"))
    return Counter({name[8:]: stats["calls"] for name, stats in info.items() if name != "cmdstat_info"})


async def held(running: Fleet) -> float:
    """Sessions in the workers' hands: members of any lease set."""
    broker = running.opened.broker
    pool = session_pool(running.settings)
    keys = [broker.keys.leases(shard, pool) for shard in range(broker.keys.shards)]
    return float(sum([cast(int, await broker.command("ZCARD", key)) for key in keys]))


async def used_kib(running: Fleet) -> float:
    """Memory that Redis's data and buffers take."""
    info = cast(dict[str, Any], await running.opened.broker.command("INFO", "memory"))
    return float(info["used_memory"]) / 1024


async def _weights(running: Fleet, sample: Sequence[SessionId], total: int) -> dict[str, float]:
    """KiB per session by kind of key; what a shard shares is divided by all sessions."""
    broker = running.opened.broker
    weights: defaultdict[str, float] = defaultdict(float)
    for session in sample:
        for key in _own_keys(broker.keys, session):
            weights[_kind(key)] += await weight(running, key) / len(sample)
    for shard in range(broker.keys.shards):
        for key in (broker.keys.approvals(shard), broker.keys.sessions(shard), broker.keys.timers(shard)):
            weights[_kind(key)] += await weight(running, key) / total
    return {kind: kib for kind, kib in sorted(weights.items(), key=lambda pair: -pair[1]) if kib > 0}


def _own_keys(keys: Keys, session: SessionId) -> list[str]:
    tree = TreeId(session)
    return [
        *(
            build(session)
            for build in (keys.session, keys.sq, keys.eq, keys.rollout, keys.snapshot, keys.timer)
        ),
        *keys.seen(session),
        *(build(tree) for build in (keys.tree, keys.agents, keys.blobs)),
    ]


def _kind(key: str) -> str:
    return key.partition("}:")[2].partition(":")[0]


async def weight(running: Fleet, key: str, samples: int = 0) -> float:
    """KiB of one key: of all that is in it, or as so many of its entries weigh."""
    found = await running.opened.broker.command("MEMORY", "USAGE", key, "SAMPLES", samples)
    return float(cast(int, found or 0)) / 1024
