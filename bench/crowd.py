"""Fifty sessions at once, each a turn with three sandboxed commands: what a busy machine feels like."""

from __future__ import annotations

import asyncio
import time

from bench.accounts import Cpu, resident_mib
from bench.figures import Figure, at_most
from bench.lab import Fleet, Lab, fleet
from bench.turns import take_turns

COMMANDS = 3


async def run(lab: Lab, quick: bool) -> list[Figure]:
    """Two workers, all sessions submitted together; the clock runs until the last one has ended."""
    sessions = 20 if quick else 50
    sandbox = ("sandbox_mode=workspace-write", "approval_policy=never")
    async with fleet(lab, f"shell:{COMMANDS}", *sandbox) as running:
        for _ in range(2):
            running.hire(sessions)
        await _all_at_once(running, 4)
        before = running.costs()
        wall_s = await _all_at_once(running, sessions)
        spent = {part: cost - before[part] for part, cost in running.costs().items()}
        resident = sum(resident_mib(worker.pid) for worker in running.workers)
    note = f"{sessions} sessions, {COMMANDS} commands each (bash -c, workspace-write), 2 workers"
    return [
        Figure(f"{sessions} sessions at once: wall time", wall_s, "s", at_most(3), note=note),
        Figure("CPU per session, all processes", _total(spent) / sessions * 1000, "ms", None, note=note),
        *_shares(spent, sessions),
        Figure("memory of workers and supervisors", resident, "MiB", None, note="Pss, after the run"),
    ]


async def _all_at_once(running: Fleet, count: int) -> float:
    sessions = [await running.session() for _ in range(count)]
    began = time.monotonic()
    done = await asyncio.gather(*(take_turns(running, session, 1) for session in sessions))
    wall_s = time.monotonic() - began
    assert all(turn.commands == COMMANDS for turns in done for turn in turns)
    return wall_s


def _total(spent: dict[str, Cpu]) -> float:
    return sum(cost.own_s + cost.below_s for cost in spent.values())


def _shares(spent: dict[str, Cpu], sessions: int) -> list[Figure]:
    per_session = {part: cost.own_s / sessions * 1000 for part, cost in spent.items()}
    per_session["supervisors and commands"] = spent["worker"].below_s / sessions * 1000
    return [Figure(f"  of it: {part}", cost, "ms") for part, cost in per_session.items()]
