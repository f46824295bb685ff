"""`dendro run` before a person: approvals asked, Ctrl-C obeyed."""

from __future__ import annotations

import json

from tests.cli.machine import SLEEP, TOUCH, Machine, says
from tests.cli.parked_tree import worker

UNTRUSTED = ("-c", "approval_policy=untrusted", "-c", "sandbox_mode=danger-full-access")
QUESTION = r"\[q\]uit the turn: "


def test_a_person_denies_a_command_and_the_turn_goes_on(machine: Machine) -> None:
    with machine.model(TOUCH, says("then not")) as user, user.terminal("run", "go", *UNTRUSTED) as person:
        asked = person.wait_for(QUESTION)
        assert "touch made.txt" in asked
        person.type("what?\n")
        person.wait_for(QUESTION)
        person.type("n\n")
        person.wait_for("then not")
        person.wait_for("tokens")
        assert person.exit_code() == 0
    assert not (machine.folder / "made.txt").exists()


def test_a_person_sees_that_another_has_decided(machine: Machine) -> None:
    with machine.model(TOUCH, says("then not")) as user, user.terminal("run", "go", *UNTRUSTED) as person:
        person.wait_for(QUESTION)
        (session,) = user.session_ids()
        assert user.run("approvals", session, "--deny", "touch *").returncode == 0
        person.wait_for(r"request \S+ was denied by \S+@")
        person.wait_for("then not")
        assert person.exit_code() == 0
    told = machine.run("logs", session).stdout
    assert told.count(" was denied by ") == 1, "it is in the log once"


def test_a_person_approves_for_the_session_and_is_not_asked_again(machine: Machine) -> None:
    with machine.model(TOUCH, TOUCH, says("twice")) as user, user.terminal("run", "go", *UNTRUSTED) as person:
        person.wait_for(QUESTION)
        person.type("a\n")
        rest = person.wait_for("twice")
        assert "uit the turn" not in rest
        assert person.exit_code() == 0


OTHER = {"items": [{"call": "shell", "args": {"command": ["touch", "other.txt"]}}]}


def test_a_person_allows_a_prefix_with_one_key(machine: Machine) -> None:
    with machine.model(TOUCH, OTHER, says("both")) as user, user.terminal("run", "go", *UNTRUSTED) as person:
        shown = person.wait_for(QUESTION)
        assert "p: run in this session whatever begins with touch" in shown
        person.type("p\n")
        assert "uit the turn" not in person.wait_for("both")
        assert person.exit_code() == 0


def test_a_prefix_is_allowed_from_the_list_of_requests(machine: Machine) -> None:
    with machine.model(TOUCH, OTHER, says("both")) as user, user.terminal("run", "go", *UNTRUSTED) as person:
        person.wait_for(QUESTION)
        (session,) = user.session_ids()
        (asked,) = json.loads(user.run("approvals", session, "--json").stdout)
        call = f"0:{asked['call_id']}"
        assert f"--amend {call} allows whatever begins with touch" in user.run("approvals", session).stdout
        ran = user.run("approvals", session, "--amend", call)
        assert "allowed, and in its session all that begins with `touch`" in ran.stdout, ran.stderr
        assert "uit the turn" not in person.wait_for("both")
        assert person.exit_code() == 0


def test_ctrl_c_interrupts_the_turn(machine: Machine) -> None:
    words = ("run", "go", "-c", "approval_policy=never", "-c", "sandbox_mode=danger-full-access")
    with machine.model(SLEEP) as user, user.terminal(*words) as person:
        person.wait_for("sleep 60")
        person.press_ctrl_c()
        person.wait_for("interrupting the turn")
        person.wait_for("the turn was interrupted")
        assert person.exit_code() == 130
    assert machine.sessions()[0]["status"] == "idle"


def test_a_second_ctrl_c_leaves_and_says_how_to_go_on(machine: Machine) -> None:
    with machine.model(SLEEP) as user, user.terminal("run", "go", "--no-worker") as person:
        person.wait_for("session ")
        person.press_ctrl_c()
        person.wait_for("Ctrl-C again leaves")
        person.press_ctrl_c()
        person.wait_for("dendro run --resume")
        assert person.exit_code() == 130


def test_a_person_who_ends_the_input_leaves_the_request_open(machine: Machine) -> None:
    with machine.model(TOUCH) as user, user.terminal("run", "go", *UNTRUSTED) as person:
        person.wait_for(QUESTION)
        person.type("\x04")
        person.wait_for("left unanswered")
        assert person.exit_code() == 3
    assert machine.sessions()[0]["status"] == "awaiting_approval"


def test_a_person_who_mistypes_a_word_is_told_those_that_there_are(machine: Machine) -> None:
    with machine.model(says("one"), says("two")) as user, worker(user):
        assert user.run("run", "go", "--no-worker").returncode == 0
        with user.terminal("attach", user.session_ids()[0]) as person:
            person.wait_for("Ctrl-C leaves")
            person.type("/halt now\n")
            person.wait_for("/halt means nothing here; /stop stops what it does, .* //TEXT says /TEXT")
            person.type("//halt now\n")
            person.wait_for("» /halt now")
            rest = person.wait_for("two")
            assert "one" not in rest
            person.press_ctrl_c()
            assert person.exit_code() == 0


def test_person_who_leaves_hears_who_goes_on_only_where_there_is_something_to_go_on_with(
    machine: Machine,
) -> None:
    with machine.model(TOUCH) as user:
        assert user.run("run", "go", *UNTRUSTED).returncode == 3
        left = user.run("attach", user.session_ids()[0])
        assert (left.returncode, left.stderr.splitlines()[-1]) == (0, "left; it waits as it did"), left.stderr
    with machine.model(says("one")) as user:
        assert user.run("run", "go").returncode == 0
        assert user.run("attach", user.session_ids()[0]).stderr.splitlines()[-1] == "left"
