"""`make crash`: kills workers of sessions, of trees, and of sessions with flows, and checks what is left.

Exit code 1 on any violation.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from pathlib import Path

import orjson
from rich.console import Console

from tests.crash.driver import Options, crash
from tests.crash.epochs import epochs
from tests.crash.report import as_json, show


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash", description=__doc__)
    parser.add_argument("--kills", type=int, default=200, help="how many workers to kill in each run (200)")
    parser.add_argument("--seed", type=int, default=0, help="chooses where they die (0)")
    parser.add_argument("--json", type=Path, help="write the figures to this file as well")
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--trees", action="store_true", help="only trees of agents")
    only.add_argument("--sessions", action="store_true", help="only single sessions")
    only.add_argument(
        "--flows", action="store_true", help="only questions, plans, reviews, processes and servers"
    )
    only.add_argument("--epochs", action="store_true", help="only whether two claims' commands overlap")
    given = parser.parse_args()
    # Told to end, a run takes its servers and folders along, as it does on Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if given.epochs:
        return _epochs(given.kills, given.seed)
    some = given.trees or given.sessions or given.flows
    runs = {name: getattr(given, name) or not some for name in ("sessions", "trees", "flows")}
    accounts = {}
    for name in (name for name, wanted in runs.items() if wanted):
        options = Options(given.kills, given.seed, trees=name == "trees", flows=name == "flows")
        accounts[name] = asyncio.run(crash(options))
        show(name, accounts[name], Console())
    figures = {name: as_json(account) for name, account in accounts.items()}
    told = orjson.dumps(figures, option=orjson.OPT_INDENT_2)
    print(told.decode())
    if given.json:
        given.json.write_bytes(told + b"\n")
    return 1 if any(account.violations for account in accounts.values()) else 0


def _epochs(kills: int, seed: int) -> int:
    seen = asyncio.run(epochs(kills, seed))
    times = sorted(seen.recoveries_s)
    print(f"{kills} workers killed, {seen.lines:,} lines of their commands; claimed anew after ", end="")
    print(f"{times[len(times) // 2] * 1000:.0f} ms (p50), at most {times[-1] * 1000:.0f} ms")
    print("\n".join(seen.violations) or "no command of an earlier claim wrote behind the next one")
    return 1 if seen.violations else 0


if __name__ == "__main__":
    sys.exit(main())
