"""Objects of git as bytes: ids, trees, and the commits that are snapshots. Reads and writes nothing."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from orchestrator.folders.names import COMMIT, FILE, FOLDER, LINK, PROGRAM, refused_name
from orchestrator.folders.outcomes import FolderError, FolderSnapshot

EMPTY_TREE = hashlib.sha1(b"tree 0\0", usedforsecurity=False).digest()
MOST_TREE = 64 * 1024 * 1024
"""Bytes of a tree object: some 1.5 million entries."""
_AUTHOR = "Dendro <dendro@localhost>"
_BRANCH = re.compile(r"(?!.*(\.\.|//|/\.|\.lock(/|$)|@\{))[A-Za-z0-9_][A-Za-z0-9_.+@/-]{0,199}(?<![./])")
_COMMIT = re.compile(
    rb"tree (?P<tree>[0-9a-f]{40})\n(?:parent (?P<parent>[0-9a-f]{40})\n)?"
    rb"author "
    + _AUTHOR.encode()
    + rb" [0-9]{1,12} \+0000\ncommitter "
    + _AUTHOR.encode()
    + rb" [0-9]{1,12} \+0000\n"
    rb"\nSnapshot\n(?:\nHead: (?P<head>[0-9a-f]{40}) (?P<branch>[^\n ]{1,200})\n)?"
)
_MODES = {b"100644": FILE, b"100755": PROGRAM, b"120000": LINK, b"40000": FOLDER, b"160000": COMMIT}
_WRITTEN = {mode: text for text, mode in _MODES.items()}
_OLD_MODES = {b"100664": FILE, b"100600": FILE, b"100640": FILE, b"100775": PROGRAM, b"100700": PROGRAM}
"""Modes that early versions of git wrote."""


class Entry(NamedTuple):
    """An entry of a tree."""

    name: bytes
    mode: int
    sha: bytes

    @property
    def order(self) -> bytes:
        """The key by which git sorts."""
        return self.name + b"/" if self.mode == FOLDER else self.name


class Head(NamedTuple):
    """The commit that the folder's repository shows, and its branch."""

    commit: bytes
    branch: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A commit object of ours."""

    tree: bytes
    parent: FolderSnapshot | None
    head: Head | None

    def data(self, at_ms: int) -> bytes:
        """The object's bytes: nothing of the machine or of the person goes in."""
        by = f"{_AUTHOR} {at_ms // 1000} +0000"
        parent = f"parent {self.parent}\n" if self.parent is not None else ""
        head = f"\nHead: {self.head.commit.hex()} {self.head.branch}\n" if self.head is not None else ""
        return f"tree {self.tree.hex()}\n{parent}author {by}\ncommitter {by}\n\nSnapshot\n{head}".encode()


def object_id(kind: str, data: bytes | memoryview) -> bytes:
    """The SHA-1 that names an object."""
    found = hashlib.sha1(f"{kind} {len(data)}\0".encode(), usedforsecurity=False)
    found.update(data)
    return found.digest()


def tree_data(entries: Iterable[Entry]) -> bytes:
    """The bytes of a tree with these entries, in any order."""
    return b"".join(
        b"%b %b\0%b" % (_WRITTEN[entry.mode], entry.name, entry.sha)
        for entry in sorted(entries, key=lambda entry: entry.order)
    )


def tree_entries(data: bytes) -> list[Entry]:
    """The entries of a tree that may be made into a folder; any other is an error."""
    found = raw_entries(data)
    last = None
    names = set()
    for name, mode, sha in found:
        if (why := refused_name(name)) is not None:
            raise FolderError("refused", f"a snapshot holds the name {name!r} ({why}): nothing is made of it")
        entry = Entry(name, _MODES.get(mode, 0), sha)
        if not entry.mode or name in names or (last is not None and last >= entry.order):
            raise FolderError(
                "damaged", f"a tree has an entry {name!r} of mode {mode!r} that git does not write"
            )
        last = entry.order
        names.add(name)
    return [Entry(name, _MODES[mode], sha) for name, mode, sha in found]


def foreign_entries(data: bytes) -> list[Entry]:
    """The entries of a tree that somebody's git wrote; those that no folder may have are left out."""
    known = {**_MODES, **_OLD_MODES}
    return [
        Entry(name, known[mode], sha)
        for name, mode, sha in raw_entries(data)
        if mode in known and refused_name(name) is None
    ]


def raw_entries(data: bytes) -> list[tuple[bytes, bytes, bytes]]:
    """Names, modes and ids of a tree as they stand there."""
    found, at, end = [], 0, len(data)
    while at < end:
        space = data.find(b" ", at, at + 8)
        null = data.find(b"\0", space)
        if space < 0 or null < 0 or null + 21 > end:
            raise FolderError("damaged", "a tree object ends in the middle of an entry: its pack is damaged")
        found.append((data[space + 1 : null], data[at:space], data[null + 1 : null + 21]))
        at = null + 21
    return found


def snapshot_of(data: bytes) -> Snapshot:
    """The snapshot that a commit object is; an error for a commit of anybody else."""
    found = _COMMIT.fullmatch(data)
    if found is None:
        raise FolderError("damaged", "a commit that is named as a snapshot is none that Dendro wrote")
    head = None
    if found["head"]:
        head = Head(bytes.fromhex(found["head"].decode()), branch_name(found["branch"]))
    parent = FolderSnapshot(found["parent"].decode()) if found["parent"] else None
    return Snapshot(bytes.fromhex(found["tree"].decode()), parent, head)


def tree_of_commit(data: bytes) -> bytes:
    """The tree of anybody's commit."""
    found = re.match(rb"tree ([0-9a-f]{40})\n", data)
    if found is None:
        raise FolderError("damaged", "a commit object names no tree: the repository is damaged")
    return bytes.fromhex(found[1].decode())


def branch_name(name: bytes) -> str:
    """A branch's name where it is a plain one, else `main`: it becomes a path in the folder's repository."""
    text = name.decode("ascii", "replace")
    return text if _BRANCH.fullmatch(text) else "main"
