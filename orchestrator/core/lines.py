"""The lines of a rollout that are no item, event or fact: `session_meta`, `turn_context` and `compacted`.

One record for each, and the only place that knows their JSON. A field that another program, or another
version, left out is `UNSET`: a line of Codex need not have what one of Dendro's has. What a log holds stays
the payload that it is, whatever fields it has; a record is a reading of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from typing import ClassVar, TypeAlias, TypeVar, cast, get_args

from orchestrator.core.frozen import record
from orchestrator.core.history import Item
from orchestrator.core.record_json import ALWAYS, REST, form, reader_of, writer_of
from orchestrator.core.settings import OF_TURNS, TurnSettings
from orchestrator.protocol.wire import UNSET, JsonMapping, JsonObject, JsonValue, Unset

T = TypeVar("T")


_SIGNED_IN = re.compile(r"(?i)^(https?://)[^/]*@|^([a-z][a-z0-9+.-]*://)[^/@:]*:[^/]*@")


def without_sign_in(url: str) -> str:
    """A repository's address without a name and password; a name alone stays where it is no secret."""
    return _SIGNED_IN.sub(lambda found: found[1] or found[2], url)


def told_of_git(told: JsonValue | Unset) -> JsonValue | Unset:
    """A log's word on a folder's repository, whose address has no password there."""
    if not isinstance(told, Mapping) or not isinstance(url := told.get("repository_url"), str):
        return told
    return {**told, "repository_url": without_sign_in(url)}


@record
class MetaLine:
    """The origin of a session. A rollout's first one counts."""

    type: ClassVar[str] = "session_meta"
    id: JsonValue | Unset = UNSET
    timestamp: JsonValue | Unset = UNSET
    cwd: JsonValue | Unset = UNSET
    originator: JsonValue | Unset = UNSET
    """The program that the session was made for."""
    cli_version: JsonValue | Unset = UNSET
    instructions: JsonValue | Unset = UNSET
    """The user's own; a reference, where they are so long that they stand beside the log."""
    git: JsonValue | Unset = UNSET
    """`commit_hash`, `branch` and `repository_url` of the working folder, as far as there are any."""
    forked_from_id: JsonValue | Unset = UNSET
    """The session which a root was forked from."""
    model_provider: JsonValue | Unset = UNSET
    others: JsonMapping = field(default_factory=dict, metadata=REST)
    """Fields that nothing here reads, whole."""


@record
class ContextLine:
    """The settings in force for a model request, in their wire form."""

    type: ClassVar[str] = "turn_context"
    named: JsonMapping = field(default_factory=dict, metadata=REST)
    """Settings by name, in the order of `OF_TURNS`; those that are None are left out."""

    @classmethod
    def of(cls, settings: TurnSettings) -> ContextLine:
        stated = ((name, getattr(settings, name)) for name in OF_TURNS)
        return cls({name: value for name, value in stated if value is not None})

    def changes(self) -> JsonObject:
        """The settings that the line names, by name; one that names no effort takes it back."""
        return {"effort": None, **self.named}


def _texts(values: Iterable[JsonValue] | None) -> tuple[JsonValue, ...]:
    return tuple(values or ())


@record
class CompactedLine:
    """The history was summarised: `replacement_history` stands in its place."""

    type: ClassVar[str] = "compacted"
    message: str = field(default="", metadata=ALWAYS)
    """The summary."""
    replacement_history: Sequence[Item] | None = None
    """None in files of Codex, which builds the new history from the summary again."""
    kept_user_texts: tuple[JsonValue, ...] = field(
        default=(), metadata=form(read=_texts, write=list, always=True)
    )
    """The texts of people that the summary message holds, very long ones in parts."""
    turns_kept: bool = False
    """Whether the turns before can be gone back to: earlier versions kept none."""


Line: TypeAlias = MetaLine | ContextLine | CompactedLine
LINES: tuple[type[Line], ...] = get_args(Line)
NO_META = MetaLine()
read_meta, read_compacted = reader_of(MetaLine), reader_of(CompactedLine)
_WRITERS = cast(
    Mapping[type[Line], Callable[[Line], JsonObject]],
    {cls: writer_of(cls) for cls in LINES},
)


def read_context(payload: JsonMapping) -> ContextLine:
    """The line of a payload, without the fields that are no settings."""
    return ContextLine({name: payload[name] for name in OF_TURNS if name in payload})


def encode_line(line: Line) -> JsonObject:
    """The payload of the line, its fields in the order of the record."""
    return _WRITERS[type(line)](line)


def given(value: T | Unset) -> T | None:
    """The value of a field that may be left out; None where it is."""
    return None if isinstance(value, Unset) else value
