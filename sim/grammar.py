"""A second reading of a session's log, entry by entry: what may follow what, and what its numbers must
be.

It shares nothing with the product's fold but the names of facts, events and items. It knows the order of a
task (begun, requests, calls, one end), counts requests, retries, tokens and generations by itself, and
keeps the conversation as a plain list. `agrees` compares all of it with the fold's state.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from orchestrator.core.entries import DENDRO, EVENT_MSG, RESPONSE_ITEM, TURN_CONTEXT, Entry
from orchestrator.core.state import State
from sim.folded import told, told_of_task
from sim.grammar_beside import BesideGrammar, settings_beside
from sim.grammar_folders import FolderGrammar
from sim.grammar_givers import GiverGrammar
from sim.grammar_processes import ProcessGrammar
from sim.grammar_requests import RequestGrammar
from sim.grammar_terms import (
    ADDED,
    AFTER_RUNNING,
    COUNTS,
    HELD_ASKED_MS,
    HELD_MS,
    HTTP_RETRIES,
    MANNERS,
    MEANT,
    MOST_ASKED_MS,
    STREAM_RETRIES,
    WINDOWS,
    Wrong,
    check,
    is_marker,
    mode_of,
    named,
    only_plans,
    opens,
    tells_manners,
    text_of,
)
from sim.grammar_told import ToldGrammar


class Grammar(RequestGrammar, BesideGrammar, ToldGrammar, GiverGrammar, ProcessGrammar, FolderGrammar):
    """A session's log, held against the order of its tasks and requests."""

    def __init__(self) -> None:
        super().__init__()
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
            check(fits(entry), f"{what} is to follow, and {named(entry)} does")
        self._begins_epoch(entry, epoch)
        self.is_told(entry, epoch)
        if entry.type == DENDRO:
            self._is_given(entry.payload)
            rule = self._rules.get(entry.payload["kind"])
            if rule is not None:
                rule(entry.payload, entry, epoch)
        elif entry.type == EVENT_MSG:
            if entry.payload["type"] in AFTER_RUNNING.values():
                self._shown_end = entry.payload
            event = self._events.get(entry.payload["type"])
            if event is not None:
                event(entry.payload, entry)
        elif entry.type == RESPONSE_ITEM:
            self._item(entry.payload)
        elif entry.type == "compacted":
            self._compacted(entry.payload)
            self.names_its_processes("".join(text_of(self.was(item)) for item in self.conversation))
        self._before_last, self._last = self._last, entry
        self.read_so_far += 1

    def something_was_said(self) -> bool:
        return not all(opens(item) or tells_manners(item) for item in map(self.was, self.conversation))

    # ── tasks ─────────────────────────────────────────────────────────────────────────────────

    def _fact_configured(self, fact: Mapping[str, Any], entry: Entry, epoch: int) -> None:
        self.settings, self.facts = dict(fact["settings"]), fact["session"]

    def _fact_settings(self, fact: Mapping[str, Any], entry: Entry, epoch: int) -> None:
        changes = fact["changes"]
        self.settings |= {name: changes[name] for name in changes if changes[name] is not None}
        if "effort" in changes:
            self.settings["effort"] = changes["effort"]

    def _fact_queued(self, fact: Mapping[str, Any], entry: Entry, epoch: int) -> None:
        self.queue.append(fact["id"])
        if fact["op"].get("delivery") not in ("steer", "queue"):
            self.replacing.add(fact["id"])

    def _fact_lookup(self, fact: Mapping[str, Any], entry: Entry, epoch: int) -> None:
        if fact["op"]["type"] == "user_input":
            check(fact["id"] == self.queue[0], f"{fact['id']} looks back, and {self.queue} wait")
            self.looks_back = fact.get("client"), fact["id"]

    def _fact_looked_up(self, fact: Mapping[str, Any], entry: Entry, epoch: int) -> None:
        if (fact.get("client"), fact["id"]) == self.looks_back:
            self.looks_back = None

    def _fact_queue_ordered(self, fact: Mapping[str, Any], entry: Entry, epoch: int) -> None:
        removed = sorted((Counter(self.queue) - Counter(fact["ids"])).elements())
        check(sorted([*fact["ids"], *removed]) == sorted(self.queue), f"{fact['ids']} wait of {self.queue}")
        warned = self._last is not None and self._last.payload.get("type") == "warning"
        told = [id for id in self.queue if warned and self._last is not None and id == self._last.id]
        check(removed == told[:1], f"{removed} were taken out, and {told} told of it")
        check(self.task is not None, "the queue of a session that is free is changed")
        self.queue = list(fact["ids"])
        self.replacing &= set(self.queue)
        for id in {*removed}.difference(self.queue):
            self.edited.pop(id, None)

    def _fact_queue_edited(self, fact: Mapping[str, Any], entry: Entry, epoch: int) -> None:
        waits = fact["id"] in self.queue and self.task is not None
        check(waits, f"{fact['id']} is changed, and does not wait")
        self.edited[fact["id"]] = "".join(item["text"] for item in fact["items"])

    def _event_queue_changed(self, message: Mapping[str, Any], entry: Entry) -> None:
        check(message["waiting"] == len(self.queue), f"{message['waiting']} are told to wait of {self.queue}")

    def _fact_redacted(self, fact: Mapping[str, Any], entry: Entry, epoch: int) -> None:
        self.redacted.add(fact["digest"])

    def _fact_named(self, fact: Mapping[str, Any], entry: Entry, epoch: int) -> None:
        self.name = fact["name"]
        told = {"type": "thread_name_updated", "thread_name": fact["name"]}
        self._due.append(("its new name", lambda e: told.items() <= dict(e.payload).items()))

    def _fact_task(self, fact: Mapping[str, Any], entry: Entry, epoch: int) -> None:
        check(self.task is None, "two tasks hold the session")
        check(not self.closing, f"{fact['id']} begins while the session is being closed")
        if self.queue:
            check(fact["id"] == self.queue.pop(0), f"task {fact['id']} begins before what was queued first")
            self.replacing &= set(self.queue)
        given = self.agent.get("summary") or not fact["id"].startswith("spawn-")
        check(given, f"{fact['id']} begins, and its agent was given nothing to do")
        by_itself = fact["id"].startswith("auto-")
        check(not by_itself or self.begins_turn(self.inbox), f"{fact['id']} begins, and {self.inbox} wait")
        own = settings_beside(fact["task"], self.settings, fact["settings"]["model"])
        if only_plans(own) and fact["task"] != "shell":
            own["sandbox_policy"] = {"mode": "read-only"}
        self._begins_beside(fact)
        self._takes_plan(fact)
        check(dict(fact["settings"]) == own, f"a task has the settings {dict(fact['settings'])}")
        self.closed = False
        window = fact["settings"].get("window") or WINDOWS.get(fact["settings"]["model"])
        own_mode = mode_of(fact["settings"])
        self.task = {
            "id": fact["id"],
            "by": fact.get("by"),
            "kind": fact["task"],
            "settings": fact["settings"],
            "opening": fact.get("opening", ()),
            "shown": self.pinned if fact.get("takes_plan") else None,
            "proposals": {},
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
            "elicited": {},
            "response": "",
            "given": False,
            "window": window,
            "rescue": 0,
            "rescued": False,
            "reaches": {},
            "planned": None,
            "begun_at": len(self.conversation),
            "redacted": frozenset(self.redacted),
        }
        if self.task["shown"] is not None:
            self.pinned = None
        if fact["task"] == "shell":
            self._runs_command(fact)

        def started(entry: Entry) -> bool:
            message = entry.payload
            return (
                entry.id == fact["id"]
                and message.get("type") == "task_started"
                and message["model_context_window"] == window
                and message["collaboration_mode_kind"] in (own_mode, "default" if own_mode == "code" else "")
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
            check(message.get("type") == "task_complete", f"{outcome} ends with {named(end)}")
            compacts = task["kind"] == "compact"
            told = task["message"] if outcome == "completed" and not compacts else None
            check(message["last_agent_message"] == told, f"its last message is told as {message}")
            # A task may fail in the middle of a turn: nobody can go back to that.
            ended = outcome == "completed" or any(mark == task["response"] for mark, _ in self.bookmarks)
            bookmark = task["response"] if task["kind"] == "user" and ended else ""
            check(message.get("response_id", "") == bookmark, f"its last response is told as {message}")
        else:
            told = "replaced" if outcome == "replaced" else "interrupted"
            told = "review_ended" if (told, task["kind"]) == ("replaced", "review") else told
            check(
                message.get("type") == "turn_aborted" and message["reason"] == told, f"{outcome}: {message}"
            )
        if outcome == "completed":
            said = map(self.was, self.conversation)
            unsaid = all(opens(item) or tells_manners(item) for item in said)
            idle = task["kind"] == "compact" and unsaid
            check(
                task["ended"] == "completed" or idle or task["kind"] == "shell" or "decided" in task,
                f"a task is over whose request {task['ended'] or 'never was'}",
            )
            check(not task["steered"], "a task is over with input that never joined it")
        if outcome == "failed":
            error = before.payload.get("type") == "error" and before.id == task["id"]
            check(error or task.get("failed"), "it failed without an error")
        self.task_is_over(outcome)
        self._ended = {"outcome": outcome, "message": message.get("last_agent_message"), "used": self.used}
        if outcome == "interrupted" and self.aside is None:
            check(is_marker(before), "the model is not told of the interrupt")
        self._ends_beside(outcome)
        self.task = None

    def _fact_stopping(self, fact: Mapping[str, Any], entry: Entry, epoch: int) -> None:
        check(not self._task["stopping"], "a task is stopped twice")
        by = fact.get("by") or ""
        if fact["reason"] == "replaced" and by in self.queue:
            check(self.replacing, f"{by} was to wait, and the task is stopped for it")
        self._is_meant(by)
        self._task["stopping"] = fact["reason"]

    def _fact_steered(self, fact: Mapping[str, Any], entry: Entry, epoch: int) -> None:
        self._task["steered"].append(fact["item"])
        self.added += ADDED in fact["item"]
        self._is_meant(fact["id"])

    def _is_meant(self, id: str) -> None:
        """A submission for one turn touches no other."""
        _, told, meant = id.partition(MEANT)
        check(not told or meant == self._task["id"], f"{id} is for another turn than {self._task['id']}")

    def _event_input_accepted(self, message: Mapping[str, Any], entry: Entry) -> None:
        queued = message["delivery"] == "queued"
        place = self.queue[-1] if queued and self.queue else None if queued else self._task["id"]
        check(message["turn_id"] == place, f"{entry.id} is told to be part of turn {message['turn_id']}")

    def _fact_closing(self, fact: Mapping[str, Any], entry: Entry, epoch: int) -> None:
        # What waited for a look back waits in the queue again.
        self.closing, self.looks_back = fact["by"], None

    def _fact_closed(self, fact: Mapping[str, Any], entry: Entry, epoch: int) -> None:
        by = self.closing
        check(self.task is None, "it is closed while a task holds it")
        check(not self.watchdogs, "it is closed and keeps watchdogs")
        self.session_is_closed()
        self.closing, self.closed = "", True
        if by:
            self._due.append(
                ("`shutdown_complete`", lambda e: e.payload.get("type") == "shutdown_complete" and e.id == by)
            )

    def _event_user_message(self, message: Mapping[str, Any], entry: Entry) -> None:
        said = self._last
        assert said is not None
        item = said.payload["item"] if said.type == DENDRO and "item" in said.payload else said.payload
        item, told = self.was(item), self.was(message)["message"]
        same = item.get("role") == "user" and (not isinstance(told, str) or text_of(item) == told)
        check(same, f"{message['message']!r} is shown as said behind {named(said)}")
        wanted, shown = self._speaker(said, message), (message.get("who"), message.get("from_session"))
        check(shown == wanted, f"{message['message']!r} of {wanted} is shown as words of {shown}")
        # Words that were brought to a turn are told under its id, which may be that of an input that waits.
        words = None if said.type == DENDRO else self.edited.pop(entry.id, None)
        check(words in (None, message["message"]), f"{entry.id} says {message['message']!r}, not {words!r}")

    def _speaker(self, said: Entry, message: Mapping[str, Any]) -> tuple[str | None, str | None]:
        """The person, or the agent's session, whose words these are."""
        for mail in (self.mails[key] for key in self.inbox):
            content = mail["content"]
            if said.type != DENDRO and content.get("prompt") == message["message"]:
                person = content.get("person") or None
                return person, None if person else mail["sender"]["session_id"]
        by = (said.payload if said.type == DENDRO else self._task).get("by") or {}
        return by.get("who") or None, None

    # ── requests ──────────────────────────────────────────────────────────────────────────────

    def _fact_request_begun(self, fact: Mapping[str, Any], entry: Entry, epoch: int) -> None:
        task = self._task
        self.begins("a request", epoch)
        check(task["request"] is None and not task["stopping"], "a request begins beside another, or in vain")
        check(task["kind"] != "shell", "a model is asked about a person's command")
        check(not task["wait"], "a request begins before its time")
        settled = {task["answers"].get(call_id) for call_id in task["proposals"]} & {"approved", "rejected"}
        check(task["kind"] != "plan" or not settled, "a model is asked behind the decision on its plan")
        check(not task["steered"], "a request begins without what was said")
        self.folder_is_told()
        self.ready_ones_are_unread()
        self._knows_its_settings(task)
        self.knows_where_it_is()
        check(fact["n"] == self.requests + 1, f"request {fact['n']} follows {self.requests}")
        check(fact["epoch"] == epoch, f"a request of epoch {fact['epoch']} begins in {epoch}")
        wanted = "compact" if self.owes_compaction(task) else "turn"
        check(fact["purpose"] == wanted, f"a {task['kind']} task asks for {fact['purpose']}")
        check(task["counted"], "the response before was not counted")
        check(
            all(call["phase"] == "done" for call in task["calls"].values()), "a call of the response is open"
        )
        self.requests = fact["n"]
        task |= {
            "request": fact["purpose"],
            "purpose": fact["purpose"],
            "epoch": epoch,
            "calls": {},
            "ended": "",
            "response": "",
        }
        task |= {"items": [], "summary": []}
        settings = task["settings"]
        names = ["cwd", "approval_policy", "sandbox_policy", "model", "summary"]
        context = {name: settings[name] for name in names}
        check(settings["cwd"].startswith("/"), "a task works in a folder that is not absolute")
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
        self.ends_as_told(fact, epoch)
        self.used += (fact.get("usage") or {}).get("total_tokens") or 0
        if outcome == "completed":
            task |= {"retries": 0, "http": 0, "response": fact["response_id"], "goes_on": False}
            if fact.get("usage"):
                self._uncounted.append(fact["usage"])
                self.last_used = fact["usage"]["total_tokens"]
            if purpose == "turn" and self.aside is None:
                self.compacted = False
            elif purpose == "turn":
                self.aside_compacted = False
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
            told = self.was(event.payload).get("message", "") if event else ""
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
            check(self.aside is None, "a turn beside the conversation is one to go back to")
            self.bookmarks.append((response, len(self.conversation)))
        if not task["counted"]:
            ended_by = task["response"] if task["kind"] == "user" else ""
            check(response == ended_by, f"a turn that {ended_by!r} ended is told as {response!r}")
            check(
                not any(call["phase"] != "done" for call in task["calls"].values()), "counted with open calls"
            )
            task["counted"] = True

    @property
    def _is_late(self) -> bool:
        """Whether the count stands at a request's beginning: what came before it may be nobody's any more."""
        return self._last is not None and self._last.type == TURN_CONTEXT

    # ── against the fold ──────────────────────────────────────────────────────────────────────

    def agrees(self, state: State) -> None:
        """Compares what was read here with the product's state of the same log."""
        self.people_are_warned()
        own, found = self._own(), told(state)
        if self.task is not None and state.task is not None:
            own |= _own_of_task(self.task)
            found |= told_of_task(state.task)
        check(self.processes_agree(state), f"processes: the log says {self.living}, not the state")
        check(
            self.folder_agrees(state), f"folder: the log says {self.snapshot}, {self.unsaved}, not the state"
        )
        if own != found:
            name = next(name for name, value in own.items() if value != found[name])
            raise Wrong(f"{name}: the log says {own[name]}, the state {found[name]}")

    def _own(self) -> dict[str, Any]:
        task = self.task
        return {
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
            "aside": len(self.aside[0]) if self.aside else None,
            "pinned": self.pinned,
            "shown": task and task["shown"],
            "earlier": self.earlier,
            "looks_back": self.looks_back,
            "rate_limits": self.rate_limits,
        }


def _own_of_task(task: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "calls": {id: call["phase"] for id, call in task["calls"].items()},
        "retries": task["retries"],
        "wait": task["wait"],
        "stopping": task["stopping"],
        "steered": len(task["steered"]),
        "message": task["message"],
    }


@cache
def _names(prefix: str) -> tuple[str, ...]:
    """The methods for kinds of facts, or of events."""
    return tuple(name for name in dir(Grammar) if name.startswith(prefix))
