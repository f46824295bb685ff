"""The model of a simulation: what it says is the seed's choice.

Every call of the model has an id of its own, in the whole simulation; so what happened to it
can be told from the ledger, whatever worker ran it.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final, TypeVar

import orjson

from orchestrator.config_keys import ProviderSettings
from orchestrator.core.history import CALL_KINDS, OUTPUT_KINDS, message_text
from orchestrator.model.model_client import HttpBudget
from orchestrator.model.prompt import Completed, Item, ItemDone, ModelEvent, Prompt, RateLimits, TextDelta
from orchestrator.model.provider_errors import (
    FatalKind,
    FatalModelError,
    ModelError,
    RateLimited,
    RetryableModelError,
)
from orchestrator.tools.agent_tools import NAMES
from sim.loop import SimLoop
from sim.odd_servers import oddly
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
BEYOND = ("escalated", "dangerous")
"""Kinds of a command, beside safe or not."""
TOOL = "mcp__sim__touch"
ASKS: Final[tuple[str, ...]] = ("ask_user_question", "request_user_input")
CLIENT_TOOL = "brought__lookup"
"""A tool that the root's client brings along."""
E = TypeVar("E", bound=ModelError)
_TASK = "task "
_RUNS = re.compile(r"session ID (\d+)")
_MADE = re.compile(r"agent_id\W{1,4}(\d+)")
"""The beginning of every task that an agent gives another one."""
MOST_QUOTED = 300
"""Characters of an output that a provider's error repeats."""
MOST_TURNS = 8
"""A task ends when so many calls were answered, whatever the model's script wants."""


@dataclass(slots=True)
class Drawing:
    """Choices about one thing, such as a call: a generator may make them the same whenever they are made."""

    about: str
    rows: dict[str, Random] = field(default_factory=dict)


DRAWING: ContextVar[Drawing | None] = ContextVar("drawing", default=None)


@contextmanager
def drawing(about: str) -> Iterator[None]:
    """Says what is drawn about, here and in what is begun from here."""
    token = DRAWING.set(Drawing(about))
    try:
        yield
    finally:
        DRAWING.reset(token)


@dataclass(slots=True)
class ModelFaults:
    """How likely a model request goes wrong, each 0..1."""

    limited: float = 0.0
    refused: float = 0.0
    cut: float = 0.0
    fatal: float = 0.0
    too_long: float = 0.0
    slow: float = 0.0
    words: str = "no"
    """The words of an error that ends a turn."""
    unserved: bool = False
    """Whether a provider that turns a request away has served nothing of it."""

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
    long_s: float = 0.0
    """So much longer at most than others commands and patches last."""
    proposes: float = 0.0
    """Plans put to people, and drafts of helpers for them, in the place of commands."""
    questions: float = 0.0
    """Questions to people, in the place of commands."""
    brought: float = 0.0
    """Calls of a tool of the root's client, in the place of commands."""
    processes: float = 0.0
    """Calls of `exec_command` and `write_stdin`, in the place of commands."""
    types: float = 0.5
    """The share of `write_stdin` among them."""
    lives_s: tuple[float, ...] = (0.0, 0.1, 0.6, 3.0, 12.0, 40.0)
    """How long a process lives if nobody ends it."""
    yields_ms: tuple[int, ...] = (0, 250)
    """How long the call that starts one waits for its end."""
    dies_s: float = 0.2
    """How long it takes at most to kill one."""
    tools: float = 0.0
    """Calls of an MCP server's tool, in the place of commands."""
    elicits: float = 0.0
    """Questions of the server in the middle of such a call."""
    agents: float = 0.5
    """Of the calls of sessions that may make agents."""
    verbs: dict[str, int] = field(default_factory=lambda: dict(VERBS))
    """How often each tool for agents is called, against the others."""
    own: float = 0.0
    """Agents that are to work in a copy of the folder."""
    strangers: int = 0
    """So many agents are called about by their numbers, whoever has made them; 0: the first few alone."""
    opening: tuple[str, ...] = ()
    """The tools that a root calls at once when it is first asked for something."""
    rounds: float = 0.0
    """How likely it does so again when a person asks for something later."""
    reads: float = 0.0
    """How likely the model waits for the end of a process that it was just told of."""
    odd: float = 0.0
    """Responses that keep no rules."""
    dies: float = 0.0
    """MCP servers that die in the middle of a call."""
    scripts: float = 0.0
    """Commands that are scripts, which workers read before they judge them."""
    readers: float = 0.0
    """How likely a worker's reader of scripts is lost or late, at each moment of its life."""
    pieces: tuple[int, ...] = (1, 3)
    """Counts of pieces in which a message comes."""
    same_ids: bool = False
    """Whether calls are counted session by session, so that several sessions have calls of the same ids."""


Breaking = Callable[[str, int, ModelError, str], None]
"""Told of an error that ended a request, by its session and its number."""
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
        self.broke: Breaking = lambda session, n, error, claim: None
        self.row: Callable[[str], str] = lambda session: ""
        """The row in which what is of a session is numbered: one for all, or each its own."""
        self._counted: Counter[tuple[str, str]] = Counter()
        self._of_session: Counter[str] = Counter()
        self._asking = ""
        """The session that is answered."""
        self._numbers: list[int] = []
        """Processes that the one who asks was told of last."""
        self._children: list[int] = []
        """The agents that the asker has made last, as it was told."""

    def turn(self, prompt: Prompt) -> list[ModelEvent]:
        """The events of a whole response."""
        self._asking = prompt.session_id
        if self.odds.same_ids:
            used = (str(item["call_id"]) for item in prompt.input if item.get("type") in CALL_KINDS)
            most = max((int(id[1:]) for id in used if id[1:].isdecimal()), default=0)
            self._of_session[self._asking] = max(self._of_session[self._asking], most)
        if self.odds.opening and self._opens(prompt.input):
            self._children = _children(prompt.input)
            made = [(name == "shell", self._of_agents(name)) for name in self.odds.opening]
            if self.odds.own and not _is_a_root_at_its_beginning(prompt.input):
                # Agents with a folder of their own that are made behind a command begin with what it wrote.
                return [item for _, item in made]
            # An agent is made while a command waits for a person, and asks under the same id.
            return [item for late in (False, True) for shell, item in made if shell is late]
        if self.odds.reads and (number := _running(prompt.input)) and self.rng.random() < self.odds.reads:
            return [self._item("write_stdin", {"number": number, "types": "", "yield_ms": 4_000})]
        done = _outputs_since_input(prompt.input)
        wants = prompt.tools and done < MOST_TURNS and self.rng.random() < self.odds.calls
        events: list[ModelEvent] = []
        if not wants or self.rng.random() < 0.3:
            events += self._text(prompt)
        if wants:
            if self.odds.processes:
                self._numbers = _living(prompt.input)
            agents = any(tool["name"] in NAMES for tool in prompt.tools)
            events += [self._call(agents) for _ in range(self.rng.choice((1, 1, 2, 3)))]
        if self.odds.odd and self.rng.random() < self.odds.odd:
            return oddly(events, self.rng)
        return events

    def _opens(self, items: Sequence[Item]) -> bool:
        """Whether it is a root's first request, or the first one for a person's word."""
        if _is_a_root_at_its_beginning(items):
            return True
        asked = bool(self.odds.rounds) and items[-1].get("role") == "user" and _is_of_a_root(items)
        return asked and self.rng.random() < self.odds.rounds

    def next(self, kind: str, session: str) -> tuple[int, str]:
        """The next number of a kind in a session's row, and what stands for it in texts and ids."""
        self._counted[kind, self.row(session)] += 1
        return self.number(kind, session)

    def number(self, kind: str, session: str) -> tuple[int, str]:
        """The last number, and what stands for it."""
        row = self.row(session)
        number = self._counted[kind, row]
        return number, f"{row}{number}"

    @property
    def asked(self) -> int:
        """How many requests were sent."""
        return sum(count for (kind, _), count in self._counted.items() if kind == "request")

    @property
    def _call_name(self) -> str:
        """The name of the last call."""
        return self.number("call", self._asking)[1]

    def _text(self, prompt: Prompt) -> list[ModelEvent]:
        number, name = self.next("text", self._asking)
        parts = [f"<t{name}:{part}>" for part in range(self.rng.choice(self.odds.pieces))]
        if _reviews(prompt.input):
            parts = _reviewed(number, name)
        elif _plans(prompt.input) or _plans_beside(prompt.input):
            parts = _planned(number, name, self.rng.choice((0, 1, 2)))
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
                arguments["goal"] = f"{_TASK}{self._call_name}"
        elif odds.questions and self.rng.random() < odds.questions:
            name = self.rng.choice(ASKS)
            arguments.clear()
        elif odds.brought and self.rng.random() < odds.brought:
            name, arguments = CLIENT_TOOL, {"key": self.number("call", self._asking)[0]}
        elif odds.processes and self.rng.random() < odds.processes:
            name, arguments = self._of_processes()
        elif odds.tools and self.rng.random() < odds.tools:
            name, arguments = TOOL, {"reads": self.rng.random() < 0.5}
        else:
            arguments["ask"] = self.rng.random() < odds.asks
            if odds.escalated or odds.dangerous:
                for what in BEYOND:
                    arguments[what] = self.rng.random() < getattr(odds, what)
            if odds.prefixes and self.rng.random() < odds.prefixes:
                arguments["prefix"] = True
            if odds.scripts and self.rng.random() < odds.scripts:
                arguments["script"] = self.rng.choice((0, 1))
                arguments["costs"] = self.rng.choice((-1, -1, -1, -1, 0, 1))
        return self._item(name, arguments)

    def _of_processes(self) -> tuple[str, dict[str, Any]]:
        """A command that may go on, or words to one that may be there."""
        rng = self.rng
        if rng.random() < 1 - self.odds.types:
            asks = rng.random() < self.odds.asks
            return "exec_command", {
                "tty": rng.random() < 0.8,
                "yield_ms": rng.choice(self.odds.yields_ms),
                "ask": asks,
            }
        word = rng.choice(("x", "x", "q")) if rng.random() < 0.6 else ""
        number = rng.choice((*self._numbers, *self._numbers[-1:] * 3, 1, 2, 3))
        return "write_stdin", {"number": number, "types": word}

    def _item(self, name: str, arguments: dict[str, Any]) -> ItemDone:
        text = orjson.dumps(arguments).decode()
        id = f"c{self.next('call', self._asking)[1]}"
        if self.odds.same_ids:
            self._of_session[self._asking] += 1
            id = f"k{self._of_session[self._asking]}"
        item = {"type": "function_call", "name": name, "arguments": text, "call_id": id}
        return ItemDone(item)

    def _of_agents(self, name: str) -> ItemDone:
        if name == "shell":
            return self._item(name, {"ask": True})
        return self._item(name, self._arguments(name))

    def _arguments(self, name: str) -> dict[str, Any]:
        """Of a call about agents, some of which exist; the model guesses their numbers."""
        rng, prompt = self.rng, f"{_TASK}{self._call_name}"
        strangers = self.odds.strangers
        someone = {"agent_id": rng.randrange(strangers + 1) if strangers else rng.choice((0, 1, 1, 2, 3))}
        match name:
            case "subagent_spawn":
                return {"prompt": prompt, **self._labelled(), **self._apart()}
            case "spawn_subagent":
                return {"prompt": prompt, "description": "reads", **self._labelled()}
            case "subagent_fork":
                return {"prompt": rng.choice((prompt, "")), **self._apart()}
            case "subagent_send_message" if self.odds.rounds:
                return {"agent_id": max(self._children, default=0) + 1, "prompt": prompt}
            case "subagent_send_message":
                return {**someone, "prompt": prompt, "interrupt": rng.random() < 0.3, **self._labelled()}
            case "subagent_await" if self.odds.rounds:
                return {"timeout_s": 20}
            case "subagent_await":
                named = {"agent_ids": [someone["agent_id"]]} if rng.random() < 0.3 else {}
                return {"timeout_s": rng.choice((0, 5, 30)), **named}
            case "subagent_watchdog" if strangers:
                told = {"message": f"bark {self._call_name}"} if rng.random() < 0.7 else {}
                return {**someone, "interval_s": rng.choice((2, 5, 8)), "cancel": rng.random() < 0.2, **told}
            case "subagent_watchdog":
                someone = {"agent_id": rng.choice((0, 0, 1))}
                return {**someone, "interval_s": rng.choice((2, 5, 60)), "cancel": rng.random() < 0.3}
            case "subagent_merge" if self.odds.rounds:
                first = max(self._children, default=0)
                return {"agent_id": rng.choice((*self._children, first + 1, first + 1, first + 2))}
            case "subagent_merge" if self.odds.own:
                return {"agent_id": rng.choice((1, 1, 2))}
            case "subagent_cancel" | "subagent_merge":
                return someone
            case "subagent_prune" if rng.random() < 0.5:
                return {"agent_ids": [someone["agent_id"]], "completed_only": rng.random() < 0.5}
            case _:
                return {"all": True}

    def _apart(self) -> dict[str, str]:
        return {"workspace": "own"} if self.odds.own and self.rng.random() < self.odds.own else {}

    def _labelled(self) -> dict[str, str]:
        return {"label": f"l{self._call_name}"} if self.rng.random() < 0.2 else {}


def _is_a_root_at_its_beginning(items: Sequence[Item]) -> bool:
    """Whether nobody has answered anything yet, and the asker was not another agent."""
    roles = [item.get("role") for item in items]
    return "assistant" not in roles and not any(
        item.get("type") in OUTPUT_KINDS or message_text(item).startswith(_TASK) for item in items
    )


def _living(items: Sequence[Item]) -> list[int]:
    """The last processes that outputs tell of."""
    told = (re.findall(r"session ID (\d+)", str(item.get("output", ""))) for item in items)
    return [int(number) for numbers in told for number in numbers][-2:]


def _is_of_a_root(items: Sequence[Item]) -> bool:
    return not any(message_text(item).startswith(_TASK) for item in items)


def _children(items: Sequence[Item]) -> list[int]:
    """The agents that the model was told that it has made."""
    outputs = [str(item.get("output")) for item in items if item.get("type") in OUTPUT_KINDS]
    return [int(found[1]) for output in outputs if (found := _MADE.search(output))]


def _running(items: Sequence[Item]) -> int:
    """The number of a process that one of the last outputs tells of; 0 if none does."""
    outputs = (str(item.get("output")) for item in items[-4:] if item.get("type") in OUTPUT_KINDS)
    numbers = [int(found[1]) for output in outputs if (found := _RUNS.search(output))]
    return numbers[-1] if numbers else 0


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


def _reviewed(number: int, name: str) -> list[str]:
    """The pieces of a reviewer's answer: findings as JSON, with words around it, or words alone."""
    place = {"absolute_file_path": "a.py", "line_range": {"start": 1, "end": number}}
    rest = {"body": "b", "confidence_score": 0.5, "code_location": place}
    found = [{"title": f"finding {name}.{at}", **rest} for at in range(number % 3)]
    answer = orjson.dumps({"findings": found, "overall_explanation": f"<t{name}:0>"}).decode()
    text = answer if number % 4 else f"<t{name}:0> is all that there is to say"
    return [text[at : at + 40] for at in range(0, len(text), 40)]


def _planned(number: int, name: str, blocks: int) -> list[str]:
    """The pieces of a message with so many plans, cut where no line ends."""
    plan = f"<proposed_plan>\n1. step {name}\n</proposed_plan>\n"
    text = f"<t{name}:0>\n{plan * blocks}<t{name}:1>" if number % 5 else plan
    return [text[at : at + 13] for at in range(0, len(text), 13)]


def _outputs_since_input(items: Sequence[Item]) -> int:
    count = 0
    for item in items:
        if item.get("role") == "user":
            count = 0
        elif item.get("type") in OUTPUT_KINDS:
            count += 1
    return count


def _quoted(items: Sequence[Item]) -> str:
    """The words of a request's last output, which an error of its provider repeats."""
    outputs = [item["output"] for item in items if item.get("type") in OUTPUT_KINDS]
    last = outputs[-1] if outputs else ""
    return f": {last}" if isinstance(last, str) and 0 < len(last) < MOST_QUOTED else ""


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
        model.next("request", prompt.session_id)
        model.heard(prompt)
        model.trace.note(self._machine, "asks", f"items={len(prompt.input)}")
        await asyncio.sleep(model.rng.uniform(0.01, 0.5))
        try:
            fault = self._fault(_quoted(prompt.input))
        except ModelError as error:
            model.broke(sent.session, sent.n, error, sent.claim)
            raise
        events = model.turn(prompt)
        cut = model.rng.randrange(len(events) + 1) if fault == "cut" else len(events)
        limits = _rate_limits(model.number("request", prompt.session_id)[0])
        if limits is not None:
            yield RateLimits(limits)
        for event in events[:cut]:
            if model.rng.random() < 0.5:
                await asyncio.sleep(model.rng.uniform(0.0, 8.0 if fault == "slow" else 0.3))
            self._requests.streams(sent)
            yield event
        if fault == "cut":
            model.trace.note(self._machine, "cut")
            broken = self._cut(cut)
            model.broke(sent.session, sent.n, broken, sent.claim)
            raise broken
        model.trace.note(self._machine, "answers", len(events))
        # Each complete response has an id of its own.
        response, usage = f"r{model.next('response', prompt.session_id)[1]}", self._usage()
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

    def _fault(self, quoted: str) -> str:
        model = self._model
        at = model.rng.random()
        for name in ("limited", "refused", "fatal", "too_long", "cut", "slow"):
            at -= getattr(model.faults, name)
            if at < 0:
                model.trace.note(self._machine, "model", name)
                self._raise(name, quoted)
                return name
        return ""

    def _raise(self, name: str, quoted: str) -> None:
        match name:
            case "limited":
                raise self._turned_away(RateLimited(f"slow down{quoted}", self._model.rng.uniform(5.5, 20.0)))
            case "refused":
                delay_s = self._model.rng.choice((None, 1.0))
                raise self._turned_away(RetryableModelError(f"overloaded{quoted}", delay_s))
            case "fatal":
                words = f"{self._model.faults.words}{quoted}"
                raise self._turned_away(FatalModelError(FatalKind.BAD_REQUEST, words, "bad_request"))
            case "too_long":
                kind = FatalKind.CONTEXT_LENGTH_EXCEEDED
                raise self._turned_away(FatalModelError(kind, "too long", "context_window_exceeded"))
            case _:
                pass

    def _turned_away(self, error: E) -> E:
        return error.unserved() if self._model.faults.unserved else error

    def _look_at(self, prompt: Prompt) -> None:
        calls = [item["call_id"] for item in prompt.input if item.get("type") in CALL_KINDS]
        outputs = [item["call_id"] for item in prompt.input if item.get("type") in OUTPUT_KINDS]
        if sorted(calls) != sorted(outputs):
            self._model.wrong(f"a request carries calls {calls} and outputs {outputs}")
