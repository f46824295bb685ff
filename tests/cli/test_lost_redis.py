"""Redis goes away under a command: what a person sees, and what goes on when it is back."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cli.machine import TOUCH, Machine, Terminal, says
from tests.servers import RedisServer, start_redis
from workers.companion import WORKER_NAME


def private_server(machine: Machine) -> int:
    return int((Path(machine.environ["DENDRO_HOME"]) / "redis/redis.pid").read_text())


def test_a_private_redis_that_is_killed_is_started_again_and_the_work_goes_on(tmp_path: Path) -> None:
    user = Machine.at(tmp_path)
    os.mkfifo(user.folder / "go")
    step: dict[str, Any] = {"items": [{"call": "shell", "args": {"command": ["cat", "go"]}}]}
    with (
        user.model(step, says("done")) as user,
        user.terminal(
            "run", "wait", "-c", "approval_policy=never", "-c", "redis.appendfsync=always"
        ) as person,
    ):
        person.wait_for(r"\$ cat go")
        pid = private_server(user)
        os.kill(pid, signal.SIGKILL)
        person.wait_for("the private Redis had ended; it was started again")
        (user.folder / "go").write_text("went on\n")
        person.wait_for("went on")
        person.wait_for("done")
        assert person.exit_code() == 0
    [row] = user.sessions()
    assert row["status"] == "idle"
    assert user.run("verify", row["session_id"]).returncode == 0
    assert json.loads(user.run("sessions", "--json").stdout)


@contextmanager
def working(tmp_path: Path) -> Iterator[tuple[Machine, RedisServer, Terminal]]:
    """A task that waits for a FIFO, and a Redis that can be stopped under it."""
    with start_redis(tmp_path / "redis", config={"appendonly": "yes", "appendfsync": "always"}) as server:
        machine = Machine.at(tmp_path, server.url)
        os.mkfifo(machine.folder / "go")
        step: dict[str, Any] = {"items": [{"call": "shell", "args": {"command": ["cat", "go"]}}]}
        with (
            machine.model(step, says("done")) as user,
            user.terminal("run", "wait", "-c", "approval_policy=never") as person,
        ):
            person.wait_for(r"\$ cat go")
            yield user, server, person


def test_an_absence_of_redis_is_told_in_one_line_and_its_return_in_another(tmp_path: Path) -> None:
    with working(tmp_path) as (_, server, person):
        server.kill()
        person.wait_for(r"Redis is away \(.*\); asking again until it answers")
        person.wait_for("its claim can no longer be trusted")  # four seconds of a warning at every attempt
        server.start()
        shown = person.wait_for("Redis is back, after [0-9]+ s")
        assert shown.count("Redis is away") == 0
        assert "no answer from Redis" not in shown
        person.wait_for("done")
        assert person.exit_code() == 0


def companions(person: Terminal) -> int:
    """The number of workers that a command has started beside it."""
    children = Path(f"/proc/{person.process.pid}/task/{person.process.pid}/children").read_text().split()
    names = [Path(f"/proc/{child}/comm").read_text().strip() for child in children]
    return names.count(WORKER_NAME)


@pytest.mark.parametrize(
    ("front", "after"),
    [
        (("run", "--json"), "session "),
        (("run",), r"\[q\]uit the turn"),
        (("proto",), "session_configured"),
    ],
    ids=["run", "conversation", "proto"],
)
def test_a_command_that_goes_on_looks_at_the_session_before_its_worker_starts(
    tmp_path: Path, front: tuple[str, ...], after: str
) -> None:
    """A quicker worker would be done with what was queued before the command knew what it was."""
    durable = {"appendonly": "yes", "appendfsync": "always"}
    with start_redis(tmp_path / "redis", config=durable) as server:
        machine = Machine.at(tmp_path, server.url)
        asked = ("-c", "approval_policy=untrusted", "-c", "sandbox_mode=danger-full-access")
        with machine.model(TOUCH, says("done")) as user:
            assert user.run("run", "touch it", *asked).returncode == 3
            [session] = user.session_ids()
            server.terminate()
            with user.terminal(front[0], "--resume", session, *front[1:]) as person:
                person.wait_for("Redis is away")
                assert companions(person) == 0, "nothing was looked at yet"
                server.start()
                person.wait_for(after)
                if front[0] == "proto":
                    assert companions(person) == 1


def test_a_second_ctrl_c_leaves_at_once_while_redis_is_away(tmp_path: Path) -> None:
    with working(tmp_path) as (_, server, person):
        server.kill()
        person.wait_for("Redis is away")
        person.press_ctrl_c()
        person.wait_for("interrupting the turn; Ctrl-C again leaves")
        person.press_ctrl_c()
        person.wait_for("left; go on with: dendro run --resume")
        # Its worker still holds the terminal: the running command has its grace.
        assert person.process.wait(3) == 130
        server.start()


def test_a_command_waits_for_a_redis_that_comes_back_and_says_so(tmp_path: Path) -> None:
    with start_redis(tmp_path / "redis") as server:
        machine = Machine.at(tmp_path, server.url)
        server.terminate()
        with machine.terminal("sessions") as person:
            person.wait_for(r"dendro: Redis is away \(.*\); asking again for 10 s")
            server.start()
            person.wait_for("no sessions yet")
            assert person.exit_code() == 0


@pytest.mark.slow
def test_a_command_gives_up_after_its_time_with_the_remedy(tmp_path: Path) -> None:
    machine = Machine.at(tmp_path, f"unix://{tmp_path}/nobody.sock")
    for words in (["sessions"], ["send", "0199a2b4", "0", "hi"]):
        gave_up = machine.run(*words)
        assert gave_up.returncode == 2
        assert gave_up.stderr.count("Redis is away") == 1
        assert "waited 10 s for it: start the server, or correct redis.url" in gave_up.stderr


def test_an_answer_given_while_no_worker_was_there_is_taken_by_the_next_run(
    machine: Machine,
) -> None:
    with machine.model(TOUCH, says("done")) as user:
        asked = ("-c", "approval_policy=untrusted", "-c", "sandbox_mode=danger-full-access")
        assert user.run("run", "touch it", *asked).returncode == 3
        [session] = user.session_ids()
        answered = user.run("approvals", session, "--allow", "touch made.txt")
        assert "no worker has taken it yet; start one" in answered.stdout, answered.stderr
        [waiting] = json.loads(user.run("approvals", session, "--json").stdout)
        went_on = user.run("run", "--resume", session)
        assert (went_on.returncode, "done" in went_on.stdout) == (0, True), went_on.stderr
        call = waiting["call_id"]
        for words in (
            (session, "--deny", f"0:{call}"),
            (session, "--deny", call),
            ("--all", "--deny", call),
            ("--all", "--allow", f"0:{call}"),
        ):
            late = user.run("approvals", *words)
            told = re.search(rf"^0:{call}.*: already allowed, by \S+@\S+$", late.stdout, re.M)
            assert (late.returncode, told is not None) == (0, True), f"{words}: {late.stdout}{late.stderr}"
        for words in ((session, "--deny", "touch*"), ("--all", "--allow", "touch made.txt")):
            late = user.run("approvals", *words)
            told = re.search(rf"; 0:{call} touch made.txt: already allowed, by \S+@\S+$", late.stderr, re.M)
            assert (late.returncode, told is not None) == (1, True), f"{words}: {late.stdout}{late.stderr}"
            assert "no open request is meant by" in late.stderr, "a pattern names no single request"
        unknown = user.run("approvals", "--all", "--deny", "npm *")
        assert (unknown.returncode, "already" in unknown.stderr) == (1, False)
    assert (user.folder / "made.txt").exists()
