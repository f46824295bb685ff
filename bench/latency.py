"""How long a turn takes beside the model, and its CPU: one session at a time, nothing else to do."""

from __future__ import annotations

import httpx

from bench.figures import Figure, at_most, spread
from bench.lab import Fleet, Lab, fleet
from bench.turns import Turn, take_turns

_WARM = 3
"""Turns of each session before those that are measured: caches, connections."""
_CPU_MS = {"worker": at_most(1.5), "redis": at_most(0.45)}

Mark = tuple[float, float]
"""(request seen by the stub, last byte given to the kernel by it)"""


async def run(lab: Lab, quick: bool) -> list[Figure]:
    """Two workers' worth of sessions, turn by turn."""
    sessions, each = (4, 10) if quick else (10, 20)
    async with fleet(lab, "instant") as running:
        running.hire(16)
        await take_turns(running, await running.session(), _WARM)
        before = running.costs()
        pairs: list[tuple[Turn, Mark]] = []
        for _ in range(sessions):
            session = await running.session()
            turns = await take_turns(running, session, each + _WARM)
            pairs += list(zip(turns, marks(running)[session], strict=True))[_WARM:]
        spent = {part: cost - before[part] for part, cost in running.costs().items()}
    taken = sessions * (each + _WARM)
    note = f"{len(pairs)} turns of {sessions} parked sessions, one at a time"
    return [
        spread("submission → request at the stub", [m[0] - t.submitted for t, m in pairs], at_most(6), note),
        spread("last SSE byte → task_complete", [t.completed - m[1] for t, m in pairs], at_most(3), note),
        spread("whole turn", [t.completed - t.submitted for t, m in pairs], None, note),
        *(
            Figure(f"CPU of a turn: {part}", cost.own_s / taken * 1000, "ms", _CPU_MS.get(part))
            for part, cost in spent.items()
        ),
    ]


def marks(running: Fleet) -> dict[str, list[Mark]]:
    """The stub's notes of every session, in the order of its requests."""
    answer = httpx.get(running.base_url.removesuffix("/v1") + "/marks", trust_env=False)
    found: dict[str, list[Mark]] = answer.json()
    return found
