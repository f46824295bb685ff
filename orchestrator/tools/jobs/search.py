"""Files by the letters of their paths: a query's letters in their order, with others between.

Letters that follow each other, begin a word or stand in the file's own name count more. Bounded: of a large
folder only so many paths are looked at.
"""

from __future__ import annotations

import heapq
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from orchestrator.protocol.jobs import FoundFile, FoundFiles

MOST_PATHS = 50_000
MOST_DEPTH = 32
MOST_FOUND = 50
LEFT_OUT = frozenset({".git", ".hg", ".svn", "node_modules", "__pycache__", ".venv", "target"})
"""Folders that hold no work of people."""
BEGINS, FOLLOWS, NAMES, ANY = 32, 24, 8, 16
_BREAKS = "/_-. "


def search(query: str, roots: Iterable[str], hidden: Iterable[Path]) -> FoundFiles:
    """The best files and folders below some roots; an empty query finds nothing."""
    letters = query.casefold()
    if not letters:
        return FoundFiles(files=())
    concealed = tuple(folder.resolve() for folder in hidden)
    found = (
        match
        for root in roots
        for path, is_file in _paths(Path(root), concealed)
        if (match := _match(letters, root, path, is_file=is_file)) is not None
    )
    best = heapq.nsmallest(MOST_FOUND, found, key=lambda one: (-one.score, one.path, one.root))
    return FoundFiles(files=tuple(best))


def _paths(root: Path, hidden: tuple[Path, ...]) -> Iterator[tuple[str, bool]]:
    """Paths below a root, the nearest first, and whether each is a file."""
    if not root.is_absolute():
        return
    left, level = MOST_PATHS, [root]
    for _ in range(MOST_DEPTH):
        below: list[Path] = []
        for folder in level:
            if any(folder.resolve().is_relative_to(one) for one in hidden):
                continue
            for entry in _entries(folder):
                if not left:
                    return
                left -= 1
                is_folder = entry.is_dir(follow_symlinks=False)
                if is_folder and entry.name in LEFT_OUT:
                    continue
                yield os.fsencode(os.path.relpath(entry.path, root)).decode("utf-8", "replace"), not is_folder
                if is_folder:
                    below.append(Path(entry.path))
        level = below


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            return sorted(found, key=lambda entry: entry.name)
    except OSError:
        # What may not be read is not found.
        return []


def _match(letters: str, root: str, path: str, *, is_file: bool) -> FoundFile | None:
    places = _places(letters, path)
    if places is None:
        return None
    name = path.rpartition("/")[2]
    return FoundFile(
        root=root,
        path=path,
        match_type="file" if is_file else "directory",
        file_name=name,
        score=_score(places, path, len(path) - len(name)),
        indices=tuple(places),
    )


def _places(letters: str, path: str) -> list[int] | None:
    """The places of the letters, the last that fit: a file's own name is nearer to what is meant."""
    places: list[int] = []
    at = len(path)
    folded = path.casefold()
    # A letter that folds into two would move all places behind it.
    folded = folded if len(folded) == len(path) else path.lower()
    for letter in reversed(letters):
        at = folded.rfind(letter, 0, at)
        if at < 0:
            return None
        places.append(at)
    return places[::-1]


def _score(places: list[int], path: str, name_at: int) -> int:
    points = 0
    for number, at in enumerate(places):
        begins = at == 0 or path[at - 1] in _BREAKS
        follows = number > 0 and places[number - 1] == at - 1
        points += (
            ANY + (BEGINS if begins else 0) + (FOLLOWS if follows else 0) + (NAMES if at >= name_at else 0)
        )
    return max(0, points - len(path) // 8)
