"""Folders, copies and a real git for the tests of folders."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from orchestrator.folders.copy import Copy
from orchestrator.folders.outcomes import Bounds, FolderSnapshot, Place, Taken, Unchanged

AT_MS = 1_790_000_000_000
Content = bytes | str | None
"""Bytes of a file, the target of a link, or an empty folder."""


class Bench:
    """A copy, whose folder a test writes as a command would."""

    def __init__(self, root: Path, bounds: Bounds | None = None) -> None:
        self.root = root
        self.folder = root / "folder"
        self.bounds = bounds or Bounds()
        self.copy = Copy(Place(self.folder, root / "objects"), self.bounds)
        self.packs: list[Path] = []
        self.at = FolderSnapshot("")
        self.last: Taken | Unchanged | None = None

    def write(self, files: Mapping[str | bytes, Content], folder: Path | None = None) -> None:
        """Writes files, links and empty folders."""
        (folder or self.folder).mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            path = os.path.join(os.fsencode(folder or self.folder), os.fsencode(name))  # noqa: PTH118
            os.makedirs(os.path.dirname(path) if content is not None else path, exist_ok=True)  # noqa: PTH103, PTH120
            if isinstance(content, str):
                os.symlink(content, path)  # noqa: PTH211
            elif content is not None:
                with open(path, "wb") as file:  # noqa: PTH123
                    file.write(content)

    def born(self, repository: Path | None = None, ref: str = "HEAD") -> Taken:
        """Takes the first snapshot."""
        taken = self.copy.born(repository, ref, AT_MS)
        self.packs, self.at, self.last = [taken.pack], taken.snapshot, taken
        return taken

    def take(self, at_ms: int = AT_MS) -> Taken | Unchanged:
        """Takes the next snapshot, as one that will be recorded."""
        taken = self.copy.take(self.at, at_ms)
        self.last = taken
        if isinstance(taken, Taken):
            self.packs = [taken.pack] if taken.whole else [*self.packs, taken.pack]
            self.at = taken.snapshot
        return taken

    def taken(self) -> Taken:
        """Takes a snapshot that has to differ."""
        taken = self.take()
        assert isinstance(taken, Taken)
        return taken

    def left(self) -> dict[str, str]:
        """The omissions that the last snapshot names."""
        assert self.last is not None
        return {omission.path: omission.why for omission in self.last.omitted.named}

    def elsewhere(self, name: str = "elsewhere") -> Path:
        """The folder as another machine makes it."""
        place = Place(self.root / name / "folder", self.root / name / "objects")
        Copy(place, self.bounds).make(self.packs, self.at)
        return place.folder

    def repository(self) -> Path:
        """A repository of git's own with all packs that are stored."""
        path = self.root / "repository"
        if not path.exists():
            git(self.root, "init", "-q", "--bare", str(path))
        for pack in self.packs:
            git(path, "index-pack", "--stdin", "--fix-thin", given=pack.read_bytes())
        return path


def content_of(folder: Path) -> dict[bytes, tuple[str, bytes]]:
    """The content of a folder, but for its repository: files and programs, links, and empty folders."""
    found: dict[bytes, tuple[str, bytes]] = {}
    root = os.fsencode(folder)
    for here, folders, files in os.walk(root):
        if here == root and b".git" in folders:
            folders.remove(b".git")
        below = os.path.relpath(here, root)
        if not folders and not files and here != root:
            found[below] = ("folder", b"")
        for name in (*files, *(it for it in folders if os.path.islink(os.path.join(here, it)))):  # noqa: PTH114, PTH118
            path = os.path.join(here, name)  # noqa: PTH118
            key = os.path.normpath(os.path.join(below, name))  # noqa: PTH118
            if os.path.islink(path):  # noqa: PTH114
                found[key] = ("link", os.readlink(path))  # noqa: PTH115
            else:
                with open(path, "rb") as file:  # noqa: PTH123
                    kind = "program" if os.stat(path).st_mode & 0o100 else "file"  # noqa: PTH116
                    found[key] = (kind, file.read())
    return found


def git(folder: Path, *words: str, given: bytes = b"", fits: tuple[int, ...] = (0,)) -> bytes:
    """Runs git as a person without any configuration does; fails with what it says."""
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": "/nonexistent",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_AUTHOR_NAME": "P",
        "GIT_AUTHOR_EMAIL": "p@example.com",
        "GIT_COMMITTER_NAME": "P",
        "GIT_COMMITTER_EMAIL": "p@example.com",
    }
    done = subprocess.run(
        ["git", "-C", str(folder), *words], input=given, env=environment, capture_output=True, check=False
    )
    assert done.returncode in fits, done.stderr.decode()
    return done.stdout
