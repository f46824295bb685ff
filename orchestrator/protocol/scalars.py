"""Durations, byte chunks, stored texts, and the enumerations that several types share."""

from __future__ import annotations

import base64
import binascii
from enum import StrEnum
from typing import Annotated, Any, TypeAlias

from pydantic import BeforeValidator, ConfigDict, Field, PlainSerializer, Strict

from orchestrator.protocol.wire import Source, Uint, WireModel

NANOS_PER_SECOND = 1_000_000_000


class Duration(WireModel):
    """A span of time as whole seconds and nanoseconds."""

    secs: Uint
    nanos: Annotated[int, Strict(), Field(ge=0, lt=NANOS_PER_SECOND)]

    @classmethod
    def cut(cls, seconds: float) -> Duration:
        """Of a span that was measured: what is left of a nanosecond is dropped."""
        whole, fraction = divmod(seconds, 1)
        return cls(secs=int(whole), nanos=int(fraction * 1e9))

    @property
    def seconds(self) -> float:
        """The span as one float."""
        return self.secs + self.nanos / NANOS_PER_SECOND


def _chunk_from_wire(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError("not base64") from error


def _chunk_to_wire(value: bytes) -> str:
    return base64.b64encode(value).decode("ascii")


Chunk = Annotated[bytes, BeforeValidator(_chunk_from_wire), PlainSerializer(_chunk_to_wire, return_type=str)]
"""Raw output bytes; base64 on the wire, since a cut may fall inside a character."""


class StoredText(WireModel):
    """A text too large for its line: it stands beside the log, under the SHA-256 of its UTF-8 bytes.

    Only lines as they are stored hold one; whoever shows a line puts the text back in.
    """

    model_config = ConfigDict(extra="forbid")
    stated_in = Source.DENDRO
    blob: Annotated[str, Strict(), Field(alias="$blob")]
    bytes: Uint


LargeText: TypeAlias = str | StoredText
"""A text that a command, a file or a person may make very long."""


class ReasoningEffort(StrEnum):
    """How much the model may think; `none` and `xhigh` are January 2026's."""

    NONE = "none"
    MINIMAL = "minimal"
    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"
    XHIGH = "xhigh"


class ReasoningSummary(StrEnum):
    """How the model summarises its reasoning for people."""

    AUTO = "auto"
    CONCISE = "concise"
    DETAILED = "detailed"
    NONE = "none"


class Verbosity(StrEnum):
    """How long the model's answers are."""

    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"


class Personality(StrEnum):
    """The model's way of speaking."""

    NONE = "none"
    FRIENDLY = "friendly"
    PRAGMATIC = "pragmatic"


class ModeKind(StrEnum):
    """The kind of collaboration a turn runs in; `default` is a newer name for `code`."""

    PLAN = "plan"
    CODE = "code"
    PAIR_PROGRAMMING = "pair_programming"
    EXECUTE = "execute"
    CUSTOM = "custom"
    DEFAULT = "default"


class ItemEvents(StrEnum):
    """The items of a turn whose lifecycle is told: plans alone, or all."""

    PLAN = "plan"
    ALL = "all"


class CompactionPhase(StrEnum):
    """The two ends of a compaction; one that fails ends with its turn."""

    BEGUN = "begun"
    DONE = "done"


class Delivery(StrEnum):
    """Where a person's input goes while a task runs; where it cannot join the task, it waits behind it."""

    STEER = "steer"
    QUEUE = "queue"
    REPLACE = "replace"


class Delivered(StrEnum):
    """Where input went: into the running turn, or behind it."""

    STEERED = "steered"
    QUEUED = "queued"


class Refusal(StrEnum):
    """Why a submission about a turn was refused, for programs."""

    NO_ACTIVE_TURN = "no_active_turn"
    OTHER_TURN = "other_turn"
    TURN_NOT_STEERABLE = "turn_not_steerable"


class CollaborationSettings(WireModel):
    """Settings of a collaboration mode for its turns."""

    stated_in = Source.JANUARY_2026
    model: str
    reasoning_effort: ReasoningEffort | None = None
    developer_instructions: str | None = None


class CollaborationMode(WireModel):
    """A collaboration mode with its settings."""

    stated_in = Source.JANUARY_2026
    mode: ModeKind
    settings: CollaborationSettings


class WindowsSandboxLevel(StrEnum):
    """Accepted from clients on Windows; commands here run on Linux."""

    DISABLED = "disabled"
    RESTRICTED_TOKEN = "restricted-token"
    ELEVATED = "elevated"


class TurnAbortReason(StrEnum):
    """Why a task ended before its model was done."""

    INTERRUPTED = "interrupted"
    REPLACED = "replaced"
    REVIEW_ENDED = "review_ended"
    BUDGET_LIMITED = "budget_limited"


class OutputStream(StrEnum):
    """Which of a command's two streams a chunk came from."""

    STDOUT = "stdout"
    STDERR = "stderr"


class ExecCommandSource(StrEnum):
    """The origin of a command."""

    AGENT = "agent"
    USER_SHELL = "user_shell"
    UNIFIED_EXEC_STARTUP = "unified_exec_startup"
    UNIFIED_EXEC_INTERACTION = "unified_exec_interaction"


class UserMessageKind(StrEnum):
    """The kind of a user message."""

    PLAIN = "plain"
    USER_INSTRUCTIONS = "user_instructions"
    ENVIRONMENT_CONTEXT = "environment_context"
