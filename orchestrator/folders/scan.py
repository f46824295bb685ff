"""A walk of a folder that hostile commands wrote, against what was known of it at the snapshot before.

Each folder is opened by its parent's descriptor and never through a link. A folder whose times did not
change is not listed again; a file whose change time, size and inode did not change is not read again.
Times that lie within the clock's grain of the walk prove nothing, and are not kept.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from dataclasses import dataclass
from typing import Protocol

from orchestrator.folders.git_objects import object_id
from orchestrator.folders.ignore import MOST_BYTES, Patterns, Rules, TooManyRules
from orchestrator.folders.names import (
    LINK,
    MOST_DEPTH,
    MOST_PATH,
    mode_of,
    quoted,
    refused_link,
    refused_name,
)
from orchestrator.folders.outcomes import Bounds, FolderError
from orchestrator.folders.stat_cache import UNSURE, File, Known, Left

_GRAIN_NS = 20_000_000
"""More than a tick of any kernel: what changed so shortly before the walk may change again unseen."""
_READS = 3
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_RULES_FILE = ".gitignore"
_NO_RULES = (errno.ENOENT, errno.ELOOP, errno.ENXIO, errno.ENODEV)
"""No such file, a link, a socket, a device: git takes no rules from these either."""
_SPECIAL = {
    stat.S_IFIFO: "a fifo",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class Sink(Protocol):
    """The receiver of what is new."""

    def blob(self, sha: bytes, content: bytes, before: bytes | None) -> None:
        """Takes a file's content, and the id of what the file held before."""

    def tree(self, known: Known, before: Known | None) -> bytes:
        """Takes a folder whose entries changed, and gives the id of its tree."""


@dataclass(slots=True)
class _Here:
    """A folder that is being walked."""

    fd: int
    path: bytes
    """From the root, with a slash at its end; empty for the root."""
    depth: int
    known: Known | None
    new: Known
    rules: Rules
    ignored: bool
    """Whether the rules ignore the folder: then it is here for what is tracked or included in it."""
    included: bool
    """Whether a glob of the settings includes the folder, and all that is in it."""


class Scan:
    """A walk. `root` gives the folder as it is now: the very record that was known, if nothing changed."""

    def __init__(self, bounds: Bounds, sink: Sink, now_ns: int) -> None:
        self._bounds = bounds
        self._sink = sink
        self._sure_before = now_ns - _GRAIN_NS
        self._include = Patterns(os.fsencode(line) for line in bounds.include)
        self._exclude = Patterns(os.fsencode(line) for line in bounds.exclude)
        settings = (bounds.include, bounds.exclude, bounds.ignored, bounds.max_file)
        self._first = Rules.first(bounds.ignored, repr(settings).encode("utf-8", "surrogateescape"))
        self._ends = time.monotonic() + bounds.seconds
        self._added = self._listed = 0
        self._device = -1

    def root(self, folder: os.PathLike[str], known: Known | None) -> Known:
        """Walks the folder at a path."""
        try:
            fd = os.open(folder, _FOLDER_FLAGS)
        except OSError as error:
            raise FolderError("failed", f"the folder {folder} cannot be read: {error.strerror}") from error
        try:
            self._device = os.fstat(fd).st_dev
            found = self._folder(fd, b"", 0, known, self._first, ignored=False, included=False)
        finally:
            os.close(fd)
        self._check_size(found)
        return found

    def _check_size(self, found: Known) -> None:
        if found.count > self._bounds.max_files:
            raise self._too_many()
        if found.bytes > self._bounds.max_bytes:
            raise FolderError(
                "too_large",
                f"the folder holds {found.bytes:,} bytes, and a snapshot may hold {self._bounds.max_bytes:,}"
                " (workspace.max_bytes): it is not saved. Ignore or remove large files.",
            )

    def _too_many(self) -> FolderError:
        return FolderError(
            "too_many_files",
            f"the folder holds more than {self._bounds.max_files:,} files (workspace.max_files):"
            " it is not saved. Ignore or remove what need not move with the session.",
        )

    def _check_time(self) -> None:
        if time.monotonic() > self._ends:
            raise FolderError(
                "time",
                f"the folder could not be read in {self._bounds.seconds:g} s: it is not saved."
                " Ignore or remove what need not move with the session.",
            )

    def _folder(
        self,
        fd: int,
        path: bytes,
        depth: int,
        known: Known | None,
        above: Rules,
        *,
        ignored: bool,
        included: bool,
    ) -> Known:
        self._check_time()
        now = os.fstat(fd)
        seen = (now.st_mtime_ns, now.st_ctime_ns, now.st_ino)
        listed = known is not None and known.seen == seen
        rules, source = self._rules(fd, path, depth, known if listed else None, above)
        new = Known()
        new.rules = (rules.key, source)
        new.ignored, new.included = ignored, included
        new.seen = seen if now.st_ctime_ns < self._sure_before else None
        here = _Here(fd, path, depth, known, new, rules, ignored, included)
        if known is not None and listed and known.rules[0] == rules.key:
            changed = self._from_memory(here, known)
        else:
            changed = self._from_listing(here)
        if not changed and known is not None and new.rules == known.rules:
            return known
        new.sum_up()
        new.tree = self._tree(here)
        return new

    def _tree(self, here: _Here) -> bytes:
        known, new = here.known, here.new
        if known is not None and known.tree and _same_entries(known, new):
            return known.tree
        return self._sink.tree(new, known)

    def _rules(
        self, fd: int, path: bytes, depth: int, known: Known | None, above: Rules
    ) -> tuple[Rules, tuple[int, int, int] | None]:
        """The rules of a folder, and the times of its file of rules."""
        if known is not None and known.rules[1] is None:
            return above, None  # the listing has not changed, and there was no such file
        try:
            file = os.open(_RULES_FILE, _FILE_FLAGS, dir_fd=fd)
        except OSError as error:
            if error.errno in _NO_RULES:
                return above, None
            raise _unread(path, error.strerror or str(error)) from error
        try:
            now = os.fstat(file)
            if not stat.S_ISREG(now.st_mode):
                return above, None
            rules = above.with_file(_read(file, now.st_size, MOST_BYTES), depth)
        except TooManyRules as error:
            raise _unread(path, str(error)) from error
        finally:
            os.close(file)
        return rules, (now.st_mtime_ns, now.st_ctime_ns, now.st_ino)

    def _from_memory(self, here: _Here, known: Known) -> bool:
        """Looks at what the folder held: no name has come or gone since."""
        new, fd, look = here.new, here.fd, os.stat
        new.files, new.skipped, new.left, new.links = known.files, known.skipped, known.left, known.links
        afresh: dict[str, os.stat_result] = {}
        try:
            for name, file in known.files.items():
                now = look(name, dir_fd=fd, follow_symlinks=False)
                if now.st_ctime_ns != file[0] or now.st_size != file[1] or now.st_ino != file[2]:
                    afresh[name] = now
            for name in known.left:
                afresh[name] = look(name, dir_fd=fd, follow_symlinks=False)
        except FileNotFoundError:
            return self._from_listing(here)
        if afresh:
            new.files, new.left, new.links = dict(known.files), {}, dict(known.links)
            for name, now in afresh.items():
                self._look(here, name, now)
        same = (new.files, new.left, new.links) == (known.files, known.left, known.links)
        for name, folder in known.folders.items():
            same &= self._enter(here, name, folder, folder.ignored, folder.included) is folder
        return not same

    def _from_listing(self, here: _Here) -> bool:
        """Looks at every name that the folder has now."""
        new, known = here.new, here.known or Known()
        new.files, new.left, new.links, new.folders, skipped = {}, {}, {}, {}, []
        same_rules = here.known is not None and known.rules[0] == here.rules.key
        only_known = here.ignored and not (here.path and self._include.reaches_into(here.path[:-1]))
        folders: list[str] = []
        with os.scandir(here.fd) as names:
            for entry in names:
                name = entry.name
                file = known.files.get(name)
                if file is None and name not in known.folders and name not in known.links:
                    if only_known:
                        continue
                    skip = _skipped(name, entry.is_dir(follow_symlinks=False))
                    if same_rules and skip in known.skipped:
                        skipped.append(skip)
                        continue
                    self._list_one()
                try:
                    now = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                if file is not None and (now.st_ctime_ns, now.st_size, now.st_ino) == file[:3]:
                    new.files[name] = file
                elif stat.S_ISDIR(now.st_mode):
                    folders.append(name)  # not while this one is listed: descriptors are few
                elif self._look(here, name, now) is False:
                    skipped.append(_skipped(name, False))
        skipped += [_skipped(name, True) for name in folders if self._look_into(here, name) is False]
        new.skipped = frozenset(skipped)
        return True

    def _list_one(self) -> None:
        self._listed += 1
        if self._listed > 4 * self._bounds.max_files + 100_000:
            raise self._too_many()

    def _look(self, here: _Here, name: str, now: os.stat_result) -> bool | None:
        """Looks at a name afresh; False if it is ignored."""
        if stat.S_ISDIR(now.st_mode):
            return self._look_into(here, name)
        if name == ".git":
            self._leave_git(here)
            return None
        known = here.known
        if known is None or name not in known.files:
            judged = self._judge_file(here, name)
            if not judged:
                return judged
        self._name(here, name, now)
        return True

    def _leave_git(self, here: _Here) -> None:
        if here.depth and not here.ignored:
            why = "a repository inside of the folder: its files are saved, its history is not"
            here.new.left[".git"] = Left(why, 0)

    def _look_into(self, here: _Here, name: str) -> bool | None:
        """Looks at a folder afresh; False if it is ignored."""
        if name == ".git":
            self._leave_git(here)
            return None
        judged = self._judge_folder(here, name)
        if not isinstance(judged, tuple):
            return judged
        known = here.known.folders.get(name) if here.known is not None else None
        self._enter(here, name, known, *judged)
        return True

    def _judge_file(self, here: _Here, name: str) -> bool | None:
        """Whether a new file belongs into the snapshot; None where it is left out by name."""
        raw = os.fsencode(name)
        path = here.path + raw
        if self._left_by_name(here, name, raw, path, is_folder=False):
            return None
        if here.included or self._include.judge(path, is_folder=False):
            return True
        return not here.ignored and not here.rules.ignores(path, is_folder=False)

    def _judge_folder(self, here: _Here, name: str) -> tuple[bool, bool] | bool | None:
        """Whether a folder is ignored, and whether included; False or None where it is not looked into."""
        known = here.known
        if known is not None and name in known.links:
            here.new.links[name] = known.links[name]
            here.new.left[name] = Left("a repository of its own (submodule): only its commit is named", 0)
            return None
        before = known.folders.get(name) if known is not None else None
        tracked = before is not None and before.recorded
        raw = os.fsencode(name)
        path = here.path + raw
        if not tracked and self._left_by_name(here, name, raw, path, is_folder=True):
            return None
        included = here.included or bool(self._include.judge(path, is_folder=True))
        ignored = not included and (here.ignored or here.rules.ignores(path, is_folder=True))
        if ignored and not tracked and not self._include.reaches_into(path):
            return False
        return ignored, included

    def _left_by_name(self, here: _Here, name: str, raw: bytes, path: bytes, *, is_folder: bool) -> bool:
        why = refused_name(raw)
        if why is None and len(path) > MOST_PATH:
            why = "its path is too long"
        if why is None and self._exclude.judge(path, is_folder):
            # What the rules ignore anyhow is no secret that is worth a line.
            included = here.included or self._include.judge(path, is_folder)
            if not included and (here.ignored or here.rules.ignores(path, is_folder)):
                return False
            why = "excluded (workspace.exclude)"
        if why is None:
            return False
        here.new.left[name] = Left(why, 0)
        return True

    def _enter(
        self, here: _Here, name: str, known: Known | None, ignored: bool, included: bool
    ) -> Known | None:
        """Walks a folder below; where it cannot be entered, it is left out and named."""
        try:
            if here.depth >= MOST_DEPTH:
                raise OSError(errno.ELOOP, "its path is too deep")
            fd = os.open(name, _FOLDER_FLAGS, dir_fd=here.fd)
        except FileNotFoundError:
            return None
        except OSError as error:
            here.new.left = {**here.new.left, name: Left(f"it cannot be read ({error.strerror})", 0)}
            return None
        try:
            if os.fstat(fd).st_dev != self._device:
                here.new.left = {**here.new.left, name: Left("another file system", 0)}
                return None
            path = here.path + os.fsencode(name) + b"/"
            found = self._folder(
                fd, path, here.depth + 1, known, here.rules, ignored=ignored, included=included
            )
        finally:
            os.close(fd)
        if known is None and found.count == 1 and not (found.files or found.folders):
            self._add()  # an empty folder counts as a file does
        here.new.folders[name] = found
        return found

    def _add(self) -> None:
        self._added += 1
        self._check_time()
        if self._added > self._bounds.max_files:
            raise self._too_many()

    def _name(self, here: _Here, name: str, now: os.stat_result) -> None:
        """Reads a file or a link that belongs into the snapshot."""
        new = here.new
        before = here.known.files.get(name) if here.known is not None else None
        try:
            found = self._content(here, name, now, before.sha if before else None)
        except FileNotFoundError:
            found = None
        except OSError as error:
            found = Left(f"it cannot be read ({error.strerror})", 0)
        if isinstance(found, File):
            new.files[name] = found
            if before is None:
                self._add()
            return
        new.files.pop(name, None)
        if found is not None:
            new.left[name] = found

    def _content(
        self, here: _Here, name: str, now: os.stat_result, before: bytes | None
    ) -> File | Left | None:
        kind = stat.S_IFMT(now.st_mode)
        if kind == stat.S_IFREG:
            if now.st_size > self._bounds.max_file:
                return Left("larger than workspace.max_file", now.st_size)
            return self._file(here, name, before)
        if kind == stat.S_IFLNK:
            return self._link(here, name, now, before)
        return Left(_SPECIAL.get(kind, "not a file"), 0)

    def _link(self, here: _Here, name: str, now: os.stat_result, before: bytes | None) -> File | Left:
        target = os.fsencode(os.readlink(name, dir_fd=here.fd))
        if (why := refused_link(target, here.depth)) is not None:
            return Left(why, 0)
        sha = object_id("blob", target)
        self._sink.blob(sha, target, before)
        return File(self._sure(now.st_ctime_ns), len(target), now.st_ino, LINK, sha)

    def _file(self, here: _Here, name: str, before: bytes | None) -> File | Left:
        """Reads a file; again, up to three times in all, while it changes under the reader."""
        self._check_time()
        for _ in range(_READS):
            fd = os.open(name, _FILE_FLAGS, dir_fd=here.fd)
            try:
                first = os.fstat(fd)
                if not stat.S_ISREG(first.st_mode):
                    return Left("not a file any more", 0)
                content = _read(fd, first.st_size, self._bounds.max_file)
                last = os.fstat(fd)
            finally:
                os.close(fd)
            if len(content) > self._bounds.max_file:
                return Left("larger than workspace.max_file", last.st_size)
            steady = first.st_ctime_ns == last.st_ctime_ns and len(content) == last.st_size
            if steady:
                break
        sha = object_id("blob", content)
        if sha != before:
            self._sink.blob(sha, content, before)
        if not steady:
            here.new.left[name] = Left("it changed while it was read: a state in between is saved", 0)
        ctime = self._sure(last.st_ctime_ns) if steady else UNSURE
        return File(ctime, len(content), last.st_ino, mode_of(last.st_mode), sha)

    def _sure(self, ctime_ns: int) -> int:
        return ctime_ns if ctime_ns < self._sure_before else UNSURE


def _skipped(name: str, is_folder: bool) -> str:
    """A name that is ignored: there are rules for folders alone, so a file of that name may not be."""
    return f"{name}/" if is_folder else name


def _unread(path: bytes, why: str) -> FolderError:
    """The refusal of a folder with rules that are not read whole: what they hide must not be copied."""
    named = quoted(path + os.fsencode(_RULES_FILE))
    return FolderError(
        "refused", f"{named} names what git ignores, and is not read ({why}): nothing is saved. Correct it."
    )


def _read(fd: int, size: int, most: int) -> bytes:
    """The bytes of a file that may grow meanwhile: more than `most` of them are never all read."""
    content = os.read(fd, size + 1)
    if len(content) == size:
        return content
    parts, length = [content], len(content)
    while content and length <= most:
        content = os.read(fd, 1 << 20)
        parts.append(content)
        length += len(content)
    return b"".join(parts)


def _same_entries(known: Known, new: Known) -> bool:
    if known.links != new.links or known.files.keys() != new.files.keys():
        return False
    for name, file in new.files.items():
        before = known.files[name]
        if before is not file and (before.mode, before.sha) != (file.mode, file.sha):
            return False
    return _trees(known) == _trees(new)


def _trees(folder: Known) -> dict[str, bytes]:
    return {name: below.tree for name, below in folder.folders.items() if below.recorded}
