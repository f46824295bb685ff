"""`dendro run` without a prompt: a conversation at a real terminal."""

from __future__ import annotations

import os
import pty
import termios
from pathlib import Path

import pytest

from orchestrator.requests import request_of
from orchestrator.terminal.chat import Editor, PressedKeys, first_line, nothing_to_stop
from orchestrator.terminal.live import LiveView
from tests.cli.machine import SLEEP, TOUCH, Machine, says

UNTRUSTED = ("-c", "approval_policy=untrusted", "-c", "sandbox_mode=danger-full-access")
FREE = ("-c", "approval_policy=never", "-c", "sandbox_mode=danger-full-access")
IDLE = "/help shows words"
"""Before the first line."""
DONE = r"— \d+\.\d s"


@pytest.mark.always
def test_person_talks_with_an_agent_and_goes_on_with_the_session_later(machine: Machine) -> None:
    with machine.model(says("the first"), says("the second"), says("the third")) as user:
        with user.terminal("run") as person:
            person.wait_for(IDLE)
            assert user.sessions() == [], "a session is made with the first line"
            person.type("hello there\r")
            person.wait_for("the first")
            person.wait_for(DONE)
            person.type("and then?\r")
            person.wait_for("the second")
            person.wait_for(DONE)
            person.type("\x04")
            person.wait_for("tokens")
            assert person.exit_code() == 0
        [found] = user.sessions()
        assert (found["title"], found["status"]) == ("hello there", "idle")
        with user.terminal("run", "--resume", found["session_id"][-8:]) as person:
            person.wait_for("» and then")
            person.wait_for("the second")
            person.type("once more\r")
            person.wait_for("the third")
            person.wait_for(DONE)
            person.type("/quit\r")
            assert person.exit_code() == 0
    assert len(machine.sessions()) == 1


def test_keys_are_not_lost_while_an_event_is_drawn() -> None:
    ours, theirs = pty.openpty()
    try:
        with os.fdopen(theirs, "r") as terminal, PressedKeys(terminal).raw_mode():
            while_read = termios.tcgetattr(theirs)
            with PressedKeys(terminal).cooked_mode():
                assert termios.tcgetattr(theirs) == while_read
    finally:
        os.close(ours)


def test_lines_are_kept_for_the_next_conversation_in_a_file_of_the_person_alone(machine: Machine) -> None:
    with machine.model(says("one")) as user:
        with user.terminal("run") as person:
            person.wait_for(IDLE)
            person.type("remember me\r")
            person.wait_for("one")
            person.wait_for(DONE)
            person.type("\x04")
            assert person.exit_code() == 0
        file = Path(user.environ["DENDRO_HOME"]) / "history"
        assert file.stat().st_mode & 0o777 == 0o600
        with user.terminal("run") as person:
            person.wait_for(IDLE)
            person.type("zz")
            person.wait_for("zz")
            person.type("\x15\x1b[A")
            person.wait_for("remember me")
            person.type("\r")
            person.wait_for("one")
            person.wait_for(DONE)
            person.type("\x04")
            assert person.exit_code() == 0
    assert [found["title"] for found in machine.sessions()] == ["remember me"] * 2


def test_approval_is_asked_in_the_lines_place_and_a_message_is_no_answer(machine: Machine) -> None:
    with machine.model(TOUCH, says("then not")) as user, user.terminal("run", *UNTRUSTED) as person:
        person.wait_for(IDLE)
        person.type("go\r")
        person.wait_for("touch made.txt")
        person.wait_for("uit the turn:")
        person.wait_for("the agent wants to run OUTSIDE THE SANDBOX: touch made.txt")
        person.type("what is it for?\r")
        person.wait_for("answer the question first")
        person.type("n\r")
        person.wait_for("then not")
        person.wait_for(DONE)
        person.type("\x04")
        assert person.exit_code() == 0
    assert not (machine.folder / "made.txt").exists()
    history = (Path(machine.environ["DENDRO_HOME"]) / "history").read_text()
    assert "+go" in history
    assert "+n\n" not in history, "an answer is no line to be typed again"


def test_question_that_was_answered_while_no_worker_was_there_is_not_put_again(machine: Machine) -> None:
    with machine.model(TOUCH, says("it is there")) as user:
        assert user.run("run", "touch it", *UNTRUSTED).returncode == 3
        [session] = user.session_ids()
        assert (
            "no worker has taken it yet" in user.run("approvals", session, "--allow", "touch made.txt").stdout
        )
        with user.terminal("run", "--resume", session) as person:
            shown = person.wait_for("it is there")
            shown += person.wait_for(DONE)
            person.type("\x04")
            assert person.exit_code() == 0
    assert "uit the turn:" not in shown
    assert (machine.folder / "made.txt").exists()


def test_ctrl_c_interrupts_the_turn_and_the_second_one_leaves(machine: Machine) -> None:
    with machine.model(SLEEP, says("again")) as user, user.terminal("run", *FREE) as person:
        person.wait_for(IDLE)
        person.type("go\r")
        person.wait_for("sleep 60")
        person.press_ctrl_c()
        person.wait_for("interrupting the turn; Ctrl-C again leaves")
        person.wait_for("the turn was interrupted")
        person.wait_for(DONE)
        person.type("more\r")
        person.wait_for("again")
        person.wait_for(DONE)
        person.press_ctrl_c()
        person.wait_for("Ctrl-C again leaves, and so does Ctrl-D")
        person.press_ctrl_c()
        person.wait_for("dendro run --resume")
        assert person.exit_code() == 130


def test_words_with_a_slash_are_for_the_program(machine: Machine) -> None:
    with machine.model(says("named")) as user, user.terminal("run") as person:
        person.wait_for(IDLE)
        person.type("/halt\r")
        person.wait_for("/halt means nothing here")
        person.wait_for("//TEXT +says /TEXT")
        person.type("//halt\r")
        person.wait_for("named")
        person.wait_for(DONE)
        person.type("/name My work\r")
        person.wait_for("the session is named My work")
        person.type("\x04")
        assert person.exit_code() == 0
    [found] = machine.sessions()
    assert (found["name"], found["title"]) == ("My work", "/halt")


def test_without_a_terminal_a_prompt_is_still_needed(machine: Machine) -> None:
    done = machine.run("run")
    assert (done.returncode, done.stdout) == (2, "")
    assert "give a prompt, or --resume ID" in done.stderr


# ── the first line, without a terminal ────────────────────────────────────────────────────────


class Lines(Editor):
    """An editor whose lines are given."""

    def __init__(self, *lines: str) -> None:
        self._lines = list(lines)

    async def read(self) -> str | None:
        return self._lines.pop(0) if self._lines else None


class Notes(LiveView):
    """A view that keeps what is noted."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


async def test_first_line_may_begin_a_planning_session_or_a_review() -> None:
    for line in ("/plan add a login", "/review main"):
        assert await first_line(Lines(line), Notes()) == line


async def test_word_that_cannot_make_a_session_is_told_why() -> None:
    view = Notes()
    assert await first_line(Lines("/plan ", "/stop", "/halt", "/name x", "/quit"), view) is None
    told = [note for note in view.notes if not note.startswith("  ")]
    assert told == [
        "/plan GOAL: say what is to be planned",
        "/stop is for a session, and your first message makes one:",
        "/halt means nothing here:",
        "/name is for a session, and your first message makes one:",
    ]


def test_stop_of_a_root_that_rests_names_the_agent_that_asks() -> None:
    assert nothing_to_stop(None, "ab12") == nothing_to_stop(
        request_of({"type": "exec_approval_request", "call_id": "c1"}), "ab12"
    )
    of_agent = request_of({"type": "exec_approval_request", "agent_id": 2})
    assert nothing_to_stop(of_agent, "ab12").endswith("agent 2 is stopped by: dendro interrupt ab12 2")
