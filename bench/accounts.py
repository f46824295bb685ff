"""CPU time and memory of any process, as the kernel reports them (proc(5)).

CPU is exact to a clock tick (10 ms), so it is only ever shown as a share of a run of seconds.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Cpu:
    """Seconds of CPU: of a process, and of the commands that it and its descendants ran."""

    own_s: float
    below_s: float

    def __sub__(self, other: Cpu) -> Cpu:
        return Cpu(self.own_s - other.own_s, self.below_s - other.below_s)

    def __add__(self, other: Cpu) -> Cpu:
        return Cpu(self.own_s + other.own_s, self.below_s + other.below_s)


def cpu_of(pid: int) -> Cpu:
    """CPU time that a living process has used so far."""
    own_s, reaped_s = _ticks(pid)
    return Cpu(own_s, reaped_s + sum(sum(_ticks(child)) for child in _descendants(pid)))


def _ticks(pid: int) -> tuple[float, float]:
    """(the process, its children that ended and were reaped)"""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        # It ended between two looks; its parent has its account by now.
        return 0.0, 0.0
    user, system, child_user, child_system = stat.rpartition(")")[2].split()[11:15]
    return (int(user) + int(system)) * _TICK_S, (int(child_user) + int(child_system)) * _TICK_S


def _descendants(pid: int) -> list[int]:
    found: list[int] = []
    for child in _children(pid):
        found += [child, *_descendants(child)]
    return found


def _children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(FileNotFoundError, ProcessLookupError):
                found += map(int, (task / "children").read_text().split())
    except (FileNotFoundError, ProcessLookupError):
        # It ended between two looks.
        pass
    return found


def resident_mib(pid: int) -> float:
    """Memory of a process and all its descendants, shared pages counted once each (Pss)."""
    return sum(map(own_mib, [pid, *_descendants(pid)]))


def own_mib(pid: int) -> float:
    """Memory of a process alone, its share of shared pages counted (Pss); 0 if it is gone."""
    return _pss_kib(pid) / 1024


def allocated_mib(pid: int) -> float:
    """Memory that a process has allocated (RssAnon), swapped pages too; 0 if it is gone.

    Programs and files are left out: its share of those grows when others that have mapped them end.
    """
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    rows = (line.split() for line in text.splitlines() if line.startswith(("RssAnon:", "VmSwap:")))
    return sum(int(row[1]) for row in rows) / 1024


def _pss_kib(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return next((int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:")), 0)
