"""Dendro as its users have it: a Redis, two workers with their supervisors, and a client."""

from __future__ import annotations

import os
import secrets
import signal
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any, cast

from bench.lab import Fleet, attached, lab
from bench.turns import submit_turn
from orchestrator.core.ids import SessionId
from orchestrator.runtime.loader import end_of, folded
from orchestrator.runtime.ports import Ports
from peers.wire import Peer, folder, model, serve, variant

ROOM = 64
MODES = {"unconfined": "danger-full-access", "confined": "workspace-write"}


class Dendro(Peer):
    """Sessions of a fleet of two workers."""

    def __init__(self, running: Fleet) -> None:
        self._running = running
        self._last = ""

    async def turn(self, id: str, text: str) -> str:
        session = self._last = SessionId(id) if id else await self._running.session()
        name = secrets.token_hex(8)
        async with aclosing(cast(Any, self._running.client.follow(session, newborn=not id))) as events:
            await submit_turn(self._running, session, name, text)
            async for event in events:
                if event.id == name and event.type in ("error", "turn_aborted"):
                    raise RuntimeError(f"{event.msg}")
                if event.id == name and event.type == "task_complete":
                    return session
        raise RuntimeError("the events ended")

    async def resume(self, id: str) -> int:
        head = await self._running.client.head(SessionId(id))
        assert head is not None
        unused: Any = None
        ports = Ports(self._running.opened.broker, self._running.opened.texts, models=unused, tools=unused)
        return len((await folded(ports, end_of(head))).state.history)

    async def kill(self) -> bool:
        head = await self._running.client.head(SessionId(self._last))
        assert head is not None
        for worker in self._running.workers:
            if f"-{worker.pid}-" in (head.holder or ""):
                os.kill(worker.pid, signal.SIGKILL)
        return True


@asynccontextmanager
async def opened() -> AsyncIterator[Peer]:
    """The fleet, on what an earlier one has left in the folder."""
    overrides = (f"sandbox_mode={MODES[variant()]}", "approval_policy=never")
    with lab(folder()) as place:
        async with attached(place, model(), *overrides) as running:
            for _ in range(2):
                running.hire(ROOM)
            yield Dendro(running)


if __name__ == "__main__":
    serve(opened)
