"""The costs of a session of thousands of turns: it is compacted whenever its window is full, and goes on.

Turns have a command each, and usage that grows with the conversation, so that compactions come by themselves.
Then the conversation goes back to its first turn, before all of them, and the session is forked.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import orjson

from bench.figures import Figure, at_most
from bench.lab import Fleet, Lab, fleet
from bench.scripted import ANSWER, USAGE, Hand, called, finished, step_of, user_input
from bench.shares import POOL, position_of
from bench.turns import take_turns
from orchestrator.broker.records import Submit
from orchestrator.core import commands as c
from orchestrator.core.ids import SessionId, TreeId
from orchestrator.core.snapshot import encode_snapshot
from orchestrator.gateways.fork import to_fork
from orchestrator.protocol.codec import parse_submission
from orchestrator.rollouts.session_summary import Position
from orchestrator.runtime.journal import Step
from orchestrator.wiring.open_deployment import Opened

TURNS, QUICK_TURNS = 5_000, 400
ITEMS, QUICK_ITEMS, FEW_ITEMS = 2_000, 200, 20
"""Of a conversation: two a turn."""
STRETCH = 10
"""The parts of the session whose first and last are compared."""
SNAPSHOT_EACH = 25
BYTES_A_TOKEN = 4
SUMMARY = "What was done so far, and what is left to do. " * 60


@dataclass(slots=True)
class Life:
    """A session on its way through its turns."""

    running: Fleet
    hand: Hand
    session: SessionId
    position: Position
    turns_s: list[float] = field(default_factory=list)
    snapshots: list[int] = field(default_factory=list)
    compactions: int = 0
    tokens: int = 0

    async def turn(self, number: int) -> None:
        """Makes a turn with a command, and the compaction that it needs first."""
        began = time.perf_counter()
        submission = parse_submission(user_input(number))
        said = c.Submitted(submission.id, submission.op, "script")
        await self._commit(self._step(said, c.BeginRequest()))
        while (task := self.position.state.task) and task.request and task.request.purpose == "compact":
            self.compactions += 1
            await self._commit(self._step(*self._summed_up(), c.BeginRequest()))
        for follow in (called, finished):
            await self._commit(follow(self.position, self.hand.epoch))
        await self._commit(self._step(*self._answered()))
        self.turns_s.append(time.perf_counter() - began)
        # The provider's to count, and no part of a turn's time.
        self.tokens = len(orjson.dumps(list(self.position.state.history), default=dict)) // BYTES_A_TOKEN
        if number % SNAPSHOT_EACH == 0:
            self.snapshots.append(len(encode_snapshot(self.position.state, self.position.seq, b"")))

    def _step(self, *commands: c.Command) -> Step:
        return step_of(self.position, self.hand.epoch, *commands)

    def _summed_up(self) -> tuple[c.Command, ...]:
        n = self.position.state.requests
        text = {**ANSWER, "content": [{"type": "output_text", "text": SUMMARY}]}
        return c.ItemCompleted(n, text), c.ResponseCompleted(n, _response(n), USAGE)

    def _answered(self) -> tuple[c.Command, ...]:
        n = self.position.state.requests
        usage = {**USAGE, "input_tokens": self.tokens, "total_tokens": self.tokens + USAGE["output_tokens"]}
        return c.ItemCompleted(n, ANSWER), c.ResponseCompleted(n, _response(n), usage)

    async def _commit(self, step: Step) -> None:
        if step.blobs:
            await self.running.opened.texts.store(TreeId(self.session), step.blobs)
        await self.hand.commit(step)
        self.position = step.position


def _response(n: int) -> str:
    """An id as long as those of providers are."""
    return f"resp_{n:048x}"


async def run(lab: Lab, quick: bool, turns: int | None = None) -> list[Figure]:
    """A session of `turns` turns, from its first to its last, and the ways back."""
    wanted = turns or (QUICK_TURNS if quick else TURNS)
    async with fleet(lab, "instant") as running:
        session = await running.session(pool=POOL)
        broker = running.opened.broker
        await broker.commits.submit(Submit(session, "script", "go", user_input(0)))
        hand = await Hand.take(broker, session)
        life = Life(running, hand, session, await position_of(running, session))
        for number in range(wanted):
            await life.turn(number)
        found = [*_costs(life, wanted), *await _ways_back(running, session)]
        return [*found, await (_grown(running, QUICK_ITEMS, 50) if quick else _grown(running, ITEMS, 400))]


def _costs(life: Life, turns: int) -> list[Figure]:
    part = max(1, turns // STRETCH)
    first, last = _typical(life.turns_s[:part]), _typical(life.turns_s[-part:])
    note = f"{turns:,} turns, {life.position.seq:,} entries, {life.compactions} compactions by themselves"
    return [
        Figure("a turn among the first tenth", first * 1000, "ms", note=note),
        Figure("a turn among the last tenth", last * 1000, "ms"),
        Figure("last tenth / first tenth", last / first, "×", at_most(1.5)),
        Figure("largest snapshot", max(life.snapshots) / (1 << 20), "MiB", at_most(2)),
    ]


def _typical(took: Sequence[float]) -> float:
    return statistics.median(took)


async def _grown(running: Fleet, items: int, measured: int) -> Figure:
    """The growth of a turn's CPU with its conversation: of real turns without commands, of the worker.

    Account is kept in ticks of 10 ms: `measured` turns of each kind make it exact enough.
    """
    running.hire(4)
    # The first turns of a process cost more.
    await take_turns(running, await running.session(), 50)
    taken, spent_s = 0, 0.0
    while taken < measured:
        session = await running.session()
        await take_turns(running, session, FEW_ITEMS // 4)
        spent_s += await _worker_s(running, session, FEW_ITEMS // 4, FEW_ITEMS // 2)
        taken += FEW_ITEMS // 2
    short_s, long = spent_s / taken, await running.session()
    await take_turns(running, long, items // 2)
    more_s = await _worker_s(running, long, items // 2, measured) / measured - short_s
    name = f"CPU of a turn at {items:,} items − at {FEW_ITEMS}"
    note = f"of the worker: {short_s * 1000:.2f} ms at {FEW_ITEMS}, the request of all items included"
    return Figure(name, more_s * 1000, "ms", at_most(0.1), note=note)


async def _worker_s(running: Fleet, session: SessionId, first: int, count: int) -> float:
    before = running.costs()["worker"]
    await take_turns(running, session, count, first)
    return (running.costs()["worker"] - before).own_s


async def _ways_back(running: Fleet, session: SessionId) -> list[Figure]:
    began = time.perf_counter()
    back = await to_fork(Opened(running.settings, running.opened), session, _response(2))
    first = time.perf_counter() - began
    return [
        Figure(
            "way back to the first turn",
            first,
            "s",
            at_most(15),
            note=f"the whole log is read, and folded to entry {back.seq:,} of it",
        )
    ]
