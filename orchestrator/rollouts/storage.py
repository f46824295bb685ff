"""The storage of sessions: Redis for what is used, the archive for what is old."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from orchestrator.broker.blobs import Blobs
from orchestrator.broker.broker import Broker
from orchestrator.core.frozen import record
from orchestrator.rollouts.archive import Archive


@record
class Storage:
    """The storage of sessions: Redis and the archive. `secret` is the chain's key, if it has one."""

    broker: Broker
    blobs: Blobs
    archive: Archive
    secret: bytes = b""
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
