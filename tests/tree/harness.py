"""Trees on a real server with real workers; models are scripted, one for each name.

A prompt that holds `[name]` wakes the model of that name, which answers every request of its
session from then on. Commands are scripted as in `tests.runtime`; the tools of agents are
the real ones.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import orjson

from orchestrator.core.calls import Call
from orchestrator.core.commands import Assessment, Immediate
from orchestrator.core.ids import SessionId, TreeId
from orchestrator.core.registry import RegistryView, TreeFact, fold_tree, projected
from orchestrator.core.settings import TreeRules
from orchestrator.core.state import State
from orchestrator.model.model_client import HttpBudget
from orchestrator.model.prompt import Completed, Item, ItemDone, ModelEvent, Prompt, TextDelta
from orchestrator.runtime.worker import Worker
from orchestrator.tools.agent_tools import NAMES, OFFERED
from orchestrator.tools.arguments import BadArguments
from orchestrator.tools.subagents import AgentCall, assess_agent_call
from orchestrator.tools.tool_context import CallSite
from tests.broker.actors import holder_died, lease_runs_out
from tests.runtime.connections import Gate
from tests.runtime.harness import Harness
from tests.runtime.players import ScriptedTools, ends, message

Cue = ModelEvent | Gate | asyncio.Event | Exception
Outputs = Mapping[str, Any]
Turn = Sequence[Cue] | Callable[[Outputs], Sequence[Cue]]
_NAME = re.compile(r"\[(\w+)\]")


def asks(call_id: str, name: str, **arguments: Any) -> ItemDone:
    """The model calls a tool of agents."""
    text = orjson.dumps(arguments).decode()
    return ItemDone(
        {"type": "function_call", "name": f"subagent_{name}", "arguments": text, "call_id": call_id}
    )


def noted(seen: list[dict[str, Any]]) -> Turn:
    """A turn that notes the outputs that its request shows, and says `ok`."""

    def turn(outputs: Outputs) -> list[Cue]:
        seen.append(dict(outputs))
        return [message("ok")]

    return turn


class AgentModels:
    """Models with a script for each agent."""

    def __init__(self) -> None:
        self.prompts: list[Prompt] = []
        self._turns: dict[str, deque[Turn]] = {}
        self._thoughts: dict[str, Callable[[Outputs], Sequence[Cue]]] = {}
        self._of: dict[str, str] = {}

    def will(self, name: str, *turns: Turn) -> None:
        """Queues the model's answers, request by request; behind them the model says `done`."""
        self._turns.setdefault(name, deque()).extend(turns)

    def thinks(self, name: str, thought: Callable[[Outputs], Sequence[Cue]]) -> None:
        """A model that answers by what its request tells, however often it is asked."""
        self._thoughts[name] = thought

    def retries(self, provider: str) -> tuple[int, int]:
        return 4, 5

    def name_of(self, prompt: Prompt) -> str:
        if prompt.session_id not in self._of:
            names = _NAME.findall(" ".join(_user_texts(prompt.input)))
            self._of[prompt.session_id] = names[-1] if names else ""
        return self._of[prompt.session_id]

    def seen_by(self, name: str) -> list[Prompt]:
        return [prompt for prompt in self.prompts if self.name_of(prompt) == name]

    async def stream(self, provider: str, prompt: Prompt, budget: HttpBudget) -> AsyncIterator[ModelEvent]:
        self.prompts.append(prompt)
        name = self.name_of(prompt)
        turns = self._turns.get(name)
        turn: Turn = turns.popleft() if turns else (TextDelta("done"), message("done"))
        turn = self._thoughts.get(name, turn)
        cues = turn(outputs_of(prompt)) if callable(turn) else turn
        for cue in (*cues, *(() if any(isinstance(cue, Completed) for cue in cues) else (ends(),))):
            match cue:
                case Gate() | asyncio.Event():
                    await cue.wait()
                case Exception():
                    raise cue
                case _:
                    yield cue


def _user_texts(items: Sequence[Item]) -> list[str]:
    users = (item for item in items if item.get("role") == "user")
    return [part.get("text", "") for item in users for part in item["content"]]


def outputs_of(prompt: Prompt) -> Outputs:
    """The output of each call in the request, decoded."""
    found = {}
    for item in prompt.input:
        if item["type"].endswith("_output"):
            try:
                found[item["call_id"]] = orjson.loads(item["output"])
            except orjson.JSONDecodeError:
                found[item["call_id"]] = item["output"]
    return found


class TreeTools(ScriptedTools):
    """Scripted commands, real tools of agents."""

    def specs(self, state: State) -> Sequence[Item]:
        return OFFERED

    async def assess(self, call: Call, site: CallSite) -> Assessment:
        if call.name not in NAMES:
            return await super().assess(call, site)
        assert site.agents is not None
        try:
            return await assess_agent_call(AgentCall(call, site.state, site.agents, site.seq, site.head))
        except BadArguments as error:
            return Immediate(str(error))


@dataclass
class TreeHarness:
    """Workers, models and a person."""

    harness: Harness
    models: AgentModels = field(default_factory=AgentModels)
    tools: TreeTools = field(default_factory=TreeTools)
    root: SessionId = field(default=cast(SessionId, ""))
    _workers: list[tuple[Worker, asyncio.Task[None]]] = field(default_factory=list)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _named: int = 0
    _let_go: asyncio.Event = field(default_factory=asyncio.Event)
    """Set at the end: a worker that stands still behind all that was waited for can leave."""

    def __post_init__(self) -> None:
        self.harness.ports = replace(
            self.harness.ports, models=self.models, tools=self.tools, spawn=self._spawn
        )

    def _spawn(self, coroutine: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(coroutine, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    @property
    def tree(self) -> TreeId:
        return TreeId(self.root)

    async def plant(self, prompt: str = "[root] go", policy: str = "never", **rules: Any) -> SessionId:
        """A tree whose root has been given its first input."""
        self.root = await self.harness.session(policy, agents=True, tree_rules=TreeRules(**rules))
        await self.harness.say(self.root, prompt)
        return self.root

    def start(self, count: int = 1, **config: Any) -> None:
        """Workers, as tasks of this loop."""
        for _ in range(count):
            self._named += 1
            worker = self.harness.worker(f"w{self._named}", **config)
            self._workers.append((worker, asyncio.create_task(worker.run())))

    @property
    def youngest(self) -> Worker:
        return self._workers[-1][0]

    def dies_at(self, commit: int, *, told: bool) -> asyncio.Event:
        """All workers stand still at this commit: before it, or (`told`) behind it; sets the event."""
        reached, connection = asyncio.Event(), self.harness.connection
        left = commit

        async def stand_still(_: Any) -> None:
            nonlocal left
            left -= 1
            if left <= 0:
                reached.set()
                await self._let_go.wait()

        (connection.after if told else connection.before)["commit"] = stand_still
        return reached

    async def bury(self) -> None:
        """The workers are dead, and nobody says so: their leases run out."""
        for hooks in (self.harness.connection.before, self.harness.connection.after):
            hooks.pop("commit", None)
        tasks = [*self._tasks, *(task for _, task in self._workers)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._workers.clear()
        sessions = [self.root, *(SessionId(a.session) for a in (await self.registry()).agents.values())]
        for session in sessions:
            await holder_died(self.harness.broker, session)

    async def outlast(self, session: SessionId) -> None:
        """Waits until the claim is revoked from a holder that says nothing, and lets its lease run out."""
        broker = self.harness.broker
        while not await broker.command("HEXISTS", broker.keys.session(session), "revoked"):
            pass
        await lease_runs_out(broker, session)

    async def hurry(self, timer: str) -> None:
        """Makes a timer of the root due."""
        keys = self.harness.broker.keys
        timers = keys.timers(keys.shard_of(self.root))
        await self.harness.broker.command("ZADD", timers, 1, f"{self.root}:{timer}")

    async def close(self) -> None:
        self._let_go.set()
        for worker, _ in self._workers:
            worker.drain()
        await asyncio.gather(*(task for _, task in self._workers))

    async def registry(self) -> RegistryView:
        return projected(await self.harness.broker.trees.agents(self.tree))

    async def session_of(self, agent_id: int) -> SessionId:
        return SessionId((await self.registry()).agents[agent_id].session)

    async def log(self) -> list[TreeFact]:
        entries = await self.harness.broker.logs.read_tree(self.tree, 0, 10_000)
        return [
            TreeFact(
                orjson.loads(entry.payload)["msg"],
                orjson.loads(entry.about) if entry.about else {},
                {depth.session: (depth.regular, depth.interrupts) for depth in entry.depths},
            )
            for entry in entries
        ]

    async def counter(self, name: str) -> int:
        return int((await self.harness.broker.trees.agents(self.tree)).get(name, b"0"))

    async def check(self) -> None:
        """The projection is the fold of the tree log, and the slots are those of agents at work."""
        while True:
            seq = await self.counter("tree_seq")
            fields, told = await self.harness.broker.trees.agents(self.tree), fold_tree(await self.log())
            if seq == await self.counter("tree_seq"):
                break
            # Agents are still at work: what was read is not of one moment.
        known = projected(fields)
        assert known.agents.keys() == told.agents.keys()
        for id, agent in known.agents.items():
            assert (agent.record, agent.status, agent.marked) == (
                told.agents[id].record,
                told.agents[id].status,
                told.agents[id].marked,
            )
        assert int(fields.get("slots", b"0")) == known.slots
        assert int(fields.get("spawned", b"0")) == told.spawned
