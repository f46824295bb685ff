"""Jobs of the worker's pools: taken while there is room, done once, answered, or given up with their asker.

A job that was taken is never begun again. While it is done, the worker says so; what it runs lives no longer
than the right to run it, as a command of a session does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

import orjson

from orchestrator.broker.errors import BrokerError
from orchestrator.runtime.log import log
from orchestrator.runtime.ports import Ports

KEEP_S = 2.0
TRUST_S = 4.0
"""Time for which a job may be believed to be wanted, after the last word about it that was answered."""
MOST_AT_ONCE = 4
POLL_S = 1.0
RETRY_S = 0.2
ANSWER_S = 30.0
LEAVES = "its worker was told to leave while it was at it"


class Bench(Protocol):
    """The doer of jobs."""

    def extend(self, claim: str, deadline_boottime: float) -> None:
        """Lets what runs under a job's claim live until then."""
        ...

    async def do(self, payload: bytes, claim: str) -> bytes:
        """The answer to a job; cancelling it ends what it runs."""
        ...


class JobServer:
    """A worker's part that serves jobs; `has_room` says whether the worker may begin one more."""

    def __init__(
        self, ports: Ports, bench: Bench, who: tuple[str, tuple[str, ...]], has_room: Callable[[], bool]
    ) -> None:
        self._ports = ports
        self._bench = bench
        self._worker, self._pools = who
        self._has_room = has_room
        self._at_work: set[asyncio.Task[None]] = set()
        self._due = asyncio.Event()

    @property
    def at_work(self) -> int:
        """The number of jobs that are being done."""
        return len(self._at_work)

    def notice(self) -> None:
        """Notes that jobs may wait."""
        self._due.set()

    async def serve(self) -> None:
        """Takes jobs for ever; at its end those that are being done are given up."""
        poll = self._ports.spawn(self._poll_regularly(), "jobs:poll")
        try:
            while True:
                await self._due.wait()
                self._due.clear()
                try:
                    await self._take_all()
                except BrokerError as error:
                    log.warning("jobs were not looked at: %s", error)
        finally:
            poll.cancel()
            await asyncio.gather(poll, return_exceptions=True)
            await self._give_up()

    async def _poll_regularly(self) -> None:
        while True:
            self._due.set()
            await self._ports.sleep(POLL_S)

    async def _take_all(self) -> None:
        for pool in self._pools:
            while (room := self._room()) and (jobs := await self._ports.broker.jobs.waiting_jobs(pool, room)):
                for job in jobs:
                    await self._take(pool, job)

    def _room(self) -> int:
        return MOST_AT_ONCE - len(self._at_work) if self._has_room() else 0

    async def _take(self, pool: str, job: str) -> None:
        sent_at = self._ports.boottime()
        payload = await self._ports.broker.jobs.take_job(pool, job, self._worker)
        if payload is None:
            return
        self._bench.extend(_claim(job), sent_at + TRUST_S)
        task = self._ports.spawn(self._carry_out(job, payload), f"job:{job}")
        self._at_work.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._at_work.discard(task)
        self._due.set()

    async def _give_up(self) -> None:
        for task in list(self._at_work):
            task.cancel()
        await asyncio.gather(*self._at_work, return_exceptions=True)

    # ── one job ───────────────────────────────────────────────────────────────────────────────

    async def _carry_out(self, job: str, payload: bytes) -> None:
        doing = asyncio.create_task(self._bench.do(payload, _claim(job)))
        keeping = asyncio.create_task(self._keep(job))
        answer = orjson.dumps({"kind": "failed", "message": LEAVES})
        try:
            await asyncio.wait((doing, keeping), return_when=asyncio.FIRST_COMPLETED)
            if doing.done():
                answer = doing.result()
        except Exception:
            log.exception("job %s failed", job)
            answer = orjson.dumps({"kind": "failed", "message": "it failed; the worker's log says why"})
        finally:
            for task in (doing, keeping):
                task.cancel()
            await asyncio.gather(doing, keeping, return_exceptions=True)
            if not keeping.done() or keeping.cancelled():
                await self._answer(job, answer)

    async def _keep(self, job: str) -> None:
        """Says that the worker is at the job, until nobody wants it any more."""
        while True:
            await self._ports.sleep(KEEP_S)
            sent_at = self._ports.boottime()
            try:
                if not await self._ports.broker.jobs.keep_job(job, self._worker):
                    return
            except BrokerError as error:
                # The deadline of what runs was not moved: unless the next word is answered, it ends there.
                log.warning("job %s: %s", job, error)
                continue
            self._bench.extend(_claim(job), sent_at + TRUST_S)

    async def _answer(self, job: str, answer: bytes) -> None:
        try:
            async with asyncio.timeout(ANSWER_S):
                await self._insist(lambda: self._ports.broker.jobs.answer_job(job, self._worker, answer))
        except TimeoutError:
            log.warning("job %s: its answer did not reach Redis", job)

    async def _insist(self, send: Callable[[], Coroutine[Any, Any, bool]]) -> None:
        while True:
            try:
                await send()
                return
            except BrokerError:
                await self._ports.sleep(RETRY_S)


def _claim(job: str) -> str:
    """The supervisor's name for the right to run what a job asks for."""
    return f"job:{job}"
