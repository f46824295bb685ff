"""File-system objects that a shim holds for its command: cgroups, and guards on missing `.git` paths.

Both are removed when the command ends, also when several commands and workers share a workspace.
Loaded into the supervisor: only light imports.
"""

# pathlib would add a third to what each fork copies.
# ruff: noqa: PTH102, PTH106, PTH110, PTH116, PTH120, PTH123, PTH208

from __future__ import annotations

import fcntl
import os
from contextlib import suppress

from orchestrator.sandbox import kernel

TYPE_CHECKING = False  # typing's import costs the supervisor more than its own code
if TYPE_CHECKING:
    from collections.abc import Iterable


def make_cgroup(path: str, settings: Iterable[tuple[str, str]]) -> None:
    """A cgroup with its limits, as far as it has their files; the command moves itself into it."""
    os.mkdir(path)
    for name, value in settings:
        with suppress(FileNotFoundError), open(f"{path}/{name}", "r+") as file:
            file.write(value)


def enter_cgroup(path: str) -> None:
    """Moves this thread there, which has to be the process's only one.

    Not by `cgroup.procs` where there is `tasks` (version 1): moving a process waits until no thread of the
    machine can still be on its way through a fork or an exec, some 10 ms.
    """
    try:
        descriptor = os.open(f"{path}/tasks", os.O_WRONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        descriptor = os.open(f"{path}/cgroup.procs", os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, b"0")
    finally:
        os.close(descriptor)


_homes: dict[str, str | None] = {}


def home_of(cgroup: str) -> str | None:
    """The cgroup that this process is in beside one that it made, if it may come back to it from there."""
    parent = os.path.dirname(cgroup)
    if parent not in _homes:
        _homes[parent] = _find_home(parent)
    return _homes[parent]


def _find_home(parent: str) -> str | None:
    home = parent if os.path.exists(f"{parent}/tasks") else _leaf(parent)
    if home is None:
        return None
    try:
        # It is there, so this does nothing but ask.
        enter_cgroup(home)
    except OSError:
        return None
    return home


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


def ran_out_of_memory(path: str) -> bool:
    """Whether the kernel has killed a process of the cgroup for its memory."""
    for name in ("memory.events", "memory.oom_control"):
        with suppress(OSError), open(f"{path}/{name}") as file:
            counted = dict(line.split() for line in file)
            return counted.get("oom_kill", "0") != "0"
    return False


def hold_placeholder(path: str) -> tuple[str, int]:
    """Makes sure of an empty directory and holds it with a shared lock, which a death gives back.

    Another command's end may remove it between the opening and the locking: then the lock is
    on a directory that has no name any more, and the next round makes a new one.
    """
    while True:
        try:
            with suppress(FileExistsError):
                os.mkdir(path, 0o755)
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            continue
        except OSError:
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
