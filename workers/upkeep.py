"""The upkeep process: an arq worker for everything that keeps a deployment tidy.

Cron jobs look, deferred jobs act, one per session; a job's id names what it is for, so that a
second look does not queue it again. Jobs are idempotent and their arguments JSON. Whatever is
lost with the queue or with this process is found again by the next look: turns need none of it.

    every 10 s      due timers, as a backstop for workers; cancels that no worker brings to an end
    every minute    what should be sealed or archived is queued; sessions without a worker are logged
    every 10 min    the chains of a few sessions are verified, in turn, and packs of theirs that no entry
                    names are removed
    every hour      trees past their retention are deleted, and halves of imports that died a day ago

Beside them the owner's webhook is told of what happens (`workers.webhook`).
arq cannot use a cluster, so its queue may have a server of its own (`upkeep.url`).
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import arq
import orjson
import uvloop
from arq.connections import ArqRedis
from redis import exceptions as foreign

from orchestrator.broker.connection import mapped, pool
from orchestrator.broker.errors import BrokerError, Corrupt, OutOfMemory, Unavailable
from orchestrator.broker.records import SessionHead
from orchestrator.broker.sockets import Era
from orchestrator.config_keys import RedisSettings
from orchestrator.core.counts import counted
from orchestrator.core.facts import Claimed
from orchestrator.core.ids import SessionId, TreeId
from orchestrator.rollouts.archive import Archive, Storage
from orchestrator.rollouts.deletion import NotDeleted
from orchestrator.rollouts.object_store import ArchiveUnavailable
from orchestrator.rollouts.redaction import finish_redactions
from orchestrator.rollouts.segments import BrokenArchive
from orchestrator.runtime.loader import BrokenLog, restore_session
from orchestrator.runtime.unserved_cancels import GRACE_MS, trees_with_cancels
from orchestrator.sandbox.kernel import share_heap
from orchestrator.settings import Settings
from orchestrator.wiring.deployment import chain_key, client_name, deployment, redis_url, worker_name
from orchestrator.wiring.embedded_worker import reaping
from orchestrator.wiring.gateway import settle_heap
from orchestrator.wiring.new_sessions import this_process
from orchestrator.wiring.open_deployment import Opened
from orchestrator.wiring.portable import pack_store
from orchestrator.workspaces.stored_packs import Packs
from workers.upkeep_cancels import Opening, end_cancelled
from workers.upkeep_checks import Looks, Round, concerns, fire_timers, unattended, verify_some
from workers.upkeep_packs import collect_packs, collect_unborn
from workers.upkeep_resting import archive_tree, due_trees, enlist_trees
from workers.upkeep_retention import (
    delete_tree,
    end_imports,
    expired_trees,
    finish_deletions,
    old_imports,
)
from workers.upkeep_sealing import (
    Mover,
    due_to_seal,
    due_to_seal_whole,
    may_seal_tree,
    seal_session,
    seal_tree_log,
)
from workers.webhook import Webhook, webhook_of

log = logging.getLogger("dendro.upkeep")

DAY_MS = 86_400_000
MAX_JOBS = 4
ALIVE_S = 60
JOB_TIMEOUT_S = 300
RECONNECT_S = 2.0
"""The queue's server answers at once or is gone: nothing that a job runner asks it may block."""

Context = dict[str, Any]
"""The context that arq passes to every job; `upkeep` in it is ours."""


@dataclass(slots=True)
class Upkeep:
    """The state that the jobs of a process share."""

    mover: Mover
    retention_ms: int | None
    verify_sessions: int
    reaping: Opening
    round: Round = field(default_factory=Round)
    looks: Looks = field(default_factory=Looks)
    enlisted: bool = False
    """Whether this process has looked for trees that an earlier version left out of what is looked at."""
    packs: Packs | None = None
    """The packs of portable folders; None where there are none to look after."""
    about: Claimed = field(default_factory=this_process)
    """This process, as a log names it with whose redaction it goes on."""
    webhook: Webhook | None = None
    """The owner's server; None if there is none to be told."""

    @property
    def storage(self) -> Storage:
        return self.mover.storage


def upkeep_of(settings: Settings, storage: Storage, url: str) -> Upkeep:
    rules = settings.upkeep
    mover = Mover(
        storage=storage,
        name=f"upkeep-{worker_name()}",
        seal_after=rules.seal_after,
        archive_after_ms=int(rules.archive_after_days * DAY_MS),
        idle_after_ms=None if rules.archive_idle_days is None else int(rules.archive_idle_days * DAY_MS),
        seal_idle_ms=None if rules.seal_idle_s is None else int(rules.seal_idle_s * 1000),
    )
    return Upkeep(
        mover=mover,
        retention_ms=None if rules.retention_days is None else int(rules.retention_days * DAY_MS),
        verify_sessions=rules.verify_sessions,
        reaping=lambda: reaping(settings, url),
        packs=pack_store(settings),
        about=this_process(mover.name),
    )


def queue_server(settings: Settings, url: str) -> RedisSettings:
    """The server of the queue: that of the deployment, unless another one is named."""
    return settings.redis.at(settings.upkeep.url or url)


# ── jobs ──────────────────────────────────────────────────────────────────────────────────────────


async def timers(ctx: Context) -> None:
    """Fires due timers: the backstop for a time without workers, which then find them as messages."""
    queue, broker = ctx["redis"], _upkeep(ctx).storage.broker
    fired = await fire_timers(broker.claims)
    if fired:
        log.info("%s fired", counted(len(fired), "timer"))
    for tree in await trees_with_cancels(broker.logs, fired):
        # Workers come first, if there are any.
        await _defer(queue, broker.config.prefix, reap.__name__, tree, after_s=GRACE_MS / 1000)


async def reap(ctx: Context, tree: str) -> bool:
    """Ends what was cancelled in one tree, where no worker does."""
    upkeep = _upkeep(ctx)
    return await end_cancelled(upkeep.storage.broker, TreeId(tree), upkeep.reaping)


async def look(ctx: Context) -> None:
    """Queues a job for each session that has something to be moved; logs work that no worker takes."""
    upkeep, queue = _upkeep(ctx), ctx["redis"]
    broker = upkeep.storage.broker
    await _enlist_once(upkeep)
    now_ms = broker.now_ms()
    async for tree in due_trees(upkeep.mover, now_ms):
        await _defer(queue, broker.config.prefix, archive.__name__, tree)
    concerned: dict[SessionId, SessionHead] = {}
    mover = upkeep.mover
    async for heads in upkeep.looks.pages(broker.logs, broker.claims, now_ms, mover.seal_idle_ms):
        for head in heads:
            due = due_to_seal(head, mover.seal_after) or due_to_seal_whole(mover, head, now_ms)
            if due or concerns(head):
                upkeep.looks.keep(head)
            if due:
                await _defer(queue, broker.config.prefix, seal.__name__, head.session)
        await _look_at_tree_logs(upkeep, queue, heads, now_ms)
        if enlisted := await broker.trees.enlist_missing(heads):
            log.info("%d sessions of an earlier version are in the index of sessions now", enlisted)
        if upkeep.webhook is not None:
            upkeep.webhook.set_aside(heads, now_ms)
        concerned |= {head.session: head for head in heads if concerns(head)}
    restore = partial(restored, upkeep.storage)
    if done := await finish_redactions(upkeep.storage, upkeep.about, restore):
        log.info("redactions of %s that were not at their ends are done now", counted(done, "session"))
    for complaint in unattended(list(concerned.values()), await broker.claims.workers(), now_ms):
        log.warning("%s", complaint)


async def restored(storage: Storage, session: SessionId) -> bool:
    """Brings an archived session back; raises `BrokenArchive` for one that cannot be trusted."""
    try:
        return await restore_session(storage, session)
    except BrokenLog as error:
        raise BrokenArchive(str(error)) from error


async def _look_at_tree_logs(
    upkeep: Upkeep, queue: ArqRedis, heads: Sequence[SessionHead], now_ms: int
) -> None:
    """Queues a job for each tree whose log rests and is not sealed."""
    mover, broker = upkeep.mover, upkeep.storage.broker
    read = {head.tree: head for head in heads if may_seal_tree(mover, head, now_ms)}
    before_ms = now_ms - (mover.seal_idle_ms or 0)
    for tree in await broker.logs.resting_trees(list(read), before_ms) if read else ():
        upkeep.looks.keep(read[tree])
        await _defer(queue, broker.config.prefix, seal_tree.__name__, tree)


async def _enlist_once(upkeep: Upkeep) -> None:
    if upkeep.enlisted:
        return
    found = await enlist_trees(upkeep.storage, idle=upkeep.mover.idle_after_ms is not None)
    upkeep.enlisted = True
    if found:
        log.info("%s of an earlier version will be looked at now", counted(found, "tree"))


async def _defer(
    queue: ArqRedis, prefix: str, job: str, subject: SessionId | TreeId, after_s: float = 0.0
) -> None:
    # A server may be shared by deployments, and arq's own keys have no prefix.
    await queue.enqueue_job(job, subject, _job_id=f"{prefix}{job}:{subject}", _defer_by=after_s or None)


async def seal(ctx: Context, session: str) -> str:
    """Seals one session's log, behind its snapshot or to its end."""
    return await seal_session(_upkeep(ctx).mover, SessionId(session))


async def seal_tree(ctx: Context, tree: str) -> str:
    """Seals the log of one tree that rests."""
    return await seal_tree_log(_upkeep(ctx).mover, TreeId(tree))


async def archive(ctx: Context, tree: str) -> str:
    """Archives one tree that rests."""
    mover = _upkeep(ctx).mover
    return await archive_tree(mover, TreeId(tree), mover.storage.broker.now_ms())


async def verify(ctx: Context) -> int:
    """Verifies the chains of the next few sessions, and removes packs that no entry of theirs names."""
    upkeep = _upkeep(ctx)
    taken = await upkeep.round.take(upkeep.storage.broker.logs, upkeep.verify_sessions)
    broken = await verify_some(upkeep.storage, taken)
    if upkeep.packs is not None:
        now_ms = upkeep.storage.broker.now_ms()
        await collect_packs(upkeep.storage, upkeep.packs, taken, now_ms / 1000)
        await collect_unborn(upkeep.storage.broker.commits, upkeep.packs, now_ms)
    return broken


async def retain(ctx: Context) -> None:
    """Deletes trees past their retention, after what a process that died has left half deleted."""
    upkeep = _upkeep(ctx)
    now_ms = upkeep.storage.broker.now_ms()
    await finish_deletions(upkeep.storage, now_ms)
    await end_imports(upkeep.storage, await old_imports(upkeep.storage, now_ms), now_ms)
    if upkeep.retention_ms is None:
        return
    async for members in expired_trees(upkeep.storage, now_ms, upkeep.retention_ms):
        try:
            await delete_tree(upkeep.storage, members)
        except NotDeleted as error:
            # The next look at redactions does what is owed.
            log.info("tree %s: not deleted yet: %s", members[-1].tree, error)
        except Corrupt as error:
            log.error("tree %s: not deleted: %s", members[-1].tree, error)


def _upkeep(ctx: Context) -> Upkeep:
    upkeep = ctx["upkeep"]
    assert isinstance(upkeep, Upkeep)
    return upkeep


# ── arq ───────────────────────────────────────────────────────────────────────────────────────────


def worker_settings(upkeep: Upkeep, queue: ArqRedis) -> dict[str, Any]:
    """arq's `WorkerSettings`. The queue is opened by us, so that it takes every URL that the broker takes."""
    prefix = upkeep.storage.broker.config.prefix

    async def hear_the_time(ctx: Context) -> None:
        # Ages are told by Redis's clock, which comes with replies.
        await fire_timers(upkeep.storage.broker.claims)

    def cron(job: Any, **when: Any) -> Any:
        # The name is in the job's id, and so in keys that deployments share.
        return arq.cron(job, name=f"{prefix}{job.__name__}", keep_result=0, max_tries=2, **when)

    return {
        "functions": [arq.func(job, keep_result=0) for job in (seal, seal_tree, archive, reap)],
        "cron_jobs": [
            cron(timers, second=set(range(0, 60, 10))),
            cron(look, second=5, run_at_startup=True),
            cron(verify, minute=set(range(3, 60, 10)), second=20),
            cron(retain, minute=17, second=40, run_at_startup=True),
        ],
        "on_startup": hear_the_time,
        "redis_pool": queue,
        "queue_name": queue.default_queue_name,
        # `dendro doctor` looks for the key that says it.
        "health_check_interval": ALIVE_S,
        "job_serializer": queue.job_serializer,
        "job_deserializer": queue.job_deserializer,
        "ctx": {"upkeep": upkeep},
        "max_jobs": MAX_JOBS,
        "job_timeout": JOB_TIMEOUT_S,
        "handle_signals": False,
        "log_results": True,
    }


def upkeep_queue(redis: RedisSettings) -> ArqRedis:
    """The queue of one deployment. Its jobs are JSON: what is read from a queue must not be code."""
    return ArqRedis(
        pool_or_conn=pool(redis, Era(), redis.command_timeout_s, client_name("upkeep")),
        job_serializer=_serialize,
        job_deserializer=orjson.loads,
        default_queue_name=f"{redis.prefix}upkeep",
    )


def _serialize(job: dict[str, Any]) -> bytes:
    # A result may be the exception that ended the job.
    return orjson.dumps(job, default=repr)


async def serve(upkeep: Upkeep, redis: RedisSettings) -> None:
    """Runs jobs until it is cancelled. Whatever Redis cannot do now ends arq's worker, so it is made anew."""
    while True:
        queue = upkeep_queue(redis)
        worker = arq.Worker(**worker_settings(upkeep, queue))
        try:
            await worker.async_run()
        except (BrokerError, foreign.RedisError, OSError) as error:
            # The client library has a word of its own for a connection that is lost while arq watches a key.
            told = mapped(error)
            if not isinstance(told, Unavailable | OutOfMemory | foreign.WatchError):
                if told is error:
                    raise
                raise BrokerError(f"upkeep has no queue (upkeep.url, else redis.url): {told}") from error
            log.warning("no upkeep without its queue, trying again: %s", told)
        finally:
            await _close(worker, queue)
        await asyncio.sleep(RECONNECT_S)


async def _close(worker: arq.Worker, queue: ArqRedis) -> None:
    for job in worker.tasks.values():
        job.cancel()
    # Cancelled jobs go back to the queue; without Redis nothing can be noted, and nothing need be.
    await asyncio.gather(*worker.tasks.values(), return_exceptions=True)
    with suppress(foreign.RedisError, OSError):
        await queue.aclose(close_connection_pool=True)


# ── the process ───────────────────────────────────────────────────────────────────────────────────


def run_upkeep(settings: Settings, ready: Callable[[], None] | None = None) -> int:
    """Runs upkeep until SIGTERM or SIGINT; answers the exit code. `ready` is called when it serves."""
    share_heap()
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s"
    )
    # A cron job every ten seconds would drown what is worth reading.
    logging.getLogger("arq").setLevel(logging.WARNING)
    logging.getLogger("arq.worker").addFilter(without_trace)
    with redis_url(settings) as url:
        uvloop.run(_run(settings, url, ready))
    return 0


def without_trace(told: logging.LogRecord) -> bool:
    """Leaves out where in the code a job met a store that is away: each look meets it again."""
    if told.exc_info and isinstance(told.exc_info[1], ArchiveUnavailable | Unavailable | OutOfMemory):
        told.exc_info = None
    return True


async def _serve(upkeep: Upkeep, redis: RedisSettings) -> None:
    """Runs jobs, and tells the owner's server what happens, until it is cancelled."""
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(serve(upkeep, redis))
        if upkeep.webhook is not None:
            tasks.create_task(upkeep.webhook.run())


async def _run(settings: Settings, url: str, ready: Callable[[], None] | None) -> None:
    key = chain_key(settings)
    secret = key.secret if key else b""
    async with deployment(settings, url, kind="upkeep") as opened:
        archived = Archive.at(settings.upkeep.archive_url, secret)
        storage = Storage(opened.broker, opened.blobs, archived, secret)
        upkeep = upkeep_of(settings, storage, url)
        upkeep.webhook = webhook_of(settings.webhook, Opened(settings, opened))
        serving = asyncio.ensure_future(_serve(upkeep, queue_server(settings, url)))
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, serving.cancel)
        settle_heap()
        if ready is not None:
            ready()
        with suppress(asyncio.CancelledError):
            await serving
