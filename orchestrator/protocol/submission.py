"""The two frames of the protocol, `Submission` and `Event`, and what reading one can raise.

    ProtocolError
    └── MalformedSubmission     the line is not a submission
        └── UnknownOp           it is one, but of an operation not known here

Messages are one line, short enough for an `error` event, and name the field at fault.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from orchestrator.protocol.events import EventMsg
from orchestrator.protocol.ids import SubmissionId
from orchestrator.protocol.ops import Op
from orchestrator.protocol.wire import JsonValue

NO_ID: Final = SubmissionId("")
"""The id of an event that answers no submission."""


@dataclass(frozen=True, slots=True)
class Submission:
    """A client's request; the id is the client's, and events answer under it."""

    id: SubmissionId
    op: Op


@dataclass(frozen=True, slots=True)
class Event:
    """A report of an agent, under the id of the submission that started its task.

    `extra` keeps fields that a newer version put beside `id` and `msg`.
    """

    id: SubmissionId
    msg: EventMsg
    extra: Mapping[str, JsonValue] = field(default_factory=dict)


class ProtocolError(ValueError):
    """A value that is not what the protocol says it must be."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class MalformedSubmission(ProtocolError):
    """The line is not a submission; `submission_id` is `""` unless it could be read."""

    def __init__(self, message: str, submission_id: SubmissionId = NO_ID) -> None:
        super().__init__(message)
        self.submission_id = submission_id


class UnknownOp(MalformedSubmission):
    """A well-formed submission of an operation that this version does not know."""
