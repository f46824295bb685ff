"""A snapshot: the walk's new objects in a pack, behind a commit."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from orchestrator.folders.git_objects import (
    EMPTY_TREE,
    Head,
    Snapshot,
    foreign_entries,
    object_id,
    tree_of_commit,
)
from orchestrator.folders.known import Change, Known
from orchestrator.folders.names import COMMIT, FOLDER, quoted
from orchestrator.folders.packs import PackWriter
from orchestrator.folders.records import (
    NAMED_OMISSIONS,
    NAMES_BYTES,
    Counts,
    FolderError,
    FolderSnapshot,
    Omission,
    Omissions,
)
from orchestrator.folders.store import Objects

MOST_PACKS = 32
"""Packs behind a whole one: the next one is whole again."""


@dataclass(frozen=True, slots=True)
class State:
    """A snapshot of this copy: the folder as it was, and the packs that make it."""

    snapshot: FolderSnapshot | None
    root: Known
    objects: Objects
    head: Head | None = None


class NewObjects:
    """The sink of a walk: writes what no pack has yet."""

    def __init__(self, writer: PackWriter, objects: Objects) -> None:
        self._writer = writer
        self._objects = objects

    def blob(self, sha: bytes, content: bytes, before: bytes | None) -> None:
        """Writes a file's content, against what the file held before."""
        if sha in self._writer or sha in self._objects:
            return
        base = None
        if (
            before is not None
            and (found := self._objects.find(before))
            and found[1].size < 4 * len(content) + 4096
        ):
            base = (before, self._objects.read(before, "blob"))
        self._writer.add("blob", sha, content, base)

    def tree(self, known: Known, before: Known | None) -> bytes:
        """Writes a folder's tree, against the one that it had."""
        data = known.data()
        sha = object_id("tree", data)
        if not data or sha in self._writer or sha in self._objects:
            return sha
        base = (before.tree, before.data()) if before is not None and before.tree in self._objects else None
        self._writer.add("tree", sha, data, base)
        return sha

    def commit(self, state: State, root: Known, at_ms: int) -> FolderSnapshot:
        """Writes the snapshot's commit."""
        data = Snapshot(root.tree, state.snapshot, state.head).data(at_ms)
        sha = object_id("commit", data)
        self._writer.add("commit", sha, data)
        return FolderSnapshot(sha.hex())


def closure(objects: Objects, commit: bytes, head: Head | None) -> Iterator[tuple[bytes, str]]:
    """The objects that a snapshot needs, and those of the commit that its repository shows."""
    seen: set[bytes] = set()
    for start in (commit, *([head.commit] if head is not None else ())):
        yield start, "commit"
        pending = [tree_of_commit(objects.read(start, "commit"))]
        while pending:
            tree = pending.pop()
            if tree in seen or tree == EMPTY_TREE:
                continue
            seen.add(tree)
            yield tree, "tree"
            for entry in foreign_entries(objects.read(tree, "tree")):
                if entry.mode == FOLDER:
                    pending.append(entry.sha)
                elif entry.mode != COMMIT and entry.sha not in seen and entry.sha in objects:
                    # A file of the head that was too large to take is not there.
                    seen.add(entry.sha)
                    yield entry.sha, "blob"


def write_whole(writer: PackWriter, objects: Objects, wanted: Iterable[tuple[bytes, str]]) -> None:
    """Writes objects without deltas; those that have none already are copied as they stand."""
    ends = {pack: pack.ends() for pack in objects.packs}
    for sha, kind in wanted:
        found = objects.find(sha)
        if found is not None and not found[1].deltas:
            pack, entry = found
            writer.put(sha, entry.size, *pack.file.raw(entry.offset, ends[pack][entry.offset]))
        else:
            writer.add(kind, sha, objects.read(sha, kind))


def wants_whole(objects: Objects) -> bool:
    """Whether the packs behind the whole one are too many, or outweigh it."""
    first, *rest = objects.packs
    return len(rest) >= MOST_PACKS or sum(it.file.bytes for it in rest) > max(first.file.bytes, 1 << 20)


def told(changes: Iterable[Change]) -> tuple[Counts, tuple[str, ...]]:
    """The figures of some changes, and as many names as a record may hold."""
    counts = {"A": 0, "M": 0, "D": 0}
    names: list[str] = []
    room = NAMES_BYTES
    for change in changes:
        counts[change.what] += 1
        if room > 0:
            name = f"{change.what} {quoted(change.path)}"
            room -= len(name.encode()) + 1
            if room >= 0:
                names.append(name)
    return Counts(counts["A"], counts["M"], counts["D"]), tuple(names)


def omissions(before: Known, after: Known) -> Omissions:
    """Omissions of now, and those that the snapshot before did not have."""
    if before is after:
        return Omissions(all=sum(1 for _ in after.omissions()))
    old = dict(before.omissions())
    now = list(after.omissions())
    new = [(path, left) for path, left in now if path not in old or old[path].why != left.why]
    named = tuple(Omission(quoted(path)[:512], left.why, left.bytes) for path, left in new[:NAMED_OMISSIONS])
    return Omissions(named, len(new), len(now))


@contextmanager
def system_errors(doing: str) -> Iterator[None]:
    """Tells what the system refused as a `FolderError`."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            text = f"the disk is full: {doing} was not done. Make room, or set workspace.root elsewhere."
            raise FolderError("no_space", text) from error
        where = f" ({error.filename})" if error.filename else ""
        raise FolderError(
            "failed", f"{doing} was not done: {os.strerror(error.errno or 0)}{where}"
        ) from error


def replace(path: Path, data: bytes) -> None:
    """Writes a file of ours whole, or not at all."""
    beside = path.with_suffix(".new")
    beside.write_bytes(data)
    beside.replace(path)
