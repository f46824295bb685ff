"""Looks at files and folders of the worker's machine, but for what is hidden from commands.

Blocking: each look has a thread and a time limit of whoever calls.
"""

from __future__ import annotations

import base64
import os
import stat
from collections.abc import Iterable
from pathlib import Path

from orchestrator.protocol.jobs import Directory, Entry, FileContent, Metadata
from orchestrator.sandbox.trusted_files import read_regular
from orchestrator.tools.jobs.policy import JobRefused

FILE_BYTES = 8 << 20
MOST_ENTRIES = 10_000


def read_file(path: str, hidden: Iterable[Path]) -> FileContent:
    content = read_regular(_absolute(path), FILE_BYTES + 1, hidden)
    if len(content) > FILE_BYTES:
        raise JobRefused(f"{path} has more than {FILE_BYTES:,} bytes")
    return FileContent(data_base64=base64.b64encode(content).decode("ascii"))


def read_directory(path: str, hidden: Iterable[Path]) -> Directory:
    folder = _shown(path, hidden)
    entries: list[Entry] = []
    with os.scandir(folder) as found:
        for one in found:
            if len(entries) == MOST_ENTRIES:
                raise JobRefused(f"{path} has more than {MOST_ENTRIES:,} entries")
            entries.append(Entry(file_name=_text(one.name), is_directory=one.is_dir(), is_file=one.is_file()))
    return Directory(entries=tuple(sorted(entries, key=lambda entry: entry.file_name)))


def metadata(path: str, hidden: Iterable[Path]) -> Metadata:
    place = _shown(path, hidden)
    itself, target = place.lstat(), place.stat()
    return Metadata(
        is_directory=stat.S_ISDIR(target.st_mode),
        is_file=stat.S_ISREG(target.st_mode),
        is_symlink=stat.S_ISLNK(itself.st_mode),
        # Linux tells Python no time of birth: 0 says that it is not known.
        created_at_ms=0,
        modified_at_ms=target.st_mtime_ns // 1_000_000,
    )


def _shown(path: str, hidden: Iterable[Path]) -> Path:
    """The path, if it leads to nothing that is hidden from commands."""
    place = _absolute(path)
    real = place.resolve()
    if any(real.is_relative_to(folder.resolve()) for folder in hidden):
        raise PermissionError(13, "Permission denied", path)
    return place


def _absolute(path: str) -> Path:
    place = Path(path)
    if not place.is_absolute():
        raise JobRefused(f"{path}: give an absolute path")
    return place


def _text(name: str) -> str:
    """A file's name as text; bytes that are none become marks."""
    return os.fsencode(name).decode("utf-8", "replace")
