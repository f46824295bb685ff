"""`make crash`: kills workers and checks what is left. Exit code 1 on any violation."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from pathlib import Path

import orjson
from rich.console import Console

from tests.crash.driver import Options, crash
from tests.crash.report import as_json, show


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash", description=__doc__)
    parser.add_argument("--kills", type=int, default=200, help="how many workers to kill (200)")
    parser.add_argument("--seed", type=int, default=0, help="chooses where they die (0)")
    parser.add_argument("--json", type=Path, help="write the figures to this file as well")
    given = parser.parse_args()
    # Told to end, a run takes its servers and folders along, as it does on Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    account = asyncio.run(crash(Options(given.kills, given.seed)))
    show(account, Console())
    figures = orjson.dumps(as_json(account), option=orjson.OPT_INDENT_2)
    print(figures.decode())
    if given.json:
        given.json.write_bytes(figures + b"\n")
    return 1 if account.violations else 0


if __name__ == "__main__":
    sys.exit(main())
