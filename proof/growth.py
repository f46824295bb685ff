"""What a soak looks at, and when something of it counts as growing.

A series is one thing that is measured again and again: the memory of one process, the keys of one kind. Its
rule is a regression over the second half of the run, when caches are full and everything has come by. Pure,
but for the functions that read `/proc` and folders.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from bench.accounts import allocated_mib

# ── rules ─────────────────────────────────────────────────────────────────────────────────────────

PER_HOUR = 0.01
"""The share of its mean by which a flat series may grow in an hour."""
SURE = 3.0
"""So many standard errors the growth has to be above its limit."""
LEAST_POINTS = 8
FLOORS: Mapping[str, float] = {
    "MiB": 2.0,
    "": 3.0,
    "keys": 8.0,
    "files": 8.0,
    "entries": 200.0,
    "s": 0.2,
    "times": 0.5,
    "thousand": 20.0,
}
"""What a series may grow by in a run whatever its mean, by its unit: pages of an allocator, a connection that
was opened for a moment, a tree more that is under way and its entries, a turn beside a worker's start, a log
that is about to be written anew, objects of some sessions that were just claimed."""


@dataclass(frozen=True, slots=True)
class Series:
    """The points of one thing over time: (seconds since the begin, value)."""

    name: str
    unit: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Growth:
    """What the second half of a series says.

    `per_hour` is the slope, `unsure` its standard error. Points follow from those before them, so that the
    error is that of fewer, independent ones (by their correlation with the next one).
    """

    mean: float
    per_hour: float
    unsure: float
    over_s: float

    @property
    def grown(self) -> float:
        """The growth over the points that were looked at."""
        return self.per_hour * self.over_s / 3600


def growth(points: Sequence[tuple[float, float]], since: float = 0.0) -> Growth | None:
    """The growth of the second half, from `since` on; None where that has too few points to say anything."""
    middle = max(since, (points[0][0] + points[-1][0]) / 2) if points else since
    half = [point for point in points if point[0] >= middle]
    n = len(half)
    if n < LEAST_POINTS:
        return None
    mean_at, mean = sum(at for at, _ in half) / n, sum(value for _, value in half) / n
    spread = sum((at - mean_at) ** 2 for at, _ in half)
    slope = sum((at - mean_at) * (value - mean) for at, value in half) / spread
    rest = [value - mean - slope * (at - mean_at) for at, value in half]
    squares = sum(one**2 for one in rest)
    follows = sum(one * then for one, then in pairwise(rest)) / squares if squares else 0.0
    independent = max(3.0, n * (1 - max(0.0, follows)) / (1 + max(0.0, follows)))
    error = math.sqrt(squares / n / (independent - 2) * n / spread) if squares else 0.0
    return Growth(mean, slope * 3600, error * 3600, half[-1][0] - half[0][0])


def verdict(series: Series, since: float = 0.0) -> str:
    """Why the series is not flat; empty if it is, or if nobody can say."""
    found = growth(series.points, since)
    if found is None:
        return ""
    limit, least = PER_HOUR * abs(found.mean), FLOORS[series.unit]
    if found.per_hour - SURE * found.unsure <= limit or found.grown <= least:
        return ""
    return (
        f"{series.name} grows by {found.per_hour:,.1f} ± {found.unsure:,.1f} {series.unit} an hour "
        f"(mean {found.mean:,.1f}, {found.grown:,.1f} in the last {found.over_s:,.0f} s)"
    ).replace("  ", " ")


LEAST_TURNS, SLOWER, SLOWER_S = 10, 1.5, 0.2
"""A turn is slower if it takes half as long again, and so many seconds more."""


def slower(first: Sequence[float], second: Sequence[float]) -> list[str]:
    """A line for the median and for the p99 if turns of the second half take longer than those of the first.

    The p99 of few turns is the slowest one, beside which a worker was killed; the median shows a drift.
    """
    if len(first) < LEAST_TURNS or len(second) < LEAST_TURNS:
        return [f"the probe had {len(first)} and {len(second)} turns: too few to say whether it got slower"]
    found = []
    for name, share in (("median", 0.5), ("p99", 0.99)):
        before, now = (sorted(turns)[int(len(turns) * share)] for turns in (first, second))
        if now > SLOWER * before + SLOWER_S:
            found.append(f"the probe's {name} went from {before:.2f} to {now:.2f} s")
    return found


# ── samples ───────────────────────────────────────────────────────────────────────────────────────


def of_process(pid: int) -> dict[str, tuple[float, str]]:
    """Values of a living process, each with its unit; children are counted, those that ended unreaped too."""
    folder = Path(f"/proc/{pid}")
    try:
        descriptors = len(list((folder / "fd").iterdir()))
        tasks = list((folder / "task").iterdir())
        below = ((task / "children").read_text() for task in tasks)
        children = " ".join(below).split()
    except (FileNotFoundError, ProcessLookupError):
        return {}
    return {
        "memory": (allocated_mib(pid), "MiB"),
        "descriptors": (descriptors, ""),
        "threads": (len(tasks), ""),
        "zombies": (sum(map(_is_zombie, children)), ""),
    }


def _is_zombie(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def kind_of(key: str) -> str:
    """The kind of a key of Redis: what stands behind its slot, without ids."""
    return key.partition("}:")[2].partition(":")[0] or key.partition(":")[0]


def kinds(keys: Iterable[str]) -> Counter[str]:
    """How many keys there are of each kind."""
    return Counter(map(kind_of, keys))


def files_below(folder: Path) -> int:
    """The files below a folder that may be written to at the same moment."""
    return sum(len(files) for _, _, files in os.walk(folder))


def disk_mib(folder: Path, but: Collection[str] = ()) -> float:
    """What the files below a folder take on its disk, `but` for rollouts of these sessions."""
    blocks = 0
    for place, _, files in os.walk(folder):
        for name in files:
            if name.startswith("rollout-") and name.removesuffix(".jsonl")[-36:] in but:
                continue
            with suppress(FileNotFoundError):
                blocks += (Path(place) / name).lstat().st_blocks
    return blocks * 512 / 2**20
