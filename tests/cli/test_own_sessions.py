"""Naming, finding and removing sessions, as a person does it."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import cast

from redis import Redis

from orchestrator.gateways.principals import user_name
from tests.cli.machine import TOUCH, Machine, says
from tests.cli.parked_tree import worker

FREE = ("-c", "approval_policy=never", "-c", "sandbox_mode=danger-full-access")
UNTRUSTED = ("-c", "approval_policy=untrusted", "-c", "sandbox_mode=danger-full-access")


def keys_of(machine: Machine, session: str) -> list[bytes]:
    with Redis.from_url(machine.environ["DENDRO_REDIS_URL"]) as server:
        return [key for key in server.scan_iter(f"*{session}*") if b":seen" not in key]


def deleted_by(machine: Machine, session: str) -> str:
    """The person who deleted a session, as those are told whom it belonged to."""
    with Redis.from_url(machine.environ["DENDRO_REDIS_URL"]) as server:
        (key,) = server.scan_iter("*:deleted_by")
        return str(cast(bytes, server.hget(key, session)).decode().split("\n")[2])


def test_person_names_finds_and_removes_a_session_that_no_worker_serves(machine: Machine) -> None:
    with machine.model(says("The moon is made of basalt.")) as user:
        assert user.run("run", "what is the moon made of?").returncode == 0
    [found] = machine.sessions()
    session, short = found["session_id"], found["session_id"][-8:]

    named = machine.run("name", short, "Geology")
    assert named.stdout == f"{short} is named Geology\n", named.stderr
    [after] = machine.sessions()
    assert (after["name"], after["title"], after["status"]) == (
        "Geology",
        "what is the moon made of?",
        "idle",
    )
    replayed = machine.run("replay", session)
    assert replayed.returncode == 0, replayed.stdout
    assert machine.run("name", short, "x" * 201).stderr.startswith(
        "dendro: not named: a name has at most 200"
    )

    assert machine.run("search", "GEOLOGY").stdout.startswith(f"{short}  Geology  what is the moon made of?")
    assert "nothing found among 1 session;" in machine.run("search", "basalt").stderr
    read = machine.run("search", "Basalt", "--content").stdout
    assert "    The moon is made of basalt.\n" in read
    assert machine.run("sessions", "geology").stdout.count("Geology") == 1
    unknown = machine.run("sessions", "--status", "idle", "--status", "dead")
    assert (unknown.returncode, "--status dead: no session stands so" in unknown.stderr) == (2, True)
    assert "no session fits" in machine.run("sessions", "biology").stdout

    [file] = Path(found["rollout_path"]).parent.iterdir()
    removed = machine.run("rm", short)
    assert removed.stdout == f"removed {short} (Geology), 1 rollout file\n", removed.stderr
    assert not file.exists()
    assert machine.sessions() == []
    assert keys_of(machine, session) == []
    assert deleted_by(machine, session) == user_name()


def test_person_removes_a_session_that_waits_and_one_that_another_holds_is_ended_first(
    machine: Machine,
) -> None:
    with machine.model(TOUCH, TOUCH, says("no more")) as user:
        assert user.run("run", "one", *UNTRUSTED).returncode == 3
        [asking] = user.session_ids()
        refused = user.run("rm", asking)
        assert (refused.returncode, user.session_ids()) == (2, [asking])
        assert f"{asking} is not done: the root is awaiting approval; --force ends" in refused.stderr
        with worker(user):
            assert user.run("run", "two", "--no-worker", *UNTRUSTED).returncode == 3
            waiting = user.session_ids()
            removed = user.run("rm", *waiting, "--force", "--yes")
            assert removed.returncode == 0, removed.stderr
    assert machine.run("approvals").stdout == "nothing waits for a person\n"
    assert [key for session in waiting for key in keys_of(machine, session)] == []


def test_person_removes_a_session_at_work_and_its_command_is_stopped_first(machine: Machine) -> None:
    seconds = f"60.{os.getpid()}"
    long = {"items": [{"call": "shell", "args": {"command": ["sleep", seconds], "timeout_ms": 90_000}}]}
    script = json.dumps({"steps": [long, says("done")], "per_session": False})
    with machine.playing(script) as user, worker(user) as process:
        with user.terminal("run", "go", "--no-worker", *FREE) as person:
            person.wait_for(f"sleep {seconds}")
            [row] = user.sessions()
            session, short = row["session_id"], row["session_id"][-8:]
            refused = user.run("rm", session)
            assert (
                f"session {session} is not done: the root is running; --force ends and removes it"
                in refused.stderr
            )
            assert running(seconds), "nothing was stopped"
            removed = user.run("rm", session, "--force", "--yes")
            assert removed.stdout == (
                f"ending first what is at work: the root\nremoved {short} (go), 1 rollout file\n"
            ), removed.stderr
            assert not running(seconds)
            person.wait_for("the turn was interrupted")
            farewell = person.wait_for("nothing of it is left to go on with")
            assert "was deleted" in farewell
            assert "--resume" not in farewell
            assert person.exit_code() == 130
        assert (user.sessions(), keys_of(user, session)) == ([], [])
        left = Path(user.environ["DENDRO_HOME"]).rglob(f"*{session}*")
        # The note of its deletion leads upkeep to what a job may have written meanwhile.
        assert [one.parent.name for one in left] == ["condemned"]
        assert user.run("run", "again", "--no-worker").returncode == 0, "its worker serves others"
        assert process.poll() is None


def test_person_who_sits_beside_a_session_is_told_that_it_was_deleted(machine: Machine) -> None:
    with machine.model(says("done")) as user:
        assert user.run("run", "go").returncode == 0
        [session] = user.session_ids()
        with (
            user.terminal("attach", session) as beside,
            user.terminal("run", "--resume", session) as talker,
        ):
            beside.wait_for("Ctrl-C leaves")
            talker.wait_for(f"session {session[-8:]}")
            assert user.run("rm", session, "--force", "--yes").returncode == 0
            for person in (beside, talker):
                person.wait_for(f"session {session} was deleted")
                assert person.exit_code() == 1
                assert "--resume" not in person.seen


def running(argument: str) -> list[str]:
    """Processes of this machine with an argument."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if argument.encode() in (words := file.read_bytes().split(b"\0")):
                found.append(repr(words))
    return found


def test_person_at_a_terminal_is_asked_before_anything_is_removed(machine: Machine) -> None:
    with machine.model(says("done")) as user:
        assert user.run("run", "go").returncode == 0
    [session] = machine.session_ids()
    for answer, left in (("n\n", [session]), ("y\n", [])):
        with machine.terminal("rm", session) as person:
            person.wait_for(r"remove [0-9a-f]{8} \(go\)\? \[y/N\]")
            person.type(answer)
            assert person.exit_code() == 0
        assert machine.session_ids() == left


def test_command_that_begins_while_the_person_is_asked_is_ended_by_force(machine: Machine) -> None:
    seconds = f"60.{os.getpid()}"
    script = f"echo be''gun; exec sleep {seconds}"
    long = {"items": [{"call": "shell", "args": {"command": ["bash", "-c", script], "timeout_ms": 90_000}}]}
    with machine.playing(json.dumps({"steps": [says("done"), long], "per_session": False})) as user:
        assert user.run("run", "go", *FREE).returncode == 0
        [session] = user.session_ids()
        with (
            user.terminal("rm", session, "--force") as person,
            user.terminal("run", "--resume", session, "again", *FREE) as talker,
        ):
            person.wait_for(r"remove [0-9a-f]{8} \(go\)\? \[y/N\]")
            talker.wait_for("begun")
            person.type("y\n")
            said = person.wait_for(r"\nremoved ")
            assert "ending first what is at work: the root" in said
            assert person.exit_code() == 0
            assert not running(seconds)
        assert (user.session_ids(), keys_of(user, session)) == ([], [])


def test_session_with_input_that_nobody_has_read_needs_force(machine: Machine) -> None:
    with machine.model(says("done"), says("more")) as user:
        assert user.run("run", "go").returncode == 0
        [session] = user.session_ids()
        assert "handed in" in (sent := user.run("send", session, "0", "one more thing")).stdout, sent
        refused = user.run("rm", session)
    assert (refused.returncode, machine.session_ids()) == (2, [session])
    assert "the root has unread input; --force ends" in refused.stderr


def test_path_that_redis_names_outside_of_the_data_folder_is_not_deleted(machine: Machine) -> None:
    with machine.model(says("done")) as user:
        assert user.run("run", "go").returncode == 0
    [session] = machine.session_ids()
    precious = machine.folder / f"rollout-{session}.jsonl"
    precious.write_text("precious")
    with Redis.from_url(machine.environ["DENDRO_REDIS_URL"]) as server:
        [key] = [key for key in keys_of(machine, session) if b":session:" in key]
        stored = server.hget(key, "meta")
        assert isinstance(stored, bytes)
        server.hset(key, "meta", json.dumps({**json.loads(stored), "rollout_path": str(precious)}))
    assert machine.run("rm", session, "--force").returncode == 0
    assert precious.read_text() == "precious"


def test_search_finds_what_an_agent_has_asked(machine: Machine) -> None:
    options = [{"label": each, "description": each} for each in ("Redis", "Disk")]
    asked = {"header": "Store", "question": "Which basalt?", "options": options, "multiSelect": False}
    step = {"items": [{"call": "ask_user_question", "args": {"questions": [asked]}}]}
    with machine.model(step) as user:
        assert user.run("run", "go").returncode == 3
        assert "    Store: Which basalt?\n" in user.run("search", "BASALT", "--content").stdout
