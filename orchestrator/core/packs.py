"""Packs of snapshots, and what a snapshot changes, as entries and snapshots of the state have them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, field

from orchestrator.core.frozen import record
from orchestrator.core.record_json import LIST, form, reader_of, writer_of
from orchestrator.protocol.wire import JsonMapping, JsonObject


@record
class Pack:
    """Objects of one snapshot, or of several, as one object of the store."""

    name: str
    """The object's name below the archive's address."""
    sha256: str
    bytes: int
    whole: bool = False
    """Whether it needs no other pack."""


@record
class FileCounts:
    """The number of files that a snapshot changes."""

    added: int
    modified: int
    deleted: int

    @property
    def total(self) -> int:
        return self.added + self.modified + self.deleted


@record
class FolderChange:
    """The difference between the folder that a session began with and the folder as it is."""

    files: int = 0
    insertions: int = 0
    deletions: int = 0
    names: tuple[str, ...] = field(default=(), metadata=LIST)
    """Paths, quoted, in entries up to 2 KiB of them."""


_read_pack, _write_pack = reader_of(Pack), writer_of(Pack)
_read_change, _write_change = reader_of(FolderChange), writer_of(FolderChange)


def read_pack(wire: JsonMapping) -> Pack:
    return _read_pack(wire)


def write_pack(pack: Pack) -> JsonObject:
    return _write_pack(pack)


def read_packs(wire: Sequence[JsonMapping]) -> tuple[Pack, ...]:
    return tuple(map(_read_pack, wire))


def write_packs(packs: Sequence[Pack]) -> list[JsonObject]:
    return list(map(write_pack, packs))


def read_counts(wire: JsonMapping) -> FileCounts:
    return FileCounts(wire["added"], wire["modified"], wire["deleted"])


def read_change(wire: JsonMapping | None) -> FolderChange | None:
    return None if wire is None else _read_change(wire)


def write_change(change: FolderChange | None) -> JsonObject | None:
    return _write_change(change) if change is not None else None


PACK = form(read=read_pack, write=write_pack)
PACKS = form(read=read_packs, write=write_packs)
COUNTS = form(read=read_counts, write=asdict)
CHANGE = form(read=read_change, write=write_change)
