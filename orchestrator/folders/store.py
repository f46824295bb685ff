"""The objects of one copy on this machine: packs with what is in them, and what may be read from them."""

from __future__ import annotations

import marshal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from orchestrator.folders import delta
from orchestrator.folders.git_objects import EMPTY_TREE, MOST_TREE, object_id
from orchestrator.folders.outcomes import Bounds, FolderError
from orchestrator.folders.packs import KINDS, Pack, PackFile

MOST_DELTAS = 64
"""Deltas above each other. A whole pack has none, and at most 32 packs follow it."""
_MOST_COMMIT = 64 * 1024
_TREES_BYTES = 512 * 1024 * 1024
"""Bytes of all trees and commits of a pack."""


class Found(NamedTuple):
    """An object in a pack: `size` is that of its content, `deltas` those that lead to it."""

    offset: int
    size: int
    kind: str
    deltas: int


@dataclass(frozen=True, slots=True, eq=False)
class Indexed:
    """A pack and its objects."""

    file: PackFile
    objects: dict[bytes, Found]

    def ends(self) -> dict[int, int]:
        """The places where the pack's entries end, by those where they begin."""
        starts = sorted(found.offset for found in self.objects.values())
        return dict(zip(starts, (*starts[1:], self.file.bytes - 20), strict=True))


class Objects:
    """Objects of some packs; a set of packs never changes, another one is another `Objects`."""

    def __init__(self, packs: Sequence[Indexed] = ()) -> None:
        self.packs = tuple(packs)

    def __contains__(self, sha: bytes) -> bool:
        return self.find(sha) is not None

    def find(self, sha: bytes) -> tuple[Indexed, Found] | None:
        """The pack that has an object, the newest first."""
        for pack in reversed(self.packs):
            if (found := pack.objects.get(sha)) is not None:
                return pack, found
        return None

    def size(self, sha: bytes) -> int:
        """Bytes of an object's content."""
        return self._must(sha)[1].size

    def _must(self, sha: bytes) -> tuple[Indexed, Found]:
        found = self.find(sha)
        if found is None:
            raise FolderError(
                "missing",
                f"the object {sha.hex()} is in none of the packs: the snapshot that needs it cannot be made",
            )
        return found

    def read(self, sha: bytes, kind: str) -> bytes:
        """The content of an object, which has to be of this kind."""
        if sha == EMPTY_TREE and kind == "tree":
            return b""
        pack, found = self._must(sha)
        if found.kind != kind:
            raise FolderError("damaged", f"the object {sha.hex()} is a {found.kind}, where a {kind} belongs")
        changes: list[bytes] = []
        while True:
            head = pack.file.head(found.offset)
            content, _ = pack.file.inflate(head)
            if head.base is None:
                break
            if len(changes) >= MOST_DELTAS:
                raise FolderError(
                    "damaged", f"the object {sha.hex()} hangs from more than {MOST_DELTAS} deltas"
                )
            changes.append(content)
            pack, found = self._must(head.base)
        for change in reversed(changes):
            content = delta.apply(content, change)
        if object_id(kind, content) != sha:
            # The pack was whole when it was checked; disks, too, forget.
            raise FolderError(
                "damaged", f"the object {sha.hex()} is not what it was: its pack here is damaged"
            )
        return content


def own(pack: Pack, path: Path, before: Objects) -> Indexed:
    """The index of a pack that we have just written, which lies at `path`."""
    file = PackFile(path)
    objects = {}
    for entry in pack.entries:
        head = file.head(entry.offset)
        kind, deltas = KINDS.get(head.number, ""), 0
        if head.base is not None:
            base = before.find(head.base)
            assert base is not None, "a delta is made against an object that is there"
            kind, deltas = base[1].kind, base[1].deltas + 1
        objects[entry.sha] = Found(entry.offset, entry.size, kind, deltas)
    return Indexed(file, objects)


def checked(path: Path, before: Objects, bounds: Bounds) -> Indexed:
    """Reads a pack of anybody's from end to end: sums, sizes, kinds and deltas, before it is believed."""
    return _Check(path, before, bounds).run()


class _Check:
    def __init__(self, path: Path, before: Objects, bounds: Bounds) -> None:
        self._file = PackFile(path)
        self._bounds = bounds
        self._objects: dict[bytes, Found] = {}
        self._so_far = Objects((*before.packs, Indexed(self._file, self._objects)))
        # A folder and the commit that its repository shows, each of which may be as large as it may.
        self._left = {"blob": 2 * bounds.max_bytes, "tree": _TREES_BYTES, "commit": _TREES_BYTES}

    def run(self) -> Indexed:
        file = self._file
        if file.count > 4 * self._bounds.max_files + 1000:
            raise FolderError(
                "too_many_files", f"{file.path.name} holds {file.count:,} objects: it is not read"
            )
        file.check_sum()
        at = file.first
        for _ in range(file.count):
            at = self._entry(at)
        if at != file.bytes - 20:
            raise file.broken("it holds more than it says")
        return Indexed(file, self._objects)

    def _entry(self, at: int) -> int:
        head = self._file.head(at)
        if head.base is None:
            kind, deltas = KINDS[head.number], 0
            self._allow(kind, head.size)
            content, end = self._file.inflate(head)
        else:
            found = self._so_far.find(head.base)
            if found is None:
                raise self._file.broken("a delta's base is in no pack before it")
            kind, deltas = found[1].kind, found[1].deltas + 1
            self._allow(kind, head.size)
            changes, end = self._file.inflate(head)
            self._allow(kind, delta.sizes(changes)[1])
            content = delta.apply(self._so_far.read(head.base, kind), changes)
        sha = object_id(kind, content)
        if sha in self._objects:
            raise self._file.broken("it holds an object twice")
        self._objects[sha] = Found(at, len(content), kind, deltas)
        return end

    def _allow(self, kind: str, size: int) -> None:
        most = {"blob": self._bounds.max_file, "tree": MOST_TREE, "commit": _MOST_COMMIT}[kind]
        self._left[kind] -= size
        if size > most or self._left[kind] < 0:
            name = self._file.path.name
            text = f"{name} holds a {kind} of {size:,} bytes, or too much in all: nothing is made of it"
            raise FolderError("too_large", text)


def keep(pack: Indexed) -> None:
    """Writes what is in a pack beside it, for the next process."""
    rows = {sha: tuple(found) for sha, found in pack.objects.items()}
    pack.file.path.with_suffix(".objects").write_bytes(marshal.dumps(rows))


def kept(path: Path) -> Indexed | None:
    """A pack of this place whose objects were written beside it; None where they cannot be read."""
    try:
        rows = marshal.loads(path.with_suffix(".objects").read_bytes())
        return Indexed(PackFile(path), {sha: Found(*row) for sha, row in rows.items()})
    except (OSError, ValueError, EOFError, TypeError, FolderError):
        return None
