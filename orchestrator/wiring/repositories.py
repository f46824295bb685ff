"""Git's answers about folders, remembered for a second while the repository around them stays as it is.

A gateway makes sessions in the same few folders, and git is five processes for each. What shows a change is
read anew each time: `HEAD`, the branch that it names, the packed ones, the configuration. The second bounds
what is not looked at, as the person's own configuration and files that a repository's includes.
"""

from __future__ import annotations

import stat
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Generic, TypeAlias, TypeVar

from orchestrator.instructions.project import Repository, repository
from orchestrator.sandbox.trusted_files import read_regular
from orchestrator.settings.repository import in_work_tree

MOST_AGE_S: Final = 1.0
MOST_FOLDERS: Final = 64
"""More are forgotten, the oldest first: a client chooses the folders."""
REF_BYTES: Final = 1024
FILES: Final = ("config", "config.worktree", "packed-refs", "commondir", "reftable/tables.list")

T = TypeVar("T")
Signs: TypeAlias = tuple[object, ...]


class Repositories:
    """The repositories around the folders of new sessions; methods block, and threads may share them."""

    def __init__(self, environ: Mapping[str, str], now_s: Callable[[], float] = time.monotonic) -> None:
        self._trees = _Answers(lambda folder: in_work_tree(folder, environ), now_s)
        self._facts = _Answers(repository, now_s)

    def in_work_tree(self, folder: Path, environ: Mapping[str, str]) -> bool:
        """Whether git works in a folder. `environ` is that of this process, which does not change."""
        return self._trees.of(folder)

    def repository(self, cwd: Path) -> Repository:
        """The repository around a folder."""
        return self._facts.of(cwd)


@dataclass(slots=True)
class _Kept(Generic[T]):
    """The last answer about a folder; its lock is held while git is asked."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    signs: Signs | None = None
    at_s: float = 0.0
    answer: list[T] = field(default_factory=list)


class _Answers(Generic[T]):
    """The answers to one question."""

    def __init__(self, ask: Callable[[Path], T], now_s: Callable[[], float]) -> None:
        self._ask = ask
        self._now_s = now_s
        self._kept: dict[Path, _Kept[T]] = {}
        self._choosing = threading.Lock()

    def of(self, folder: Path) -> T:
        """The answer about a folder: the last one, or a new one."""
        kept = self._place(folder)
        with kept.lock:
            signs, now_s = signs_of(folder), self._now_s()
            if signs is None:
                return self._ask(folder)
            if signs != kept.signs or now_s - kept.at_s >= MOST_AGE_S:
                kept.answer = [self._ask(folder)]
                kept.signs, kept.at_s = signs, now_s
            return kept.answer[0]

    def _place(self, folder: Path) -> _Kept[T]:
        with self._choosing:
            found = self._kept.get(folder)
            if found is None:
                if len(self._kept) >= MOST_FOLDERS:
                    del self._kept[next(iter(self._kept))]
                found = self._kept[folder] = _Kept()
            return found


def signs_of(folder: Path) -> Signs | None:
    """All that changes when git's answers do; None for a `.git` that leads elsewhere: git is always asked."""
    real = folder.resolve()
    found: list[object] = [real]
    for above in (real, *real.parents):
        place = above / ".git"
        try:
            about = place.lstat()
        except OSError:
            continue
        if not stat.S_ISDIR(about.st_mode):
            return None
        found.append((place, about.st_ino, about.st_uid, about.st_mode, *_signs_in(place)))
    return tuple(found)


def _signs_in(place: Path) -> Signs:
    head = _content(place / "HEAD")
    name = head.removeprefix(b"ref: ").strip().decode("utf-8", "surrogateescape")
    is_branch = name.startswith("refs/") and ".." not in name and "\0" not in name
    return head, _content(place / name) if is_branch else b"", *(_about(place / file) for file in FILES)


def _content(file: Path) -> bytes:
    try:
        return read_regular(file, REF_BYTES)
    except OSError:
        return b""


def _about(file: Path) -> Signs | None:
    try:
        about = file.stat()
    except OSError:
        return None
    return about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns
