"""Lines that a person types at an open request, until they are an answer.

An approval takes one line, and so does a plan: a decision, or what is to be changed. Questions take one each:
the number of an option, or words of one's own.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from orchestrator.core.calls.ask import DoesNotAnswer
from orchestrator.gateways.approvals import amendment_of, answer_op, plan_op, questions_op, shown_as
from orchestrator.protocol import ops
from orchestrator.protocol.policy import Decision, ReviewDecision
from orchestrator.views.event_text import is_outside
from orchestrator.views.questions import (
    INPUT,
    is_elicitation,
    is_plan,
    is_question,
    is_secret,
    name_of,
    options_of,
    texts_of,
)

APPROVAL: Final = "Allow? [y]es / [a]lways in this session / [n]o / [q]uit the turn: "
APPROVAL_WITH_PREFIX: Final = "Allow? [y]es / [p]refix / [a]lways in this session / [n]o / [q]uit the turn: "
ELICITATION: Final = "Answer? [y]es / [n]o / [c]ancel: "
ELICITATION_ANSWERS: Mapping[str, ReviewDecision] = {
    "y": ReviewDecision.APPROVED,
    "yes": ReviewDecision.APPROVED,
    "n": ReviewDecision.DENIED,
    "no": ReviewDecision.DENIED,
    "c": ReviewDecision.ABORT,
    "cancel": ReviewDecision.ABORT,
}
"""Answers to a question of an MCP server."""
PREFIX_WORDS: Final = frozenset({"p", "prefix"})
PLANNED: Final = "Follow this plan? [y]es / [n]o, or what is to be changed: "
DECISIONS: Mapping[str, str | None] = {"y": None, "yes": None, "ok": None, "okay": None, "n": "", "no": ""}
"""Lines that decide on a plan, as `plan_op` takes them; others say what is to be changed."""
CANCEL: Final = "/cancel"
ANSWERS: Mapping[str, ReviewDecision] = {
    "y": ReviewDecision.APPROVED,
    "yes": ReviewDecision.APPROVED,
    "a": ReviewDecision.APPROVED_FOR_SESSION,
    "always": ReviewDecision.APPROVED_FOR_SESSION,
    "n": ReviewDecision.DENIED,
    "no": ReviewDecision.DENIED,
    "q": ReviewDecision.ABORT,
    "quit": ReviewDecision.ABORT,
}


@dataclass(slots=True)
class Prompt:
    """An open request before a person, and what was answered of it so far."""

    request: Mapping[str, Any]
    fault: str = ""
    """Why the last line was no answer; empty if it was, or if it is plain."""
    _given: dict[str, list[str]] = field(default_factory=dict)
    _place: int = 0
    _shown: ops.Shown | None = None

    def was_shown(self, text: str) -> None:
        """Notes what the terminal has shown of the request above the line that asks."""
        self._shown = shown_as(f"{text}\n{self.text}", "terminal", int(time.time() * 1000))

    @property
    def text(self) -> str:
        """The line that asks."""
        if is_plan(self.request):
            return PLANNED
        if is_elicitation(self.request):
            return ELICITATION
        if not is_question(self.request):
            words = APPROVAL if amendment_of(self.request) is None else APPROVAL_WITH_PREFIX
            return f"Outside the sandbox. {words}" if is_outside(self.request) else words
        question = self._questions[self._place]
        how = "your words"
        if self.hides:
            how = "a secret, which is not shown and not kept"
        elif options_of(question):
            numbers = "numbers with commas" if question.get("multiSelect") else "a number"
            how = f"{numbers}, or your own words"
        left = ", empty to leave it out" if self.request["type"] == INPUT else ""
        return f"{question['header']}: {how}{left}; {CANCEL}: "

    @property
    def words(self) -> str:
        """The answers of one word that it takes."""
        if is_elicitation(self.request):
            return "y, n or c"
        return "y, a, n or q" if amendment_of(self.request) is None else "y, p, a, n or q"

    @property
    def _questions(self) -> list[Mapping[str, Any]]:
        return list(self.request["questions"])

    @property
    def hides(self) -> bool:
        """Whether the line that is typed now is a secret."""
        return is_question(self.request) and is_secret(self._questions[self._place])

    def answers(self, line: str) -> bool:
        """Whether a line is for this request, and no command; a secret may begin as a command does."""
        if is_plan(self.request):
            return not line.startswith(("/", "!"))
        if not is_question(self.request):
            return self._decision(line) is not None
        if self.hides:
            return True
        return line.strip() == CANCEL or not line.startswith(("/", "!"))

    def take(self, line: str) -> ops.Op | None:
        """The op that the line completes; None while more is to be typed."""
        self.fault = ""
        if is_plan(self.request):
            return self._take_decision(line.strip())
        if not is_question(self.request):
            decision = self._decision(line)
            return None if decision is None else answer_op(self.request, decision, self._shown)
        if line.strip() == CANCEL:
            return questions_op(self.request, None)
        if not self._take_answer(line):
            return None
        try:
            return questions_op(self.request, self._given)
        except DoesNotAnswer as error:
            self.fault, self._place = str(error), 0
            self._given.clear()
            return None

    def _decision(self, line: str) -> Decision | None:
        word = line.strip().lower()
        if is_elicitation(self.request):
            return ELICITATION_ANSWERS.get(word)
        return amendment_of(self.request) if word in PREFIX_WORDS else ANSWERS.get(word)

    def _take_decision(self, line: str) -> ops.Op | None:
        """A decision on a plan; any other words say what is to be changed."""
        if not line:
            return None
        if len(line) == 1 and line.lower() not in DECISIONS:
            self.fault = f"{line!r} is no answer to a plan: y, n, or what is to be changed, in words"
            return None
        try:
            return plan_op(self.request, DECISIONS.get(line.lower(), line))
        except DoesNotAnswer as error:
            self.fault = str(error)
            return None

    def _take_answer(self, line: str) -> bool:
        """Notes the answer to the question that is asked; whether it was the last one."""
        question = self._questions[self._place]
        if line.strip():
            self._given[name_of(question)] = texts_of(question, line)
        elif self.request["type"] != INPUT:
            return False
        self._place += 1
        return self._place == len(self._questions)
