"""Results of a sample: in figures, and as the table of `docs/simulator.md`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from sim.mutation.change import ROOT, Change
from sim.mutation.sampling import AROUND, SCOPES, files
from sim.mutation.verdicts import Verdict

PAGE = ROOT / "docs" / "simulator.md"
SHORT = 90


def figures(chosen: Sequence[Change], verdicts: Mapping[str, Verdict]) -> str:
    """How many were found, by what, in each scope and in all."""
    rows = ["| | changes | equivalent | rules | stories | tests | survive | found | by rules or stories |"]
    rows.append("|---|---|---|---|---|---|---|---|---|")
    for scope in (*SCOPES, *AROUND):
        among = {file.relative_to(ROOT).as_posix() for file in files(scope)}
        if some := [verdicts[change.id] for change in chosen if change.path in among]:
            rows.append(_row(scope, some))
    if chosen:
        rows.append(_row("all", [verdicts[change.id] for change in chosen]))
    return "\n".join(rows)


def _row(name: str, some: Sequence[Verdict]) -> str:
    counts = {
        by: sum(verdict.by == by for verdict in some)
        for by in ("equivalent", "simulator", "stories", "tests", "")
    }
    real = max(len(some) - counts["equivalent"], 1)
    simulated = (counts["simulator"] + counts["stories"]) / real
    found = simulated + counts["tests"] / real
    cells = [name, len(some), *counts.values(), f"{found:.1%}", f"{simulated:.1%}"]
    return f"| {' | '.join(str(cell) for cell in cells)} |"


def table(chosen: Sequence[Change], verdicts: Mapping[str, Verdict]) -> str:
    rows = ["| change | place | text | found by |", "|---|---|---|---|"]
    for change in chosen:
        place = f"{change.path.removeprefix('orchestrator/')}:{change.line}"
        rows.append(f"| {change.operator} | {place} | {_changed(change)} | {finder(verdicts[change.id])} |")
    return "\n".join(rows)


def _changed(change: Change) -> str:
    """The part of the statement that differs, with a little around it."""
    before, after = change.before, change.after
    if after in ("", "pass"):
        return f"{_code(before)} is gone"
    start = next((i for i, pair in enumerate(zip(before, after, strict=False)) if pair[0] != pair[1]), 0)
    if max(len(before), len(after)) <= SHORT:
        start = 0
    start = max(start - 20, 0)
    return f"{_code(before[start:])} → {_code(after[start:])}"


def _code(text: str) -> str:
    short = text if len(text) <= SHORT else f"{text[: SHORT - 1]}…"
    return "`" + short.replace("|", "\\|").replace("`", "'") + "`"


def finder(verdict: Verdict) -> str:
    """A verdict as a cell of a table."""
    if verdict.by == "simulator":
        where = f"seed {verdict.seed}" if verdict.seed >= 0 else "at once"
        where += f" of `{verdict.workload}`" if verdict.workload else ""
        return f"`{verdict.what}`, {where}"
    if verdict.by == "stories":
        return f"story: {verdict.what}"
    if verdict.by == "tests":
        file, _, name = verdict.what.partition("::")
        return f"{Path(file).stem}: {name.partition('[')[0]}" if name else verdict.what
    if verdict.by == "equivalent":
        return f"equivalent: {verdict.what}"
    if not verdict.tests:
        return f"none of {verdict.seeds} seeds; no test was asked"
    return "**nothing**"


def told_on_page(sample: str, chosen: Sequence[Change], verdicts: Mapping[str, Verdict]) -> None:
    """Writes figures and table between the page's marks for this sample."""
    begin, end = f"<!-- {sample}: begin -->", f"<!-- {sample}: end -->"
    text = PAGE.read_text(encoding="utf-8")
    before, begun, rest = text.partition(begin)
    _, ended, after = rest.partition(end)
    if not (begun and ended):
        raise ValueError(f"{PAGE} has no marks {begin} and {end}")
    body = f"{figures(chosen, verdicts)}\n\n{table(chosen, verdicts)}"
    PAGE.write_text(f"{before}{begin}\n\n{body}\n\n{end}{after}", encoding="utf-8")
