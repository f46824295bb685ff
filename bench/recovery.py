"""Recovery: a worker is killed in the middle of a command; how long until another one has its session.

Each worker dies once (SIGKILL), when a process waits for its death and a command of a session runs under
it. The other worker has nothing else to do. What is measured ends with the other worker's claim, which Redis
gives when nothing of the first one runs any more, and with the first event that is shown of it.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import time
from contextlib import aclosing
from pathlib import Path
from typing import Any, cast

import orjson

from bench.figures import Figure, at_most, spread
from bench.lab import Fleet, Lab, fleet
from bench.turns import PATIENCE_S, submit_turn
from orchestrator.core.ids import SessionId

_LOOK_S = 0.002
_COMMAND = ["sh", "-c", "sleep 600"]
_WAITS = "name=dendro-burial"


async def run(lab: Lab, quick: bool) -> list[Figure]:
    """Kills workers, one after the other."""
    times = 8 if quick else 60
    claimed: list[float] = []
    told: list[float] = []
    async with fleet(lab, str(_scenario(lab.folder))) as running:
        running.hire(16)
        for _ in range(times):
            running.hire(16)
            await waited_for(running, 2)
            claim_s, event_s = await _recovery(running)
            claimed.append(claim_s)
            told.append(event_s)
    note = f"{times} workers killed, each with a command of a session running in its sandbox"
    return [
        spread("SIGKILL of a worker → next claim of its session", claimed, at_most(300, 600), note),
        spread(
            "SIGKILL of a worker → the session's next event", told, None, "the command is told to be in doubt"
        ),
    ]


def _scenario(folder: Path) -> Path:
    file = folder / "recovery.json"
    steps = [{"items": [{"call": "shell", "args": {"command": _COMMAND}}]}, {"items": [{"text": "Done."}]}]
    file.write_bytes(orjson.dumps({"steps": steps, "per_session": True}))
    return file


async def waited_for(running: Fleet, workers: int) -> None:
    """Waits until so many processes wait for the deaths of workers."""
    until = time.monotonic() + PATIENCE_S
    while str(await running.opened.broker.command("CLIENT", "LIST")).count(_WAITS) != workers:
        if time.monotonic() > until:
            raise RuntimeError(f"{workers} processes should wait for the deaths of workers")
        await asyncio.sleep(0.05)


async def _recovery(running: Fleet) -> tuple[float, float]:
    """Seconds until the session of a killed worker is claimed anew, and until somebody is told something."""
    session = await running.session()
    async with aclosing(cast(Any, running.client.follow(session))) as events, asyncio.timeout(PATIENCE_S):
        await submit_turn(running, session, "turn-0")
        async for event in events:
            if event.type == "exec_command_begin":
                break
        claim = asyncio.create_task(kills(running, session))
        await anext(events)
        told = time.monotonic()
        died, claimed = await claim
        async for event in events:
            if event.type == "task_complete":
                return claimed - died, told - died
    raise RuntimeError("the session's events ended before its turn")


async def kills(running: Fleet, session: SessionId) -> tuple[float, float]:
    """Kills the worker that holds the session; the times of that, and of the session's next claim."""
    head = await running.client.head(session)
    assert head is not None
    victim = _holder(running, head.holder or "")
    victim.send_signal(signal.SIGKILL)
    died = time.monotonic()
    claimed = await _claimed(running, session, head.epoch)
    victim.communicate()
    running.workers.remove(victim)
    return died, claimed


def _holder(running: Fleet, name: str) -> subprocess.Popen[bytes]:
    return next(worker for worker in running.workers if f"-{worker.pid}-" in name)


async def _claimed(running: Fleet, session: SessionId, epoch: int) -> float:
    """When the session was first seen with a later claim."""
    while True:
        head = await running.client.head(session)
        if head is not None and head.epoch > epoch:
            return time.monotonic()
        await asyncio.sleep(_LOOK_S)
