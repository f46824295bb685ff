"""Rules that must hold of a tree: at any moment by its own keys, and at rest against every agent's log.

`standing` may be asked between any two commits: whatever died in the middle of something,
the registry is what the tree's log tells. `audit_tree` is for trees in which nobody is at
work; it counts who heard what.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from redis import Redis

from orchestrator.broker.broker import Broker
from orchestrator.broker.records import TreeEntry
from orchestrator.broker.replies import tree_entry
from orchestrator.broker.trees import registry_of
from orchestrator.core.history import OUTPUT_KINDS, message_text
from orchestrator.core.ids import AgentId, SessionId, TreeId
from orchestrator.core.registry import RegistryView, TreeFact, fold_tree, projected
from orchestrator.core.state import State
from orchestrator.wiring.deployment import Deployment
from tests.crash.logs import Log

OF_THE_TREE = frozenset({"subagent_lifecycle", "agent_inbox"})


def of_tree(msg: Mapping[str, Any]) -> bool:
    """Whether an event comes from the tree's log: about agents, or asked by one of them."""
    return msg["type"] in OF_THE_TREE or "agent_path" in msg


@dataclass(frozen=True, slots=True)
class Tree:
    """A tree's own keys."""

    id: TreeId
    fields: Mapping[str, bytes]
    entries: tuple[TreeEntry, ...]

    @property
    def born(self) -> dict[int, SessionId]:
        """Every agent that was ever made, with its session."""
        named = {n[2:]: value for n, value in self.fields.items() if n.startswith("s:")}
        return {int(id): SessionId(session.decode()) for id, session in named.items()}

    @property
    def sessions(self) -> tuple[SessionId, ...]:
        """The root first."""
        return tuple(dict.fromkeys((SessionId(self.id), *self.born.values())))

    @property
    def events(self) -> list[tuple[str, Any]]:
        told = [orjson.loads(entry.payload) for entry in self.entries]
        return [(event["id"], event["msg"]) for event in told]

    @property
    def facts(self) -> list[TreeFact]:
        return [
            TreeFact(
                orjson.loads(entry.payload)["msg"],
                orjson.loads(entry.about) if entry.about else {},
                {depth.session: (depth.regular, depth.interrupts) for depth in entry.depths},
            )
            for entry in self.entries
        ]

    def counter(self, name: str) -> int:
        return int(self.fields.get(name, b"0"))


async def read_tree(deployment: Deployment, tree: TreeId) -> Tree:
    """A tree that is at rest."""
    entries = await deployment.broker.logs.read_tree(tree, 0, 1_000_000)
    return Tree(tree, await deployment.broker.trees.agents(tree), entries)


def tree_as_of_now(redis: Redis, broker: Broker, tree: TreeId) -> Tree:
    """A tree that is at work: all of it as of one moment."""
    both: Any = redis.pipeline(transaction=True)
    fields, entries = both.hgetall(broker.keys.agents(tree)).xrange(broker.keys.tree(tree)).execute()
    told = tuple(tree_entry(id, given) for id, given in entries)
    return Tree(tree, {name.decode(): value for name, value in fields.items()}, told)


def standing(tree: Tree) -> Iterator[str]:
    """Violations in a tree's keys by themselves, whatever its agents are doing."""
    known, told = projected(tree.fields), fold_tree(tree.facts)
    if [_row(known, id) for id in sorted(known.agents)] != [_row(told, id) for id in sorted(told.agents)]:
        yield "the registry is not what the log tells: " + "; ".join(_differences(known, told))
    births = [e["subagent"] for _, e in tree.events if e.get("event") == "created"]
    yield from _births(tree, births)
    if tree.counter("spawned") != len(births):
        yield f"{len(births)} agents were made, {tree.counter('spawned')} are counted"
    if tree.counter("slots") < known.slots:
        yield f"{known.slots} agents are at work, {tree.counter('slots')} slots are taken"
    yield from _budgets(tree)


def _row(view: RegistryView, id: int) -> tuple[Any, ...]:
    agent = view.agents[id]
    return id, agent.record, agent.status, agent.marked, agent.pending


def _differences(known: RegistryView, told: RegistryView) -> Iterator[str]:
    if known.agents.keys() != told.agents.keys():
        yield f"agents {sorted(known.agents)} and {sorted(told.agents)}"
        return
    for id in known.agents:
        if _row(known, id) != _row(told, id):
            yield f"{_row(known, id)} and {_row(told, id)}"


def _births(tree: Tree, births: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Numbers and sessions are given once; everybody has a parent that was there before."""
    paths = {0: "0"}
    for birth in births:
        id, parent = birth["agent_id"], birth["parent_agent_id"]
        if id in paths:
            yield f"agent {id} was made twice"
        if f"{paths.get(parent)}/{id}" != birth["agent_path"]:
            yield f"agent {id} says it is {birth['agent_path']}, under {parent}"
        if tree.born.get(id) != birth["session_id"]:
            yield f"agent {id} is {tree.born.get(id)}, born as {birth['session_id']}"
        paths[id] = birth["agent_path"]
    if tree.born.keys() - {0} != paths.keys() - {0}:
        yield f"agents without a birth, or births without an agent: {tree.born.keys() ^ paths.keys()}"
    if len(set(tree.born.values())) != len(tree.born):
        yield "two agents are one session"


def _budgets(tree: Tree) -> Iterator[str]:
    """Spent amounts are the agents' usage; held amounts are reservations."""
    registry = registry_of(tree.id, tree.fields, 0)
    for place, kind in enumerate(("tokens", "cost", "requests")):
        account = registry.budget[kind]  # type: ignore[index]
        used = sum(_amounts(value)[place] for name, value in tree.fields.items() if name.startswith("u:"))
        held = sum(_amounts(value)[place] for name, value in tree.fields.items() if name.startswith("r:"))
        if account.spent != used:
            yield f"{account.spent} {kind} are spent, agents used {used}"
        if account.held != held:
            yield f"{account.held} {kind} are held, {held} are reserved"


def _amounts(stored: bytes) -> tuple[int, int, int]:
    tokens, cost, requests = (int(part) for part in stored.split())
    return tokens, cost, requests


# ── at rest ───────────────────────────────────────────────────────────────────────────────────


def audit_tree(tree: Tree, logs: Sequence[Log]) -> Iterator[str]:
    """Violations in a tree in which nobody is at work."""
    yield from standing(tree)
    states = {log.session: log.state() for log in logs}
    yield from _accounts(tree, states)
    for log in logs:
        yield from _family(tree, states, log.session)
    yield from _letters(tree, logs, states)
    yield from _results(logs, states)


def _accounts(tree: Tree, states: Mapping[SessionId, State]) -> Iterator[str]:
    holding = sum(state.tree.slot for state in states.values())
    if (tree.counter("slots"), holding) != (0, 0):
        yield f"nobody is at work, {tree.counter('slots')} slots are taken, {holding} held"
    if any(name.startswith("r:") for name in tree.fields):
        yield "nobody is at work, and something is reserved"
    for session, state in states.items():
        id, inbox = state.facts.agent_id, state.tree.inbox
        lanes = tuple(sum(mail.interrupt == lane for mail in inbox) for lane in (False, True))
        counted = (tree.counter(f"m:{id}"), tree.counter(f"i:{id}"))
        if lanes != counted:
            yield f"the inbox of agent {id} ({session}) holds {lanes}, {counted} are counted"


def _family(tree: Tree, states: Mapping[SessionId, State], session: SessionId) -> Iterator[str]:
    """A child's parent knows it, and how it stands."""
    state, known = states[session], projected(tree.fields).agents
    facts = state.facts
    if facts.is_root:
        return
    parent = states.get(facts.parent_session) if facts.parent_session is not None else None
    child = parent.tree.children.get(facts.agent_id) if parent is not None else None
    if child is None or child.session != session:
        yield f"agent {facts.agent_id} is an orphan"
        return
    listed = known.get(facts.agent_id)
    if listed is None:
        if not child.pruned:
            yield f"agent {facts.agent_id} is off the list, and its parent does not know"
    elif child.status != listed.status:
        yield f"agent {facts.agent_id} is {listed.status}, its parent believes {child.status}"
    if state.tree.turns != child.turn and not _over(parent):
        yield f"agent {facts.agent_id} ended {state.tree.turns} tasks, its parent heard of {child.turn}"


def _over(state: State | None) -> bool:
    """Whether it reads no messages any more."""
    return state is None or bool(state.tree.canceling or state.tree.pruned or state.closed)


def _letters(tree: Tree, logs: Sequence[Log], states: Mapping[SessionId, State]) -> Iterator[str]:
    """Every message that was sent is heard once, by its reader, or still lies in its inbox."""
    heard: Counter[tuple[SessionId, str]] = Counter()
    for log in logs:
        heard.update((log.session, text) for text in _heard(log))
        heard.update(
            (log.session, mail.content.get("prompt") or "") for mail in states[log.session].tree.inbox
        )
    born = {0: SessionId(tree.id), **tree.born}
    for log in logs:
        for target, text in _sent(log):
            times = heard[born[target], text]
            least = 0 if _over(states[born[target]]) else 1
            if not least <= times <= 1:
                yield f"{text!r} was sent to agent {target} and heard {times} times"


def _sent(log: Log) -> Iterator[tuple[int, str]]:
    """(target, text) of the messages that were accepted."""
    calls = {i["call_id"]: i for _, i in log.said() if i.get("name") == "subagent_send_message"}
    for _, item in log.said():
        call = calls.get(item.get("call_id", ""))
        if call is None or item["type"] not in OUTPUT_KINDS or not str(item["output"]).startswith("{"):
            continue
        given = orjson.loads(call["arguments"])
        if given["prompt"] and "agent_id" in orjson.loads(item["output"]):
            yield given["agent_id"], given["prompt"]


def _heard(log: Log) -> Iterator[str]:
    """Texts that came in messages, each as often as the model was given it."""
    for _, item in log.said():
        if item.get("role") == "user":
            yield message_text(item)
    for ready in _ready(log):
        yield from (message["prompt"] for message in ready["messages"])


def _ready(log: Log) -> Iterator[Mapping[str, Any]]:
    """Results that awaits returned, asked for or not."""
    for _, item in log.said():
        if item["type"] in OUTPUT_KINDS and str(item["output"]).startswith('{"timed_out"'):
            yield from orjson.loads(item["output"])["ready"]


def _results(logs: Sequence[Log], states: Mapping[SessionId, State]) -> Iterator[str]:
    """Every task's end reaches the parent once, and its model once at most.

    Not at all only where the parent wrote to the child meanwhile: a result that nobody read is void then.
    """
    for log in logs:
        state = states[log.session]
        arrived = Counter((id, turn) for id, turn in _completions(log))
        for (id, turn), times in arrived.items():
            if times != 1:
                yield f"task {turn} of agent {id} ended {times} times for its parent"
        yield from _told(log, state)


def _completions(log: Log) -> Iterator[tuple[int, int]]:
    for fact in log.facts("mail"):
        if fact["mail"]["kind"] == "completion":
            yield fact["mail"]["sender"]["agent_id"], fact["mail"]["content"]["turn"]


def _told(log: Log, state: State) -> Iterator[str]:
    shown: Counter[int] = Counter()
    for ready in _ready(log):
        shown[ready["metadata"]["agent_id"]] += ready["completion"] is not None
    waiting = Counter(mail.agent_id for mail in state.tree.inbox if mail.content.get("completion"))
    wrote = {target for target, _ in _sent(log)}
    ended: Counter[AgentId] = Counter()
    for fact in log.facts("mail"):
        mail = fact["mail"]
        ended[mail["sender"]["agent_id"]] += bool(mail["content"].get("completion"))
    for id, times in ended.items():
        lost = times - shown[id] - waiting[id]
        if lost < 0:
            yield f"agent {id} had {times} results, {shown[id]} were told"
        if lost > 0 and id not in wrote and not _over(state) and not state.tree.children[id].pruned:
            yield f"agent {id} had {times} results, {lost} were never told"
