"""A worker's bench for jobs: reads one, does it within its bounds, answers it whatever happens."""

from __future__ import annotations

import asyncio
import base64
import heapq
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar, assert_never

from pydantic import ValidationError

from orchestrator.core.frozen import record
from orchestrator.protocol.jobs import (
    JOB,
    JOB_RESULT,
    DiffToRemote,
    Directory,
    Entry,
    FileContent,
    FoundFile,
    FoundFiles,
    GetMetadata,
    Job,
    JobFailed,
    JobResult,
    Metadata,
    ReadDirectory,
    ReadFile,
    RunCommand,
    SearchFiles,
)
from orchestrator.sandbox.trusted_files import read_regular
from orchestrator.tools.jobs.commands import Commands, JobRefused

FILES_S = 10.0
T = TypeVar("T")


@record
class Workbench:
    """Does jobs; a door's worker is another process, so a job and its answer are bytes."""

    commands: Commands

    def extend(self, claim: str, deadline_boottime: float) -> None:
        """Lets what runs under a job's claim live until then."""
        self.commands.supervisor.extend(claim, deadline_boottime)

    async def do(self, payload: bytes, claim: str) -> bytes:
        """The answer to a job. Cancelling it kills what it runs, and waits for the proof."""
        try:
            result = await self._result(JOB.validate_json(payload), claim)
        except ValidationError as error:
            result = JobFailed(message=f"this worker does not know such a job: {error.errors()[0]['msg']}")
        except JobRefused as error:
            result = JobFailed(message=str(error), refused=True)
        except TimeoutError:
            result = JobFailed(message=f"the files did not answer within {FILES_S:.0f} s; check the mount")
        except OSError as error:
            place = f"{error.filename}: " if error.filename is not None else ""
            result = JobFailed(message=f"{place}{error.strerror or error}")
        except ValueError as error:
            # A name that no file can have.
            result = JobFailed(message=str(error))
        return JOB_RESULT.dump_json(result)

    async def _result(self, job: Job, claim: str) -> JobResult:
        hidden = self.commands.config.hidden
        match job:
            case RunCommand():
                return await self.commands.run(job, claim)
            case DiffToRemote():
                return await self.commands.diff_to_remote(job, claim)
            case ReadFile(path=path):
                return await _looked(lambda: read_file(path, hidden))
            case ReadDirectory(path=path):
                return await _looked(lambda: read_directory(path, hidden))
            case GetMetadata(path=path):
                return await _looked(lambda: metadata(path, hidden))
            case SearchFiles(query=query, roots=roots):
                return await _looked(lambda: search(query, roots, hidden))
            case _:
                assert_never(job)


async def _looked(look: Callable[[], T]) -> T:
    async with asyncio.timeout(FILES_S):
        return await asyncio.to_thread(look)


# ── files ─────────────────────────────────────────────────────────────────────────────────────────
# Looks at files and folders of the worker's machine, but for what is hidden from commands.
#
# Blocking: each look has a thread and a time limit of whoever calls.


FILE_BYTES = 8 << 20
MOST_ENTRIES = 10_000


def read_file(path: str, hidden: Iterable[Path]) -> FileContent:
    content = read_regular(_absolute(path), FILE_BYTES + 1, hidden)
    if len(content) > FILE_BYTES:
        raise JobRefused(f"{path} has more than {FILE_BYTES:,} bytes")
    return FileContent(data_base64=base64.b64encode(content).decode("ascii"))


def read_directory(path: str, hidden: Iterable[Path]) -> Directory:
    folder = _shown(path, hidden)
    entries: list[Entry] = []
    with os.scandir(folder) as found:
        for one in found:
            if len(entries) == MOST_ENTRIES:
                raise JobRefused(f"{path} has more than {MOST_ENTRIES:,} entries")
            entries.append(Entry(file_name=_text(one.name), is_directory=one.is_dir(), is_file=one.is_file()))
    return Directory(entries=tuple(sorted(entries, key=lambda entry: entry.file_name)))


def metadata(path: str, hidden: Iterable[Path]) -> Metadata:
    place = _shown(path, hidden)
    itself, target = place.lstat(), place.stat()
    return Metadata(
        is_directory=stat.S_ISDIR(target.st_mode),
        is_file=stat.S_ISREG(target.st_mode),
        is_symlink=stat.S_ISLNK(itself.st_mode),
        # Linux tells Python no time of birth: 0 says that it is not known.
        created_at_ms=0,
        modified_at_ms=target.st_mtime_ns // 1_000_000,
    )


def _shown(path: str, hidden: Iterable[Path]) -> Path:
    """The path, if it leads to nothing that is hidden from commands."""
    place = _absolute(path)
    real = place.resolve()
    if any(real.is_relative_to(folder.resolve()) for folder in hidden):
        raise PermissionError(13, "Permission denied", path)
    return place


def _absolute(path: str) -> Path:
    place = Path(path)
    if not place.is_absolute():
        raise JobRefused(f"{path}: give an absolute path")
    return place


def _text(name: str) -> str:
    """A file's name as text; bytes that are none become marks."""
    return os.fsencode(name).decode("utf-8", "replace")


# ── search ────────────────────────────────────────────────────────────────────────────────────────
# Files by the letters of their paths: a query's letters in their order, with others between.
#
# Letters that follow each other, begin a word or stand in the file's own name count more. Bounded: of a
# large folder only so many paths are looked at.


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
