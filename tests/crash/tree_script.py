"""The model of a crash run's trees: agents make, tell, await, redirect and end each other.

As in `workload`, an answer follows from its request alone. A word is one call; `gather` is
awaits until nobody is at work. Every text that an agent says or writes is said once in the
whole run, so that the audit can count who heard it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import orjson

from orchestrator.stub.answers import Call, Step, StubConversation, StubRequest, Text
from tests.crash.workload import Ledger

ERRANDS = (
    "leaf leaf gather",
    "branch leaf fork look gather",
    "leaf leaf down exec down gather",
    "stuck leaf turn gather",
    "branch stuck end gather exec",
    "fork fork down gather prune",
    "leaf branch halt exec down gather",
    "leaf fork exec",
    "stuck branch look sideways end leaf gather prune",
)
LEAVES = ("exec", "slow up", "patch exec", "look sideways exec", "up exec up", "exec slow", "think up")
BRANCHES = ("leaf leaf gather up", "leaf exec gather", "leaf fork look sideways gather", "leaf stuck end up")
LINGER = "echo begun; sleep 5; echo done"
SYNTHETIC = "await-"
"""The beginning of the ids of calls that no model made: messages that were injected unasked."""


def errand(random: Random, number: int) -> str:
    """A root's task: what its tree is to do, word by word."""
    return f"tree {number}: {random.choice(ERRANDS)}"


def note(session: str, call_id: str, words: str) -> str:
    """The text of a message: who wrote it, and what it asks for."""
    return f"note of {session} {call_id}: {words}"


def last_word(session: str, task: str, turn: int) -> str:
    """The text that a task ends with."""
    return f"{session} did {task!r} by item {turn}"


@dataclass(frozen=True, slots=True)
class Made:
    """A call of the task at hand, with its output decoded where it is JSON."""

    name: str
    output: Any


@dataclass
class TreeScript(Ledger):
    """The script of every agent of every tree."""

    name: str = "tree"
    _numbers: dict[str, int] = field(default_factory=dict)

    def step(self, conversation: StubConversation, request: StubRequest) -> Step:
        words = conversation.task.partition(": ")[2].split()
        seen = Seen.of(request.body.get("input") or ())
        word, turn = next_word(words, seen.made), conversation.turn
        if word is None:
            return Step(items=(Text(last_word(request.session, conversation.task, turn)),))
        call = self._call(word, request.session, f"c{turn}", seen)
        return self._word(word, request.session, turn) if call is None else Step(items=(call,))

    def _call(self, word: str, session: str, call_id: str, seen: Seen) -> Call | None:
        """The call of a tool of agents that a word stands for; None if it is another word."""
        random = Random(f"{session} {call_id}")

        def to(ids: Sequence[int], words: str = "", **more: Any) -> Call:
            prompt = note(session, call_id, words) if words else ""
            target = random.choice(ids) if ids else 9_999
            given = {"agent_id": target, "prompt": prompt, **more}
            return Call("subagent_send_message", given, call_id)

        match word:
            case "leaf" | "branch" | "stuck":
                given = {"prompt": f"{word} of {session} {call_id}: {_work(word, random)}", "label": word}
                return Call("subagent_spawn", given, call_id)
            case "fork":
                prompt = f"fork of {session} {call_id}: {random.choice(LEAVES)}"
                return Call("subagent_fork", {"prompt": prompt}, call_id)
            case "up":
                return to([0], "heard")
            case "look":
                return Call("subagent_list", {"all": True}, call_id)
            case "sideways":
                return to(seen.listed, "exec")
            case "down":
                return to(seen.children, "exec up")
            case "turn":
                return to(seen.stuck or seen.children, "exec", interrupt=True)
            case "halt":
                return to(seen.children, interrupt=True)
            case "end":
                target = random.choice(seen.stuck or seen.children or [9_999])
                return Call("subagent_cancel", {"agent_id": target, "reason": "enough"}, call_id)
            case "prune":
                return Call("subagent_prune", {"all": True}, call_id)
            case "watch" | "unwatch":
                target, over = random.choice(seen.stuck), word == "unwatch"
                watch = {"agent_id": target, "interval_s": 600, "cancel": over}
                return Call("subagent_watchdog", watch, call_id)
            case "gather":
                return Call("subagent_await", {}, call_id)
            case "linger":
                return self._shell(session, call_id, LINGER)
            case _:
                return None


def _work(kind: str, random: Random) -> str:
    if kind == "stuck":
        return "linger exec"
    return random.choice(BRANCHES if kind == "branch" else LEAVES)


@dataclass(frozen=True, slots=True)
class Seen:
    """The tree that a request shows its agent, and the calls made for the task at hand."""

    made: tuple[Made, ...]
    children: tuple[int, ...]
    stuck: tuple[int, ...]
    listed: tuple[int, ...]

    @classmethod
    def of(cls, items: Sequence[Mapping[str, Any]]) -> Seen:
        outputs = {i["call_id"]: _decoded(i["output"]) for i in items if _is(i, "function_call_output")}
        made = [Made(i["name"], outputs.get(i["call_id"])) for i in items if _own_call(i)]
        since = max((n for n, item in enumerate(items) if _is_task(item)), default=-1)
        now = [Made(i["name"], outputs.get(i["call_id"])) for i in items[since + 1 :] if _own_call(i)]
        born = [m.output for m in made if m.name in MAKING and _has(m.output, "agent_id")]
        lists = [m.output for m in made if m.name == "subagent_list" and _has(m.output, "sessions")]
        return cls(
            made=tuple(now),
            children=tuple(agent["agent_id"] for agent in born),
            stuck=tuple(agent["agent_id"] for agent in born if agent["label"] == "stuck"),
            listed=tuple(agent["agent_id"] for agent in (lists[-1]["sessions"] if lists else ())),
        )


MAKING = frozenset({"subagent_spawn", "subagent_fork"})


def _is(item: Mapping[str, Any], kind: str) -> bool:
    return item.get("type") == kind


def _own_call(item: Mapping[str, Any]) -> bool:
    return _is(item, "function_call") and not item["call_id"].startswith(SYNTHETIC)


def _is_task(item: Mapping[str, Any]) -> bool:
    texts = [part.get("text", "") for part in item.get("content") or () if isinstance(part, Mapping)]
    return item.get("role") == "user" and not any(text.startswith("<") for text in texts)


def _decoded(output: Any) -> Any:
    try:
        return orjson.loads(output)
    except (orjson.JSONDecodeError, TypeError):
        return output


def _has(value: Any, name: str) -> bool:
    return isinstance(value, dict) and name in value


def next_word(words: Sequence[str], made: Sequence[Made]) -> str | None:
    """The first word that is not done, by the calls that were made for the task."""
    left = iter(made)
    for word in words:
        if not _done(word, left):
            return word
    return None


def _done(word: str, calls: Iterator[Made]) -> bool:
    if word == "gather":
        # Agents that are still at work are waited for again.
        return any(not _has(call.output, "waiting") or not call.output["waiting"] for call in calls)
    needed = 2 if word == "pair" else 1
    return sum(1 for _ in zip(range(needed), calls, strict=False)) == needed
