"""taskiq on Redis Streams: what a consumer holds is taken by others when it was idle for long enough."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from taskiq_redis import RedisStreamBroker

from peers.jobs import Queue, address, begun, redis, short
from peers.wire import Peer, serve

shortest = {"idle_timeout": 1_000, "unacknowledged_lock_timeout": 1.0} if short() else {}
broker = RedisStreamBroker(f"unix://{address()}", **shortest)


@broker.task(task_name="job")
async def job(id: str) -> None:
    """Notes its begin."""
    await asyncio.sleep(begun(id))


class Taskiq(Queue):
    """One stream, one worker."""

    argv = ("-m", "taskiq", "worker", "peers.taskiq.adapter:broker", "--workers", "1")

    async def put(self, id: str) -> Any:
        return await job.kiq(id)


@asynccontextmanager
async def opened() -> AsyncIterator[Peer]:
    """Redis, worker and client."""
    with redis():
        queue = Taskiq()
        await queue.restart()
        await broker.startup()
        yield queue
        await broker.shutdown()
        await queue.kill()


if __name__ == "__main__":
    serve(opened)
