"""Kills workers in the middle of commands, and looks whether two claims' commands ever ran at once.

Each command writes a line every 5 ms, with the time, into a file of its own. Its worker is killed, a process
gives the session back, another one takes it and runs the session's next command. The last line of the first
one is to be older than the claim of the second one, and than its first line.
"""

from __future__ import annotations

import sys
import time
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, cast

import orjson

from bench.lab import Fleet, fleet, lab
from bench.recovery import kills, waited_for
from bench.turns import submit_turn

LONG_S, SHORT_S = 600.0, 0.05
_WRITES = """
import os, sys, time
name, until = f"{sys.argv[1]}-{time.monotonic_ns()}-{os.getpid()}", time.monotonic() + float(sys.argv[2])
file, n = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 0
while time.monotonic() < until:
    os.write(file, b"%d %d\\n" % (n, time.monotonic_ns()))
    n += 1
    time.sleep(0.005)
"""


@dataclass
class Account:
    """The recoveries in seconds, the count of lines that commands wrote, and overlaps, in words."""

    recoveries_s: list[float] = field(default_factory=list)
    lines: int = 0
    violations: list[str] = field(default_factory=list)


async def epochs(times: int, seed: int) -> Account:
    """Kills so many workers, each under a session of its own."""
    account, rng = Account(), Random(seed)
    with lab() as place:
        async with fleet(place, str(_scenario(place.folder))) as running:
            running.hire(16)
            for number in range(times):
                running.hire(16)
                await waited_for(running, 2)
                await _kill(running, account, number, rng.uniform(0.0, 0.1))
    return account


def _scenario(folder: Path) -> Path:
    file = folder / "epochs.json"
    calls = [("before", LONG_S), ("after", SHORT_S)]
    steps: list[Any] = [
        {"items": [{"call": "shell", "args": {"command": _command(*call)}}]} for call in calls
    ]
    steps.append({"items": [{"text": "Done."}]})
    file.write_bytes(orjson.dumps({"steps": steps, "per_session": True}))
    return file


def _command(name: str, seconds: float) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", _WRITES, name, str(seconds)]


async def _kill(running: Fleet, account: Account, number: int, after_s: float) -> None:
    session = await running.session()
    async with aclosing(cast(Any, running.client.follow(session))) as events:
        await submit_turn(running, session, "turn-0")
        async for event in events:
            if event.type == "exec_command_begin":
                break
        workspace = running.lab.workspace
        while not any(file.stat().st_size for file in workspace.glob("before-*")):
            time.sleep(0.001)
        time.sleep(after_s)
        died, claimed = await kills(running, session)
        async for event in events:
            if event.type == "task_complete":
                break
    before, after = (_written(workspace, name) for name in ("before", "after"))
    account.recoveries_s.append(claimed - died)
    account.lines += len(before) + len(after)
    if not before or not after:
        which = "second" if before else "first"
        account.violations.append(f"kill {number}: the {which} command has written nothing")
    elif before[-1] >= min(after[0], claimed):
        account.violations.append(
            f"kill {number}: the first command wrote {before[-1] - died:.4f} s behind its worker's death, "
            f"the session was claimed at {claimed - died:.4f}, the next one wrote at {after[0] - died:.4f}"
        )


def _written(workspace: Path, name: str) -> list[float]:
    """The times of the lines that a command wrote; its file is removed."""
    found: list[float] = []
    for file in workspace.glob(f"{name}-*"):
        found += [int(line.split()[1]) / 1e9 for line in file.read_text().splitlines()]
        file.unlink()
    return sorted(found)
