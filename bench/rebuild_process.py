"""Rebuilds one tree in a fresh process: its registry and every agent's state. Tells what that took.

python -m bench.rebuild_process TREE
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator
from typing import Any

import orjson
import uvloop

from orchestrator.broker.records import SessionHead, TreeEntry
from orchestrator.core.ids import SessionId, TreeId
from orchestrator.core.registry import RegistryView, TreeFact, fold_tree, projected
from orchestrator.runtime.loader import LogEnd, end_of, folded
from orchestrator.runtime.ports import Ports
from orchestrator.settings import SettingsSources, load_settings
from orchestrator.wiring.deployment import deployment

_AT_ONCE = 16
_PAGE = 2_000


async def _rebuild(tree: TreeId) -> dict[str, Any]:
    settings = load_settings(SettingsSources.of_process())
    async with deployment(settings, settings.redis.url or "") as opened:
        unused: Any = None
        ports = Ports(opened.broker, opened.texts, models=unused, tools=unused)
        began, cpu = time.perf_counter(), time.process_time()
        told, facts = await _told(ports, tree)
        ends = [_from_the_first(head) for head in await _heads(ports, tree, told)]
        entries = await _fold_all(ports, ends)
        logs_s, logs_cpu_s = time.perf_counter() - began, time.process_time() - cpu
        began = time.perf_counter()
        known = projected(await opened.broker.trees.agents(tree))
        await _fold_all(ports, [end_of(head) for head in await _heads(ports, tree, known)])
        snapshots_s = time.perf_counter() - began
    same = [(a.record, a.status, a.pending) for a in known.agents.values()]
    assert same == [(a.record, a.status, a.pending) for a in told.agents.values()]
    return {
        "agents": len(ends),
        "entries": entries,
        "tree_entries": facts,
        "logs_s": logs_s,
        "logs_cpu_s": logs_cpu_s,
        "snapshots_s": snapshots_s,
    }


async def _told(ports: Ports, tree: TreeId) -> tuple[RegistryView, int]:
    """The registry by the tree's log alone, and how long that is."""
    view, after = RegistryView(), 0
    while page := await ports.broker.logs.read_tree(tree, after, _PAGE):
        view = fold_tree(_facts(page), view)
        after = page[-1].tree_seq
    return view, after


def _facts(page: tuple[TreeEntry, ...]) -> Iterator[TreeFact]:
    for entry in page:
        about = orjson.loads(entry.about) if entry.about else {}
        depths = {str(depth.session): (depth.regular, depth.interrupts) for depth in entry.depths}
        yield TreeFact(orjson.loads(entry.payload)["msg"], about, depths)


async def _heads(ports: Ports, tree: TreeId, view: RegistryView) -> list[SessionHead]:
    sessions = [SessionId(tree), *(SessionId(agent.session) for agent in view.agents.values())]
    heads = await asyncio.gather(*(ports.broker.logs.head(session) for session in sessions))
    return [head for head in heads if head is not None]


def _from_the_first(head: SessionHead) -> LogEnd:
    return LogEnd(head.session, head.seq, head.head, snapshot_seq=0)


async def _fold_all(ports: Ports, ends: list[LogEnd]) -> int:
    """Folds every session, verified by its chain; answers how many entries they have."""
    left = iter(ends)

    async def some() -> int:
        return sum([(await folded(ports, end)).seq for end in left])

    return sum(await asyncio.gather(*(some() for _ in range(_AT_ONCE))))


if __name__ == "__main__":
    sys.stdout.buffer.write(orjson.dumps(uvloop.run(_rebuild(TreeId(SessionId(sys.argv[1]))))))
