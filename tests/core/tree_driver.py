"""A tree of sessions driven in domain words, with what a commit does between them.

Each `Agent` is a session as in `driver`; the `TreeDriver` is the part of the broker that they
share: marks, counters, messages, inbox depths, the tree log and the registry's projection.
A decision that the tree refuses changes nothing and comes back as `CommitRefused`, as the
runner has it. Messages wait in queues until a test (or `settle`) delivers them, in any order
of sessions, but each session's own in order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from orchestrator.core import commands as c
from orchestrator.core.agent_views import awaited_helpers
from orchestrator.core.calls import Await
from orchestrator.core.commit_parts import NewSession, OutboundMessage, TreeEvent, TreePart
from orchestrator.core.decide import decide
from orchestrator.core.decide.draft import Decision
from orchestrator.core.ids import AgentId, SessionId
from orchestrator.core.registry import RegistryView, TreeFact, fold_tree, projected
from orchestrator.protocol.codec import parse_submission
from tests.core.driver import Seen, Session, assistant, function_call


def session_id(agent_id: int) -> SessionId:
    return SessionId(f"01996720-4a00-7000-8000-{agent_id + 1:012d}")


@dataclass
class Agent(Session):
    """A session of a tree."""

    tree: TreeDriver | None = None
    born: bool = False

    def __post_init__(self) -> None:
        if not self.born:
            super().__post_init__()

    @property
    def id(self) -> AgentId:
        return self.state.facts.agent_id

    @property
    def sid(self) -> SessionId:
        return self.state.facts.session_id

    @property
    def standing(self) -> str:
        return self.state.tree.status or ""

    def happens(self, command: c.Command) -> Seen:
        assert self.tree is not None
        self.now_ms = max(self.now_ms, self.tree.now_ms)
        decision = decide(self.state, command, c.Moment(self.now_ms, self.epoch, self.seq, self.rules))
        refusal = self.tree.refusal(self, decision.tree)
        if refusal is not None:
            assert not isinstance(command, c.CommitRefused), refusal
            return self.happens(c.CommitRefused(command, *refusal))
        self.take(decision)
        self._upkeep(decision)
        self.tree.commit(self, decision)
        self.seen.append(Seen(decision))
        return self.seen[-1]

    # --- what its model asks for -----------------------------------------------------

    def asks(self, call_id: str, name: str, assessment: c.Assessment) -> Any:
        """A response with one call of a tool, and what the call says at once (None while it waits).

        What is under way arrives while the response streams, not at the turn's boundary.
        """
        assert self.tree is not None
        self.begin()
        self.tree.settle()
        self.item(function_call(call_id, name))
        self.ends()
        self.assessed(call_id, assessment)
        return self.told(call_id)

    def told(self, call_id: str) -> Any:
        for item in self.state.conversation:
            if item.get("call_id") == call_id and item["type"].endswith("_output"):
                return _json(item["output"])
        return None

    def spawns(self, prompt: str = "work", call_id: str = "", **spec: Any) -> Agent:
        """Spawns, and fails the test if that is refused."""
        assert self.tree is not None
        number = self.tree.next_id()
        said = self.asks(
            call_id or f"spawn{number}", "subagent_spawn", self.tree.spawn(number, prompt, **spec)
        )
        assert isinstance(said, dict), said
        return self.tree.agents[number]

    def forks(self, prompt: str = "", call_id: str = "", **spec: Any) -> Agent:
        assert self.tree is not None
        number = self.tree.next_id()
        asked = c.Fork(self.tree.spec(number, prompt, **spec), self.seq, "00" * 32)
        said = self.asks(call_id or f"fork{number}", "subagent_fork", asked)
        assert isinstance(said, dict), said
        return self.tree.agents[number]

    def sends(self, target: int, prompt: str = "", call_id: str = "", **fields: Any) -> Any:
        assert self.tree is not None
        call_id = call_id or f"send{self.state.requests + 1}"
        return self.asks(
            call_id, "subagent_send_message", c.SendMessage(self.tree.target(target), prompt, **fields)
        )

    def awaits(self, *ids: int, call_id: str = "wait", timeout_s: int = 1800) -> Any:
        return self.asks(call_id, "subagent_await", Await(timeout_s * 1000, tuple(map(AgentId, ids))))

    def cancels(self, target: int, call_id: str = "cancel", reason: str = "") -> Any:
        assert self.tree is not None
        below = [a.agent_id for a in self.tree.registry().agents.values() if a.below(target)]
        asked = c.CancelAgent(self.tree.target(target), tuple(map(self.tree.target, below)), reason)
        return self.asks(call_id, "subagent_cancel", asked)

    def prunes(self, *targets: int, call_id: str = "prune", completed_only: bool = True) -> Any:
        assert self.tree is not None
        asked = c.Prune(
            tuple(map(self.tree.target, targets)), {"agent_ids": list(targets)}, (), completed_only
        )
        return self.asks(call_id, "subagent_prune", asked)


def told_by(event: TreeEvent) -> Any:
    """The message of an event, with no depth of an inbox filled in."""
    return orjson.loads(b"0".join(event.parts))["msg"]


def _json(output: str) -> Any:
    try:
        return orjson.loads(output)
    except orjson.JSONDecodeError:
        return output


@dataclass
class TreeDriver:
    """A tree."""

    limits: Mapping[str, int] = field(default_factory=lambda: {"slots": 8, "spawned": 200})
    facts: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    agents: dict[int, Agent] = field(default_factory=dict)
    fields: dict[str, bytes] = field(default_factory=dict)
    log: list[TreeFact] = field(default_factory=list)
    queues: dict[str, deque[c.Command]] = field(default_factory=dict)
    inboxes: dict[str, list[int]] = field(default_factory=dict)
    now_ms: int = 0
    _ids: int = 0
    _numbers: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        root = Agent(tree=self, facts=self.facts, settings=self.settings)
        self.now_ms = root.now_ms
        self._plant(root)
        self.fields |= {f"limit:{name}": str(most).encode() for name, most in self.limits.items()}

    @property
    def root(self) -> Agent:
        return self.agents[0]

    def _plant(self, agent: Agent) -> None:
        self.agents[agent.id] = agent
        self.queues[agent.sid] = deque()
        self.inboxes[agent.sid] = [0, 0]

    # --- what a worker looks up --------------------------------------------------------

    def next_id(self) -> int:
        self._ids += 1
        return self._ids

    def spec(self, number: int, prompt: str, **fields: Any) -> c.ChildSpec:
        return c.ChildSpec(
            AgentId(number), session_id(number), None, "1", f"You are agent {number}.", prompt, **fields
        )

    def spawn(self, number: int, prompt: str, **fields: Any) -> c.Spawn:
        return c.Spawn(self.spec(number, prompt, **fields))

    def target(self, id: int) -> c.Target:
        if id == 0:
            return c.Target(AgentId(0), self.root.sid, "0", "", {"label": None, "summary": None})
        agent = self.registry().agents[id]
        return c.Target(
            AgentId(id),
            session_id(id),
            agent.path,
            agent.status,
            agent.summary(),
            agent.pending,
            agent.marked,
        )

    def registry(self) -> RegistryView:
        return projected(self.fields)

    # --- what a commit does ------------------------------------------------------------

    def refusal(self, agent: Agent, part: TreePart | None) -> tuple[str, str] | None:
        if part is None:
            return None
        for mark in part.unless_flagged:
            if mark in self.fields:
                return "marked", mark
        debited: dict[str, int] = {}
        for debit in part.debits:
            value = debited.get(debit.counter, self.counter(debit.counter)) + debit.amount
            most = self.fields.get(debit.limit)
            if debit.amount > 0 and most is not None and value > int(most):
                return debit.counter, most.decode()
            debited[debit.counter] = value
        return None

    def counter(self, name: str) -> int:
        return int(self.fields.get(name, b"0"))

    def commit(self, agent: Agent, decision: Decision) -> None:
        part = decision.tree
        if part is None:
            return
        for debit in part.debits:
            self.fields[debit.counter] = str(self.counter(debit.counter) + debit.amount).encode()
        for child in part.children:
            self._create(child)
        for lane, taken in enumerate(part.taken):
            self.inboxes[agent.sid][lane] -= taken
            assert self.inboxes[agent.sid][lane] >= 0, "more was taken than was there"
        for outbound in part.outbox:
            self._post(outbound)
        for name, value in part.summary.items():
            self.fields[name] = value
        for event in part.events:
            self._check_told(event)
            depths: Mapping[str, tuple[int, int]] = (
                {event.inbox: self._depths(event.inbox)} if event.inbox else {}
            )
            about = orjson.loads(event.about) if event.about else {}
            self.log.append(TreeFact(told_by(event), about, depths))
        self._count()

    def _check_told(self, event: TreeEvent) -> None:
        """Events about an agent's inbox stand in the queues of the root and of who made the agent, once."""
        if event.inbox is not None:
            told = next(agent.state.facts for agent in self.agents.values() if agent.sid == event.inbox)
            made_by = told.parent_session or told.session_id
            assert sorted(event.targets) == sorted({made_by, self.root.sid}), told_by(event)

    def _depths(self, sid: str) -> tuple[int, int]:
        regular, interrupts = self.inboxes[sid]
        return regular, interrupts

    def _create(self, born: NewSession) -> None:
        child = Agent(tree=self, born=True, now_ms=self.now_ms)
        child.record(*(encoded.entry for encoded in born.unsealed))
        facts = child.state.facts
        assert (facts.session_id, facts.tree_id, facts.pool) == (born.session, born.tree, born.pool)
        assert (facts.agent_id, facts.parent_session) == (born.agent_id, born.parent)
        self._plant(child)
        for first in born.submissions:
            submission = parse_submission(first.payload)
            self.queues[child.sid].append(c.Submitted(submission.id, submission.op, "parent"))

    def _post(self, outbound: OutboundMessage) -> None:
        number = self._numbers[outbound.to] = self._numbers.get(outbound.to, 0) + 1
        payload = orjson.loads(outbound.payload)
        assert payload.pop("kind") == outbound.kind
        arrived = c.MailArrived(outbound.kind, payload, outbound.key, number, outbound.interrupt)
        self.queues[outbound.to].append(arrived)
        if outbound.counted:
            self.inboxes[outbound.to][outbound.interrupt] += 1

    def _count(self) -> None:
        for agent in self.agents.values():
            regular, interrupts = self.inboxes[agent.sid]
            self.fields[f"m:{agent.id}"] = str(regular).encode()
            self.fields[f"i:{agent.id}"] = str(interrupts).encode()

    # --- time --------------------------------------------------------------------------

    def deliver(self, agent: Agent) -> Seen:
        """The next entry of one session's queue."""
        return agent.happens(self.queues[agent.sid].popleft())

    def settle(self) -> None:
        """Delivers everything that waits in queues, and lets what ends in pieces end."""
        while any([*map(self._goes_on, list(self.agents.values()))]):
            pass

    def _goes_on(self, agent: Agent) -> bool:
        if self.queues[agent.sid]:
            self.deliver(agent)
            return True
        return bool(agent.ends_all())

    def check(self) -> None:
        """Rules that hold whenever no message is under way."""
        told, known = fold_tree(self.log), self.registry()
        assert {id: (a.record, a.status, a.marked, a.pending) for id, a in told.agents.items()} == {
            id: (a.record, a.status, a.marked, a.pending) for id, a in known.agents.items()
        }
        assert told.spawned == self.counter("spawned")
        holding = [agent for agent in self.agents.values() if agent.state.tree.slot]
        assert self.counter("slots") == len(holding)
        for agent in self.agents.values():
            self._check_agent(agent, known)

    def _check_agent(self, agent: Agent, known: RegistryView) -> None:
        tree = agent.state.tree
        assert agent.replayed() == agent.state
        if agent.id:
            assert tree.slot == (tree.status in {"queued", "running"})
            if agent.state.task is not None:
                assert tree.status == "running"
        lanes = [sum(m.interrupt == lane for m in tree.inbox) for lane in (False, True)]
        assert lanes == self.inboxes[agent.sid], f"agent {agent.id}"
        task = agent.state.task
        waited = {work.agent_id for _, work in awaited_helpers(task.calls)} if task is not None else set()
        for child in tree.children.values():
            asked = child.agent_id in waited or child.ending or not (child.helper and child.active)
            assert asked, f"helper {child.agent_id} is at work, and no call waits for it"
        for child in tree.listed_children.values():
            status = known.agents[child.agent_id].status
            # A parent need not know that what it queued has begun.
            assert (child.active, child.status) == (True, "queued") or child.status == status
            assert child.active == (status in {"queued", "running"}), f"child {child.agent_id}"


def answers(agent: Agent, words: str = "done") -> Seen:
    """A whole turn of an agent that ends its task."""
    agent.begin()
    agent.item(assistant(words))
    return agent.ends()


def a_tree(**fields: Any) -> TreeDriver:
    """A tree whose root works on something."""
    tree = TreeDriver(**fields)
    tree.root.say("do it", "u1")
    return tree


def a_family(count: int = 1, **fields: Any) -> tuple[TreeDriver, list[Agent]]:
    """A root at work, and children that have begun."""
    tree = a_tree(**fields)
    children = [tree.root.spawns(f"part {n}") for n in range(count)]
    tree.settle()
    return tree, children


def statuses(tree: TreeDriver) -> dict[int, str]:
    """How each agent stands in the registry."""
    return {id: agent.status for id, agent in tree.registry().agents.items()}
