"""`python -m bench`: runs the benches one after the other and shows one table.

Exit code 1 if a figure missed its target. On a busy machine some will: the load is among the conditions.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import uvloop
from rich.console import Console

from bench import (
    broker,
    crowd,
    doors,
    fleet_index,
    flows,
    latency,
    long_session,
    parked,
    recovery,
    replay,
    throughput,
    trees,
    window,
    workspaces,
)
from bench.figures import Figure
from bench.lab import Lab, lab
from bench.machine import conditions
from bench.report import show, write_json, write_markdown

Bench = Callable[[Lab, bool], Coroutine[Any, Any, list[Figure]]]
BENCHES: dict[str, Bench] = {
    "broker": broker.run,
    "latency": latency.run,
    "flows": flows.run,
    "crowd": crowd.run,
    "doors": doors.run,
    "fleet_index": fleet_index.run,
    "throughput": throughput.run,
    "replay": replay.run,
    "parked": parked.run,
    "trees": trees.run,
    "workspaces": workspaces.run,
    "window": window.run,
    "recovery": recovery.run,
    "long_session": long_session.run,
}
_PIPE_COLUMNS = 110


def main(argv: list[str]) -> int:
    """Runs what was asked for; answers the exit code."""
    asked = _arguments().parse_args(argv)
    if asked.part:
        BENCHES["doors"] = partial(doors.run, parts=asked.part)
    if asked.turns is not None:
        BENCHES["long_session"] = partial(long_session.run, turns=asked.turns)
    console = _console()
    with lab() as first:
        under = conditions(first)
    results = {name: _run(name, asked.quick, console) for name in asked.only or BENCHES}
    show(console, under, results)
    if asked.json:
        write_json(asked.json, under, results)
    if asked.markdown:
        write_markdown(asked.markdown, under, results)
    missed = any(figure.met is False for figures in results.values() for figure in figures)
    return 1 if missed else 0


def _console() -> Console:
    console = Console()
    # A pipe has no width: the table keeps its columns there.
    return console if console.is_terminal else Console(width=_PIPE_COLUMNS)


def _run(name: str, quick: bool, console: Console) -> list[Figure]:
    began = time.monotonic()
    # A lab for each: what one bench leaves in Redis must not weigh on the next.
    with console.status(f"{name} …"), lab() as place:
        figures = uvloop.run(BENCHES[name](place, quick))
    console.print(f"[dim]{name}: {time.monotonic() - began:.0f} s[/]", highlight=False)
    return figures


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument(
        "--only", action="append", choices=list(BENCHES), help="run this one; may be repeated"
    )
    parser.add_argument("--quick", action="store_true", help="small numbers: to see that it works")
    parser.add_argument(
        "--part", action="append", choices=list(doors.PARTS), help="of doors this alone; may be repeated"
    )
    parser.add_argument("--turns", type=int, metavar="N", help="the length of the session of long_session")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="rewrite the table of a document")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
