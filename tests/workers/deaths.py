"""A process that dies at the n-th thing it does: from then on nothing of it has any effect."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from orchestrator.broker.connection import Connection, ScriptCall
from orchestrator.rollouts.object_store import Objects


class Death(BaseException):
    """Not an error that anybody could handle: the process is gone."""


class Countdown:
    """Counts what a process does to the world; it dies at one of them, before or after the effect."""

    def __init__(self, dies_at: int) -> None:
        self._dies_at = dies_at
        self._count = 0
        self._lock = threading.Lock()

    def step(self) -> None:
        with self._lock:
            self._count += 1
            if self._count >= self._dies_at:
                raise Death


class MortalConnection(Connection):
    """A connection of a process with a countdown."""

    def __init__(self, inner: Connection, countdown: Countdown) -> None:
        self._inner = inner
        self._countdown = countdown
        self.clustered = inner.clustered

    async def run(self, call: ScriptCall) -> list[Any]:
        self._countdown.step()
        reply = await self._inner.run(call)
        self._countdown.step()
        return reply

    async def run_all(self, calls: Sequence[ScriptCall]) -> list[list[Any]]:
        return [await self.run(call) for call in calls]

    async def command(self, *args: Any) -> Any:
        self._countdown.step()
        reply = await self._inner.command(*args)
        self._countdown.step()
        return reply

    async def commands(self, rows: Sequence[Sequence[Any]]) -> list[Any]:
        return [await self.command(*row) for row in rows]


class MortalObjects(Objects):
    """The archive as a process with a countdown writes it."""

    def __init__(self, url: str, countdown: Countdown) -> None:
        super().__init__(url)
        self._countdown = countdown

    def put(self, name: str, content: bytes) -> None:
        self._countdown.step()
        super().put(name, content)
        self._countdown.step()

    def _put_file(self, path: Path, content: bytes) -> None:
        # A death in the middle of the write leaves these files.
        path.parent.mkdir(parents=True, exist_ok=True)
        torn = path.with_name(f"{path.name}.{self._token(8)}.part")
        torn.write_bytes(content[: len(content) // 2])
        self._countdown.step()
        torn.unlink()
        super()._put_file(path, content)

    def get(self, name: str) -> bytes | None:
        self._countdown.step()
        return super().get(name)

    def exists(self, name: str) -> bool:
        self._countdown.step()
        return super().exists(name)

    def names(self, folder: str) -> list[str]:
        self._countdown.step()
        return super().names(folder)

    def remove(self, name: str) -> None:
        self._countdown.step()
        super().remove(name)
        self._countdown.step()
