"""The model and the tools of a simulation: what they say and do is the seed's choice.

Every call of the model has an id of its own, in the whole simulation; so what happened to it
can be told from the ledger, whatever worker ran it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any

import orjson

from orchestrator.core.calls import (
    ApplyPatch,
    Exec,
    ExecWork,
    Mcp,
    McpWork,
    PatchWork,
    PlanWork,
    QuestionWork,
    StdinWork,
    UserInputWork,
    WriteStdin,
)
from orchestrator.core.calls.exec import Segment
from orchestrator.core.calls.process import Lasting
from orchestrator.core.commands import Assessment, CallFinished, Immediate, ProcessEnd
from orchestrator.core.frozen import replace
from orchestrator.core.history import CALL_KINDS, OUTPUT_KINDS, message_text
from orchestrator.core.ids import SessionId
from orchestrator.core.processes import Process
from orchestrator.core.settings import Rules
from orchestrator.core.state import Call, State
from orchestrator.core.user_shell import command_of
from orchestrator.model.client import HttpBudget
from orchestrator.model.errors import FatalKind, FatalModelError, RateLimited, RetryableModelError
from orchestrator.model.events import Completed, ItemDone, ModelEvent, RateLimits, TextDelta
from orchestrator.model.request import Item, Prompt
from orchestrator.protocol import events as ev
from orchestrator.protocol.commands import AddFile, UnknownCommand
from orchestrator.protocol.ids import CallId
from orchestrator.protocol.mcp import CallToolResult
from orchestrator.protocol.mcp import Tool as McpTool
from orchestrator.protocol.scalars import Duration, OutputStream
from orchestrator.protocol.wire import written
from orchestrator.tables import ProviderSettings
from orchestrator.tools.arguments import BadArguments
from orchestrator.tools.site import AskPerson, CallSite, DeltaSink
from orchestrator.tools.subagents.assess import AgentCall, assess_agent_call
from orchestrator.tools.subagents.port import Tree
from orchestrator.tools.subagents.specs import NAMES, PARALLEL_SAFE
from orchestrator.tools.view_image import ViewImage
from sim.ledger import Ledger, Run, SimSupervisor
from sim.loop import SimLoop
from sim.processes import SimProcesses
from sim.requests import Requests, Sent
from sim.trace import Trace

VERBS = {
    "subagent_spawn": 6,
    "subagent_fork": 2,
    "subagent_send_message": 4,
    "subagent_await": 5,
    "subagent_watchdog": 1,
    "subagent_cancel": 2,
    "subagent_prune": 1,
    "subagent_list": 1,
    "spawn_subagent": 1,
}
_BEYOND = ("escalated", "dangerous")
"""Kinds of a command, beside safe or not."""
TOOL = "mcp__sim__touch"
ASKS = ("ask_user_question", "request_user_input")
_TASK = "task "
"""The beginning of every task that an agent gives another one."""
MOST_TURNS = 8
"""A task ends when so many calls were answered, whatever the model's script wants."""

READING = frozenset(ViewImage.names)
RULES = Rules(parallel_safe=PARALLEL_SAFE | READING | frozenset(ASKS), repeatable=READING)
"""The rules of a worker with the product's own tools."""


@dataclass(slots=True)
class ModelFaults:
    """How likely a model request goes wrong, each 0..1."""

    limited: float = 0.0
    refused: float = 0.0
    cut: float = 0.0
    fatal: float = 0.0
    too_long: float = 0.0
    slow: float = 0.0

    def clear(self) -> None:
        """A model that always answers."""
        self.limited = self.refused = self.cut = self.fatal = self.too_long = self.slow = 0.0


@dataclass(slots=True)
class Odds:
    """The model's wishes, each 0..1, and how large outputs are."""

    calls: float = 0.75
    asks: float = 0.2
    patches: float = 0.2
    plans: float = 0.1
    escalated: float = 0.0
    dangerous: float = 0.0
    outside: float = 0.0
    """Patches to where the sandbox lets nobody write."""
    denied: float = 0.0
    """Confined commands that the sandbox stops."""
    prefixes: float = 0.0
    """Commands whose prefix a person may allow from now on."""
    large: float = 0.05
    proposes: float = 0.0
    """Plans put to people, and drafts of helpers for them, in the place of commands."""
    questions: float = 0.0
    """Questions to people, in the place of commands."""
    processes: float = 0.0
    """Calls of `exec_command` and `write_stdin`, in the place of commands."""
    tools: float = 0.0
    """Calls of an MCP server's tool, in the place of commands."""
    elicits: float = 0.0
    """Questions of the server in the middle of such a call."""
    agents: float = 0.5
    """Of the calls of sessions that may make agents."""
    verbs: dict[str, int] = field(default_factory=lambda: dict(VERBS))
    """How often each tool for agents is called, against the others."""
    opening: tuple[str, ...] = ()
    """The tools for agents that a root calls at once when it is first asked for something."""


Saying = Callable[
    [str, Sequence[ModelEvent], Mapping[str, int] | None, Mapping[str, Any] | None],
    None,
]
"""Told of a response by its id: what it held, what it cost, and the provider's limits."""


class ModelScript:
    """The one model behind every worker's connection."""

    def __init__(self, loop: SimLoop, rng: Random, trace: Trace, said: Callable[[str], None]) -> None:
        self.loop = loop
        self.rng = rng
        self.trace = trace
        self.faults = ModelFaults()
        self.odds = Odds()
        self.wrong = said
        """Told when a request carries what none may."""
        self.providers: dict[str, ProviderSettings] = {}
        """How every worker makes requests; empty but for what a workload puts there."""
        self.heard: Callable[[Prompt], None] = lambda prompt: None
        """Told of each request, and of what is said to it."""
        self.said: Saying = lambda response, events, usage, rate_limits: None
        self.asked = 0
        """Requests that were sent."""
        self.answered = 0
        """Requests whose response was complete: each has an id of its own."""
        self._calls = 0
        self._texts = 0

    def turn(self, prompt: Prompt) -> list[ModelEvent]:
        """The events of a whole response."""
        if self.odds.opening and _is_a_root_at_its_beginning(prompt.input):
            return [self._of_agents(name) for name in self.odds.opening]
        done = _outputs_since_input(prompt.input)
        wants = prompt.tools and done < MOST_TURNS and self.rng.random() < self.odds.calls
        events: list[ModelEvent] = []
        if not wants or self.rng.random() < 0.3:
            events += self._text(prompt)
        if wants:
            agents = any(tool["name"] in NAMES for tool in prompt.tools)
            events += [self._call(agents) for _ in range(self.rng.choice((1, 1, 2, 3)))]
        return events

    def _text(self, prompt: Prompt) -> list[ModelEvent]:
        self._texts += 1
        parts = [f"<t{self._texts}:{part}>" for part in range(self.rng.choice((1, 3)))]
        if _reviews(prompt.input):
            parts = _reviewed(self._texts)
        elif _plans(prompt.input) or _plans_beside(prompt.input):
            parts = _planned(self._texts, self.rng.choice((0, 1, 2)))
        content = [{"type": "output_text", "text": "".join(parts)}]
        message = {"type": "message", "role": "assistant", "content": content}
        return [*map(TextDelta, parts), ItemDone(message)]

    def _call(self, agents: bool) -> ItemDone:
        odds, at = self.odds, self.rng.random()
        if agents and self.rng.random() < odds.agents:
            return self._of_agents(self.rng.choices(list(odds.verbs), list(odds.verbs.values()))[0])
        name = "shell"
        arguments: dict[str, Any] = {"large": self.rng.random() < odds.large}
        if at < odds.patches:
            name = "apply_patch"
            arguments["outside"] = self.rng.random() < odds.outside
        elif at < odds.patches + odds.plans:
            name = "update_plan"
        elif odds.proposes and self.rng.random() < odds.proposes:
            drafts = agents and self.rng.random() < 0.3
            name = "propose_plan_variants" if drafts else "approve_plan"
            arguments.clear()
            if drafts:
                arguments["goal"] = f"{_TASK}{self._calls}"
        elif odds.questions and self.rng.random() < odds.questions:
            name = self.rng.choice(ASKS)
            arguments.clear()
        elif odds.processes and self.rng.random() < odds.processes:
            name, arguments = self._of_processes()
        elif odds.tools and self.rng.random() < odds.tools:
            name, arguments = TOOL, {"reads": self.rng.random() < 0.5}
        else:
            arguments["ask"] = self.rng.random() < odds.asks
            if odds.escalated or odds.dangerous:
                for what in _BEYOND:
                    arguments[what] = self.rng.random() < getattr(odds, what)
            if odds.prefixes and self.rng.random() < odds.prefixes:
                arguments["prefix"] = True
        return self._item(name, arguments)

    def _of_processes(self) -> tuple[str, dict[str, Any]]:
        """A command that may go on, or words to one that may be there: the model guesses its number."""
        rng = self.rng
        if rng.random() < 0.5:
            asks = rng.random() < self.odds.asks
            return "exec_command", {"tty": rng.random() < 0.8, "yield_ms": rng.choice((0, 250)), "ask": asks}
        return "write_stdin", {"number": rng.choice((1, 1, 2, 2, 3, 4)), "types": rng.random() < 0.6}

    def _item(self, name: str, arguments: dict[str, Any]) -> ItemDone:
        self._calls += 1
        text = orjson.dumps(arguments).decode()
        item = {"type": "function_call", "name": name, "arguments": text, "call_id": f"c{self._calls}"}
        return ItemDone(item)

    def _of_agents(self, name: str) -> ItemDone:
        return self._item(name, self._arguments(name))

    def _arguments(self, name: str) -> dict[str, Any]:
        """Of a call about agents, some of which exist; the model guesses their numbers."""
        rng, prompt = self.rng, f"{_TASK}{self._calls}"
        someone = {"agent_id": rng.choice((0, 1, 1, 2, 3))}
        match name:
            case "subagent_spawn":
                return {"prompt": prompt, **self._labelled()}
            case "spawn_subagent":
                return {"prompt": prompt, "description": "reads", **self._labelled()}
            case "subagent_fork":
                return {"prompt": rng.choice((prompt, ""))}
            case "subagent_send_message":
                return {**someone, "prompt": prompt, "interrupt": rng.random() < 0.3, **self._labelled()}
            case "subagent_await":
                named = {"agent_ids": [someone["agent_id"]]} if rng.random() < 0.3 else {}
                return {"timeout_s": rng.choice((0, 5, 30)), **named}
            case "subagent_watchdog":
                someone = {"agent_id": rng.choice((0, 0, 1))}
                return {**someone, "interval_s": rng.choice((2, 5, 60)), "cancel": rng.random() < 0.3}
            case "subagent_cancel":
                return someone
            case "subagent_prune" if rng.random() < 0.5:
                return {"agent_ids": [someone["agent_id"]], "completed_only": rng.random() < 0.5}
            case _:
                return {"all": True}

    def _labelled(self) -> dict[str, str]:
        return {"label": f"l{self._calls}"} if self.rng.random() < 0.2 else {}


def _is_a_root_at_its_beginning(items: Sequence[Item]) -> bool:
    """Whether nobody has answered anything yet, and the asker was not another agent."""
    roles = [item.get("role") for item in items]
    return "assistant" not in roles and not any(
        item.get("type") in OUTPUT_KINDS or message_text(item).startswith(_TASK) for item in items
    )


def _plans(items: Sequence[Item]) -> bool:
    """Whether the last mode that the model was told of is plan mode."""
    texts = [message_text(item) for item in items if item.get("role") == "developer"]
    told = [text for text in texts if text.startswith("<collaboration_mode>")]
    return bool(told) and "plan mode" in told[-1]


def _plans_beside(items: Sequence[Item]) -> bool:
    """Whether the model is in a planning session."""
    texts = (message_text(item) for item in items if item.get("role") == "developer")
    return any(text.startswith("You are in a planning session") for text in texts)


def _reviews(items: Sequence[Item]) -> bool:
    """Whether the model was told to review a change."""
    texts = (message_text(item) for item in items if item.get("role") == "developer")
    return any(text.startswith("You are reviewing") for text in texts)


def _reviewed(number: int) -> list[str]:
    """The pieces of a reviewer's answer: findings as JSON, with words around it, or words alone."""
    place = {"absolute_file_path": "a.py", "line_range": {"start": 1, "end": number}}
    rest = {"body": "b", "confidence_score": 0.5, "code_location": place}
    found = [{"title": f"finding {number}.{at}", **rest} for at in range(number % 3)]
    answer = orjson.dumps({"findings": found, "overall_explanation": f"<t{number}:0>"}).decode()
    text = answer if number % 4 else f"<t{number}:0> is all that there is to say"
    return [text[at : at + 40] for at in range(0, len(text), 40)]


def _planned(number: int, blocks: int) -> list[str]:
    """The pieces of a message with so many plans, cut where no line ends."""
    plan = f"<proposed_plan>\n1. step {number}\n</proposed_plan>\n"
    text = f"<t{number}:0>\n{plan * blocks}<t{number}:1>" if number % 5 else plan
    return [text[at : at + 13] for at in range(0, len(text), 13)]


def _outputs_since_input(items: Sequence[Item]) -> int:
    count = 0
    for item in items:
        if item.get("role") == "user":
            count = 0
        elif item.get("type") in OUTPUT_KINDS:
            count += 1
    return count


def _rate_limits(asked: int) -> dict[str, Any] | None:
    """The rate limits that a provider reports; not with every response."""
    if asked % 3:
        return None
    window = {"used_percent": float(asked % 100), "window_minutes": 300}
    return {"primary": window, "secondary": None}


class SimModels:
    """A worker's connection to the model."""

    def __init__(
        self, model: ModelScript, machine: str, requests: Requests, whose: Callable[[], Sent]
    ) -> None:
        self._model = model
        self._machine = machine
        self._requests = requests
        self._whose = whose
        """On behalf of whom the task that asks it sends a request."""

    def retries(self, provider: str) -> tuple[int, int]:
        return 2, 4

    async def stream(self, provider: str, prompt: Prompt, budget: HttpBudget) -> AsyncIterator[ModelEvent]:
        model = self._model
        self._look_at(prompt)
        sent = self._whose()
        self._requests.sending(sent)
        model.asked += 1
        model.heard(prompt)
        model.trace.note(self._machine, "asks", f"items={len(prompt.input)}")
        await asyncio.sleep(model.rng.uniform(0.01, 0.5))
        fault = self._fault()
        events = model.turn(prompt)
        cut = model.rng.randrange(len(events) + 1) if fault == "cut" else len(events)
        limits = _rate_limits(model.asked)
        if limits is not None:
            yield RateLimits(limits)
        for event in events[:cut]:
            if model.rng.random() < 0.5:
                await asyncio.sleep(model.rng.uniform(0.0, 8.0 if fault == "slow" else 0.3))
            self._requests.streams(sent)
            yield event
        if fault == "cut":
            model.trace.note(self._machine, "cut")
            raise self._cut(cut)
        model.trace.note(self._machine, "answers", len(events))
        model.answered += 1
        response, usage = f"r{model.answered}", self._usage()
        model.said(response, events, usage, limits)
        yield Completed(response, usage, None)

    def _cut(self, after: int) -> RetryableModelError:
        """A response that ended after so many of its events; some servers tell what it used."""
        broken = RetryableModelError("the stream ended early")
        if after % 2:
            broken.usage = {"input_tokens": 10, "output_tokens": after, "total_tokens": 10 + after}
        return broken

    def _usage(self) -> dict[str, int] | None:
        """The usage of the response; a few responses report none."""
        rng = self._model.rng
        if rng.random() < 0.05:
            return None
        given, said = rng.choice((10, 60)), rng.choice((2, 30, 100))
        usage = {"input_tokens": given, "cached_input_tokens": 5, "output_tokens": said}
        return {**usage, "reasoning_output_tokens": 0, "total_tokens": given + said}

    def _fault(self) -> str:
        model = self._model
        at = model.rng.random()
        for name in ("limited", "refused", "fatal", "too_long", "cut", "slow"):
            at -= getattr(model.faults, name)
            if at < 0:
                model.trace.note(self._machine, "model", name)
                self._raise(name)
                return name
        return ""

    def _raise(self, name: str) -> None:
        match name:
            case "limited":
                raise RateLimited("slow down", self._model.rng.uniform(5.5, 20.0))
            case "refused":
                raise RetryableModelError("overloaded", self._model.rng.choice((None, 1.0)))
            case "fatal":
                raise FatalModelError(FatalKind.BAD_REQUEST, "no", "bad_request")
            case "too_long":
                kind = FatalKind.CONTEXT_LENGTH_EXCEEDED
                raise FatalModelError(kind, "too long", "context_window_exceeded")
            case _:
                pass

    def _look_at(self, prompt: Prompt) -> None:
        calls = [item["call_id"] for item in prompt.input if item.get("type") in CALL_KINDS]
        outputs = [item["call_id"] for item in prompt.input if item.get("type") in OUTPUT_KINDS]
        if sorted(calls) != sorted(outputs):
            self._model.wrong(f"a request carries calls {calls} and outputs {outputs}")


def _in_a_review(state: State) -> bool:
    """Whether the running task is a review, whose model looks at files and does nothing else."""
    return state.task is not None and state.task.kind == "review"


class SimTools:
    """A worker's tools."""

    def __init__(
        self,
        model: ModelScript,
        ledger: Ledger,
        supervisor: SimSupervisor,
        machine: str,
        starting: Callable[[Call, CallSite], bool],
    ) -> None:
        self._model = model
        self._ledger = ledger
        self._supervisor = supervisor
        self._machine = machine
        self._starting = starting
        self.processes = SimProcesses(model.loop, model.rng, ledger, supervisor, machine)

    async def prepare(self, state: State, show: DeltaSink) -> None:
        """Needs nothing."""

    def release(self, session: SessionId) -> None:
        """Held nothing."""

    async def follow(self, process: Process, claim: str) -> ProcessEnd:
        return await self.processes.follow(process, claim)

    def kill_process(self, number: int, claim: str) -> None:
        self.processes.kill(number, claim)

    async def abandon(self, claim: str) -> None:
        await self.processes.abandon(claim)

    async def of_servers(self, state: State) -> dict[str, McpTool]:
        return {}

    def specs(self, state: State) -> Sequence[Item]:
        shell = {"type": "function", "name": "shell"}
        agents = state.facts.agents and not _in_a_review(state)
        return (shell, {"type": "function", "name": "subagent_spawn"}) if agents else (shell,)

    async def assess(self, call: Call, site: CallSite) -> Assessment:
        if self._model.rng.random() < 0.2:
            await asyncio.sleep(self._model.rng.uniform(0.0, 0.2))
        if command_of(call.item) is not None:
            return Exec(("true",), "/sim", (UnknownCommand(cmd="true"),), "", by_person=True)
        arguments = orjson.loads(call.item["arguments"])
        if _in_a_review(site.state) and call.name != "shell":
            return Immediate(f"unsupported call: {call.name}")
        if call.name in NAMES and site.agents is not None:
            return await _of_agents(call, site, site.agents)
        match call.name:
            case "apply_patch":
                names = [f"/sim/{call.call_id}.{n}" for n in range(self._model.rng.choice((1, 2, 3)))]
                changes = {name: AddFile(content="a") for name in names}
                record = [[name, None, "h"] for name in names]
                outside = tuple(names) if arguments.get("outside") else ()
                told = f"Success. {call.call_id}"
                return ApplyPatch("*** Begin Patch", "/sim", changes, told, record, outside)
            case "update_plan":
                return Immediate("Plan updated")
            case "approve_plan":
                steps = [{"step": "do it", "status": "pending"}]
                return PlanWork({"title": call.call_id, "summary": "s", "plan": {"plan": steps}})
            case "ask_user_question":
                shown = {"question": "Which?", "options": [], "multiSelect": False}
                headers = ("Auth", "Store")[: self._model.rng.choice((1, 2))]
                return QuestionWork(tuple({**shown, "header": name} for name in headers))
            case "request_user_input":
                shown = {"header": "Where", "question": "Where?", "isOther": True, "isSecret": False}
                token = {**shown, "id": "token", "isSecret": True}
                asked = [{"id": "place", **shown}, token][: self._model.rng.choice((1, 2, 2))]
                return UserInputWork(tuple(asked))
            case "exec_command":
                parsed = (UnknownCommand(cmd="serve"),)
                lasting = Lasting(bool(arguments["tty"]), arguments["yield_ms"], 100)
                return Exec(
                    ("serve",), "/sim", parsed, call.call_id, safe=not arguments["ask"], lasting=lasting
                )
            case "write_stdin":
                # Of a number that the model was told, or of one that it was not.
                chars = "x" if arguments["types"] else ""
                return WriteStdin(arguments["number"], chars, 250, 100)
            case name if name == TOOL:
                # Some calls are the same ones again: they may have been approved for the session.
                file = {"file": call.call_id if self._model.rng.random() < 0.7 else "again"}
                return Mcp("sim", "touch", file, "/sim", read_only=bool(arguments["reads"]))
            case _:
                parsed = (UnknownCommand(cmd="true"),)
                # Some commands are the same ones again: they may have been approved for the session.
                key = call.call_id if self._model.rng.random() < 0.7 else "again"
                judged = Exec(("true",), "/sim", parsed, key, safe=not arguments.get("ask"))
                if arguments.get("prefix"):
                    judged = replace(judged, segments=(Segment(("touch", call.call_id)),))
                return replace(judged, **{what: True for what in _BEYOND if arguments.get(what)})

    async def run(self, call: Call, site: CallSite) -> CallFinished:
        model = self._model
        if not self._supervisor.permits(site.claim):
            return finished(call, f"killed {call.call_id}", "killed")
        if isinstance(call.work, StdinWork):
            return await self.processes.look(call, call.work, site)
        lost = self._starting(call, site)
        if isinstance(call.work, ExecWork) and call.work.lasting is not None:
            return await self.processes.start(call, call.work.lasting, site, lost=lost)
        done: asyncio.Future[str] = model.loop.create_future()
        run = Run(
            str(site.session),
            call.call_id,
            site.claim,
            self._machine,
            model.loop.time(),
            self._supervisor,
            lambda how: None if done.done() else done.set_result(how),
            files=_files(call),
            lost=lost,
        )
        self._ledger.begin(run)
        lasts = model.rng.choice((0.0, 0.01, 0.3, 2.0, 7.0, 15.0)) * model.rng.random()
        for part in range(run.files):
            model.loop.on(
                self._supervisor.lane, self._ledger.switch, run, after=lasts * (part + 1) / run.files
            )
        asks = bool(model.odds.elicits) and isinstance(call.work, McpWork)
        asks = asks and model.rng.random() < model.odds.elicits
        if not run.files and not asks:
            model.loop.on(self._supervisor.lane, self._ledger.end, run, "finished", after=lasts)
        for part in range(model.rng.choice((0, 0, 2))):
            chunk = f"{call.call_id}.{part}".encode()
            call_id, stream = CallId(call.call_id), OutputStream.STDOUT
            shown = ev.ExecCommandOutputDelta(call_id=call_id, stream=stream, chunk=chunk)
            site.deltas(written(shown))
        try:
            if asks and site.ask is not None:
                await self._elicits(call, site.ask)
                model.loop.on(self._supervisor.lane, self._ledger.end, run, "finished", after=lasts)
            how = await done
        except asyncio.CancelledError:
            # Killed, and waited for until it is proved.
            dead: asyncio.Future[None] = model.loop.create_future()
            model.loop.on(self._supervisor.lane, dead.set_result, None, after=model.rng.uniform(0.0, 0.2))
            await dead
            self._ledger.end(run, "killed")
            raise
        confined = (
            how == "finished" and not run.files and isinstance(call.work, ExecWork) and call.work.sandboxed
        )
        run.denied = confined and model.rng.random() < model.odds.denied
        large = "x" * 6000 if how == "finished" and _is_large(call) else ""
        run.output = f"{how} {call.call_id}{large}"
        ended = finished(call, run.output, how)
        asks = run.denied and command_of(call.item) is None
        return replace(ended, sandbox_denied=True) if asks else ended

    async def _elicits(self, call: Call, ask: AskPerson) -> None:
        """Asks a person, once or twice; now and then the server takes a question back."""
        for _ in range(self._model.rng.choice((1, 1, 2))):
            patience_s = self._model.rng.choice((0.5, 3_600.0, 3_600.0))
            with suppress(TimeoutError):
                async with asyncio.timeout(patience_s):
                    decision = await ask(CallId(call.call_id), "sim", "May I?")
                    self._model.trace.note(self._machine, "hears", call.call_id, decision.value)

    async def judge(self, call: Call, claim: str) -> str:
        self._ledger.saw("started_once")
        if not isinstance(call.work, PatchWork):
            return "in_doubt"
        self._ledger.saw("effects_once")
        session = self._session(call)
        if self._ledger.written[session, call.call_id]:
            return "all"
        # No entry is made: the next to judge would take it for a session in which the call ran.
        runs = self._ledger.by_call.get((session, call.call_id), ())
        switched = any(run.switched for run in runs)
        return "in_doubt" if switched else "none"

    def _session(self, call: Call) -> str:
        return next((session for session, id in self._ledger.by_call if id == call.call_id), "")


async def _of_agents(call: Call, site: CallSite, tree: Tree) -> Assessment:
    """As the product's toolbox assesses it."""
    try:
        return await assess_agent_call(AgentCall(call, site.state, tree, site.seq, site.head))
    except BadArguments as error:
        return Immediate(str(error))


def _is_large(call: Call) -> bool:
    return command_of(call.item) is None and bool(orjson.loads(call.item["arguments"]).get("large"))


def _files(call: Call) -> int:
    """The number of files that a call writes; a command writes none that is looked at."""
    work = call.work
    return len(work.record) if isinstance(work, PatchWork) and isinstance(work.record, Sequence) else 0


def finished(call: Call, output: str, how: str) -> CallFinished:
    """A call's result as a tool tells it."""
    worked = how == "finished"
    if isinstance(call.work, PatchWork):
        patched = ev.PatchApplyEnd(call_id=CallId(call.call_id), stdout=output, stderr="", success=worked)
        return CallFinished(call.call_id, output, (patched,), applied=worked)
    if isinstance(call.work, McpWork):
        answer = CallToolResult(content=({"type": "text", "text": output},)) if worked else output
        return CallFinished(call.call_id, output, (call.work.end(call.call_id, answer, 0.0),))
    ended = ev.ExecCommandEnd(
        call_id=CallId(call.call_id),
        stdout=output,
        stderr="",
        aggregated_output=output,
        exit_code=0 if worked else -1,
        duration=Duration(secs=0, nanos=0),
        formatted_output=output,
    )
    return CallFinished(call.call_id, output, (ended,))
