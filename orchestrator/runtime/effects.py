"""The side tasks of one session: started, named, watched and stopped in one place.

An effect never writes. It hands what happened to the runner as commands, and what is to be
shown meanwhile as deltas. An effect that dies of an unexpected error tells the runner so;
nothing is swallowed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from orchestrator.runtime.ports import Ports

EffectKey = tuple[str, str]
"""(`request` or `call`, its number or id)."""


class Effects:
    """What runs for one session right now, by key."""

    def __init__(
        self, ports: Ports, session: str, failed: Callable[[EffectKey, BaseException], None]
    ) -> None:
        self._ports = ports
        self._session = session
        self._failed = failed
        self._running: dict[EffectKey, tuple[asyncio.Task[None], float]] = {}

    def __bool__(self) -> bool:
        return bool(self._running)

    def __contains__(self, key: object) -> bool:
        return key in self._running

    def start(self, key: EffectKey, work: Coroutine[Any, Any, None]) -> None:
        """Starts an effect once: a key that runs already is an error of the caller."""
        assert key not in self._running
        task = self._ports.spawn(work, f"{self._session}:{key[0]}:{key[1]}")
        self._running[key] = (task, self._ports.monotonic())
        task.add_done_callback(lambda done: self._ended(key, done))

    def _ended(self, key: EffectKey, task: asyncio.Task[None]) -> None:
        self._running.pop(key, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed(key, error)

    def elapsed(self, kind: str) -> dict[str, float]:
        """Seconds that each running effect of a kind has run."""
        now = self._ports.monotonic()
        return {key[1]: now - began for key, (_, began) in self._running.items() if key[0] == kind}

    async def stop(self) -> None:
        """Cancels everything and returns when all of it has ended; commands are proved dead by then."""
        tasks = [task for task, _ in self._running.values()]
        for task in tasks:
            task.cancel()
        await _ended_all(tasks)


async def _ended_all(tasks: Iterable[asyncio.Task[None]]) -> None:
    for task in tasks:
        await asyncio.wait([task])
