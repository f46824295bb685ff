"""Scenario files: a list of steps, answered request by request.

The file is a JSON list of steps, or an object `{"steps", "per_session", "after_end"}`. By
default each session walks the steps with a cursor of its own, so that one server serves
many sessions at once. The only script with a memory: the cursors.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import orjson
from pydantic import ConfigDict, TypeAdapter, ValidationError

from orchestrator.model.stub.script import Answer, Step, StubRequest, Usage


class ScenarioError(ValueError):
    """The file is not a scenario; the message names file, place and what is wrong there."""


@dataclass(frozen=True, slots=True)
class ScenarioFile:
    """The object form of a file."""

    steps: tuple[Step, ...]
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
        self._cursors: dict[str, int] = {}

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
        cursor = request.session if self._file.per_session else ""
        number = self._cursors[cursor] = self._cursors.get(cursor, 0) + 1
        return Answer(self._step(number), number, str(number))

    def _step(self, number: int) -> Step:
        steps = self._file.steps
        if number > len(steps) and not (steps and self._file.after_end == "repeat_last"):
            message = f"the scenario has {len(steps)} steps; this is request {number}"
            return Step(status=400, body={"error": {"code": "scenario_ended", "message": message}})
        step = steps[min(number, len(steps)) - 1]
        return step if step.usage else replace(step, usage=_DEFAULT_USAGE)
