"""Bytes to frames and back: the one place where the protocol meets JSON text.

Reading is `orjson`, then the models' checks; writing is pydantic's own serialiser, which
needs no dict in between. Encoded frames carry no newline: framing is the transport's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, TypeAlias, cast

import orjson
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from orchestrator.protocol.bounds import (
    MESSAGE_VALUES,
    NAME_BYTES,
    check_bounds,
    deeper_than,
    more_values_than,
)
from orchestrator.protocol.events import EVENT_SYNONYMS, EVENTS, EventField, EventMsg, UnknownEvent
from orchestrator.protocol.ids import SubmissionId
from orchestrator.protocol.items import ResponseItem, ResponseItemField
from orchestrator.protocol.ops import OP_SYNONYMS, OPS, Op, OpField
from orchestrator.protocol.policy import (
    NO_EXTERNAL_SANDBOX,
    AskForApproval,
    ExternalSandbox,
    SandboxPolicyField,
)
from orchestrator.protocol.scalars import CollaborationMode, Personality, ReasoningEffort, ReasoningSummary
from orchestrator.protocol.submission import (
    MalformedSubmission,
    Submission,
    UnknownOp,
)
from orchestrator.protocol.wire import JsonMapping, JsonObject, JsonValue, Maybe, Source, WireModel

# ── rollout ───────────────────────────────────────────────────────────────────────────────────────
# A session's durable log as lines: the items (`RolloutItem`) and the line around them.
#
# A line is flat, `{"timestamp", "type", "payload"}`, as Codex records it. Dendro adds fields of its own
# beside these, which foreign readers ignore, and one own type, `dendro`, for facts that the protocol has
# no event for. What such a fact means is `core`'s to know.


class GitInfo(WireModel):
    """The commit a session started from."""

    commit_hash: Maybe[str] = None
    branch: Maybe[str] = None
    repository_url: Maybe[str] = None


class BaseInstructions(WireModel):
    """The fixed prompt that a session was made with."""

    stated_in = Source.JANUARY_2026
    text: str


class SessionMeta(WireModel):
    """The session's origin: its program, its folder and its provider; a file's first line counts."""

    id: str
    forked_from_id: Maybe[str] = None
    timestamp: str
    cwd: str
    originator: str
    cli_version: str
    instructions: str | None = None
    source: Maybe[JsonValue] = None
    model_provider: Maybe[str] = None
    base_instructions: Maybe[BaseInstructions] = None
    dynamic_tools: Maybe[tuple[JsonValue, ...]] = None
    git: Maybe[GitInfo] = None


class TurnContext(WireModel):
    """The settings in force for a model request."""

    cwd: str
    approval_policy: AskForApproval
    sandbox_policy: SandboxPolicyField
    model: str
    personality: Maybe[Personality] = None
    collaboration_mode: Maybe[CollaborationMode] = None
    effort: Maybe[ReasoningEffort] = None
    summary: ReasoningSummary
    user_instructions: Maybe[str] = None
    developer_instructions: Maybe[str] = None
    final_output_json_schema: Maybe[JsonValue] = None
    truncation_policy: Maybe[JsonValue] = None


class Compacted(WireModel):
    """The history was summarised; `replacement_history` is what stands in its place."""

    message: str
    replacement_history: Maybe[tuple[ResponseItemField, ...]] = None


@dataclass(frozen=True, slots=True)
class DendroFact:
    """A fact of Dendro's own: `{"kind": …}` with the fields of that kind beside it."""

    kind: str
    fields: Mapping[str, JsonValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class UnknownRolloutItem:
    """A line of a type, or with a payload, that this version cannot read; held as it came."""

    type: str
    payload: JsonValue


RolloutItem: TypeAlias = (
    SessionMeta | ResponseItem | Compacted | TurnContext | EventMsg | DendroFact | UnknownRolloutItem
)


# ── codec ─────────────────────────────────────────────────────────────────────────────────────────


MAX_DEPTH: Final = 128
"""Nesting that Codex's JSON reader accepts; deeper values could be read here, but not written."""

MESSAGE_LIMIT: Final = 200
ID_SHOWN: Final = 64
"""Characters of an id that is longer than an id may be."""

_AT_FIRST_USE: Final = ConfigDict(defer_build=True)
"""Programs that read no event, or decide nothing, need not build the union of all of them at their start."""
_OP: Final[TypeAdapter[Op]] = TypeAdapter(OpField, config=_AT_FIRST_USE)
_EVENT: Final[TypeAdapter[EventMsg]] = TypeAdapter(EventField, config=_AT_FIRST_USE)
_ITEM: Final[TypeAdapter[ResponseItem]] = TypeAdapter(ResponseItemField, config=_AT_FIRST_USE)


class _Unreadable(ValueError):
    """Text that is no JSON, or JSON that is no object; the caller says what it should have been."""


# --- submissions ---------------------------------------------------------------------


def parse_submission(line: bytes) -> Submission:
    """Reads one line of the SQ; raises `MalformedSubmission` or `UnknownOp`.

    A field that holds more than `bounds` allows is malformed as well.
    """
    try:
        frame = _object(line)
    except _Unreadable as error:
        raise MalformedSubmission(str(error)) from None
    submission_id = frame.get("id")
    if not isinstance(submission_id, str):
        raise MalformedSubmission("id: a string is required")
    if not submission_id:
        raise MalformedSubmission("id: at least one character is required: no answer would be known by it")
    if more_values_than(frame, MESSAGE_VALUES):
        raise MalformedSubmission(f"op: at most {MESSAGE_VALUES:,} values in all", short_id(submission_id))
    submission = Submission(SubmissionId(submission_id), _op(frame.get("op"), short_id(submission_id)))
    check_bounds(submission)
    return submission


def short_id(id: str) -> SubmissionId:
    """The id that an error answers under: one that is too long is cut, and nothing else is answered so."""
    size = len(id.encode("utf-8", "replace"))
    return SubmissionId(id if size <= NAME_BYTES else f"{id[:ID_SHOWN]}…")


def _op(value: JsonValue, submission_id: SubmissionId) -> Op:
    if not isinstance(value, dict):
        raise MalformedSubmission("op: an object is required", submission_id)
    tag = value.get("type")
    if not isinstance(tag, str):
        raise MalformedSubmission("op.type: a string is required", submission_id)
    if tag not in OPS and tag not in OP_SYNONYMS:
        raise UnknownOp(_short(f"op.type: {tag!r} is not an operation known here"), submission_id)
    try:
        op = _OP.validate_python(value, extra="ignore")
    except ValidationError as error:
        raise MalformedSubmission(_fault(error, value, "op"), submission_id) from None
    for name, part in (("op", op), ("op.overrides", getattr(op, "overrides", None))):
        if isinstance(getattr(part, "sandbox_policy", None), ExternalSandbox):
            raise MalformedSubmission(f"{name}.sandbox_policy: {NO_EXTERNAL_SANDBOX}", submission_id)
    return op


def encode_submission(submission: Submission) -> bytes:
    """A line of the SQ, without its newline."""
    return b'{"id":%b,"op":%b}' % (orjson.dumps(submission.id), _dump(submission.op))


# --- events --------------------------------------------------------------------------


def event_msg(value: JsonValue) -> EventMsg:
    """The event that a JSON value is; raises pydantic's `ValidationError`."""
    return _EVENT.validate_python(value)


def event_of(message: JsonMapping) -> EventMsg:
    """The event that a message of a log or a queue is; one that is not sound is an `UnknownEvent`.

    Only the event's own class is made ready for it, and not all of them.
    """
    tag = message.get("type", "")
    synonym = EVENT_SYNONYMS.get(tag)
    cls = EVENTS.get(synonym or tag)
    if cls is not None:
        value = message if synonym is None else {**message, "type": synonym}
        with suppress(ValidationError):
            return cast(EventMsg, cls.__pydantic_validator__.validate_python(value))
    return UnknownEvent(dict(message))


# --- rollout lines -------------------------------------------------------------------


def rollout_item(kind: str, payload: JsonValue) -> RolloutItem:
    """The item that `type` and `payload` of a line make; raises pydantic's `ValidationError`."""
    match kind:
        case "event_msg":
            return _EVENT.validate_python(payload)
        case "response_item":
            return _ITEM.validate_python(payload)
        case "dendro" if isinstance(payload, dict) and isinstance(payload.get("kind"), str):
            return DendroFact(payload["kind"], _rest(payload, ("kind",)))
        case "turn_context":
            return TurnContext.model_validate(payload)
        case "compacted":
            return Compacted.model_validate(payload)
        case "session_meta":
            return SessionMeta.model_validate(payload)
        case _:
            return UnknownRolloutItem(kind, payload)


# --- JSON ----------------------------------------------------------------------------


def _dump(model: BaseModel) -> bytes:
    return model.__pydantic_serializer__.to_json(model)


def _rest(frame: JsonObject, known: tuple[str, ...]) -> JsonObject:
    return {key: value for key, value in frame.items() if key not in known}


def _object(text: bytes) -> JsonObject:
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise _Unreadable(_short(f"not JSON: {error}")) from None
    if not isinstance(value, dict):
        raise _Unreadable("not a JSON object")
    # Counting brackets is cheap and bounds the depth from above; few values need the walk.
    if text.count(b"{") + text.count(b"[") > MAX_DEPTH and deeper_than(value, MAX_DEPTH):
        raise _Unreadable(f"nested deeper than {MAX_DEPTH} levels")
    return value


# --- what was wrong ------------------------------------------------------------------


# pydantic speaks of Python's types to a client that wrote JSON.
_IN_JSON: Final = {
    "missing": "required",
    "string_type": "a string is required",
    "tuple_type": "an array is required",
    "dict_type": "an object is required",
    "model_type": "an object is required",
    "bool_type": "a boolean is required",
    "int_type": "an integer is required",
    "float_type": "a number is required",
}


def _fault(error: ValidationError, value: JsonValue, root: str) -> str:
    """The first complaint in one line, under the path that the client wrote."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    reason = _IN_JSON.get(first["type"], first["msg"].removeprefix("Value error, "))
    return _short(f"{_path(first['loc'], value, root)}: {reason[:1].lower()}{reason[1:]}")


def _path(loc: tuple[int | str, ...], value: JsonValue, root: str) -> str:
    """`op.items[0].text`: pydantic's location without the names of union branches."""
    path = root
    for position, step in enumerate(loc):
        if isinstance(step, int) and isinstance(value, list) and step < len(value):
            path, value = f"{path}[{step}]", value[step]
        elif isinstance(value, dict) and (step in value or position == len(loc) - 1):
            path, value = f"{path}.{step}", value.get(step)
    return path


def _short(message: str) -> str:
    flat = " ".join(message.split())
    return flat if len(flat) <= MESSAGE_LIMIT else flat[: MESSAGE_LIMIT - 1] + "…"


# ── framing ───────────────────────────────────────────────────────────────────────────────────────
# Newline-delimited JSON without I/O: bytes in, lines out.
#
# Feed whatever arrived; complete lines come back with their position, so that an error can say which one
# it means. A line over the limit is dropped as it streams by: memory stays bounded by the limit, and the
# connection goes on at the next newline. It does not look inside a line.


DEFAULT_LIMIT = 8 * 1024 * 1024
HEAD_BYTES = 256


@dataclass(frozen=True, slots=True)
class Line:
    """A complete line without its ending; `number` counts from 1, blank lines included."""

    number: int
    content: bytes


@dataclass(frozen=True, slots=True)
class OverlongLine:
    """A line that went over the limit and was dropped."""

    number: int
    limit: int
    head: bytes = field(default=b"", compare=False)
    """Its first bytes, `HEAD_BYTES` at most: they may say whose it was."""


Frame: TypeAlias = Line | OverlongLine


class LineSplitter:
    """Cuts a byte stream into lines at `\\n`, with `\\r` before it tolerated."""

    def __init__(self, limit: int = DEFAULT_LIMIT, first: int = 1) -> None:
        if limit < 1:
            raise ValueError("a line limit must be at least one byte")
        self._limit = limit
        self._number = first
        self._pending = bytearray()
        self._dropping = False

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Yields what `data` completed; exhaust it before the next call."""
        start = 0
        while (end := data.find(b"\n", start)) >= 0:
            yield from self._grow(data[start:end])
            yield from self._finish()
            start = end + 1
        yield from self._grow(data[start:])

    def close(self) -> Iterator[Frame]:
        """Yields the last line if no newline ended it; the splitter is fresh afterwards."""
        yield from self._finish()
        self._number = 1

    def _grow(self, piece: bytes) -> Iterator[Frame]:
        if self._dropping or not piece:
            return
        # One byte of grace for the "\r" of a line that fits without it.
        if len(self._pending) + len(piece) > self._limit + 1:
            yield from self._drop(piece)
            return
        self._pending += piece

    def _drop(self, piece: bytes) -> Iterator[Frame]:
        head = bytes(self._pending[:HEAD_BYTES]) + piece[: HEAD_BYTES - min(HEAD_BYTES, len(self._pending))]
        self._pending.clear()
        self._dropping = True
        yield OverlongLine(self._number, self._limit, head)

    def _finish(self) -> Iterator[Frame]:
        if not self._dropping:
            content = bytes(self._pending.removesuffix(b"\r"))
            if len(content) > self._limit:
                yield OverlongLine(self._number, self._limit, content[:HEAD_BYTES])
            elif content.strip():
                yield Line(self._number, content)
        self._pending.clear()
        self._dropping = False
        self._number += 1
