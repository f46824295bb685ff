"""Commands and patches as a UI shows them: parsed commands and file changes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Annotated, Final, Literal, TypeAlias

from pydantic import ConfigDict, TypeAdapter, ValidationError

from orchestrator.protocol.scalars import LargeText
from orchestrator.protocol.wire import JsonObject, JsonValue, Maybe, OneOf, Unknown, WireModel


class ReadCommand(WireModel):
    """A command that prints a file."""

    type: Literal["read"] = "read"
    cmd: LargeText
    name: LargeText
    path: Maybe[str] = None


class ListFilesCommand(WireModel):
    """A command that lists a folder; no path means the working folder."""

    type: Literal["list_files"] = "list_files"
    cmd: LargeText
    path: LargeText | None = None


class SearchCommand(WireModel):
    """A command that searches in files or for files."""

    type: Literal["search"] = "search"
    cmd: LargeText
    query: LargeText | None = None
    path: LargeText | None = None


class UnknownCommand(WireModel):
    """Any other command."""

    type: Literal["unknown"] = "unknown"
    cmd: LargeText


class UnknownParsedCommand(Unknown):
    """A kind of parsed command from a newer version, held as it came."""


ParsedCommand: TypeAlias = (
    ReadCommand | ListFilesCommand | SearchCommand | UnknownCommand | UnknownParsedCommand
)
ParsedCommandField = Annotated[ParsedCommand, OneOf()]
_PARSED: Final[TypeAdapter[ParsedCommand]] = TypeAdapter(
    ParsedCommandField, config=ConfigDict(defer_build=True)
)


def parsed_commands(values: Iterable[JsonObject]) -> Iterator[ParsedCommand]:
    """The parsed commands of JSON; one that is not sound is passed over."""
    for value in values:
        with suppress(ValidationError):
            yield _PARSED.validate_python(value)


class AddFile(WireModel):
    """A new file with its content."""

    type: Literal["add"] = "add"
    content: LargeText


class DeleteFile(WireModel):
    """A file removed, with the content it had."""

    type: Literal["delete"] = "delete"
    content: LargeText


class UpdateFile(WireModel):
    """A file changed, and moved if `move_path` says where."""

    type: Literal["update"] = "update"
    unified_diff: LargeText
    move_path: LargeText | None = None


def _tag_inside(value: JsonValue) -> JsonValue:
    """The recorded Codex puts the tag outside, `{"add": {…}}`; both are read."""
    if isinstance(value, dict) and "type" not in value and len(value) == 1:
        ((tag, body),) = value.items()
        if isinstance(body, dict):
            return {"type": tag, **body}
    return value


FileChange: TypeAlias = AddFile | DeleteFile | UpdateFile
FileChangeField = Annotated[FileChange, OneOf(rewrite=_tag_inside)]
