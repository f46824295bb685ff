"""Processes: commands that go on behind their call, what may be typed to them, and all that ends them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import orjson
import pytest

from orchestrator.core import commands as c
from orchestrator.core.calls import Phase, WriteStdin
from orchestrator.core.calls.exec import Lasting, Shown, cut_output
from orchestrator.core.history import message_text
from orchestrator.core.outstanding import FollowProcess, OweRequest, StopAll
from orchestrator.core.settings import Rules
from orchestrator.core.snapshot import decode, encode
from orchestrator.core.state import COMMAND_CHARS, FOLDER_CHARS, MOST_PROCESSES
from orchestrator.protocol.ids import CallId
from tests.core.driver import Seen, Session, a_command, assistant, exec_end, op
from tests.core.tree_driver import Agent, a_family, a_tree, answers, statuses

READ_ONLY = {"mode": "read-only"}


def lasting(*words: str, tty: bool = True, **judged: Any) -> Any:
    how = Lasting(tty, 250, 100)
    return a_command(*(words or ("bash", "-lc", "python3 -i")), safe=True, lasting=how, **judged)


def starts(session: Session, call_id: str = "c1", **judged: Any) -> Seen:
    """The model's call of `exec_command` runs."""
    session.asks_for(call_id, name="exec_command")
    return session.assessed(call_id, lasting(**judged))


def keeping(*, count: int = 1, **fields: Any) -> Session:
    """A session whose task `u1` has left so many processes, and goes on."""
    session = Session(**fields)
    session.say("go", "u1")
    for number in range(1, count + 1):
        starts(session, f"c{number}")
        session.finishes(f"c{number}", "running", keeps=True)
    return session


def idle(**fields: Any) -> Session:
    session = keeping(**fields)
    session.answers("done")
    assert session.status == "idle"
    return session


def ended(session: Session, number: int = 1, code: int = 0, unread: str = "bye", lost: str = "") -> Seen:
    end = exec_end(f"c{number}", code).model_copy(update={"process_id": str(number)})
    return session.happens(c.ProcessFinished(c.ProcessEnd(number, end, unread), lost))


def writes(session: Session, number: int, chars: str = "", call_id: str = "w1", tokens: int = 100) -> Seen:
    session.asks_for(call_id, name="write_stdin")
    return session.assessed(call_id, WriteStdin(number, chars, 250, tokens))


def purpose(session: Session) -> str:
    assert session.task.request is not None
    return session.task.request.purpose


def living(session: Session) -> list[int]:
    return [process.number for process in session.state.processes.living]


# ── beginning ─────────────────────────────────────────────────────────────────────────────────


def test_command_that_outlives_its_call_is_a_process_and_keeps_the_claim_alone() -> None:
    session = Session()
    session.say("go", "u1")
    begun = starts(session).one("exec_command_begin")
    assert (begun["process_id"], begun["source"]) == ("1", "unified_exec_startup")
    session.finishes("c1", "running", keeps=True)
    assert session.output_of("c1") == "running"
    assert "exec_command_end" not in session.types
    session.answers("done")
    assert session.status == "idle"
    assert session.owes() == (FollowProcess(1, 1),)
    (process,) = session.state.processes.living
    assert (process.command, process.cwd, process.turn) == ("python3 -i", "/repo", "u1")


def test_command_that_ends_in_time_leaves_no_process_and_its_number_is_not_used_again() -> None:
    session = Session()
    session.say("go", "u1")
    starts(session)
    session.finishes("c1", "ok", events=(exec_end("c1"),))
    assert living(session) == []
    assert starts(session, "c2").one("exec_command_begin")["process_id"] == "2"


def test_process_is_approved_as_a_command_is_and_numbered_when_it_starts() -> None:
    session = Session(settings={"approval_policy": "untrusted"})
    session.say("go", "u1")
    session.asks_for("c1", name="exec_command")
    session.assessed("c1", a_command("make", lasting=Lasting(True, 250, 100)))
    assert session.status == "awaiting_approval"
    assert session.decides("c1", "approved").one("exec_command_begin")["process_id"] == "1"
    session.finishes("c1", "running", keeps=True)
    assert living(session) == [1]


def test_one_process_too_many_is_refused() -> None:
    session = keeping(count=MOST_PROCESSES)
    session.asks_for("c99", name="exec_command")
    session.assessed("c99", lasting())
    assert session.output_of("c99").startswith("not started: 16 processes of this session run already")
    ended(session)
    starts(session, "c100")
    assert session.call("c100").phase is Phase.RUNNING


def test_processes_are_in_a_snapshot_and_a_session_without_any_has_the_one_of_before() -> None:
    session = idle(count=2)
    ended(session, 2, 3)
    assert decode(encode(session.state)) == session.state
    assert b"processes" in encode(session.state)
    assert b"processes" not in encode(Session().state)


# ── looking and typing ────────────────────────────────────────────────────────────────────────


def test_typing_is_told_under_the_starts_call_in_a_later_task_too() -> None:
    session = idle()
    session.say("more", "u2")
    seen = writes(session, 1, "1+1\n")
    assert seen.one("terminal_interaction") == {
        "type": "terminal_interaction",
        "call_id": "c1",
        "process_id": "1",
        "stdin": "1+1\n",
    }
    assert seen.id_of("terminal_interaction") == "u2"
    session.finishes("w1", "2")
    assert living(session) == [1]


def test_look_types_nothing_and_tells_nothing() -> None:
    session = keeping()
    assert writes(session, 1).types == []
    assert session.call("w1").phase is Phase.RUNNING


def test_end_that_a_call_saw_belongs_to_the_task_that_started_the_process() -> None:
    session = idle()
    session.say("more", "u2")
    writes(session, 1)
    end = exec_end("c1").model_copy(update={"process_id": "1"})
    seen = session.finishes("w1", "over", over=c.ProcessEnd(1, end))
    assert seen.id_of("exec_command_end") == "u1"
    assert living(session) == []
    assert "no process 1 runs" in _refused(session, 1)


def test_end_between_tasks_is_told_at_once_and_read_once() -> None:
    session = idle()
    seen = ended(session, code=7, unread="last words")
    assert (seen.one("exec_command_end")["exit_code"], seen.id_of("exec_command_end")) == (7, "u1")
    assert session.owes() == ()
    session.say("more", "u2")
    writes(session, 1)
    assert session.output_of("w1").endswith("Process exited with code 7\nOutput:\nlast words")
    assert _refused(session, 1) == "no process 1 runs"


def test_last_words_are_cut_to_what_the_call_asks_for() -> None:
    session = idle()
    ended(session, unread="a" * 500 + "z" * 500)
    session.say("more", "u2")
    writes(session, 1, tokens=10)
    shown = session.output_of("w1").split("Output:\n")[1]
    assert shown == "a" * 20 + "\n[... omitted 960 of 1000 bytes ...]\n" + "z" * 20
    assert cut_output("é" * 9, 1) == "é\n[... omitted 14 of 18 bytes ...]\né"
    assert cut_output("abcd", 1) == "abcd", "it fits"


def test_unknown_number_is_refused_with_those_that_there_are() -> None:
    session = keeping(count=2)
    assert _refused(session, 7) == "no process 7 runs; these do: 1, 2"


def test_process_without_a_terminal_is_read_and_not_typed_to() -> None:
    session = Session()
    session.say("go", "u1")
    session.asks_for("c1", name="exec_command")
    session.assessed("c1", a_command("make", safe=True, lasting=Lasting(False, 250, 100)))
    session.finishes("c1", "running", keeps=True)
    assert "start it with tty = true" in _refused(session, 1, "x")
    writes(session, 1, call_id="look")
    assert session.call("look").phase is Phase.RUNNING


@pytest.mark.parametrize("changed", [{"sandbox_policy": READ_ONLY}, {"approval_policy": "untrusted"}])
def test_turn_under_other_policies_reads_a_process_and_does_not_type_to_it(changed: dict[str, Any]) -> None:
    session = idle()
    session.submit(op("override_turn_context", **changed))
    session.say("more", "u2")
    assert "under other policies than this turn's" in _refused(session, 1, "rm -rf .\n")
    writes(session, 1, call_id="look")
    assert session.call("look").phase is Phase.RUNNING


def with_a_process_outside_of_the_sandbox() -> Session:
    """A session that only reads, with a command that a person let run without a sandbox."""
    session = Session(settings={"sandbox_policy": READ_ONLY})
    session.say("go", "u1")
    session.asks_for("c1", name="exec_command")
    session.assessed("c1", a_command("make", escalated=True, lasting=Lasting(True, 250, 100)))
    session.decides("c1", "approved")
    session.finishes("c1", "running", keeps=True)
    session.answers("done")
    return session


def test_review_does_not_type_to_what_runs_without_a_sandbox() -> None:
    session = with_a_process_outside_of_the_sandbox()
    session.submit(op("review", review_request={"prompt": "look", "user_facing_hint": "it"}), "r1")
    assert session.task.branch is not None
    assert "under other policies" in _refused(session, 1, "x")


def test_plan_mode_does_not_type_to_what_runs_without_a_sandbox() -> None:
    session = with_a_process_outside_of_the_sandbox()
    mode = {"mode": "plan", "settings": {"model": "gpt-5"}}
    session.submit(op("override_turn_context", collaboration_mode=mode))
    session.say("plan", "u2")
    assert "under other policies" in _refused(session, 1, "x")


def _refused(session: Session, number: int, chars: str = "") -> str:
    call_id = f"r{session.seq}"
    writes(session, number, chars, call_id)
    assert session.call(call_id).phase is Phase.DONE
    return str(session.output_of(call_id))


# ── ends ──────────────────────────────────────────────────────────────────────────────────────


def test_interrupt_of_a_task_kills_processes_before_the_turn_is_aborted() -> None:
    session = keeping(count=2)
    session.begin()
    assert "turn_aborted" not in session.interrupt().types
    assert [work for work in session.owes() if isinstance(work, StopAll)] == []
    assert session.owes()[:2] == (FollowProcess(1, 1, True), FollowProcess(2, 1, True))
    ended(session, 1, 137)
    ended(session, 2, 137)
    assert session.owes() == (StopAll("interrupted"),)
    assert "turn_aborted" in session.stopped().types
    assert living(session) == []


def test_interrupt_while_nothing_runs_leaves_processes_alone() -> None:
    session = idle()
    assert session.interrupt().entries == []
    assert session.owes() == (FollowProcess(1, 1),)


def test_interrupt_of_a_task_that_waits_for_a_person_kills_processes_too() -> None:
    session = keeping()
    session.asks_for("c2")
    session.assessed("c2", a_command("make", dangerous=True))
    session.interrupt()
    ended(session, 1, 137)
    session.stopped()
    assert session.types[-1] == "turn_aborted"


STOPS: Mapping[str, Callable[[Session], Seen]] = {
    "interrupt": lambda session: session.interrupt(),
    "configure": lambda session: session.submit(op("configure_session", model="gpt-5-mini")),
    "shutdown": lambda session: session.shutdown(),
}


@pytest.mark.parametrize("stops", STOPS)
@pytest.mark.parametrize("waits", ["for its next request", "for a person", "for a retry"])
def test_task_is_over_when_each_of_its_processes_is_dead_whatever_it_waited_for(
    waits: str, stops: str
) -> None:
    session = keeping(count=2)
    if waits == "for a person":
        session.asks_for("c9")
        session.assessed("c9", a_command("make", dangerous=True))
    elif waits == "for a retry":
        session.begin()
        session.breaks("limited", delay_ms=60_000)
    assert "turn_aborted" not in STOPS[stops](session).types
    for number in (2, 1):
        assert FollowProcess(number, session.epoch, stopping=True) in session.owes()
        assert "turn_aborted" not in ended(session, number, 137).types
    assert "turn_aborted" in session.stopped().types
    assert (session.state.task, session.timers) == (None, {})


def test_new_input_replaces_the_task_and_not_its_processes() -> None:
    session = keeping()
    session.begin()
    session.say("instead", "u2")
    session.stopped()
    assert living(session) == [1]
    assert not session.state.processes.stopping


def test_interrupt_of_a_task_that_input_replaces_kills_its_processes_too() -> None:
    session = keeping()
    session.asks_for("c2")
    session.runs("c2")
    session.say("instead", "u2")
    assert session.task.stopping == "replaced"
    assert FollowProcess(1, 1, True) not in session.owes()
    session.interrupt()
    assert FollowProcess(1, 1, True) in session.owes()
    ended(session, 1, 137)
    session.stopped()
    assert living(session) == []


def test_process_whose_call_is_stopped_meanwhile_is_stopped_as_well() -> None:
    session = Session()
    session.say("go", "u1")
    starts(session)
    session.say("instead", "u2")
    session.finishes("c1", "running", keeps=True)
    assert session.owes() == (FollowProcess(1, 1, True),)
    ended(session, 1, 137)
    assert session.owes() == (StopAll("replaced"),)


def test_task_is_not_over_by_a_proof_that_is_older_than_its_process() -> None:
    session = Session()
    session.say("go", "u1")
    starts(session)
    session.interrupt()
    session.finishes("c1", "running", keeps=True)
    session.stopped()
    assert (living(session), session.task.stopping) == ([1], "interrupted"), "not all of it was dead"
    ended(session)
    session.stopped()
    assert (living(session), session.status) == ([], "idle")


def test_shutdown_is_complete_when_the_processes_are_dead() -> None:
    session = idle()
    assert "shutdown_complete" not in session.shutdown().types
    assert session.owes() == (FollowProcess(1, 1, True),)
    assert ended(session, 1, 137).types == ["exec_command_end", "shutdown_complete"]


def test_configuring_kills_processes_and_keeps_the_history() -> None:
    session = idle()
    session.submit(op("configure_session", model="gpt-5"))
    assert session.owes() == (FollowProcess(1, 1, True),)
    assert "no process 1 runs" in _after(session)


def _after(session: Session) -> str:
    session.say("more", "u2")
    return _refused(session, 1)


def test_processes_of_a_lost_worker_are_told_to_clients_and_to_the_model() -> None:
    session = keeping(count=2)
    session.begin()
    seen = session.is_taken_over()
    assert [end["exit_code"] for end in seen.all("exec_command_end")] == [-1, -1]
    gone = [f"process {number} (python3 -i) is gone: its worker was lost" for number in (1, 2)]
    assert seen.one("warning")["message"] == "\n".join(gone)
    shown = [end["formatted_output"] for end in seen.all("exec_command_end")]
    assert [line in text for line, text in zip(gone, shown, strict=True)] == [True, True]
    session.begin()
    assert message_text(session.shown()[-1]) == "<process_gone>\n" + "\n".join(gone) + "\n</process_gone>"
    session.ends()
    session.say("more", "u2")
    assert _refused(session, 1) == "no process 1 runs"


def test_end_of_each_lost_process_has_what_that_one_had_shown() -> None:
    session = keeping(count=3)
    shown = {f"c{number}": Shown(f"out {number}", "", f"out {number}") for number in (3, 1)}
    seen = session.is_taken_over(shown)
    told = {end["call_id"]: end["stdout"] for end in seen.all("exec_command_end")}
    assert told == {"c1": "out 1", "c2": "", "c3": "out 3"}


@pytest.mark.parametrize("lost", ["its worker was shut down", ""])
def test_agents_process_whose_end_its_worker_saw_leaves_its_end_proved(lost: str) -> None:
    tree, (child,) = a_family()
    starts(child)
    child.finishes("c1", "running", keeps=True)
    ended(child, lost=lost)
    tree.root.cancels(child.id)
    tree.settle()
    told = [fact.message["cancel"] for fact in tree.log if fact.message.get("status") == "canceled"]
    assert told == ["proved"]


def test_long_command_and_long_folder_of_a_process_are_cut_for_people() -> None:
    session = Session()
    session.say("go", "u1")
    folder, script = "/" + "d" * (2 * FOLDER_CHARS), "s" * (2 * COMMAND_CHARS)
    session.asks_for("c1", name="exec_command")
    session.assessed("c1", lasting("bash", "-lc", script, cwd=folder))
    session.finishes("c1", "running", keeps=True)
    [process] = session.state.processes.living
    assert (process.cwd, process.command) == (folder[:FOLDER_CHARS], script[: COMMAND_CHARS - 1] + "…")


def test_processes_of_an_idle_session_are_gone_with_its_worker() -> None:
    session = idle()
    assert session.is_taken_over().types == ["exec_command_end", "warning"]
    assert session.owes() == ()
    assert "is gone: its worker was lost" in message_text(session.shown()[-1])


def test_lost_process_ends_under_its_own_turn_and_the_warning_is_of_the_turn_that_runs() -> None:
    session = idle()
    session.say("more", "u2")
    session.begin()
    seen = session.is_taken_over()
    assert (seen.id_of("exec_command_end"), seen.id_of("warning")) == ("u1", "u2")


def test_take_over_in_the_midst_of_an_end_goes_on_with_it() -> None:
    session = keeping()
    session.begin()
    session.interrupt()
    assert session.is_taken_over().types == ["exec_command_end", "warning", "turn_aborted"]


def test_message_of_a_lost_process_stands_behind_the_output_of_an_open_call() -> None:
    session = keeping()
    session.asks_for("c2")
    session.runs("c2")
    session.is_taken_over()
    assert session.owes() == (OweRequest(0),)
    session.begin()
    kinds = [item["type"] for item in session.shown()[-3:]]
    assert kinds == ["function_call", "function_call_output", "message"]


def test_process_that_is_lost_beside_a_persons_command_is_told_once_and_the_next_turn_reads_of_both() -> None:
    session = idle()
    session.submit(op("run_user_shell_command", command="make"), "x1")
    session.assessed("user_shell-x1", a_command("bash", "-lc", "make", by_person=True))
    session.is_taken_over()
    assert session.state.task is None, "the command is in doubt, and its task is over"
    session.say("more", "u2")
    session.begin()
    told = [message_text(item) for item in session.shown()]
    assert sum("<process_gone>" in text for text in told) == 1
    assert sum("<user_shell_command>" in text for text in told) == 1


@pytest.mark.parametrize("type", ["review", "plan"])
@pytest.mark.parametrize("read", [True, False])
def test_process_that_is_lost_beside_a_review_or_a_plan_is_told_to_the_next_turn(
    type: str, *, read: bool
) -> None:
    session = idle(count=2)
    requests = {"review": {"prompt": "look", "user_facing_hint": "it"}, "plan": {"goal": "a login"}}
    ended(session, 2, 137, lost="its worker was shut down")
    session.submit(op(type, **{f"{type}_request": requests[type]}))
    session.begin()
    session.is_taken_over()
    if read:
        session.answers("found nothing")
    else:
        session.interrupt()
    assert session.state.task is None
    told = [text for text in session.texts() if "<process_gone>" in text]
    assert ["process 1 (python3 -i) is gone" in text for text in told] == [False, True]


def test_worker_that_leaves_takes_its_processes_along_and_says_so() -> None:
    session = idle()
    seen = ended(session, 1, 137, lost="its worker was shut down")
    assert seen.types == ["exec_command_end", "warning"]
    assert session.state.processes.ended == ()
    assert "is gone: its worker was shut down" in message_text(session.shown()[-1])


def test_second_word_of_one_end_is_no_news() -> None:
    session = idle()
    ended(session)
    with pytest.raises(Exception, match="process 1 is over already"):
        ended(session)


def test_ended_processes_that_nobody_reads_are_bounded() -> None:
    session = Session()
    session.say("go", "u1")
    for number in range(1, MOST_PROCESSES + 5):
        starts(session, f"c{number}")
        session.finishes(f"c{number}", "running", keeps=True)
        ended(session, number)
    assert len(session.state.processes.ended) == MOST_PROCESSES
    assert session.state.processes.unread(1) is None


# ── compactions, agents ───────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("begins", ["compact", "input", "review", "plan"])
def test_compaction_names_the_processes_that_live_and_those_that_were_not_read(begins: str) -> None:
    session = idle(count=4)
    ended(session, 2)
    ended(session, 3)
    session.rules = Rules(auto_compact_limit=100)
    match begins:
        case "compact":
            session.compact()
        case "input":
            session.say("and now", "u2")
        case "review":
            session.submit(op("review", review_request={"prompt": "look", "user_facing_hint": "it"}), "r1")
        case "plan":
            session.submit(op("plan", plan_request={"goal": "Add login"}), "p1")
    session.begin()
    if purpose(session) == "turn":
        # A review begins with its own words alone, which are few.
        session.calls("c9")
        session.ends()
        session.runs("c9", "ls")
        session.finishes("c9", "much")
        session.begin()
    assert purpose(session) == "compact"
    session.item(assistant("all is well"))
    session.ends()
    (bridge,) = (words for words in map(message_text, session.shown()) if "all is well" in words)
    named = [line for line in bridge.splitlines() if line.startswith("- session ID")]
    assert named == [
        *(f"- session ID {number}: python3 -i (in /repo)" for number in (1, 4)),
        *(f"- session ID {number}: ended, its last output is not read" for number in (2, 3)),
    ]


def test_fork_begins_without_the_processes_of_its_parent() -> None:
    tree = a_tree()
    tree.root.say("go", "u1")
    starts(tree.root)
    tree.root.finishes("c1", "running", keeps=True)
    child = tree.root.forks("work")
    tree.settle()
    assert child.state.processes.living == ()
    assert child.owes() == (OweRequest(0),)


def is_over(child: Agent) -> bool:
    return child.state.tree.ended


def test_cancelled_agent_has_ended_when_its_processes_are_dead() -> None:
    tree, (child,) = a_family()
    starts(child)
    child.finishes("c1", "running", keeps=True)
    tree.root.cancels(1)
    tree.deliver(child)
    assert child.owes()[0] == FollowProcess(1, 1, True)
    assert not is_over(child)
    ended(child, 1, 137)
    assert child.owes() == (StopAll("canceled"),)
    child.stopped()
    assert is_over(child)


def test_root_that_closes_waits_for_the_processes_of_agents_that_were_done() -> None:
    tree, (child,) = a_family()
    starts(child)
    child.finishes("c1", "running", keeps=True)
    answers(child)
    tree.settle()
    assert statuses(tree)[1] == "ready"
    tree.root.shutdown()
    tree.settle()
    assert child.owes() == (FollowProcess(1, 1, True),)
    assert not is_over(child)
    ended(child, 1, 137)
    assert is_over(child)
    tree.settle()


def test_call_of_a_lasting_command_with_its_arguments_is_read_again() -> None:
    session = keeping()
    session.asks_for("w1", name="write_stdin")
    session.assessed("w1", WriteStdin(1, "x", 250, 100))
    again = decode(encode(session.state)).task
    assert again is not None
    assert again.call(CallId("w1")) == session.call("w1")


def test_agents_process_that_is_lost_while_a_turn_runs_leaves_its_end_presumed() -> None:
    _, (child,) = a_family()
    child.begin()
    child.calls("c1", name="exec_command")
    child.ends()
    child.assessed("c1", lasting())
    child.finishes("c1", "running", keeps=True)
    child.is_taken_over()
    assert child.state.tree.evidence == "presumed"


def test_idle_agents_process_that_is_lost_while_its_root_closes_leaves_its_end_presumed() -> None:
    tree, (child,) = a_family()
    starts(child)
    child.finishes("c1", "running", keeps=True)
    answers(child)
    tree.settle()
    tree.root.shutdown()
    tree.settle()
    assert not is_over(child)
    seen = child.is_taken_over()
    assert is_over(child)
    assert child.state.tree.evidence == "presumed"
    assert seen.decision.tree is not None
    told = [orjson.loads(sent.payload) for sent in seen.decision.tree.outbox if sent.kind == "ended"]
    assert [one["evidence"] for one in told] == ["presumed"]
