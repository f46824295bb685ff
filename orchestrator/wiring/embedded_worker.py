"""A worker inside of another program, for as long as that program wants one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress

from orchestrator.broker.records import SessionHead
from orchestrator.core.ids import SessionId
from orchestrator.gateways.submit import OpAnswer, submit_op
from orchestrator.protocol import ops
from orchestrator.runtime.worker import Worker
from orchestrator.settings import Settings
from orchestrator.settings.private_home import require_private
from orchestrator.tools.custom import CustomTool
from orchestrator.views.event import Event
from orchestrator.wiring.deployment import redis_url
from orchestrator.wiring.open_deployment import Opened
from orchestrator.wiring.worker_parts import running_worker


@asynccontextmanager
async def run_worker(
    settings: Settings, pools: tuple[str, ...] | None = None, tools: Sequence[CustomTool] = ()
) -> AsyncIterator[Worker]:
    """Serves the pools that the settings name, or these, until the block ends; then gives every session back.

    It shares the program's event loop: what blocks the loop for seconds makes the worker stop what it runs,
    because it could not tell whether it still may. Raises what ended the worker, at the end of the block.
    `tools` are offered to models beside the built-in ones; raises `ValueError` for one that cannot be.
    """
    require_private(settings)
    with redis_url(settings) as url:
        async with _serving(settings, url, pools, tools) as worker:
            yield worker


@asynccontextmanager
async def reaping(settings: Settings, url: str) -> AsyncIterator[Worker]:
    """A running worker of no pool, for processes that end cancelled agents which no worker serves.

    It claims only what it adopts, and leaves when that has read its messages.
    """
    async with _serving(settings, url, ()) as worker:
        yield worker


@asynccontextmanager
async def _serving(
    settings: Settings, url: str, pools: tuple[str, ...] | None, tools: Sequence[CustomTool] = ()
) -> AsyncIterator[Worker]:
    async with running_worker(settings, url, pools, own_tools=tools) as worker:
        running = asyncio.create_task(worker.run())
        try:
            yield worker
        finally:
            worker.drain()
            await running


# ── parked sessions ───────────────────────────────────────────────────────────────────────────────
# An op to a session that is at rest, where perhaps no worker serves it.
#
# A worker of the session's pool is waited for a moment. Then a worker of this command's own reads what
# the session was handed: it begins no request and no command, so it needs neither the folder nor the
# model.


SOON_S = 1.0
"""A worker that has room answers within milliseconds."""


async def submit_to_parked(
    found: Opened, head: SessionHead, op: ops.Op, answers: Callable[[Event, str], bool]
) -> OpAnswer:
    """Submits, and waits for the answer; raises `Fault` with the session's words if it refused the op."""
    reading = asyncio.create_task(_read(found, head.session)) if await _at_rest(found, head) else None
    try:
        return await submit_op(found.client(), head.session, op, answers)
    finally:
        if reading is not None:
            reading.cancel()
            with suppress(asyncio.CancelledError):
                await reading


async def _at_rest(found: Opened, head: SessionHead) -> bool:
    """Whether the session owes nothing and no worker holds it: the next op that it reads came from us."""
    serving = (await found.broker.logs.serving([head]))[head.session]
    return not (serving.due or serving.lease_ms is not None or head.quarantined)


async def _read(found: Opened, session: SessionId) -> None:
    from orchestrator.wiring.deployment import redis_url
    from orchestrator.wiring.embedded_worker import reaping

    await asyncio.sleep(SOON_S)
    with redis_url(found.settings) as url:
        async with reaping(found.settings, url) as worker:
            worker.adopt([session])
            await asyncio.Event().wait()
