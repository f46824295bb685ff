"""Tasks that work beside the session's conversation, read a second time: reviews and plans.

Such a task begins with items of its own, keeps them to itself, and leaves one message behind. While it runs,
`Reading.conversation` is its own, and the session's is put aside.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import orjson

from orchestrator.core.entries import EVENT_MSG, Entry
from sim.grammar_calls import CallGrammar
from sim.grammar_terms import (
    CONTEXT,
    MANNERS,
    MODES,
    OTHER_MODEL,
    PERSONALITIES,
    REVIEWED,
    Item,
    check,
    mode_of,
    tells_manners,
    text_of,
)

BESIDE = ("review", "plan")
"""Kinds of such tasks."""
TOLD = re.compile("<(cwd|approval_policy|sandbox_mode|network_access)>(.*?)</")
ROOTS = re.compile("<root>(.*?)</root>")
PLANNED = "The user ran a planning session for:"


def settings_beside(kind: str, session: Mapping[str, Any], model: str) -> dict[str, Any]:
    """The settings of a task of the kind, which asks this model, under those of its session."""
    own = {name: value for name, value in session.items() if kind not in BESIDE or name not in MANNERS}
    if kind in BESIDE:
        own |= {"sandbox_policy": {"mode": "read-only"}, "approval_policy": "never"}
        own["model"] = OTHER_MODEL if model == OTHER_MODEL else session["model"]
    if kind == "plan":
        own |= {name: session[name] for name in MANNERS if name in session}
        effort = session.get("effort")
        plan = {"model": own["model"], "reasoning_effort": effort, "developer_instructions": None}
        own["collaboration_mode"] = {"mode": "plan", "settings": plan}
    return own


class BesideGrammar(CallGrammar):
    """The beginning and the end of tasks with a conversation of their own."""

    approved_plan: Mapping[str, Any] | None = None
    """The plan of the last planning session, if it had one."""

    def _begins_beside(self, fact: Mapping[str, Any]) -> None:
        """Takes the beginning of a task, if it is of such a kind."""
        check(not (self.left or self.left_plan), "a task beside it was not told to the conversation")
        if fact["task"] not in BESIDE:
            check("opening" not in fact, "a task of the conversation begins with items of its own")
            return
        plans = fact["task"] == "plan"
        self.aside = self.conversation, self.kept, self.last_used
        self.aside_compacted = plans and self.compacted
        if plans:
            self.conversation = [*self.conversation, *fact["opening"]]
            *told, brief, goal = fact["opening"]
            check(brief["role"] == "developer" and goal["role"] == "user", "a plan has no goal")
            check(all(text_of(item).startswith(CONTEXT[0]) for item in told), "a plan begins with more")
            return
        self.conversation, self.kept, self.last_used = list(fact["opening"]), [], 0
        environment, brief, asked = self.conversation
        told = text_of(environment)
        check("read-only" in told and "never" in told, f"a reviewer is told {told!r}")
        check(brief.get("role") == "developer" and asked.get("role") == "user", "a reviewer is told nothing")

    def _knows_its_settings(self, task: Mapping[str, Any]) -> None:
        """The model is told under what it works, as far as this log says what it was told."""
        if task["kind"] == "compact":
            return
        told: dict[str, Any] = {}
        for item in self.conversation:
            if item.get("role") == "user" and text_of(item).startswith(CONTEXT[0]):
                told |= dict(TOLD.findall(text_of(item)))
                if "<sandbox_mode>" in text_of(item):
                    told["roots"] = ROOTS.findall(text_of(item))
        settings, policy = task["settings"], task["settings"]["sandbox_policy"]
        opens_network = policy["mode"] == "danger-full-access" or policy.get("network_access")
        now = {
            **settings,
            "sandbox_mode": policy["mode"],
            "network_access": "enabled" if opens_network else "restricted",
            "roots": list(policy.get("writable_roots") or ()),
        }
        wrong = {name: told[name] for name in told if told[name] != now[name]}
        check(not wrong, f"a model is told {wrong}, and works under {now}")
        if task["kind"] == "user":
            self._knows_its_manners(task)

    def _knows_its_manners(self, task: Mapping[str, Any]) -> None:
        """The model was told last of the mode and the personality that hold, if it has to be told at all.

        A task begins with what is lacking then: it was told nothing by what was redacted before.
        """
        told: dict[str, str | None] = dict.fromkeys(MANNERS, "")
        settings = task["settings"]
        for item in (self.was(item, task["redacted"]) for item in self.conversation):
            if item.get("type") == "inherited":
                # Whatever was told there is not read.
                told = dict.fromkeys(MANNERS)
            elif tells_manners(item):
                told[text_of(item)[1:].partition(">")[0]] = text_of(item)
        mode, personality = mode_of(settings), settings.get("personality") or "none"
        own = str(
            ((settings.get("collaboration_mode") or {}).get("settings") or {}).get("developer_instructions")
        )
        mode_words = own if own.strip() not in ("", "None") else MODES[mode]
        untold = {MANNERS[0]: personality == "none", MANNERS[1]: mode_words == MODES["code"]}
        for name, words in ((MANNERS[0], PERSONALITIES[personality]), (MANNERS[1], mode_words)):
            said = told[name]
            check(
                said is None or (words in said if said else untold[name]),
                f"a model is told {said!r}, and works under {settings}",
            )

    def _takes_plan(self, fact: Mapping[str, Any]) -> None:
        """Takes the task that an approved plan is shown to: the next one of a person."""
        of_person = fact["task"] == "user" and not fact["id"].startswith("auto-")
        wanted = bool(self.pinned and of_person and not self.queue)
        check(fact.get("takes_plan", False) is wanted, f"{fact['id']} is shown no plan, or one too many")

    def _event_entered_plan_mode(self, message: Mapping[str, Any], entry: Entry) -> None:
        begun = self._last is not None and self._last.payload.get("type") == "task_started"
        check(begun and self._task["kind"] == "plan", "plan mode is entered where no session begins")
        check(message["goal"] == text_of(self._task["opening"][-1]), "clients are told of another goal")
        self._task["entered"] = True

    def _event_plan_approval_request(self, message: Mapping[str, Any], entry: Entry) -> None:
        self._task["proposals"][message["call_id"]] = message["proposal"]

    def _fact_plan_decided(self, fact: Mapping[str, Any], entry: Entry, epoch: int) -> None:
        task, call_id = self._task, fact["call_id"]
        plan, answer = fact.get("plan"), task["answers"].get(call_id)
        check(task["kind"] == "plan" and "decided" not in task, "a plan is decided on that was not proposed")
        check(answer == ("approved" if plan else "rejected"), f"the plan is {plan}, the answer was {answer}")
        check(plan is None or plan == task["proposals"][call_id], f"another plan is approved: {plan}")
        task["decided"] = plan

    def _event_exited_plan_mode(self, message: Mapping[str, Any], entry: Entry) -> None:
        task, output = self._task, message["plan_output"]
        check(task.get("entered") and "exited" not in task, "plan mode is left twice, or was never entered")
        check(output == task.get("decided"), f"the plan is told as {output}")
        task["exited"] = output
        task["failed"] = self._last is not None and self._last.payload.get("type") == "error"

    def _fact_plan_pinned(self, fact: Mapping[str, Any], entry: Entry, epoch: int) -> None:
        check(not (self.left or self.left_plan), "a plan is pinned and not told to the conversation")
        check(fact["plan"] == self.approved_plan, f"{fact['plan']} is pinned, and was not approved")
        self.pinned, self.pinned_at = fact["plan"], len(self.conversation)

    def _event_entered_review_mode(self, message: Mapping[str, Any], entry: Entry) -> None:
        begun = self._last is not None and self._last.payload.get("type") == "task_started"
        check(begun and self._task["kind"] == "review", "a review is entered where none begins")
        self._task["entered"] = True

    def _event_exited_review_mode(self, message: Mapping[str, Any], entry: Entry) -> None:
        task, output = self._task, message["review_output"]
        check(task.get("entered") and "exited" not in task, "a review is left twice, or was never entered")
        task["exited"] = output
        task["failed"] = self._last is not None and self._last.payload.get("type") == "error"
        if output is not None:
            self._is_true(output, task["message"])

    def _is_true(self, output: Mapping[str, Any], said: str) -> None:
        """Whether clients are told what the reviewer said."""
        try:
            answer = orjson.loads(said)
        except orjson.JSONDecodeError:
            answer = {"overall_explanation": said, "findings": []}
        check(
            output["overall_explanation"] == answer["overall_explanation"],
            f"a review is told as {output}, its reviewer said {said!r}",
        )
        found = [finding["title"] for finding in output["findings"]]
        check(found == [finding["title"] for finding in answer["findings"]], f"findings are told as {found}")

    def _ends_beside(self, outcome: str) -> None:
        """Takes the end of a task with a conversation of its own; the session's is the one again."""
        task = self._task
        if self.aside is None:
            return
        self.conversation, self.kept, self.last_used = self.aside
        self.aside = None
        if task["kind"] == "plan":
            self._ends_plan(task)
            return
        last = self._before_last
        check(
            last is not None and last.type == EVENT_MSG and last.payload["type"] == "exited_review_mode",
            "a review ends and is not left",
        )
        check("exited" in task, "a review ends and is not left")
        answered = outcome == "completed" and task["message"] is not None
        check(
            (task["exited"] is not None) == answered, f"a review that {outcome} is told as {task['exited']}"
        )
        if task["exited"] is not None:
            self.left = task["exited"]["overall_explanation"] or "It has no findings"

    def _ends_plan(self, task: Mapping[str, Any]) -> None:
        check("exited" in task, "a planning session ends, and plan mode is not left")
        self.left = text_of(task["opening"][-1])
        self.approved_plan = task["exited"]
        if task["exited"] is not None:
            self.left_plan = task["exited"]["title"]

    def _takes_left(self, item: Item) -> None:
        """An item of the conversation: is it what a review leaves behind?"""
        if self.aside is None and text_of(item).startswith(REVIEWED):
            check(self.left and self.left in text_of(item), f"a review leaves {text_of(item)!r}")
            self.left = ""
        if self.aside is None and text_of(item).startswith(PLANNED):
            check(self.left and self.left in text_of(item), f"a planning session leaves {text_of(item)!r}")
            self.left = ""
        if self.left_plan and item.get("role") == "assistant":
            check(text_of(item).startswith(self.left_plan), f"{text_of(item)!r} is not the approved plan")
            self.left_plan = ""

    def _compacted_beside(self, items: list[Item], kept: list[str], message: str) -> None:
        """A compaction beside the conversation: its context, the bridge, and what the task is about."""
        if self._task["kind"] == "plan":
            check(message in text_of(items[-3]), "a compaction loses its summary")
            goal = [text_of(item) for item in self._task["opening"][-2:]]
            check([text_of(item) for item in items[-2:]] == goal, "a planning session forgets its goal")
            self.conversation, self.kept = items, kept
            self._task["rescue"] = 0
            return
        environment, bridge, *opening = items
        check(text_of(environment).startswith(CONTEXT[0]), "a review forgets where it works")
        check(message in text_of(bridge), "a compaction loses its summary")
        about = [item for item in self._task["opening"] if not text_of(item).startswith(CONTEXT[0])]
        check([text_of(item) for item in opening] == [text_of(item) for item in about], "a review forgets it")
        self.conversation = items
        self._task["rescue"] = 0
