"""What a minder holds for its command in the file system: a pids cgroup, and guards on missing `.git` paths.

Both are gone when the command is, also when several commands and workers share a workspace.
Loaded into the keeper: only light imports.
"""

# pathlib would add a third to what each fork copies.
# ruff: noqa: PTH102, PTH106, PTH116, PTH123

from __future__ import annotations

import fcntl
import os
from contextlib import suppress


def make_cgroup(path: str | None, processes: int) -> str | None:
    """A cgroup that holds so many processes; the command moves itself into it."""
    if path is None:
        return None
    os.mkdir(path)
    with open(f"{path}/pids.max", "w") as file:
        file.write(str(processes))
    return path


def remove_cgroup(path: str | None) -> None:
    """Removes it, unless a survivor of another user is still in it."""
    if path is not None:
        with suppress(OSError):
            os.rmdir(path)


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
