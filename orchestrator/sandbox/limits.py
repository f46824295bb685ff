"""How many processes a command may have: a pids cgroup where one can be made, else RLIMIT_NPROC.

The cgroup counts exactly the command's processes. RLIMIT_NPROC counts every task of the
user, so the limit is what the user runs already plus the allowance; the kernel does not
apply it to root at all.
"""

from __future__ import annotations

import os
import resource
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

_COUNT_LIVES_S = 5.0


@dataclass(frozen=True, slots=True)
class Limits:
    """What one command may use."""

    processes: int | None = 1024
    """Processes and threads at once; None sets no limit. A parallel build stays below it."""


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


def find_pids_cgroup() -> tuple[Path | None, str]:
    """A cgroup in which one per command can be made, tried for real; else None and the reason."""
    for folder in _own_cgroups():
        try:
            _try_out(folder)
        except OSError as refused:
            return None, f"no pids cgroup: {refused}"
        return folder, ""
    return None, "no pids cgroup: the controller is not mounted or not delegated to this process"


def _own_cgroups() -> list[Path]:
    """The cgroups of this process that count processes: version 1's pids hierarchy, or version 2's."""
    mounts = _cgroup_mounts()
    found = []
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        mount = mounts.get("pids" if "pids" in controllers.split(",") else controllers)
        if mount is None or controllers not in ("", "pids"):
            continue
        folder = mount / path.lstrip("/")
        if controllers == "pids" or _delegates_pids(folder):
            found.append(folder)
    return found


def _cgroup_mounts() -> dict[str, Path]:
    """Mount points by controller; version 2 stands under the empty name."""
    mounts: dict[str, Path] = {}
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, point, kind, options, *_ = line.split(" ")
        if kind == "cgroup2":
            mounts[""] = Path(point)
        elif kind == "cgroup" and "pids" in options.split(","):
            mounts["pids"] = Path(point)
    return mounts


def _delegates_pids(folder: Path) -> bool:
    with suppress(OSError):
        return "pids" in (folder / "cgroup.subtree_control").read_text().split()
    return False


def _try_out(parent: Path) -> None:
    """Makes a cgroup, limits it and moves a process into it: writing `cgroup.procs` may be refused alone."""
    trial = parent / f"dendro-probe-{os.getpid()}"
    trial.mkdir()
    try:
        (trial / "pids.max").write_text("16")
        with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, cwd="/") as process:
            (trial / "cgroup.procs").write_text(str(process.pid))
    finally:
        trial.rmdir()
