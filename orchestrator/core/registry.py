"""The registry of a tree: who is in it and how each stands, told by the tree log alone.

The projection in the broker's hash is what workers read; this fold is what it must equal,
and what rebuilds it. Both are needed: the projection answers at once, the log cannot lie.

    a:<id>       an agent's record, written by its parent at its birth and then by itself
    d:<id>       the turn whose result its parent has read last
    x:<id>       it was pruned
    cancel:<id>  it was cancelled: nothing may start in it or below it
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import field
from typing import TYPE_CHECKING

import orjson

from orchestrator.core.commit_parts import SLOTS, SPAWNED
from orchestrator.core.frozen import record, replace
from orchestrator.core.tree import ACTIVE

if TYPE_CHECKING:
    from orchestrator.core.settings import TreeRules
    from orchestrator.protocol.wire import JsonMapping, JsonObject

_NOBODY = -1


def first_limits(rules: TreeRules) -> dict[str, bytes]:
    """The fields that a tree begins with."""
    limits = {SLOTS: rules.slots, SPAWNED: rules.spawned, **rules.budgets}
    return {f"limit:{name}": b"%d" % most for name, most in limits.items()}


@record
class Agent:
    """An agent of the registry."""

    record: JsonMapping
    read_turn: int = 0
    pending: tuple[int, int] = (0, 0)
    marked: bool = False

    @property
    def agent_id(self) -> int:
        return int(self.record["agent_id"])

    @property
    def session(self) -> str:
        return str(self.record["session_id"])

    @property
    def path(self) -> str:
        return str(self.record["agent_path"])

    @property
    def status(self) -> str:
        """`ready` becomes `idle` when the parent has read the result of that very turn."""
        status, turn = str(self.record["status"]), self.record["turn"]
        return "idle" if status == "ready" and turn and turn == self.read_turn else status

    @property
    def active(self) -> bool:
        return self.status in ACTIVE

    @property
    def at_work(self) -> bool:
        """Active, or about to be: a message that it has not read may start it again."""
        return self.active or (self.status != "canceled" and not self.marked and any(self.pending))

    def below(self, agent_id: int) -> bool:
        """Whether this agent is a descendant of `agent_id`."""
        return str(agent_id) in self.path.split("/")[:-1]

    def summary(self) -> JsonObject:
        """The SubagentSummary."""
        from orchestrator.core.agent_views import summary_of

        return summary_of({**self.record, "status": self.status}, self.pending)


@record
class TreeFact:
    """An entry of the tree log, decoded."""

    message: JsonMapping
    about: JsonMapping = field(default_factory=dict)
    depths: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Inbox depths by session, as of this entry."""


@record
class RegistryView:
    """A tree as of some entry of its log. Pruned agents are not in it."""

    agents: Mapping[int, Agent] = field(default_factory=dict)
    spawned: int = 0

    @property
    def slots(self) -> int:
        """How many agents hold one of the tree's slots."""
        return sum(agent.active for agent in self.agents.values())

    def children_of(self, agent_id: int) -> list[Agent]:
        return [a for a in self.agents.values() if a.record["parent_agent_id"] == agent_id]

    def at_work_from(self, agent_id: int) -> dict[int, Agent]:
        """The agents at work, from `agent_id` down."""
        found = self.agents.items()
        return {id: one for id, one in found if one.at_work and (id == agent_id or one.below(agent_id))}

    def is_marked(self, agent: Agent) -> bool:
        """Whether the agent, or one above it, was cancelled: nothing starts in it any more."""
        line = (self.agents.get(int(number)) for number in agent.path.split("/"))
        return any(each is not None and each.marked for each in line)

    def after(self, fact: TreeFact) -> RegistryView:
        """The view after one more entry of the tree log."""
        return fold_tree((fact,), self)


def fold_tree(facts: Iterable[TreeFact], view: RegistryView | None = None) -> RegistryView:
    """The registry that a tree log tells of."""
    fold = _Fold(view or RegistryView())
    for fact in facts:
        fold.take(fact)
    return RegistryView(fold.agents, fold.spawned)


class _Fold:
    """A registry that is being told. Views are values; copying one for each entry of a log is not cheap."""

    def __init__(self, view: RegistryView) -> None:
        self.agents = dict(view.agents)
        self.spawned = view.spawned
        self._ids = {agent.session: id for id, agent in view.agents.items()}

    def take(self, fact: TreeFact) -> None:
        about = fact.about
        if "record" in about:
            self._recorded(about["record"], fact.message.get("event") == "created")
        else:
            self._marked(fact, about.get("agent_id", fact.message.get("agent_id")))
        for session, pending in fact.depths.items():
            agent = self.agents.get(self._ids.get(session, _NOBODY))
            if agent is not None:
                self.agents[agent.agent_id] = replace(agent, pending=pending)

    def _recorded(self, record: JsonMapping, born: bool) -> None:
        self.spawned += born
        known = self.agents.get(record["agent_id"])
        if known is not None:
            self.agents[known.agent_id] = replace(known, record=record)
        elif born:
            # Later records of a pruned agent do not count any more.
            agent = Agent(record)
            self.agents[agent.agent_id] = agent
            self._ids[agent.session] = agent.agent_id

    def _marked(self, fact: TreeFact, id: int | None) -> None:
        agent = self.agents.get(_NOBODY if id is None else id)
        if agent is None:
            return
        if fact.message.get("event") == "deleted":
            del self.agents[agent.agent_id]
            return
        if "read" in fact.about:
            agent = replace(agent, read_turn=fact.about["read"])
        if fact.about.get("marked"):
            agent = replace(agent, marked=True)
        self.agents[agent.agent_id] = agent


def projected(fields: Mapping[str, bytes]) -> RegistryView:
    """The registry as the projection's flat fields say."""
    agents = (_agent(id, orjson.loads(text), fields) for id, text in _records(fields))
    ordered = dict(sorted((agent.agent_id, agent) for agent in agents))
    return RegistryView(ordered, int(fields.get("spawned", b"0")))


def listed_agents(fields: Mapping[str, bytes]) -> Mapping[int, Agent]:
    """The agents of a projection for a list: one whose record cannot be read hides no other."""
    found: dict[int, Agent] = {}
    for id, text in _records(fields):
        with suppress(ValueError, KeyError, TypeError):
            agent = _agent(id, orjson.loads(text), fields)
            if agent.session and agent.path and agent.status:
                found[agent.agent_id] = agent
    return dict(sorted(found.items()))


def _records(fields: Mapping[str, bytes]) -> Iterator[tuple[str, bytes]]:
    """The agents' records by their numbers, without those that were pruned."""
    return (
        (name[2:], text)
        for name, text in fields.items()
        if name.startswith("a:") and f"x:{name[2:]}" not in fields
    )


def _agent(id: str, record: JsonMapping, fields: Mapping[str, bytes]) -> Agent:
    pending = (int(fields.get(f"m:{id}", b"0")), int(fields.get(f"i:{id}", b"0")))
    return Agent(record, int(fields.get(f"d:{id}", b"0")), pending, f"cancel:{id}" in fields)
