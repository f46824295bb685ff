"""The most that each field of a submission may hold: the one place where these bounds are written.

They are checked at the door, where the client can still be told, and again by the worker: whatever
passes fits into one commit, with its long texts stored beside the log. Fields of one name have one
bound in every operation. `docs/protocol/reference.md` shows the table that `rows` makes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from types import UnionType
from typing import Annotated, Any, Final, Literal, NewType, TypeAlias, Union, get_args, get_origin

import orjson
from pydantic import BaseModel

from orchestrator.protocol.ids import SubmissionId
from orchestrator.protocol.ops import OPS, Op
from orchestrator.protocol.submission import NO_ID, MalformedSubmission, Submission
from orchestrator.protocol.wire import JsonValue

NAME_BYTES: Final = 1_024
"""Ids, names of models and providers."""
PATH_BYTES: Final = 4_096
"""The longest path that Linux takes."""
LINE_BYTES: Final = 4_096
INSTRUCTION_BYTES: Final = 1 << 20
TEXT_BYTES: Final = 4 << 20
IMAGE_BYTES: Final = 8 << 20
"""A whole submission has no more."""
JSON_BYTES: Final = 64 << 10
JSON_DEPTH: Final = 64
"""The log's lines nest a value further, and a line may nest 128 levels."""
SCHEMA_DEPTH: Final = 32
"""Levels of the schema of an answer."""
MESSAGE_VALUES: Final = 50_000
"""Values in a client's whole message: models check each of them, while all other clients wait."""
BESIDE_BYTES: Final = 128 << 10
"""The rest of an operation in the log when its texts are stored beside it."""
STORED_BYTES: Final = 256
"""The bytes of a text there: a longer one is stored beside it, under its hash."""
_NODE_BYTES: Final = 32

TEXTS: Final[Mapping[str, int]] = {
    "answers": TEXT_BYTES,
    "base_instructions": INSTRUCTION_BYTES,
    "branch": LINE_BYTES,
    "client_user_message_id": NAME_BYTES,
    "command": JSON_BYTES,
    "developer_instructions": INSTRUCTION_BYTES,
    "expected_turn_id": NAME_BYTES,
    "feedback": TEXT_BYTES,
    "git": LINE_BYTES,
    "goal": TEXT_BYTES,
    "id": NAME_BYTES,
    "image_url": IMAGE_BYTES,
    "instructions": TEXT_BYTES,
    "key": NAME_BYTES,
    "last_response_id": NAME_BYTES,
    "model": NAME_BYTES,
    "model_provider": NAME_BYTES,
    "name": LINE_BYTES,
    "output": TEXT_BYTES,
    "placeholder": LINE_BYTES,
    "prompt": TEXT_BYTES,
    "proposed_execpolicy_amendment": LINE_BYTES,
    "reason": LINE_BYTES,
    "ref": NAME_BYTES,
    "request_id": NAME_BYTES,
    "server_name": NAME_BYTES,
    "session": NAME_BYTES,
    "session_id": NAME_BYTES,
    "sha": NAME_BYTES,
    "sig": NAME_BYTES,
    "submission_id": NAME_BYTES,
    "submission_ids": NAME_BYTES,
    "surface": NAME_BYTES,
    "text": TEXT_BYTES,
    "title": LINE_BYTES,
    "user_facing_hint": LINE_BYTES,
    "user_instructions": INSTRUCTION_BYTES,
}
"""Bytes of UTF-8, by the field's name."""

PATHS: Final[Mapping[str, int]] = dict.fromkeys(
    ("cwd", "cwds", "folder", "path", "writable_roots"), PATH_BYTES
)
"""The same of texts that name files: no byte of them is 0."""

NAMED: Final = frozenset(("model", "model_provider"))
"""Texts that are not blank: every request is made under them."""

LISTS: Final[Mapping[str, int]] = {
    "answers": 1_000,
    "content": 16,
    "content_items": 1_000,
    "cwds": 100,
    "items": 1_000,
    "proposed_execpolicy_amendment": 100,
    "submission_ids": 1_000,
    "text_elements": 1_000,
    "writable_roots": 128,
}
"""Elements of an array, or members of an object with names of the client's choice."""

TOGETHER: Final[Mapping[str, int]] = {
    "writable_roots": 32 << 10,
    "cwds": 32 << 10,
    "submission_ids": 128 << 10,
}
"""Bytes of all elements: every task's settings repeat them, or a look-up keeps them in the state."""

JSON: Final[Mapping[str, int]] = dict.fromkeys(
    ("final_output_json_schema", "mcp_oauth_credentials_store_mode", "mcp_servers"),
    JSON_BYTES,
)
"""Bytes of a value of any shape, written as JSON."""

DEPTHS: Final[Mapping[str, int]] = {
    **dict.fromkeys(JSON, JSON_DEPTH),
    "final_output_json_schema": SCHEMA_DEPTH,
}
"""Levels of arrays and objects in such a value."""

Kind: TypeAlias = Literal["text", "path", "array", "object", "JSON"]


class _Beyond(Exception):
    """A field holds more than it may. Its path is made on the way out: what is within its bounds has none."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.path = ""

    def under(self, step: str) -> _Beyond:
        """The same, seen from one level above."""
        self.path = step + self.path
        return self

    def __str__(self) -> str:
        return f"{self.path}: {self.args[0]}"


def check_bounds(submission: Submission) -> None:
    """Raises `MalformedSubmission`, naming the field and its bound, for what holds more than it may."""
    try:
        _check_text("id", submission.id)
    except _Beyond as beyond:
        raise MalformedSubmission(str(beyond.under("id")), NO_ID) from None
    check_op_bounds(submission.op, submission.id)


def check_op_bounds(op: Op, id: SubmissionId = NO_ID) -> None:
    """The same of an operation alone."""
    try:
        weight = _checked("", op)
        if weight > BESIDE_BYTES:
            raise _Beyond(
                f"too many parts: beside its texts at most {BESIDE_BYTES:,} bytes, these are {weight:,}"
            )
    except _Beyond as beyond:
        raise MalformedSubmission(str(beyond.under("op")), id) from None


def _checked(name: str, value: Any) -> int:
    """The value's bytes in the log beside its long texts; raises `_Beyond`."""
    if isinstance(value, BaseModel):
        return _check_fields(value)
    if name in JSON and not isinstance(value, tuple):
        return _check_json(name, value)
    if isinstance(value, str):
        return _check_text(name, value)
    if isinstance(value, dict):
        return _check_object(name, value)
    if isinstance(value, tuple):
        return _check_array(name, value)
    return _NODE_BYTES


def _check_fields(model: BaseModel) -> int:
    weight = _NODE_BYTES
    for field in type(model).model_fields:
        value = getattr(model, field)
        try:
            weight += _NODE_BYTES if value is None else _checked(field, value)
        except _Beyond as beyond:
            raise beyond.under(f".{field}") from None
    return weight


def _check_text(name: str, value: str) -> int:
    if name in PATHS and "\0" in value:
        raise _Beyond("a path holds no byte 0")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise _Beyond("not valid Unicode: half of a surrogate pair, or bytes of another encoding") from None
    if name in NAMED and not value.strip():
        raise _Beyond("it is blank, and no request can be made under it: name one that the provider has")
    most = PATHS.get(name) or TEXTS.get(name)
    if most is not None and size > most:
        raise _Beyond(f"at most {most:,} bytes, this has {size:,}")
    return _NODE_BYTES + min(size, STORED_BYTES)


def _check_object(name: str, value: dict[str, Any]) -> int:
    _check_length(name, value)
    weight = _NODE_BYTES
    for key, inner in value.items():
        try:
            _check_text("name", key)
            weight += len(key.encode()) + _checked(name, inner)
        except _Beyond as beyond:
            raise beyond.under(f"[{key[:40]!r}]") from None
    return weight


def _check_array(name: str, value: tuple[Any, ...]) -> int:
    _check_length(name, value)
    weight = _NODE_BYTES
    for place, inner in enumerate(value):
        try:
            weight += _checked(name, inner)
        except _Beyond as beyond:
            raise beyond.under(f"[{place}]") from None
    size = sum(len(inner.encode()) for inner in value if isinstance(inner, str))
    if size > TOGETHER.get(name, size):
        raise _Beyond(f"at most {TOGETHER[name]:,} bytes in all, these are {size:,}")
    return weight


def _check_length(name: str, value: Collection[Any]) -> None:
    if len(value) > (most := LISTS[name]):
        raise _Beyond(f"at most {most:,} elements, this has {len(value):,}")


def _check_json(name: str, value: JsonValue) -> int:
    if deeper_than(value, DEPTHS[name]):
        raise _Beyond(f"nested deeper than {DEPTHS[name]} levels")
    try:
        size = len(orjson.dumps(value))
    except TypeError:
        raise _Beyond("not JSON: a number is out of range, or a text is not valid Unicode") from None
    if size > JSON[name]:
        raise _Beyond(f"at most {JSON[name]:,} bytes as JSON, this has {size:,}")
    # A schema stands in the log as it is, beside what the rest of the operation may weigh.
    return _NODE_BYTES


def more_values_than(value: JsonValue, most: int) -> bool:
    """Whether a value has more members in all; looks no further than that."""
    waiting, count = [value], 0
    while waiting:
        inner = waiting.pop()
        count += len(inner) if isinstance(inner, dict | list) else 0
        if count > most:
            return True
        waiting += [each for each in _children(inner) if isinstance(each, dict | list)]
    return False


def deeper_than(value: JsonValue, limit: int) -> bool:
    """Whether arrays and objects are nested in more than `limit` levels."""
    level = [value]
    for _ in range(limit):
        level = [child for parent in level for child in _children(parent)]
        if not level:
            return False
    return any(isinstance(deepest, dict | list) for deepest in level)


def _children(value: JsonValue) -> list[JsonValue]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


# --- the table -----------------------------------------------------------------------


def rows() -> dict[str, str]:
    """The bound of each field that can hold more or less, in words, by the field's name and kind."""
    found = {(name, kind) for model in OPS.values() for name, kind in fields_of(model)}
    found.add(("id", "text"))
    return {f"`{name}` ({kind})": _in_words(name, kind) for name, kind in sorted(found)}


def _in_words(name: str, kind: Kind) -> str:
    match kind:
        case "text":
            return f"{TEXTS[name]:,} bytes{', not blank' if name in NAMED else ''}"
        case "path":
            return f"{PATHS[name]:,} bytes, none of them 0"
        case "JSON":
            return f"{JSON[name]:,} bytes as JSON, {DEPTHS[name]} levels"
        case "array" | "object":
            together = f", {TOGETHER[name]:,} bytes in all" if name in TOGETHER else ""
            return f"{LISTS[name]:,} elements{together}"


def fields_of(annotation: Any, name: str = "") -> Iterator[tuple[str, Kind]]:
    """The fields of a model, at any depth, whose values can be of any size: their names and kinds."""
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        yield from fields_of(args[0], name)
    elif origin in (Union, UnionType):
        for arg in args:
            yield from fields_of(arg, name)
    elif origin in (tuple, dict):
        yield name, "array" if origin is tuple else "object"
        for arg in args if origin is tuple else args[1:]:
            yield from fields_of(arg, name)
    elif isinstance(annotation, NewType):
        yield from fields_of(annotation.__supertype__, name)
    elif annotation is str:
        yield name, "path" if name in PATHS else "text"
    elif annotation is Any:
        yield name, "JSON"
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
        for field, info in annotation.model_fields.items():
            if not (field == "type" and info.annotation is str):
                yield from fields_of(info.annotation, field)
