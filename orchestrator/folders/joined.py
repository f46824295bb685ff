"""The changes of several folders that began with each other's snapshots, as if all were merged.

Each folder of a tree of agents is a branch: it began with a snapshot of the folder above it, and what it
has changed is brought there by a three-way merge, or is not yet. What is open is merged here, in memory
alone, from the deepest branch up: so a person sees what would come of all of it, who changed which file, and
where two have changed the same.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from orchestrator.folders.git_objects import EMPTY_TREE, object_id, snapshot_of
from orchestrator.folders.known import UNSURE, Change, File, Known, Walk, changes
from orchestrator.folders.merge import Refused, merged_content
from orchestrator.folders.names import FILE, PROGRAM, quoted
from orchestrator.folders.outcomes import (
    Bounds,
    Branch,
    FileStat,
    FolderError,
    FolderSnapshot,
    Joined,
    JoinedFile,
    Share,
)
from orchestrator.folders.store import Found, Indexed, Objects

MOST_FILES = 10_000
"""Files that are told; those that cannot be merged, and those of several branches, come first."""
MOST_SHARES = 32
"""Branches that are told of one file."""
MOST_MERGES = 500
"""Files whose contents are merged: each takes a process."""
MOST_MERGED = 1 << 20
"""Bytes of a file whose contents are merged."""

Compared = Callable[[Change, Objects], FileStat]
_FILES = (FILE, PROGRAM)


class AllObjects(Objects):
    """Objects of any number of packs, found by one look; and contents that were merged here."""

    def __init__(self, packs: Sequence[Indexed]) -> None:
        super().__init__(packs)
        self._where = {sha: (pack, found) for pack in packs for sha, found in pack.objects.items()}
        self._made: dict[bytes, bytes] = {}

    def find(self, sha: bytes) -> tuple[Indexed, Found] | None:
        return self._where.get(sha)

    def read(self, sha: bytes, kind: str) -> bytes:
        made = self._made.get(sha)
        return super().read(sha, kind) if made is None else made

    def make(self, content: bytes, mode: int) -> File:
        """A file with a content that no pack has."""
        sha = object_id("blob", content)
        self._made[sha] = content
        return File(UNSURE, len(content), 0, mode, sha)


class _Trees(Walk):
    """Folders of many snapshots: a tree that several have is read once at each depth."""

    def __init__(self, objects: Objects, bounds: Bounds) -> None:
        super().__init__(objects, bounds)
        self._read: dict[tuple[bytes, int], Known] = {}

    def folder(self, tree: bytes, depth: int = 0) -> Known:
        found = self._read.get((tree, depth))
        if found is None:
            found = self._read[tree, depth] = super().folder(tree, depth)
        return found

    def of(self, snapshot: FolderSnapshot | None) -> Known | None:
        """The folder of a snapshot; None without one."""
        if snapshot is None:
            return None
        tree = snapshot_of(self._objects.read(bytes.fromhex(snapshot), "commit")).tree
        self.count = self.bytes = 0
        known = Known() if tree == EMPTY_TREE else self.folder(tree)
        # The same few trees may name any number of files.
        self.count = self.bytes = 0
        self._add(known.count, known.bytes)
        return known


@dataclass(slots=True)
class _Folder:
    """A branch while it is joined."""

    base: Known | None
    now: Known | None
    merged: Known | None
    """The part of it that the branch above has merged; its base where nothing was."""
    own: Mapping[bytes, Change]
    """The difference of `base` and `now`."""
    below: list[int] = field(default_factory=list)
    brought: dict[bytes, File | None] = field(default_factory=dict)
    """Files as branches below would make them."""
    by: dict[bytes, int] = field(default_factory=dict)
    """The branches whose content each of those has."""
    around: set[bytes] = field(default_factory=set)
    """The folders around files that were brought."""

    def at(self, path: bytes) -> File | None:
        """The file at a path, with what was brought."""
        return self.brought[path] if path in self.brought else _at(self.now, path)


def joined(
    branches: Sequence[Branch], objects: AllObjects, bounds: Bounds, work: Path, compared: Compared
) -> Joined:
    """Joins branches, each behind the one that it merges into; `work` is a folder of ours."""
    return _Joining(branches, objects, bounds, work, compared).joined()


class _Joining:
    def __init__(
        self,
        branches: Sequence[Branch],
        objects: AllObjects,
        bounds: Bounds,
        work: Path,
        compared: Compared,
    ) -> None:
        self._objects = objects
        self._bounds = bounds
        self._work = work
        self._compared = compared
        self._merges = 0
        self._figures: dict[tuple[bytes, bytes | None, bytes | None], FileStat] = {}
        self._conflicts: dict[bytes, tuple[str, tuple[int, int]]] = {}
        trees = _Trees(objects, bounds)
        self._folders: list[_Folder] = []
        for number, branch in enumerate(branches):
            if branch.parent is not None:
                if not 0 <= branch.parent < number:
                    raise FolderError("refused", "a branch that merges into none before it")
                self._folders[branch.parent].below.append(number)
            base, now = trees.of(branch.base), trees.of(branch.now)
            merged = base if branch.merged is None else trees.of(branch.merged)
            own = {} if base is None or now is None else {one.path: one for one in changes(base, now)}
            self._folders.append(_Folder(base, now, merged, own))

    def joined(self) -> Joined:
        """The files of all branches, as the first one would have them."""
        for number in reversed(range(len(self._folders))):
            for child in self._folders[number].below:
                self._bring(number, child)
        shares = self._shares()
        rows = [row for path in sorted(shares) if (row := self._file(path, shares[path])) is not None]
        added, removed = sum(row.insertions for row in rows), sum(row.deletions for row in rows)
        told = rows
        if len(rows) > MOST_FILES:
            first = sorted(rows, key=lambda row: (not row.conflict, row.of < 2))[:MOST_FILES]
            kept = {row.path for row in first}
            told = [row for row in rows if row.path in kept]
        return Joined(tuple(told), len(rows), added, removed, len(self._conflicts))

    # ── what would come of it ──

    def _bring(self, number: int, child: int) -> None:
        """Merges what is open of a branch into the one above it."""
        ours, theirs = self._folders[number], self._folders[child]
        if theirs.merged is None or theirs.now is None:
            return
        paths = {one.path for one in changes(theirs.merged, theirs.now)} | theirs.brought.keys()
        for path in sorted(paths):
            base, new = _at(theirs.merged, path), theirs.at(path)
            # Of a folder that no log has nothing is known but what others began with.
            old = base if ours.now is None and path not in ours.brought else ours.at(path)
            if _same(old, new) or _same(base, new):
                continue
            try:
                made = self._merged(ours, path, base, old, new)
            except Refused as refused:
                between = (ours.by.get(path, number), theirs.by.get(path, child))
                self._conflicts.setdefault(path, (str(refused), between))
                continue
            ours.brought[path] = made
            ours.by[path] = theirs.by.get(path, child)
            if made is not None:
                ours.around.update(_around(path))

    def _merged(
        self, ours: _Folder, path: bytes, base: File | None, old: File | None, new: File | None
    ) -> File | None:
        if old is None and new is not None and self._in_the_way(ours, path):
            raise Refused("a folder on one side, a file on the other")
        if _same(base, old):
            return new
        return self._by_content(base, old, new)

    def _by_content(self, base: File | None, old: File | None, new: File | None) -> File | None:
        """A file that both sides have changed. Raises `Refused`."""
        if old is None or new is None:
            raise Refused("deleted on one side, changed on the other")
        if base is None:
            raise Refused("two new files of this name")
        if not all(one.mode in _FILES for one in (base, old, new)):
            raise Refused("a link or another kind of file, changed on both sides")
        mode = new.mode if old.mode == base.mode else old.mode
        if new.sha in (base.sha, old.sha):
            return old._replace(mode=mode)
        if old.sha == base.sha:
            return new._replace(mode=mode)
        if max(one.size for one in (base, old, new)) > MOST_MERGED:
            raise Refused("a large file, changed on both sides")
        self._merges += 1
        if self._merges > MOST_MERGES:
            raise Refused(f"changed on both sides, and not compared behind {MOST_MERGES} such files")
        contents = (self._objects.read(one.sha, "blob") for one in (old, base, new))
        return self._objects.make(merged_content(self._work, self._bounds.seconds, *contents), mode)

    def _in_the_way(self, folder: _Folder, path: bytes) -> bool:
        """Whether a file stands where a folder belongs, or a folder that is not empty where a file does."""
        if any(folder.at(one) is not None for one in _around(path)):
            return True
        below, inside = _folder_at(folder.now, path), path + b"/"
        if below is not None and any(folder.at(one) is not None for one in _paths(below, inside)):
            return True
        brought = folder.brought.items() if path in folder.around else ()
        return any(file is not None and one.startswith(inside) for one, file in brought)

    # ── who did it ──

    def _shares(self) -> dict[bytes, list[int]]:
        """For each path the branches that have changed it themselves."""
        found: dict[bytes, list[int]] = {}
        for number, folder in enumerate(self._folders):
            for path, change in folder.own.items():
                if not self._is_taken(folder, path, change):
                    found.setdefault(path, []).append(number)
        return found

    def _is_taken(self, folder: _Folder, path: bytes, change: Change) -> bool:
        """Whether a change is what merges of branches below have brought, and nothing else."""
        content, takes = change.before, False
        for child in folder.below:
            below = self._folders[child]
            if below.merged is None or below.merged is below.base:
                continue
            base, new = _at(below.base, path), _at(below.merged, path)
            if _same(base, new):
                continue
            takes = True
            try:
                if not _same(content, new):
                    content = new if _same(base, content) else self._by_content(base, content, new)
            except Refused:
                return False
        return takes and _same(content, change.after)

    # ── rows ──

    def _file(self, path: bytes, shares: list[int]) -> JoinedFile | None:
        top = self._folders[0]
        first = self._folders[shares[0]]
        before = _at(top.base if top.base is not None else first.base, path)
        after = before if top.now is None and path not in top.brought else top.at(path)
        conflict, between = self._conflicts.get(path, ("", None))
        if _same(before, after) and not conflict:
            return None
        whole = self._figure(path, before, after)
        told = tuple(self._share(path, number) for number in shares[:MOST_SHARES])
        return JoinedFile(
            whole.path,
            whole.what,
            whole.insertions,
            whole.deletions,
            whole.binary,
            whole.too_large,
            told,
            len(shares),
            conflict,
            between,
        )

    def _share(self, path: bytes, number: int) -> Share:
        own = self._folders[number].own[path]
        stat = self._figure(path, own.before, own.after)
        return Share(number, stat.what, stat.insertions, stat.deletions)

    def _figure(self, path: bytes, before: File | None, after: File | None) -> FileStat:
        key = (path, _id(before), _id(after))
        if key not in self._figures:
            what: Literal["A", "M", "D"] = "A" if before is None else "D" if after is None else "M"
            if _same(before, after):
                self._figures[key] = FileStat(quoted(path), 0, 0)
            else:
                self._figures[key] = self._compared(Change(what, path, before, after), self._objects)
        return self._figures[key]


def _id(file: File | None) -> bytes | None:
    return None if file is None else b"%o " % file.mode + file.sha


def _same(one: File | None, other: File | None) -> bool:
    return _id(one) == _id(other)


def _folder_at(root: Known | None, path: bytes) -> Known | None:
    known = root
    for name in path.split(b"/"):
        if known is None:
            return None
        known = known.folders.get(os.fsdecode(name))
    return known


def _at(root: Known | None, path: bytes) -> File | None:
    """The file at a path."""
    above, _, name = path.rpartition(b"/")
    known = _folder_at(root, above) if above else root
    return None if known is None else known.files.get(os.fsdecode(name))


def _around(path: bytes) -> Iterator[bytes]:
    """The folders that a path is in."""
    while (slash := path.rfind(b"/")) > 0:
        path = path[:slash]
        yield path


def _paths(known: Known, path: bytes) -> Iterator[bytes]:
    yield from (path + os.fsencode(name) for name in known.files)
    for name, below in known.folders.items():
        yield from _paths(below, path + os.fsencode(name) + b"/")
