"""File-system objects that a shim holds for its command: cgroups, and guards on missing `.git` paths.

Both are removed when the command ends, also when several commands and workers share a workspace.
Loaded into the supervisor: only light imports.
"""

# pathlib would add a third to what each fork copies.
# ruff: noqa: PTH102, PTH106, PTH110, PTH112, PTH116, PTH120, PTH123, PTH208

from __future__ import annotations

import fcntl
import os
from contextlib import suppress

from orchestrator.sandbox import kernel


class Cgroup:
    """A cgroup that a shim makes for its command, and keeps for its next ones.

    Making and removing costs more than all else that is done with it.
    """

    __slots__ = ("_entry", "_killed", "_kills", "_path", "_room", "_settings", "_usage", "_way_back")

    def __init__(self, path: str, settings: list[tuple[str, str]]) -> None:
        """Makes it, with its limits as far as it has their files."""
        try:
            os.mkdir(path)
        except FileExistsError:
            # Of a shim that was killed with its supervisor, whose numbers these two have now.
            os.rmdir(path)
            os.mkdir(path)
        self._path = path
        self._settings = settings
        for name, value in settings:
            with suppress(FileNotFoundError):
                _write(f"{path}/{name}", value)
        self._entry = _entry(path)
        self._way_back = _way_back(os.path.dirname(path))
        self._usage = _opened(f"{path}/memory.current", f"{path}/memory.usage_in_bytes")
        self._kills = _opened(f"{path}/memory.events", f"{path}/memory.oom_control")
        self._room = next((int(value) for name, value in settings if name == "memory.max"), 0)
        self._killed = 0

    @property
    def has_way_back(self) -> bool:
        """Whether a process that has entered it can go back to where it was."""
        return self._way_back is not None

    def enter(self) -> None:
        """Moves this thread there, which has to be the process's only one."""
        os.write(self._entry, b"0")

    def leave(self) -> None:
        """Moves this thread back."""
        assert self._way_back is not None
        os.write(self._way_back, b"0")

    def is_fit(self, settings: list[tuple[str, str]]) -> bool:
        """Whether another command may have it, which is to find all the memory that it is allowed.

        Files in memory that a command has left, and pages of files that it has read, are counted there.
        """
        if settings != self._settings:
            return False
        used = 0 if self._usage is None else int(os.pread(self._usage, 32, 0))
        return used <= min(_MOST_LEFT, self._room // 16)

    def ran_out_of_memory(self) -> bool:
        """Whether the kernel has killed a process of it for its memory, since this was asked last."""
        before = self._killed
        if self._kills is not None:
            for line in os.pread(self._kills, 4096, 0).splitlines():
                name, _, count = line.partition(b" ")
                if name == b"oom_kill":
                    self._killed = int(count)
        return self._killed > before

    def remove(self) -> None:
        """Removes it, unless a survivor of another user is still in it."""
        for descriptor in (self._entry, self._usage, self._kills):
            if descriptor is not None:
                os.close(descriptor)
        remove_cgroup(self._path, kernel.COUNTED_STILL_S)


_MOST_LEFT = 16 << 20
"""Bytes that may be counted in a cgroup that the next command gets."""


def _opened(*paths: str) -> int | None:
    """The first of these files that there is, opened to be read."""
    for path in paths:
        with suppress(OSError):
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    return None


def _write(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def _entry(path: str) -> int:
    """The file of a cgroup that moves who writes to it.

    Not `cgroup.procs` where there is `tasks` (version 1): moving a process waits until no thread of the
    machine can still be on its way through a fork or an exec, some 10 ms.
    """
    try:
        return os.open(f"{path}/tasks", os.O_WRONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return os.open(f"{path}/cgroup.procs", os.O_WRONLY | os.O_CLOEXEC)


_ways_back: dict[str, int | None] = {}


def _way_back(parent: str) -> int | None:
    """The way to the cgroup that this process is in beside those that it makes, if it may go it."""
    if parent not in _ways_back:
        _ways_back[parent] = _find_way_back(parent)
    return _ways_back[parent]


def _find_way_back(parent: str) -> int | None:
    home = parent if os.path.exists(f"{parent}/tasks") else _leaf(parent)
    if home is None:
        return None
    try:
        entry = _entry(home)
    except OSError:
        return None
    try:
        # It is there, so this does nothing but ask.
        os.write(entry, b"0")
    except OSError:
        os.close(entry)
        return None
    return entry


def _leaf(parent: str) -> str | None:
    """Version 2: this process is in the cgroup of those that it makes, or in one beside them."""
    with suppress(OSError), open("/proc/self/cgroup") as file:
        for line in file:
            if line.startswith("0::/"):
                own = line[3:-1].rstrip("/")
                around, _, name = own.rpartition("/")
                if parent.endswith(own):
                    return parent
                if parent.endswith(around):
                    return f"{parent}/{name}"
    return None


def remove_cgroup(path: str, patience_s: float = 0.0) -> None:
    """Removes it, unless a survivor of another user is still in it."""
    with suppress(OSError):
        kernel.remove_cgroup(path, 0.0 if _has_process(path) else patience_s)


def _has_process(path: str) -> bool:
    with suppress(OSError), open(f"{path}/cgroup.procs") as file:
        return file.read() != ""
    return False


def has_process_below(parent: str, prefix: str) -> bool:
    """Whether a process is in a cgroup below the parent whose name begins so."""
    try:
        names = os.listdir(parent)
    except OSError:
        return False
    return any(_has_process(f"{parent}/{name}") for name in names if name.startswith(prefix))


NO_PLACE = -2


def hold_placeholder(path: str) -> tuple[str, int]:
    """Makes sure of an empty directory and holds it with a shared lock, which a death gives back.

    Another command's end may remove it between the opening and the locking: then the lock is
    on a directory that has no name any more, and the next round makes a new one. `NO_PLACE` in the place of
    the descriptor: the folder around it has gone since the command was confined.
    """
    while True:
        try:
            with suppress(FileExistsError):
                os.mkdir(path, 0o755)
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as error:
            if not os.path.isdir(os.path.dirname(path)):
                return path, NO_PLACE
            if isinstance(error, FileNotFoundError):
                continue
            return path, -1  # not ours to create, or by now a repository: the mount holds what is there
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        if _is_still(path, descriptor):
            return path, descriptor
        os.close(descriptor)


def _is_still(path: str, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except OSError:
        return False


def release_placeholder(path: str, descriptor: int) -> None:
    """The last holder removes the directory; the others' locks say that they still mount it."""
    if descriptor < 0:
        return
    with suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.rmdir(path)
    os.close(descriptor)
