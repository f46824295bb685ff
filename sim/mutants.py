"""Planted defects: what the simulator is worth is how soon it finds them.

`python -m sim.mutants` plants each in a process of its own, runs seeds until a rule is broken,
and writes the table into `docs/simulator.md`. A defect that no longer fits the product's text
fails loudly: it must be planted anew, not passed over.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from orchestrator.broker import scripts as scripts_module
from orchestrator.broker.broker import Broker
from orchestrator.broker.errors import Unavailable
from orchestrator.broker.records import Committed, NewEntry
from orchestrator.core import decide as decide_module
from orchestrator.core import rules_stop
from orchestrator.core.chain import next_chain, payload_digest
from orchestrator.core.rules_task import RETRY_TIMER, approval_timer
from orchestrator.gateways.client import Client
from orchestrator.runtime import effects, runner
from orchestrator.runtime.commits import Writing
from orchestrator.runtime.effects import Effects
from orchestrator.runtime.renewal import Leases
from orchestrator.runtime.runner import Runner
from sim import network
from sim.campaign import run_batch
from sim.ledger import SimKeeper

PAGE = Path(__file__).parent.parent / "docs" / "simulator.md"
BEGIN, END = "<!-- planted defects: begin -->", "<!-- planted defects: end -->"
MOST_SEEDS = 2_000


@dataclass(frozen=True, slots=True)
class Mutant:
    """One defect: its name, what is wrong, and how it is planted."""

    name: str
    wrong: str
    plant: Callable[[], None]


@dataclass(frozen=True, slots=True)
class Found:
    """How a defect was found: after how many seeds, and by which rule."""

    name: str
    wrong: str
    seeds: int | None
    rule: str = ""
    seed: int = -1


def lua(part: str, old: str, new: str) -> Callable[[], None]:
    """Changes the text of a script or of a part of scripts."""

    def plant() -> None:
        read = scripts_module._read

        def changed(name: str) -> str:
            text = read(name)
            if name != part:
                return text
            assert text.count(old) == 1, (
                f"{part}.lua has {text.count(old)} times {old!r}: plant the defect anew"
            )
            return text.replace(old, new)

        scripts_module._read = changed
        scripts_module.load.cache_clear()
        network._SCRIPTS.clear()
        changed(part)

    return plant


def swapped(owner: Any, name: str, make: Callable[[Any], Any]) -> Callable[[], None]:
    """Replaces a function by what `make` makes of it."""

    def plant() -> None:
        setattr(owner, name, make(getattr(owner, name)))

    return plant


# ── defects of the loop that take more than a line ────────────────────────────────────────────


def _cursor_apart(real: Any) -> Any:
    async def commit(self: Broker, request: Any) -> Any:
        first = await real(self, replace(request, cursor=None, release="keep"))
        if not isinstance(first, Committed):
            return first
        bare = replace(request, entries=(), events=(), timers_set=(), timers_clear=())
        bare = replace(bare, approvals_open=(), approvals_close=(), commit_id=request.commit_id + "2")
        bare = replace(bare, mail=(), children=(), tree_events=(), summary={}, draws=(), taken=(0, 0))
        bare = replace(bare, settlements=(), reservation=None, budget_wait=None)
        return await real(self, replace(bare, expect_seq=first.seq, expect_head=first.head))

    return commit


def _resent_blindly(real: Any) -> Any:
    async def commit(self: Broker, request: Any) -> Any:
        try:
            return await real(self, request)
        except Unavailable:
            head = await self.head(request.claim.session)
            assert head is not None
            entries, chain = [], head.head
            for seq, entry in enumerate(request.entries, head.seq + 1):
                chain = next_chain(
                    chain, seq, request.claim.epoch, payload_digest(entry.salt, entry.payload), b""
                )
                entries.append(NewEntry(entry.payload, entry.salt, chain))
            again = replace(request, commit_id=request.commit_id + "2", entries=tuple(entries))
            return await real(self, replace(again, expect_seq=head.seq, expect_head=head.head))

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
    return await client._ports.broker.submit(Submit(session, client.client_id, submission.id, payload))


def _any_generation(real: Any) -> Any:
    def fired(draft: Any, command: Any) -> None:
        task = draft.state.task
        if task is not None and command.id == RETRY_TIMER and task.wait:
            command = replace(command, generation=task.wait)
        for call in task.awaiting if task is not None else ():
            if command.id == approval_timer(call.call_id):
                command = replace(command, generation=call.spec.get("timer"))
        real(draft, command)

    return fired


def _runs_again(real: Any) -> Any:
    return lambda draft, call, judgement: real(draft, call, "none" if judgement == "in_doubt" else judgement)


def _sees_nothing(real: Any) -> Any:
    async def judged(*args: Any) -> None:
        return None

    return judged


def _ends_unproved(real: Any) -> Any:
    async def ended(tasks: Iterable[Any]) -> None:
        return None

    return ended


def _spares_patches(real: Any) -> Any:
    def kills(self: SimKeeper, claim: str = "") -> None:
        runs = [run for run in self._ledger.running() if run.machine == self._machine]
        for run in runs:
            if not run.files and claim in ("", run.claim):
                self._ledger.end(run, "killed")

    return kills


def _wakes_first() -> None:
    lua("submit", "wake_if_parked(session, pool, KEYS[5], box.quarantined)", "")()

    def make(real: Any) -> Any:
        async def submit(self: Broker, given: Any) -> Any:
            place = await self.place(given.session)
            due, leases, _, _ = self.keys.pool(self.keys.shard_of(given.session), place.pool)
            if await self._wire.command("ZSCORE", leases, given.session) is None:
                await self._wire.command("ZADD", due, "NX", 1, given.session)
            return await real(self, given)

        return submit

    swapped(Broker, "submit", make)()


MUTANTS = (
    Mutant(
        "no claim check",
        "`commit` does not look at owner, claim id and epoch",
        lua(
            "commit",
            "if s[1] ~= worker or s[2] ~= claim or s[3] ~= epoch "
            "then return {'FENCED', num(s[3]), 'claim'} end",
            "",
        ),
    ),
    Mutant(
        "no seq and head check",
        "`commit` does not look at what the step was built on",
        lua(
            "commit",
            "if own.seq ~= expect_seq then return {'FENCED', num(s[3]), 'seq'} end\n"
            "if s[4] ~= expect_head then return {'FENCED', num(s[3]), 'head'} end",
            "",
        ),
    ),
    Mutant(
        "cursor outside of the commit",
        "the queue's cursor moves by a second commit, behind the entries",
        swapped(Broker, "commit", _cursor_apart),
    ),
    Mutant(
        "lost reply retried blindly",
        "a commit without an answer is sent again under a new commit id, on the log as it is then",
        swapped(Broker, "commit", _resent_blindly),
    ),
    Mutant(
        "release without recheck",
        "`commit` parks a session whose queue has grown meanwhile",
        lua("commit", "local parks = release == 'park' and cursor == tip", "local parks = release == 'park'"),
    ),
    Mutant(
        "lease survives the release",
        "`commit` gives the claim back and leaves the lease",
        lua("commit", "if released == 1 then redis.call('ZREM', KEYS[8], session) end", ""),
    ),
    Mutant(
        "timers are not set",
        "`commit` forgets the deadlines of its step",
        lua("commit", "  redis.call('ZADD', KEYS[11], row[3], session .. ':' .. row[1])\n", ""),
    ),
    Mutant(
        "submission wakes nobody",
        "`submit` does not make a parked session due",
        lua("submit", "wake_if_parked(session, pool, KEYS[5], box.quarantined)", ""),
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
        lua("claim", "local epoch = num(s[3]) + 1", "local epoch = math.max(1, num(s[3]))"),
    ),
    Mutant(
        "claim before the lease has run out",
        "`claim` takes a lease that has three seconds left",
        lua(
            "claim",
            "if expiry and tonumber(expiry) > now then return {'NONE'} end",
            "if expiry and tonumber(expiry) > now + 3000 then return {'NONE'} end",
        ),
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
            "if s[1] ~= worker or s[2] ~= claim or s[3] ~= epoch then return {'FENCED', num(s[3])} end",
            "",
        ),
    ),
    Mutant(
        "timer wakes nobody",
        "`fire` does not make a parked session due",
        lua("fire", "wake_if_parked(session, pool, KEYS[5], box.quarantined)", ""),
    ),
    Mutant(
        "timers without generation",
        "a timer that was set for something else counts",
        swapped(decide_module, "timer_fired", _any_generation),
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
        swapped(effects, "_ended_all", _ends_unproved),
    ),
    Mutant(
        "takeover runs again",
        "a command that a lost worker had begun is run again",
        swapped(rules_stop, "_judge", _runs_again),
    ),
    Mutant(
        "takeover sees nothing",
        "a new holder does not look at what its predecessor had begun",
        swapped(runner, "judged_running", _sees_nothing),
    ),
    Mutant(
        "keeper ignores deadlines",
        "commands of a stopped worker run on",
        swapped(SimKeeper, "_look", lambda real: lambda self, claim: None),
    ),
    Mutant(
        "revoke waits for nobody",
        "`revoke` makes a session due while what its holder started still runs",
        lua("revoke", "row.claim = expiry and expiry > now and (s[6] or '')", "row.claim = nil"),
    ),
    Mutant(
        "keeper spares patches",
        "a patch that has begun is written to its end, whoever has the session by then",
        swapped(SimKeeper, "kill_now", _spares_patches),
    ),
    Mutant(
        "zombies start commands",
        "a worker that wakes up behind its deadline may still start what it was about to start",
        swapped(SimKeeper, "permits", lambda real: lambda self, claim: True),
    ),
    Mutant(
        "trust longer than the lease",
        "a holder trusts its claim for four times as long as it should",
        swapped(
            Leases,
            "__init__",
            lambda real: (
                lambda self, times, extend, clock: real(self, replace(times, trust_s=16.0), extend, clock)
            ),
        ),
    ),
    Mutant(
        "deltas overtake",
        "deltas that wait do not ride in the commit",
        swapped(Writing, "_request", _never_rides),
    ),
)


def hunt(name: str, first: int, most: int) -> Found:
    """Plants one defect in this process, for good, and looks for it from seed `first` on."""
    mutant = next(m for m in MUTANTS if m.name == name)
    mutant.plant()
    for at in range(first, most, 10):
        outcomes, _ = run_batch(range(at, min(at + 10, most)))
        for outcome in outcomes:
            if outcome.violation:
                return Found(name, mutant.wrong, outcome.seed + 1, outcome.violation.rule, outcome.seed)
    return Found(name, mutant.wrong, None)


def holds(seed: int) -> bool:
    """Whether every rule holds under a seed where nothing is planted."""
    return run_batch([seed])[0][0].violation is None


def _hunted(pool: ProcessPoolExecutor, name: str, most: int) -> Found:
    """A seed that breaks a rule by itself says nothing of the defect: it is passed over."""
    first = 0
    while True:
        found = pool.submit(hunt, name, first, most).result()
        if found.seeds is None or pool.submit(holds, found.seed).result():
            return found
        first = found.seed + 1


def table(found: Iterable[Found]) -> str:
    """The page's table."""
    rows = ["| defect | what is wrong | seeds | broken rule |", "|---|---|---|---|"]
    for one in found:
        seeds = f"{one.seeds}" if one.seeds else "not found"
        rows.append(f"| {one.name} | {one.wrong} | {seeds} | {f'`{one.rule}`' if one.rule else ''} |")
    return "\n".join(rows)


def main() -> int:
    """Exit code 1 if a defect was not found."""
    parser = argparse.ArgumentParser(
        prog="python -m sim.mutants", description="Plants defects and looks for them."
    )
    parser.add_argument("names", nargs="*", help="only these")
    parser.add_argument("--seeds", type=int, default=MOST_SEEDS, help="give up after (default: %(default)s)")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args()
    names = given.names or [mutant.name for mutant in MUTANTS]
    context = get_context("spawn")
    with ProcessPoolExecutor(given.processes, mp_context=context, max_tasks_per_child=1) as pool:
        found = []
        with ThreadPoolExecutor(given.processes) as hunters:
            for one in hunters.map(lambda name: _hunted(pool, name, given.seeds), names):
                print(f"{one.name}: {one.seeds or 'NOT FOUND'} {one.rule}", flush=True)
                found.append(one)
    if not given.names:
        text = PAGE.read_text(encoding="utf-8")
        before, _, rest = text.partition(BEGIN)
        _, _, after = rest.partition(END)
        PAGE.write_text(f"{before}{BEGIN}\n\n{table(found)}\n\n{END}{after}", encoding="utf-8")
    return 0 if all(one.seeds for one in found) else 1


if __name__ == "__main__":
    sys.exit(main())
