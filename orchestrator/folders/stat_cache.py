"""Knowledge of a folder: its content at a snapshot, and by what each file would show a change.

Records are shared between snapshots and never changed once a snapshot has them.
"""

from __future__ import annotations

import errno
import marshal
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from orchestrator.folders import git_objects, outcomes
from orchestrator.folders.names import COMMIT, FOLDER, LINK, MOST_DEPTH, MOST_LINK, quoted, refused_link
from orchestrator.folders.packs import PackWriter
from orchestrator.folders.store import Objects

UNSURE = -1
"""A change time that no file has: the file is read again at the next snapshot."""


class File(NamedTuple):
    """A file or link as it was last read; the first three tell whether it may have changed since."""

    ctime_ns: int
    size: int
    ino: int
    mode: int
    sha: bytes


class Left(NamedTuple):
    """Something that is in the folder and not in the snapshot."""

    why: str
    bytes: int


class Known:
    """A folder as it was last seen. Names are as `os` decodes them."""

    __slots__ = (
        "bytes",
        "count",
        "files",
        "folders",
        "ignored",
        "included",
        "left",
        "links",
        "recorded",
        "rules",
        "seen",
        "skipped",
        "tree",
    )

    def __init__(self) -> None:
        self.files: dict[str, File] = {}
        self.folders: dict[str, Known] = {}
        self.links: dict[str, bytes] = {}
        """Commits of other repositories at their folders' names, as the snapshot before has them."""
        self.skipped: frozenset[str] = frozenset()
        """Ignored names, those of folders with a slash behind them."""
        self.left: dict[str, Left] = {}
        self.seen: tuple[int, int, int] | None = None
        """Times and inode of the folder when it was listed; None where it has to be listed again."""
        self.rules: tuple[bytes, tuple[int, int, int] | None] = (b"", None)
        """The key of the rules that held, and the times of the folder's own file of rules."""
        self.ignored = False
        """Whether rules ignore the folder: what is recorded of it was tracked before, or is included."""
        self.included = False
        self.tree = git_objects.EMPTY_TREE
        self.count = 0
        """Files, links and empty folders, with those below."""
        self.bytes = 0
        self.recorded = True
        """Whether the tree above names it: not where all that it holds is ignored or left out."""

    def entries(self) -> list[git_objects.Entry]:
        """The entries of its tree."""
        found = [
            git_objects.Entry(os.fsencode(name), file.mode, file.sha) for name, file in self.files.items()
        ]
        found += [
            git_objects.Entry(os.fsencode(name), FOLDER, folder.tree)
            for name, folder in self.folders.items()
            if folder.recorded
        ]
        found += [git_objects.Entry(os.fsencode(name), COMMIT, sha) for name, sha in self.links.items()]
        return found

    def data(self) -> bytes:
        """The bytes of its tree."""
        return git_objects.tree_data(self.entries())

    def sum_up(self) -> None:
        """Counts what it holds, after its parts are there."""
        below = self.folders.values()
        empty = not (self.ignored or self.files or self.folders or self.links or self.skipped or self.left)
        self.recorded = empty or bool(self.files or self.links) or any(it.recorded for it in below)
        own = len(self.files) + len(self.links) + empty
        self.count = own + sum(it.count for it in below if it.recorded)
        self.bytes = sum(it.size for it in self.files.values()) + sum(it.bytes for it in below)

    def omissions(self, path: bytes = b"") -> Iterator[tuple[bytes, Left]]:
        """Everything that was left out, with its path."""
        for name, left in self.left.items():
            yield path + os.fsencode(name), left
        for name, folder in self.folders.items():
            yield from folder.omissions(path + os.fsencode(name) + b"/")


class Walk:
    """A walk of a snapshot's trees, counted: the same few trees can name any number of files."""

    def __init__(self, objects: Objects, bounds: outcomes.Bounds) -> None:
        self._objects = objects
        self._bounds = bounds
        self.count = 0
        self.bytes = 0

    def folder(self, tree: bytes, depth: int = 0) -> Known:
        """A tree with all below it, as a folder of which no file was looked at."""
        if depth > MOST_DEPTH:
            raise _refused(f"folders more than {MOST_DEPTH} deep")
        known = Known()
        known.tree = tree
        entries = git_objects.tree_entries(self._objects.read(tree, "tree"))
        self._add(0 if entries else 1, 0)
        for entry in entries:
            name = os.fsdecode(entry.name)
            if entry.mode == FOLDER:
                known.folders[name] = self.folder(entry.sha, depth + 1)
            elif entry.mode == COMMIT:
                self._add(1, 0)
                known.links[name] = entry.sha
            else:
                known.files[name] = self._file(entry, depth)
        known.sum_up()
        return known

    def _file(self, entry: git_objects.Entry, depth: int) -> File:
        size = self._objects.size(entry.sha)
        self._add(1, size)
        if entry.mode == LINK:
            # Read only if it can be one: a link's target is read whole.
            target = self._objects.read(entry.sha, "blob") if size <= MOST_LINK else b""
            if (why := refused_link(target, depth)) is not None:
                raise _refused(f"at {quoted(entry.name)} {why}")
        return File(UNSURE, size, 0, entry.mode, entry.sha)

    def _add(self, count: int, size: int) -> None:
        self.count += count
        self.bytes += size
        if self.count > self._bounds.max_files:
            most = f"{self._bounds.max_files:,} files (workspace.max_files)"
            raise outcomes.FolderError(
                "too_many_files", f"the snapshot has more than {most}: nothing is made of it"
            )
        if self.bytes > self._bounds.max_bytes:
            most = f"{self._bounds.max_bytes:,} bytes (workspace.max_bytes)"
            raise outcomes.FolderError(
                "too_large", f"the snapshot has more than {most}: nothing is made of it"
            )


def _refused(what: str) -> outcomes.FolderError:
    return outcomes.FolderError("refused", f"a snapshot holds {what}: nothing is made of it")


class Change(NamedTuple):
    """A path that differs: `A`, `M` or `D`, and what it was and is."""

    what: Literal["A", "M", "D"]
    path: bytes
    before: File | None
    after: File | None


def changes(before: Known, after: Known, path: bytes = b"") -> Iterator[Change]:
    """The files and links by which two folders differ, in git's order; equal trees are not walked."""
    if before.tree == after.tree:
        return
    names = [(os.fsencode(name), name) for name in before.files.keys() | after.files.keys()]
    names += [(os.fsencode(name) + b"/", name) for name in before.folders.keys() | after.folders.keys()]
    for raw, name in sorted(names):
        if raw.endswith(b"/"):
            old, new = before.folders.get(name, _NOTHING), after.folders.get(name, _NOTHING)
            yield from changes(old, new, path + raw)
            continue
        was, now = before.files.get(name), after.files.get(name)
        if was is None or now is None or (was.mode, was.sha) != (now.mode, now.sha):
            yield Change("A" if was is None else "D" if now is None else "M", path + raw, was, now)


_NOTHING = Known()


def dumped(known: Known) -> bytes:
    """A folder for the next process of this machine."""
    return marshal.dumps(_row(known))


def _row(known: Known) -> tuple[Any, ...]:
    return (
        {name: tuple(file) for name, file in known.files.items()},
        {name: _row(folder) for name, folder in known.folders.items()},
        known.links,
        known.skipped,
        {name: tuple(left) for name, left in known.left.items()},
        known.seen,
        known.rules,
        (known.ignored, known.included),
        known.tree,
    )


def loaded(data: bytes) -> Known:
    """A folder that `dumped` wrote; ValueError, EOFError or TypeError for other bytes."""
    return _known(marshal.loads(data))


def _known(row: tuple[Any, ...]) -> Known:
    known = Known()
    files, folders, known.links, known.skipped, left, known.seen, known.rules, flags, known.tree = row
    known.ignored, known.included = flags
    known.files = {name: File(*file) for name, file in files.items()}
    known.folders = {name: _known(folder) for name, folder in folders.items()}
    known.left = {name: Left(*it) for name, it in left.items()}
    known.sum_up()
    return known


# ── take ──────────────────────────────────────────────────────────────────────────────────────────
# A snapshot: the walk's new objects in a pack, behind a commit.


MOST_PACKS = 32
"""Packs behind a whole one: the next one is whole again."""


@dataclass(frozen=True, slots=True)
class State:
    """A snapshot of this copy: the folder as it was, and the packs that make it."""

    snapshot: outcomes.FolderSnapshot | None
    root: Known
    objects: Objects
    head: git_objects.Head | None = None


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
        sha = git_objects.object_id("tree", data)
        if not data or sha in self._writer or sha in self._objects:
            return sha
        base = (before.tree, before.data()) if before is not None and before.tree in self._objects else None
        self._writer.add("tree", sha, data, base)
        return sha

    def commit(self, state: State, root: Known, at_ms: int) -> outcomes.FolderSnapshot:
        """Writes the snapshot's commit."""
        data = git_objects.Snapshot(root.tree, state.snapshot, state.head).data(at_ms)
        sha = git_objects.object_id("commit", data)
        self._writer.add("commit", sha, data)
        return outcomes.FolderSnapshot(sha.hex())


def closure(objects: Objects, commit: bytes, head: git_objects.Head | None) -> Iterator[tuple[bytes, str]]:
    """The objects that a snapshot needs, and those of the commit that its repository shows."""
    seen: set[bytes] = set()
    for start in (commit, *([head.commit] if head is not None else ())):
        yield start, "commit"
        pending = [git_objects.tree_of_commit(objects.read(start, "commit"))]
        while pending:
            tree = pending.pop()
            if tree in seen or tree == git_objects.EMPTY_TREE:
                continue
            seen.add(tree)
            yield tree, "tree"
            for entry in git_objects.foreign_entries(objects.read(tree, "tree")):
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


def told(changes: Iterable[Change]) -> tuple[outcomes.Counts, tuple[str, ...]]:
    """The figures of some changes, and as many names as a record may hold."""
    counts = {"A": 0, "M": 0, "D": 0}
    names: list[str] = []
    room = outcomes.NAMES_BYTES
    for change in changes:
        counts[change.what] += 1
        if room > 0:
            name = f"{change.what} {quoted(change.path)}"
            room -= len(name.encode()) + 1
            if room >= 0:
                names.append(name)
    return outcomes.Counts(counts["A"], counts["M"], counts["D"]), tuple(names)


def omissions(before: Known, after: Known) -> outcomes.Omissions:
    """Omissions of now, and those that the snapshot before did not have."""
    if before is after:
        return outcomes.Omissions(all=sum(1 for _ in after.omissions()))
    old = dict(before.omissions())
    now = list(after.omissions())
    new = [(path, left) for path, left in now if path not in old or old[path].why != left.why]
    named = tuple(
        outcomes.Omission(quoted(path)[:512], left.why, left.bytes)
        for path, left in new[: outcomes.NAMED_OMISSIONS]
    )
    return outcomes.Omissions(named, len(new), len(now))


@contextmanager
def system_errors(doing: str) -> Iterator[None]:
    """Tells what the system refused as a `FolderError`."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            text = f"the disk is full: {doing} was not done. Make room, or set workspace.root elsewhere."
            raise outcomes.FolderError("no_space", text) from error
        where = f" ({error.filename})" if error.filename else ""
        raise outcomes.FolderError(
            "failed", f"{doing} was not done: {os.strerror(error.errno or 0)}{where}"
        ) from error


def replace(path: Path, data: bytes) -> None:
    """Writes a file of ours whole, or not at all."""
    beside = path.with_suffix(".new")
    beside.write_bytes(data)
    beside.replace(path)
