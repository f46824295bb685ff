"""Trees of agents: how soon a parent hears of a child, how fast they are made, what parked ones cost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any, cast

import orjson

from bench import families
from bench.figures import Figure, at_least, at_most, spread
from bench.lab import Fleet, Lab, fleet
from bench.latency import marks
from bench.parked import Watched, held, used_kib, watch, weight
from bench.shares import POOL
from bench.tree_script import merged, order
from bench.turns import PATIENCE_S, submit_turn
from orchestrator.core.ids import SessionId, TreeId
from orchestrator.core.registry import projected
from orchestrator.rollouts.archive import Archive, Storage
from orchestrator.rollouts.full_log import head_of
from orchestrator.runtime.loader import end_of, folded
from orchestrator.wiring.deployment import session_pool
from workers.upkeep_sealing import Moved, Mover, seal_session, seal_tree_log

WIDE = ("max_active_subagents=2000", "agents.max_spawned=2000", "model_context_window=100000000")
"""Limits raised, and a window that a thousand results fit in: nothing is compacted."""
_SAMPLE = 60
_TREE = 100
"""Agents of one parked tree, its root counted."""
_WATCH_S = 5.0
"""As long as from one heartbeat of a worker to the next."""


async def run(lab: Lab, quick: bool) -> list[Figure]:
    """Latency, a wide tree, parked trees, a tree rebuilt."""
    rounds, wide, parked, lived = (40, 200, 10, 100) if quick else (120, 1_000, 100, 1_000)
    found: list[Figure] = []
    async with fleet(lab, "slow-trees") as running:
        found += await _handover(running, rounds)
    async with fleet(lab, "trees", *WIDE) as running:
        found += await _wide(running, wide)
        found += await _rebuilt(running, lived)
    async with fleet(lab, "trees", "approval_policy=untrusted", *WIDE) as running:
        found += await _parked(running, parked)
    return found


# ── from a child to its parent ────────────────────────────────────────────────────────────────


async def _handover(running: Fleet, rounds: int) -> list[Figure]:
    """Trees of two: from the last byte of the child's answer until its parked parent asks its model again."""
    running.hire(16)
    roots = [await running.session() for _ in range(rounds)]
    for root in roots:
        await _grown(running, root, 1)
    seen, took = marks(running), []
    for root in roots:
        child = (await running.opened.broker.trees.agents(TreeId(root)))["s:1"].decode()
        done = seen[child][0][1]
        took.append(next(asked for asked, _ in seen[root] if asked > done) - done)
    note = f"{rounds} trees, one by one: last SSE byte for the child → next request of its parked parent"
    return [spread("child done → parent's turn", took, at_most(20, p99=20), note)]


async def _grown(running: Fleet, root: SessionId, count: int) -> None:
    """Returns when the root has heard of every agent."""
    async with aclosing(cast(Any, running.client.follow(root))) as events:
        await submit_turn(running, root, "turn-0", order(count))
        await _merged(events, count)


async def _merged(events: Any, count: int) -> None:
    async with asyncio.timeout(PATIENCE_S):
        async for event in events:
            if event.type == "error":
                raise RuntimeError(f"the root of {count} agents failed: {event.msg['message']}")
            if event.type == "task_complete":
                said = event.msg["last_agent_message"]
                if said != merged(count):
                    raise RuntimeError(f"of {count} agents: {said}")
                return


# ── a wide tree ───────────────────────────────────────────────────────────────────────────────


async def _wide(running: Fleet, count: int) -> list[Figure]:
    """A worker with room for the root alone makes the children; then two workers run them."""
    root = await running.session()
    running.hire(1)
    async with aclosing(cast(Any, running.client.follow(root))) as events:
        began = time.monotonic()
        await submit_turn(running, root, "turn-0", order(count))
        await _created(events, count)
        made_s = time.monotonic() - began
        running.dismiss_workers()
        hired = time.monotonic()
        for _ in range(2):
            running.hire(32)
        began, left = time.monotonic(), await _at_work(running, root)
        await _merged(events, count)
        ended = time.monotonic()
    note = f"{count:,} calls of one response, from submission; one worker"
    done = (
        f"the last {left:,} of {count:,}, all awaited and merged by their root; two workers. "
        f"With their start, {count:,} took {ended - hired:.1f} s"
    )
    return [
        Figure("children created", count / made_s, "/s", at_least(300), note=note),
        Figure("children run and merged", left / (ended - began), "turns/s", at_least(150), note=done),
    ]


async def _at_work(running: Fleet, root: SessionId) -> int:
    """Agents that are not done."""
    return projected(await running.opened.broker.trees.agents(TreeId(root))).slots


async def _created(events: Any, count: int) -> None:
    left = count
    async with asyncio.timeout(PATIENCE_S):
        async for event in events:
            left -= event.msg.get("event") == "created"
            if not left:
                return


# ── a tree rebuilt ────────────────────────────────────────────────────────────────────────────


async def _rebuilt(running: Fleet, agents: int) -> list[Figure]:
    root, children = await families.family(running, POOL, agents - 1)
    await families.side_by_side(lambda session: families.live(running, session), children)
    told = orjson.loads(running.lab.run("bench.rebuild_process", root))
    assert told["agents"] == agents
    cpu = f"{told['logs_cpu_s']:.1f} s of CPU in Python"
    entries = f"{told['entries']:,} entries of {agents:,} agents, {told['tree_entries']:,} of the tree's log"
    name = f"rebuild of a tree of {agents:,} agents"
    return [
        Figure(
            f"{name}: logs alone",
            told["logs_s"],
            "s",
            at_most(3),
            note=f"{entries}; every chain verified; {cpu}",
        ),
        Figure(
            f"{name}: snapshots",
            told["snapshots_s"],
            "s",
            at_most(1),
            note="the registry's projection, and a snapshot and tail each",
        ),
    ]


# ── parked trees ──────────────────────────────────────────────────────────────────────────────


async def _parked(running: Fleet, trees: int) -> list[Figure]:
    """Roots that await, agents that wait for a person; a worker looks on."""
    running.hire(32)
    alone = await watch(running, _WATCH_S)
    running.dismiss_workers()
    before = await used_kib(running)
    made = [await families.family(running, session_pool(running.settings), _TREE - 1) for _ in range(trees)]
    children = [child for _, family in made for child in family]
    await families.side_by_side(lambda session: families.park(running, session), children)
    total = trees * _TREE
    grown = (await used_kib(running) - before) / total
    running.hire(32)
    with_them, claims = await watch(running, _WATCH_S), await held(running)
    roots = [root for root, _ in made]
    weights = await _weights(running, roots, children)
    running.dismiss_workers()
    sealed = await _sealed(running, roots, children)
    note = (
        f"{total:,} agents in {trees} trees: roots that await, agents that wait for an approval; one worker"
    )
    return [
        Figure("worker slots held by parked agents", claims, "slots", at_most(0), note=note),
        *_looks(alone, with_them),
        Figure("Redis memory per parked agent", grown, "KiB", note="growth of used_memory"),
        *(Figure(f"  of it: {kind}", kib, "KiB", note="MEMORY USAGE") for kind, kib in weights.items()),
        *sealed,
    ]


async def _sealed(running: Fleet, roots: Sequence[SessionId], children: Sequence[SessionId]) -> list[Figure]:
    """The memory of agents whose logs upkeep has sealed to their ends, and the time of a load from there."""
    archive = Archive.at(running.settings.upkeep.archive_url)
    storage = Storage(running.opened.broker, running.opened.blobs, archive)
    mover = Mover(storage, "bench", 1_024, archive_after_ms=0, seal_idle_ms=0)
    took: list[float] = []
    for session in _sample_of(children):
        assert await seal_session(mover, session) is Moved.DONE
        head = await head_of(running.opened.broker.logs, session)
        began = time.monotonic()
        await folded(storage, end_of(head))
        took.append(time.monotonic() - began)
    for root in roots:
        assert await seal_tree_log(mover, TreeId(root)) is Moved.DONE
    left = await _weights(running, roots, children)
    del left["events"]
    note = "MEMORY USAGE; its log and its tree's were sealed, and its events are gone, as after an hour"
    return [
        Figure("Redis memory per parked agent, sealed", sum(left.values()), "KiB", at_most(4), note=note),
        *(Figure(f"  of it: {kind}", kib, "KiB", note="MEMORY USAGE") for kind, kib in left.items()),
        spread("  a load of it from the archive", took, at_most(20), "a local folder"),
    ]


def _sample_of(children: Sequence[SessionId]) -> Sequence[SessionId]:
    return children[:: max(1, len(children) // _SAMPLE)]


def _looks(alone: Watched, with_them: Watched) -> list[Figure]:
    more = max(0.0, with_them.commands_per_s - alone.commands_per_s)
    note = f"{alone.commands_per_s:.0f}/s before they were made, {with_them.commands_per_s:.0f}/s with them"
    return [Figure("Redis commands that they cost", more, "/s", at_most(5), note=note)]


async def _weights(
    running: Fleet, roots: Sequence[SessionId], children: Sequence[SessionId]
) -> dict[str, float]:
    """KiB per agent: of its own keys, and of its tree's, which all of the tree share."""
    keys = running.opened.broker.keys
    own: dict[str, float] = {}
    sample = _sample_of(children)
    for kind, build in (
        ("log", keys.rollout),
        ("events", keys.eq),
        ("session", keys.session),
        ("queue", keys.sq),
    ):
        own[kind] = sum([await weight(running, build(session)) for session in sample]) / len(sample)
    shared = {"the tree's log": (keys.tree, keys.sealed_tree), "the registry": (keys.agents,)}
    for kind, keys_of in shared.items():
        weights = [await weight(running, key_of(root)) for root in roots for key_of in keys_of]
        own[kind] = sum(weights) / len(roots) / _TREE
    return own
