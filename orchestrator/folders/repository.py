"""The `.git` of a folder: made by us for `git status`, `git diff` and `git log` inside, and never read again.

It is shallow: one commit, its files and an index. It has no hooks, and no configuration but these lines.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Mapping
from pathlib import Path

from orchestrator.folders.git_objects import Entry, Head, foreign_entries, tree_of_commit
from orchestrator.folders.known import Known
from orchestrator.folders.names import COMMIT, FOLDER, MOST_DEPTH
from orchestrator.folders.packs import PackWriter, index_data
from orchestrator.folders.records import Bounds, FolderError
from orchestrator.folders.store import Objects
from orchestrator.folders.take import closure, write_whole

_CONFIG = """[core]
\trepositoryformatversion = 0
\tfilemode = true
\tbare = false
\tlogallrefupdates = false
\thooksPath = /dev/null
\tfsmonitor = false
[gc]
\tauto = 0
"""
_FULL_NAME = 0xFFF


def write_repository(
    path: Path,
    objects: Objects,
    head: Head,
    made: Known,
    stats: Mapping[bytes, os.stat_result],
    bounds: Bounds,
) -> None:
    """Makes the repository of a folder that was just made. `stats` has its files, by their paths."""
    packs = path / "objects" / "pack"
    for folder in (packs, path / "refs" / "tags", path / "objects" / "info", path / "info"):
        folder.mkdir(parents=True)
    _write_pack(packs, objects, head)
    commit = head.commit.hex()
    (path / "HEAD").write_text(f"ref: refs/heads/{head.branch}\n")
    branch = path / "refs" / "heads" / head.branch
    branch.parent.mkdir(parents=True, exist_ok=True)
    branch.write_text(f"{commit}\n")
    (path / "config").write_text(_CONFIG)
    rules = "".join(f"{line}\n" for line in bounds.ignored)
    (path / "info" / "exclude").write_bytes(rules.encode("utf-8", "surrogateescape"))
    if b"\nparent " in objects.read(head.commit, "commit").partition(b"\n\n")[0]:
        (path / "shallow").write_text(f"{commit}\n")
    tracked = _Tracked(objects, bounds)
    tracked.walk(tree_of_commit(objects.read(head.commit, "commit")), b"", 0)
    (path / "index").write_bytes(_index(tracked.entries, made, stats))


def _write_pack(packs: Path, objects: Objects, head: Head) -> None:
    writer = PackWriter(packs / "new")
    write_whole(writer, objects, closure(objects, head.commit, None))
    pack = writer.finish()
    name = f"pack-{pack.sha1.hex()}"
    pack.path.rename(packs / f"{name}.pack")
    (packs / f"{name}.idx").write_bytes(index_data(pack))


class _Tracked:
    """The files of a commit, by their paths, counted."""

    def __init__(self, objects: Objects, bounds: Bounds) -> None:
        self.entries: list[Entry] = []
        self._objects = objects
        self._bounds = bounds

    def walk(self, tree: bytes, path: bytes, depth: int) -> None:
        if depth > MOST_DEPTH or len(self.entries) > self._bounds.max_files:
            raise FolderError(
                "too_many_files", "the folder's commit has too many files: nothing is made of it"
            )
        for entry in foreign_entries(self._objects.read(tree, "tree")):
            below = path + entry.name
            if entry.mode == FOLDER:
                self.walk(entry.sha, below + b"/", depth + 1)
            else:
                self.entries.append(Entry(below, entry.mode, entry.sha))


def _index(entries: list[Entry], made: Known, stats: Mapping[bytes, os.stat_result]) -> bytes:
    """An index of git, version 2, in which what stands in the folder as it is in the commit is known so."""
    now = dict(_files(made, b""))
    rows = [struct.pack(">4sII", b"DIRC", 2, len(entries))]
    for entry in sorted(entries):
        same = entry.mode != COMMIT and now.get(entry.name) == (entry.mode, entry.sha)
        head = _stat_row(stats.get(entry.name) if same else None, entry)
        body = entry.sha + struct.pack(">H", min(len(entry.name), _FULL_NAME)) + entry.name
        rows.append(head + body + b"\0" * (8 - (len(head) + len(body)) % 8))
    data = b"".join(rows)
    return data + hashlib.sha1(data, usedforsecurity=False).digest()


def _files(folder: Known, path: bytes) -> list[tuple[bytes, tuple[int, bytes]]]:
    found = [(path + os.fsencode(name), (file.mode, file.sha)) for name, file in folder.files.items()]
    for name, below in folder.folders.items():
        found += _files(below, path + os.fsencode(name) + b"/")
    return found


def _stat_row(now: os.stat_result | None, entry: Entry) -> bytes:
    if now is None:
        return struct.pack(">10I", 0, 0, 0, 0, 0, 0, entry.mode, 0, 0, 0)
    times = (*divmod(now.st_ctime_ns, 10**9), *divmod(now.st_mtime_ns, 10**9))
    numbers = (*times, now.st_dev, now.st_ino, entry.mode, now.st_uid, now.st_gid, now.st_size)
    return struct.pack(">10I", *(number & 0xFFFFFFFF for number in numbers))
