"""Requests to the model and its responses, held against the logs.

A request's input is put together here from the plain conversation that `grammar` has read, by the one
sentence that a model must find true: every item in its order, each output behind its call, and nothing left
out. What the model said is kept under its response's id, and must stand in the log as it was said.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import orjson

from orchestrator.core.blobs import REFERENCE, is_reference, references
from orchestrator.core.entries import DENDRO, RESPONSE_ITEM, Entry
from orchestrator.model.prompt import ItemDone, ModelEvent, Prompt
from sim.agent_messages import LogOf, letter_is_true, output_is_true
from sim.grammar import Grammar
from sim.grammar_givers import works_for
from sim.grammar_terms import (
    BRIDGE,
    CALLS,
    OUTPUTS,
    PICTURE_BYTES,
    Item,
    Wrong,
    check,
    form_of,
    in_order,
    opens,
    tells_manners,
    text_of,
    unmarked,
)
from sim.odd_servers import as_said
from sim.sent import canonical

TextOf = Callable[[str, Any], str | None]
"""A large text of a session's tree."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as its log began it."""

    purpose: str
    settings: Mapping[str, Any]
    items: Sequence[Item]
    rescue: int = 0
    """The attempt of a compaction that shows less than all."""
    plan: Mapping[str, Any] | None = None
    """The approved plan that it shows beside the conversation."""
    form: Mapping[str, Any] | None = None
    """The schema that its answer is to conform to."""


@dataclass(frozen=True, slots=True)
class Said:
    """A whole response, as the model gave it."""

    items: Sequence[Item]
    usage: Mapping[str, int] | None
    rate_limits: Mapping[str, Any] | None


LEFT_OUT = {2: 0.5, 3: 0.75}
"""The share of the oldest that the second and the third attempt to compact a conversation are not shown."""
LOOKED_AT = 2
"""Of so many requests one is digested: that takes a while."""
MOST_SHOWN = 8


class Conversations:
    """Of one simulation."""

    def __init__(self, text_of: TextOf) -> None:
        self._text_of = text_of
        self._begun: defaultdict[str, list[Asked]] = defaultdict(list)
        self._letters: list[Mapping[str, Any]] = []
        """Messages that were put into a log, and not held against their senders' logs yet."""
        self._made: list[tuple[str, Entry]] = []
        """Sessions, and the facts that they began with, not held against the logs above them yet."""
        self._shown: defaultdict[str, deque[Prompt]] = defaultdict(lambda: deque(maxlen=MOST_SHOWN))
        """The last requests of each session, as its model was shown them."""
        self._held: set[str] = set()
        self._plain: dict[int, tuple[Item, bool]] = {}
        """Items by their identity, and whether all their texts stand in them."""
        self._said: dict[str, Said] = {}
        self._beside: dict[str, str] = {}
        """The instructions of each session."""

    def read(self, session: str, grammar: Grammar, entry: Entry, epoch: int) -> None:
        """Takes an entry of a session's log; raises `Wrong` where none like it may stand."""
        try:
            grammar.read(entry, epoch)
            if entry.type == RESPONSE_ITEM and entry.payload.get("type") in OUTPUTS:
                output_is_true(entry.payload, grammar)
            if entry.type == DENDRO and entry.payload["kind"] == "mail":
                self._letters.append(entry.payload["mail"])
            if entry.type == DENDRO and entry.payload["kind"] == "configured":
                self._made.append((session, entry))
            if entry.type != DENDRO or grammar.task is None:
                return
            fact, task = entry.payload, grammar.task
            if fact["kind"] == "request_sent":
                self._was_sent(session, fact)
            if fact["kind"] == "request_begun":
                shown = task["shown"] if task["request"] == "turn" else None
                said = tuple(grammar.conversation)
                form = form_of(task["id"]) if task["request"] == "turn" else None
                asked = Asked(task["request"], task["settings"], said, task["rescue"], shown, form)
                self._begun[session].append(asked)
            elif fact["kind"] == "request_ended" and fact["outcome"] == "completed":
                self._answered(fact, task, grammar)
        except (LookupError, TypeError, AttributeError, ValueError) as error:
            raise Wrong(f"{type(error).__name__}: {error}") from error

    def _was_sent(self, session: str, fact: Mapping[str, Any]) -> None:
        if fact["n"] % LOOKED_AT or fact["sent"] in self._held:
            return
        for prompt in reversed(self._shown[session]):
            if canonical(prompt) in (None, fact["sent"]):
                # A log that went back is read once more.
                self._held.add(fact["sent"])
                return
        raise Wrong(f"{fact} was sent, and the model was shown another one")

    def shown(self, prompt: Prompt) -> None:
        """A request reaches the model, maybe of a log that is left."""
        self._shown[prompt.session_id].append(prompt)

    def went_back(self) -> None:
        """Redis went back: entries that were not held against the logs of others yet are read anew."""
        self._letters.clear()
        self._made.clear()

    def redacted(self, session: str, grammar: Grammar, known: Set[int]) -> None:
        """A redaction hides items of a log, those that are not `known` as hidden.

        A worker that has lost its session has read them, and may come late with a request of before.
        """
        new = grammar.hidden.keys() - known
        self._begun[session] = [
            replace(asked, items=tuple(grammar.was(it) if id(it) in new else it for it in asked.items))
            for asked in self._begun[session]
        ]

    def letters_are_true(self, log_of: LogOf) -> None:
        """Holds letters against their senders' logs; raises `Wrong`."""
        letters, self._letters = self._letters, []
        for mail in letters:
            letter_is_true(mail, log_of)
        made, self._made = self._made, []
        for session, configured in made:
            if parent := configured.payload["session"].get("parent_session"):
                works_for(session, configured, log_of(parent))

    def asked(self, prompt: Prompt) -> None:
        """A request reaches the model; raises `Wrong` if no log has begun one like it."""
        begun = self._begun[prompt.session_id]
        check(begun, "the model is asked, and no log has begun a request")
        # A worker that has lost its session may come late with an earlier one.
        for asked in reversed(begun):
            if not self._differs(asked, prompt):
                return
        raise Wrong(self._differs(begun[-1], prompt))

    def _differs(self, asked: Asked, prompt: Prompt) -> str:
        settings = asked.settings
        for name in ("model", "effort", "summary", "verbosity"):
            if settings.get(name) != (value := getattr(prompt, name)):
                return f"{name} is {value!r} and not {settings.get(name)!r}"
        items = list(prompt.input)
        if asked.purpose == "compact":
            if prompt.tools or not items or items.pop().get("role") != "user":
                return "a compaction is asked for with tools, or without being asked for"
        elif not prompt.tools:
            return "a turn is asked for without tools"
        if wrong := self._stays(prompt):
            return wrong
        if prompt.output_schema != asked.form:
            return f"an answer is to have the form {prompt.output_schema}, and not {asked.form}"
        if asked.plan is not None and (wrong := _shows_plan(asked.plan, items)):
            return wrong
        try:
            wanted = self._opened(prompt.session_id, asked.items)
        except _Gone:
            return ""
        if asked.rescue > 1:
            if wrong := _left_out(wanted, len(items), LEFT_OUT[asked.rescue]):
                return wrong
            wanted = _newest(wanted, len(items))
            if items and items[0].get("type") in OUTPUTS:
                return "a conversation that was cut down begins with an output"
        if len(wanted) != len(items):
            return f"{len(items)} items are sent of {len(wanted)}"
        for at, (own, sent) in enumerate(zip(wanted, items, strict=True)):
            if not self._same_item(own, sent):
                return f"item {at} is sent as {str(sent)[:150]}, and is {str(own)[:150]}"
        return ""

    def _stays(self, prompt: Prompt) -> str:
        """The difference of what stands beside the conversation, the same in all requests of a session."""
        if not prompt.instructions:
            return "there are no instructions"
        known = self._beside.setdefault(prompt.session_id, prompt.instructions)
        if known != prompt.instructions:
            return f"the instructions are {prompt.instructions[:80]!r} now, and were {known[:80]!r}"
        return ""

    def _same_item(self, logged: Item, sent: Item) -> bool:
        """Whether an item of the log is what was sent; most are equal and hold no reference."""
        known = self._plain.get(id(logged))
        if known is None:
            # The item is kept with the answer: else another could come under its number.
            known = self._plain[id(logged)] = logged, not any(references(logged))
        return (known[1] and logged == sent) or _same(logged, sent)

    def _opened(self, session: str, items: Sequence[Item]) -> list[Item]:
        outputs: defaultdict[str, deque[Item]] = defaultdict(deque)
        for item in items:
            if item.get("type") in OUTPUTS:
                # A later response may have a call of the same id: each has the next output.
                outputs[item["call_id"]].append(item)
        found: list[Item] = []
        for item in items:
            kind = item.get("type")
            if kind == "inherited":
                content = item["content"]
                text = self._text_of(session, content) if is_reference(content) else content
                if text is None:
                    raise _Gone
                found += self._opened(session, orjson.loads(text))
            elif kind not in OUTPUTS:
                found.append(unmarked(item))
                if kind in CALLS:
                    own, open_call = (
                        outputs[item["call_id"]],
                        {"call_id": item["call_id"], "output": "aborted"},
                    )
                    found.append(own.popleft() if own else open_call)
        return found

    # ── what it said ──────────────────────────────────────────────────────────────────────────

    def said(
        self,
        response: str,
        events: Sequence[ModelEvent],
        usage: Mapping[str, int] | None,
        rate_limits: Mapping[str, Any] | None,
    ) -> None:
        """The model has said a whole response."""
        items = [event.item for event in events if isinstance(event, ItemDone)]
        self._said[response] = Said(items, usage, rate_limits)

    def _answered(self, fact: Mapping[str, Any], task: Mapping[str, Any], grammar: Grammar) -> None:
        said = self._said[fact["response_id"]]
        items = said.items
        check(
            fact.get("usage") == said.usage,
            f"{fact['response_id']} used {said.usage}, the log says {fact.get('usage')}",
        )
        grammar.expects_rate_limits(said.rate_limits)
        if task["purpose"] == "compact":
            texts = "".join(text_of(item) for item in items if item.get("type") == "message")
            check("".join(task["summary"]) == texts, f"the summary {texts!r} is {task['summary']} in the log")
            return
        logged = [grammar.was(item) for item in task["items"]]
        if len(items) == len(logged):
            items = [as_said(item, own) for item, own in zip(items, logged, strict=True)]
        if len(items) != len(logged) or not all(map(self._same_item, map(unmarked, logged), items)):
            raise Wrong(f"{fact['response_id']} said {items}, the log has {logged}")


def _shows_plan(plan: Mapping[str, Any], items: list[Item]) -> str:
    """Takes an approved plan out of a request; an error if it is not there as a whole, behind the context."""
    told = [place for place, item in enumerate(items) if text_of(item).startswith("<approved_plan>")]
    if len(told) != 1:
        return f"the approved plan is told {len(told)} times"
    text = text_of(items.pop(told[0]))
    steps = [f"{n}. {step['step']}" for n, step in enumerate(plan["plan"]["plan"], 1)]
    parts = [plan["title"], plan["summary"], plan["plan"].get("explanation") or "", *steps]
    if not in_order(text, parts):
        return f"the approved plan {plan} is told as {text!r}"
    # What a compaction leaves is no context, though a conversation may open with it.
    kept = [(opens(item) or tells_manners(item)) and not text_of(item).startswith(BRIDGE) for item in items]
    if not all(kept[: told[0]]) or (kept[told[0] : told[0] + 1] == [True]):
        return f"the approved plan stands in place {told[0]}"
    return ""


def _newest(items: Sequence[Item], count: int) -> list[Item]:
    """The newest items, so many; among them the user's last message."""
    kept = list(items[len(items) - count :]) if count else []
    said = [item for item in items if item.get("role") == "user"][-1:]
    return kept if any(item is last for item in kept for last in said) or not kept else [*said, *kept[1:]]


def _left_out(items: Sequence[Item], count: int, share: float) -> str:
    """The error of a compaction that is shown the newest `count` items, and was to lack a share of all."""
    sizes = list(map(_size, items))
    gone, most = sum(sizes[: len(items) - count]), max(sizes, default=0)
    pairs = max((_size(one) + _size(two) for one, two in pairwise(items)), default=most)
    many, few = gone > share * sum(sizes) + pairs, gone < share * sum(sizes) - most
    wrong = (few or many) and count > 1
    return f"{gone} of {sum(sizes)} bytes are left out, and {share} was to be" if wrong else ""


def _size(value: Any) -> int:
    """The bytes of its texts; a picture counts as so many, whatever its size."""
    if isinstance(value, str):
        return PICTURE_BYTES if value.startswith("data:image/") else len(value)
    if isinstance(value, Mapping):
        return int(value["bytes"]) if is_reference(value) else sum(map(_size, value.values()))
    return sum(map(_size, value)) if isinstance(value, list | tuple) else 1


class _Gone(Exception):
    """A large text that Redis has lost."""


def _same(logged: Any, sent: Any) -> bool:
    """Whether a text of the log, which may stand beside it, is what was sent."""
    if isinstance(logged, Mapping):
        if REFERENCE in logged:
            whole = isinstance(sent, str) and hashlib.sha256(sent.encode()).hexdigest() == logged[REFERENCE]
            return whole or (isinstance(sent, str) and "not stored" in sent)
        if not isinstance(sent, Mapping):
            return False
        if "output" in logged and "type" not in logged:
            return {name: sent.get(name) for name in ("call_id", "output")} == dict(logged)
        return logged.keys() == sent.keys() and all(
            _same(value, sent[name]) for name, value in logged.items()
        )
    if isinstance(logged, list | tuple):
        return isinstance(sent, list | tuple) and len(logged) == len(sent) and all(map(_same, logged, sent))
    return bool(logged == sent)
