"""Tasks with very many calls and inputs end piece by piece, whoever dies meanwhile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import orjson
import pytest
from hypothesis import HealthCheck, given, settings

from orchestrator.core import commands as c
from orchestrator.core import entries as e
from orchestrator.core import facts as f
from orchestrator.core.calls import AwaitWork, Phase
from orchestrator.core.decide import IllegalCommand
from orchestrator.core.decide.request import MOST_CALLS
from orchestrator.core.decide.task import BY_FAILURE, BY_USER
from orchestrator.core.entries import EVENT_MSG, decode_entry, encode_event
from orchestrator.core.evolve import fold
from orchestrator.core.outstanding import CloseCalls, OweRequest, RunCall
from orchestrator.core.settings import Rules
from orchestrator.core.state import State
from orchestrator.protocol.ids import CallId
from tests.core.auditor import Audit, check_calls, check_liveness
from tests.core.driver import Session, a_command, assistant, op, text

MOST_ENTRIES = 128
"""Of one decision: a step that holds as many already still fits the 256 of a commit."""
MOST_BYTES = 700 << 10
"""The same for a step that holds 256 KiB already, and the 1 MiB of a commit."""
WHERE = ("done", "running", "awaiting", "waiting")
WORDS = "so it is " * 7_000


class Crowded(Session):
    """A session whose every commit is measured, and whose worker may die behind any of them."""

    crashes: tuple[bool, ...] = ()
    pieces = 0

    def happens(self, command: c.Command) -> Any:
        before = len(self.lines)
        seen = super().happens(command)
        size = sum(map(len, self.lines[before:]))
        for entry in seen.entries:
            if entry.type == EVENT_MSG:
                size += len(encode_event(entry))
        assert len(seen.decision.entries) <= MOST_ENTRIES
        assert size <= MOST_BYTES
        return seen

    def runs_its_course(self) -> None:
        """Does the owed work until the task is over; after some commits by another worker."""
        while CloseCalls() in self.owes():
            check_liveness(self)
            crash = self.crashes[self.pieces] if self.pieces < len(self.crashes) else False
            self.pieces += 1
            assert self.pieces < 300, "it does not come to an end"
            if crash:
                self.state = self.replayed()
                self.is_taken_over()
            else:
                self.happens(c.CloseCalls())


def crowded(
    count: int, phases: dict[int, str], said: list[int], request: bool = False, agent: bool = False
) -> Crowded:
    """A task with so many calls, some of them under way, and inputs of so many bytes."""
    facts: dict[str, Any] = {"on_user_input": "steer", "approval_timeout_ms": 60_000}
    if agent:
        facts |= {"agent_id": 1, "agent_path": "0/1", "origin": "spawn", "parent_session": "the root"}
    session = Crowded(facts=facts)
    session.say("go", "u1")
    session.begin()
    session.calls(*(f"c{number}" for number in range(count)))
    for size in said:
        session.say(WORDS[:size])
    if not request:
        session.ends()
    for place, phase in phases.items():
        _reaches(session, f"c{place}", phase)
    return session


def _reaches(session: Session, call_id: str, phase: str) -> None:
    if session.call(call_id).phase != "proposed":
        return
    match phase:
        case "done":
            session.assessed(call_id, c.Immediate("done at once"))
        case "running":
            session.runs(call_id)
        case "awaiting":
            session.assessed(call_id, a_command(dangerous=True))
        case "waiting" if session.task.waiting is None:
            timer = session.state.timers + 1
            wait = AwaitWork((), timer, 0)
            session.record(
                e.fact(f.TimerTaken(timer)), e.fact(f.CallMoved(CallId(call_id), Phase.WAITING, work=wait))
            )


def interrupted(session: Session) -> None:
    session.interrupt()


def replaced(session: Session) -> None:
    session.submit(op("user_turn", items=[text("else")], **_TURN), "u2")


def configured_anew(session: Session) -> None:
    session.submit(op("configure_session", model="gpt-5-codex"), "u2")


def shut_down(session: Session) -> None:
    session.shutdown()


def refused_here(session: Session) -> None:
    session.happens(c.TaskRefused("the folder is gone"))


def broken_for_good(session: Session) -> None:
    session.breaks("fatal", "invalid request")


def cancelled(session: Session) -> None:
    session.happens(c.MailArrived("cancel", {"reason": "enough"}, "k", 1, interrupt=True))


_TURN = {
    "cwd": "/repo",
    "approval_policy": "untrusted",
    "sandbox_policy": {"mode": "workspace-write"},
    "model": "gpt-5",
    "summary": "auto",
}
WHILE_STILL = (interrupted, replaced, configured_anew, shut_down, refused_here)
WHILE_ASKING = (interrupted, replaced, shut_down, broken_for_good)
Reason = Callable[[Session], None]


@st.composite
def lives(draw: st.DrawFn) -> tuple[Callable[[], Crowded], Reason, tuple[bool, ...]]:
    count = draw(st.integers(90, 400))
    places = st.integers(0, count - 1)
    request = draw(st.booleans())
    phases = draw(st.dictionaries(places, st.sampled_from(WHERE), max_size=30))
    running = [place for place, phase in phases.items() if phase == "running"]
    phases = {place: phase for place, phase in phases.items() if place not in running[16:]}
    said = draw(st.lists(st.sampled_from([10, 3_000, 60_000]), max_size=100))
    reason = draw(st.sampled_from(WHILE_ASKING if request else WHILE_STILL))
    if reason is refused_here:
        phases = {place: phase for place, phase in phases.items() if phase != "running"}
    crashes = draw(st.lists(st.booleans(), min_size=20, max_size=20))
    return lambda: crowded(count, phases, said, request), reason, tuple(crashes)


def ended(session: Crowded, reason: Reason, crashes: tuple[bool, ...]) -> Crowded:
    session.crashes = crashes
    reason(session)
    if session.state.task is not None and session.task.stopping and not session.task.ending:
        session.stopped(c1=1.5)
    session.runs_its_course()
    return session


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(life=lives())
def test_task_with_hundreds_of_calls_ends_the_same_whichever_worker_dies_in_between(life: Any) -> None:
    make, reason, crashes = life
    lived, died = ended(make(), reason, ()), ended(make(), reason, crashes)
    assert died.lines == lived.lines
    assert (died.digest, died.pieces) == (lived.digest, lived.pieces)
    assert (died.timers, died.approvals) == ({}, {})
    audit = Audit()
    for line in died.lines:
        audit.read(decode_entry(line))
    _nothing_is_missing(died)


def _nothing_is_missing(session: Crowded) -> None:
    """Every call has one output, every input is in the conversation, in the order in which it came."""
    assert session.state.task is None or session.task.id == "u2"
    state, session.state = session.state, fold(State(), map(decode_entry, _until_the_end(session)), 1)
    check_calls(session)
    session.state = state
    steered = [message["item"]["content"][0]["text"] for message in _facts(session, "steered")]
    heard = [item["content"][0]["text"] for item in state.history if item.get("role") == "user"]
    assert [words for words in heard if words in set(steered)] == steered


def _until_the_end(session: Crowded) -> list[bytes]:
    ends = [at for at, line in enumerate(session.lines) if b'"kind":"task_ended"' in line]
    assert len(ends) == 1
    return session.lines[: ends[0] + 1]


def _facts(session: Session, kind: str) -> list[Any]:
    found = (decode_entry(line).payload for line in session.lines)
    return [payload for payload in found if payload.get("kind") == kind]


def test_interrupt_of_a_thousand_calls_closes_them_in_pieces_and_aborts_the_task_last() -> None:
    session = crowded(MOST_CALLS, {0: "awaiting"}, [])
    assert len(session.task.open_calls) == MOST_CALLS
    assert session.interrupt().types == []
    assert (session.approvals, session.timers) == ({}, {})
    assert (session.status, session.owes()) == ("running", (CloseCalls(),))
    session.runs_its_course()
    assert session.seen[-1].types == ["turn_aborted"]
    assert (session.pieces, session.status) == (10, "idle")
    outputs = Counter(item["output"] for item in session.shown() if "output" in item)
    assert outputs == {BY_USER: MOST_CALLS}


def test_calls_beyond_measure_are_refused_clearly_and_the_others_run() -> None:
    session = crowded(MOST_CALLS + 1, {}, [])
    assert "at most 1,024 calls" in session.output_of(f"c{MOST_CALLS}")
    assert len(session.task.open_calls) == MOST_CALLS


def test_command_that_was_stopped_says_how_long_it_ran_however_many_calls_there_are() -> None:
    session = crowded(300, {299: "running"}, [])
    session.interrupt()
    session.stopped(c299=2.0)
    session.runs_its_course()
    assert session.output_of("c299") == f"{BY_USER} after 2.0s"


def test_failed_task_with_many_calls_tells_its_error_once_and_last() -> None:
    session = crowded(300, {}, [], request=True)
    broken_for_good(session)
    session.runs_its_course()
    assert session.types[-2:] == ["error", "task_complete"]
    assert session.types.count("error") == 1
    assert session.output_of("c299") == BY_FAILURE
    assert session.state.outcome == "failed"


def test_agent_that_is_cancelled_with_many_open_calls_reports_its_end_behind_the_last_of_them() -> None:
    session = crowded(300, {}, [], agent=True)
    cancelled(session)
    assert session.owes() == (CloseCalls(),)
    session.runs_its_course()
    told = [seen.decision.tree.outbox for seen in session.seen if seen.decision.tree is not None]
    (letter,) = [letter for letters in told for letter in letters if letter.kind == "completion"]
    told_parent = orjson.loads(letter.payload)
    assert told_parent["status"] == "canceled"
    assert told_parent["evidence"] == "proved"
    assert session.seen[-1].decision.tree is not None


@pytest.mark.parametrize("late", ["approved", "denied"])
def test_late_answer_to_an_approval_of_a_task_that_is_ending_changes_nothing(late: str) -> None:
    session = crowded(300, {299: "awaiting"}, [])
    session.interrupt()
    assert session.call("c299").phase == "awaiting_approval"
    assert "request is open under" in session.decides("c299", late).one("error")["message"]
    session.runs_its_course()
    assert session.output_of("c299") == BY_USER
    assert "request is open under" in session.decides("c299", late).one("error")["message"]


def test_nothing_of_a_task_that_is_ending_starts_and_nothing_is_closed_twice() -> None:
    session = crowded(300, {}, [])
    session.interrupt()
    with pytest.raises(IllegalCommand, match="being stopped"):
        session.assessed("c299", a_command(safe=True))
    with pytest.raises(IllegalCommand, match="no model request"):
        session.begin()
    with pytest.raises(IllegalCommand):
        session.finishes("c0")
    assert session.interrupt().decision.entries == ()
    session.say("and then this", "u2")
    session.runs_its_course()
    assert session.task.id == "u2"
    with pytest.raises(IllegalCommand, match="nothing is ending"):
        session.happens(c.CloseCalls())


def test_inputs_that_are_more_than_a_commit_carries_join_the_conversation_before_the_request() -> None:
    session = crowded(0, {}, [60_000] * 99, request=True)
    session.say("the last", "u100")
    session.item(assistant("half"))
    session.ends()
    pieces = 0
    while session.task.request is None:
        assert session.owes() == (OweRequest(),)
        session.happens(c.BeginRequest())
        pieces += 1
    assert pieces > 40
    heard = [words for words in session.texts() if words.startswith("so it is") or words == "the last"]
    assert len(heard) == 100
    assert heard[-1] == "the last"


def test_few_inputs_join_with_the_request_itself() -> None:
    session = crowded(0, {}, [10] * 3, request=True)
    session.item(assistant("half"))
    session.ends()
    session.begin()
    assert _facts(session, "steered_joined") == []


def test_interrupt_between_two_pieces_of_input_loses_none() -> None:
    session = crowded(0, {}, [60_000] * 10, request=True)
    session.ends()
    session.happens(c.BeginRequest())
    session.interrupt()
    session.runs_its_course()
    assert sum(words.startswith("so it is") for words in session.texts()) == 10


def test_input_of_many_long_parts_stands_beside_its_entry() -> None:
    session = Crowded()
    session.submit(op("user_input", items=[text(WORDS[:60_000])] * 100), "u1")
    assert max(map(len, session.lines)) < 128 << 10
    assert session.text_of(session.state.history.tail[-1]["content"][0]["text"]["$blob"]) == WORDS[:60_000]


def test_calls_that_may_run_together_run_a_few_at_a_time() -> None:
    session = crowded(40, {}, [])
    session.rules = Rules(parallel_safe=frozenset({"shell"}))
    for number in range(20):
        if any(getattr(work, "call_id", "") == f"c{number}" for work in session.owes()):
            session.runs(f"c{number}")
    assert sum(isinstance(work, RunCall) for work in session.owes()) == 16
