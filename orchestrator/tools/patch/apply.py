"""Writes a plan to the disk: every file of it, or none.

    stage    write each new content to a temporary file beside its target, and keep a
             second name (a hard link, else a copy) of each file that will go
    verify   every file still has the content that the plan was made from
    switch   rename, link and unlink, in the plan's order
    undo     if a switch fails: put back what was switched, from the second names

Only "switch" is visible to others, and it needs no space and copies nothing. A crash inside
of it is what `record.judge` is for; the temporary files carry the record's token in their
names, and `remove_leftovers` takes them away.

Everything goes through open folders (`folders`): a path that was checked cannot be made to
lead elsewhere afterwards. It must not know who permitted the patch.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from dataclasses import dataclass
from pathlib import Path

from orchestrator.tools.patch.files import FileImage, read_image
from orchestrator.tools.patch.folders import OpenFolders
from orchestrator.tools.patch.plan import PatchPlan, PlannedFile
from orchestrator.tools.patch.record import PatchRecord, image_hash, record_of
from orchestrator.tools.patch.writable import WritableRoots, outside

_PREFIX = ".dendro-patch-"
# Set-user-id and set-group-id do not survive: the kernel takes them from a file written to.
_KEPT_MODE_BITS = 0o1777
_NO_HARD_LINKS = frozenset({errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EXDEV})


class PatchApplyError(Exception):
    """The plan was not carried out.

    `changed` lists the paths that could not be put back: empty means that every file is as
    it was.
    """

    def __init__(self, message: str, changed: tuple[Path, ...] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.changed = changed


@dataclass(frozen=True, slots=True)
class AppliedPatch:
    """A plan that was carried out whole: the paths in its order, and the text for the model."""

    paths: tuple[Path, ...]
    summary: str


def apply_plan(plan: PatchPlan, roots: WritableRoots | None) -> AppliedPatch:
    """Writes all files of the plan; raises `PatchApplyError` if it could not.

    `roots` is asked again here: None permits every path.
    """
    with OpenFolders() as folders:
        work = _Work(folders, record_of(plan).token)
        try:
            _require_permitted(plan, roots)
            work.stage(plan)
            work.verify(plan)
            work.switch()
        except OSError as error:
            changed = work.undo()
            raise PatchApplyError(_failure(error, changed), changed) from error
        except BaseException:
            work.undo()
            raise
        work.discard_temporaries()
    return AppliedPatch(tuple(file.path for file in plan.files), plan.summary)


def _require_permitted(plan: PatchPlan, roots: WritableRoots | None) -> None:
    if refused := outside(plan, roots):
        names = ", ".join(str(path) for path in refused)
        raise PatchApplyError(f"Failed to write outside of the writable roots: {names}")


def remove_leftovers(record: PatchRecord) -> tuple[Path, ...]:
    """Removes the temporary files of a worker that died while it applied this plan.

    Never to be called while that plan may still be being applied.
    """
    removed: list[Path] = []
    prefix = f"{_PREFIX}{record.token}-"
    with OpenFolders() as folders:
        for folder in {Path(file.path).parent for file in record.files}:
            with contextlib.suppress(OSError):
                descriptor = folders.open(folder)
                removed += [folder / name for name in _remove_matching(descriptor, prefix)]
    return tuple(sorted(removed))


def _remove_matching(folder: int, prefix: str) -> list[str]:
    # An O_PATH descriptor cannot be listed; "." opened from it can, and is the same folder.
    listable = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    try:
        with os.scandir(listable) as entries:
            names = [entry.name for entry in entries if entry.name.startswith(prefix)]
    finally:
        os.close(listable)
    for name in names:
        os.unlink(name, dir_fd=folder)
    return names


def _failure(error: OSError, changed: tuple[Path, ...]) -> str:
    what = error.strerror or str(error)
    where = f" ({error.filename})" if error.filename else ""
    if not changed:
        return f"Failed to apply the patch: {what}{where}. Nothing was written."
    names = ", ".join(str(path) for path in changed)
    return f"Failed to apply the patch: {what}{where}. These files could not be put back: {names}"


@dataclass(slots=True)
class _Step:
    """One file's switch: its folder, its name there, and the names staged beside it."""

    file: PlannedFile
    folder: int
    staged: str | None = None
    backup: str | None = None
    switched: bool = False

    @property
    def name(self) -> str:
        return self.file.target.name


class _Work:
    """One application of a plan, from the first temporary file to the last."""

    def __init__(self, folders: OpenFolders, token: str) -> None:
        self._folders = folders
        self._token = token
        self._steps: list[_Step] = []
        self._temporaries: list[tuple[int, str]] = []

    def stage(self, plan: PatchPlan) -> None:
        for file in plan.files:
            folder = self._folders.open(file.target.parent, create=file.after is not None)
            step = _Step(file, folder)
            self._steps.append(step)
            if file.before is not None:
                step.backup = self._keep(step, file.before)
            if file.after is not None:
                step.staged = self._write(step, file.after)

    def verify(self, plan: PatchPlan) -> None:
        for step in self._steps:
            if image_hash(_image_now(step)) != image_hash(step.file.before):
                raise OSError(
                    errno.ESTALE, "the file changed since the patch was checked", str(step.file.path)
                )

    def switch(self) -> None:
        for step in self._steps:
            _switch(step)
            step.switched = True

    def undo(self) -> tuple[Path, ...]:
        """Puts back what was switched; answers with the paths where that failed."""
        failed = [step for step in reversed(self._steps) if step.switched and not _undone(step)]
        # The second name of a file that could not be put back is all that is left of it.
        kept = {(step.folder, step.backup) for step in failed}
        self._temporaries = [entry for entry in self._temporaries if entry not in kept]
        self.discard_temporaries()
        self._folders.remove_created()
        return tuple(step.file.path for step in reversed(failed))

    def discard_temporaries(self) -> None:
        for folder, name in self._temporaries:
            with contextlib.suppress(OSError):
                os.unlink(name, dir_fd=folder)
        self._temporaries.clear()

    def _keep(self, step: _Step, before: FileImage) -> str:
        """A second name for the file that will go; raises if it is gone already."""
        backup = self._temporary_name(step.folder)
        try:
            os.link(step.name, backup, src_dir_fd=step.folder, dst_dir_fd=step.folder, follow_symlinks=False)
        except OSError as error:
            if error.errno not in _NO_HARD_LINKS:
                raise OSError(error.errno, error.strerror, str(step.file.path)) from error
            _copy(step, backup, before)
        return backup

    def _write(self, step: _Step, content: bytes) -> str:
        name = self._temporary_name(step.folder)
        _create(step, name, content)
        return name

    def _temporary_name(self, folder: int) -> str:
        name = f"{_PREFIX}{self._token}-{secrets.token_hex(6)}"
        # Listed before it exists: an interrupt in between must not leave it behind.
        self._temporaries.append((folder, name))
        return name


def _image_now(step: _Step) -> FileImage | None:
    try:
        return read_image(step.name, step.folder)
    except FileNotFoundError:
        return None


def _create(step: _Step, name: str, content: bytes) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(name, flags, 0o666, dir_fd=step.folder), "wb") as stream:
        stream.write(content)
        if step.file.before is not None:
            _keep_owner(step, stream.fileno())
        if step.file.mode is not None:
            os.fchmod(stream.fileno(), step.file.mode & _KEPT_MODE_BITS)


def _keep_owner(step: _Step, file: int) -> None:
    old, new = os.stat(step.name, dir_fd=step.folder, follow_symlinks=False), os.fstat(file)
    if (old.st_uid, old.st_gid) != (new.st_uid, new.st_gid):
        # Only root may give files away, and not to ids that its user namespace lacks.
        with contextlib.suppress(OSError):
            os.fchown(file, old.st_uid, old.st_gid)


def _copy(step: _Step, backup: str, before: FileImage) -> None:
    if stat.S_ISLNK(before.mode):
        os.symlink(os.fsdecode(before.content), backup, dir_fd=step.folder)
        return
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(backup, flags, 0o600, dir_fd=step.folder), "wb") as stream:
        stream.write(before.content)
        _keep_owner(step, stream.fileno())
        os.fchmod(stream.fileno(), stat.S_IMODE(before.mode))


def _switch(step: _Step) -> None:
    if step.staged is None:
        os.unlink(step.name, dir_fd=step.folder)
    elif step.file.before is None:
        _appear(step, step.staged)
    else:
        os.rename(step.staged, step.name, src_dir_fd=step.folder, dst_dir_fd=step.folder)


def _appear(step: _Step, staged: str) -> None:
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
