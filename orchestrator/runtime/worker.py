"""A worker: claims sessions while it has room, and hands each to a runner.

Nothing here is remembered that matters: `due` and `leases` in Redis say what is claimable,
notices only say when to poll, and a look every second finds whatever a lost notice was about.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import orjson

from orchestrator.broker.errors import BrokerError, Corrupt
from orchestrator.broker.records import Claimant, Claimed, Settlement, Successor
from orchestrator.broker.worker_state import MachineFacts, Pace, WorkerState, encoded
from orchestrator.core.frozen import record
from orchestrator.core.ids import SessionId
from orchestrator.runtime import log
from orchestrator.runtime.loader import BrokenLog, Cache
from orchestrator.runtime.ports import Ports
from orchestrator.runtime.renewal import RenewalOutcome, Renewing, Report
from orchestrator.runtime.runner import Ended, LateFiles, Runner, RunnerConfig
from orchestrator.runtime.unserved_cancels import GRACE_MS, Reaper

POLL_S = 1.0
TICK_S = 0.5
HEARTBEAT_S = 5.0
GOODBYE_S = 1.0
UNAVAILABLE_S = 0.5
MOST_KEPT = 8
"""Claims that a worker holds at once, for each turn that it runs at once: those beyond have processes."""


@record
class WorkerConfig:
    """The identity and bounds of one worker."""

    name: str
    pools: tuple[str, ...]
    runner: RunnerConfig = field(default_factory=RunnerConfig)
    reap_grace_ms: int = GRACE_MS
    """How long other workers may take to see a cancel to its end, before this one does."""
    bench: Bench | None = None
    """Does jobs of the pools; None takes none."""
    facts: Callable[[], MachineFacts | None] = lambda: None
    """The facts of this process and its machine, for the heartbeat."""


class Worker:
    """Runs until it is drained; `run` returns when every session was given back."""

    def __init__(self, ports: Ports, config: WorkerConfig, renewal: Callable[[Report], Renewing]) -> None:
        self._ports = ports
        self._config = config
        self._renewal = renewal(self._renewed)
        self._cache = Cache()
        self._files = LateFiles(ports, self._cache, config.runner.chain_key)
        self._runners: dict[str, Runner] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._poll_due = asyncio.Event()
        self._draining = asyncio.Event()
        self._to_poll: dict[tuple[str, int], SessionId | None] = {}
        """(pool, shard) pairs to poll, in the order of their notices, and who may be next there."""
        self._returning: dict[tuple[str, int], asyncio.Task[None]] = {}
        """Polls to come, of shards in which a session was left to another machine."""
        self._backlog = False
        self._alone: dict[str, dict[SessionId, None]] = {}
        """Sessions to claim of which no other worker was told, by pool, in the order in which it was told."""
        self._behind = ""
        """The entry behind which this worker is told alone; empty while it does not want to be."""
        self._broken: BaseException | None = None
        self._reaper = Reaper(ports.broker, self.adopt, config.reap_grace_ms)
        self._jobs: JobServer | None = None
        if config.bench is not None:
            self._jobs = JobServer(ports, config.bench, (config.name, config.pools), self._has_turn)
        self._unfit: str
        """Why this machine makes no portable folders now, as it was found at the last heartbeat."""
        self._paces = Paces(ports.monotonic)
        self._runner_config = replace(
            config.runner,
            others_wait=lambda: self._backlog,
            adopt=self.adopt,
            committed=self._committed,
            files=self._files,
            successors=self,
        )
        self._offered = 0
        """Claims that were sent behind commits, and are not settled."""

    async def run(self) -> None:
        """Claims and runs sessions until `drain`, then waits for those it holds."""
        self._renewal.start()
        self._unfit = await self._ports.folders.unfit()
        self._poll_everything()
        chores = [
            self._ports.spawn(chore, f"worker:{name}")
            for name, chore in (
                ("tick", self._tick()),
                ("look", self._look_regularly()),
                ("heartbeat", self._heartbeat()),
                *((f"notices:{pool}", self._listen(pool)) for pool in self._config.pools),
                *((("jobs", self._jobs.serve()),) if self._jobs is not None else ()),
            )
        ]
        for chore in chores:
            chore.add_done_callback(self._chore_ended)
        try:
            await self._claim_until_drained()
            with suppress(TimeoutError):
                # Where Redis does not answer, others find by their looks what they were not told of.
                async with asyncio.timeout(GOODBYE_S):
                    await self._tell_others()
            await self._emptied()
            await self._files.write_all()
        finally:
            self._files.stop()
            chores += self._returning.values()
            for chore in chores:
                chore.cancel()
            await asyncio.gather(*chores, return_exceptions=True)
            self._renewal.stop()
            await self._say_goodbye()
        if self._broken is not None:
            raise self._broken

    def _chore_ended(self, chore: asyncio.Task[None]) -> None:
        """Makes the worker leave when a chore fails: it must not go on without its ticks or polls."""
        if not chore.cancelled() and (error := chore.exception()) is not None:
            log.critical("%s failed: the worker leaves", chore.get_name(), exc_info=error)
            self._broken = error
            self.drain()

    def drain(self) -> None:
        """Takes nothing more; running sessions are given back at their next boundary."""
        self._draining.set()
        self._poll_due.set()
        for runner in self._runners.values():
            runner.drain()

    @property
    def draining(self) -> bool:
        """Whether the worker takes nothing more."""
        return self._draining.is_set()

    async def _emptied(self) -> None:
        while self._tasks:
            await asyncio.wait(self._tasks)

    # ── claiming ──────────────────────────────────────────────────────────────────────────────

    async def _claim_until_drained(self) -> None:
        while not self._draining.is_set():
            self._poll_due.clear()
            try:
                await self._claim_all()
            except BrokerError as error:
                log.warning("cannot claim: %s", error)
                await self._ports.sleep(UNAVAILABLE_S)
                continue
            await self._poll_due.wait()

    def _poll_everything(self) -> None:
        for pool in self._config.pools:
            for shard in range(self._ports.broker.config.shards):
                self._to_poll.setdefault((pool, shard))

    async def _claim_all(self) -> None:
        """Claims from the shards to poll until nothing is claimable there or there is no room."""
        self._backlog = False
        while self._to_poll and not self._draining.is_set():
            if not self._room():
                self._backlog = True
                await self._turn_away()
                return
            (pool, shard), guess = next(iter(self._to_poll.items()))
            # Taken off first: a notice that arrives meanwhile may be about something that the poll missed.
            del self._to_poll[pool, shard]
            after = await self._claim_one(pool, shard, guess)
            self._return_to(pool, shard)
            if after is not None:
                self._to_poll[pool, shard] = after
            elif (pool, shard) not in self._to_poll:
                await self._pass_on_rest(pool, shard)

    async def _pass_on_rest(self, pool: str, shard: int) -> None:
        """Has all workers told of what this one alone was told of in a shard where it can claim nothing more.

        Others have taken it, or it may not take it: it is left to another machine, or needs a newer version.
        """
        told, shard_of = self._alone.get(pool, {}), self._ports.broker.keys.shard_of
        if rest := [one for one in told if shard_of(one) == shard]:
            self._alone[pool] = {one: None for one in told if shard_of(one) != shard}
            await self._ports.broker.claims.pass_on(pool, rest)

    async def _turn_away(self) -> None:
        """Has all workers told of what this one alone was told of, and asks to be told alone no more."""
        claims, read = self._ports.broker.claims, self._behind
        if read:
            self._behind = ""
            self._add_alone(await claims.turn_away(self._config.name, self._config.pools, read))
        for pool, sessions in list(self._alone.items()):
            if sessions:
                self._alone[pool] = {}
                await claims.pass_on(pool, sessions)

    async def _attend(self) -> None:
        """Says that this worker wants to be told alone of what becomes due, while it has room for it."""
        claims = self._ports.broker.claims
        if not self._ports.broker.keys.nearby or not self._room():
            return
        if not self._behind or not await claims.attends(self._config.name):
            self._behind = await claims.attend(self._config.name, self._config.pools)

    def _return_to(self, pool: str, shard: int) -> None:
        """Polls the shard again as soon as what was left there to another machine may be taken."""
        seconds = self._ports.broker.claims.returns_in(pool, shard)
        if seconds is not None and (pool, shard) not in self._returning:
            task = self._ports.spawn(self._poll_in(seconds, pool, shard), f"return:{pool}:{shard}")
            self._returning[pool, shard] = task

    async def _poll_in(self, seconds: float, pool: str, shard: int) -> None:
        await self._ports.sleep(seconds)
        del self._returning[pool, shard]
        self._to_poll.setdefault((pool, shard))
        self._poll_due.set()

    def _room(self) -> bool:
        return self._has_turn() and len(self._runners) < self._config.runner.worker.concurrency * MOST_KEPT

    def _has_turn(self) -> bool:
        """Whether one more turn, or a job, may run; none begins while the worker is to leave."""
        most = self._config.runner.worker.concurrency - (self._jobs.at_work if self._jobs is not None else 0)
        most -= self._offered
        if self._draining.is_set() or len(self._runners) < most:
            return not self._draining.is_set()
        # A claim that is kept for processes alone takes no turn's place.
        return sum(not runner.keeps_processes_only for runner in self._runners.values()) < most

    async def _claim_one(self, pool: str, shard: int, guess: SessionId | None) -> SessionId | None:
        """Takes a session of the shard, if it can; answers who could be next."""
        sent_at = self._ports.boottime()
        claim_id = self._ports.random_bytes(8).hex()
        claimed = await self._ports.broker.claims.claim(
            pool, self._config.name, claim_id, shard, guess, unfit=bool(self._unfit), attends=True
        )
        if claimed is None:
            return None
        self._alone.get(pool, {}).pop(claimed.claim.session, None)
        self._take(claimed, sent_at)
        return claimed.after

    def offer(self, session: SessionId, pool: str) -> Successor | None:
        """A claim of a session that a commit may wake: where its state is, and nobody waits before it."""
        state = self._cache.known(session)
        if state is None or (self._unfit and state.facts.portable is not None):
            return None
        # What was adopted may be of a pool that this worker does not serve.
        if pool not in self._config.pools or not self._behind or self._to_poll or not self._room():
            return None
        self._offered += 1
        claim_id = self._ports.random_bytes(8).hex()
        who = Claimant(pool, self._config.name, claim_id, attends=True)
        return Successor(session, who, self._ports.boottime())

    async def settle(self, successor: Successor) -> None:
        """Goes on with the session, or polls for it: of what this worker offered to take nobody was told."""
        self._offered -= 1
        pool, claimed = successor.who.pool, successor.claimed
        if claimed is None:
            await self._hear_alone(((pool, successor.session),))
            return
        self._take(claimed, successor.asked_s)
        if claimed.after is not None:
            self._to_poll.setdefault((pool, self._ports.broker.keys.shard_of(claimed.after)), claimed.after)
            self._poll_due.set()

    def adopt(self, sessions: Sequence[SessionId]) -> None:
        """Takes sessions of any pool, if they are due, to tell them what their SQ holds.

        Their runners are drained from the start: they decide what arrived, end what was lost, and
        begin nothing. So this worker needs no folder of theirs, and no room.
        """
        for session in sessions:
            task = self._ports.spawn(self._adopt(session), f"adopt:{session}")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _adopt(self, session: SessionId) -> None:
        sent_at = self._ports.boottime()
        claim_id = self._ports.random_bytes(8).hex()
        try:
            claimed = await self._ports.broker.claims.claim_session(session, self._config.name, claim_id)
        except BrokerError as error:
            log.warning("session %s: not taken over: %s", session, error)
            return
        if claimed is not None:
            self._take(claimed, sent_at, adopted=True)

    def _take(self, claimed: Claimed, sent_at: float, *, adopted: bool = False) -> None:
        if (late_s := self._ports.boottime() - sent_at) > self._config.runner.worker.trust_s:
            # The machine slept. What is not begun need not be stopped, and the lease runs out by itself.
            session = claimed.claim.session
            log.warning("session %s: its claim was answered after %.1f s: not trusted", session, late_s)
            return
        self._paces.claimed(claimed.claim.pool)
        if self._ports.observer is not None:
            self._ports.observer.claimed(claimed)
        self._files.goes_on(claimed.claim.session)
        runner = Runner(self._ports, self._runner_config, claimed, self._cache)
        self._renewal.hold(claimed.claim, sent_at, lambda: runner.reached)
        self._runners[claimed.claim.claim_id] = runner
        if adopted or self._draining.is_set():
            # Adopted, or the claim was on its way when the worker was told to leave.
            runner.drain()
        task = self._ports.spawn(self._run(runner), f"runner:{claimed.claim.session}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, runner: Runner) -> None:
        ended = Ended.LOST
        try:
            ended = await runner.run()
        except (BrokerError, BrokenLog) as error:
            # The claim runs out; the worker that takes it counts claims without progress.
            log.error("session %s: %s", runner.claim.session, error)
        except Exception:
            log.exception("session %s: its runner failed", runner.claim.session)
        finally:
            self._renewal.let_go(runner.claim)
            self._runners.pop(runner.claim.claim_id, None)
            log.info("session %s: %s", runner.claim.session, ended)
            if self._ports.observer is not None:
                self._ports.observer.ended(runner.claim, ended, runner.status)
            self._poll_due.set()

    def _committed(self, pool: str, settlements: Sequence[Settlement]) -> None:
        # With hundreds of sessions that are answered at once, the loop gets round to its tick within seconds.
        self._renewal.tick()
        if settlements:
            self._paces.settled(pool, settlements)

    # ── chores ────────────────────────────────────────────────────────────────────────────────

    async def _listen(self, pool: str) -> None:
        cursors: Any = {}
        near = self._ports.broker.keys.near(self._config.name)
        while True:
            behind = self._behind
            if behind and near in cursors:
                cursors = {**cursors, near: behind}
            try:
                # What this worker alone is told is read beside the notices of its first pool.
                notices = await self._ports.broker.claims.wait_for_notices(
                    pool, self._config.name, cursors, 30.0, own=pool == self._config.pools[0]
                )
            except BrokerError as error:
                log.warning("not listening: %s", error)
                await self._ports.sleep(UNAVAILABLE_S)
                continue
            cursors = notices.cursors
            if notices.jobs and self._jobs is not None:
                self._jobs.notice()
            if notices.shards:
                for shard in notices.shards:
                    self._to_poll[pool, shard] = self._to_poll.get((pool, shard)) or notices.named.get(shard)
                self._poll_due.set()
            if behind == self._behind and behind:
                self._behind = notices.cursors.get(near, behind)
            await self._hear_alone(notices.alone)
            for session in notices.notified:
                for runner in self._runners.values():
                    if runner.claim.session == session:
                        runner.notify()

    async def _hear_alone(self, told: Sequence[tuple[str, SessionId]]) -> None:
        self._add_alone(told)
        for pool, session in told:
            place = (pool, self._ports.broker.keys.shard_of(session))
            self._to_poll[place] = self._to_poll.get(place) or session
        if told and self._draining.is_set():
            await self._tell_others()
        elif told:
            self._poll_due.set()

    def _add_alone(self, told: Sequence[tuple[str, SessionId]]) -> None:
        for pool, session in told:
            self._alone.setdefault(pool, {})[session] = None

    async def _tell_others(self) -> None:
        try:
            await self._turn_away()
        except BrokerError as error:
            log.warning("others were not told of sessions that this worker cannot take: %s", error)

    async def _tick(self) -> None:
        while True:
            self._renewal.tick()
            for claim in self._renewal.distrusted():
                runner = self._runners.get(claim.claim_id)
                if runner is not None:
                    log.warning("session %s: its claim can no longer be trusted", claim.session)
                    runner.lose()
                self._renewal.let_go(claim)
            await self._ports.sleep(TICK_S)

    async def _look_regularly(self) -> None:
        """Looks once a second for what no notice tells of: leases that run out, timers, and lost notices.

        A busy worker looks, too: one that polled only where it is notified would leave the sessions of a
        dead one lying.
        """
        while True:
            await self._look()
            try:
                await self._attend()
                await self._reaper.poll()
            except BrokerError as error:
                log.warning("neither was room told of, nor were cancels looked after: %s", error)
            await self._ports.sleep(POLL_S)

    async def _look(self) -> None:
        found = await self._ports.broker.claims.look(self._config.pools, self._config.name)
        for error in found.errors:
            log.warning("not looked for work: %s", error)
        if found.jobs and self._jobs is not None:
            self._jobs.notice()
        for place in found.claimable:
            self._to_poll.setdefault(place)
        if found.claimable:
            self._poll_due.set()
        for shard in found.timed:
            damaged: list[Corrupt] = []
            try:
                await self._reaper.receive(await self._ports.broker.claims.fire(shard, damaged=damaged))
            except BrokerError as error:
                log.warning("timers were not looked at: %s", error)
            for damage in damaged:
                log.warning("a timer did not fire: %s", damage)

    async def _heartbeat(self) -> None:
        """Says how this worker is, and hears whether a person wants it to drain."""
        while True:
            self._unfit = await self._ports.folders.unfit()
            try:
                state = encoded(self._state())
                claims, pools = self._ports.broker.claims, self._config.pools
                if await claims.heartbeat(self._config.name, state, pools=pools):
                    self.drain()
            except BrokerError as error:
                log.warning("no heartbeat: %s", error)
            await self._ports.sleep(HEARTBEAT_S)

    def _state(self) -> WorkerState:
        facts = self._config.facts()
        return WorkerState(
            pools=self._config.pools,
            held=len(self._runners),
            room=self._config.runner.worker.concurrency,
            draining=self._draining.is_set(),
            paces=self._paces.take(),
            facts=replace(facts, unfit=self._unfit) if facts is not None else None,
        )

    async def _say_goodbye(self) -> None:
        """Says that this worker has left, so that nobody takes it for one that was lost."""
        try:
            async with asyncio.timeout(GOODBYE_S):
                claims, pools = self._ports.broker.claims, self._config.pools
                await claims.heartbeat(self._config.name, encoded(self._state()), pools=pools, left=True)
        except Exception as error:  # what it ends with is told already
            log.info("nobody heard that this worker left: %s", error)

    def _renewed(self, outcomes: Sequence[RenewalOutcome]) -> None:
        """Hands the renewal thread's outcomes to the runners."""
        if self._ports.observer is not None:
            lost = sum(outcome.tip is None for outcome in outcomes)
            self._ports.observer.renewed(len(outcomes) - lost, lost)
        for outcome in outcomes:
            runner = self._runners.get(outcome.claim.claim_id)
            if runner is None:
                continue
            if outcome.tip is None:
                # Not news by itself: the answer may be about a claim that was given back meanwhile.
                runner.lose(fenced=True)
            else:
                runner.notify(outcome.tip)


# ── jobs ──────────────────────────────────────────────────────────────────────────────────────────
# Jobs of the worker's pools: taken while there is room, done once, answered, or given up with their
# asker.
#
# A job that was taken is never begun again. While it is done, the worker says so; what it runs lives no
# longer than the right to run it, as a command of a session does.


KEEP_S = 2.0
TRUST_S = 4.0
"""Time for which a job may be believed to be wanted, after the last word about it that was answered."""
MOST_AT_ONCE = 4
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
        self._damaged: set[str] = set()
        """Jobs that cannot be read: they wait for nobody, and hide none behind them."""
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
        try:
            while True:
                await self._due.wait()
                self._due.clear()
                try:
                    await self._take_all()
                except BrokerError as error:
                    log.warning("jobs were not looked at: %s", error)
        finally:
            await self._give_up()

    async def _take_all(self) -> None:
        for pool in self._pools:
            while (room := self._room()) and (jobs := await self._waiting(pool, room)):
                for job in jobs:
                    await self._take(pool, job)

    async def _waiting(self, pool: str, most: int) -> list[str]:
        found = await self._ports.broker.jobs.waiting_jobs(pool, most + len(self._damaged))
        return [job for job in found if job not in self._damaged][:most]

    def _room(self) -> int:
        return MOST_AT_ONCE - len(self._at_work) if self._has_room() else 0

    async def _take(self, pool: str, job: str) -> None:
        sent_at = self._ports.boottime()
        try:
            payload = await self._ports.broker.jobs.take_job(pool, job, self._worker)
        except Corrupt as error:
            log.warning("job %s was not taken: %s", job, error)
            self._damaged.add(job)
            return
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


# ── pace ──────────────────────────────────────────────────────────────────────────────────────────
# How fast a worker works: claims, turns and tokens of each pool over the last minute, for its heartbeat.


OVER_S = 60.0


@dataclass(slots=True)
class _Counted:
    claims: int = 0
    turns: int = 0
    tokens: int = 0


@dataclass(slots=True)
class Paces:
    """The counts of one worker, by pool."""

    clock: Callable[[], float]
    _counts: dict[str, _Counted] = field(default_factory=dict)
    _marks: deque[tuple[float, dict[str, _Counted]]] = field(default_factory=deque)
    """Counts between marks, with the time when each mark was set."""

    def __post_init__(self) -> None:
        self._marks.append((self.clock(), self._counts))

    def claimed(self, pool: str) -> None:
        self._of(pool).claims += 1

    def settled(self, pool: str, settlements: Sequence[Settlement]) -> None:
        """Counts model requests that have ended; one whose end nobody saw has no tokens that are known."""
        counted = self._of(pool)
        counted.turns += len(settlements)
        counted.tokens += sum(one.used.tokens for one in settlements if one.used is not None)

    def _of(self, pool: str) -> _Counted:
        return self._counts.setdefault(pool, _Counted())

    def take(self) -> dict[str, Pace]:
        """The paces of the pools that had any work within the last minute or so; begins a new mark."""
        now = self.clock()
        while len(self._marks) > 1 and self._marks[1][0] <= now - OVER_S:
            self._marks.popleft()
        over_s = max(now - self._marks[0][0], 1.0)
        paces = {pool: self._pace(pool, over_s) for _, counts in self._marks for pool in counts}
        self._counts = {}
        self._marks.append((now, self._counts))
        return paces

    def _pace(self, pool: str, over_s: float) -> Pace:
        found = [counts[pool] for _, counts in self._marks if pool in counts]
        return Pace(
            claims_per_s=round(sum(one.claims for one in found) / over_s, 2),
            turns_per_s=round(sum(one.turns for one in found) / over_s, 2),
            tokens_per_min=round(sum(one.tokens for one in found) * 60 / over_s),
        )
