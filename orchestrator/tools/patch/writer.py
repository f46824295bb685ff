"""The part of a patch that touches the disk: carried out in a process that its claim can end.

A job comes in and an outcome goes out, both of plain values that marshal takes; paths are
bytes, as the kernel has them.

    ("apply", token, files)     each file (target, shown, before, after, mode); before is
                                (content, mode) or None, after is None for a file that goes
    ("tidy", token, folders)    removes what an `apply` of the same token left when it was killed

    ("applied",)                every file is as planned
    ("failed", what, where, changed)
                                an error's words and path; the indices of files that could
                                not be put back: with none, everything is as it was
    ("tidied", count)

An `apply` has four phases:

    stage    write each new content to a temporary file beside its target, and keep a
             second name (a hard link, else a copy) of each file that will go
    verify   every file still has the content that the plan was made from
    switch   rename, link and unlink, in the plan's order
    undo     if a switch fails: put back what was switched, from the second names

Only "switch" is visible to others, and it needs no space and copies nothing. A death inside
of it is what `record.judge` is for.

Everything goes through open folders (`OpenFolders`): a path that was checked cannot be made to
lead elsewhere afterwards. It must not know who permitted the patch. Loaded into the supervisor,
which forks for every patch: only light imports, plain tuples for records.
"""

# pathlib would add a third to what each fork copies.
# ruff: noqa: PTH119, PTH120, PTH208

from __future__ import annotations

import errno
import os
import stat
from contextlib import contextmanager, suppress

TYPE_CHECKING = False  # typing's import costs the supervisor more than its own code
if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType
    from typing import Any, TypeAlias

    Image: TypeAlias = tuple[bytes, int]
    File: TypeAlias = tuple[bytes, bytes, Image | None, bytes | None, int | None]
    Job: TypeAlias = tuple[str, str, tuple[Any, ...]]
    Outcome: TypeAlias = tuple[Any, ...]

PREFIX = ".dendro-patch-"
"""Of every temporary file's name; the token and six random bytes follow."""
# Set-user-id and set-group-id do not survive: the kernel takes them from a file written to.
_KEPT_MODE_BITS = 0o1777
_NO_HARD_LINKS = frozenset({errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EXDEV})
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def carry_out(job: Job) -> Outcome:
    """Does what the job says, in this process."""
    kind, token, rows = job
    return _apply(token, rows) if kind == "apply" else _tidy(token, rows)


def _apply(token: str, files: tuple[File, ...]) -> Outcome:
    with OpenFolders() as folders:
        work = _Work(folders, token)
        try:
            work.stage(files)
            work.verify()
            work.switch()
        except OSError as error:
            changed = work.undo()
            return "failed", error.strerror or str(error), _named(error), changed
        except BaseException:
            work.undo()
            raise
        work.discard_temporaries()
    return ("applied",)


def _named(error: OSError) -> bytes | None:
    return os.fsencode(error.filename) if isinstance(error.filename, str | bytes) else None


def _tidy(token: str, folders: tuple[bytes, ...]) -> Outcome:
    removed = 0
    prefix = os.fsencode(f"{PREFIX}{token}-")
    with OpenFolders() as opened:
        for folder in folders:
            with suppress(OSError):
                removed += _remove_matching(opened.open(folder), prefix)
    return "tidied", removed


def _remove_matching(folder: int, prefix: bytes) -> int:
    # An O_PATH descriptor cannot be listed; "." opened from it can, and is the same folder.
    listable = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    try:
        names = [name for name in map(os.fsencode, os.listdir(listable)) if name.startswith(prefix)]
    finally:
        os.close(listable)
    for name in names:
        os.unlink(name, dir_fd=folder)
    return len(names)


class _Step:
    """The switch of a file: its folder, its name there, and the names staged beside it."""

    __slots__ = ("after", "backup", "before", "folder", "mode", "name", "shown", "staged", "switched")

    def __init__(self, file: File, folder: int) -> None:
        target, self.shown, self.before, self.after, self.mode = file
        self.name = os.path.basename(target)
        self.folder = folder
        self.staged: bytes | None = None
        self.backup: bytes | None = None
        self.switched = False


class _Work:
    """An application of a plan, from the first temporary file to the last."""

    __slots__ = ("_folders", "_steps", "_temporaries", "_token")

    def __init__(self, folders: OpenFolders, token: str) -> None:
        self._folders = folders
        self._token = token
        self._steps: list[_Step] = []
        self._temporaries: list[tuple[int, bytes]] = []

    def stage(self, files: tuple[File, ...]) -> None:
        for file in files:
            folder = self._folders.open(os.path.dirname(file[0]), create=file[3] is not None)
            step = _Step(file, folder)
            self._steps.append(step)
            with _named_as(step):
                if step.before is not None:
                    step.backup = self._keep(step, step.before)
                if step.after is not None:
                    step.staged = self._write(step, step.after)

    def verify(self) -> None:
        for step in self._steps:
            with _named_as(step):
                now = _image_now(step)
            if not _same(now, step.before):
                raise OSError(errno.ESTALE, "the file changed since the patch was checked", step.shown)

    def switch(self) -> None:
        for step in self._steps:
            with _named_as(step):
                _switch(step)
            step.switched = True

    def undo(self) -> tuple[int, ...]:
        """Puts back what was switched; answers with the indices of the files where that failed."""
        backwards = [(index, step) for index, step in reversed([*enumerate(self._steps)]) if step.switched]
        failed = {index: step for index, step in backwards if not _undone(step)}
        # The second name of a file that could not be put back is all that is left of it.
        kept = {(step.folder, step.backup) for step in failed.values()}
        self._temporaries = [entry for entry in self._temporaries if entry not in kept]
        self.discard_temporaries()
        self._folders.remove_created()
        return tuple(sorted(failed))

    def discard_temporaries(self) -> None:
        for folder, name in self._temporaries:
            with suppress(OSError):
                os.unlink(name, dir_fd=folder)
        self._temporaries.clear()

    def _keep(self, step: _Step, before: Image) -> bytes:
        """A second name for the file that will go; raises if it is gone already."""
        backup = self._temporary_name(step.folder)
        try:
            os.link(step.name, backup, src_dir_fd=step.folder, dst_dir_fd=step.folder, follow_symlinks=False)
        except OSError as error:
            if error.errno not in _NO_HARD_LINKS:
                raise
            _copy(step, backup, before)
        return backup

    def _write(self, step: _Step, content: bytes) -> bytes:
        name = self._temporary_name(step.folder)
        _create(step, name, content)
        return name

    def _temporary_name(self, folder: int) -> bytes:
        name = os.fsencode(f"{PREFIX}{self._token}-{os.urandom(6).hex()}")
        # Listed before it exists: an interrupt in between must not leave it behind.
        self._temporaries.append((folder, name))
        return name


@contextmanager
def _named_as(step: _Step) -> Iterator[None]:
    """An error inside is one of the file that people know, and not of a temporary one beside it."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            raise
        raise OSError(error.errno, error.strerror, step.shown) from error


def _image_now(step: _Step) -> Image | None:
    try:
        return read_entry(step.name, step.folder)
    except FileNotFoundError:
        return None


def _same(now: Image | None, before: Image | None) -> bool:
    """Whether the content is the same; a symlink never equals a file that holds its target's name."""
    if now is None or before is None:
        return now is before
    return now[0] == before[0] and stat.S_ISLNK(now[1]) == stat.S_ISLNK(before[1])


def _create(step: _Step, name: bytes, content: bytes) -> None:
    with os.fdopen(os.open(name, _CREATE, 0o666, dir_fd=step.folder), "wb") as stream:
        stream.write(content)
        if step.before is not None:
            _keep_owner(step, stream.fileno())
        if step.mode is not None:
            os.fchmod(stream.fileno(), step.mode & _KEPT_MODE_BITS)


def _keep_owner(step: _Step, file: int) -> None:
    old, new = os.stat(step.name, dir_fd=step.folder, follow_symlinks=False), os.fstat(file)
    if (old.st_uid, old.st_gid) != (new.st_uid, new.st_gid):
        # Only root may give files away, and not to ids that its user namespace lacks.
        with suppress(OSError):
            os.fchown(file, old.st_uid, old.st_gid)


def _copy(step: _Step, backup: bytes, before: Image) -> None:
    content, mode = before
    if stat.S_ISLNK(mode):
        os.symlink(content, backup, dir_fd=step.folder)
        return
    with os.fdopen(os.open(backup, _CREATE, 0o600, dir_fd=step.folder), "wb") as stream:
        stream.write(content)
        _keep_owner(step, stream.fileno())
        os.fchmod(stream.fileno(), stat.S_IMODE(mode))


def _switch(step: _Step) -> None:
    if step.staged is None:
        os.unlink(step.name, dir_fd=step.folder)
    elif step.before is None:
        _appear(step, step.staged)
    else:
        os.rename(step.staged, step.name, src_dir_fd=step.folder, dst_dir_fd=step.folder)


def _appear(step: _Step, staged: bytes) -> None:
    """Gives a new file its name; unlike a rename, never over one that came up meanwhile."""
    try:
        os.link(staged, step.name, src_dir_fd=step.folder, dst_dir_fd=step.folder, follow_symlinks=False)
    except OSError as error:
        if error.errno not in _NO_HARD_LINKS:
            raise
        os.rename(staged, step.name, src_dir_fd=step.folder, dst_dir_fd=step.folder)


def _undone(step: _Step) -> bool:
    try:
        if step.backup is None:
            os.unlink(step.name, dir_fd=step.folder)
        else:
            os.rename(step.backup, step.name, src_dir_fd=step.folder, dst_dir_fd=step.folder)
    except OSError:
        return False
    return True


# ── folders ───────────────────────────────────────────────────────────────────────────────────────
# Folders opened so that no symlink can lead away from the path that was checked.
#
# A plan's targets hold no symlinks: they were resolved when it was made. Here every component is opened
# relative to the one before it and refused if it is a symlink by now, so a link swapped in between the
# check and the write ends the patch instead of redirecting it. What is then done, is done relative to the
# open folder, wherever its name may move.
#
# It must not know of patches: paths in, descriptors out. Paths are bytes, as the kernel has them. Loaded
# into the supervisor, which forks for every patch: only light imports.


_FLAGS = os.O_PATH | os.O_NOFOLLOW | os.O_DIRECTORY | os.O_CLOEXEC


class OpenFolders:
    """Descriptors of folders, one per path; closes them all at the end.

    `created` lists the folders that had to be made, outermost first.
    """

    __slots__ = ("_created", "_open")

    def __init__(self) -> None:
        self._open: dict[bytes, int] = {}
        self._created: list[bytes] = []

    def __enter__(self) -> OpenFolders:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for descriptor in self._open.values():
            os.close(descriptor)
        self._open.clear()

    def open(self, folder: bytes, *, create: bool = False) -> int:
        """The folder's descriptor; `folder` is absolute and free of symlinks and `..`.

        Raises OSError: ELOOP or ENOTDIR if a component is a symlink or a file by now.
        """
        if folder in self._open:
            return self._open[folder]
        above = os.path.dirname(folder)
        if folder == above:
            self._open[folder] = os.open(folder, _FLAGS)
            return self._open[folder]
        parent = self.open(above, create=create)
        try:
            self._open[folder] = _open_entry(folder, parent)
        except FileNotFoundError:
            if not create:
                raise
            os.mkdir(os.path.basename(folder), dir_fd=parent)
            self._created.append(folder)
            self._open[folder] = _open_entry(folder, parent)
        return self._open[folder]

    def remove_created(self) -> None:
        """Takes back the folders that were made, as far as they are empty."""
        for folder in reversed(self._created):
            with suppress(OSError):
                os.rmdir(os.path.basename(folder), dir_fd=self._open[os.path.dirname(folder)])
        self._created.clear()


def _open_entry(folder: bytes, parent: int) -> int:
    name = os.path.basename(folder)
    try:
        return os.open(name, _FLAGS, dir_fd=parent)
    except NotADirectoryError as error:
        # O_DIRECTORY hides the difference; the reader of the error should see it.
        info = os.stat(name, dir_fd=parent, follow_symlinks=False)
        if stat.S_ISLNK(info.st_mode):
            message = "a symbolic link was put in its place"
            raise OSError(errno.ELOOP, message, folder) from error
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), folder) from error


# ── entries ───────────────────────────────────────────────────────────────────────────────────────
# Reading of an entry of an open folder: its bytes and its mode.
#
# Loaded into the supervisor, which forks for every patch: only light imports.


MOST_BYTES = 64 << 20
"""A file without end (a terabyte of zeros takes no room on a disk) must not fill the worker's memory."""


def read_entry(name: str | bytes, folder: int) -> tuple[bytes, int]:
    """Content and mode of a file; a symlink's content is its target.

    Raises OSError for what is no file (a folder, a device), is absent, or cannot be read.
    """
    info = os.stat(name, dir_fd=folder, follow_symlinks=False)
    _require_bounded(info, name)
    if stat.S_ISLNK(info.st_mode):
        return os.readlink(os.fsencode(name), dir_fd=folder), info.st_mode
    _require_regular(info, name)
    # O_NONBLOCK and the second look: a pipe put in the file's place meanwhile must not
    # hold the worker for ever.
    file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    with os.fdopen(file, "rb") as stream:
        info = os.fstat(stream.fileno())
        _require_regular(info, name)
        _require_bounded(info, name)
        # One byte more than the bound: what grows meanwhile is not read to its end, wherever that is.
        content = stream.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise _too_large(name)
        return content, info.st_mode


def _require_bounded(info: os.stat_result, name: str | bytes) -> None:
    if stat.S_ISREG(info.st_mode) and info.st_size > MOST_BYTES:
        raise _too_large(name)


def _too_large(name: str | bytes) -> OSError:
    return OSError(errno.EFBIG, f"File too large for a patch (over {MOST_BYTES >> 20} MiB)", name)


def _require_regular(info: os.stat_result, name: str | bytes) -> None:
    if stat.S_ISDIR(info.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), name)
    if not stat.S_ISREG(info.st_mode):
        raise OSError(errno.EINVAL, "Not a regular file", name)
