"""How a task that is watched ends its command, and whom an interrupt or a cancel of a tree waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import orjson
import pytest

from orchestrator.broker.follow import BEGINNING
from orchestrator.broker.records import SessionHead
from orchestrator.cli.send import _stop
from orchestrator.core.ids import AgentId, SessionId, TreeId
from orchestrator.gateways.submit import StillAtWork
from orchestrator.protocol.submission import Submission
from orchestrator.protocol.wire import written
from orchestrator.terminal.faults import ExitCode
from orchestrator.terminal.live import LiveView
from orchestrator.terminal.watched_turn import Conversation, Seat
from orchestrator.views.event import Event
from orchestrator.views.find import Addressed
from orchestrator.wiring import cancelling
from orchestrator.wiring.cancelling import Patience, end_tree
from tests.views.test_threads import ROOT, head


class Notes(LiveView):
    """A view that keeps what is noted."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def event(self, event: Event) -> None:
        pass

    def note(self, text: str) -> None:
        self.notes.append(text)


class Watched:
    """A client that sees a root and its agents; what is handed in changes nothing."""

    def __init__(self, root: SessionHead, *agents: SessionHead) -> None:
        self.root, self.agents = root, agents
        self.looks: list[SessionHead] = []
        self.sent: list[Submission] = []

    async def head(self, session: SessionId) -> SessionHead:
        return self.looks.pop(0) if len(self.looks) > 1 else self.looks[0] if self.looks else self.root

    async def family(self, root: SessionHead) -> Sequence[SessionHead]:
        return (root, *self.agents)

    async def submit(self, session: SessionId, submission: Submission) -> None:
        self.sent.append(submission)

    async def until(
        self, sessions: Collection[SessionId], look: Callable[[], Awaitable[Any]], patience_s: float
    ) -> Any:
        for _ in range(max(1, len(self.looks))):
            if answer := await look():
                return answer
        return None


def watching(client: Watched, task: str | None = None, *, interactive: bool = False) -> Conversation:
    return Conversation(Seat(cast(Any, client), ROOT, Notes(), interactive), task)


def happens(type: str, id: str, **fields: Any) -> Event:
    return Event(id, {"type": type, **fields}, BEGINNING)


STARTED: tuple[str, dict[str, Any]] = ("task_started", {})
BEGUN: dict[str, Any] = {"call_id": "c", "command": ["ls"], "cwd": "/", "parsed_cmd": []}
DONE = ("task_complete", {"last_agent_message": "done"})
FAILS = ("error", {"message": "the model cannot be asked"})


@pytest.mark.parametrize("task", ["t1", None])
@pytest.mark.parametrize(
    ("events", "code"),
    [
        ([STARTED, DONE], ExitCode.DONE),
        ([STARTED, FAILS, DONE], ExitCode.FAILED),
        ([STARTED, ("stream_error", {"message": "again"}), DONE], ExitCode.DONE),
        ([STARTED, ("warning", {"message": "low"}), DONE], ExitCode.DONE),
        ([STARTED, ("turn_aborted", {"reason": "interrupted"})], ExitCode.INTERRUPTED),
        ([STARTED, ("turn_aborted", {"reason": "replaced"})], ExitCode.FAILED),
        ([STARTED, ("turn_aborted", {"reason": "review_ended"})], ExitCode.FAILED),
        ([STARTED, ("turn_aborted", {"reason": "of a newer version"})], ExitCode.FAILED),
        ([STARTED, FAILS, ("turn_aborted", {"reason": "interrupted"})], ExitCode.INTERRUPTED),
    ],
)
async def test_command_ends_with_its_task_and_its_code_says_how_the_task_ended(
    events: Sequence[tuple[str, dict[str, Any]]], code: ExitCode, task: str | None
) -> None:
    talk = watching(Watched(head(status="running", holder="w1")), task)
    codes = [await talk._event(happens(type, "t1", **fields)) for type, fields in events]
    assert codes == [None] * (len(events) - 1) + [code]


async def test_command_whose_input_is_refused_fails_and_ends_of_other_tasks_end_it_not() -> None:
    talk = watching(Watched(head(status="running", holder="w1")), "t1")
    for type, fields in (STARTED, FAILS, DONE):
        assert await talk._event(happens(type, "t0", **fields)) is None
    assert await talk._event(happens(FAILS[0], "t1", **FAILS[1])) is ExitCode.FAILED


def at(status: str, agent: int = 0, **facts: Any) -> SessionHead:
    return head(status=status, agent_id=AgentId(agent), **facts)


@pytest.mark.parametrize("interactive", [True, False])
@pytest.mark.parametrize(
    ("family", "words"),
    [
        ([at("waiting"), at("awaiting_approval", 1)], "waiting for an answer"),
        ([at("waiting"), at("awaiting_answer", 1), at("idle", 2)], "waiting for an answer"),
        ([at("waiting"), at("waiting", 1), at("awaiting_approval", 2)], "waiting for an answer"),
        ([at("awaiting_approval")], "waiting for an answer"),
        ([at("awaiting_answer"), at("running", 1)], "waiting for an answer"),
        ([at("waiting"), at("paused", 1)], "waiting for more budget"),
        ([at("waiting"), at("paused", 1), at("awaiting_approval", 2)], "waiting for more budget"),
        ([at("waiting"), at("paused", 1, pending_messages=1)], "waiting for more budget"),
        ([at("paused")], "waiting for more budget"),
        ([at("waiting"), at("running", 1, quarantined=True)], "waiting for an agent that is quarantined"),
        ([at("waiting"), at("running", 1, quarantined=True), at("running", 2, holder="w1")], ""),
        ([at("paused"), at("running", 1)], ""),
        ([at("paused"), at("idle", 1, holder="w1")], ""),
        ([at("waiting"), at("awaiting_approval", 1), at("running", 2)], ""),
        ([at("waiting"), at("awaiting_approval", 1), at("idle", 2, holder="w1")], ""),
        ([at("waiting"), at("awaiting_approval", 1), at("idle", 2, sq_tip="2-0")], ""),
        ([at("waiting"), at("awaiting_approval", 1), at("idle", 2, pending_messages=1)], ""),
        ([at("waiting", holder="w1"), at("awaiting_approval", 1)], ""),
        ([at("waiting"), at("idle", 1)], ""),
        ([at("running"), at("awaiting_approval", 1)], ""),
        ([at("idle")], ""),
    ],
)
async def test_command_without_a_person_leaves_a_tree_that_only_a_person_can_move(
    family: Sequence[SessionHead], words: str, interactive: bool
) -> None:
    talk = watching(Watched(*family), interactive=interactive)
    code = await talk._silence()
    notes = cast(Notes, talk.seat.view).notes
    told = [note for note in notes if note.startswith("waiting for")]
    if not words or interactive:
        assert (code, told) == (None, [])
    else:
        assert code is ExitCode.WAITING
        assert [note.startswith(words) for note in told] == [True]
        assert talk.seat.how_to_go_on in told[0]


@pytest.mark.parametrize("own", [True, False])
async def test_second_ctrl_c_leaves_and_only_the_first_interrupts(own: bool) -> None:
    client = Watched(head(status="running", holder="w1"))
    talk = watching(client, "t1" if own else None, interactive=True)
    assert await talk._interrupt() is None
    assert await talk._interrupt() is ExitCode.INTERRUPTED
    assert [written(one.op)["type"] for one in client.sent] == ["interrupt"]


# ── trees ─────────────────────────────────────────────────────────────────────────────────────


def record(number: int, path: str, status: str) -> bytes:
    parent = int(path.split("/")[-2])
    facts = {"agent_id": number, "parent_agent_id": parent, "session_id": f"s{number}", "agent_path": path}
    return orjson.dumps({**facts, "status": status, "turn": 1})


class Tree:
    """A root with agents 1 and 2, whose statuses are those of each next look."""

    def __init__(self, client: Watched, *looks: Sequence[str]) -> None:
        self.client_, self.looks = client, list(looks)
        self.broker = SimpleNamespace(trees=self, logs=client)

    def client(self) -> Any:
        return self.client_

    async def agents(self, tree: TreeId) -> dict[str, bytes]:
        first, second = self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]
        return {"a:1": record(1, "0/1", first), "a:2": record(2, "0/1/2", second)}


RUNS, IDLE = at("running", holder="w1"), at("idle")


@pytest.mark.parametrize("now", [IDLE, RUNS])
@pytest.mark.parametrize(
    ("then", "said", "fault"),
    [
        ([IDLE], "the root and 2 agents below: nothing of them runs", ""),
        ([RUNS, at("idle", sq_tip="2-0"), IDLE], "the root and 2 agents below: nothing of them runs", ""),
        ([at("closed")], "the root and 2 agents below: nothing of them runs", ""),
        ([RUNS], "", "handed in; still at work: the root"),
        ([at("waiting", holder="w1", sq_tip="2-0")], "", "handed in; still at work: the root"),
        ([at("running", sq_tip="2-0")], "handed in, and kept; no worker has taken it yet", ""),
        ([at("idle", sq_tip="2-0")], "handed in, and kept; no worker has taken it yet", ""),
    ],
)
async def test_interrupt_of_a_tree_says_that_nothing_runs_where_its_first_agent_has_stopped_too(
    now: SessionHead, then: Sequence[SessionHead], said: str, fault: str
) -> None:
    client = Watched(now)
    client.looks = list(then)
    found = cast(Any, Tree(client, ("running", "queued"), ("ready", "running"), ("idle", "failed")))
    if fault:
        with pytest.raises(StillAtWork, match=fault):
            await _stop(found, Addressed(now), tree=True)
    else:
        assert (await _stop(found, Addressed(now), tree=True)).startswith(said)
    assert [(written(one.op)["type"], written(one.op)["tree"]) for one in client.sent] == [
        ("interrupt", True)
    ]


@pytest.mark.parametrize(
    ("left", "named"), [(("ready", "running"), "agents 2"), (("running", "queued"), "agents 1, 2")]
)
async def test_interrupt_of_a_tree_names_the_agents_below_that_have_not_stopped_in_time(
    left: tuple[str, str], named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.gateways.submit.PATIENCE_S", 0.0)
    client = Watched(IDLE)
    client.looks = [IDLE]
    with pytest.raises(StillAtWork, match=f"^handed in; still at work: {named}$"):
        await _stop(cast(Any, Tree(client, left)), Addressed(IDLE), tree=True)


class Growing:
    """A root with agents 1 and 2, and 3 below agent 1; agent 4 there has ended; 5 and 6 may be made.

    From the mark on each look finds one less at work of those that it concerns; the root closes last.
    """

    PATHS: ClassVar = {1: "0/1", 2: "0/2", 3: "0/1/3", 4: "0/1/4", 5: "0/1/5", 6: "0/1/3/6"}

    def __init__(self) -> None:
        self.working = [1, 2, 3]
        self.concerned: list[int] = []
        self.root = at("running", holder="w1")
        self.broker = SimpleNamespace(trees=self, logs=SimpleNamespace(head=self.head))

    async def head(self, session: SessionId) -> SessionHead:
        return self.root

    async def registry(self, tree: TreeId) -> SimpleNamespace:
        return SimpleNamespace(tree_seq=0)

    async def agents(self, tree: TreeId) -> dict[str, bytes]:
        known = {1, 2, 3, 4, *self.working}
        told = {
            f"a:{number}": record(number, path, "running" if number in self.working else "idle")
            for number, path in self.PATHS.items()
            if number in known
        }
        if self.concerned:
            self.working.remove(self.concerned.pop())
        elif self.working in ([], [2]):
            self.root = at("closed")
        return told


@pytest.mark.parametrize("made", [(), (5,), (6,), (5, 6), (4,)])
@pytest.mark.parametrize("agent", [0, 1])
async def test_cancel_waits_for_all_that_were_made_or_woken_until_its_mark(
    agent: int, made: Sequence[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = Growing()

    async def submit_end(*_: Any) -> None:
        tree.working += made
        # Those that were made last end last.
        tree.concerned = [number for number in tree.working[::-1] if number != 2 or not agent]

    async def at_once(seconds: float) -> None:
        pass

    monkeypatch.setattr(cancelling, "submit_end", submit_end)
    monkeypatch.setattr(asyncio, "sleep", at_once)
    assert await end_tree(cast(Any, tree), Addressed(at("running", agent)), print) == []
    assert tree.working == ([2] if agent else []), "of the other branch none is waited for"


async def test_agents_to_end_are_those_at_work_from_the_target_down() -> None:
    found = cast(Any, Growing())
    for agent, wanted in ((0, [1, 2, 3]), (1, [1, 3]), (2, [2]), (3, [3]), (4, [])):
        target = Addressed(at("running", agent))
        assert await cancelling.agents_to_end(found, target) == wanted


async def test_who_has_not_ended_in_time_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    found = cast(Any, Growing())
    for agent, left in ((0, ["agent 1", "agent 2", "agent 3", "the root"]), (1, ["agent 1", "agent 3"])):
        target = Addressed(at("running", agent))
        ending = await cancelling.agents_to_end(found, target)
        assert await cancelling.wait_for_ends(found, target, ending, Patience(-1.0, None), print) == left


async def test_person_is_told_each_other_worker_that_has_the_session_and_each_once() -> None:
    looks = [None, "w1", "w1", None, "w1", "w2", "w2", "w1"]
    client = Watched(head())
    talk = watching(client, "t1")
    for holder in looks:
        client.root = head(holder=holder)
        await talk._event(happens("exec_command_begin", "t1", **BEGUN))
    assert cast(Notes, talk.seat.view).notes == ["worker w1", "worker w2 took over", "worker w1 took over"]


@pytest.mark.parametrize(("type", "told"), [("task_started", True), ("agent_message", False)])
async def test_worker_is_looked_up_at_news_that_a_worker_brings(type: str, told: bool) -> None:
    talk = watching(Watched(head(holder="w1")), "t1")
    await talk._event(happens(type, "t1", message="x"))
    assert cast(Notes, talk.seat.view).notes == ["worker w1"] * told
