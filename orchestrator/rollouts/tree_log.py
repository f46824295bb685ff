"""The log of a tree, as it is stored and as its fold takes it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import orjson

from orchestrator.broker.broker import Broker
from orchestrator.broker.tree_records import TreeEntry
from orchestrator.core.ids import TreeId
from orchestrator.core.registry import RegistryView, TreeFact


def tree_fact(entry: TreeEntry) -> TreeFact:
    """An entry of the tree log as its fold takes it."""
    return TreeFact(
        orjson.loads(entry.payload)["msg"],
        orjson.loads(entry.about) if entry.about else {},
        {depth.session: (depth.regular, depth.interrupts) for depth in entry.depths},
    )


async def tree_log(broker: Broker, tree: TreeId, after: int = 0) -> list[TreeFact]:
    """All entries of the tree log after a `tree_seq`."""
    return [tree_fact(entry) async for entry in tree_entries(broker, tree, after)]


async def tree_entries(broker: Broker, tree: TreeId, after: int = 0) -> AsyncIterator[TreeEntry]:
    """The same as they are stored, page by page."""
    while page := await broker.read_tree(tree, after):
        for entry in page:
            yield entry
        after = page[-1].tree_seq


def differs(log: RegistryView, projection: RegistryView) -> str:
    """The difference of the projection from the fold of its log; empty if they are equal."""
    if log.agents.keys() != projection.agents.keys():
        return f"agents {sorted(projection.agents)} instead of {sorted(log.agents)}"
    for number, told in log.agents.items():
        shown = projection.agents[number]
        names = ("record", "status", "marked", "pending")
        wrong = [name for name in names if getattr(told, name) != getattr(shown, name)]
        if wrong:
            return f"agent {number}: {', '.join(wrong)}"
    return "" if log.spawned == projection.spawned else "the number of agents made"
