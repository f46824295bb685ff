"""The log of a tree: as it is stored, as its fold takes it, and held against what else tells of its agents.

It is in no chain. What it says of births, of requests to people and of decisions on them is in sessions' logs
too, which are; what it says of each agent is in the registry, which its fold must equal.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Final

import orjson

from orchestrator.broker.broker import Broker
from orchestrator.broker.logs import Logs
from orchestrator.broker.records import TreeEntry
from orchestrator.core import facts as f
from orchestrator.core.chain import BrokenLink
from orchestrator.core.commit_parts import WITHDRAWN
from orchestrator.core.entries import decode_entry, event_kind, published_kind, stored_kind
from orchestrator.core.ids import TreeId
from orchestrator.core.registry import RegistryView, TreeFact, fold_tree, projected
from orchestrator.core.tree import Child
from orchestrator.protocol.events import EVENTS, RequestResolved, SubagentLifecycle
from orchestrator.protocol.wire import JsonMapping
from orchestrator.requests import TYPES
from orchestrator.rollouts.archive import Storage
from orchestrator.rollouts.full_log import full_log

_REQUESTS: Final = frozenset(EVENTS[tag] for tag in TYPES)
"""Events of an agent's own log that the tree's log repeats for people at the root."""
_ASKER: Final = ("agent_id", "session_id", "agent_path")
_SAME: Final = (
    *("agent_id", "session_id", "parent_agent_id", "parent_session_id", "origin"),
    *("started_at_ms", "agent_path"),
)
"""Fields of an agent that never change."""
_COMMIT: Final = 256
"""Entries of a commit, at most: what an entry of the tree's log repeats was written in one with it."""


def tree_fact(entry: TreeEntry) -> TreeFact:
    """An entry of the tree log as its fold takes it."""
    return TreeFact(
        orjson.loads(entry.payload)["msg"],
        orjson.loads(entry.about) if entry.about else {},
        {depth.session: (depth.regular, depth.interrupts) for depth in entry.depths},
    )


async def tree_log(broker: Broker, tree: TreeId, after: int = 0) -> list[TreeFact]:
    """All entries of the tree log after a `tree_seq`."""
    return [tree_fact(entry) async for entry in tree_entries(broker.logs, tree, after)]


async def tree_entries(logs: Logs, tree: TreeId, after: int = 0) -> AsyncIterator[TreeEntry]:
    """The same as they are stored, page by page."""
    while page := await logs.read_tree(tree, after):
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


# ── against what else tells of the agents ─────────────────────────────────────────────────────────


async def audit_tree_log(
    storage: Storage, tree: TreeId, made: Sequence[Child]
) -> tuple[int, list[BrokenLink]]:
    """The number of the log's entries, and what disagrees with the registry or with `made`.

    `made` are the agents that the sessions' logs say they made, read before: no more may be missing here.
    """
    broker = storage.broker
    fields = (await broker.trees.projection(tree))[1]
    end = int(fields.get("tree_seq", b"0"))
    entries = [entry async for entry in tree_entries(broker.logs, tree) if entry.tree_seq <= end]
    try:
        found = list(_disagreements(entries, end, fields, made))
        return len(entries), [*found, *[it async for it in _repeated_otherwise(storage, entries)]]
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
    births = {fact.about["record"]["agent_id"]: fact.about["record"] for fact in facts if _is_birth(fact)}
    for entry, fact in zip(entries, facts, strict=True):
        if _told_otherwise(fact, births):
            yield BrokenLink(entry.tree_seq, "what it tells of the agent is not what it records of it")
    if wrong := differs(fold_tree(facts), projected(fields)):
        yield BrokenLink(end, f"its fold is not the registry: {wrong}")
    yield from _births(births, fields, made, end)


def _is_birth(fact: TreeFact) -> bool:
    return fact.message.get("event") == "created" and "record" in fact.about


def _told_otherwise(fact: TreeFact, births: Mapping[int, JsonMapping]) -> bool:
    """Whether an event of an agent's life says another thing than the record beside it, or than its birth."""
    message, record = fact.message, fact.about.get("record")
    told = message.get("subagent") or {}
    if record is not None and event_kind(message) is not SubagentLifecycle:
        return True
    if any(message[name] != told[name] for name in (*_ASKER, "status") if name in message and name in told):
        return True
    if record is not None and told:
        return any(told.get(name) != value for name, value in record.items() if name != "turn")
    born = births.get(told.get("agent_id", -1), {})
    return any(told.get(name) != born[name] for name in _SAME if told and name in born)


async def _repeated_otherwise(storage: Storage, entries: Sequence[TreeEntry]) -> AsyncIterator[BrokenLink]:
    """Requests to people, and decisions on them, that the log of the session which wrote them has not."""
    for entry in entries:
        kind, message = published_kind(entry.payload), orjson.loads(entry.payload)["msg"]
        decision = message.get("decision")
        if kind not in _REQUESTS and (kind is not RequestResolved or decision == WITHDRAWN):
            continue
        if await storage.broker.logs.head(entry.session) is None:
            continue  # That it is gone is a finding of its own.
        says = _asks if kind in _REQUESTS else _decides
        near = max(0, entry.seq - _COMMIT)
        # A decision is repeated later, where the turn was stopped first.
        for after in dict.fromkeys((near, 0)):
            log = full_log(storage.broker.logs, storage.archive, entry.session, after, entry.seq)
            if any([says(stored.payload, message) async for stored in log]):
                break
        else:
            what = "a request" if kind in _REQUESTS else f"a decision ({decision})"
            where = f"the log of session {entry.session} has not"
            yield BrokenLink(entry.tree_seq, f"it tells of {what} that {where}")


def _asks(payload: bytes, message: JsonMapping) -> bool:
    """Whether an entry of a session's log is the request that a message of the tree's log repeats."""
    if stored_kind(payload) is not EVENTS.get(message["type"]):
        return False
    said = {name: value for name, value in message.items() if name not in _ASKER}
    own = decode_entry(payload).payload
    return {name: value for name, value in own.items() if name not in _ASKER} == said


def _decides(payload: bytes, message: JsonMapping) -> bool:
    """The same of a decision."""
    if stored_kind(payload) is not f.Answered:
        return False
    fact = f.decode(decode_entry(payload).payload)
    assert isinstance(fact, f.Answered)
    decided = {"call_id": fact.call_id, "decision": fact.decision, "who": fact.who}
    return all(message.get(name, "") == value for name, value in decided.items())


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
