"""A second reading of a session's log, entry by entry: what may follow what, and what its numbers must
be.

It shares nothing with the product's fold but the names of facts, events and items. It knows the order of a
task (begun, requests, calls, one end), counts requests, retries, tokens and generations by itself, and
keeps the conversation as a plain list. `agrees` compares all of it with the fold's state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import orjson

from orchestrator.core.entries import DENDRO, EVENT_MSG, RESPONSE_ITEM, TURN_CONTEXT, Entry
from orchestrator.core.state import State
from sim.policy import asks_for_more, is_tool, verdict

Item = Mapping[str, Any]
CALLS = ("function_call", "custom_tool_call", "local_shell_call")
OUTPUTS = ("function_call_output", "custom_tool_call_output")
CONTEXT = ("<environment_context>", "<user_instructions>")
MANNERS = ("personality", "collaboration_mode")
ABORTED = "<turn_aborted>"
BRIDGE = "This conversation was compacted."
REPLACES = "These instructions replace all that were given before them."
COUNTS = (
    "input_tokens",
    "cached_input_tokens",
    "output_tokens",
    "reasoning_output_tokens",
    "total_tokens",
)
WINDOWS = {"gpt-5": 272_000}
"""Of the models that simulations ask."""
STREAM_RETRIES, HTTP_RETRIES = 4, 2
HELD_MS = 5_000
HELD_ASKED_MS, MOST_ASKED_MS = 1_000, 20_000
"""Of waits that the model asks for, when its worker holds the session and when nobody does."""
AFTER_RUNNING = {"exec": "exec_command_end", "patch": "patch_apply_end", "mcp": "mcp_tool_call_end"}
BEFORE_RUNNING = {"exec": "exec_command_begin", "patch": "patch_apply_begin", "mcp": "mcp_tool_call_begin"}


class Wrong(Exception):
    """An entry that cannot stand where it does."""


def check(holds: object, seen: str) -> None:
    if not holds:
        raise Wrong(seen)


def text_of(item: Item) -> str:
    """A message's text parts, joined."""
    return "".join(str(part.get("text", "")) for part in item.get("content") or ())


def _only_plans(settings: Mapping[str, Any]) -> bool:
    """Whether a task of these settings only plans."""
    return (settings.get("collaboration_mode") or {}).get("mode") == "plan"


def _tags_in_force(settings: Mapping[str, Any]) -> list[str]:
    """The tags of the messages by which a model knows its mode and its personality."""
    kind = (settings.get("collaboration_mode") or {}).get("mode", "code")
    tags = ["<collaboration_mode>"] if kind not in ("code", "default") else []
    return [*tags, "<personality>"] if settings.get("personality", "none") != "none" else tags


def split(text: str) -> tuple[str, str | None]:
    """The words of a message and the plan in it, read line by line; None without a plan."""
    said: list[str] = []
    blocks: list[list[str]] = []
    inside = False
    for line in text.split("\n"):
        if line.strip() == ("</proposed_plan>" if inside else "<proposed_plan>"):
            inside = not inside
            blocks += [[]] if inside else []
        else:
            (blocks[-1] if inside else said).append(line)
    plan = "\n".join(line for block in blocks for line in block) if blocks else None
    return "\n".join(said).strip("\n"), plan


class Grammar:
    """A session's log as far as it was read."""

    def __init__(self) -> None:
        self.conversation: list[Item] = []
        self.settings: dict[str, Any] = {}
        self.queue: list[str] = []
        self.inbox: list[str] = []
        self._mails: set[str] = set()
        self.children: dict[int, dict[str, Any]] = {}
        self.watchdogs: dict[int, Mapping[str, Any]] = {}
        self.mails: dict[str, Mapping[str, Any]] = {}
        self.asked: dict[str, Item] = {}
        """Calls by their ids."""
        self.facts: Mapping[str, Any] = {}
        """Facts that stay with the session for life."""
        self.approved: set[str] = set()
        """Keys that were approved for the session."""
        self.used = 0
        """Tokens of all its requests."""
        self.agent: dict[str, Any] = {"status": "", "turns": 0}
        """The status and the number of turns that the agent reports of itself."""
        self.ends: dict[int, dict[str, Any]] = {}
        """How each of its turns as an agent ended."""
        self._ended: dict[str, Any] = {}
        self.generation = 0
        self.requests = 0
        self.closing = ""
        self.closed = False
        self.totals: dict[str, int] | None = None
        self.rate_limits: Mapping[str, Any] | None = None
        """The rate limits that the provider reported last."""
        self._uncounted: list[Mapping[str, Any]] = []
        self.task: dict[str, Any] | None = None
        self.bookmarks: list[tuple[str, int]] = []
        self.kept: list[str] = []
        self._last: Entry | None = None
        self._before_last: Entry | None = None
        self._due: list[tuple[str, Callable[[Entry], bool]]] = []
        """Names and tests of the entries that must come next."""
        self.read_so_far = 0
        self._rules: dict[str, Callable[[Mapping[str, Any], Entry, int], None]] = {
            name.removeprefix("_fact_"): getattr(self, name) for name in _names("_fact_")
        }
        self._events: dict[str, Callable[[Mapping[str, Any], Entry], None]] = {
            name.removeprefix("_event_"): getattr(self, name) for name in _names("_event_")
        }

    def read(self, entry: Entry, epoch: int) -> None:
        """Takes one entry; raises `Wrong` where none like it may stand."""
        if self._due:
            what, fits = self._due.pop(0)
            check(fits(entry), f"{what} is to follow, and {_named(entry)} does")
        if entry.type == DENDRO:
            rule = self._rules.get(entry.payload["kind"])
            if rule is not None:
                rule(entry.payload, entry, epoch)
        elif entry.type == EVENT_MSG:
            event = self._events.get(entry.payload["type"])
            if event is not None:
                event(entry.payload, entry)
        elif entry.type == RESPONSE_ITEM:
            self._item(entry.payload)
        elif entry.type == "compacted":
            self._compacted(entry.payload)
        self._before_last, self._last = self._last, entry
        self.read_so_far += 1

    # ── tasks ─────────────────────────────────────────────────────────────────────────────────

    @property
    def before(self) -> Entry | None:
        """The entry before the last one."""
        return self._before_last

    @property
    def _task(self) -> dict[str, Any]:
        check(self.task is not None, "no task holds the session")
        assert self.task is not None
        return self.task

    def _fact_configured(self, fact: Mapping[str, Any], entry: Entry, epoch: int) -> None:
        self.settings, self.facts = dict(fact["settings"]), fact["session"]

    def _fact_settings(self, fact: Mapping[str, Any], entry: Entry, epoch: int) -> None:
        changes = fact["changes"]
        self.settings |= {name: changes[name] for name in changes if changes[name] is not None}
        if "effort" in changes:
            self.settings["effort"] = changes["effort"]

    def _fact_queued(self, fact: Mapping[str, Any], entry: Entry, epoch: int) -> None:
        self.queue.append(fact["id"])

    def _fact_task(self, fact: Mapping[str, Any], entry: Entry, epoch: int) -> None:
        check(self.task is None, "two tasks hold the session")
        if self.queue:
            check(fact["id"] == self.queue.pop(0), f"task {fact['id']} begins before what was queued first")
        given = self.agent.get("summary") or not fact["id"].startswith("spawn-")
        check(given, f"{fact['id']} begins, and its agent was given nothing to do")
        own = dict(self.settings)
        if _only_plans(own):
            own["sandbox_policy"] = {"mode": "read-only"}
        check(dict(fact["settings"]) == own, f"a task has the settings {dict(fact['settings'])}")
        self.closed = False
        window = fact["settings"].get("window") or WINDOWS.get(fact["settings"]["model"])
        self.task = {
            "id": fact["id"],
            "kind": fact["task"],
            "settings": fact["settings"],
            "request": None,
            "calls": {},
            "steered": [],
            "retries": 0,
            "http": 0,
            "wait": 0,
            "stopping": "",
            "ended": "",
            "counted": True,
            "message": None,
            "pending": [],
            "plans": [],
            "answers": {},
            "response": "",
            "window": window,
            "rescue": 0,
            "rescued": False,
        }

        def started(entry: Entry) -> bool:
            message = entry.payload
            return (
                entry.id == fact["id"]
                and message.get("type") == "task_started"
                and message["model_context_window"] == window
            )

        self._due.append(("the task's beginning", started))

    def _fact_task_ended(self, fact: Mapping[str, Any], entry: Entry, epoch: int) -> None:
        task, outcome = self._task, fact["outcome"]
        end, before = self._last, self._before_last
        assert end is not None
        assert before is not None
        message, reason = end.payload, task["stopping"]
        check(not reason or outcome == reason, f"the task was {reason}, and ended as {outcome}")
        check(end.id == task["id"], "its end is told under another id")
        if outcome in ("completed", "failed"):
            check(message.get("type") == "task_complete", f"{outcome} ends with {_named(end)}")
            compacts = task["kind"] == "compact"
            told = task["message"] if outcome == "completed" and not compacts else None
            check(message["last_agent_message"] == told, f"its last message is told as {message}")
            bookmark = "" if compacts else task["response"]
            check(message.get("response_id", "") == bookmark, f"its last response is told as {message}")
        else:
            told = "replaced" if outcome == "replaced" else "interrupted"
            check(
                message.get("type") == "turn_aborted" and message["reason"] == told, f"{outcome}: {message}"
            )
        if outcome == "completed":
            idle = task["kind"] == "compact" and all(map(_opens, self.conversation))
            check(
                task["ended"] == "completed" or idle,
                f"a task is over whose request {task['ended'] or 'never was'}",
            )
            check(not task["steered"], "a task is over with input that never joined it")
        if outcome == "failed":
            check(
                before.payload.get("type") == "error" and before.id == task["id"],
                "it failed without an error",
            )
        self._ended = {"outcome": outcome, "message": message.get("last_agent_message"), "used": self.used}
        if outcome == "interrupted":
            check(_is_marker(before), "the model is not told of the interrupt")
        self.task = None

    def _fact_stopping(self, fact: Mapping[str, Any], entry: Entry, epoch: int) -> None:
        check(not self._task["stopping"], "a task is stopped twice")
        self._task["stopping"] = fact["reason"]

    def _fact_steered(self, fact: Mapping[str, Any], entry: Entry, epoch: int) -> None:
        self._task["steered"].append(fact["item"])

    def _fact_closing(self, fact: Mapping[str, Any], entry: Entry, epoch: int) -> None:
        self.closing = fact["by"]

    def _fact_closed(self, fact: Mapping[str, Any], entry: Entry, epoch: int) -> None:
        by = self.closing
        check(self.task is None, "it is closed while a task holds it")
        check(not self.watchdogs, "it is closed and keeps watchdogs")
        self.closing, self.closed = "", True
        if by:
            self._due.append(
                ("`shutdown_complete`", lambda e: e.payload.get("type") == "shutdown_complete" and e.id == by)
            )

    def _event_user_message(self, message: Mapping[str, Any], entry: Entry) -> None:
        said = self._last
        assert said is not None
        item = said.payload["item"] if said.type == DENDRO and "item" in said.payload else said.payload
        same = item.get("role") == "user" and (
            not isinstance(message["message"], str) or text_of(item) == message["message"]
        )
        check(same, f"{message['message']!r} is shown as said behind {_named(said)}")

    # ── requests ──────────────────────────────────────────────────────────────────────────────

    def _fact_request_begun(self, fact: Mapping[str, Any], entry: Entry, epoch: int) -> None:
        task = self._task
        check(task["request"] is None and not task["stopping"], "a request begins beside another, or in vain")
        check(not task["wait"], "a request begins before its time")
        check(not task["steered"], "a request begins without what was said")
        check(fact["n"] == self.requests + 1, f"request {fact['n']} follows {self.requests}")
        check(fact["epoch"] == epoch, f"a request of epoch {fact['epoch']} begins in {epoch}")
        wanted = "compact" if task["kind"] == "compact" or task["rescue"] else "turn"
        check(fact["purpose"] == wanted, f"a {task['kind']} task asks for {fact['purpose']}")
        check(task["counted"], "the response before was not counted")
        check(
            all(call["phase"] == "done" for call in task["calls"].values()), "a call of the response is open"
        )
        self.requests = fact["n"]
        task |= {
            "request": fact["purpose"],
            "purpose": fact["purpose"],
            "calls": {},
            "ended": "",
            "response": "",
        }
        task |= {"items": [], "summary": []}
        settings = task["settings"]
        names = ["cwd", "approval_policy", "sandbox_policy", "model", "summary"]
        context = {name: settings[name] for name in names}
        if settings["effort"] is not None:
            context["effort"] = settings["effort"]
        context |= {name: settings[name] for name in MANNERS if name in settings}
        self._due.append(
            ("the turn's context", lambda e: e.type == TURN_CONTEXT and dict(e.payload) == context)
        )
        self._due.append(("the tokens so far", lambda e: e.payload.get("type") == "token_count"))

    def _fact_request_ended(self, fact: Mapping[str, Any], entry: Entry, epoch: int) -> None:
        task = self._task
        check(
            task["request"] and fact["n"] == self.requests, f"request {fact['n']} ends, and is not in flight"
        )
        check(not task["pending"], "an item was announced and never came")
        outcome = task["ended"] = fact["outcome"]
        purpose, task["request"] = task["request"], None
        self.used += (fact.get("usage") or {}).get("total_tokens") or 0
        if outcome == "completed":
            task |= {"retries": 0, "http": 0, "response": fact["response_id"], "goes_on": False}
            if fact.get("usage"):
                self._uncounted.append(fact["usage"])
            task["counted"] = bool(task["stopping"])
            if purpose == "compact":
                task["counted"] = True
        elif outcome in ("retry", "waiting"):
            self._delayed(fact, task, outcome)
        elif fact.get("overflow"):
            self._overflowed(task, purpose)

    def _overflowed(self, task: dict[str, Any], purpose: str) -> None:
        """A request was too long for the model: three compactions are tried, and one turn of a task."""
        if purpose == "compact":
            task["rescue"] = max(task["rescue"], 1) + 1
            check(task["rescue"] <= 3, "a conversation is cut down without end")
        else:
            check(not task["rescued"], "a task is rescued twice")
            task |= {"rescue": 1, "rescued": True}
        self._due.append(
            ("the news that it is too long", lambda e: e.payload.get("type") == "background_event")
        )

    def _delayed(self, fact: Mapping[str, Any], task: dict[str, Any], outcome: str) -> None:
        check(not task["stopping"], "a request of a stopping task is to be sent again")
        check(0 <= fact["http_used"] <= HTTP_RETRIES, f"{fact['http_used']} attempts are counted")
        if outcome == "retry":
            task["retries"] += 1
            # A long wait takes a timer between them.
            event = self._before_last if fact["wait"] else self._last
            told = event.payload.get("message", "") if event else ""
            words = f"; retrying {task['retries']}/{STREAM_RETRIES} in "
            check(words in told and told.endswith("ms…"), f"attempt {task['retries']} is told as {told!r}")
            check(task["retries"] <= STREAM_RETRIES, f"attempt {task['retries']} of {STREAM_RETRIES}")
            delay_ms = int(told.rpartition(" in ")[2].removesuffix("ms…"))
            check(
                (delay_ms > HELD_MS) == bool(fact["wait"]),
                f"{delay_ms} ms are waited for with {fact['wait']}",
            )
            most = 200 * 2 ** (task["retries"] - 1) * 1.1
            asked = MOST_ASKED_MS if fact["wait"] else HELD_ASKED_MS
            check(0 <= delay_ms <= max(most, asked), f"attempt {task['retries']} waits for {delay_ms} ms")
        task["http"], task["wait"] = fact["http_used"], fact["wait"]
        taken = fact["wait"] in (0, self.generation)
        check(taken, f"a retry waits for generation {fact['wait']}, {self.generation} was taken")

    def expects_rate_limits(self, snapshot: Mapping[str, Any] | None) -> None:
        """A response came with these, or with none: what follows it in the log says so."""
        if snapshot is not None:
            told = {"kind": "rate_limits", "snapshot": snapshot}
            self._due.append(("what the provider said of its limits", lambda e: dict(e.payload) == told))

    def _fact_rate_limits(self, fact: Mapping[str, Any], entry: Entry, epoch: int) -> None:
        self.rate_limits = fact["snapshot"]

    def _fact_retry_due(self, fact: Mapping[str, Any], entry: Entry, epoch: int) -> None:
        check(self._task["wait"], "a retry is due that nobody waits for")
        self._task["wait"] = 0

    def _fact_timer(self, fact: Mapping[str, Any], entry: Entry, epoch: int) -> None:
        self._takes(fact["generation"])

    def _takes(self, generation: int) -> None:
        check(generation == self.generation + 1, f"generation {generation} follows {self.generation}")
        self.generation = generation

    def _event_token_count(self, message: Mapping[str, Any], entry: Entry) -> None:
        task = self._task
        info, before = message["info"], self.totals
        if self._uncounted:
            usage = self._uncounted[-1]
            # The usage of a stopped task is told with the next count, or never.
            self.totals = {name: (before or {}).get(name, 0) + (usage.get(name) or 0) for name in COUNTS}
            told = dict(info["last_token_usage"]) if info else {}
            check(
                all(told.get(name) == (usage.get(name) or 0) for name in COUNTS) or self._is_late,
                f"the last response used {dict(usage)}, told is {told}",
            )
        if info is None:
            check(self.totals is None or self._is_late, "tokens were used, and none are told")
            self.totals = None
        else:
            sums = dict(info["total_token_usage"])
            check(
                sums == self.totals or (self._is_late and sums == before), f"{sums} are told of {self.totals}"
            )
            self.totals = sums
            check(info["model_context_window"] == task["window"], f"the window is told as {info}")
        self._uncounted.clear()
        limits = self.rate_limits or {"primary": None, "secondary": None}
        check(message["rate_limits"] == limits, f"limits {limits} are told as {message['rate_limits']}")
        self.rate_limits = message["rate_limits"]
        response = message.get("response_id", "")
        check(not response or response == task["response"], f"the response is told as {response}")
        if response:
            self.bookmarks.append((response, len(self.conversation)))
        if not task["counted"]:
            check(
                not any(call["phase"] != "done" for call in task["calls"].values()), "counted with open calls"
            )
            task["counted"] = True

    @property
    def _is_late(self) -> bool:
        """Whether the count stands at a request's beginning: what came before it may be nobody's any more."""
        return self._last is not None and self._last.type == TURN_CONTEXT

    # ── items and calls ───────────────────────────────────────────────────────────────────────

    def _item(self, item: Item) -> None:
        self.conversation.append(item)
        kind, task = item.get("type"), self.task
        if kind in CALLS:
            self.asked[item["call_id"]] = item
        if task is None:
            return
        if task["request"] and (kind in CALLS or item.get("role") == "assistant"):
            task["items"].append(item)
        if kind == "message" and item.get("role") == "assistant":
            self._said(task, text_of(item))
        elif kind == "message" and task["steered"] and dict(item) == dict(task["steered"][0]):
            task["steered"].pop(0)
        elif kind in CALLS and task["request"]:
            check(task["request"] == "turn", "a compaction asks for a call")
            check(item["call_id"] not in task["calls"], f"{item['call_id']} is asked for twice")
            task["calls"][item["call_id"]] = {"phase": "proposed", "kind": "", "output": False}
        elif kind in OUTPUTS and (call := task["calls"].get(item["call_id"])):
            check(not call["output"], f"{item['call_id']} has two outputs")
            call["output"] = True

    def _said(self, task: dict[str, Any], text: str) -> None:
        """Takes a finished message: what it says, and the plan in it, were announced before it."""
        said, plan = split(text) if _only_plans(task["settings"]) else (text, None)
        if plan is not None:
            check(task["plans"][:1] == [plan], f"the plan {plan!r} was not announced")
            task["plans"].pop(0)
        if said:
            check(task["pending"][:1] == [said], f"{said!r} was not announced")
            task["pending"].pop(0)
        task["message"] = said or None

    def _event_item_completed(self, message: Mapping[str, Any], entry: Entry) -> None:
        item, task = message["item"], self._task
        named = (message["turn_id"], item["type"], item["id"])
        check(named == (task["id"], "Plan", f"{task['id']}-plan"), f"an item is told as {named}")
        check(_only_plans(task["settings"]), "a plan is proposed in another mode")
        task["plans"].append(item["text"])

    def _event_agent_message(self, message: Mapping[str, Any], entry: Entry) -> None:
        if self._task["request"] == "turn":
            self._task["pending"].append(message["message"])
        else:
            check(self._task["kind"] == "compact", "the agent speaks, and no request is in flight")

    def _fact_call(self, fact: Mapping[str, Any], entry: Entry, epoch: int) -> None:
        call = self._task["calls"].get(fact["call_id"])
        if call is None:
            return
        before, phase = call["phase"], fact["phase"]
        self._permitted(fact, before)
        check(phase in _FOLLOWS[before], f"{fact['call_id']} goes from {before} to {phase}")
        call["phase"] = phase
        call["kind"] = fact.get("spec", {}).get("kind") or call["kind"]
        if phase == "running":
            self._began(fact, call["kind"], epoch)
        elif phase == "done":
            check(call["output"], f"{fact['call_id']} is done without an output")
            if before == "asking":
                # Told once, settled once: a second answer finds no call that asks.
                check(fact["call_id"] in self._task["answers"], f"{fact['call_id']} is settled by nobody")
            if before == "running" and call["kind"] in AFTER_RUNNING:
                end = self._before_last
                assert end is not None
                wanted = AFTER_RUNNING[call["kind"]], fact["call_id"]
                check(
                    (end.payload.get("type"), end.payload.get("call_id")) == wanted, f"{wanted} is not shown"
                )

    def _began(self, fact: Mapping[str, Any], kind: str, epoch: int) -> None:
        check(fact["epoch"] == epoch, f"{fact['call_id']} is begun by epoch {fact['epoch']} in {epoch}")
        begin, spec = self._last, fact.get("spec", {})
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
        if name not in ("shell", "apply_patch") and not is_tool(name):
            return
        spec, settings = fact.get("spec", {}), task["settings"]
        heard = set[str]() if _only_plans(settings) else self.approved
        if before == "awaiting_approval":
            yes = answer is not None and answer.startswith("approved")
            check(phase != "running" or yes, f"{fact['call_id']} runs, and the answer was {answer}")
            check(phase != "done" or (answer and not yes), f"{fact['call_id']} does not run: {answer}")
        elif before == "running" and phase == "awaiting_approval":
            check(asks_for_more(settings["approval_policy"]), f"{fact['call_id']} is asked about again")
        elif before == "proposed" and "keys" in spec:
            wanted = verdict(name, orjson.loads(item["arguments"]), spec, settings, heard)
            done = (
                {"running": "run", "awaiting_approval": "ask"}.get(phase, phase),
                spec.get("sandboxed", False),
            )
            check(done == wanted, f"{fact['call_id']} under {dict(settings)}: {done} and not {wanted}")
        elif before == "proposed" and self._refusal:
            wanted = verdict(name, orjson.loads(item["arguments"]), spec, settings, heard)
            check(wanted[0] == "refuse", f"{fact['call_id']} is refused and not {wanted}: {self._refusal}")

    @property
    def _refusal(self) -> str:
        """The output before this entry, where the policy gave it."""
        output = str(self._last.payload.get("output", "")) if self._last else ""
        return output if "policy" in output else ""

    def _fact_answer(self, fact: Mapping[str, Any], entry: Entry, epoch: int) -> None:
        if "agent_id" in fact or self.task is None:
            return
        call = self.task["calls"].get(fact["call_id"])
        check(
            call and call["phase"] in ("awaiting_approval", "asking"),
            f"{fact['call_id']} was not asked about",
        )
        check(fact["turn"] == self.task["id"], f"an answer of the turn {fact['turn']}")
        self.task["answers"][fact["call_id"]] = fact["decision"]

    def _fact_approved_for_session(self, fact: Mapping[str, Any], entry: Entry, epoch: int) -> None:
        self.approved |= set(fact["keys"])

    def _fact_calls_closed(self, fact: Mapping[str, Any], entry: Entry, epoch: int) -> None:
        for call_id in fact["call_ids"]:
            call = self._task["calls"][call_id]
            check(call["output"], f"{call_id} is closed without an output")
            call["phase"] = "done"

    def _fact_summary(self, fact: Mapping[str, Any], entry: Entry, epoch: int) -> None:
        self._task["summary"].append(fact["text"])

    def _compacted(self, payload: Mapping[str, Any]) -> None:
        items, kept = list(payload["replacement_history"]), list(payload["kept_user_texts"] or ())
        opened = self._opens_with(items)
        check(all(map(_is_pictures, items[opened:-1])), "a compaction keeps more than it may")
        inherited = [text for item in self.conversation for text in item.get("user_texts", ())]
        said = inherited + [
            text_of(item)
            for item in self.conversation
            if item.get("role") == "user" and item.get("type") == "message" and _is_said(item)
        ]
        bridge = text_of(items[-1])
        check(payload["message"] in bridge, "a compaction loses its summary")
        if all(isinstance(part, str) for part in kept):
            wanted, plain = _plain([*self.kept, *said]), _plain(kept)
            check(plain == wanted, f"a compaction keeps {kept} of {[*self.kept, *said]}")
            check(_in_order(bridge, kept), "a compaction does not tell what people said, or in another order")
        self.kept, self.conversation = kept, items
        self._task["rescue"] = 0
        self.bookmarks.clear()

    def _opens_with(self, items: Sequence[Item]) -> int:
        """The number of items that a new history begins with, which tell the model of its place."""
        heeded: list[Item] = []
        for item in self.conversation:
            for told in item.get("instructions", ()) if item.get("type") == "inherited" else (item,):
                if text_of(told).startswith(CONTEXT[1]):
                    heeded = [] if REPLACES in text_of(told) else [one for one in heeded if one != told]
                    heeded.append(told)
        roles = [item for item in self.conversation if _is_role(item)][-1:]
        check(roles or not self.facts.get("agent_id"), "an agent has forgotten its part")
        count = len(heeded) + 1 + len(roles)
        check(items[: len(heeded)] == heeded, "a compaction keeps other instructions than those that hold")
        check(items[len(heeded) + 1 : count] == roles, "a compaction forgets the agent's part")
        told = text_of(items[len(heeded)])
        for name in ("cwd", "approval_policy"):
            line = f"<{name}>{self._task['settings'][name]}</{name}>"
            check(line in told, f"after a compaction the model is told {told!r}, and {line} holds")
        manners = _tags_in_force(self._task["settings"])
        tags = [text_of(item).partition("\n")[0] for item in items[count : count + len(manners)]]
        check(tags == manners, f"after a compaction the model is told {tags}, and {manners} hold")
        return count + len(manners)

    def _fact_rewound(self, fact: Mapping[str, Any], entry: Entry, epoch: int) -> None:
        length = next((length for mark, length in self.bookmarks if mark == fact["response_id"]), None)
        check(length == fact["length"], f"{fact['response_id']} stood at {length}, not {fact['length']}")
        self.conversation = self.conversation[: fact["length"]]
        self.bookmarks = [mark for mark in self.bookmarks if mark[1] <= fact["length"]]

    def _fact_forked(self, fact: Mapping[str, Any], entry: Entry, epoch: int) -> None:
        beside = {name: fact.get(name, ()) for name in ("user_texts", "instructions")}
        self.conversation.append({"type": "inherited", "content": fact["content"], **beside})

    # ── the tree ──────────────────────────────────────────────────────────────────────────────

    def _fact_agent(self, fact: Mapping[str, Any], entry: Entry, epoch: int) -> None:
        changes = fact["changes"]
        turns = changes.get("turns", self.agent["turns"])
        check(
            turns in (self.agent["turns"], self.agent["turns"] + 1),
            f"turn {turns} follows {self.agent['turns']}",
        )
        if turns != self.agent["turns"]:
            check(self.task is None, "an agent comes to rest while a task holds it")
            self.ends[turns] = {"outcome": "", "message": None, **self._ended, "status": changes["status"]}
            self.ends[turns]["used"] = self.used
        if changes.get("status") == "running":
            check(self.task is not None, "an agent works without a task")
        self.agent |= changes

    def _fact_mail(self, fact: Mapping[str, Any], entry: Entry, epoch: int) -> None:
        key = fact["mail"]["key"]
        check(key not in self._mails, f"the letter {key} comes twice")
        self._mails.add(key)
        self.mails[key] = fact["mail"]
        self.inbox.append(key)

    def _fact_mail_taken(self, fact: Mapping[str, Any], entry: Entry, epoch: int) -> None:
        keys = list(fact["keys"])
        check(keys and set(keys) <= set(self.inbox), f"{keys} are taken of {self.inbox}")
        self.inbox = [key for key in self.inbox if key not in keys]

    def _fact_child(self, fact: Mapping[str, Any], entry: Entry, epoch: int) -> None:
        child = fact["child"]
        check(child["agent_id"] not in self.children, f"agent {child['agent_id']} is made twice")
        self.children[child["agent_id"]] = dict(child)

    def _fact_child_changed(self, fact: Mapping[str, Any], entry: Entry, epoch: int) -> None:
        child = self.children.get(fact["agent_id"])
        check(child is not None, f"agent {fact['agent_id']} is not known")
        assert child is not None
        changes = fact["changes"]
        if "turn" in changes:
            check(
                changes["turn"] >= child["turn"],
                f"agent {fact['agent_id']} goes back to turn {changes['turn']}",
            )
        child |= changes

    def _fact_children_changed(self, fact: Mapping[str, Any], entry: Entry, epoch: int) -> None:
        for agent_id in fact["agent_ids"]:
            check(agent_id in self.children, f"agent {agent_id} is not known")
            self.children[agent_id] |= fact["changes"]

    def _fact_watchdog(self, fact: Mapping[str, Any], entry: Entry, epoch: int) -> None:
        check(
            fact["watchdog"]["generation"] == self.generation,
            "a watchdog has another generation than was taken",
        )
        self.watchdogs[fact["watchdog"]["agent_id"]] = fact["watchdog"]

    def _fact_watchdog_ended(self, fact: Mapping[str, Any], entry: Entry, epoch: int) -> None:
        check(fact["agent_id"] in self.watchdogs, "a watchdog ends that was never set")
        del self.watchdogs[fact["agent_id"]]

    # ── against the fold ──────────────────────────────────────────────────────────────────────

    def agrees(self, state: State) -> None:
        """Compares what was read here with the product's state of the same log."""
        task, folded = self.task, state.task
        own: dict[str, Any] = {
            "task": task and task["id"],
            "requests": self.requests,
            "queue": self.queue,
            "closed": self.closed,
            "closing": self.closing,
            "generation": self.generation,
            "inbox": self.inbox,
            "children": {id: (child["status"], child["turn"]) for id, child in self.children.items()},
            "watchdogs": set(self.watchdogs),
            "approved": self.approved,
            "status": self.agent["status"],
            "turns": self.agent["turns"],
            "used": self.used,
            "items": len(self.conversation),
            "kept": len(self.kept),
            "rate_limits": self.rate_limits,
        }
        told: dict[str, Any] = {
            "task": folded and folded.id,
            "requests": state.requests,
            "queue": [waiting.id for waiting in state.queue],
            "closed": state.closed,
            "closing": state.closing or "",
            "generation": state.timers,
            "inbox": [mail.key for mail in state.tree.inbox],
            "children": {id: (child.status, child.turn) for id, child in state.tree.children.items()},
            "watchdogs": set(state.tree.watchdogs),
            "approved": set(state.approved),
            "status": state.tree.status or "",
            "turns": state.tree.turns,
            "used": state.tokens.total.total_tokens if state.tokens else 0,
            "items": len(state.history),
            "kept": len(state.kept_user_texts),
            "rate_limits": state.rate_limits,
        }
        if task is not None and folded is not None:
            own |= {
                "calls": {id: call["phase"] for id, call in task["calls"].items()},
                "retries": task["retries"],
                "wait": task["wait"],
                "stopping": task["stopping"],
                "steered": len(task["steered"]),
                "message": task["message"],
            }
            told |= {
                "calls": {call.call_id: str(call.phase) for call in folded.calls},
                "retries": folded.stream_retries,
                "wait": folded.wait,
                "stopping": folded.stopping or "",
                "steered": len(folded.steered),
                "message": folded.last_message,
            }
        if own != told:
            name = next(name for name, value in own.items() if value != told[name])
            raise Wrong(f"{name}: the log says {own[name]}, the state {told[name]}")


@cache
def _names(prefix: str) -> tuple[str, ...]:
    """The methods for kinds of facts, or of events."""
    return tuple(name for name in dir(Grammar) if name.startswith(prefix))


_FOLLOWS: Mapping[str, tuple[str, ...]] = {
    "proposed": ("awaiting_approval", "running", "waiting", "asking", "done"),
    "awaiting_approval": ("running", "waiting", "done"),
    "running": ("awaiting_approval", "proposed", "done"),
    "waiting": ("done",),
    "asking": ("done",),
    "done": (),
}


def _named(entry: Entry) -> str:
    return f"{entry.type} {entry.payload.get('kind') or entry.payload.get('type') or ''}".strip()


def _is_marker(entry: Entry) -> bool:
    return entry.type == RESPONSE_ITEM and text_of(entry.payload).startswith(ABORTED)


def _is_said(item: Item) -> bool:
    text = text_of(item)
    return bool(text) and not text.startswith((*CONTEXT, ABORTED, BRIDGE))


def _is_role(item: Item) -> bool:
    return item.get("role") == "developer" and text_of(item).startswith("You are agent ")


def _opens(item: Item) -> bool:
    """Whether an item is of those that a conversation begins with, also behind a compaction."""
    of_user = item.get("role") == "user" and text_of(item).startswith((*CONTEXT, BRIDGE))
    return of_user or _is_role(item)


def _is_pictures(item: Item) -> bool:
    return item.get("role") == "user" and all(part["type"] == "input_image" for part in item["content"])


def _plain(texts: Sequence[str]) -> list[str]:
    """Texts without the names of pictures that stood beside them."""
    bare = (text.replace(" [image]", "").removeprefix("[image]") for text in texts)
    return [text for text in bare if text]


def _in_order(whole: str, parts: Sequence[str]) -> bool:
    at = 0
    for part in parts:
        at = whole.find(part, at)
        if at < 0:
            return False
        at += len(part)
    return True
