"""A three-way merge into a folder: planned by paths, without looking for renames, and written whole or not.

What the folder holds is read from the disk, not from its last snapshot: an ignored file in the way, or one
that changed since, is a conflict and not lost. Contents are merged by `git merge-file`.
"""

from __future__ import annotations

import errno
import hashlib
import marshal
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

from orchestrator.folders import outcomes
from orchestrator.folders.build import FOLDER_FLAGS, new_file, remove
from orchestrator.folders.git_objects import EMPTY_TREE, object_id, snapshot_of
from orchestrator.folders.names import FILE, FOLDER, LINK, PROGRAM, mode_of, quoted
from orchestrator.folders.stat_cache import UNSURE, Change, File, Known, Walk, changes, told
from orchestrator.folders.store import Found, Indexed, Objects
from orchestrator.sandbox.git import GitFailed, git_environment, run_git_here

MOST_CONFLICTS = 100
_FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_FILES = (FILE, PROGRAM)


class Side(NamedTuple):
    """A path on one side: its mode (0 for what no snapshot has) and the id of its content."""

    mode: int
    sha: bytes


@dataclass(frozen=True, slots=True)
class Step:
    """A path that the merge changes."""

    path: bytes
    before: Side | None
    after: Side | None
    content: bytes = b""

    @property
    def change(self) -> Change:
        """The step as it is counted."""
        what: Literal["A", "M", "D"] = "A" if self.before is None else "D" if self.after is None else "M"
        return Change(what, self.path, None, None)


class Refused(Exception):
    """A path that cannot be merged; the text says why."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The steps of a merge, or its conflicts."""

    steps: tuple[Step, ...]
    conflicts: tuple[outcomes.Conflict, ...]

    @property
    def digest(self) -> str:
        """SHA-256 of all paths with their contents before and after."""
        found = hashlib.sha256()
        for step in self.steps:
            for part in (step.path, repr(step.before).encode(), repr(step.after).encode()):
                found.update(len(part).to_bytes(8) + part)
        return found.hexdigest()

    def counted(self) -> tuple[outcomes.Counts, tuple[str, ...]]:
        """The figures and names of the steps."""
        return told(step.change for step in self.steps)

    def told(self) -> outcomes.Planned | outcomes.Conflicted:
        """The plan as a record."""
        if self.conflicts:
            return outcomes.Conflicted(self.conflicts[:MOST_CONFLICTS], len(self.conflicts))
        return outcomes.Planned(self.digest, *self.counted())


class Planner:
    """Plans a merge into the folder at a path. `work` is a folder of ours for the contents to merge."""

    def __init__(
        self,
        folder: Path,
        objects: Objects,
        bounds: outcomes.Bounds,
        work: Path,
        guard: outcomes.Guard = outcomes.ANYWHERE,
    ) -> None:
        self._folder = folder
        self._objects = objects
        self._bounds = bounds
        self._work = work
        self._guard = guard
        self._content: dict[bytes, bytes] = {}
        """Contents of files here, by their ids."""
        self._given_up: set[bytes] = set()
        """Paths that the merge takes away."""

    def plan(self, base: Known, theirs: Known) -> Plan:
        """The steps that bring the changes from `base` to `theirs` into the folder."""
        steps: list[Step] = []
        conflicts: list[outcomes.Conflict] = []
        found = sorted(changes(base, theirs), key=lambda change: (change.what != "D", change.path))
        root = os.open(self._folder, FOLDER_FLAGS)
        try:
            for change in found:
                # What goes is planned first: a folder may come where a file was.
                try:
                    step = self._step(root, change)
                except Refused as refused:
                    conflicts.append(outcomes.Conflict(quoted(change.path)[:512], str(refused)))
                    continue
                if step is not None:
                    steps.append(step)
                if change.what == "D":
                    self._given_up.add(change.path)
        finally:
            os.close(root)
        return Plan(tuple(steps), tuple(conflicts))

    def _step(self, root: int, change: Change) -> Step | None:
        base, theirs = _side(change.before), _side(change.after)
        ours = self._ours(root, change.path)
        if ours == theirs:
            return None
        if not self._guard.allows(change.path):
            raise Refused("the sandbox does not let it be written: change it by a patch, which asks")
        if ours == base:
            return self._taken(change.path, ours, theirs)
        if ours is not None and ours.mode == FOLDER:
            if theirs is not None and self._is_given_up(root, change.path):
                return self._taken(change.path, None, theirs)
            raise Refused("a folder here, a file there")
        if ours is None:
            raise Refused("deleted here, changed there")
        if theirs is None:
            raise Refused("changed here, deleted there")
        if base is None:
            raise Refused("another file is here already")
        if not all(side.mode in _FILES for side in (base, ours, theirs)):
            raise Refused("a link or another kind of file, changed on both sides")
        return self._merged(change.path, base, ours, theirs)

    def _taken(self, path: bytes, ours: Side | None, theirs: Side | None) -> Step:
        content = self._objects.read(theirs.sha, "blob") if theirs is not None else b""
        return Step(path, ours, theirs, content)

    def _merged(self, path: bytes, base: Side, ours: Side, theirs: Side) -> Step | None:
        mode = theirs.mode if ours.mode == base.mode else ours.mode
        if base.sha == theirs.sha:
            content = self._content[ours.sha]
        elif ours.sha in (base.sha, theirs.sha):
            content = self._objects.read(theirs.sha, "blob")
        else:
            parts = (self._content[ours.sha], self._objects.read(base.sha, "blob"))
            content = self._merged_content(*parts, self._objects.read(theirs.sha, "blob"))
        after = Side(mode, object_id("blob", content))
        return Step(path, ours, after, content) if after != ours else None

    def _merged_content(self, ours: bytes, base: bytes, theirs: bytes) -> bytes:
        return merged_content(self._work, self._bounds.seconds, ours, base, theirs)

    def _ours(self, root: int, path: bytes) -> Side | None:
        """The side that the folder is at a path."""
        *folders, name = path.split(b"/")
        with entered(root, folders) as (fd, missing):
            if missing is None:
                return self._here(fd, os.fsdecode(name))
            if missing and b"/".join(folders[:missing]) not in self._given_up:
                raise Refused("a file or a link here, where a folder belongs")
            return None

    def _here(self, fd: int, name: str) -> Side | None:
        try:
            found = read_side(fd, name, self._bounds.max_file)
        except FileTooLarge as error:
            raise Refused("the file here is larger than workspace.max_file") from error
        except OSError as error:
            raise Refused(f"the file here cannot be read ({error.strerror})") from error
        if found is None:
            return None
        side, content = found
        if side.mode in _FILES:
            self._content[side.sha] = content
        return side

    def _is_given_up(self, root: int, path: bytes) -> bool:
        """Whether all that a folder holds is taken away by this merge."""
        with entered(root, path.split(b"/")) as (fd, missing):
            if missing is not None:
                return False
            with os.scandir(fd) as names:
                found = [
                    (path + b"/" + os.fsencode(it.name), it.is_dir(follow_symlinks=False)) for it in names
                ]
        return all(self._is_given_up(root, it) if folder else it in self._given_up for it, folder in found)


def merged_content(work: Path, seconds: float, ours: bytes, base: bytes, theirs: bytes) -> bytes:
    """A text that two sides have changed, as git merges it, in a folder of ours. Raises `Refused`."""
    names = []
    for name, content in (("ours", ours), ("base", base), ("theirs", theirs)):
        (work / name).write_bytes(content)
        names.append(name)
    try:
        words, environ = ("merge-file", "-p", *names), git_environment(Path(os.devnull))
        done = run_git_here(words, environ, work, seconds)
    except GitFailed as error:
        raise outcomes.FolderError("failed", f"{error}. Nothing was merged") from error
    if done.code == 0:
        return done.out
    if 0 < done.code < 128:
        raise Refused("the same lines changed on both sides")
    if b"binary" in done.complaint:
        raise Refused("a binary file, changed on both sides")
    raise outcomes.FolderError(
        "failed", f"git cannot merge a file: {done.complaint.decode('utf-8', 'replace')[:200].strip()}"
    )


def _side(file: File | None) -> Side | None:
    return None if file is None else Side(file.mode, file.sha)


class FileTooLarge(Exception):
    """A file has more bytes than are read."""


def read_side(fd: int, name: str, most: int) -> tuple[Side, bytes] | None:
    """The side that a name of a folder is, and a file's content; None if nothing is there.

    Raises `OSError`, `FileTooLarge`.
    """
    try:
        now = os.stat(name, dir_fd=fd, follow_symlinks=False)
    except FileNotFoundError:
        return None
    kind = stat.S_IFMT(now.st_mode)
    if kind == stat.S_IFDIR:
        return Side(FOLDER, b""), b""
    if kind == stat.S_IFLNK:
        return Side(LINK, object_id("blob", os.fsencode(os.readlink(name, dir_fd=fd)))), b""
    if kind != stat.S_IFREG:
        return Side(0, b""), b""
    if now.st_size > most:
        raise FileTooLarge
    content = _read(fd, name)
    return Side(mode_of(now.st_mode), object_id("blob", content)), content


def _read(fd: int, name: str) -> bytes:
    file = os.open(name, _FILE_FLAGS, dir_fd=fd)
    with os.fdopen(file, "rb", buffering=0) as opened:
        return opened.readall() or b""


@contextmanager
def entered(root: int, folders: list[bytes]) -> Iterator[tuple[int, int | None]]:
    """Goes down without following links. Gives the folder reached, and None if it is the last of them.

    Else the number of names that lead to something that is no folder; 0 if there is nothing.
    """
    fd, missing = os.dup(root), None
    try:
        for depth, name in enumerate(folders, 1):
            try:
                below = os.open(name, FOLDER_FLAGS, dir_fd=fd)
            except FileNotFoundError:
                missing = 0
                break
            except OSError:
                missing = depth
                break
            os.close(fd)
            fd = below
        yield fd, missing
    finally:
        os.close(fd)


# ── merge writer ──────────────────────────────────────────────────────────────────────────────────
# The writing of a planned merge: all is staged first, then moved in, and moved back if a step fails.
#
# A process that is killed between two moves moves nothing back. So a list of the steps is kept in a
# folder of ours, and the old files in the staging folder, until the merge is settled: by these it is
# taken back. A file that somebody has changed since is left as it is. A staging folder beside the
# folder's own files can be written by commands: its files are believed no more than the folder's, and its
# names are ours alone.


MOST_LOOKED_AT = 1 << 28
"""Bytes of a file that is compared with what a merge wrote."""
STAGED, STEPS, OWED, ELSEWHERE = "staged", "steps", "owed", "elsewhere"
"""In the folder of ours: the new and the old files, the steps of a merge that was written, those of one that
was not or not yet, and where the staging folder is if it is not here."""
_HALF_DONE = (
    "the merge was broken off, and a part of it could not be taken back yet: some files of the folder are as "
    "the merge left them, and the old ones are kept. Look at the disk and at the folder's modes, then merge "
    "again: that begins with taking back the rest"
)


def write(plan: Plan, folder: Path, theirs: Known, work: Path) -> None:
    """Writes the steps. `work` is a folder of ours; used if files can be moved from it to the folder."""
    if (work / OWED).exists():
        try:
            take_back(folder, work)
        except OSError as error:
            raise outcomes.FolderError("half", _HALF_DONE) from error
    else:
        settle(work)
    if not plan.steps:
        return
    staging = work / STAGED
    if _mount(work) != _mount(folder):
        staging = folder / f".dendro-merge-{os.urandom(6).hex()}"
        (work / ELSEWHERE).write_bytes(os.fsencode(staging))
    staging.mkdir()
    writer = _Writer(plan.steps, folder, theirs, staging, work)
    try:
        writer.run()
    except BaseException:
        if writer.is_back:
            settle(work)
        raise


def _mount(folder: Path) -> tuple[int, str]:
    """The device and the mount of a folder: a file is renamed within one of them alone.

    A volume of a container may be the same device and another mount; subvolumes of btrfs are other devices
    of one mount. Where `/proc` is not to be had, the device counts alone.
    """
    fd = os.open(folder, FOLDER_FLAGS)
    try:
        lines = Path(f"/proc/self/fdinfo/{fd}").read_text().splitlines()
        return os.fstat(fd).st_dev, next((line for line in lines if line.startswith("mnt_id:")), "")
    except FileNotFoundError:
        return os.fstat(fd).st_dev, ""
    finally:
        os.close(fd)


def settle(work: Path) -> None:
    """Removes what a merge has left to be taken back by: it is known to be whole, or not to matter."""
    (work / STEPS).unlink(missing_ok=True)
    (work / OWED).unlink(missing_ok=True)
    remove(_staging(work))
    (work / ELSEWHERE).unlink(missing_ok=True)


def _staging(work: Path) -> Path:
    """The staging folder of the last merge: among our own, or in the folder if that is on another disk."""
    try:
        return Path(os.fsdecode((work / ELSEWHERE).read_bytes()))
    except FileNotFoundError:
        return work / STAGED


def take_back(folder: Path, work: Path) -> None:
    """Takes back the last merge, which a process did not live to tell of: all of it, or what there is."""
    staging = _staging(work)
    noted = work / (OWED if (work / OWED).exists() else STEPS)
    try:
        steps, made = marshal.loads(noted.read_bytes())
    except FileNotFoundError:
        # Nothing was moved yet.
        settle(work)
        return
    with ExitStack() as stack:
        root = _opened(stack, folder)
        try:
            stage = _opened(stack, staging)
        except OSError as error:
            settle(work)
            raise outcomes.FolderError(
                "half",
                f"a merge was broken off, and {staging.name}, where it kept what it replaced, is no "
                "folder any more: a part of it may be in the folder",
            ) from error
        back = _Back(root, stage, sorted(made, key=len, reverse=True))
        for number, step in reversed(list(enumerate(steps))):
            back.step(number, *step)
        back.without_folders()
    settle(work)


def _opened(stack: ExitStack, path: Path) -> int:
    fd = os.open(path, FOLDER_FLAGS)
    stack.callback(os.close, fd)
    return fd


class _Back:
    """The way back of steps of which some were done; each is looked at, and done again harmlessly."""

    def __init__(self, root: int, stage: int, made: list[bytes]) -> None:
        self._root = root
        self._stage = stage
        self._made = made
        """The folders that the merge has made, inner ones first."""

    def step(self, number: int, path: bytes, had: bool, after: tuple[int, bytes] | None) -> None:
        """Takes a path's new file out if it is in, and puts its old one back if it is out."""
        *folders, name = path.split(b"/")
        if after is not None and not self._is_staged(f"new-{number}"):
            with entered(self._root, folders) as (fd, missing), suppress(FileNotFoundError):
                if missing is None:
                    if self._side(fd, name) not in (after, None):
                        return
                    os.rename(name, f"new-{number}", src_dir_fd=fd, dst_dir_fd=self._stage)
        if not had or not self._is_staged(f"old-{number}"):
            return
        self.without_folders(path)
        if not self._is_there(folders, name):
            self._make(folders)
            with entered(self._root, folders) as (fd, missing):
                # In the place of a folder around it somebody may have put a file, which stays.
                if missing is None:
                    os.rename(f"old-{number}", name, src_dir_fd=self._stage, dst_dir_fd=fd)

    def without_folders(self, place: bytes = b"") -> None:
        """Removes folders that the merge has made: all, or those in the place of a file."""
        for path in self._made:
            if place and path != place and not path.startswith(place + b"/"):
                continue
            *folders, name = path.split(b"/")
            with entered(self._root, folders) as (fd, missing), suppress(OSError):
                if missing is None:
                    os.rmdir(name, dir_fd=fd)

    def _is_there(self, folders: list[bytes], name: bytes) -> bool:
        with entered(self._root, folders) as (fd, missing):
            return missing is None and self._side(fd, name) is not None

    def _side(self, fd: int, name: bytes) -> Side | None:
        """The side that a file is; one that cannot be read is somebody else's."""
        try:
            found = read_side(fd, os.fsdecode(name), MOST_LOOKED_AT)
        except (OSError, FileTooLarge):
            return Side(0, b"")
        return found[0] if found is not None else None

    def _is_staged(self, name: str) -> bool:
        try:
            os.stat(name, dir_fd=self._stage, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True

    def _make(self, folders: list[bytes]) -> None:
        for depth in range(1, len(folders) + 1):
            with entered(self._root, folders[: depth - 1]) as (fd, missing), suppress(FileExistsError):
                if missing is not None:
                    return
                os.mkdir(folders[depth - 1], 0o755, dir_fd=fd)


class _Writer:
    def __init__(
        self, steps: tuple[Step, ...], folder: Path, theirs: Known, staging: Path, work: Path
    ) -> None:
        self._steps = steps
        self._theirs = theirs
        self._stack = ExitStack()
        self._root = _opened(self._stack, folder)
        self._stage = _opened(self._stack, staging)
        self._work = _opened(self._stack, work)
        self._back: list[Callable[[], None]] = []
        """The steps back, in the order in which their opposites were done."""
        self.is_back = True
        """Whether what was moved before a step failed is where it was: the old files are not needed."""

    def run(self) -> None:
        """Stages, which is where a disk gets full, then moves names about."""
        with self._stack:
            for number, step in enumerate(self._steps):
                self._staged(f"new-{number}", step)
            self._note_steps()
            try:
                for number, step in enumerate(self._steps):
                    self._move(number, step)
                os.rename(OWED, STEPS, src_dir_fd=self._work, dst_dir_fd=self._work)
            except BaseException as error:
                self._go_back()
                if self.is_back:
                    raise
                raise outcomes.FolderError("half", _HALF_DONE) from error

    def _go_back(self) -> None:
        for back in reversed(self._back):
            try:
                back()
            except OSError:
                self.is_back = False

    def _note_steps(self) -> None:
        """Writes what is about to be done, and which folders it makes."""
        steps = [(step.path, step.before is not None, _plain(step.after)) for step in self._steps]
        made = {folder for step in self._steps if step.after for folder in self._lacking(step.path)}
        part = "steps.part"
        with suppress(FileNotFoundError):
            os.unlink(part, dir_fd=self._work)
        new_file(self._work, part, marshal.dumps((steps, list(made))), FILE)
        os.rename(part, OWED, src_dir_fd=self._work, dst_dir_fd=self._work)

    def _lacking(self, path: bytes) -> Iterator[bytes]:
        """The folders around a path that are not there."""
        folders = path.split(b"/")[:-1]
        for depth in range(len(folders), 0, -1):
            with entered(self._root, folders[:depth]) as (_, missing):
                if missing is None:
                    return
            yield b"/".join(folders[:depth])

    def _staged(self, name: str, step: Step) -> None:
        if step.after is None:
            return
        if step.after.mode == LINK:
            os.symlink(step.content, os.fsencode(name), dir_fd=self._stage)
        else:
            new_file(self._stage, name, step.content, step.after.mode)

    def _move(self, number: int, step: Step) -> None:
        *folders, name = step.path.split(b"/")
        if step.after is not None:
            self._make_folders(folders)
        if step.before is not None:
            self._exchange(folders, name, f"old-{number}", away=True)
        if step.after is not None:
            if self._is_folder(folders, name):
                self._clear([*folders, name])
            self._exchange(folders, name, f"new-{number}", away=False)
        else:
            self._drop_folders(folders)

    def _exchange(self, folders: list[bytes], name: bytes, staged: str, *, away: bool) -> None:
        """Moves a file of the folder to its name in the staging folder, or from there."""
        self._rename(folders, name, staged, away=away)
        self._back.append(partial(self._rename, folders, name, staged, away=not away))

    def _rename(self, folders: list[bytes], name: bytes, staged: str, *, away: bool) -> None:
        with self._in(folders) as fd:
            if away:
                os.rename(name, staged, src_dir_fd=fd, dst_dir_fd=self._stage)
            else:
                os.rename(staged, name, src_dir_fd=self._stage, dst_dir_fd=fd)

    def _make_folders(self, folders: list[bytes]) -> None:
        for depth in range(1, len(folders) + 1):
            path = folders[:depth]
            with self._in(path[:-1]) as fd, suppress(FileExistsError):
                os.mkdir(path[-1], 0o755, dir_fd=fd)
                self._back.append(partial(self._rmdir, path))

    @contextmanager
    def _in(self, folders: list[bytes]) -> Iterator[int]:
        with entered(self._root, folders) as (fd, missing):
            if missing is not None:
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), b"/".join(folders))
            yield fd

    def _drop_folders(self, folders: list[bytes]) -> None:
        """Removes folders that the merge has emptied and the other side has not."""
        for depth in range(len(folders), 0, -1):
            if _has(self._theirs, folders[:depth]):
                return
            if not self._drop(folders[:depth]):
                return

    def _clear(self, path: list[bytes]) -> None:
        """Removes a folder with the empty ones in it, of which no snapshot knows."""
        with self._in(path) as fd, os.scandir(fd) as names:
            below = [os.fsencode(it.name) for it in names if it.is_dir(follow_symlinks=False)]
        for name in below:
            self._clear([*path, name])
        self._drop(path)

    def _drop(self, path: list[bytes]) -> bool:
        """Removes a folder, unless it holds something. The one in its place on the way back is made before.

        A way back must need no room: the full disk may be its reason.
        """
        spare = f"spare-{len(self._back)}"
        with suppress(FileExistsError):
            os.mkdir(spare, 0o755, dir_fd=self._stage)
        try:
            self._rmdir(path)
        except OSError:
            return False
        self._back.append(partial(self._rename, path[:-1], path[-1], spare, away=False))
        return True

    def _is_folder(self, folders: list[bytes], name: bytes) -> bool:
        with self._in(folders) as fd:
            try:
                return stat.S_ISDIR(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode)
            except FileNotFoundError:
                return False

    def _rmdir(self, path: list[bytes]) -> None:
        with self._in(path[:-1]) as fd:
            os.rmdir(path[-1], dir_fd=fd)


def _plain(side: Side | None) -> tuple[int, bytes] | None:
    return None if side is None else (side.mode, side.sha)


def _has(known: Known, folders: list[bytes]) -> bool:
    for name in folders:
        below = known.folders.get(os.fsdecode(name))
        if below is None:
            return False
        known = below
    return True


# ── joined ────────────────────────────────────────────────────────────────────────────────────────
# The changes of several folders that began with each other's snapshots, as if all were merged.
#
# Each folder of a tree of agents is a branch: it began with a snapshot of the folder above it, and what
# it has changed is brought there by a three-way merge, or is not yet. What is open is merged here, in
# memory alone, from the deepest branch up: so a person sees what would come of all of it, who changed
# which file, and where two have changed the same.


MOST_FILES = 10_000
"""Files that are told; those that cannot be merged, and those of several branches, come first."""
MOST_SHARES = 32
"""Branches that are told of one file."""
MOST_MERGES = 500
"""Files whose contents are merged: each takes a process."""
MOST_MERGED = 1 << 20
"""Bytes of a file whose contents are merged."""

Compared = Callable[[Change, Objects], outcomes.FileStat]


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

    def __init__(self, objects: Objects, bounds: outcomes.Bounds) -> None:
        super().__init__(objects, bounds)
        self._read: dict[tuple[bytes, int], Known] = {}

    def folder(self, tree: bytes, depth: int = 0) -> Known:
        found = self._read.get((tree, depth))
        if found is None:
            found = self._read[tree, depth] = super().folder(tree, depth)
        return found

    def of(self, snapshot: outcomes.FolderSnapshot | None) -> Known | None:
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
    branches: Sequence[outcomes.Branch],
    objects: AllObjects,
    bounds: outcomes.Bounds,
    work: Path,
    compared: Compared,
) -> outcomes.Joined:
    """Joins branches, each behind the one that it merges into; `work` is a folder of ours."""
    return _Joining(branches, objects, bounds, work, compared).joined()


class _Joining:
    def __init__(
        self,
        branches: Sequence[outcomes.Branch],
        objects: AllObjects,
        bounds: outcomes.Bounds,
        work: Path,
        compared: Compared,
    ) -> None:
        self._objects = objects
        self._bounds = bounds
        self._work = work
        self._compared = compared
        self._merges = 0
        self._figures: dict[tuple[bytes, bytes | None, bytes | None], outcomes.FileStat] = {}
        self._conflicts: dict[bytes, tuple[str, tuple[int, int]]] = {}
        trees = _Trees(objects, bounds)
        self._folders: list[_Folder] = []
        for number, branch in enumerate(branches):
            if branch.parent is not None:
                if not 0 <= branch.parent < number:
                    raise outcomes.FolderError("refused", "a branch that merges into none before it")
                self._folders[branch.parent].below.append(number)
            base, now = trees.of(branch.base), trees.of(branch.now)
            merged = base if branch.merged is None else trees.of(branch.merged)
            own = {} if base is None or now is None else {one.path: one for one in changes(base, now)}
            self._folders.append(_Folder(base, now, merged, own))

    def joined(self) -> outcomes.Joined:
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
        return outcomes.Joined(tuple(told), len(rows), added, removed, len(self._conflicts))

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

    def _file(self, path: bytes, shares: list[int]) -> outcomes.JoinedFile | None:
        top = self._folders[0]
        first = self._folders[shares[0]]
        before = _at(top.base if top.base is not None else first.base, path)
        after = before if top.now is None and path not in top.brought else top.at(path)
        conflict, between = self._conflicts.get(path, ("", None))
        if _same(before, after) and not conflict:
            return None
        whole = self._figure(path, before, after)
        told = tuple(self._share(path, number) for number in shares[:MOST_SHARES])
        return outcomes.JoinedFile(
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

    def _share(self, path: bytes, number: int) -> outcomes.Share:
        own = self._folders[number].own[path]
        stat = self._figure(path, own.before, own.after)
        return outcomes.Share(number, stat.what, stat.insertions, stat.deletions)

    def _figure(self, path: bytes, before: File | None, after: File | None) -> outcomes.FileStat:
        key = (path, _id(before), _id(after))
        if key not in self._figures:
            what: Literal["A", "M", "D"] = "A" if before is None else "D" if after is None else "M"
            if _same(before, after):
                self._figures[key] = outcomes.FileStat(quoted(path), 0, 0)
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
