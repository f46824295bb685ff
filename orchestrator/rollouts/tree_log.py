"""The log of a tree: as it is stored, as its fold takes it, and held against what else tells of its agents.

It is in no chain. What it says of the births of agents is also in their parents' logs, which are; what it
says of each agent is in the registry, which its fold must equal.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence

import orjson

from orchestrator.broker.broker import Broker
from orchestrator.broker.tree_records import TreeEntry
from orchestrator.core.chain import BrokenLink
from orchestrator.core.ids import TreeId
from orchestrator.core.registry import RegistryView, TreeFact, fold_tree, projected
from orchestrator.core.tree import Child
from orchestrator.protocol.wire import JsonMapping


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


# ── against what else tells of the agents ─────────────────────────────────────────────────────


async def audit_tree_log(broker: Broker, tree: TreeId, made: Sequence[Child]) -> tuple[int, list[BrokenLink]]:
    """The number of the log's entries, and what disagrees with the registry or with `made`.

    `made` are the agents that the sessions' logs say they made, read before: no more may be missing here.
    """
    fields = (await broker.projection(tree))[1]
    end = int(fields.get("tree_seq", b"0"))
    entries = [entry async for entry in tree_entries(broker, tree) if entry.tree_seq <= end]
    try:
        return len(entries), list(_disagreements(entries, end, fields, made))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return len(entries), [BrokenLink(0, f"an entry of it is none: {type(error).__name__} {error}")]


def _disagreements(
    entries: Sequence[TreeEntry], end: int, fields: Mapping[str, bytes], made: Sequence[Child]
) -> Iterator[BrokenLink]:
    numbers = [entry.tree_seq for entry in entries]
    if numbers != list(range(1, end + 1)):
        gap = next((at for at, number in enumerate(numbers, 1) if at != number), len(numbers) + 1)
        yield BrokenLink(gap, f"missing: the registry says that the tree's log goes on to {end}")
    facts = [tree_fact(entry) for entry in entries]
    for entry, fact in zip(entries, facts, strict=True):
        if _told_otherwise(fact):
            yield BrokenLink(entry.tree_seq, "what it tells of the agent is not what it records of it")
    if wrong := differs(fold_tree(facts), projected(fields)):
        yield BrokenLink(end, f"its fold is not the registry: {wrong}")
    born = {fact.about["record"]["agent_id"]: fact.about["record"] for fact in facts if _is_birth(fact)}
    yield from _births(born, fields, made, end)


def _is_birth(fact: TreeFact) -> bool:
    return fact.message.get("event") == "created" and "record" in fact.about


def _told_otherwise(fact: TreeFact) -> bool:
    told = fact.message.get("subagent")
    if not told or "record" not in fact.about:
        return False
    return any(told.get(name) != value for name, value in fact.about["record"].items() if name != "turn")


def _births(
    born: Mapping[int, JsonMapping], fields: Mapping[str, bytes], made: Sequence[Child], end: int
) -> Iterator[BrokenLink]:
    """The registry's sessions (`s:N`) and the parents' facts, against the births that the log tells of."""
    listed = {int(name[2:]): value.decode() for name, value in fields.items() if name.startswith("s:")}
    for agent in sorted((listed.keys() | born.keys()) - {0}):
        named = born[agent]["session_id"] if agent in born else None
        if listed.get(agent) != named:
            yield BrokenLink(
                end, f"agent {agent} is session {named} in it, {listed.get(agent)} in the registry"
            )
    for child in made:
        record = born.get(child.agent_id)
        if record is None:
            yield BrokenLink(end, f"it does not tell of agent {child.agent_id}, which a session's log made")
            continue
        known = {
            "session_id": child.session,
            "origin": child.origin,
            "label": child.label,
            "summary": child.summary,
            "started_at_ms": child.started_ms,
        }
        wrong = [name for name, value in known.items() if record.get(name) != value]
        if wrong:
            yield BrokenLink(
                end, f"agent {child.agent_id}: {', '.join(wrong)} not as its parent's log has it"
            )
