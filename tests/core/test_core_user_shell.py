"""Commands that people run: a task of one call, whose result the model reads in the next turn."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.core import commands as c
from orchestrator.core.calls import MOST_COMMAND_BYTES, Call, Phase, answer_item
from orchestrator.core.calls.approval_policy import StrictRule
from orchestrator.core.calls.exec import Shown
from orchestrator.core.compaction import newest_texts, user_turns
from orchestrator.core.outstanding import AssessCall, RunCall
from orchestrator.core.snapshot import decode, digest, encode
from orchestrator.core.state import Task, TaskPhase, task_phase
from orchestrator.protocol.ids import CallId
from tests.core.driver import Seen, Session, a_command, exec_end, op
from tests.core.tree_driver import a_tree

CALL = "user_shell-x1"


def runs(session: Session, command: str = "make test", id: str = "x1") -> Seen:
    return session.submit(op("run_user_shell_command", command=command), id)


def begun(session: Session, **judged: Any) -> Seen:
    """The command is assessed, and so it runs."""
    runs(session)
    return session.assessed(CALL, a_command("bash", "-lc", "make test", by_person=True, **judged))


def replayed(session: Session) -> bool:
    """Whether a fold over the log, and a snapshot, give the state that the worker has."""
    return digest(session.replayed()) == session.digest == digest(decode(encode(session.state)))


def test_persons_command_is_a_task_of_its_own_and_no_model_is_asked() -> None:
    session = Session()
    seen = runs(session)
    assert seen.types == ["task_started"]
    assert session.owes() == (AssessCall(CALL),)
    assert replayed(session)
    seen = session.assessed(CALL, a_command("bash", "-lc", "make test", by_person=True))
    begin = seen.one("exec_command_begin")
    assert (begin["source"], begin["call_id"], begin["command"]) == (
        "user_shell",
        CALL,
        ["bash", "-lc", "make test"],
    )
    assert session.owes() == (RunCall(CALL, 1),)
    assert replayed(session)
    seen = session.finishes(CALL, "Exit code: 0\nOutput:\nok", events=(exec_end(CALL),))
    assert seen.types == ["exec_command_end", "task_complete"]
    assert seen.id_of("task_complete") == "x1"
    assert seen.one("task_complete")["last_agent_message"] is None
    assert (session.status, session.owes()) == ("idle", ())
    assert replayed(session)


def test_model_reads_the_result_in_the_next_turn() -> None:
    session = Session()
    begun(session)
    session.finishes(CALL, "Exit code: 0\nOutput:\nok", events=(exec_end(CALL),))
    session.say("go on")
    session.begin()
    assert session.texts() == [
        "<user_shell_command>\n<command>\nmake test\n</command>\n<result>\nExit code: 0\nOutput:\nok\n"
        "</result>\n</user_shell_command>",
        "go on",
    ]


@pytest.mark.parametrize("policy", ["untrusted", "on-failure", "on-request", "never"])
def test_nobody_is_asked_about_a_persons_command_and_the_sandbox_holds_it(policy: str) -> None:
    session = Session(settings={"approval_policy": policy})
    begun(session, dangerous=True, strict_rule=StrictRule("forbidden"))
    assert session.call(CALL).phase is Phase.RUNNING
    work = session.call(CALL).work
    assert getattr(work, "sandboxed", None) is True


def test_command_runs_in_the_sandbox_of_the_session_in_plan_mode_too() -> None:
    mode = {"mode": "plan", "settings": {"model": "gpt-5"}}
    session = Session(settings={"collaboration_mode": mode})
    begun(session)
    assert session.task.settings.sandbox_policy == {"mode": "workspace-write"}


def test_interrupted_command_says_so_to_the_model_and_the_person() -> None:
    session = Session()
    begun(session)
    session.interrupt()
    seen = session.stopped(**{CALL: 3.24})
    assert seen.types == ["turn_aborted"]
    assert "<result>\naborted by user after 3.2s\n</result>" in session.texts()[0]
    assert session.status == "idle"
    assert replayed(session)


def test_command_that_its_worker_lost_is_in_doubt_and_the_task_is_over() -> None:
    session = Session()
    begun(session)
    seen = session.is_taken_over({CALL: Shown("seen", "", "seen")})
    assert seen.types == ["exec_command_end", "warning", "task_complete"]
    assert seen.one("exec_command_end")["stdout"] == "seen"
    assert "; its output until then:\nseen\n</result>" in session.texts()[0]
    assert seen.one("exec_command_end")["exit_code"] == -1
    assert seen.one("exec_command_end")["source"] == "user_shell"
    assert "in doubt" in session.texts()[0]
    assert (session.status, session.owes()) == ("idle", ())


def test_command_that_no_worker_had_begun_is_run_by_the_next_one() -> None:
    session = Session()
    runs(session)
    session.epoch += 1
    assert session.owes() == (AssessCall(CALL),)


def test_command_replaces_the_running_task_as_every_input_does() -> None:
    session = Session()
    session.say("go", "u1")
    session.begin()
    assert runs(session).types == []
    seen = session.stopped()
    assert seen.types == ["turn_aborted", "task_started"]
    assert session.task.kind == "shell"
    assert replayed(session)


def test_input_replaces_a_running_command() -> None:
    session = Session()
    begun(session)
    session.say("stop that", "u2")
    seen = session.stopped(**{CALL: 1.0})
    assert seen.types[:2] == ["turn_aborted", "task_started"]
    assert session.task.kind == "user"
    assert "make test" in session.texts()[0]


def test_input_does_not_join_a_command_where_it_joins_tasks() -> None:
    session = Session(facts={"on_user_input": "steer"})
    begun(session)
    session.say("wait", "u2")
    assert session.task.stopping == "replaced"


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("  \n", "it is empty"),
        ("ls\0", "NUL"),
        ("x" * (MOST_COMMAND_BYTES + 1), "at most 32,768 bytes"),
        ("ö" * (MOST_COMMAND_BYTES // 2 + 1), "at most 32,768 bytes"),
    ],
)
def test_command_that_cannot_be_run_is_an_error_and_stops_nothing(command: str, told: str) -> None:
    session = Session()
    session.say("go", "u1")
    seen = runs(session, command)
    assert told in seen.one("error")["message"]
    assert session.task.id == "u1"
    assert not session.task.stopping


def test_longest_command_is_kept_whole_in_the_log() -> None:
    session = Session()
    runs(session, "x" * MOST_COMMAND_BYTES)
    assert session.call(CALL).item["command"] == "x" * MOST_COMMAND_BYTES
    session.say("queued behind it", "u2")
    session.submit(op("run_user_shell_command", command="y" * MOST_COMMAND_BYTES), "x3")
    assert replayed(session)


def test_people_run_no_commands_in_agents() -> None:
    tree = a_tree()
    child = tree.root.spawns("look")
    tree.settle()
    seen = child.submit(op("run_user_shell_command", command="ls"), "x1")
    assert "message_agent" in seen.one("error")["message"]
    assert child.task.kind == "user"


def test_command_that_is_not_run_ends_its_task_with_what_was_said() -> None:
    session = Session()
    runs(session)
    seen = session.assessed(CALL, c.Immediate("not run: no sandbox"))
    assert seen.types == ["task_complete"]
    assert "not run: no sandbox" in session.texts()[0]
    runs(session, id="x2")
    seen = session.happens(c.TaskRefused("the folder is gone"))
    assert seen.types == ["error", "task_complete"]
    assert "not run: the folder is gone" in session.texts()[1]


def test_command_is_nothing_that_a_person_said() -> None:
    session = Session()
    session.say("first", "u1")
    session.answers("done")
    runs(session)
    session.assessed(CALL, a_command(by_person=True))
    session.finishes(CALL, "Exit code: 0", events=(exec_end(CALL),))
    assert newest_texts(session.state) == ("first",)
    assert len(user_turns(session.state.history)) == 1


def test_call_of_a_model_is_no_persons_command_whatever_it_is_named() -> None:
    item = {
        "type": "function_call",
        "name": "user_shell",
        "arguments": "{}",
        "call_id": "c1",
        "command": "ls",
    }
    call = Call(CallId("c1"), "user_shell", item)
    assert answer_item(call.item, "no").type == "function_call_output"


def test_task_of_a_command_owes_no_request_in_any_phase() -> None:
    session = Session()
    runs(session)
    assert task_phase(session.task) is TaskPhase.CALLING
    bare = Task(session.task.id, "shell", session.task.settings)
    assert task_phase(bare) is TaskPhase.TURN_OVER
