"""Scenario files: a list of steps, answered request by request.

The file is a JSON list of steps, or an object `{"steps", "agents", "per_session", "after_end"}`. By
default each session walks its steps with a cursor of its own, so that one server serves many
sessions at once. Agents of a tree may have parts of their own: `agents` says which, and the
others walk `steps`. The only script with a memory: the cursors, and who has which part.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import orjson
from pydantic import ConfigDict, TypeAdapter, ValidationError

from orchestrator.stub.answers import Answer, Call, Script, Step, StubConversation, StubRequest, Text, Usage
from orchestrator.stub.survey import survey_step
from orchestrator.stub.tree import tree_step


class ScenarioError(ValueError):
    """The file is not a scenario; the message names file, place and what is wrong there."""


@dataclass(frozen=True, slots=True)
class Part:
    """The steps of some agents: those that match every field that is given here."""

    steps: tuple[Step, ...]
    agent: int | None = None
    """Its number in the tree; 0 is the root."""
    label: str | None = None
    """The label that it was made with."""
    prompt: str | None = None
    """A text that the agent's first task contains."""
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    def fits(self, conversation: StubConversation) -> bool:
        """Whether these steps are for the agent of the conversation."""
        who = conversation.agent
        return (
            self.agent in (None, who.number)
            and self.label in (None, who.label)
            and (self.prompt or "") in conversation.task
        )


@dataclass(frozen=True, slots=True)
class ScenarioFile:
    """The object form of a file."""

    steps: tuple[Step, ...]
    agents: tuple[Part, ...] = ()
    """The first one that fits a session's first request is that session's for good."""
    per_session: bool = True
    after_end: Literal["repeat_last", "error"] = "error"
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")


_FILE = TypeAdapter(ScenarioFile)
_DEFAULT_USAGE = Usage()


class Scenario:
    """A script that walks a file's steps."""

    name = "scenario"

    def __init__(self, file: ScenarioFile) -> None:
        self._file = file
        self._parts: dict[str, int] = {}
        """Which of `agents` a session is, from 1; 0 for the steps of everybody else."""
        self._cursors: dict[tuple[int, str], int] = {}

    @classmethod
    def read(cls, path: Path) -> Scenario:
        """Loads a file; raises `ScenarioError`."""
        try:
            return cls.parse(orjson.loads(path.read_bytes()))
        except (OSError, orjson.JSONDecodeError, ScenarioError) as error:
            raise ScenarioError(f"scenario {path}: {error}") from error

    @classmethod
    def parse(cls, wire: Any) -> Scenario:
        """Checks decoded JSON; raises `ScenarioError`."""
        try:
            return cls(_FILE.validate_python({"steps": wire} if isinstance(wire, list) else wire))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            place = ".".join(str(part) for part in first["loc"])
            raise ScenarioError(f"{place}: {first['msg']}") from error

    def answer(self, request: StubRequest) -> Answer:
        """The step at the session's cursor, which moves on."""
        part = self._part(request) if self._file.agents else 0
        cursor = (part, request.session if self._file.per_session else "")
        number = self._cursors[cursor] = self._cursors.get(cursor, 0) + 1
        # A fork has its parent's calls in its conversation: its own must not have their names.
        prefix = f"{part}_{number}" if part else str(number)
        return Answer(self._step(part, number), number, prefix)

    def _part(self, request: StubRequest) -> int:
        known = self._parts.get(request.session)
        if known is None:
            conversation = StubConversation.of(request.body)
            fitting = (at for at, part in enumerate(self._file.agents, 1) if part.fits(conversation))
            known = self._parts[request.session] = next(fitting, 0)
        return known

    def _step(self, part: int, number: int) -> Step:
        steps = self._file.agents[part - 1].steps if part else self._file.steps
        if number > len(steps) and not (steps and self._file.after_end == "repeat_last"):
            whose = f"part {part} of the scenario" if part else "the scenario"
            message = f"{whose} has {len(steps)} steps; this is request {number}"
            return Step(status=400, body={"error": {"code": "scenario_ended", "message": message}})
        step = steps[min(number, len(steps)) - 1]
        completes = step.failed is None and step.incomplete is None
        return replace(step, usage=_DEFAULT_USAGE) if completes and not step.usage else step


# ── behaviours ────────────────────────────────────────────────────────────────────────────────────
# The stub's built-in behaviours: answers computed from the request alone.
#
# A repeated request, or one taken over by another worker, gets a consistent answer, because
# nothing is remembered between requests; and no figure is ever answered that the request does
# not carry. `survey` has a module of its own.


_INSTANT = Step(items=(Text("All done."),))


class UnknownBehaviour(ValueError):
    """No built-in behaviour has this name; the message lists those that there are."""


class Behaviour:
    """A script that is a function of the conversation."""

    def __init__(self, name: str, step: Callable[[StubConversation], Step]) -> None:
        self.name = name
        self._step = step

    def answer(self, request: StubRequest) -> Answer:
        """The step for this conversation; ids derive from the request's bytes."""
        conversation = StubConversation.of(request.body)
        return Answer(self._step(conversation), conversation.turn, request.digest)


def behaviour(name: str) -> Script:
    """The behaviour of this name: `echo`, `survey`, `tree`, `instant`, or `shell:N`.

    Raises `UnknownBehaviour`.
    """
    fixed = {"echo": _echo, "survey": survey_step, "instant": _instant, "tree": tree_step}
    if name in fixed:
        return Behaviour(name, fixed[name])
    kind, _, count = name.partition(":")
    if kind == "shell" and count.isdecimal():
        return Behaviour(name, lambda conversation: _shell(conversation, int(count)))
    raise UnknownBehaviour(
        f"the model stub has no behaviour {name!r}; choose echo, survey, tree, instant or shell:N"
    )


def _echo(conversation: StubConversation) -> Step:
    return Step(items=(Text(conversation.task or "Nothing was said."),))


def _instant(conversation: StubConversation) -> Step:
    return _INSTANT


def _shell(conversation: StubConversation, count: int) -> Step:
    done = len(conversation.calls)
    if done >= count:
        return Step(items=(Text(f"Ran {done} commands."),))
    return Step(items=(Call("shell", {"command": ["bash", "-c", f"echo {done + 1} of {count}"]}),))
