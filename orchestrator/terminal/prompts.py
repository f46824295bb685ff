"""Lines that a person types at an open request, until they are an answer.

A choice takes one line, and so does a plan: a decision, or what is to be changed. Questions take one each:
the number of an option, or words of one's own.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Final, assert_never

from orchestrator.core.calls.ask import DoesNotAnswer
from orchestrator.protocol import ops
from orchestrator.requests import (
    Choice,
    ChoicesRequest,
    ClientToolRequest,
    CommandRequest,
    Given,
    InputRequest,
    PatchRequest,
    PlanDecisionRequest,
    Question,
    Request,
    ServerRequest,
    UnknownRequest,
)
from orchestrator.requests.approvals import shown_as

PLANNED: Final = "Follow this plan? [y]es / [n]o, or what is to be changed: "
ACCEPTED: Final = frozenset({"ok", "okay"})
"""More lines that approve a plan; those that are none of its choices say what is to be changed."""
CANCEL: Final = "/cancel"


@dataclass(slots=True)
class Prompt:
    """An open request before a person, and what was answered of it so far."""

    request: Request
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
        match self.request:
            case PlanDecisionRequest():
                return PLANNED
            case ServerRequest():
                return f"Answer? {self._choices}: "
            case CommandRequest() | PatchRequest() | ClientToolRequest() | UnknownRequest():
                outside = "Outside the sandbox. " if self.request.outside else ""
                return f"{outside}Allow? {self._choices}: "
            case ChoicesRequest() | InputRequest():
                return self._question_text(self._question)
            case _:
                assert_never(self.request)

    @property
    def _choices(self) -> str:
        return " / ".join(f"[{each.short[:1]}]{each.short[1:]}" for each in self.request.choices)

    def _question_text(self, question: Question) -> str:
        how = "your words"
        if question.secret:
            how = "a secret, which is not shown and not kept"
        elif question.options:
            numbers = "numbers with commas" if question.several else "a number"
            how = f"{numbers}, or your own words"
        left = ", empty to leave it out" if question.may_be_left else ""
        return f"{question.header}: {how}{left}; {CANCEL}: "

    @property
    def words(self) -> str:
        """The answers of one letter that it takes."""
        *some, last = (choice.short[:1] for choice in self.request.choices)
        return f"{', '.join(some)} or {last}" if some else last

    @property
    def _question(self) -> Question:
        return self.request.questions[self._place]

    @property
    def hides(self) -> bool:
        """Whether the line that is typed now is a secret."""
        return bool(self.request.questions) and self._question.secret

    def answers(self, line: str) -> bool:
        """Whether a line is for this request, and no command; a secret may begin as a command does."""
        match self.request:
            case PlanDecisionRequest():
                return not line.startswith(("/", "!"))
            case ChoicesRequest() | InputRequest():
                return self.hides or line.strip() == CANCEL or not line.startswith(("/", "!"))
            case _:
                return self._chosen(line) is not None

    def take(self, line: str) -> ops.Op | None:
        """The op that the line completes; None while more is to be typed."""
        self.fault = ""
        request = self.request
        match request:
            case PlanDecisionRequest():
                return self._take_decision(request, line.strip())
            case ChoicesRequest() | InputRequest():
                return self._take_words(request, line)
            case _:
                choice = self._chosen(line)
                return None if choice is None else request.answer(Given(choice.word), self._shown)

    def _chosen(self, line: str) -> Choice | None:
        """The choice whose letter, or whose first word, is typed."""
        word = line.strip().lower()
        named = (
            each for each in self.request.choices if word in (each.short[:1], each.short.partition(" ")[0])
        )
        return next(named, None) if word else None

    def _take_words(self, request: ChoicesRequest | InputRequest, line: str) -> ops.Op | None:
        if line.strip() == CANCEL:
            return request.replied(None)
        if not self._take_answer(line):
            return None
        try:
            return request.replied(self._given)
        except DoesNotAnswer as error:
            self.fault, self._place = str(error), 0
            self._given.clear()
            return None

    def _take_decision(self, request: PlanDecisionRequest, line: str) -> ops.Op | None:
        """A decision on a plan; any other words say what is to be changed."""
        if not line:
            return None
        choice = self._chosen("yes" if line.lower() in ACCEPTED else line)
        if choice is None and len(line) == 1:
            self.fault = f"{line!r} is no answer to a plan: y, n, or what is to be changed, in words"
            return None
        try:
            return request.revised(line) if choice is None else request.answer(Given(choice.word))
        except DoesNotAnswer as error:
            self.fault = str(error)
            return None

    def _take_answer(self, line: str) -> bool:
        """Notes the answer to the question that is asked; whether it was the last one."""
        question = self._question
        if line.strip():
            self._given[question.name] = question.texts(line)
        elif not question.may_be_left:
            return False
        self._place += 1
        return self._place == len(self.request.questions)
