"""streaq on Redis Streams: what a worker holds is taken by others when it was idle for long enough."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from streaq import Worker

from peers.jobs import Queue, address, begun, redis, short
from peers.wire import Peer, serve

worker = Worker(redis_url=f"unix://{address()}", **({"idle_timeout": 1} if short() else {}))


@worker.task(name="job")
async def job(id: str) -> None:
    """Notes its begin."""
    await asyncio.sleep(begun(id))


class Streaq(Queue):
    """One queue, one worker."""

    argv = ("-c", "from peers.streaq.adapter import worker; worker.run_sync()")

    async def put(self, id: str) -> Any:
        return await job.enqueue(id)


@asynccontextmanager
async def opened() -> AsyncIterator[Peer]:
    """Redis, worker and client."""
    with redis():
        queue = Streaq()
        await queue.restart()
        async with worker:
            yield queue
        await queue.kill()


if __name__ == "__main__":
    serve(opened)
