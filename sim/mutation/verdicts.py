"""Verdicts on changes, kept in a folder, and the equivalent changes, kept in the repository."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from sim.mutation.change import ROOT, Change

EQUIVALENT = Path(__file__).with_name("equivalent.toml")
_SOURCES = (
    *(f"{folder}/**/*.{kind}" for folder in ("orchestrator", "sim") for kind in ("py", "lua")),
    "sim/mutation/meaning/*/*.patch",
    "tests/**/*.py",
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of a change."""

    id: str
    by: str
    """`simulator` (a rule), `stories`, `tests`, `equivalent`, or '' for one that survives."""
    what: str = ""
    """The broken rule, the failing test, the reason."""
    seen: str = ""
    workload: str = ""
    seed: int = -1
    seeds: int = 0
    """Seeds that were run, and came to the changed line."""
    tests: int = 0
    reached: bool = True
    """Whether a seed of the simulator comes to the change at all."""
    took_s: float = 0.0
    story: str = ""
    """The kept story that is another one with the change, whatever a rule found."""
    storied: bool = False
    """Whether the run of a kept story comes to the change."""


def equivalents() -> dict[tuple[str, str, str, str, int], str]:
    """The reason of each change that nothing can tell from the text as it is, under its key and its twin."""
    told = tomllib.loads(EQUIVALENT.read_text(encoding="utf-8")) if EQUIVALENT.exists() else {}
    found = {}
    for row in told.get("change", ()):
        if not row["why"].strip():
            raise ValueError(f"{EQUIVALENT}: no reason is given for {row}")
        found[row["file"], row["function"], row["before"], row["after"], row.get("twin", 0)] = row["why"]
    return found


def sources_hash() -> str:
    """Of everything that a verdict depends on."""
    seen = hashlib.sha256()
    for pattern in _SOURCES:
        for file in sorted(ROOT.glob(pattern)):
            seen.update(file.relative_to(ROOT).as_posix().encode() + b"\0" + file.read_bytes() + b"\0")
    return seen.hexdigest()[:16]


class Kept:
    """Verdicts in a file, each under the sources that it was found with; the last one counts."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = folder / "verdicts.jsonl"
        self._sources = sources_hash()
        self.now: dict[str, Verdict] = {}
        """Verdicts of these sources."""
        self.before: dict[str, Verdict] = {}
        """The last of each, of whatever sources: what found it then is tried first."""
        for line in self._lines():
            row = json.loads(line)
            verdict = Verdict(**row["verdict"])
            self.before[verdict.id] = verdict
            if row["sources"] == self._sources:
                self.now[verdict.id] = verdict

    def _lines(self) -> Iterable[str]:
        return self._file.read_text(encoding="utf-8").splitlines() if self._file.exists() else ()

    def keep(self, change: Change, verdict: Verdict) -> None:
        row = {"sources": self._sources, "change": str(change), "verdict": asdict(verdict)}
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        self.now[verdict.id] = self.before[verdict.id] = verdict
