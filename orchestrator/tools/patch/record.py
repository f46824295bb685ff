"""The patch record: it lets a takeover find out whether a patch was applied.

A worker that dies while it applies a patch leaves files behind and no event. The record of
the plan, stored before the first write, holds a hash of each file before and after; the
files themselves then show that none of it was applied, or all, or neither.

This module must not know how files are written; `apply` names its temporary files by the record's
token, so that a takeover can remove what the dead worker left.
"""

from __future__ import annotations

import hashlib
import json
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, TypeAlias

from orchestrator.core.frozen import record
from orchestrator.tools.patch.files import FileImage, FileReader
from orchestrator.tools.patch.plan import PatchPlan

PatchVerdict: TypeAlias = Literal["none", "all", "in_doubt"]


@record
class FileHashes:
    """SHA-256 of one file before and after; None where it is absent."""

    path: str
    before: str | None
    after: str | None


@record
class PatchRecord:
    """The hashes of every file of one plan, in the plan's order."""

    files: tuple[FileHashes, ...]

    @property
    def token(self) -> str:
        """A short name of this plan, the same in every process that reads the record."""
        text = "\0".join(f"{file.path}\0{file.before}\0{file.after}" for file in self.files)
        return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:16]

    def to_json(self) -> list[list[str | None]]:
        """Plain lists `[path, before, after]`."""
        return [[file.path, file.before, file.after] for file in self.files]

    @classmethod
    def from_json(cls, value: Sequence[Sequence[str | None]] | str) -> PatchRecord:
        """The inverse of `to_json`, or of its text; raises ValueError for anything else."""
        files = []
        for path, before, after in json.loads(value) if isinstance(value, str) else value:
            if path is None:
                raise ValueError("a patch record names a file without a path")
            files.append(FileHashes(path, before, after))
        return cls(tuple(files))


def record_of(plan: PatchPlan) -> PatchRecord:
    """The record to be stored before `apply_plan` is called."""
    return PatchRecord(
        tuple(
            FileHashes(
                str(file.target),
                image_hash(file.before),
                None if file.after is None else content_hash(file.after),
            )
            for file in plan.files
        )
    )


def judge(record: PatchRecord, files: FileReader) -> PatchVerdict:
    """Whether the files are as before the patch, as after it, or neither.

    A patch that changes nothing counts as applied: there is nothing to repeat.
    """
    now = _hashes_now(record, files)
    if all(now[file.path] == (file.after,) for file in record.files):
        return "all"
    if all(now[file.path] == (file.before,) for file in record.files):
        return "none"
    return "in_doubt"


def content_hash(content: bytes) -> str:
    """SHA-256 of a regular file's content."""
    return hashlib.sha256(content).hexdigest()


def image_hash(image: FileImage | None) -> str | None:
    """The hash of a file or symlink; a symlink never equals a file that holds its target's name."""
    if image is None:
        return None
    digest = content_hash(image.content)
    return f"link:{digest}" if stat.S_ISLNK(image.mode) else digest


def _hashes_now(record: PatchRecord, files: FileReader) -> Mapping[str, tuple[str | None, ...]]:
    """A hash per path; an empty tuple for what is neither a file nor absent, which equals nothing."""
    found: dict[str, tuple[str | None, ...]] = {}
    for file in record.files:
        try:
            found[file.path] = (image_hash(files.read(Path(file.path))),)
        except OSError:
            found[file.path] = ()
    return found
