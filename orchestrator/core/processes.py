"""The processes of a session: commands that go on behind their call.

A process lives under the claim that started it, on the machine of the claim's holder. So a session with a
living process keeps its claim, and a new claim has none of the old one's processes. What a process said last
before it ended stays here until the model has read it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import orjson

from orchestrator.core.frozen import record, replace
from orchestrator.core.settings import TurnSettings
from orchestrator.protocol.ids import CallId, SubmissionId
from orchestrator.protocol.wire import JsonMapping

MOST_PROCESSES = 16
"""Processes of a session that live at once, and ended ones whose last output is kept."""
COMMAND_CHARS = 200
FOLDER_CHARS = 1_000


@record
class Process:
    """A process that lives, as far as the log knows."""

    number: int
    call_id: CallId
    """The call that started it: its events bear this id."""
    turn: SubmissionId
    """The task of that call: its events belong to it, also in later tasks."""
    command: str
    """Its command, cut for people."""
    cwd: str
    epoch: int
    rights: str
    """The identity of the policies that it was started under."""
    tty: bool = False
    sandboxed: bool = True
    stopping: bool = False
    """Whether it is being killed."""


@record
class EndedProcess:
    """A process that ended while the model did not look."""

    number: int
    exit_code: int
    unread: str


@record
class Processes:
    """The processes of a session."""

    taken: int = 0
    """The last number that was taken: none is used twice."""
    living: tuple[Process, ...] = ()
    ended: tuple[EndedProcess, ...] = ()

    @property
    def stopping(self) -> bool:
        """Whether the end of a process is awaited."""
        return any(process.stopping for process in self.living)

    def get(self, number: int) -> Process | None:
        return next((one for one in self.living if one.number == number), None)

    def unread(self, number: int) -> EndedProcess | None:
        return next((one for one in self.ended if one.number == number), None)

    def without(self, number: int) -> Processes:
        return replace(self, living=tuple(one for one in self.living if one.number != number))

    @classmethod
    def of(cls, wire: JsonMapping) -> Processes:
        return cls(
            wire["taken"],
            tuple(Process(**one) for one in wire["living"]),
            tuple(EndedProcess(**one) for one in wire["ended"]),
        )


NO_PROCESSES = Processes()
USUAL_PROCESSES: Mapping[str, Processes] = {"processes": NO_PROCESSES}
"""A field that snapshots of sessions without a process leave out: those of earlier versions have none."""


def rights_of(settings: TurnSettings) -> str:
    """The identity of the policies that a task's commands run under."""
    stated = [settings.approval_policy, settings.sandbox_policy]
    data = orjson.dumps(stated, default=dict, option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(data).hexdigest()[:16]
