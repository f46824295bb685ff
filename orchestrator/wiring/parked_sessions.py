"""An op to a session that is at rest, where perhaps no worker serves it.

A worker of the session's pool is waited for a moment. Then a worker of this command's own reads what the
session was handed: it begins no request and no command, so it needs neither the folder nor the model.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from orchestrator.broker.records import SessionHead
from orchestrator.core.ids import SessionId
from orchestrator.gateways.submit import OpAnswer, submit_op
from orchestrator.protocol import ops
from orchestrator.views.event import Event
from orchestrator.wiring.open_deployment import Opened

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
