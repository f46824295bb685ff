"""Random trees of random acts: whatever happens, the accounts of the tree add up.

Messages are delivered in any order of sessions (each session's own in order), workers are
lost in between, and after every few acts everything under way arrives and is checked
against the fold of the tree log.
"""

from __future__ import annotations

from random import Random

from hypothesis import example, given, settings
from hypothesis import strategies as st

from orchestrator.core import commands as c
from orchestrator.core.calls import Await
from orchestrator.core.outstanding import OweRequest
from tests.commit_seed import examples
from tests.core.driver import a_command, assistant, function_call
from tests.core.tree_driver import Agent, TreeDriver

ACTS = (
    "spawn",
    "fork",
    "send",
    "interrupt",
    "await",
    "cancel",
    "prune",
    "answer",
    "command",
    "finish",
    "fail",
    "lose",
    "deliver",
    "user",
    "stop",
    "expire",
)
LIKELY = (*ACTS, "spawn", "answer", "deliver", "await")
Act = tuple[str, int, int]


class Life:
    """A random tree; an act that does not fit the agent it meets does nothing."""

    def __init__(self) -> None:
        self.tree = TreeDriver(limits={"slots": 4, "spawned": 9})
        self.tree.root.say("go", "u0")
        self._calls = 0

    def act(self, act: Act) -> None:
        name, who, whom = act
        agents = list(self.tree.agents.values())
        agent = agents[who % len(agents)]
        getattr(self, f"_{name}")(agent, agents[whom % len(agents)])

    def _ask(self, agent: Agent, assessment: c.Assessment, name: str = "tool") -> None:
        """A response that asks for one call, whose turn it is at once."""
        if not any(isinstance(work, OweRequest) for work in agent.owes()):
            return
        agent.happens(c.BeginRequest())
        if agent.state.task is None or agent.state.task.request is None:
            return
        self._calls += 1
        agent.item(function_call(f"c{self._calls}", name))
        agent.ends()
        agent.assessed(f"c{self._calls}", assessment)

    def _spawn(self, agent: Agent, _: Agent) -> None:
        self._ask(agent, self.tree.spawn(self.tree.next_id(), "work"))

    def _fork(self, agent: Agent, other: Agent) -> None:
        spec = self.tree.spec(self.tree.next_id(), "work" if other.id % 2 else "")
        self._ask(agent, c.Fork(spec, agent.seq, ""))

    def _send(self, agent: Agent, other: Agent) -> None:
        if other is not agent and self._listed(other):
            self._ask(agent, c.SendMessage(self.tree.target(other.id), "psst"))

    def _interrupt(self, agent: Agent, other: Agent) -> None:
        if agent.id in other.state.facts.ancestors and self._listed(other):
            prompt = "now" if other.id % 2 else ""
            self._ask(agent, c.SendMessage(self.tree.target(other.id), prompt, interrupt=True))

    def _await(self, agent: Agent, _: Agent) -> None:
        self._ask(agent, Await(300_000))

    def _cancel(self, agent: Agent, other: Agent) -> None:
        if agent.id in other.state.facts.ancestors and self._listed(other):
            known = self.tree.registry().agents.values()
            below = tuple(self.tree.target(a.agent_id) for a in known if a.below(other.id))
            self._ask(agent, c.CancelAgent(self.tree.target(other.id), below))

    def _prune(self, agent: Agent, other: Agent) -> None:
        if agent.id in other.state.facts.ancestors and self._listed(other):
            self._ask(agent, c.Prune((self.tree.target(other.id),), {}))

    def _answer(self, agent: Agent, _: Agent) -> None:
        if any(isinstance(work, OweRequest) for work in agent.owes()):
            agent.happens(c.BeginRequest())
            if agent.state.task is not None and agent.state.task.request is not None:
                agent.item(assistant("so it is"))
                agent.ends()

    def _command(self, agent: Agent, _: Agent) -> None:
        self._ask(agent, a_command("make", safe=True), "shell")

    def _finish(self, agent: Agent, _: Agent) -> None:
        task = agent.state.task
        if task is not None and task.running:
            agent.finishes(task.running[0].call_id)

    def _fail(self, agent: Agent, _: Agent) -> None:
        task = agent.state.task
        if any(isinstance(work, OweRequest) for work in agent.owes()):
            agent.happens(c.BeginRequest())
            task = agent.state.task
        if task is not None and task.request is not None:
            agent.breaks("fatal", "no")

    def _lose(self, agent: Agent, _: Agent) -> None:
        agent.is_taken_over()

    def _deliver(self, agent: Agent, _: Agent) -> None:
        if self.tree.queues[agent.sid]:
            self.tree.deliver(agent)

    def _user(self, agent: Agent, _: Agent) -> None:
        agent.say("you there", f"u{agent.seq}")

    def _stop(self, agent: Agent, _: Agent) -> None:
        agent.interrupt()
        self._proved(agent)

    def _expire(self, agent: Agent, _: Agent) -> None:
        for name in list(agent.timers):
            agent.fires(name)

    def _proved(self, agent: Agent) -> None:
        if agent.state.task is not None and agent.state.task.stopping:
            agent.stopped()

    def _listed(self, agent: Agent) -> bool:
        return agent.id == 0 or agent.id in self.tree.registry().agents

    def quiet(self) -> None:
        """Everything under way arrives, and whatever is being stopped is proved to have stopped."""
        while True:
            self.tree.settle()
            stopping = [a for a in self.tree.agents.values() if a.state.task and a.state.task.stopping]
            if not stopping:
                break
            for agent in stopping:
                agent.stopped()
        self.tree.check()


def lived(seed: int, scenes: int = 5, acts: int = 30) -> Life:
    """A life as this seed has it, quiet after each scene, and closed at its end."""
    chance, life = Random(seed), Life()
    for _ in range(scenes):
        for _ in range(acts):
            life.act((chance.choice(LIKELY), chance.randrange(10), chance.randrange(10)))
        life.quiet()
    life.tree.root.shutdown()
    life.quiet()
    return life


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(0, 1 << 32))
@example(634666107)  # A message crosses a cancel of the agent that it would start again.
@example(2368145367)  # The same, after a result that nobody had read.
def test_accounts_of_any_tree_add_up(seed: int) -> None:
    tree = lived(seed).tree
    assert tree.root.state.closed
    assert tree.counter("slots") == 0, "a closed tree holds nothing"
    assert not any(agent.state.task for agent in tree.agents.values()), "nothing of it is at work"
