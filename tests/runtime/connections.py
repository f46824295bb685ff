"""A connection to Redis that a test can hold up, cut, or make forget its answers.

Knows scripts and commands by name, and nothing of sessions.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from orchestrator.broker.connection import Connection, ScriptCall
from orchestrator.broker.errors import Unavailable

Hook = Callable[[Sequence[Any]], Awaitable[None]]
"""Gets the arguments of what is sent."""


class Gate:
    """A place where something waits until the test lets it pass."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.opened = asyncio.Event()

    async def wait(self, _: object = None) -> None:
        self.reached.set()
        await self.opened.wait()

    def open(self) -> None:
        self.opened.set()


def lost(times: int = 1) -> Hook:
    """The connection breaks, so many times."""
    left = times

    async def break_(_: Sequence[Any]) -> None:
        nonlocal left
        if left:
            left -= 1
            raise Unavailable("the connection was cut by the test")

    return break_


class ScriptedConnection(Connection):
    """Hooks before a script or command is sent, and after it took effect but before its answer is told."""

    def __init__(self, inner: Connection) -> None:
        self._inner = inner
        self.clustered = inner.clustered
        self.before: dict[str, Hook] = {}
        self.after: dict[str, Hook] = {}
        self.sent: defaultdict[str, int] = defaultdict(int)
        self.calls: list[tuple[str, Sequence[Any]]] = []

    async def _hooked(self, name: str, args: Sequence[Any], send: Callable[[], Awaitable[Any]]) -> Any:
        self.sent[name] += 1
        self.calls.append((name, args))
        if name in self.before:
            await self.before[name](args)
        reply = await send()
        if name in self.after:
            await self.after[name](args)
        return reply

    async def run(self, call: ScriptCall) -> list[Any]:
        reply: list[Any] = await self._hooked(call.script.name, call.args, lambda: self._inner.run(call))
        return reply

    async def run_all(self, calls: Sequence[ScriptCall]) -> list[list[Any]]:
        return [await self.run(call) for call in calls]

    async def command(self, *args: Any) -> Any:
        return await self._hooked(str(args[0]), args, lambda: self._inner.command(*args))

    async def commands(self, rows: Sequence[Sequence[Any]]) -> list[Any]:
        return [await self.command(*row) for row in rows]

    async def wait(self, *args: Any) -> Any:
        return await self._hooked(str(args[0]), args, lambda: self._inner.wait(*args))

    async def aclose(self) -> None:
        await self._inner.aclose()
