"""Questions of MCP servers in the middle of calls: each waits for the decision that the log will have."""

from __future__ import annotations

import asyncio
from collections import Counter

from orchestrator.core import commands as c
from orchestrator.protocol.ids import CallId
from orchestrator.protocol.mcp import ElicitationAction
from orchestrator.runtime.arrivals import Arrivals


class Elicitations:
    """The questions of one claimed session."""

    def __init__(self, arrivals: Arrivals) -> None:
        self._arrivals = arrivals
        self._waiting: dict[str, asyncio.Future[ElicitationAction]] = {}
        self._asked: Counter[str] = Counter()

    async def ask(self, call_id: CallId, server: str, message: str) -> ElicitationAction:
        """Puts a question to the person, and waits; cancelled, it is withdrawn."""
        self._asked[call_id] += 1
        id = f"{call_id}-q{self._asked[call_id]}"
        waits: asyncio.Future[ElicitationAction] = asyncio.get_running_loop().create_future()
        self._waiting[id] = waits
        self._arrivals.push(c.Elicited(call_id, id, server, message))
        try:
            return await waits
        except asyncio.CancelledError:
            self._arrivals.push(c.ElicitationDropped(id))
            raise
        finally:
            del self._waiting[id]

    def decided(self, id: str, decision: str) -> None:
        """Tells whoever waits; a decision that was told is in the state until its call is over."""
        waits = self._waiting.get(id)
        if waits is not None and not waits.done():
            known = decision in tuple(ElicitationAction)
            waits.set_result(ElicitationAction(decision) if known else ElicitationAction.CANCEL)
