"""Turns with three commands each: alone, without the sandbox and in it, and fifty sessions at once."""

from __future__ import annotations

import asyncio
import time

from bench.accounts import Cpu, resident_mib
from bench.figures import Figure, at_most, spread
from bench.lab import Fleet, Lab, fleet
from bench.turns import take_turns

COMMANDS = 3
_WARM = 3


async def run(lab: Lab, quick: bool) -> list[Figure]:
    """Turns one at a time, then two workers and all sessions together, until the last one has ended."""
    turns = 10 if quick else 40
    return [
        await _one_at_a_time(lab, turns, "danger-full-access", "without the sandbox", 30.0),
        await _one_at_a_time(lab, turns, "workspace-write", "in the sandbox", 45.0),
        *await _crowd(lab, 20 if quick else 50),
    ]


async def _one_at_a_time(lab: Lab, count: int, mode: str, where: str, most_ms: float) -> Figure:
    async with fleet(lab, f"shell:{COMMANDS}", f"sandbox_mode={mode}", "approval_policy=never") as running:
        running.hire(4)
        session = await running.session()
        await take_turns(running, session, _WARM)
        turns = await take_turns(running, session, count, _WARM)
    assert all(turn.commands == COMMANDS for turn in turns)
    took = [turn.completed - turn.submitted for turn in turns]
    note = f"{count} turns of one session, four model requests each"
    return spread(f"turn with {COMMANDS} commands {where}", took, at_most(most_ms), note)


async def _crowd(lab: Lab, sessions: int) -> list[Figure]:
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
        Figure(f"{sessions} sessions at once: wall time", wall_s, "s", at_most(1), note=note),
        Figure(
            "CPU per session, all processes", _total(spent) / sessions * 1000, "ms", at_most(34), note=note
        ),
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
