"""Resumes one session in a fresh process, as a worker would, and tells what that took.

python -m bench.resume_process SESSION
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

import orjson
import uvloop

import workers.turns  # noqa: F401  what a worker's process has loaded is part of its memory
from bench.machine import peak_mib
from orchestrator.core.ids import SessionId
from orchestrator.runtime.loader import end_of, folded
from orchestrator.runtime.ports import Ports
from orchestrator.settings import SettingsSources, load_settings
from orchestrator.wiring.deployment import deployment


async def _resume(session: SessionId) -> dict[str, Any]:
    settings = load_settings(SettingsSources.of_process())
    async with deployment(settings, settings.redis.url or "") as opened:
        unused: Any = None
        ports = Ports(opened.broker, opened.texts, models=unused, tools=unused)
        began = time.perf_counter()
        head = await opened.broker.logs.head(session)
        assert head is not None
        position = await folded(ports, end_of(head))
        wall_s = time.perf_counter() - began
        snapshot = await opened.broker.logs.snapshot_of(session) or b""
    return {
        "seq": position.seq,
        "wall_s": wall_s,
        "snapshot_kib": len(snapshot) / 1024,
        "peak_mib": peak_mib(),
    }


if __name__ == "__main__":
    runner = uvloop.run if len(sys.argv) == 2 else asyncio.run
    sys.stdout.buffer.write(orjson.dumps(runner(_resume(SessionId(sys.argv[1])))))
