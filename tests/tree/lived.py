"""A flow of the protocol that is lived from its first op to its end, and what it left behind.

A life's model answers from its request alone, and its person from the event alone: so two lives of one flow
differ only by what befell their workers.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any, cast

import orjson

from orchestrator.core.calls import Call, Mcp, McpWork, StdinWork, WriteStdin
from orchestrator.core.commands import Assessment, CallFinished
from orchestrator.core.entries import decode_entry
from orchestrator.core.ids import SessionId
from orchestrator.core.record_json import whole
from orchestrator.core.settings import Rules
from orchestrator.core.state import State
from orchestrator.gateways.client import Client
from orchestrator.model.model_client import HttpBudget
from orchestrator.model.prompt import Completed, Item, ModelEvent, Prompt
from orchestrator.protocol import ops
from orchestrator.protocol.ids import CallId
from orchestrator.protocol.mcp import CallToolResult
from orchestrator.tools.agent_tools import AGENT_TOOLS
from orchestrator.tools.question import AskUserQuestionTool, RequestUserInputTool
from orchestrator.tools.tool_context import CallSite
from orchestrator.tools.toolbox import Toolbox
from orchestrator.tools.update_plan import ApprovePlanTool
from orchestrator.views.event import Event
from tests.runtime.connections import Gate
from tests.runtime.harness import Harness
from tests.runtime.players import ScriptedTools, ends
from tests.tree.harness import Cue, TreeHarness

ASKS = ("ask_user_question", "request_user_input", "approve_plan", "propose_plan_variants")
ANSWERS = frozenset(
    {
        "task_complete",
        "list_custom_prompts_response",
        "list_skills_response",
        "get_history_entry_response",
        "mcp_list_tools_response",
    }
)
"""The events that end what an op began."""
OF_ATTEMPTS = frozenset(
    {"stream_error", "token_count", "sub_agent_tool_call_activity", "sub_agent_tool_call_tokens"}
)
"""Events that count or tell of attempts: a lost worker's request is sent again."""
OF_LIVES = frozenset({"duration", "started_at", "log_id", "history_log_id", "who", "client"})
"""Fields that are others in every life."""
WITHIN_S = 60.0
DOUBT = "in doubt"
GONE = "<process_gone>"
_BOX = Toolbox((*AGENT_TOOLS, AskUserQuestionTool(), RequestUserInputTool(), ApprovePlanTool()))


@dataclass(frozen=True, slots=True)
class Flow:
    """A flow: what its person does, and what its model answers."""

    name: str
    ops: Sequence[Any]
    """Each is given when what the one before began has ended."""
    thinks: Callable[[Prompt], Sequence[Cue]]
    reacts: Callable[[Event], Any] = lambda event: None
    """The op that answers an event, if any does."""
    agents: bool = False
    rules: Rules = field(default_factory=Rules)


class FlowModels:
    """A model that answers each request by what it shows."""

    def __init__(self, thinks: Callable[[Prompt], Sequence[Cue]]) -> None:
        self.prompts: list[Prompt] = []
        self._thinks = thinks

    def retries(self, provider: str) -> tuple[int, int]:
        return 4, 5

    async def stream(self, provider: str, prompt: Prompt, budget: HttpBudget) -> AsyncIterator[ModelEvent]:
        self.prompts.append(prompt)
        cues = self._thinks(prompt)
        for cue in (*cues, *(() if any(isinstance(cue, Completed) for cue in cues) else (ends(),))):
            yield cast(ModelEvent, cue)


class FlowTools(ScriptedTools):
    """Real requests to people and real helpers; scripted commands, processes and a server that asks twice."""

    def __init__(self) -> None:
        super().__init__()
        self.typed: list[str] = []

    def specs(self, state: State) -> Sequence[Item]:
        return _BOX.specs(state)

    async def assess(self, call: Call, site: CallSite) -> Assessment:
        if call.name in ASKS:
            return await _BOX.assess(call, site)
        if call.name == "write_stdin":
            given = orjson.loads(call.item["arguments"])
            return WriteStdin(given["session_id"], given["chars"], 250, 100)
        if call.name.startswith("mcp__"):
            return Mcp("files", "wipe", {}, "/tmp")
        return await super().assess(call, site)

    async def run(self, call: Call, site: CallSite) -> CallFinished:
        match call.work:
            case StdinWork(number=number, chars=chars):
                self.started[call.call_id] += 1
                self.typed.append(whole(chars))
                # It goes on until it reads that.
                self.processes.setdefault(number, Gate()).open()
                return CallFinished(call.call_id, "typed")
            case McpWork() as work:
                self.started[call.call_id] += 1
                assert site.ask is not None
                said = [
                    (await site.ask(CallId(call.call_id), "files", words)).value
                    for words in ("May I?", "Sure?")
                ]
                result = CallToolResult(content=({"type": "text", "text": " ".join(said)},))
                return CallFinished(call.call_id, " ".join(said), (work.end(call.call_id, result, 0.0),))
            case _:
                return await super().run(call, site)


@dataclass
class Life:
    """A life of a flow on an empty deployment, or beside lives that are over."""

    harness: Harness
    flow: Flow
    number: int
    models: FlowModels = field(init=False)
    tools: FlowTools = field(default_factory=FlowTools)
    trees: TreeHarness = field(init=False)
    commits: int = 0

    def __post_init__(self) -> None:
        self.models = FlowModels(self.flow.thinks)
        self.trees = TreeHarness(self.harness, cast(Any, self.models), cast(Any, self.tools))
        who = f"person{self.number}"
        ports = self.harness.client._ports
        self.harness.client = Client(ports, f"client-of-{who}", who)

    async def lived(self, dies_at: int = 0, *, told: bool = False) -> Account:
        """Lives the flow; all workers die at a commit, before it or (`told`) behind it, and others come."""
        harness, trees = self.harness, self.trees
        before = harness.connection.sent["commit"]
        trees.root = await harness.session(agents=self.flow.agents)
        rules = replace(self.flow.rules, parallel_safe=_BOX.parallel_safe, repeatable=_BOX.repeatable)
        died = trees.dies_at(dies_at, told=told) if dies_at else asyncio.Event()
        trees.start(rules=rules)
        person = asyncio.ensure_future(self._person())
        death = asyncio.ensure_future(died.wait())
        await asyncio.wait({person, death}, return_when=asyncio.FIRST_COMPLETED)
        if not person.done():
            await trees.bury()
            trees.start(rules=rules)
        await person
        death.cancel()
        await trees.close()
        self.commits = harness.connection.sent["commit"] - before
        return await self._account()

    async def _person(self) -> None:
        """Gives one op after the other, and answers what is asked, until nothing runs any more."""
        left, given, began = list(self.flow.ops), "", 0
        async with asyncio.timeout(WITHIN_S):
            events = cast(Any, self.harness.client.follow(self.trees.root))
            async with aclosing(events):
                given = await self._next(left)
                running: Counter[str] = Counter()
                async for event in events:
                    reaction = self.flow.reacts(event)
                    if reaction is not None:
                        began += 1
                        await self.harness.submit(self.trees.root, reaction, f"answer-{began}")
                    running[event.msg.get("call_id", "")] += _opens(event)
                    if event.id == given and event.type in ANSWERS:
                        given = await self._next(left) if left else ""
                    if not given and not any(running.values()):
                        return

    async def _next(self, left: list[Any]) -> str:
        while True:
            op, id = left.pop(0), f"op-{len(self.flow.ops) - len(left)}"
            if isinstance(op, ops.GetHistoryEntryRequest):
                head = await self.harness.broker.requests.history_head(f"person{self.number}", b"12345678")
                op = op.model_copy(update={"log_id": head.log_id})
            await self.harness.submit(self.trees.root, op, id)
            if not isinstance(op, ops.AddToHistory):
                return id

    # ── what is left ──────────────────────────────────────────────────────────────────────────

    async def _account(self) -> Account:
        sessions, numbers = {self.trees.root: "root"}, dict[int, int]()
        if self.flow.agents:
            agents = (await self.trees.registry()).agents
            # A number that was reserved and not used is not given again: agents have their places instead.
            for place, (id, agent) in enumerate(sorted(agents.items()), 1):
                sessions[SessionId(agent.session)] = f"agent of place {place}"
                numbers[id] = place
        account = Account(self)
        for session, name in sessions.items():
            entries = [decode_entry(entry.payload) for entry in await self.harness.log(session)]
            account.states[name] = (await self.harness.replayed(session)).state
            assert await self.harness.live_digest(session) == await self.harness.digest(session)
            account.facts[name] = [e.payload for e in entries if e.type == "dendro"]
            account.events[name] = [
                _plain({"id": e.id, **e.payload}, sessions, numbers) for e in entries if e.type == "event_msg"
            ]
            account.items[name] = [_plain(item, sessions, numbers) for item in account.states[name].history]
        for prompt in self.models.prompts:
            shown = [_plain(item, sessions, numbers) for item in prompt.input]
            account.requests.setdefault(sessions[SessionId(prompt.session_id)], []).append(shown)
        return account


@dataclass
class Account:
    """Remains of a life: the log's facts and events, the conversations, and what the model was asked."""

    life: Life
    states: dict[str, State] = field(default_factory=dict)
    facts: dict[str, list[Any]] = field(default_factory=dict)
    events: dict[str, list[Any]] = field(default_factory=dict)
    items: dict[str, list[Any]] = field(default_factory=dict)
    requests: dict[str, list[list[Any]]] = field(default_factory=dict)

    @property
    def doubts(self) -> frozenset[str]:
        """The calls whose output says that they are in doubt."""
        outputs = [item for items in self._shown() for item in items if "output" in item]
        return frozenset(item["call_id"] for item in outputs if str(item["output"]).startswith(DOUBT))

    @property
    def lost(self) -> frozenset[str]:
        """The calls whose process is gone with its worker."""
        events = [msg for told in self.events.values() for msg in told]
        return frozenset(
            msg["call_id"]
            for msg in events
            if msg["type"] == "exec_command_end" and "its worker was lost" in msg["stderr"]
        )

    def _shown(self) -> Iterator[list[Any]]:
        yield from self.items.values()
        for requests in self.requests.values():
            yield from requests

    def told(self, apart: frozenset[str]) -> dict[str, list[str]]:
        """Events by session, without those that differ by attempt and those of the calls `apart`."""
        return {
            name: sorted(map(_line, found)) if self.life.flow.agents else list(map(_line, found))
            for name, events in self.events.items()
            for found in [[msg for msg in events if not _of_loss(msg, apart)]]
        }

    def said(self, apart: frozenset[str]) -> dict[str, list[str]]:
        """Conversations by session, the outputs of the calls `apart` hidden."""
        return {name: _lines(items, apart) for name, items in self.items.items()}

    def asked(self, apart: frozenset[str]) -> dict[str, list[list[str]]]:
        """The requests that the model got of each session, each once and in order."""
        found: dict[str, list[list[str]]] = {}
        for name, requests in self.requests.items():
            of = found.setdefault(name, [])
            for lines in (_lines(items, apart) for items in requests):
                if lines not in of:
                    of.append(lines)
        return found

    def violations(self) -> Iterator[str]:
        """Names all that no death may bring about."""
        for name, state in self.states.items():
            left = (state.task, state.queue, state.lookups, state.processes.living, state.workspace.unsaved)
            if any(left) or state.status != "idle":
                yield f"{name} is not at rest: {left}"
            yield from _once(name, self.facts[name], self.events[name])
            yield from self._unsaid(name)
        for call_id, times in self.life.tools.started.items():
            decided = sum(
                fact["kind"] == "call" and fact["call_id"] == call_id and fact["phase"] == "running"
                for facts in self.facts.values()
                for fact in facts
            )
            if times > decided or times > 1:
                yield f"{call_id} ran {times} times, and was decided to run {decided} times"

    def _unsaid(self, name: str) -> Iterator[str]:
        """Losses that people, or the model, were not told of just once."""
        warned = [msg["message"] for msg in self.events[name] if msg["type"] == "warning"]
        for call_id in self.doubts:
            if sum(f"call {call_id} is {DOUBT}" in text for text in warned) != 1:
                yield f"{name}: {call_id} is in doubt, and was told so by {warned}"
        lost = sum("is gone: its worker was lost" in text for text in warned)
        said = sum(GONE in _line(item) for item in self.items[name])
        if (lost, said) != (len(self.lost), len(self.lost)):
            yield f"{name}: {len(self.lost)} processes were lost, {lost} warnings and {said} messages say so"


def _once(name: str, facts: list[Any], events: list[Any]) -> Iterator[str]:
    """Each request that was told is settled once, and what began has one end."""
    closed = Counter(
        fact["call_id"] if fact["kind"] == "answer" else fact["id"]
        for fact in facts
        if fact["kind"] in ("answer", "elicitation_closed")
    )
    answered = Counter(fact["call_id"] for fact in facts if fact["kind"] == "answer")
    for msg in events:
        if msg["type"] in ("ask_user_question_request", "request_user_input", "plan_approval_request"):
            call_id = msg.get("callId") or msg["call_id"]
            if answered[call_id] != 1:
                yield f"{name}: {call_id} was answered {answered[call_id]} times"
        if msg["type"] == "elicitation_request" and closed[msg["id"]] - answered[msg["id"]] != 1:
            yield f"{name}: {msg['id']} was settled {closed[msg['id']]} times"
    for kind in ("exec_command", "mcp_tool_call", "sub_agent_tool_call"):
        began = Counter(msg["call_id"] for msg in events if msg["type"] == f"{kind}_begin")
        ended = Counter(msg["call_id"] for msg in events if msg["type"] == f"{kind}_end")
        if began != ended or set(began.values()) - {1}:
            yield f"{name}: {kind} began {began} and ended {ended}"
    for kind in ("plan", "review"):
        modes = [msg["type"] for msg in events if msg["type"].endswith(f"_{kind}_mode")]
        if modes != [f"{way}_{kind}_mode" for way in ("entered", "exited")] * (len(modes) // 2):
            yield f"{name}: {modes}"


def _opens(event: Event) -> int:
    return {"exec_command_begin": 1, "exec_command_end": -1}.get(event.type, 0)


def _of_loss(msg: Any, apart: frozenset[str]) -> bool:
    """Whether an event tells of an attempt, or of what is in doubt."""
    about = str(msg.get("call_id") or (msg["id"] if msg["type"] == "elicitation_request" else ""))
    of_apart = any(about == call or about.startswith(f"{call}-q") for call in apart)
    if msg["type"].endswith("_begin"):
        return False
    if msg["type"] == "context_compaction":
        return bool(msg["phase"] == "begun")
    return of_apart or msg["type"] in OF_ATTEMPTS or (bool(apart) and msg["type"] in ("warning", "error"))


def _lines(items: list[Any], apart: frozenset[str]) -> list[str]:
    lines = []
    for item in items:
        if apart and GONE in _line(item):
            continue
        hidden = "output" in item and item["call_id"] in apart
        lines.append(_line({**item, "output": "?"} if hidden else item))
    return lines


def _line(value: Any) -> str:
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()


def _plain(value: Any, sessions: dict[SessionId, str], numbers: dict[int, int]) -> Any:
    """The value without what is another in every life: ids of sessions and agents, times, names."""
    text = orjson.dumps(value, default=dict).decode()
    for session, name in sessions.items():
        text = text.replace(session, name)
    for number, place in numbers.items():
        text = re.sub(rf'(agent |"agent_id":|spawn-){number}\b', rf"\g<1>{place}", text)
    plain: dict[str, Any] = orjson.loads(re.sub(r'"ts":\d+', '"ts":0', text))
    return {name: of for name, of in plain.items() if name not in OF_LIVES}
