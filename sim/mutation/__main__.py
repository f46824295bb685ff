"""`python -m sim.mutation`: changes that a seed chooses, each looked for by the simulator and then by
the tests.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from sim.foreign.trial import Unfit
from sim.mutation import meaning
from sim.mutation.change import ROOT, Change
from sim.mutation.maps import Map
from sim.mutation.sampling import sample, scopes
from sim.mutation.table import figures, told_on_page
from sim.mutation.trial import Bounds, Trials
from sim.mutation.verdicts import Kept, Verdict, equivalents

TESTS = (
    ("core", "protocol", "gateways", "requests", "workers", "instructions", "stub", "test_*.py"),
    ("rollouts", "runtime", "broker", "model", "tools", "tree", "mcp", "window/test_*.py"),
    ("telemetry", "views", "workspaces", "folders", "sandbox", "api", "doors", "cli", "reliability"),
)
"""Measured side by side, for what runs in the tests' own process: folders and files of `tests`."""
WITH_SERVER = tuple(f"cli/test_{name}.py" for name in ("verify", "import", "archived"))
"""Measured beside them, on a real server: commands that read whole logs, archives and files."""
ON_SERVER = ("doors", "gateways", "rollouts", "runtime", "tree", "workers", "workspaces")
"""Their tests on a real server; of the broker's the ones on its double are enough."""
SOME_FAILED = 1
"""pytest's exit code when tests failed: the map says which, and they are not asked."""
PLAIN = ("-p", "no:randomly", "-p", "no:cacheprovider", "-m")


def main() -> int:
    """Exit code 1 if a change survives."""
    given = _arguments()
    folder: Path = given.cache
    folder.mkdir(parents=True, exist_ok=True)
    if given.map or not list(folder.glob("seeds-*.json")):
        _measure(folder, given.map or "both")
        if given.map:
            return 0
    return _of_meaning(given) if given.meaning else _sampled(given)


def _sampled(given: argparse.Namespace) -> int:
    chosen = sample(given.sample, given.seed, given.scope or (), given.group)
    if given.ids:
        chosen = [change for change in chosen if change.id in given.ids]
    verdicts = _tried(chosen, given, Kept(given.cache))
    print(figures(chosen, verdicts))
    if given.page:
        told_on_page(f"{'sample' if given.group == 'turned' else given.group} {given.seed}", chosen, verdicts)
    return 0 if all(verdicts[change.id].by for change in chosen) else 1


def _of_meaning(given: argparse.Namespace) -> int:
    """Exit code 2 if a patch does not fit."""
    try:
        chosen = meaning.planted(given.hand or ())
    except Unfit as unfit:
        print(unfit, file=sys.stderr)
        return 2
    if given.ids:
        chosen = [one for one in chosen if one.name in given.ids]
    verdicts = _tried([one.change for one in chosen], given, Kept(given.cache))
    print(meaning.figures(chosen, verdicts))
    if given.page:
        meaning.write_page(chosen, verdicts)
    return 0 if all(verdicts[one.change.id].by for one in chosen) else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m sim.mutation", description=__doc__)
    parser.add_argument("--sample", type=int, default=60, help="how many changes (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="which ones (default: %(default)s)")
    parser.add_argument(
        "--forgotten",
        dest="group",
        action="store_const",
        const="forgotten",
        default="turned",
        help="a sample of what may be forgotten, not of what may be turned",
    )
    parser.add_argument("--scope", action="append", help="only there; may be repeated")
    parser.add_argument(
        "--seeds", type=int, default=300, help="of the simulator, for each (default: %(default)s)"
    )
    parser.add_argument(
        "--tests-s", type=float, default=120.0, help="of tests, for each; 0: none (default: %(default)s)"
    )
    parser.add_argument(
        "--stories",
        type=int,
        default=60,
        help="kept stories and digests, for each; 0: none (default: %(default)s)",
    )
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="default: one a core")
    parser.add_argument("--resume", action="store_true", help="keep the verdicts of these very sources")
    parser.add_argument(
        "--survivors", action="store_true", help="keep whatever was found before, by other sources too"
    )
    parser.add_argument(
        "--map",
        nargs="?",
        const="both",
        choices=("seeds", "stories", "tests", "both"),
        help="measure anew which seeds, kept stories, tests, or all come to which lines, and end",
    )
    parser.add_argument("--page", action="store_true", help="write the table into its page of docs")
    parser.add_argument(
        "--meaning", action="store_true", help="the defects of meaning in sim/mutation/meaning, not a sample"
    )
    parser.add_argument("--hand", action="append", help="with --meaning: only this hand's; may be repeated")
    parser.add_argument(
        "--cache", type=Path, default=ROOT / ".mutation", help="where verdicts and maps are kept"
    )
    parser.add_argument("ids", nargs="*", help="only these of the sample, or defects of these names")
    given = parser.parse_args()
    if unknown := set(given.scope or ()) - set(scopes(given.group)):
        parser.error(
            f"no such scope: {', '.join(sorted(unknown))}; there are {', '.join(scopes(given.group))}"
        )
    return given


def _measure(folder: Path, which: str) -> None:
    """Makes the maps: two shares of seeds side by side, then those of tests."""
    if which in ("seeds", "both"):
        _measure_seeds(folder)
    if which in ("stories", "both"):
        words = [sys.executable, "-m", "sim.stories.choose", "--measure", "--kept", "--folder", str(folder)]
        _side_by_side([[*words, "--share", str(at)] for at in range(2)], [{}, {}])
    if which in ("tests", "both"):
        _measure_tests(folder)


def _measure_seeds(folder: Path) -> None:
    shares = [
        [sys.executable, "-m", "sim.mutation.maps", str(folder / f"seeds-{at}.json"), str(at), "2"]
        for at in range(2)
    ]
    _side_by_side(shares, [{}, {}])


def _measure_tests(folder: Path) -> None:
    marked = [
        *((some, "not realredis and not slow") for some in TESTS),
        (WITH_SERVER, "not slow"),
        (ON_SERVER, "realredis and not slow"),
    ]
    tests = [
        [
            *(sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "sim.mutation.noting", *PLAIN, marks),
            *(str(path) for one in some for path in sorted((ROOT / "tests").glob(one))),
        ]
        for some, marks in marked
    ]
    _side_by_side(tests, [{"MUTATION_MAP": str(folder / f"tests-{at}.json")} for at in range(len(tests))])


def _side_by_side(commands: Sequence[Sequence[str]], variables: Sequence[dict[str, str]]) -> None:
    running = [
        subprocess.Popen(words, cwd=ROOT, env={**os.environ, **more}, stdout=subprocess.DEVNULL)
        for words, more in zip(commands, variables, strict=True)
    ]
    for words, process in zip(commands, running, strict=True):
        if process.wait() not in (0, SOME_FAILED):
            raise SystemExit(f"no map: exit code {process.returncode} of {' '.join(words)}")


def _tried(chosen: Sequence[Change], given: argparse.Namespace, kept: Kept) -> dict[str, Verdict]:
    seeds, tests = (Map.read(given.cache.glob(f"{kind}-*.json")) for kind in ("seeds", "tests"))
    stories = Map.read(given.cache.glob("stories-*.json"))
    bounds = Bounds(seeds=given.seeds, tests_s=given.tests_s, stories=given.stories)
    trials, reasons = Trials(seeds, tests, bounds, stories), equivalents()
    verdicts: dict[str, Verdict] = {}

    def tried(change: Change) -> Verdict:
        if (why := reasons.get((*change.key, change.twin))) is not None:
            return Verdict(change.id, "equivalent", why)
        known = kept.now if given.resume else {}
        if given.survivors:
            known = {
                **{id: one for id, one in kept.before.items() if one.by in ("simulator", "stories", "tests")},
                **known,
            }
        return known.get(change.id) or trials.run(change, kept.before.get(change.id))

    with ThreadPoolExecutor(given.processes) as pool:
        for change, verdict in zip(chosen, pool.map(tried, chosen), strict=True):
            if verdict.by != "equivalent" and kept.now.get(change.id) != verdict:
                kept.keep(change, verdict)
            verdicts[change.id] = verdict
            print(f"{len(verdicts)}/{len(chosen)} {change.id} {change}\n    {_told(verdict)}", flush=True)
    return verdicts


def _told(verdict: Verdict) -> str:
    if verdict.by == "simulator":
        place = f"seed {verdict.seed} {verdict.workload}".strip()
        told = f"{verdict.seen[:160]} [{verdict.took_s} s]"
        return f"simulator, {verdict.what}, {place} ({verdict.seeds} run): {told}"
    if verdict.by:
        return f"{verdict.by}: {verdict.what} [{verdict.took_s} s]"
    return f"SURVIVES {verdict.seeds} seeds and {verdict.tests} tests [{verdict.took_s} s]"


if __name__ == "__main__":
    sys.exit(main())
