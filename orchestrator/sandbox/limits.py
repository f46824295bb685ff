"""Limits on a command's processes and memory: by cgroups where there are any, else rlimits.

The cgroups count exactly the command's processes and what they use together. RLIMIT_NPROC counts
every task of the user, so the limit is what the user runs already plus the allowance; the kernel
does not apply it to root at all. RLIMIT_DATA is each process's own: memory that it can write and
shares with nobody. Not RLIMIT_AS, which counts what is reserved and never used: Go, Java and Node
reserve more than any machine has.
"""

from __future__ import annotations

import os
import resource
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.sandbox.kernel import COUNTED_STILL_S, remove_cgroup

_COUNT_LIVES_S = 5.0


@dataclass(frozen=True, slots=True)
class Limits:
    """The resource limits of a command."""

    processes: int | None = None
    """Processes and threads at once; None sets no limit. A parallel build stays below it."""
    memory_bytes: int | None = None
    """Of all its processes together where cgroups count it, else of each; None sets no limit."""


@dataclass(slots=True)
class ProcessAllowance:
    """Turns an allowance into a value for RLIMIT_NPROC, for users other than root."""

    uid: int
    _counted: int = 0
    _counted_at: float = field(default=float("-inf"))

    def rlimit(self, limits: Limits) -> int | None:
        """The user's tasks plus the allowance; counted every few seconds, because it reads all of /proc."""
        if limits.processes is None or self.uid == 0:
            return None
        now = time.monotonic()
        if now - self._counted_at > _COUNT_LIVES_S:
            self._counted, self._counted_at = tasks_of(self.uid), now
        ceiling = resource.getrlimit(resource.RLIMIT_NPROC)[1]
        wanted = self._counted + limits.processes
        return wanted if ceiling == resource.RLIM_INFINITY else min(wanted, ceiling)


def tasks_of(uid: int) -> int:
    """How many threads the user runs; the link count of a task folder spares reading it."""
    total = 0
    with os.scandir("/proc") as entries:
        for entry in entries:
            if not entry.name.isdigit():
                continue
            with suppress(OSError):
                if entry.stat().st_uid == uid:
                    total += Path(entry.path, "task").stat().st_nlink - 2
    return total


def half_of_memory() -> int:
    """Bytes: the memory that a command may use of this machine unless a setting says otherwise."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def find_pids_cgroup() -> tuple[Path | None, str]:
    """A cgroup in which one per command can be made, tried for real; else None and the reason."""
    return _find("pids", (("pids.max", "16"),))


def find_memory_cgroup() -> tuple[Path | None, str]:
    """The same for memory."""
    return _find("memory", memory_settings(1 << 30))


def memory_settings(limit_bytes: int) -> tuple[tuple[str, str], ...]:
    """The files of a memory cgroup, of version 2 and of version 1; a cgroup has those of one of them.

    In version 2 the command dies as a whole: a shell that goes on without its compiler reports nonsense.
    """
    limit = str(limit_bytes)
    version_2 = (("memory.max", limit), ("memory.swap.max", "0"), ("memory.oom.group", "1"))
    return (*version_2, ("memory.limit_in_bytes", limit), ("memory.memsw.limit_in_bytes", limit))


def _find(controller: str, settings: tuple[tuple[str, str], ...]) -> tuple[Path | None, str]:
    why = "the controller is not mounted or not delegated to this process"
    for folder in _own_cgroups(controller):
        try:
            _try_out(folder, settings)
        except OSError as refused:
            why = str(refused)
        else:
            return folder, ""
    return None, f"no {controller} cgroup: {why}"


def _own_cgroups(controller: str) -> list[Path]:
    """The cgroups of this process that a controller serves: version 1's hierarchy, or version 2's."""
    mounts = _cgroup_mounts(controller)
    found = []
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        named = controller in controllers.split(",")
        mount = mounts.get(controller if named else controllers)
        if mount is None or not (named or controllers == ""):
            continue
        folder = mount / path.lstrip("/")
        found += [folder] if named else _delegated(folder, controller)
    return found


_UNITS = (".service", ".scope", ".slice")


def _delegated(folder: Path, controller: str) -> list[Path]:
    """Version 2: the process's cgroup, or the one above if the process was put into a part of its own unit.

    A cgroup with processes in it hands no memory to cgroups below: systemd's `DelegateSubgroup=` is for that.
    """
    if _delegates(folder, controller):
        return [folder]
    if folder.name.endswith(_UNITS):
        return []
    with suppress(OSError):
        (folder.parent / "cgroup.subtree_control").write_text(f"+{controller}")
    return [folder.parent] if _delegates(folder.parent, controller) else []


def _cgroup_mounts(controller: str) -> dict[str, Path]:
    """Mount points by controller; version 2 stands under the empty name."""
    mounts: dict[str, Path] = {}
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, point, kind, options, *_ = line.split(" ")
        if kind == "cgroup2":
            mounts[""] = Path(point)
        elif kind == "cgroup" and controller in options.split(","):
            mounts[controller] = Path(point)
    return mounts


def _delegates(folder: Path, controller: str) -> bool:
    """Whether cgroups made in the folder have the controller."""
    with suppress(OSError):
        return controller in (folder / "cgroup.subtree_control").read_text().split()
    return False


def _try_out(parent: Path, settings: tuple[tuple[str, str], ...]) -> None:
    """Makes a cgroup, limits it and moves a process into it: writing `cgroup.procs` may be refused alone."""
    # Two threads of a process may probe at once, as those of `dendro doctor` do.
    trial = parent / f"dendro-probe-{os.getpid()}-{threading.get_native_id()}"
    # A process and thread of these numbers may have been killed while it probed.
    trial.mkdir(exist_ok=True)
    try:
        files = [(trial / name, value) for name, value in settings if (trial / name).exists()]
        if not files:
            raise FileNotFoundError(f"{parent} has no {settings[0][0]}")
        for file, value in files:
            file.write_text(value)
        _move_a_process(trial / "cgroup.procs")
    finally:
        remove_cgroup(str(trial), COUNTED_STILL_S)


def _move_a_process(place: Path) -> None:
    """Moves a fork of this process there, which does nothing and starts no program.

    Raises `OSError`.
    """
    until, done = os.pipe()
    pid = os.fork()
    if pid == 0:
        # No more than system calls: another thread may have held a lock.
        try:
            os.close(done)
            os.read(until, 1)
        finally:
            os._exit(0)
    try:
        place.write_text(str(pid))
    finally:
        os.close(done)
        os.close(until)
        os.waitpid(pid, 0)
