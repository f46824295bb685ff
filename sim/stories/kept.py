"""The stories that are kept, and how they differ from those of today.

A file for each workload, of packed text, has its stories one behind the other. `runs.txt` names the runs, one
a line, with `slice` where CI's slice has it: a night has all.
"""

from __future__ import annotations

import lzma
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import zip_longest
from pathlib import Path

from sim.stories.runs import Run, Told

FOLDER = Path(__file__).with_name("kept")
LIST = FOLDER / "runs.txt"
CONTEXT, AROUND = 3, 160
"""Lines of context, and characters around the first one that differs."""
_HEAD = "#### "


def kept_runs(*, slice_only: bool = False) -> list[Run]:
    """The runs whose stories are kept, in their order."""
    rows = [line.split() for line in LIST.read_text(encoding="utf-8").splitlines() if line]
    return [(row[0], int(row[1])) for row in rows if not slice_only or row[2:] == ["slice"]]


def kept_stories(workload: str) -> dict[int, list[str]]:
    """A workload's stories by seed."""
    file = FOLDER / f"{workload}.txt.xz"
    if not file.exists():
        return {}
    found: dict[int, list[str]] = {}
    for part in lzma.decompress(file.read_bytes()).decode("utf-8").split(_HEAD)[1:]:
        head, _, text = part.partition("\n")
        found[int(head)] = text.splitlines()
    return found


def keep(told: Mapping[Run, list[str]]) -> None:
    """Writes the stories of whole workloads."""
    FOLDER.mkdir(exist_ok=True)
    for workload in sorted({workload for workload, _ in told}):
        stories = sorted((seed, lines) for (name, seed), lines in told.items() if name == workload)
        text = "".join("\n".join([f"{_HEAD}{seed}", *lines, ""]) for seed, lines in stories)
        packed = lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME)
        (FOLDER / f"{workload}.txt.xz").write_bytes(packed)


def list_runs(runs: Iterable[tuple[Run, bool]]) -> None:
    FOLDER.mkdir(exist_ok=True)
    lines = [f"{workload} {seed}{' slice' if often else ''}\n" for (workload, seed), often in runs]
    LIST.write_text("".join(lines), encoding="utf-8")


@dataclass(frozen=True, slots=True)
class Difference:
    """The first line in which a story is another one."""

    run: Run
    who: str
    """The section: who saw it."""
    before: str
    after: str
    context: tuple[str, ...]
    more: int
    """Sections that differ, beside this one."""

    def __str__(self) -> str:
        workload, seed = self.run
        at = next(
            (at for at, (a, b) in enumerate(zip(self.before, self.after, strict=False)) if a != b),
            min(len(self.before), len(self.after)),
        )
        first = max(0, at - AROUND)
        lines = [f"{workload}, seed {seed}: {self.who}"]
        lines += [f"      {_short(line)}" for line in self.context]
        lines += [f"    - {_cut(self.before, first)}", f"    + {_cut(self.after, first)}"]
        if self.more:
            lines.append(f"      and {self.more} more of its sections differ")
        return "\n".join(lines)


def _cut(line: str, first: int) -> str:
    return f"{'…' if first else ''}{line[first : first + 2 * AROUND]}"


def _short(line: str) -> str:
    return line if len(line) <= AROUND else f"{line[: AROUND - 1]}…"


def difference(before: list[str], told: Told) -> Difference | None:
    """The first line that is another one than it was; None if none is."""
    run, after = (told.workload, told.seed), told.lines
    if told.broken:
        return Difference(run, "a rule was broken", "", told.broken, (), 0)
    if before == after:
        return None
    old, new = _sections(before), _sections(after)
    # What the model, a log or the events say comes first: lists and keys follow from it.
    names = [name for name in sorted(old | new, key=_rank) if old.get(name) != new.get(name)]
    name = names[0]
    a, b = old.get(name, []), new.get(name, [])
    at = next((at for at, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    return Difference(
        run,
        name,
        a[at] if at < len(a) else "(nothing more)",
        b[at] if at < len(b) else "(nothing more)",
        tuple(a[max(0, at - CONTEXT) : at]),
        len(names) - 1,
    )


def all_differences(before: list[str], told: Told) -> list[str]:
    """Each line that is another one, in each section."""
    found = [f"{told.workload}, seed {told.seed}"]
    old, new = _sections(before), _sections(told.lines)
    for name in sorted(old | new, key=_rank):
        a, b = old.get(name, []), new.get(name, [])
        if a == b:
            continue
        found.append(f"  {name}")
        for kind, a0, a1, b0, b1 in SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
            if kind != "equal":
                found += _pairs(a[a0:a1], b[b0:b1])
    return found


def _pairs(before: list[str], after: list[str]) -> list[str]:
    """Lines in the place of others, each from a little before where it differs."""
    found: list[str] = []
    for a, b in zip_longest(before, after, fillvalue=""):
        same = next((at for at, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
        first = max(0, same - AROUND // 2) if a and b else 0
        found += [f"    {sign} {_cut(line, first)}" for sign, line in (("-", a), ("+", b)) if line]
    return found


_FIRST = ("faults", "acts of", "given to", "log of", "model of", "events of")


def _rank(name: str) -> tuple[int, str]:
    return next((at for at, kind in enumerate(_FIRST) if name.startswith(kind)), len(_FIRST)), name


def _sections(lines: list[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    here: list[str] = []
    for line in lines:
        if line.startswith("## "):
            here = found.setdefault(line[3:], [])
        else:
            here.append(line)
    return found
