"""Compares a recorded conversation of app-server v2 with one held with the program.

Pure: messages in, differences out. For each thread, what it is told is reduced to facts: the order of turns,
items, errors, plans and requests, and of each what a client shows. Values of ids, times and durations are not
among them, nor what may come at another moment.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

Message = dict[str, Any]
Fact = tuple[str, str, Any]
"""An occurrence, the item that it concerns, and the fields that clients show."""

DELTAS = {
    "item/agentMessage/delta": "text",
    "item/plan/delta": "text",
    "item/reasoning/summaryTextDelta": "summary",
    "item/reasoning/textDelta": "content",
}
ITEM_FIELDS: Mapping[str, tuple[str, ...]] = {
    "userMessage": ("content",),
    "agentMessage": ("text",),
    "reasoning": (),
    "plan": ("text",),
    "commandExecution": ("status", "command", "cwd", "aggregatedOutput", "exitCode"),
    "fileChange": ("status", "changes"),
    "webSearch": ("query",),
    "collabAgentToolCall": ("status", "tool", "prompt", "agentsStates"),
    "contextCompaction": (),
}
CALLS = frozenset({"commandExecution", "fileChange", "collabAgentToolCall", "mcpToolCall"})
_SHELL = re.compile(r"^/(?:usr/)?bin/(bash|sh|zsh) ")


@dataclass
class Told:
    """The facts that one thread was told, and the last figures of its turns."""

    facts: list[Fact] = field(default_factory=list)
    usage: dict[int, Any] = field(default_factory=dict)
    diffs: dict[int, str] = field(default_factory=dict)
    statuses: list[str] = field(default_factory=list)
    """How its turns ended."""
    turns: list[str] = field(default_factory=list)
    steered: set[int] = field(default_factory=set)
    """Turns that were given more than one message."""
    compacted: set[int] = field(default_factory=set)
    reverted: int = 1 << 30
    """The first turn behind one that was taken back."""
    inputs: Counter[int] = field(default_factory=Counter)
    asked: dict[Any, str] = field(default_factory=dict)
    items: dict[str, Message] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The first thing that was said in the thread: ids of threads differ from run to run."""
        said = (what for kind, _, what in self.facts if kind == "item/completed userMessage")
        return str(next(said, None))

    def turn(self, id: str) -> int:
        if id not in self.turns:
            self.turns.append(id)
        return self.turns.index(id)


def told(messages: Iterable[Message]) -> dict[str, Told]:
    """The facts of each thread, by its id."""
    threads: dict[str, Told] = {}
    for message in messages:
        params = message.get("params") or {}
        thread = params.get("threadId") or (params.get("thread") or {}).get("id")
        if "method" in message and thread is not None:
            _take(threads.setdefault(thread, Told()), message, params)
    return threads


def _take(thread: Told, message: Message, params: Message) -> None:
    method = message["method"]
    match method:
        case "turn/started":
            thread.turn(params["turn"]["id"])
            thread.facts.append((method, "", None))
        case "turn/completed":
            turn = params["turn"]
            thread.statuses.append(turn["status"])
            error = (turn.get("error") or {}).get("codexErrorInfo")
            thread.facts.append((method, "", (turn["status"], error)))
        case "item/started" | "item/completed":
            _item(thread, method, params)
        case "thread/reverted":
            thread.reverted = min(thread.reverted, len(thread.turns))
        case "error":
            thread.facts.append((method, "", params["willRetry"]))
        case "turn/plan/updated":
            thread.facts.append((method, "", (params["explanation"], params["plan"])))
        case "turn/diff/updated":
            thread.diffs[thread.turn(params["turnId"])] = params["diff"]
        case "thread/tokenUsage/updated":
            usage = params["tokenUsage"]
            thread.usage[thread.turn(params["turnId"])] = [_tokens(usage["total"]), _tokens(usage["last"])]
        case "serverRequest/resolved":
            thread.facts.append((method, thread.asked.get(params["requestId"], "?"), None))
        case _ if "id" in message:
            thread.asked[message["id"]] = params["itemId"]
            thread.facts.append((method, params["itemId"], _asked(params)))
        case _:
            pass


def _tokens(usage: Message) -> Message:
    return {name: usage[name] for name in sorted(usage) if name != "cacheWriteInputTokens"}


def _asked(params: Message) -> Any:
    return _command(params["command"]) if "command" in params else None


def _command(command: str) -> str:
    return _SHELL.sub(r"\1 ", command)


def _item(thread: Told, method: str, params: Message) -> None:
    item = params["item"]
    kind, id = item["type"], item["id"] if item["type"] in CALLS else ""
    thread.items[item["id"]] = item
    turn = thread.turn(params["turnId"])
    if method == "item/completed" and kind == "userMessage":
        thread.inputs[turn] += 1
        thread.steered |= {turn} if thread.inputs[turn] > 1 else set()
    elif kind == "contextCompaction":
        thread.compacted.add(turn)
    shown: Any = None
    if method == "item/completed":
        names = ITEM_FIELDS.get(kind, ())
        shown = {name: _shown(name, item) for name in names}
        if item.get("status") == "failed":
            # What a failed tool says is its own.
            shown.pop("aggregatedOutput", None)
    thread.facts.append((f"{method} {kind}", id, shown))


def _shown(name: str, item: Message) -> Any:
    value = item.get(name)
    match name:
        case "command":
            return _command(cast(str, value))
        case "content":
            return [(part["type"], part.get("text")) for part in cast(list[Message], value)]
        case "aggregatedOutput" if isinstance(value, str):
            # Two streams of a command meet as they come.
            return sorted(value.splitlines())
        case "changes":
            return sorted(
                ((one["path"], one["kind"], one["diff"]) for one in cast(list[Message], value)),
                key=lambda change: change[0],
            )
        case "agentsStates":
            return sorted((state["status"], state["message"]) for state in (value or {}).values())
        case _:
            return value


# ── the comparison ────────────────────────────────────────────────────────────────────────────


def compare(recorded: Sequence[Message], got: Sequence[Message]) -> list[str]:
    """Differences in words; none if every thread was told the same."""
    expected, seen = _by_name(told(recorded)), _by_name(told(got))
    found = [f"thread {name!r} is not there" for name in expected.keys() - seen.keys()]
    for name in expected.keys() & seen.keys():
        found += [f"thread {name!r}: {what}" for what in _compare(expected[name], seen[name])]
    return found


def _by_name(threads: Mapping[str, Told]) -> dict[str, Told]:
    return {thread.name: thread for thread in threads.values() if thread.facts}


def _compare(expected: Told, seen: Told) -> list[str]:
    wanted, found = _reduced(expected, seen), _reduced(seen, expected)
    different = [
        f"fact {at}:\n    recorded {one!r}\n    got      {other!r}"
        for at, (one, other) in enumerate(zip(wanted, found, strict=False))
        if one != other
    ][:3]
    if len(wanted) != len(found):
        short = [kind for kind, *_ in wanted], [kind for kind, *_ in found]
        different.append(f"{len(wanted)} facts recorded, {len(found)} got:\n    {short[0]}\n    {short[1]}")
    wanted_tokens, found_tokens = _tokens_held(expected, seen)
    if wanted_tokens != found_tokens:
        different.append(f"tokens:\n    recorded {wanted_tokens}\n    got      {found_tokens}")
    if expected.diffs != seen.diffs:
        different.append(f"diffs:\n    recorded {expected.diffs}\n    got      {seen.diffs}")
    return different


def _tokens_held(expected: Told, seen: Told) -> tuple[dict[int, Any], dict[int, Any]]:
    """The figures that have to match: a response that was broken off counts or not, here and in later sums.

    So does one that an interrupt or a steering message met; of a compaction the peer tells an estimate, and
    tokens of a turn that was taken back it forgets, though they were used.
    """
    compares: dict[int, Any] = {}
    finds: dict[int, Any] = {}
    exact = True
    for turn, usage in expected.usage.items():
        broken = expected.statuses[turn : turn + 1] == ["interrupted"] or turn in expected.steered
        exact = exact and not broken and turn < expected.reverted
        if turn in expected.compacted or broken:
            continue
        compares[turn] = usage if exact else usage[1]
        got = seen.usage.get(turn)
        finds[turn] = got if exact or got is None else got[1]
    return compares, finds


def _reduced(thread: Told, other: Told) -> list[Fact]:
    """The facts without what may differ."""
    facts = _without_repeated_retries(thread.facts)
    facts = [fact for fact in facts if not _allowed(fact, thread, other)]
    return _side_by_side(facts)


def _without_repeated_retries(facts: Sequence[Fact]) -> list[Fact]:
    kept: list[Fact] = []
    for fact in facts:
        if not (fact == ("error", "", True) and kept[-1:] == [fact]):
            kept.append(fact)
    return kept


def _allowed(fact: Fact, thread: Told, other: Told) -> bool:
    """Whether one side alone may tell it."""
    kind, id, _ = fact
    if not id:
        return False
    told_there = any(each[:2] == (kind, id) for each in other.facts)
    if told_there:
        return False
    status = thread.items.get(id, {}).get("status")
    unknown_there = all(each[1] != id for each in other.facts)
    # A command that the sandbox refused at once, a patch that does not fit: the peer shows neither.
    refused = unknown_there and status == "failed"
    # What an interrupt stopped may be completed or not.
    stopped = kind.startswith("item/completed") and "interrupted" in thread.statuses
    return refused or stopped


def _side_by_side(facts: Sequence[Fact]) -> list[Fact]:
    """Facts of calls that run at once, sorted by call: their order is free."""
    out: list[Fact] = []
    run: list[Fact] = []
    for fact in facts:
        if fact[1]:
            run.append(fact)
        else:
            out += [*sorted(run, key=lambda each: each[1]), fact]
            run = []
    return out + sorted(run, key=lambda each: each[1])


# ── what holds for any conversation ───────────────────────────────────────────────────────────


def unsound(messages: Sequence[Message]) -> list[str]:
    """Faults in a conversation by itself: pieces of unknown items, texts that do not add up, doubles."""
    found: list[str] = []
    pieces: dict[tuple[str, str], list[str]] = {}
    begun: Counter[tuple[str, str]] = Counter()
    for message in messages:
        method, params = message.get("method", ""), message.get("params") or {}
        if method == "item/started":
            begun[params["turnId"], params["item"]["id"]] += 1
        elif "itemId" in params and "id" not in message:
            key = params["turnId"], params["itemId"]
            if not begun[key]:
                found.append(f"{method} names {key}, which has not begun")
            pieces.setdefault(key, []).append(params.get("delta", ""))
        elif method == "item/completed":
            found += _adds_up(params, pieces.get((params["turnId"], params["item"]["id"]), []))
    return found + [f"{key} begins {count} times" for key, count in begun.items() if count > 1]


def _adds_up(params: Message, pieces: Sequence[str]) -> list[str]:
    item = params["item"]
    if item["type"] not in {"agentMessage", "plan", "reasoning"}:
        return []
    whole = item["text"] if "text" in item else "".join([*item["summary"], *item["content"]])
    return [] if "".join(pieces) == whole else [f"the pieces of {item['id']} give {pieces}, not {whole!r}"]
