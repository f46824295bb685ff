"""dramatiq on Redis: jobs of a worker whose heartbeat is over are queued anew, by maintenance at random."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from peers.jobs import Queue, address, begun, redis, short
from peers.wire import Peer, serve

shortest = {"heartbeat_timeout": 1_000, "maintenance_chance": 1_000_000} if short() else {}
dramatiq.set_broker(RedisBroker(url=f"unix://{address()}", **shortest))


@dramatiq.actor
def job(id: str) -> None:
    """Notes its begin."""
    time.sleep(begun(id))


class Dramatiq(Queue):
    """One queue, one process of eight threads."""

    argv = ("-m", "dramatiq", "peers.dramatiq.adapter", "--processes", "1")

    async def put(self, id: str) -> Any:
        return job.send(id)


@asynccontextmanager
async def opened() -> AsyncIterator[Peer]:
    """Redis, worker and client."""
    with redis():
        queue = Dramatiq()
        await queue.restart()
        yield queue
        await queue.kill()


if __name__ == "__main__":
    serve(opened)
