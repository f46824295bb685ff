"""The side tasks of one session: started, named, watched and stopped in one place.

An effect never writes. It hands what happened to the runner as commands, and what is to be
shown meanwhile as deltas. An effect that dies of an unexpected error tells the runner so;
nothing is swallowed.

An effect that has ended is not over: until its result is decided, the log still says that
it runs, and whoever asks the log alone would start it again. So a key stays here from its
start until it is settled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from orchestrator.runtime.ports import Ports

EffectKey = tuple[str, str]
"""(`request`, `call`, `look_up` or `process`, its number, id or key)."""


class Effects:
    """The running effects of one session, by key."""

    def __init__(
        self, ports: Ports, session: str, ended: Callable[[EffectKey, BaseException | None], None]
    ) -> None:
        self._ports = ports
        self._session = session
        self._notify = ended
        self._unsettled: set[EffectKey] = set()
        self._running: dict[EffectKey, tuple[asyncio.Task[None], float]] = {}

    def __bool__(self) -> bool:
        return bool(self._running)

    @property
    def unsettled(self) -> bool:
        """Whether a result is still to come; an effect that is settled may still be ending."""
        return bool(self._unsettled)

    def __contains__(self, key: object) -> bool:
        """Whether the effect was started and its result is not decided yet."""
        return key in self._unsettled

    def start(self, key: EffectKey, work: Coroutine[Any, Any, None]) -> None:
        """Starts an effect once: a key that is not settled is an error of the caller."""
        assert key not in self._unsettled
        self._unsettled.add(key)
        task = self._ports.spawn(work, f"{self._session}:{key[0]}:{key[1]}")
        self._running[key] = (task, self._ports.monotonic())
        task.add_done_callback(lambda done: self._ended(key, done))

    def _ended(self, key: EffectKey, task: asyncio.Task[None]) -> None:
        self._running.pop(key, None)
        self._notify(key, None if task.cancelled() else task.exception())

    def settle(self, key: EffectKey) -> None:
        """Notes that an effect's result was decided: if the state asks for it now, that is a new decision."""
        self._unsettled.discard(key)

    def reopen(self, key: EffectKey) -> None:
        """Notes that the decision on an effect's result was not committed: it will be made again."""
        self._unsettled.add(key)

    def settle_all(self) -> None:
        """Notes that every effect was stopped, and that this was decided."""
        self._unsettled.clear()

    def elapsed(self, kind: str) -> dict[str, float]:
        """Seconds that each running effect of a kind has run."""
        now = self._ports.monotonic()
        return {key[1]: now - began for key, (_, began) in self._running.items() if key[0] == kind}

    def cancel(self) -> None:
        """Cancels every effect, without waiting for the proof."""
        for task, _ in self._running.values():
            # A second cancel would end the wait for the proof that what ran is dead.
            if not task.cancelling():
                task.cancel()

    async def stop(self) -> None:
        """Cancels every effect and returns when all have ended; commands are proved dead by then."""
        tasks = [task for task, _ in self._running.values()]
        self.cancel()
        await _ended_all(tasks)


async def _ended_all(tasks: Iterable[asyncio.Task[None]]) -> None:
    for task in tasks:
        await asyncio.wait([task])
