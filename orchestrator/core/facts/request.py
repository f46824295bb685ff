"""Facts about the model requests of a task; an end tells what the next attempt has to know."""

from __future__ import annotations

from dataclasses import field
from typing import ClassVar, Literal, TypeAlias

from orchestrator.core.forms import ALWAYS
from orchestrator.core.frozen import record
from orchestrator.core.task_kinds import Purpose
from orchestrator.protocol.ids import ResponseId
from orchestrator.protocol.wire import JsonMapping


@record
class RequestBegun:
    """Model request `n` starts after this is committed, under the claim `epoch`."""

    kind: ClassVar[str] = "request_begun"
    of: ClassVar[Literal["request"]] = "request"
    n: int
    purpose: Purpose
    epoch: int


@record
class RequestCompleted:
    """The response ended as it should."""

    kind: ClassVar[str] = "request_ended"
    of: ClassVar[Literal["request"]] = "request"
    n: int
    outcome: Literal["completed"] = field(default="completed", metadata=ALWAYS)
    response_id: ResponseId | None = None
    usage: JsonMapping | None = None
    end_turn: bool | None = None
    """False: the model asks for another request although it made no call."""


@record
class RequestRetried:
    """The stream broke: the request is sent again, at `not_before_ms`."""

    kind: ClassVar[str] = "request_ended"
    of: ClassVar[Literal["request"]] = "request"
    n: int
    outcome: Literal["retry"] = field(default="retry", metadata=ALWAYS)
    http_used: int = field(default=0, metadata=ALWAYS)
    served: bool = True
    """False: no provider worked on it."""
    usage: JsonMapping | None = None
    not_before_ms: int = field(default=0, metadata=ALWAYS)
    wait: int = field(default=0, metadata=ALWAYS)
    """Generation of the timer that wakes the session then; 0: its worker holds it until then."""


@record
class RequestDelayed:
    """The provider or the fleet's own limit asked for patience: no stream broke."""

    kind: ClassVar[str] = "request_ended"
    of: ClassVar[Literal["request"]] = "request"
    n: int
    outcome: Literal["waiting"] = field(default="waiting", metadata=ALWAYS)
    http_used: int = field(default=0, metadata=ALWAYS)
    not_before_ms: int = field(default=0, metadata=ALWAYS)
    wait: int = field(default=0, metadata=ALWAYS)
    """Generation of the timer that wakes the session, as in `RequestRetried`."""
    usage: JsonMapping | None = None


@record
class RequestFailed:
    """The request failed and is not sent again."""

    kind: ClassVar[str] = "request_ended"
    of: ClassVar[Literal["request"]] = "request"
    n: int
    outcome: Literal["failed"] = field(default="failed", metadata=ALWAYS)
    served: bool = True
    """False: no provider worked on it."""
    usage: JsonMapping | None = None
    overflow: bool = False
    """The conversation did not fit the model's window: a compaction of less of it follows."""


@record
class RequestStopped:
    """The request ended because its task was being stopped."""

    kind: ClassVar[str] = "request_ended"
    of: ClassVar[Literal["request"]] = "request"
    n: int
    outcome: Literal["stopped"] = field(default="stopped", metadata=ALWAYS)
    usage: JsonMapping | None = None


@record
class RetryDue:
    """A long delay is over: the request may be sent."""

    kind: ClassVar[str] = "retry_due"
    of: ClassVar[Literal["request"]] = "request"


@record
class SummaryReceived:
    """The text of a compaction's answer; it joins no conversation by itself."""

    kind: ClassVar[str] = "summary"
    of: ClassVar[Literal["request"]] = "request"
    text: str


RequestEnded: TypeAlias = RequestCompleted | RequestRetried | RequestDelayed | RequestFailed | RequestStopped
RequestFact: TypeAlias = RequestBegun | RequestEnded | RetryDue | SummaryReceived
