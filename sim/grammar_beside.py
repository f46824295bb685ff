"""Tasks that work beside the session's conversation, read a second time: reviews.

Such a task begins with items of its own, keeps them to itself, and leaves one message behind. While it runs,
`Reading.conversation` is its own, and the session's is put aside.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from orchestrator.core.entries import EVENT_MSG, Entry
from sim.grammar_calls import CallGrammar
from sim.grammar_terms import CONTEXT, MANNERS, REVIEWED, Item, check, text_of

BESIDE = ("review",)
"""Kinds of such tasks."""


def settings_beside(kind: str, session: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a task of the kind under those of its session."""
    own = {name: value for name, value in session.items() if kind not in BESIDE or name not in MANNERS}
    if kind in BESIDE:
        own |= {"sandbox_policy": {"mode": "read-only"}, "approval_policy": "never"}
    return own


class BesideGrammar(CallGrammar):
    """The beginning and the end of tasks with a conversation of their own."""

    def _begins_beside(self, fact: Mapping[str, Any]) -> None:
        """Takes the beginning of a task, if it is of such a kind."""
        check(not self.left, "a review was not told to the conversation")
        if fact["task"] not in BESIDE:
            check("opening" not in fact, "a task of the conversation begins with items of its own")
            return
        self.aside = self.conversation, self.kept
        self.conversation, self.kept = list(fact["opening"]), []
        environment, brief, asked = self.conversation
        told = text_of(environment)
        check("read-only" in told and "never" in told, f"a reviewer is told {told!r}")
        check(brief.get("role") == "developer" and asked.get("role") == "user", "a reviewer is told nothing")

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
        self.conversation, self.kept = self.aside
        self.aside = None
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

    def _takes_left(self, item: Item) -> None:
        """An item of the conversation: is it what a review leaves behind?"""
        if self.aside is None and text_of(item).startswith(REVIEWED):
            check(self.left and self.left in text_of(item), f"a review leaves {text_of(item)!r}")
            self.left = ""

    def _compacted_beside(self, items: list[Item], message: str) -> None:
        """A compaction beside the conversation: its context, the bridge, and what the task is about."""
        environment, bridge, *opening = items
        check(text_of(environment).startswith(CONTEXT[0]), "a review forgets where it works")
        check(message in text_of(bridge), "a compaction loses its summary")
        about = [item for item in self._task["opening"] if not text_of(item).startswith(CONTEXT[0])]
        check([text_of(item) for item in opening] == [text_of(item) for item in about], "a review forgets it")
        self.conversation = items
        self._task["rescue"] = 0
