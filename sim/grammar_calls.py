"""Items and calls of a log that is read a second time, and what a compaction keeps of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import orjson

from orchestrator.core.entries import Entry
from sim.grammar_state import Reading
from sim.grammar_terms import (
    ABORTED,
    ADDED,
    AFTER_RUNNING,
    BEFORE_RUNNING,
    BRIDGE,
    CALLS,
    CONTEXT,
    OUTPUTS,
    PNG,
    REDACTED,
    REPLACES,
    Item,
    check,
    in_order,
    is_pictures,
    is_role,
    is_said,
    only_plans,
    plain,
    split,
    tags_in_force,
    text_of,
)
from sim.policy import Verdict, asks_for_more, is_tool, verdict

PICTURE = f"data:image/png;base64,{PNG}"
Texts = tuple[str, ...]
ANSWERED = ["assistant", "user"]
MOST_PICTURES = 16
"""Of the running task, which a compaction keeps."""


class CallGrammar(Reading):
    """The order and the outputs of calls, and the conversation that they stand in."""

    def _item(self, item: Item) -> None:
        self.conversation.append(item)
        self._takes_left(item)
        if item.get("role") == "user" and text_of(item).startswith(f"{CONTEXT[1]}\n\nheed "):
            check(False, f"instructions that replace others are told as {text_of(item)!r}")
        kind, task = item.get("type"), self.task
        if kind in CALLS:
            self.asked[item["call_id"]] = item
        if task is None:
            self.added += ADDED in item
            return
        if task["request"] and (kind in CALLS or item.get("role") == "assistant"):
            task["items"].append(item)
        if kind == "message" and item.get("role") == "assistant":
            self._said(task, text_of(item))
        elif kind == "message" and task["kind"] == "shell" and not text_of(item).startswith(CONTEXT):
            self._ran(task, text_of(item))
        elif kind == "message" and task["steered"] and self.was(item) == self.was(task["steered"][0]):
            task["steered"].pop(0)
        elif kind in CALLS and task["request"]:
            check(task["request"] == "turn", "a compaction asks for a call")
            check(item["call_id"] not in task["calls"], f"{item['call_id']} is asked for twice")
            task["calls"][item["call_id"]] = {"phase": "proposed", "kind": "", "output": False}
        elif kind in OUTPUTS and (call := task["calls"].get(item["call_id"])):
            check(not call["output"], f"{item['call_id']} has two outputs")
            call["output"] = True

    def _event_items_injected(self, message: Mapping[str, Any], entry: Entry) -> None:
        check(message["count"] == self.added, f"{message['count']} messages are told of {self.added} added")
        self.added = 0

    def _runs_command(self, fact: Mapping[str, Any]) -> None:
        """The call of a task that is a person's command."""
        call_id = f"user_shell-{fact['id']}"
        self.asked[call_id] = {"name": "user_shell", "command": fact["command"]}
        self._task["calls"][call_id] = {"phase": "proposed", "kind": "", "output": False}

    def _ran(self, task: dict[str, Any], text: str) -> None:
        """Takes the message that tells the model of a person's command."""
        if text.startswith((ABORTED, "<folder_changed>", "<process_gone>")):
            return
        ((call_id, call),) = task["calls"].items()
        check(not call["output"], f"{call_id} is told of twice")
        wanted = f"<user_shell_command>\n<command>\n{self.asked[call_id]['command']}\n</command>\n<result>\n"
        check(text.startswith(wanted), f"the model is told of {call_id} as {text!r}")
        call["output"] = True

    def _takes_left(self, item: Item) -> None:
        """Takes an item that a task beside the conversation may have left."""

    def _compacted_beside(self, items: list[Item], kept: list[str], message: str) -> None:
        """Takes the compaction of a task beside the conversation."""
        raise NotImplementedError

    def _said(self, task: dict[str, Any], text: str) -> None:
        """Takes a finished message: what it says, and the plan in it, were announced before it."""
        said, plan = split(text) if only_plans(task["settings"]) else (text, None)
        if plan is not None:
            check(task["plans"][:1] == [plan], f"the plan {plan!r} was not announced")
            task["plans"].pop(0)
        if said and self.aside is None:
            check(task["pending"][:1] == [said], f"{said!r} was not announced")
            task["pending"].pop(0)
        task["message"] = said or None

    def _event_item_completed(self, message: Mapping[str, Any], entry: Entry) -> None:
        item, task = message["item"], self._task
        named = (message["turn_id"], item["type"], item["id"])
        check(named == (task["id"], "Plan", f"{task['id']}-plan"), f"an item is told as {named}")
        check(only_plans(task["settings"]), "a plan is proposed in another mode")
        task["plans"].append(item["text"])

    def _event_agent_message(self, message: Mapping[str, Any], entry: Entry) -> None:
        if self._task["request"] == "turn":
            self._task["pending"].append(message["message"])
        else:
            planned = self._task.get("exited") is not None
            check(planned or self._task["kind"] == "compact", "the agent speaks, and no request is in flight")
            if planned:
                self._task["message"] = message["message"]

    def _fact_call(self, fact: Mapping[str, Any], entry: Entry, epoch: int) -> None:
        call = self._task["calls"].get(fact["call_id"])
        if call is None:
            return
        before, phase = call["phase"], fact["phase"]
        self._permitted(fact, before)
        check(phase in _FOLLOWS[before], f"{fact['call_id']} goes from {before} to {phase}")
        call["phase"] = phase
        call["kind"] = fact.get("spec", {}).get("kind") or call["kind"]
        call["spec"] = fact.get("spec") or call.get("spec", {})
        if asks := call["spec"].get("questions"):
            names = [str(one.get("id") or one.get("header")) for one in asks]
            self.questions[self._task["id"], fact["call_id"]] = (call["spec"]["kind"], names)
        if phase == "running":
            self._began(fact, call["kind"], epoch)
        elif phase == "done":
            check(call["output"], f"{fact['call_id']} is done without an output")
            self._elicited_by(fact["call_id"])
            if before == "asking":
                # Told once, settled once: a second answer finds no call that asks.
                check(fact["call_id"] in self._task["answers"], f"{fact['call_id']} is settled by nobody")
                self._ended_at_client(fact["call_id"], call)
                if call["kind"] == "plan" and self._task["answers"][fact["call_id"]] == "approved":
                    plan, shown = call["spec"]["proposal"]["plan"]["plan"], self._task["planned"]
                    check(shown == plan, f"the approved plan {plan} is shown as {shown}")
            if before == "running" and call["kind"] in AFTER_RUNNING and not call.get("kept"):
                wanted = AFTER_RUNNING[call["kind"]], fact["call_id"]
                shown = self._shown_end.get("type"), self._shown_end.get("call_id")
                check(shown == wanted, f"{wanted} is not shown")

    def _event_exec_approval_request(self, message: Mapping[str, Any], entry: Entry) -> None:
        if message.get("session_id") in (None, self.facts["session_id"]):
            self._task["reaches"][message["call_id"]] = message["reach"]

    def _event_plan_update(self, message: Mapping[str, Any], entry: Entry) -> None:
        self._task["planned"] = message["plan"]

    def _event_dynamic_tool_call_request(self, message: Mapping[str, Any], entry: Entry) -> None:
        asked = self.asked[message["callId"]]
        given = orjson.loads(asked["arguments"])
        check(message["arguments"] == given, f"{message['callId']} is asked for as {message['arguments']}")
        check(asked["name"] == f"{message['namespace']}__{message['tool']}", "another tool is asked for")

    def _event_dynamic_tool_call_response(self, message: Mapping[str, Any], entry: Entry) -> None:
        told = message.get("content_items", message["output"])
        self._task["calls"][message["call_id"]]["told"] = message["success"], told

    def _ended_at_client(self, call_id: str, call: Mapping[str, Any]) -> None:
        """A call of a client's tool has ended as it was answered, and clients are told so."""
        if call["kind"] != "client_tool":
            return
        wanted = self._task["answers"][call_id] == "answered"
        shown = next(one["output"] for one in reversed(self.conversation) if one.get("call_id") == call_id)
        told = call.get("told")
        check(told == (wanted, shown), f"{call_id}: {told} is told, and {wanted} holds")
        for part in shown if isinstance(shown, list) else ():
            image = part.get("image_url", PICTURE)
            check(image.startswith(PICTURE), f"{call_id} has a picture that is none: {image[:40]}")

    def _began(self, fact: Mapping[str, Any], kind: str, epoch: int) -> None:
        check(fact["epoch"] == epoch, f"{fact['call_id']} is begun by epoch {fact['epoch']} in {epoch}")
        self._task["calls"][fact["call_id"]]["epoch"] = epoch
        if self._shown_end.get("call_id") == fact["call_id"]:
            self._shown_end = {}
        begin, spec = self._last, fact.get("spec", {})
        if kind == "exec" and begin is not None:
            own = "user_shell" if self.asked[fact["call_id"]].get("name") == "user_shell" else None
            lasting = spec.get("lasting")
            named = ("unified_exec_startup", str(lasting["number"])) if lasting else (own, None)
            shown = begin.payload.get("source"), begin.payload.get("process_id")
            check(shown == named, f"{fact['call_id']} begins as {shown}, and is {named}")
        if kind not in BEFORE_RUNNING or begin is None:
            return
        wanted = BEFORE_RUNNING[kind], fact["call_id"]
        check((begin.payload.get("type"), begin.payload.get("call_id")) == wanted, f"{wanted} is not shown")
        for name in ("command", "cwd", "parsed_cmd", "changes"):
            if name in spec and name in begin.payload:
                check(begin.payload[name] == spec[name], f"{name} of {fact['call_id']} is shown otherwise")

    def _permitted(self, fact: Mapping[str, Any], before: str) -> None:
        """Whether somebody was asked who had to be, and nobody else."""
        item, phase, task = self.asked[fact["call_id"]], fact["phase"], self._task
        name, answer = item.get("name", ""), task["answers"].get(fact["call_id"])
        if task["kind"] == "shell":
            check(phase in ("running", "done") or before == "running", "a person's command is asked about")
            confined = task["settings"]["sandbox_policy"]["mode"] != "danger-full-access"
            check(phase != "running" or fact["spec"]["sandboxed"] is confined, "it leaves its sandbox")
            return
        if name not in ("shell", "exec_command", "apply_patch") and not is_tool(name):
            return
        spec, settings = fact.get("spec", {}), task["settings"]
        heard = set[str]() if only_plans(settings) or self.aside else self.approved
        if before == "awaiting_approval":
            yes = answer is not None and answer.startswith("approved")
            check(phase != "running" or yes, f"{fact['call_id']} runs, and the answer was {answer}")
            check(phase != "done" or (answer and not yes), f"{fact['call_id']} does not run: {answer}")
            reach = task["reaches"].get(fact["call_id"])
            if phase == "running" and reach is not None:
                confined = spec.get("sandboxed", False)
                told = reach["sandboxed"], "OUTSIDE THE SANDBOX" not in reach["text"]
                check(
                    told == (confined, confined), f"{fact['call_id']} was asked about as {reach}: {confined}"
                )
        elif before == "running" and phase == "awaiting_approval":
            check(asks_for_more(settings["approval_policy"]), f"{fact['call_id']} is asked about again")
        elif before == "proposed" and "keys" in spec:
            wanted = self._wanted(name, item, spec, heard)
            done = (
                {"running": "run", "awaiting_approval": "ask"}.get(phase, phase),
                spec.get("sandboxed", False),
            )
            check(done in wanted, f"{fact['call_id']} under {dict(settings)}: {done} and not {wanted}")
        elif before == "proposed" and self._refusal:
            wanted = self._wanted(name, item, spec, heard)
            refused = any(one[0] == "refuse" for one in wanted)
            check(refused, f"{fact['call_id']} is refused and not {wanted}: {self._refusal}")

    def _wanted(self, name: str, item: Item, spec: Mapping[str, Any], heard: set[str]) -> list[Verdict]:
        """The verdict; where a script was read several times, one for each time."""
        given, settings, facts = orjson.loads(item["arguments"]), self._task["settings"], self.facts
        writes = not facts.get("agent_id") or settings["sandbox_policy"]["mode"] != "read-only"
        leaves = writes and not facts.get("helper_call") and not only_plans(settings)
        read = [
            {"dangerous": one.destroys or one.unread, "ask": not one.safe, "prefix": one.prefix}
            for one in (self.readings.get(item["call_id"], ()) if "script" in given else ())
        ]
        return [
            verdict(name, {**given, **each}, spec, settings, heard, may_leave=leaves) for each in read or [{}]
        ]

    @property
    def _refusal(self) -> str:
        """The output before this entry, where the policy gave it."""
        output = str(self._last.payload.get("output", "")) if self._last else ""
        return output if "policy" in output else ""

    def _fact_answer(self, fact: Mapping[str, Any], entry: Entry, epoch: int) -> None:
        if "agent_id" in fact or self.task is None:
            return
        if (asked := self.task["elicited"].get(fact["call_id"])) is not None:
            check(asked[1] == "", f"{fact['call_id']} is answered twice")
            asked[1] = "answered"
            return
        call = self.task["calls"].get(fact["call_id"])
        check(
            call and call["phase"] in ("awaiting_approval", "asking"),
            f"{fact['call_id']} was not asked about",
        )
        check(fact["turn"] == self.task["id"], f"an answer of the turn {fact['turn']}")
        self.task["answers"][fact["call_id"]] = fact["decision"]

    def _fact_elicitation(self, fact: Mapping[str, Any], entry: Entry, epoch: int) -> None:
        call = self._task["calls"][fact["call_id"]]
        check(call["phase"] == "running" and call["kind"] == "mcp", f"{fact['id']} is asked by no call")
        check(fact["id"] not in self._task["elicited"], f"{fact['id']} is asked twice")
        self._task["elicited"][fact["id"]] = [fact["call_id"], ""]

    def _fact_elicitation_closed(self, fact: Mapping[str, Any], entry: Entry, epoch: int) -> None:
        asked, decision = self._task["elicited"][fact["id"]], fact["decision"]
        # Told once, settled once: by an answer, or withdrawn by nobody.
        wanted = "" if decision == "withdrawn" else "answered"
        check(asked[1] == wanted, f"{fact['id']} is settled as {decision}, and was {asked[1] or 'open'}")
        asked[1] = decision

    def _elicited_by(self, call_id: str) -> None:
        """A call is over: none of its server's questions may be left open."""
        left = [id for id, (by, how) in self._task["elicited"].items() if by == call_id and not how]
        check(not left, f"{call_id} is over, and {left} wait for a person")

    def _fact_approved_for_session(self, fact: Mapping[str, Any], entry: Entry, epoch: int) -> None:
        self.approved |= set(fact["keys"])

    def _fact_calls_closed(self, fact: Mapping[str, Any], entry: Entry, epoch: int) -> None:
        for call_id in fact["call_ids"]:
            call = self._task["calls"][call_id]
            check(call["output"], f"{call_id} is closed without an output")
            self._elicited_by(call_id)
            call["phase"] = "done"

    def _fact_summary(self, fact: Mapping[str, Any], entry: Entry, epoch: int) -> None:
        self._task["summary"].append(self.was(fact)["text"])

    def owes_compaction(self, task: Mapping[str, Any]) -> bool:
        """Whether the request that the task sends next compacts its conversation."""
        compacted = self.compacted if self.aside is None else self.aside_compacted
        is_full = self.compacts_at is not None and self.last_used >= self.compacts_at
        return bool(task["kind"] == "compact" or task["rescue"] or (is_full and not compacted))

    def _compacted(self, payload: Mapping[str, Any]) -> None:
        items, kept = list(payload["replacement_history"]), list(payload["kept_user_texts"] or ())
        if self.aside is not None:
            self.aside_compacted = True
            self._compacted_beside(items, kept, payload["message"])
            return
        self.compacted = True
        opened = self._opens_with(items)
        check(all(map(is_pictures, items[opened:-1])), "a compaction keeps more than it may")
        self._keeps_pictures(items[opened:-1])
        whole = self.was(payload)
        told, bridge = list(whole["kept_user_texts"] or ()), text_of(whole["replacement_history"][-1])
        check(whole["message"] in bridge, "a compaction loses its summary")
        if all(isinstance(part, str) for part in told):
            said = [*self._kept_before(), *(text for item in self.conversation for text in self._words(item))]
            check(_keeps(plain(told), said), f"a compaction keeps {told} of {said}")
            check(in_order(bridge, told), "a compaction does not tell what people said, or in another order")
        self.kept, self.kept_before, self.conversation = kept, told, items
        self.pinned_at = 0
        self._task.update(rescue=0, begun_at=0)
        self.earlier += [mark for mark, _ in self.bookmarks] if payload.get("turns_kept") else []
        self.bookmarks.clear()

    def _keeps_pictures(self, kept: Sequence[Item]) -> None:
        """The newest pictures of the running task stay: those behind the last answer that a person heard."""
        task = self._task
        said = self.conversation[task["begun_at"] :]
        heard = [n for n, two in enumerate(pairwise(said), 1) if [one.get("role") for one in two] == ANSWERED]
        shown = [_pictures(item) for item in said[max(heard, default=0) :] if item.get("role") == "user"]
        newest = [picture for pictures in shown for picture in pictures][-MOST_PICTURES:]
        told = [picture for item in kept for picture in _pictures(item)]
        if newest and task["kind"] == "user":
            check(told[-len(newest) :] == newest, f"a compaction keeps {len(told)} pictures of {len(newest)}")
        check(task["kind"] == "user" or not told, f"a compaction between tasks keeps {len(told)} pictures")

    def _kept_before(self) -> Iterator[Texts]:
        """The words that compactions have kept, as they are or as they were before a redaction."""
        if len(self.kept_before) != len(self.kept):
            return ((text,) for text in self.kept)
        return zip(self.kept, self.kept_before, strict=True)

    def _words(self, item: Item) -> Iterator[Texts]:
        """The words of people in an item, as they are or as they were before a redaction."""
        whole = self.was(item)
        texts = item.get("user_texts", ())
        yield from zip(texts, whole.get("user_texts", texts), strict=True)
        if item.get("role") == "user" and item.get("type") == "message":
            both = dict.fromkeys(text_of(one) if is_said(one) else "" for one in (item, whole))
            yield tuple(both)

    def _opens_with(self, items: Sequence[Item]) -> int:
        """The number of items that a new history begins with, which tell the model of its place."""
        heeded: list[Item] = []
        for item in self.conversation:
            for told in item.get("instructions", ()) if item.get("type") == "inherited" else (item,):
                if text_of(told).startswith(CONTEXT[1]):
                    heeded = [] if REPLACES in text_of(told) else [one for one in heeded if one != told]
                    heeded.append(told)
        roles = [item for item in self.conversation if is_role(item)][-1:]
        said = (item for item in self.conversation if item.get("type") == "message")
        if any(text_of(item) == REDACTED for item in said):
            # It may be older than their redaction, which has not come to it: somebody died who redacted them.
            place = next(
                (n for n, item in enumerate(items) if text_of(item).startswith(CONTEXT[0])), len(heeded)
            )
            heeded, roles = (
                list(items[:place]),
                [item for item in items[place + 1 : place + 2] if is_role(item)],
            )
        else:
            check(roles or not self.facts.get("agent_id"), "an agent has forgotten its part")
        count = len(heeded) + 1 + len(roles)
        check(
            _are(items[: len(heeded)], heeded), "a compaction keeps other instructions than those that hold"
        )
        check(_are(items[len(heeded) + 1 : count], roles), "a compaction forgets the agent's part")
        told = text_of(items[len(heeded)])
        for name in ("cwd", "approval_policy"):
            line = f"<{name}>{self._task['settings'][name]}</{name}>"
            check(
                line in told or told == REDACTED,
                f"after a compaction the model is told {told!r}, and {line} holds",
            )
        manners = tags_in_force(self._task["settings"])
        tags = [text_of(item).partition("\n")[0] for item in items[count : count + len(manners)]]
        check(
            len(tags) == len(manners)
            and all(tag in (held, REDACTED) for tag, held in zip(tags, manners, strict=True)),
            f"after a compaction the model is told {tags}, and {manners} hold",
        )
        return count + len(manners)

    def _fact_rewound(self, fact: Mapping[str, Any], entry: Entry, epoch: int) -> None:
        if "content" in fact:
            self.pinned = None
            self._restored(fact)
            return
        if fact["length"] < self.pinned_at:
            self.pinned = None
        length = next((length for mark, length in self.bookmarks if mark == fact["response_id"]), None)
        inherits = any(item.get("type") == "inherited" for item in self.conversation)
        said = [] if inherits else self._said_at()
        self.taken_back = None if inherits else sum(place >= fact["length"] for place in said)
        if length != fact["length"] and not inherits:
            # The last words of people go, and what followed them.
            check(fact["length"] in said, f"{fact['response_id']} stood at {length}, not {fact['length']}")
            before = [mark for mark, end in self.bookmarks if end <= fact["length"]]
            check(fact["response_id"] == (before or [""])[-1], f"{fact} goes back to another of {before}")
        self.conversation = self.conversation[: fact["length"]]
        self.bookmarks = [mark for mark in self.bookmarks if mark[1] <= fact["length"]]

    def _said_at(self) -> list[int]:
        """The places of what people said since the conversation began, or was compacted."""
        places: list[int] = []
        for place, item in enumerate(self.conversation):
            if text_of(item).startswith(BRIDGE):
                places.clear()
            elif item.get("role") == "user" and is_said(item) and ADDED not in item:
                places.append(place)
        return places

    def _event_thread_rolled_back(self, message: Mapping[str, Any], entry: Entry) -> None:
        told = message["num_turns"]
        check(
            self.taken_back in (None, told),
            f"{told} turns are told to be taken back, and {self.taken_back} were",
        )

    def _restored(self, fact: Mapping[str, Any]) -> None:
        """A conversation of before a compaction stands in the place of all that was said since."""
        mark = fact["response_id"]
        check(mark in self.earlier, f"{mark} is put back, and no compaction summed it up")
        check(all(mark != known for known, _ in self.bookmarks), f"{mark} is put back, and was there")
        self.compacted = False
        self.earlier = self.earlier[: self.earlier.index(mark) + 1]
        self.conversation, self.kept = [self._inherits(fact)], []
        self.bookmarks.clear()

    def _fact_forked(self, fact: Mapping[str, Any], entry: Entry, epoch: int) -> None:
        self.conversation.append(self._inherits(fact))

    def _inherits(self, fact: Mapping[str, Any]) -> Item:
        item = _inherited(fact)
        self.hides(item, _inherited(self.was(fact)))
        return item


def _pictures(item: Item) -> list[Any]:
    return [part["image_url"] for part in item.get("content") or () if part.get("type") == "input_image"]


def _are(items: Sequence[Item], wanted: Sequence[Item]) -> bool:
    """Whether these are the items that are wanted, or what stands instead of such."""
    both = zip(items, wanted, strict=False)
    return len(items) == len(wanted) and all(one == held or text_of(one) == REDACTED for one, held in both)


def _keeps(found: Sequence[str], said: Iterable[Texts]) -> bool:
    """Whether texts are what was said, in order; a text without words may be lacking.

    A redacted text is the same as others are: which of them is lacking, only those behind it tell.
    """
    ends = {0}
    for texts in said:
        able = {"".join(plain([text])) for text in texts if isinstance(text, str)}
        taken = {at + 1 for at in ends if found[at : at + 1] and found[at] in able}
        ends = taken | ends if "" in able else taken
    return len(found) in ends


def _inherited(fact: Mapping[str, Any]) -> Item:
    beside = {name: fact.get(name, ()) for name in ("user_texts", "instructions")}
    return {"type": "inherited", "content": fact["content"], **beside}


_FOLLOWS: Mapping[str, tuple[str, ...]] = {
    "proposed": ("awaiting_approval", "running", "waiting", "asking", "done"),
    "awaiting_approval": ("running", "waiting", "done"),
    "running": ("awaiting_approval", "proposed", "done"),
    "waiting": ("done",),
    "asking": ("done",),
    "done": (),
}
