"""`python -m sim.foreign`: plants foreign defects, one after the other, and runs what should find each."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence

from sim.foreign.trial import (
    ROOT,
    Defect,
    Unfit,
    Verdict,
    commit,
    defects,
    simulated,
    sound,
    tried,
)

PAGE = ROOT / "docs" / "testing.md"
BEGIN, END = "<!-- foreign defects: begin -->", "<!-- foreign defects: end -->"


def main() -> int:
    """Exit code 1 if a defect survives, 2 if one cannot be tried."""
    given = _arguments()
    try:
        chosen = [simulated(one) for one in defects(given.names)] if given.simulator else defects(given.names)
        if tests := [test for defect in chosen for test in defect.tests]:
            sound(tests)
        verdicts = {defect.name: _told(defect, tried(defect)) for defect in chosen}
    except Unfit as unfit:
        print(unfit, file=sys.stderr)
        return 2
    if given.page:
        _write(chosen, verdicts)
    return 0 if all(verdict.by for verdict in verdicts.values()) else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m sim.foreign", description=__doc__)
    parser.add_argument("--page", action="store_true", help="write the table into docs/testing.md; needs all")
    parser.add_argument("--simulator", action="store_true", help="by seeds alone: no tests are run")
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these")
    given = parser.parse_args()
    if given.page and (given.names or given.simulator):
        parser.error("--page writes the table of all defects: leave the names and --simulator out")
    return given


def _told(defect: Defect, verdict: Verdict) -> Verdict:
    print(f"{defect.name}: {verdict.by or 'SURVIVES'} ({verdict.seconds:.1f} s)", flush=True)
    return verdict


def table(chosen: Sequence[Defect], verdicts: Mapping[str, Verdict]) -> str:
    """The page's table."""
    rows = ["| defect | what is wrong | breaks | found by |", "|---|---|---|---|"]
    for defect in chosen:
        page = defect.page.removeprefix("docs/")
        broken = f"[{page.removesuffix('.md')}]({page}): “{defect.sentence}”"
        by = verdicts[defect.name].by or "**nothing**"
        rows.append(f"| {defect.name.replace('_', ' ')} | {defect.wrong} | {broken} | {by} |")
    return "\n".join(rows)


def _write(chosen: Sequence[Defect], verdicts: Mapping[str, Verdict]) -> None:
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    made = f"Made at commit `{commit()}`: {len(chosen)} defects."
    PAGE.write_text(
        f"{before}{BEGIN}\n\n{made}\n\n{table(chosen, verdicts)}\n\n{END}{after}", encoding="utf-8"
    )


if __name__ == "__main__":
    sys.exit(main())
