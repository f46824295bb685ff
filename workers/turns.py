"""The turn worker's process: claims sessions and runs their turns until a stop signal.

SIGTERM and SIGINT drain it: nothing more is claimed, each session is given back at its next
boundary, a running command gets its grace. A second signal ends it at once; the sessions
are taken over as after any death.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable

import uvloop

from orchestrator.runtime import log
from orchestrator.runtime.worker import Worker
from orchestrator.sandbox.kernel import share_heap
from orchestrator.settings import Settings
from orchestrator.wiring.deployment import redis_url
from orchestrator.wiring.gateway import settle_heap
from orchestrator.wiring.worker_parts import running_worker


def run_turns(
    settings: Settings, parent_pipe: int | None = None, ready: Callable[[], None] | None = None
) -> int:
    """Runs one worker; answers its exit code.

    `parent_pipe` is a descriptor whose end means that the process that wanted this worker
    is gone: the worker drains then. `ready` is called when it begins to claim.
    """
    share_heap()
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
    with redis_url(settings, log.warning) as url:
        uvloop.run(_run(settings, url, parent_pipe, ready))
    return 0


async def _run(
    settings: Settings, url: str, parent_pipe: int | None, ready: Callable[[], None] | None
) -> None:
    # The process that wanted this worker uses the same Redis, and says when it is away.
    say = log.warning if parent_pipe is None else _silent
    async with running_worker(settings, url, say=say) as worker:
        _obey_signals(worker, parent_pipe is None)
        if parent_pipe is None:
            pools = ", ".join(settings.worker.pools)
            _print(f"serving {pools}: {settings.worker.concurrency} sessions at once; Ctrl-C drains")
        else:
            _leave_with(parent_pipe, worker)
        settle_heap()
        if ready is not None:
            ready()
        await worker.run()


def _silent(_: str) -> None:
    pass


def _print(text: str) -> None:
    """Prints a line for a person who started this worker by hand."""
    print(f"dendro worker: {text}", file=sys.stderr, flush=True)


def _obey_signals(worker: Worker, aloud: bool) -> None:
    loop = asyncio.get_running_loop()

    def drain(number: signal.Signals) -> None:
        loop.remove_signal_handler(number)
        if aloud:
            _print("draining: sessions are given back, commands get their grace; again ends it at once")
        worker.drain()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, drain, number)


def _leave_with(pipe: int, worker: Worker) -> None:
    loop = asyncio.get_running_loop()

    def ended() -> None:
        if not os.read(pipe, 4096):
            loop.remove_reader(pipe)
            worker.drain()

    os.set_blocking(pipe, False)
    loop.add_reader(pipe, ended)
