"""The common part of all kinds of requests to people: fields that are drawn, and answers.

A request is read from the event that asked. Its fields are the same for every surface: a surface draws
`heading`, `place`, `body`, `choices` and `questions`, and hands what the person said to `answer`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Literal, Self, TypeAlias

from orchestrator.core.calls.ask import DoesNotAnswer
from orchestrator.core.frozen import record
from orchestrator.protocol import ops
from orchestrator.protocol.policy import Decision
from orchestrator.protocol.wire import JsonMapping, JsonValue

if TYPE_CHECKING:
    from orchestrator.core.commands import AnswerOp

Answers: TypeAlias = Mapping[str, Sequence[str]]
"""Texts by the name of their question."""
Answerer = Literal["person", "program"]
"""The side that can answer: a person who may approve, or the program that brings a tool."""


@record
class Section:
    """A part of what a person has to read before the answer; `code` and `diff` keep their line breaks."""

    form: Literal["text", "code", "diff", "list"]
    title: str
    text: str


@record
class Place:
    """Where a call would run if it is allowed."""

    text: str
    """Where it runs and what it could do, in Dendro's words."""
    outside: bool
    """Whether it leaves the sandbox, as far as that is known."""
    folder: str = ""
    machine: str = ""
    """The machine that has asked; empty: not known."""


@record
class Choice:
    """An answer that a person can choose."""

    word: str
    """The choice in `Given`."""
    short: str
    """A few words for a prompt, of which the first letter, or the first word, is typed."""
    title: str
    """The effect of the choice."""
    lasts: bool = False
    """Whether it holds for later requests of the session, too."""
    text: str = ""
    """The name of the text that it needs; empty if it needs none."""


@record
class Option:
    """An answer that a question offers."""

    label: str
    description: str


@record
class Question:
    """A question that is answered with words."""

    name: str
    """The key of its answer."""
    header: str
    question: str
    options: tuple[Option, ...] = ()
    several: bool = False
    """Whether more than one option may be chosen."""
    secret: bool = False
    """Whether the answer is not to be seen."""
    other: bool = True
    """Whether words of one's own are an answer where there are options."""
    may_be_left: bool = False
    """Whether the request is answered without it."""

    @property
    def labels(self) -> list[str]:
        """The labels that may be chosen; none where any text will do."""
        return [option.label for option in self.options]

    def texts(self, line: str) -> list[str]:
        """The answer that a typed line is: numbers of options, their labels, or words of one's own.

        Several choices are separated by commas, and become one text with one's own words last.
        """
        labels = self.labels
        if self.secret and not labels:
            return [line]
        if not self.several:
            return [_chosen(labels, line) or line.strip()]
        parts = [part.strip() for part in line.split(",") if part.strip()]
        chosen = [_chosen(labels, part) for part in parts]
        known = [label for label in labels if label in chosen]
        own = [part for part, label in zip(parts, chosen, strict=True) if label is None]
        return [", ".join((*known, *own))]


def _chosen(labels: Sequence[str], said: str) -> str | None:
    word = said.strip()
    # No longer one: Python makes no number of thousands of digits.
    if word.isdecimal() and len(word) < 10 and 1 <= int(word) <= len(labels):
        return labels[int(word) - 1]
    return next((label for label in labels if label.casefold() == word.casefold()), None)


@record
class Given:
    """An answer as a surface has it: the word of a `Choice`, its text, or texts by the names of questions."""

    choice: str
    text: str = ""
    texts: Answers = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RequestBase:
    """The common part of all kinds.

    `event` is the event that asked, with its large texts. `sandboxed` is how its command runs if it is
    allowed, as the queue has it; None: nothing runs, or it was not said.
    """

    event: JsonMapping
    sandboxed: bool | None = None

    answered_by: ClassVar[Answerer] = "person"
    needs_words: ClassVar[bool] = False
    """Whether it takes words, and not yes or no."""
    ends_with_calls: ClassVar[bool] = False
    """Whether it is settled when the calls of its turn are over: no event tells that its own call begins."""

    @property
    def type(self) -> str:
        """The tag of its event."""
        return str(self.event["type"])

    @property
    def call_id(self) -> str:
        """The call that asks, or the id of a server's question."""
        return call_id_of(self.event)

    @property
    def agent_id(self) -> int | None:
        """The agent below the root that asks, if the event names one; two may have a call of one name."""
        return self.event.get("agent_id")

    @property
    def session(self) -> str:
        """The session of the agent that asks; empty: the one whose event it is."""
        return str(self.event.get("session_id") or "")

    @property
    def turn_id(self) -> str | None:
        """The turn that it belongs to, if the event says."""
        return self.event.get("turn_id")

    def asked_by(self, agent_id: int, session: str, agent_path: str) -> Self:
        """The request with the agent that asks: as the root's events publish it."""
        asker = {"agent_id": agent_id, "session_id": session, "agent_path": agent_path}
        return replace(self, event={**self.event, **asker})

    def in_own_session(self) -> Self:
        """The request for an answer that goes to the session which asked, where its call's id is enough."""
        return replace(self, event={**self.event, "agent_id": None})

    # ── what is shown ─────────────────────────────────────────────────────────────────────────

    def heading(self, who: str = "the agent") -> str:
        """The agent that asks, and what for, in one line."""
        raise NotImplementedError

    @property
    def subject(self) -> str:
        """The subject in one line: a command line, paths, questions, the title of a plan."""
        raise NotImplementedError

    @property
    def place(self) -> Place | None:
        """Where its call would run; None if nothing runs."""
        return None

    @property
    def where(self) -> str:
        """Where its call would run and what it could do, in Dendro's words; empty if nothing runs."""
        return "" if self.place is None else self.place.text

    @property
    def outside(self) -> bool:
        """Whether its call would leave the sandbox, as far as that is known."""
        return self.place is not None and self.place.outside

    @property
    def body(self) -> tuple[Section, ...]:
        """The parts that a person has to read, in this order."""
        return ()

    @property
    def questions(self) -> tuple[Question, ...]:
        """The questions to be answered with words; none where one of `choices` is the answer."""
        return ()

    @property
    def choices(self) -> tuple[Choice, ...]:
        """The answers that can be chosen."""
        raise NotImplementedError

    @property
    def reasons(self) -> list[str]:
        """The folder that an answer for the session opens, why it is asked, and the model's own words."""
        granted, reach = self._granted(), self._reach
        if reach is None:
            given = self.event.get("reason")
            return [*granted, *([f"reason given: {given}"] if given else [])]
        why = [f"asked because: {reach['why']}"] if reach.get("why") else []
        return [*granted, *why, *([f"the agent says: “{reach['says']}”"] if reach.get("says") else [])]

    def _granted(self) -> list[str]:
        root = self.event.get("grant_root")
        if not root:
            return []
        return [f"allowed for the session, commands and patches may write all below {root}, too"]

    @property
    def told(self) -> str:
        """Where it runs and why it is asked in one line, for clients that show a reason alone."""
        return "; ".join((self.where, *self.reasons))

    @property
    def _reach(self) -> JsonMapping | None:
        return self.event.get("reach")

    # ── what is answered ──────────────────────────────────────────────────────────────────────

    def answer(self, given: Given, shown: ops.Shown | None = None) -> AnswerOp:
        """The op of an answer that fits `choices` and `questions`.

        Raises `DoesNotAnswer` for another one, and says what is wrong with it.
        """
        raise NotImplementedError

    def decided(self, decision: Decision, shown: ops.Shown | None = None) -> AnswerOp:
        """The op of a yes or no, as it is said of several requests at once; raises `DoesNotAnswer`.

        Approvals keep what a surface has `shown` of them.
        """
        raise NotImplementedError

    def refused(self, shown: ops.Shown | None = None) -> AnswerOp:
        """The op of a person who refuses, or declines to answer."""
        raise NotImplementedError

    def left(self) -> AnswerOp:
        """The op that leaves it without an answer; raises `DoesNotAnswer` where that is none."""
        raise DoesNotAnswer(f"{self.call_id} is answered by {words_of(self.choices)}")

    def _word(self, given: Given) -> str:
        """The word that was chosen; raises `DoesNotAnswer` for what is no choice, or has words too many."""
        choice = next((one for one in self.choices if one.word == given.choice), None)
        if choice is None:
            raise DoesNotAnswer(f"decision: one of {words_of(self.choices)}")
        if given.text and not choice.text:
            raise DoesNotAnswer(f"text: {choice.word} takes none")
        if given.texts and not self.questions:
            raise DoesNotAnswer("texts: it asks no questions")
        return choice.word


def words_of(choices: Sequence[Choice]) -> str:
    """The words of choices, for an error."""
    return ", ".join(choice.word for choice in choices)


def call_id_of(message: JsonMapping) -> str:
    """The call that an event is about, or the server's question; one event spells its name otherwise."""
    if message.get("type") == "elicitation_request":
        return str(message["id"])
    found: JsonValue = message.get("call_id")
    return str(message["callId"] if found is None else found)
