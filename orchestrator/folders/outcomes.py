"""Records of what happens to a folder: its bounds, a snapshot taken, a folder made, a merge, an error."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NewType

FolderSnapshot = NewType("FolderSnapshot", str)
"""The 40 hexadecimal digits of a commit object of git; `protocol.ids` has the id that a log knows it by."""

NAMES_BYTES = 2048
"""The most bytes of names that a record of a change carries, quoted."""
NAMED_OMISSIONS = 10
"""The most omissions that one snapshot names."""


@dataclass(frozen=True, slots=True)
class Place:
    """A copy on this machine. Nothing but `folder` may ever be visible to a command."""

    folder: Path
    """The folder that commands see; it need not exist before it is made."""
    objects: Path
    """A folder of Dendro's own: packs, the index of the folder, packs that wait for their upload."""
    lock: Path | None = None
    """The file that a keeper locks while it lives; without one nothing is locked."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds of a snapshot. What a glob is: a line of a `.gitignore`."""

    max_file: int = 50 * 1024 * 1024
    """Bytes of one file; a larger one is left out and named."""
    max_files: int = 200_000
    """Files, links and empty folders of a snapshot; a folder with more is refused."""
    max_bytes: int = 4 * 1024**3
    """Bytes of all files of a snapshot; a folder with more is refused."""
    seconds: float = 120.0
    """The time for one piece of work."""
    include: tuple[str, ...] = ()
    """Globs of files that are taken although the folder's rules ignore them."""
    exclude: tuple[str, ...] = ()
    """Globs of new files that are left out and named, whatever the folder's rules say."""
    ignored: tuple[str, ...] = ()
    """Rules of the person's own (`core.excludesFile`, `.git/info/exclude`): weaker than the folder's."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Files and links that one snapshot has and another has not, or has otherwise."""

    added: int = 0
    modified: int = 0
    deleted: int = 0


@dataclass(frozen=True, slots=True)
class Omission:
    """Something in the folder that is not in its snapshot."""

    path: str
    """Quoted as git quotes paths."""
    why: str
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Omissions:
    """The omissions that the snapshot before did not have, and how many there are in all."""

    named: tuple[Omission, ...] = ()
    """At most NAMED_OMISSIONS."""
    new: int = 0
    all: int = 0


@dataclass(frozen=True, slots=True)
class Taken:
    """A snapshot that differs from its parent, and the pack that it adds."""

    snapshot: FolderSnapshot
    parent: FolderSnapshot | None
    tree: str
    pack: Path
    """A file in the spool of the place. The caller uploads it; `settle` of the keeper removes it."""
    sha256: str
    bytes: int
    whole: bool
    """Whether the pack needs no other one: then packs before it are not needed to make this snapshot.
    The first one of a place, and each that replaces 32 others or outweighs nothing but them."""
    counts: Counts
    names: tuple[str, ...]
    """`A path`, `M path`, `D path`: quoted, NAMES_BYTES at most in all; the counts tell of the rest."""
    omitted: Omissions = Omissions()


@dataclass(frozen=True, slots=True)
class Unchanged:
    """A folder whose tree is that of the snapshot before."""

    snapshot: FolderSnapshot
    omitted: Omissions = Omissions()


@dataclass(frozen=True, slots=True)
class Made:
    """A folder that was made from packs."""

    files: int
    bytes: int
    head: str | None = None
    """The commit that `git log` of the folder shows, where the folder has a repository."""


@dataclass(frozen=True, slots=True)
class Conflict:
    """A path that cannot be merged, quoted, and why."""

    path: str
    why: str


@dataclass(frozen=True, slots=True)
class Planned:
    """A merge without conflicts that has not been written. Nothing in the folder has changed."""

    digest: str
    """SHA-256 of the paths with their contents before and after: what an approval is for."""
    counts: Counts
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Merged:
    """A merge that was written."""

    counts: Counts
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Conflicted:
    """A merge of which nothing was written."""

    conflicts: tuple[Conflict, ...]
    """At most 100."""
    all: int


@dataclass(frozen=True, slots=True)
class FileStat:
    """Lines that a change adds to a file and takes from it; both 0 for a binary file."""

    path: str
    insertions: int
    deletions: int
    binary: bool = False
    what: Literal["A", "M", "D"] = "M"
    """Whether the file was added, modified or deleted."""
    too_large: bool = False
    """Whether its lines are not compared because it is large."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference of two snapshots."""

    text: str
    """A unified diff, as `git diff` writes it; empty where only the figures were asked for."""
    truncated: bool
    """Whether the text was cut at its bound. The figures are whole."""
    counts: Counts
    insertions: int
    deletions: int
    files: tuple[FileStat, ...] = field(default=())
    """At most 1,000."""


@dataclass(frozen=True, slots=True)
class ReadFile:
    """A file of a snapshot."""

    path: str
    content: bytes | None
    """None for what was not read."""
    why: str = ""
    """The reason for that, in words for people."""


@dataclass(frozen=True, slots=True)
class Search:
    """A search for files of one name below folders of a snapshot, and its bounds."""

    folders: tuple[str, ...]
    name: str
    depth: int
    """Folders below each other, under one of `folders`."""
    entries: int
    """Files and folders that are looked at below one of `folders`."""
    files: int
    """Files that are found in all."""
    bytes: int
    """Bytes of a file that is read."""


@dataclass(frozen=True, slots=True)
class Cut:
    """A folder whose search ended at a bound."""

    folder: str
    bound: Literal["files", "entries"]


@dataclass(frozen=True, slots=True)
class Found:
    """The files that a search has found, in its order."""

    files: tuple[ReadFile, ...]
    cut: tuple[Cut, ...] = ()


@dataclass(frozen=True, slots=True)
class Branch:
    """A folder that is joined with others."""

    parent: int | None
    """The number of the branch that it merges into, one before it; None for the first."""
    base: FolderSnapshot | None
    """Its first snapshot; None where no log has its folder."""
    now: FolderSnapshot | None
    merged: FolderSnapshot | None = None
    """Its snapshot that was merged last into the branch above."""


@dataclass(frozen=True, slots=True)
class Share:
    """The change of a file by one branch itself, against the snapshot that it began with."""

    branch: int
    what: Literal["A", "M", "D"]
    insertions: int
    deletions: int


@dataclass(frozen=True, slots=True)
class JoinedFile:
    """A file as it would be if all branches were merged, against what the first one began with."""

    path: str
    what: Literal["A", "M", "D"]
    insertions: int
    deletions: int
    binary: bool
    too_large: bool
    shares: tuple[Share, ...]
    """At most 32."""
    of: int
    """The number of branches that have changed it themselves."""
    conflict: str = ""
    """The reason why it cannot be merged; empty if it can. The figures leave out what cannot."""
    between: tuple[int, int] | None = None
    """The two branches that have changed it each in its way."""


@dataclass(frozen=True, slots=True)
class Joined:
    """Files that branches have changed."""

    files: tuple[JoinedFile, ...]
    """At most 10,000."""
    all: int
    insertions: int
    deletions: int
    conflicts: int


ErrorKind = Literal[
    "too_many_files",
    "too_large",
    "time",
    "no_space",
    "damaged",
    "refused",
    "busy",
    "lost",
    "missing",
    "failed",
    "half",
]
"""too_many_files, too_large: beyond a bound. time: the bound's seconds were over. no_space: the disk is
full. damaged: a pack or an object is not what its name says. refused: a name or a link in a snapshot leads
out of the folder, or rules of what git ignores are not read whole. busy: another keeper has the copy. lost:
the keeper's process ended. missing: a snapshot or an object that no pack has. failed: the system refused
something. half: so it did, and a part of a merge may be in the folder."""


@dataclass(frozen=True, slots=True)
class Guard:
    """The paths of a folder that a merge may write, all relative to it."""

    within: tuple[str, ...] = ("",)
    """Folders that may be written, with all below them; the empty one is the folder itself."""
    kept: tuple[str, ...] = ()
    """Files, and folders with all below them, that may not."""
    names: tuple[str, ...] = ()
    """Names of files that may not be written, wherever they are."""

    def allows(self, path: bytes) -> bool:
        named = os.fsdecode(path)
        if named.rpartition("/")[2] in self.names or any(_is_below(named, kept) for kept in self.kept):
            return False
        return any(_is_below(named, folder) for folder in self.within)


ANYWHERE = Guard()


def _is_below(path: str, folder: str) -> bool:
    return not folder or path == folder or path.startswith(f"{folder}/")


class FolderError(Exception):
    """A piece of work on a folder that was not done; the text says what it means and what to do."""

    def __init__(self, kind: ErrorKind, text: str) -> None:
        super().__init__(text)
        self.kind: ErrorKind = kind
        self.text = text
