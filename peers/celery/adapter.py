"""Celery on Redis: a job is acknowledged when it begins; `shortest` acknowledges late, and queues it anew."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from celery import Celery

from peers.jobs import Queue, address, begun, redis, short
from peers.wire import Peer, serve

app = Celery("peers", broker=f"redis+socket://{address()}")
app.conf.task_ignore_result = True
if short():
    app.conf.update(task_acks_late=True, task_reject_on_worker_lost=True)
    app.conf.broker_transport_options = {"visibility_timeout": 1, "unacked_restore_limit": 100}


@app.task(name="job")
def job(id: str) -> None:
    """Notes its begin."""
    time.sleep(begun(id))


class Queued(Queue):
    """One queue, one worker of four processes."""

    argv = ("-m", "celery", "-A", "peers.celery.adapter", "worker", "--concurrency", "4", "-l", "ERROR")

    async def put(self, id: str) -> Any:
        return job.delay(id)


@asynccontextmanager
async def opened() -> AsyncIterator[Peer]:
    """Redis, worker and client."""
    with redis():
        queue = Queued()
        await queue.restart()
        yield queue
        await queue.kill()


if __name__ == "__main__":
    serve(opened)
