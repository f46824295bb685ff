"""A connection for commands of people: what is not answered is sent again, for a bounded time.

Every script may be sent again with the same ids, and a read may be repeated; so a server that starts, loads
or fails over costs a person some seconds, and not the command. Workers must not use it: a lease runs out
while it waits.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from orchestrator.broker.arguments import Argument
from orchestrator.broker.connection import Connection, ScriptCall
from orchestrator.broker.errors import Unavailable

AGAIN_S = 0.1
AGAIN_MAX_S = 1.0

T = TypeVar("T")


class RetryingConnection(Connection):
    """A connection that raises `Unavailable` only after `patience_s` without an answer."""

    def __init__(self, inner: Connection, patience_s: float) -> None:
        self._inner = inner
        self._patience_s = patience_s
        self.clustered = inner.clustered

    async def run(self, call: ScriptCall) -> list[Any]:
        return await self._insist(lambda: self._inner.run(call))

    async def run_all(self, calls: Sequence[ScriptCall]) -> list[list[Any]]:
        return await self._insist(lambda: self._inner.run_all(calls))

    async def command(self, *args: Argument) -> Any:
        return await self._insist(lambda: self._inner.command(*args))

    async def commands(self, rows: Sequence[Sequence[Argument]]) -> list[Any]:
        return await self._insist(lambda: self._inner.commands(rows))

    async def together(self, rows: Sequence[Sequence[Argument]]) -> list[Any]:
        return await self._insist(lambda: self._inner.together(rows))

    async def wait(self, *args: Argument) -> Any:
        return await self._inner.wait(*args)

    async def wait_if(
        self, read: Sequence[Argument], holds: Callable[[Any], bool], wait: Sequence[Argument]
    ) -> tuple[bool, Any]:
        return await self._inner.wait_if(read, holds, wait)

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def _insist(self, send: Callable[[], Awaitable[T]]) -> T:
        deadline, delay = time.monotonic() + self._patience_s, AGAIN_S
        while True:
            try:
                return await send()
            except Unavailable as error:
                if time.monotonic() + delay > deadline:
                    waited = f"waited {self._patience_s:.0f} s for it"
                    remedy = "start the server, or correct redis.url (DENDRO_REDIS_URL)"
                    raise Unavailable(f"{error}; {waited}: {remedy}") from error
            await asyncio.sleep(delay)
            delay = min(2 * delay, AGAIN_MAX_S)
