"""Defects of claims, commits and of the loop that works under them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from dataclasses import replace
from typing import Any

from orchestrator.broker.claims import Claims
from orchestrator.broker.commits import Commits
from orchestrator.broker.errors import Unavailable
from orchestrator.broker.port import NEVER_BOUNDED, RedisClock, Witness
from orchestrator.broker.records import BudgetPart, Committed
from orchestrator.core import decide as decide_module
from orchestrator.core.calls import timer_of
from orchestrator.core.chain import next_chain, payload_digest
from orchestrator.core.commit_parts import RETRY_TIMER, NewEntry, TreePart, approval_timer, watchdog_timer
from orchestrator.core.decide import call, takeover
from orchestrator.gateways.client import Client
from orchestrator.runtime import runner, side_work
from orchestrator.runtime.committing import Writing
from orchestrator.runtime.renewal import Leases
from orchestrator.runtime.runner import Runner
from orchestrator.runtime.side_work import Effects
from orchestrator.tools.exec import supervisor_process
from sim.ledger import SimSupervisor
from sim.mutant import Mutant, lua, swapped, text


def _cursor_apart(real: Any) -> Any:
    async def commit(self: Commits, request: Any, *behind_it: Any) -> Any:
        first = await real(self, replace(request, cursor=None, release="keep"))
        if not isinstance(first, Committed):
            return first
        bare = replace(request, entries=(), events=(), timers_set=(), timers_clear=())
        bare = replace(bare, approvals_open=(), approvals_close=(), commit_id=request.commit_id + "2")
        bare = replace(bare, tree=TreePart(unless_flagged=request.tree.unless_flagged))
        bare = replace(bare, budget=BudgetPart(within=request.budget.within))
        behind = replace(bare, expect_seq=first.seq, expect_head=first.head)
        return await real(self, replace(behind, expect_commit=first.last_commit), *behind_it)

    return commit


def _resent_blindly(real: Any) -> Any:
    async def commit(self: Commits, request: Any, *behind_it: Any) -> Any:
        try:
            return await real(self, request, *behind_it)
        except Unavailable:
            head = await self._claims._logs.head(request.claim.session)
            assert head is not None
            entries, chain = [], head.head
            for seq, entry in enumerate(request.entries, head.seq + 1):
                chain = next_chain(
                    chain, seq, request.claim.epoch, payload_digest(entry.salt, entry.payload), b""
                )
                entries.append(NewEntry(entry.payload, entry.salt, chain))
            again = replace(request, commit_id=request.commit_id + "2", entries=tuple(entries))
            last = await self._connection.command("HGET", self.keys.session(request.claim.session), "commit")
            again = replace(again, expect_commit=(last or b"").decode())
            return await real(self, replace(again, expect_seq=head.seq, expect_head=head.head), *behind_it)

    return commit


def _effects_first(real: Any) -> Any:
    async def finish(self: Runner, step: Any, release: Any) -> Any:
        before, self._journal.position = self._journal.position, step.position
        await self._start_owed()
        self._journal.position = before
        return await real(self, step, release)

    return finish


def _never_rides(real: Any) -> Any:
    def request(self: Writing, step: Any, cursor: Any, release: Any, meta: Any) -> Any:
        pending, self._deltas._pending = self._deltas._pending, []
        made = real(self, step, cursor, release, meta)
        self._deltas._pending = pending
        return made

    return request


def _under_a_new_id(real: Any) -> Any:
    async def submit(self: Client, session: Any, submission: Any) -> Any:
        for attempt in range(9):
            try:
                again = replace(submission, id=f"{submission.id}+{attempt}" if attempt else submission.id)
                return await _once(self, session, again)
            except Unavailable:
                continue
        return await real(self, session, submission)

    return submit


async def _once(client: Client, session: Any, submission: Any) -> Any:
    from orchestrator.broker.records import Submit
    from orchestrator.protocol.codec import encode_submission

    payload = encode_submission(submission)
    session = getattr(session, "session", session)  # of a head
    return await client._ports.broker.commits.submit(
        Submit(session, client.client_id, submission.id, payload)
    )


def _any_generation(real: Any) -> Any:
    def fired(draft: Any, command: Any) -> None:
        task = draft.state.task
        if task is not None and command.id == RETRY_TIMER and task.wait:
            command = replace(command, generation=task.wait)
        for asked in task.requests if task is not None else ():
            if command.id == approval_timer(asked.call_id):
                command = replace(command, generation=timer_of(asked.work))
        for dog in draft.state.tree.watchdogs.values():
            if command.id == watchdog_timer(dog.agent_id):
                command = replace(command, generation=dog.generation)
        real(draft, command)

    return fired


def _runs_again(real: Any) -> Any:
    return lambda draft, call, judged, *rest: real(
        draft, call, "none" if judged == "in_doubt" else judged, *rest
    )


def _asked_while_stopping(real: Any) -> Any:
    return lambda draft: draft.state.task.requests if draft.state.task is not None else ()


def _sees_nothing(real: Any) -> Any:
    async def judged(*args: Any) -> None:
        return None

    return judged


def _ends_unproved(real: Any) -> Any:
    async def ended(tasks: Iterable[Any]) -> None:
        return None

    return ended


def _waits_a_second(real: Any) -> Any:
    async def ended(tasks: Iterable[Any]) -> None:
        if waiting := list(tasks):
            await asyncio.wait(waiting, timeout=1.0)

    return ended


def _spares_patches(real: Any) -> Any:
    def kills(self: SimSupervisor, claim: str = "") -> None:
        runs = [run for run in self._ledger.running() if run.machine == self.machine]
        for run in runs:
            if not run.files and claim in ("", run.claim):
                self._ledger.end(run, "killed")

    return kills


def _wakes_first() -> None:
    lua("submit", "wake_if_parked(session, pool, KEYS[5], box, held, now)", "")()

    def make(real: Any) -> Any:
        async def submit(self: Commits, given: Any) -> Any:
            place = await self._place(given.session)
            due, leases, _, _ = self.keys.pool(self.keys.shard_of(given.session), place.pool)
            if await self._connection.command("ZSCORE", leases, given.session) is None:
                await self._connection.command("ZADD", due, "NX", 1, given.session)
            return await real(self, given)

        return submit

    swapped(Commits, "submit", make)()


async def _deaf(beat: Awaitable[bool]) -> bool:
    await beat
    return False


def _believes_any_word() -> None:
    lua("release", " and num(s.epoch) == num(epoch) + 1", "")()
    lua(
        "claim",
        "\nif s.revoked then redis.call('HDEL', KEYS[1], 'revoked') end\nredis.call('ZADD'",
        "\nredis.call('ZADD'",
    )()


def _heard_once(real: Any) -> Any:
    return lambda self, now_ms: now_ms if self._server_ms else real(self, now_ms)


DEFECTS = (
    Mutant(
        "no claim check",
        "`commit` does not look at owner, claim id and epoch",
        lua(
            "_commit_refusals",
            "if known.owner ~= worker or known.claim ~= claim or known.epoch ~= epoch "
            "then return 'claim' end",
            "",
        ),
    ),
    Mutant(
        "no seq and head check",
        "`commit` does not look at what the step was built on",
        lua(
            "_commit_refusals",
            "  if own.seq ~= expect_seq then return 'seq' end\n"
            "  if known.head ~= expect_head then return 'head' end\n",
            "",
        ),
    ),
    Mutant(
        "no check of the commit before",
        "`commit` takes a step without entries for new, though it has been written",
        lua("_commit_refusals", "if (known.commit or '') ~= expect_commit then return 'commit' end", ""),
        "letters",
    ),
    Mutant(
        "late word ends the next claim",
        "`release` goes by the mark of a revoked claim alone, and the next claim leaves the mark",
        _believes_any_word,
        "letters",
    ),
    Mutant(
        "Redis's clock is looked at once",
        "a worker adds its own clock's time to the first answer of Redis, and never looks again",
        swapped(RedisClock, "note", _heard_once),
    ),
    Mutant(
        "cursor outside of the commit",
        "the queue's cursor moves by a second commit, behind the entries",
        swapped(Commits, "commit", _cursor_apart),
    ),
    Mutant(
        "lost reply retried blindly",
        "a commit without an answer is sent again under a new commit id, on the log as it is then",
        swapped(Commits, "commit", _resent_blindly),
    ),
    Mutant(
        "release without recheck",
        "`commit` parks a session whose queue has grown meanwhile",
        lua(
            "_commit_outcome",
            "local parks = release == 'park' and cursor == tip",
            "local parks = release == 'park'",
        ),
    ),
    Mutant(
        "lease survives the release",
        "`commit` gives the claim back and leaves the lease",
        lua("_commit_writes", "    redis.call('ZREM', KEYS[8], session)\n", ""),
    ),
    Mutant(
        "release that nobody hears of",
        "`commit` gives the claim back and tells nobody who waits for that",
        lua("_commit_writes", "    notify_released(KEYS[19], session)\n", ""),
    ),
    Mutant(
        "timers are not set",
        "`commit` forgets the deadlines of its step",
        lua(
            "_commit_writes",
            "    redis.call('ZADD', KEYS[11], timer.at_ms, session .. ':' .. timer.id)\n",
            "",
        ),
    ),
    Mutant(
        "submission wakes nobody",
        "`submit` does not make a parked session due",
        lua("submit", "wake_if_parked(session, pool, KEYS[5], box, held, now)", ""),
    ),
    Mutant(
        "wake-up before the write",
        "the session is made due by a command of its own, before the submission is in the queue",
        _wakes_first,
    ),
    Mutant(
        "no idempotence of submit",
        "`submit` does not look at ids seen before",
        lua("submit", "local first = redis.call('HGET', KEYS[3], id)", "local first = false"),
    ),
    Mutant(
        "client sends under a new id",
        "a client that hears no answer submits again, as another submission",
        swapped(Client, "submit", _under_a_new_id),
    ),
    Mutant(
        "claim does not raise the epoch",
        "`claim` gives out the epoch of the claim before",
        lua("claim", "local epoch = num(s.epoch) + 1", "local epoch = math.max(1, num(s.epoch))"),
    ),
    Mutant(
        "claim before the lease has run out",
        "`claim` takes a lease that has three seconds left",
        lua(
            "claim",
            "if expiry and tonumber(expiry) > certain then return {'NONE'} end",
            "if expiry and tonumber(expiry) > now + 3000 then return {'NONE'} end",
        ),
    ),
    Mutant(
        "Redis's clock alone ends a lease",
        "whoever claims takes a lease that is over by Redis's clock, which somebody may have set",
        swapped(Witness, "certain_ms", lambda real: lambda self: NEVER_BOUNDED),
        "zombies",
    ),
    Mutant(
        "claim leaves the session due",
        "`claim` does not take the session out of `due`",
        lua("claim", "  redis.call('ZREM', KEYS[4], session)\n  if tonumber(order)", "  if tonumber(order)"),
    ),
    Mutant(
        "renew ignores fencing",
        "`renew` prolongs a lease for whoever asks",
        lua(
            "renew",
            "if s.owner ~= worker or s.claim ~= claim or s.epoch ~= epoch or num(s.seq) < reached then",
            "if false then",
        ),
    ),
    Mutant(
        "renew ignores how far the log went",
        "a claim that Redis kept is renewed over a log that it lost the end of",
        lua("renew", " or num(s.seq) < reached", ""),
        "amnesia",
    ),
    Mutant(
        "timer wakes nobody",
        "`fire` does not make a parked session due",
        lua("fire", "wake_if_parked(session, pool, KEYS[5], box, held, now)", ""),
    ),
    Mutant(
        "timers without generation",
        "a timer that was set for something else counts",
        swapped(decide_module, "timer_fired", _any_generation),
        test="tests/core/test_core_requests.py::test_stale_retry_timer_does_not_end_a_later_wait",
    ),
    Mutant(
        "effects before the commit",
        "a step's calls and requests start before the step is in the log",
        swapped(Runner, "_finish", _effects_first),
    ),
    Mutant(
        "effects forgotten at their end",
        "a call that has ended, and whose result is not decided yet, counts as not started",
        swapped(Effects, "__contains__", lambda real: lambda self, key: key in self._running),
    ),
    Mutant(
        "stopped without proof",
        "stopping does not wait until what it stopped has ended",
        swapped(side_work, "_ended_all", _ends_unproved),
    ),
    Mutant(
        "a silent supervisor counts as proof",
        "stopping waits for a second for what it stopped, and does not ask the supervisor again",
        swapped(side_work, "_ended_all", _waits_a_second),
        "zombies",
    ),
    Mutant(
        "takeover runs again",
        "a command that a lost worker had begun is run again",
        swapped(takeover, "_judge", _runs_again),
    ),
    Mutant(
        "answers count while stopping",
        "an approval that is answered while its task is being stopped starts the call",
        swapped(call, "_pending", _asked_while_stopping),
        "approvals",
        test="tests/core/test_core_stopping.py"
        "::test_approval_cannot_start_a_call_in_a_task_that_is_being_stopped",
    ),
    Mutant(
        "takeover sees nothing",
        "a new holder does not look at what its predecessor had begun",
        swapped(runner, "judged_running", _sees_nothing),
    ),
    Mutant(
        "supervisor ignores deadlines",
        "commands of a stopped worker run on",
        swapped(SimSupervisor, "_enforce", lambda real: lambda self, claim, deadline: None),
        "zombies",
    ),
    Mutant(
        "worker hears no drain",
        "a worker goes on although the answer to its heartbeat says that a person has sent it home",
        swapped(
            Claims, "heartbeat", lambda real: lambda self, *args, **more: _deaf(real(self, *args, **more))
        ),
    ),
    Mutant(
        "revoke waits for nobody",
        "`revoke` makes a session due while what its holder started still runs",
        lua("revoke", "row.claim = expiry and expiry > certain and (s.claim or '')", "row.claim = nil"),
        "burials",
    ),
    Mutant(
        "supervisor spares patches",
        "a patch that has begun is written to its end, whoever has the session by then",
        swapped(SimSupervisor, "kill_now", _spares_patches),
        "zombies",
    ),
    Mutant(
        "zombies start commands",
        "a worker that wakes up behind its deadline may still start what it was about to start",
        text(
            supervisor_process._Supervisor,
            "_run",
            "if self._deadlines.get(claim, 0.0) <= _now():",
            "if False:",
        ),
        "zombies",
    ),
    Mutant(
        "trust longer than the lease",
        "a holder trusts its claim for four times as long as it should",
        swapped(
            Leases,
            "__init__",
            lambda real: (
                lambda self, times, *given, **named: real(
                    self, times.model_copy(update={"trust_s": 16.0}), *given, **named
                )
            ),
        ),
    ),
    Mutant(
        "deltas overtake",
        "deltas that wait do not ride in the commit",
        swapped(Writing, "_request", _never_rides),
        "latecomers",
    ),
)
