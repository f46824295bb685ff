"""A worker that renews its leases and does not act: what it runs cannot be stopped. Started as a program."""

from __future__ import annotations

import asyncio
import sys
from typing import NoReturn

from orchestrator.cli.main import main
from orchestrator.core.calls import Call
from orchestrator.core.commands import CallFinished
from orchestrator.tools.tool_context import CallSite
from orchestrator.wiring import worker_parts
from orchestrator.wiring.worker_parts import ToolCalls


class DeafCalls(ToolCalls):
    """Calls run as ever, and then go on whoever tells them to stop."""

    async def run(self, call: Call, site: CallSite) -> CallFinished:
        running = asyncio.ensure_future(super().run(call, site))
        while True:
            try:
                await asyncio.shield(running)
                return running.result()
            except asyncio.CancelledError:
                await self._not_listening()

    async def _not_listening(self) -> NoReturn:
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                continue


if __name__ == "__main__":
    # The worker is composed from the names of that module.
    vars(worker_parts)[ToolCalls.__name__] = DeafCalls
    sys.argv = ["dendro", "worker"]
    main()
