"""Work beside a session's loop: what ends it, what does not, what is told of each, and when none begins."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.broker.records import Claim, Claimed
from orchestrator.config_keys import WorkerSettings
from orchestrator.core import commands as c
from orchestrator.core import facts as f
from orchestrator.core.decide.call_end import unknown_end
from orchestrator.core.entries import fact
from orchestrator.core.ids import AgentId, SessionId, TreeId
from orchestrator.core.outstanding import StopAll, outstanding
from orchestrator.core.state import Process, State
from orchestrator.protocol.ids import CallId, SubmissionId
from orchestrator.rollouts.session_summary import Position
from orchestrator.runtime import side_work as side_work_module
from orchestrator.runtime.arrivals import Arrivals
from orchestrator.runtime.runner_context import RunnerConfig, RunnerContext
from orchestrator.runtime.side_work import SHUTTING_DOWN, SideWork
from tests.core.driver import NOON_MS, RULES, Session, a_command, op

CLAIM = Claim(SessionId("s"), TreeId("s"), "w", "claim", 1, "default")
CLAIMED = Claimed(CLAIM, 0, b"", "0-0", "0-0", 0, AgentId(0), 0, 0, 1, ())
GRACE_S = 10.0


class Tools:
    """Calls and processes that end when a test says, and say when they are killed."""

    def __init__(self) -> None:
        self.ends: dict[str, asyncio.Future[None]] = {}
        self.begun: list[str] = []
        self.cancelled: list[str] = []
        self.killed: list[int] = []
        self.abandoned = 0

    async def _lasts(self, name: str) -> None:
        self.begun.append(name)
        self.ends[name] = asyncio.get_running_loop().create_future()
        try:
            await self.ends[name]
        except asyncio.CancelledError:
            self.cancelled.append(name)
            raise

    async def run(self, call: Any, site: Any) -> c.CallFinished:
        await self._lasts(call.call_id)
        return c.CallFinished(call.call_id, f"output of {call.call_id}")

    async def follow(self, process: Process, claim: str) -> c.ProcessEnd:
        await self._lasts(f"process {process.number}")
        return c.ProcessEnd(process.number, unknown_end(process, "ended"))

    def kill_process(self, number: int, claim: str) -> None:
        assert claim == CLAIM.claim_id
        self.killed.append(number)

    async def abandon(self, claim: str) -> None:
        self.abandoned += 1

    def release(self, session: str) -> None:
        """Holds nothing."""


class Beside:
    """The side work of one session over tools, requests and look-ups of a test's own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, session: Session, **config: Any) -> None:
        self.tools, self.now, self.grace = Tools(), 0.0, asyncio.Event()
        self.slept: list[float] = []
        self.session = session

        async def request(ports: Any, state: State, push: Any, delta: Any, prepared: Any) -> None:
            assert state.task is not None
            assert state.task.request is not None
            n = state.task.request.n
            await self.tools._lasts(f"request {n}")
            push(c.ResponseCompleted(n, "r"))

        async def look_up(context: Any, key: str) -> c.LookedUp:
            await self.tools._lasts(key)
            return c.LookedUp(key)

        async def fit(facts: Any, cwd: str) -> str | None:
            return None

        async def sleep(seconds: float) -> None:
            self.slept.append(seconds)
            if seconds == GRACE_S:
                await self.grace.wait()
            else:
                await asyncio.Event().wait()

        monkeypatch.setattr(side_work_module, "follow_request", request)
        monkeypatch.setattr(side_work_module, "look_up", look_up)
        ports: Any = SimpleNamespace(
            tools=self.tools,
            workspace=fit,
            folders=SimpleNamespace(machine="m"),
            monotonic=lambda: self.now,
            sleep=sleep,
            spawn=lambda work, name: asyncio.ensure_future(work),
            broker=SimpleNamespace(now_ms=lambda: NOON_MS),
        )
        worker = WorkerSettings.model_construct(drain_grace_s=GRACE_S, quantum_s=60.0)
        self.context = RunnerContext.of(ports, RunnerConfig(rules=RULES, worker=worker, **config), CLAIMED)
        self.arrivals = Arrivals(self.context)
        self.work = SideWork(self.context, self.arrivals)
        self.log_is()

    def log_is(self) -> None:
        """The log says what the session has come to."""
        self.context.journal.position = Position(self.session.state, self.session.seq, b"")

    async def starts(self) -> None:
        """Starts what the log owes."""
        self.log_is()
        await self.work.start(outstanding(self.session.state, RULES, CLAIM.epoch))
        await settled()

    def told(self) -> list[c.Command]:
        """Commands that came of it since the last time, taken out of the inbox."""
        found = [command for command, _ in self.arrivals.inbox]
        self.arrivals.inbox.clear()
        return [command for command in found if isinstance(command, c.Command)]

    def unsettled(self) -> bool:
        """Whether something that ended is still undecided."""
        return bool(self.work.unsettled)

    async def graced(self) -> None:
        """The grace is over."""
        self.grace.set()
        await settled()


async def settled() -> None:
    for _ in range(30):
        await asyncio.sleep(0)


def with_calls(*call_ids: str) -> Session:
    session = Session()
    session.say("go")
    session.asks_for(*call_ids)
    for call_id in call_ids:
        session.assessed(call_id, a_command("make", safe=True))
    return session


def kept(number: int, epoch: int = 1) -> f.ProcessKept:
    return f.ProcessKept(number, CallId(f"p{number}"), SubmissionId("t0"), "make", "/repo", epoch, "")


def busy() -> Session:
    """A session with two calls that run, two look-ups and two processes."""
    session = with_calls("c1", "c2")
    for number in (1, 2):
        session.submit(op("list_skills"), f"l{number}", client="c")
        session.record(fact(kept(number)))
    return session


ALL = ["c1", "c2", "c|l1", "c|l2", "process 1", "process 2"]


async def test_everything_that_is_owed_is_started_once_however_often_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    beside = Beside(monkeypatch, busy())
    await beside.starts()
    assert sorted(beside.tools.begun) == ALL
    await beside.starts()
    assert sorted(beside.tools.begun) == ALL
    beside.tools.ends["c1"].set_result(None)
    await settled()
    await beside.starts()
    assert sorted(beside.tools.begun) == ALL, "its end is not decided yet"
    await beside.work.stop()


async def test_stop_of_a_task_ends_its_calls_and_neither_look_ups_nor_processes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session = busy()
    beside = Beside(monkeypatch, session)
    await beside.starts()
    session.submit(op("user_input", items=[{"type": "text", "text": "now this"}]))
    assert session.task.stopping == "replaced"
    assert any(isinstance(work, StopAll) for work in outstanding(session.state, RULES, 1))
    beside.now = 2.5
    await beside.starts()
    assert sorted(beside.tools.cancelled) == ["c1", "c2"]
    assert beside.told() == [c.Stopped({"c1": 2.5, "c2": 2.5})]
    await beside.work.stop()


async def test_lost_claim_ends_all_and_waits_until_each_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    beside = Beside(monkeypatch, busy())
    await beside.starts()
    beside.work.cancel()
    await beside.work.stop()
    assert sorted(beside.tools.cancelled) == ALL
    assert beside.tools.abandoned == 1


# ── a worker that leaves ──────────────────────────────────────────────────────────────────────


async def test_each_call_that_outlives_the_grace_is_told_killed_and_none_that_ended_within_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    beside = Beside(monkeypatch, with_calls("c1", "c2", "c3"))
    await beside.starts()
    beside.work.drain()
    beside.tools.ends["c2"].set_result(None)
    await settled()
    assert beside.tools.cancelled == []
    beside.now = 12.0
    await beside.graced()
    ended = beside.told()
    assert all(isinstance(one, c.CallFinished) for one in ended)
    told = {one.call_id: str(one.output) for one in ended if isinstance(one, c.CallFinished)}
    assert told["c2"] == "output of c2"
    assert set(told) == {"c1", "c2", "c3"}
    assert all(told[call].startswith("killed after 12.0s") for call in ("c1", "c3"))
    assert len(ended) == 3


async def test_request_that_outlives_the_grace_is_told_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session()
    session.say("go")
    n = session.begin()
    beside = Beside(monkeypatch, session)
    await beside.starts()
    assert beside.tools.begun == [f"request {n}"]
    beside.work.drain()
    beside.work.drain()
    await beside.graced()
    assert beside.told() == [c.ResponseBroken(n, "stream", SHUTTING_DOWN, delay_ms=0)]
    assert beside.tools.cancelled == [f"request {n}"]


async def test_nothing_begins_behind_the_grace_and_what_was_decided_to_is_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    beside = Beside(monkeypatch, with_calls("c1", "c2"))
    beside.work.drain()
    await beside.graced()
    await beside.starts()
    refused = beside.told()
    assert [one.call_id for one in refused if isinstance(one, c.CallFinished)] == ["c1", "c2"]
    assert all("not run" in str(one.output) for one in refused if isinstance(one, c.CallFinished))
    session = Session()
    session.say("go")
    n = session.begin()
    other = Beside(monkeypatch, session)
    other.work.drain()
    await other.graced()
    await other.starts()
    assert other.told() == [c.ResponseBroken(n, "stream", SHUTTING_DOWN, delay_ms=0)]
    assert (beside.tools.begun, other.tools.begun) == ([], [])


async def test_look_ups_of_a_worker_that_leaves_go_on_for_the_grace_and_no_other_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session = Session()
    for number in (1, 2):
        session.submit(op("list_skills"), f"l{number}", client="c")
    beside = Beside(monkeypatch, session)
    await beside.starts()
    beside.work.drain()
    session.submit(op("list_skills"), "l3", client="c")
    await beside.starts()
    beside.tools.ends["c|l1"].set_result(None)
    await settled()
    assert beside.told() == [c.LookedUp("c|l1")]
    assert beside.unsettled()
    await beside.graced()
    assert beside.tools.begun == ["c|l1", "c|l2"]
    assert beside.tools.cancelled == ["c|l2"]
    assert not beside.unsettled(), "they are owed still, and the next holder does them"
    assert beside.told() == []


async def test_worker_that_leaves_takes_each_process_along_once_no_call_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session = with_calls("c1")
    for number in (1, 2):
        session.record(fact(kept(number)))
    beside = Beside(monkeypatch, session)
    await beside.starts()
    beside.work.drain()
    await beside.starts()
    assert beside.tools.killed == [], "the call may need them"
    beside.tools.ends["c1"].set_result(None)
    await settled()
    (ended,) = beside.told()
    session.happens(ended)
    beside.work.settle(ended)
    await beside.starts()
    assert beside.tools.killed == [1, 2]
    for number in (1, 2):
        beside.tools.ends[f"process {number}"].set_result(None)
    await settled()
    told = beside.told()
    assert [one.over.number for one in told if isinstance(one, c.ProcessFinished)] == [1, 2]
    assert all(one.lost for one in told if isinstance(one, c.ProcessFinished))


async def test_process_that_is_to_stop_is_killed_and_not_told_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session()
    for number in (1, 2):
        session.record(fact(kept(number)))
    session.record(fact(f.ProcessesStopping((2,))))
    beside = Beside(monkeypatch, session)
    await beside.starts()
    assert beside.tools.killed == [2]
    beside.work.drain()
    await beside.starts()
    for number in (1, 2):
        beside.tools.ends[f"process {number}"].set_result(None)
    await settled()
    told = {one.over.number: one.lost for one in beside.told() if isinstance(one, c.ProcessFinished)}
    assert (bool(told[1]), told[2]) == (True, "")


# ── what comes of each ────────────────────────────────────────────────────────────────────────


def a_request() -> Session:
    session = Session()
    session.say("go")
    session.begin()
    return session


def a_look_up() -> Session:
    session = Session()
    session.submit(op("list_skills"), "l1", client="c")
    return session


def a_process() -> Session:
    session = Session()
    session.record(fact(kept(1)))
    return session


KINDS: dict[str, tuple[Callable[[], Session], str, Callable[[Any], bool]]] = {
    "a call": (lambda: with_calls("c1"), "c1", lambda told: told.call_id == "c1"),
    "a request": (a_request, "request 1", lambda told: (told.n, told.kind) == (1, "fatal")),
    "a look-up": (a_look_up, "c|l1", lambda told: told.key == "c|l1" and told.error),
    "a process": (a_process, "process 1", lambda told: told.over.number == 1),
}
ENDED = {
    "a call": c.CallFinished,
    "a request": c.ResponseBroken,
    "a look-up": c.LookedUp,
    "a process": c.ProcessFinished,
}


@pytest.mark.parametrize("kind", KINDS)
async def test_work_that_breaks_down_ends_in_the_way_of_its_kind(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    made, name, fits = KINDS[kind]
    beside = Beside(monkeypatch, made())
    await beside.starts()
    beside.tools.ends[name].set_exception(TypeError("a bug"))
    await settled()
    (told,) = beside.told()
    assert isinstance(told, ENDED[kind])
    assert fits(told)
    assert beside.unsettled(), "until that is decided"
    beside.work.settle(told)
    assert not beside.unsettled()


@pytest.mark.parametrize("kind", KINDS)
async def test_work_is_started_again_once_its_end_is_decided_and_never_while_that_may_be_taken_back(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    made, name, _ = KINDS[kind]
    beside = Beside(monkeypatch, made())
    await beside.starts()
    beside.tools.ends[name].set_result(None)
    await settled()
    (told,) = beside.told()
    beside.work.settle(told)
    beside.work.reopen(told)
    assert beside.unsettled()
    await beside.starts()
    assert beside.tools.begun == [name], "its step was refused, and is decided anew"
    beside.work.settle(told)
    assert not beside.unsettled()
    await beside.starts()
    assert beside.tools.begun == [name, name], "the log asks for it again"
    await beside.work.stop()


async def test_claim_is_kept_for_processes_alone_only_where_nothing_else_is_at_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for made in (Session, a_look_up, a_request, lambda: with_calls("c1")):
        for processes in (0, 1, 2):
            session = made()
            for number in range(1, processes + 1):
                session.record(fact(kept(number)))
            beside = Beside(monkeypatch, session)
            assert not beside.work.follows_processes_only
            await beside.starts()
            assert beside.work.follows_processes_only is (made is Session and processes > 0)
            await beside.work.stop()


@pytest.mark.parametrize(("first_s", "second_s", "slept"), [(4, 1, [4, 1]), (1, 4, [1]), (2, 2, [2])])
async def test_request_waits_for_its_own_time_and_not_for_that_of_a_task_that_is_over(
    monkeypatch: pytest.MonkeyPatch, first_s: int, second_s: int, slept: list[int]
) -> None:
    session = Session()
    beside = Beside(monkeypatch, session)
    for delay_s in (first_s, second_s):
        session.say("go")
        session.begin()
        session.breaks(delay_ms=delay_s * 1_000)
        await beside.starts()
        assert beside.slept == slept[: len(beside.slept)]
        session.interrupt()
    assert beside.slept == slept
    beside.work.close()


@pytest.mark.parametrize(
    ("made", "others", "seconds", "leaves"),
    [
        (Session, True, 61.0, True),
        (Session, True, 60.0, False),
        (Session, False, 61.0, False),
        (a_look_up, True, 61.0, True),
        (a_process, True, 61.0, False),
        (a_request, True, 61.0, False),
    ],
)
async def test_session_gives_way_behind_its_time_if_others_wait_and_it_does_nothing_that_is_bound_here(
    monkeypatch: pytest.MonkeyPatch, made: Callable[[], Session], others: bool, seconds: float, leaves: bool
) -> None:
    beside = Beside(monkeypatch, made(), others_wait=lambda: others)
    await beside.starts()
    beside.now = seconds
    beside.work.look_at_time()
    assert beside.work.leaving() is leaves
    beside.now = 0.0
    beside.work.look_at_time()
    assert not beside.work.leaving(), "each look decides anew"
    await beside.work.stop()
