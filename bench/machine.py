"""Under what the figures were taken: without these, no figure means anything."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from bench.lab import Lab
from orchestrator.sandbox.probe import probe


def conditions(lab: Lab) -> dict[str, str]:
    """The machine, the versions, and how busy it was before anything of the bench ran."""
    one, five, fifteen = os.getloadavg()
    return {
        "CPU": f"{_cpu_model()}, {os.cpu_count()} cores",
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB",
        "system": f"{platform.system()} {platform.release()}",
        "Python": f"{platform.python_implementation()} {platform.python_version()}, uvloop",
        "Redis": f"{lab.server.version}, AOF everysec, unix socket, a private server for each bench",
        "commands": f"an empty HOME, confined by {_confinement()}",
        "load at start": f"{one:.2f} {five:.2f} {fifteen:.2f}",
    }


def _confinement() -> str:
    """The confinement that the workers will choose, by their own probe."""
    support = probe()
    return "bubblewrap" if support.bubblewrap else f"Landlock {support.landlock_abi or '(missing)'}"


def _cpu_model() -> str:
    """The kernel's name for it, where it has one (Linux on x86)."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.machine())


def peak_mib() -> float:
    """The most memory that this process had. Not getrusage: that begins with the process that started it."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024
