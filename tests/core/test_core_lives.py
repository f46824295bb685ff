"""Random lives of a session: whatever happens in whatever order, these things hold."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any
from unittest import mock

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from orchestrator.core import commands as c
from orchestrator.core import entries as e
from orchestrator.core import facts as f
from orchestrator.core.calls import USER_SHELL, ExecWork, PatchWork, Phase, WriteStdin
from orchestrator.core.calls.exec import Lasting
from orchestrator.core.context import is_context
from orchestrator.core.decide import IllegalCommand, request, task
from orchestrator.core.entries import decode_entry
from orchestrator.core.evolve import fold
from orchestrator.core.history import message_text
from orchestrator.core.outstanding import (
    AnswerServer,
    AssessCall,
    BeginSetup,
    CloseCalls,
    EndChildren,
    FollowProcess,
    FollowRequest,
    LookUp,
    MakeFolder,
    OweRequest,
    ReadInstructions,
    RunCall,
    RunSetup,
    SaveFolder,
    StopAll,
    Work,
)
from orchestrator.core.settings import Rules, TurnSettings
from orchestrator.core.snapshot import decode, digest, encode
from orchestrator.core.state import State
from orchestrator.protocol import events as ev
from orchestrator.protocol.ids import CallId, SubmissionId
from orchestrator.protocol.ops import Op
from orchestrator.protocol.scalars import TurnAbortReason
from tests.core.auditor import LARGEST_COMMIT, Audit, check_calls, check_liveness
from tests.core.driver import (
    PIECES,
    SETTINGS,
    Session,
    a_command,
    a_patch,
    assistant,
    exec_end,
    function_call,
    op,
    text,
)

CALL_IDS = st.sampled_from(["c1", "c2", "c3"])
TASK_IDS = st.sampled_from(["u1", "u2", "u3"])
POLICIES = st.sampled_from(["untrusted", "on-failure", "on-request", "never"])
ANSWERS: list[dict[str, Any]] = [
    {},
    {"error": "no"},
    {"message": ev.ListCustomPromptsResponse(custom_prompts=())},
]
MODES = [
    {"mode": kind, "settings": {"model": "gpt-5", "reasoning_effort": None, "developer_instructions": None}}
    for kind in ("plan", "code")
]
TOLD = re.compile("<(cwd|approval_policy|sandbox_mode)>(.*?)</")
BESIDE = [
    op("review", review_request={"prompt": "look"}),
    op("review", review_request={"target": {"type": "uncommittedChanges"}}),
    op("review", review_request={"prompt": " "}),
    op("plan", plan_request={"goal": "g"}),
]
DECISIONS = st.sampled_from(["approved", "approved_for_session", "denied", "abort"])
ITEMS = st.one_of(
    st.just(assistant("words")),
    st.just({"type": "hologram", "x": [1]}),
    st.just({"type": "local_shell_call", "status": "completed", "action": {}}),
    st.builds(function_call, CALL_IDS, st.sampled_from(["shell", "view_image", "apply_patch"])),
)
ASSESSMENTS = st.one_of(
    st.builds(
        lambda judged: a_command("make", **judged),
        st.dictionaries(st.sampled_from(["safe", "dangerous", "escalated", "confinable"]), st.booleans()),
    ),
    st.sampled_from([a_patch(), a_patch("/other/x", outside=["/other/x"])]),
    st.just(c.Immediate("done at once")),
    st.just(a_command("repl", safe=True, lasting=Lasting(True, 250, 100))),
    st.builds(WriteStdin, st.integers(1, 3), st.sampled_from(["", "x"]), st.just(250), st.just(100)),
)
USAGES = st.sampled_from([None, {"total_tokens": 10}, {"total_tokens": 900}])


class Life(RuleBasedStateMachine):
    """People, a model, tools, timers and dying workers at one session, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.session = Session()
        self.first = self.session.state.settings
        self.audit = Audit()
        self.read = 0
        self.replayed = State()
        self.said: set[str] = set()
        self.looked = 0

    @initialize(
        policy=POLICIES,
        steer=st.booleans(),
        timeout=st.sampled_from([None, 1_000]),
        retries=st.integers(0, 2),
    )
    def begins(self, policy: str, steer: bool, timeout: int | None, retries: int) -> None:
        self.session = Session(
            settings={"approval_policy": policy},
            facts={"on_user_input": "steer" if steer else "replace", "approval_timeout_ms": timeout},
            rules=Rules(stream_max_retries=retries, request_max_retries=1, auto_compact_limit=500),
        )
        self.first = self.session.state.settings

    def happens(self, command: c.Command) -> bool:
        """Decides a command; one that the state refuses leaves everything as it was."""
        before, lines = digest(self.session.state), self.session.seq
        try:
            seen = self.session.happens(command)
        except IllegalCommand:
            assert (digest(self.session.state), self.session.seq) == (before, lines)
            return False
        assert len(seen.decision.entries) <= LARGEST_COMMIT
        return True

    def submits(self, id: str, op: Any, seq: int | None = None) -> bool:
        seen_seq = self.session.seq if seq is None else seq
        accepted = self.happens(c.Submitted(SubmissionId(id), op, client="a client", seq=seen_seq))
        assert accepted, "an op is never illegal"
        return "error" not in self.session.seen[-1].types

    # --- people ----------------------------------------------------------------------

    @rule(id=TASK_IDS, mark=st.none() | st.integers(0, 5))
    def person_says_something(self, id: str, mark: int | None) -> None:
        words = f"input {len(self.said)}"
        fields: dict[str, Any] = {}
        if mark is not None:
            known = [name for name, _ in self.session.state.bookmarks]
            fields["last_response_id"] = known[mark % len(known)] if known else "unknown"
        if self.submits(id, op("user_input", items=[text(words)], **fields)):
            self.said.add(words)

    @rule(id=TASK_IDS, policy=POLICIES, cwd=st.sampled_from(["/repo", "/new"]))
    def person_takes_a_turn_with_settings(self, id: str, policy: str, cwd: str) -> None:
        words = f"input {len(self.said)}"
        turn = {
            "items": [text(words)],
            "cwd": cwd,
            "approval_policy": policy,
            "sandbox_policy": {"mode": "workspace-write"},
            "model": "gpt-5",
            "summary": "auto",
        }
        assert self.submits(id, op("user_turn", **turn))
        self.said.add(words)

    @rule(type=st.sampled_from(["interrupt", "compact", "get_path", "configure_session", "list_models"]))
    def person_submits_an_op(self, type: str) -> None:
        self.submits("o1", op(type))

    @rule(id=TASK_IDS, asked=st.sampled_from(BESIDE))
    def person_has_something_done_beside_the_conversation(self, id: str, asked: Op) -> None:
        self.submits(id, asked)

    @rule(id=st.sampled_from(["u1", "u2", "r1"]))
    def person_runs_a_command(self, id: str) -> None:
        self.submits(id, op("run_user_shell_command", command="ls"))

    @rule(type=st.sampled_from(["list_skills", "list_custom_prompts", "add_to_history"]))
    def person_asks_for_a_lookup(self, type: str) -> None:
        self.looked += 1
        fields = {"text": "words"} if type == "add_to_history" else {}
        self.submits(f"l{self.looked}", op(type, **fields))

    @rule(
        changes=st.fixed_dictionaries(
            {},
            optional={
                "cwd": st.sampled_from(["/repo", "/new"]),
                "approval_policy": POLICIES,
                "collaboration_mode": st.sampled_from(MODES),
            },
        )
    )
    def person_overrides_the_settings(self, changes: dict[str, Any]) -> None:
        self.submits("o2", op("override_turn_context", **changes))

    @rule()
    def person_shuts_the_session_down(self) -> None:
        self.submits("bye", op("shutdown"))
        assert self.session.state.closing or self.session.state.closed

    @rule(under=CALL_IDS | TASK_IDS, decision=DECISIONS, age=st.integers(0, 40))
    def person_answers_an_approval(self, under: str, decision: str, age: int) -> None:
        seen_seq = max(0, self.session.seq - age)
        before = self.session.state
        self.submits("a1", op("exec_approval", id=under, decision=decision), seq=seen_seq)
        started = _running(self.session.state) - _running(before)
        assert len(started) <= 1
        if before.task is not None and under == before.task.id and under not in started:
            waited: dict[str, int] = {call.call_id: call.asked_seq for call in before.task.awaiting}
            assert all(waited[call_id] <= seen_seq for call_id in started)

    # --- the worker, doing what is owed ----------------------------------------------

    @precondition(lambda self: self.session.owes())
    @rule(data=st.data())
    def worker_does_what_is_owed(self, data: st.DataObject) -> None:
        work = data.draw(st.sampled_from(self.session.owes()))
        assert self.happens(data.draw(_reports(self.session, work))), f"{work} is owed and refused"

    @precondition(lambda self: self.session.state.task is not None and self.session.state.task.request)
    @rule(items=st.lists(ITEMS, min_size=1, max_size=3))
    def model_sends_items(self, items: list[dict[str, Any]]) -> None:
        n = self.session.request_n
        for item in items:
            assert self.happens(c.ItemCompleted(n, item))

    @rule(judgement=st.sampled_from(["none", "all", "in_doubt"]))
    def worker_is_lost(self, judgement: str) -> None:
        self.session.epoch += 1
        task = self.session.state.task
        running = task.running if task is not None else ()
        patches: dict[str, str] = {
            call.call_id: judgement for call in running if isinstance(call.work, PatchWork)
        }
        assert self.happens(c.TookOver(patches))
        task = self.session.state.task
        assert task is None or not (task.running or task.request)
        assert task is None or task.ending or task.stopping != "interrupted"

    @precondition(lambda self: self.session.timers)
    @rule(data=st.data())
    def time_passes_to_a_timer(self, data: st.DataObject) -> None:
        self.session.fires(data.draw(st.sampled_from(sorted(self.session.timers))))

    # --- what should not come --------------------------------------------------------

    @rule(
        command=st.one_of(
            st.just(c.BeginRequest()),
            st.just(c.Stopped()),
            st.just(c.CloseCalls()),
            st.builds(c.ItemCompleted, st.integers(0, 9), ITEMS),
            st.builds(c.ResponseCompleted, st.integers(0, 9), st.just("late"), USAGES),
            st.builds(c.ResponseBroken, st.integers(0, 9), st.just("stream"), st.just("late")),
            st.builds(c.CallFinished, CALL_IDS, st.just("late")),
            st.builds(c.TimerFired, st.sampled_from(["retry", "approval:c1"]), st.integers(0, 9)),
        )
    )
    def anything_is_reported(self, command: c.Command) -> None:
        self.happens(command)
        if isinstance(command, c.TimerFired):
            # The timer was really set, or the report was stale: both leave the driver's set right.
            self.session.timers = {
                id: timer
                for id, timer in self.session.timers.items()
                if (id, timer.generation) != (command.id, command.generation)
            }

    # --- what always holds -----------------------------------------------------------

    @invariant()
    def log_replays_to_the_live_state(self) -> None:
        fresh = [decode_entry(line) for line in self.session.lines[self.read :]]
        self.replayed = fold(self.replayed, fresh, self.read + 1)
        for entry in fresh:
            self.audit.read(entry)
        self.read = self.session.seq
        assert digest(self.replayed) == self.session.digest
        assert [lookup.id for lookup in self.session.state.lookups] == self.audit.lookups

    @invariant()
    def snapshot_is_the_state(self) -> None:
        assert digest(decode(encode(self.session.state))) == self.session.digest

    @invariant()
    def something_can_always_happen(self) -> None:
        check_liveness(self.session)

    @invariant()
    def every_call_has_one_output_when_its_task_ends(self) -> None:
        check_calls(self.session)

    @invariant()
    def model_is_told_under_what_it_works(self) -> None:
        task = self.session.state.task
        if task is None or task.kind in ("compact", "shell"):
            return
        told = _told(self.first)
        for item in filter(is_context, self.session.shown()):
            told |= dict(TOLD.findall(message_text(item)))
        assert told == _told(task.settings)

    @invariant()
    def no_input_is_lost_or_taken_twice(self) -> None:
        state = self.session.state
        queued = [waiting.turn for waiting in state.queue if waiting.turn.items]
        kept = self.audit.inputs | {turn.items[0]["text"] for turn in queued}
        if state.task is not None:
            kept |= {item["content"][0]["text"] for item in state.task.steered}
        assert self.said <= kept
        heard = Counter(message_text(item) for item in state.history if item.get("role") == "user")
        assert all(heard[words] <= 1 for words in self.said), "an input joined twice"

    def teardown(self) -> None:
        assert digest(self.session.replayed()) == self.session.digest


def _told(settings: TurnSettings) -> dict[str, str]:
    policy = settings.sandbox_policy
    return {
        "cwd": settings.cwd,
        "approval_policy": settings.approval_policy,
        "sandbox_mode": policy["mode"],
    }


def _running(state: State) -> set[str]:
    return {call.call_id for call in state.task.running} if state.task is not None else set()


def _reports(session: Session, work: Work) -> st.SearchStrategy[c.Command]:
    """Reports that a worker may make of a piece of owed work."""
    match work:
        case OweRequest():
            return st.just(c.BeginRequest())
        case AnswerServer() | MakeFolder() | BeginSetup() | RunSetup() | SaveFolder():
            # The server hears the decision, and nothing is reported of that; no folder here is portable.
            return st.nothing()
        case LookUp(key):
            return st.sampled_from(ANSWERS).map(lambda told: c.LookedUp(key, **told))
        case ReadInstructions(folder):
            return st.sampled_from([None, "Be kind."]).map(lambda text: c.InstructionsRead(folder, text))
        case FollowRequest(n):
            return st.one_of(
                st.builds(c.ItemCompleted, st.just(n), ITEMS),
                st.builds(c.ResponseCompleted, st.just(n), st.just(f"resp-{n}"), USAGES),
                st.builds(
                    c.ResponseBroken,
                    st.just(n),
                    st.sampled_from(["fatal", "stream", "limited"]),
                    st.just("broken"),
                    st.sampled_from([None, 10, 60_000]),
                    st.integers(0, 1),
                ),
            )
        case AssessCall(call_id) if session.call(call_id).name == USER_SHELL:
            ran: tuple[c.Assessment, ...] = (
                a_command("ls", by_person=True),
                c.Immediate("not run: no sandbox"),
            )
            return st.sampled_from(ran).map(lambda assessed: c.CallAssessed(call_id, assessed))
        case AssessCall(call_id):
            return st.builds(c.CallAssessed, st.just(call_id), ASSESSMENTS)
        case RunCall(call_id):
            events = (exec_end(call_id),)
            call = session.call(call_id)
            if isinstance(call.work, ExecWork) and call.work.lasting is not None:
                return st.just(c.CallFinished(call_id, "running", keeps=True))
            return st.builds(c.CallFinished, st.just(call_id), st.just("ok"), st.just(events), st.booleans())
        case FollowProcess(number):
            process = session.state.processes.get(number)
            assert process is not None
            end = exec_end(process.call_id).model_copy(update={"process_id": str(number)})
            over = c.ProcessEnd(number, end, "bye")
            return st.sampled_from(["", "its worker was shut down"]).map(
                lambda lost: c.ProcessFinished(over, lost)
            )
        case StopAll():
            return st.just(c.Stopped())
        case CloseCalls() | EndChildren():
            return st.just(PIECES[work])


Life.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestLife = Life.TestCase


class LifeInPieces(Life):
    """The same where a commit can close one call, or take one input: every end is an end in pieces."""

    def __init__(self) -> None:
        super().__init__()
        self.tiny = [
            mock.patch.object(task, "MOST_ITEMS", 1),
            mock.patch.object(request, "SAID_WITH_REQUEST", 0),
        ]
        for patch in self.tiny:
            patch.start()

    def teardown(self) -> None:
        for patch in self.tiny:
            patch.stop()
        super().teardown()


LifeInPieces.TestCase.settings = settings(Life.TestCase.settings, max_examples=30)
TestLifeInPieces = LifeInPieces.TestCase


TASK = e.fact(f.TaskBegun(SubmissionId("u1"), "user", TurnSettings.of(SETTINGS)))
HOLOGRAM = e.Entry(e.EVENT_MSG, {"type": "hologram"}, "u1")
ABORTED = e.event("u1", ev.TurnAborted(reason=TurnAbortReason.REPLACED))
RUNNING = e.fact(f.CallMoved(CallId("c1"), Phase.RUNNING))


@pytest.mark.parametrize(
    "log",
    [
        pytest.param([TASK, TASK], id="two tasks at once"),
        pytest.param([TASK, e.fact(f.TaskEnded("completed"))], id="no final event"),
        pytest.param([TASK, ABORTED, ABORTED, e.fact(f.TaskEnded("replaced"))], id="two"),
        pytest.param([TASK, e.event("u2", ev.AgentMessage(message="m"))], id="event of another task"),
        pytest.param([e.event("u1", ev.TaskComplete())], id="end without a task"),
        pytest.param([TASK, RUNNING, RUNNING], id="call started twice"),
        pytest.param(
            [TASK, e.fact(f.Stopping("interrupted", "u2")), RUNNING], id="call started while stopping"
        ),
        pytest.param([TASK, RUNNING, e.fact(f.RequestBegun(1, "turn", 1))], id="request over a running call"),
        pytest.param([TASK, HOLOGRAM], id="event that the protocol does not know"),
    ],
)
def test_auditor_objects_to_a_log_that_no_session_may_write(log: list[e.Entry]) -> None:
    audit = Audit()
    with pytest.raises(AssertionError):
        for entry in log:
            audit.read(entry)
