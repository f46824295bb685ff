"""arq, which Dendro's upkeep uses: a claim of a job runs out with the job's own time limit, and 10 s."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, ClassVar

from arq import ArqRedis, create_pool
from arq.connections import RedisSettings

from peers.jobs import Queue, address, begun, redis, short
from peers.wire import Peer, serve


async def job(_: Any, id: str) -> None:
    """Notes its begin."""
    await asyncio.sleep(begun(id))


class Settings:
    """The worker's."""

    functions: ClassVar = [job]
    redis_settings = RedisSettings(unix_socket_path=address())
    job_timeout = 1 if short() else 300


class Arq(Queue):
    """One queue, one worker."""

    argv = ("-m", "arq", "peers.arq.adapter.Settings")

    def __init__(self, pool: ArqRedis) -> None:
        self._pool = pool

    async def put(self, id: str) -> Any:
        return await self._pool.enqueue_job("job", id)


@asynccontextmanager
async def opened() -> AsyncIterator[Peer]:
    """Redis, worker and client."""
    with redis():
        queue = Arq(await create_pool(Settings.redis_settings))
        await queue.restart()
        yield queue
        await queue.kill()


if __name__ == "__main__":
    serve(opened)
