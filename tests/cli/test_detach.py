"""Work that is handed in and left: by `run --detach`, and by leaving a conversation at work."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.cli.machine import SLEEP, Machine, says
from tests.cli.parked_tree import worker

FREE = ("-c", "approval_policy=never", "-c", "sandbox_mode=danger-full-access")


def served(user: Machine) -> Machine:
    """The machine, once its worker is known to all; each look takes a process's start."""
    for _ in range(100):
        if json.loads(user.run("workers", "--json").stdout):
            return user
    raise AssertionError("no worker ever serves")


def said(user: Machine, session: str) -> str:
    """The log of a session whose task is over; each look takes a process's start."""
    for _ in range(100):
        [row] = user.sessions()
        if row["status"] == "idle" and row["outcome"]:
            return user.run("logs", session).stdout
    raise AssertionError(f"the task never ends: {row}")


def test_task_that_nobody_serves_is_kept_and_its_id_printed(machine: Machine) -> None:
    with machine.model(says("all done")) as user:
        left = user.run("run", "--detach", "go")
        assert left.returncode == 3, left.stderr
        [session] = user.session_ids()
        assert left.stdout == f"{session}\n"
        assert "handed in, and kept; no worker has taken it yet; start one" in left.stderr
        with worker(user):
            assert "all done" in said(user, session)


@pytest.mark.parametrize("how", [(), ("--portable",)])
def test_task_is_done_by_a_worker_when_its_command_has_ended(machine: Machine, how: tuple[str, ...]) -> None:
    with machine.model(says("all done")) as user, worker(user):
        left = served(user).run("run", "--detach", *how, "go")
        assert left.returncode == 0, left.stderr
        session = left.stdout.strip()
        assert re.search(r"handed in; \S+ or another worker of pool \S+ does it", left.stderr)
        assert user.session_ids() == [session]
        assert "all done" in said(user, session)


@pytest.mark.parametrize("words", [("--apply", "--portable", "go"), ("--json", "go"), ()])
def test_what_needs_somebody_who_waits_cannot_be_left(machine: Machine, words: tuple[str, ...]) -> None:
    refused = machine.run("run", "--detach", *words)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert machine.session_ids() == []


@pytest.mark.parametrize("word", ["/detach\r", "\x04"])
def test_person_leaves_a_conversation_at_work_and_its_worker_goes_on(machine: Machine, word: str) -> None:
    with machine.model(SLEEP, says("done")) as user, worker(user):
        with served(user).terminal("run", "--no-worker", *FREE) as person:
            person.wait_for("Ctrl-D leaves")
            person.type("go\r")
            person.wait_for("sleep 60")
            person.type(word)
            person.wait_for(r"left; the task goes on: worker \S+ has it")
            assert person.exit_code() == 0
        [row] = user.sessions()
        assert row["status"] == "running"
        assert user.run("rm", row["session_id"], "--force", "--yes").returncode == 0


def test_person_who_leaves_with_the_only_worker_reads_that_the_task_stands_still(machine: Machine) -> None:
    with (
        machine.model(SLEEP, says("done")) as user,
        user.terminal("run", *FREE, "-c", "worker.drain_grace_s=0") as person,
    ):
        person.wait_for("Ctrl-D leaves")
        person.type("go\r")
        person.wait_for("sleep 60")
        person.type("\x04")
        person.wait_for(r"left; no other worker serves its pool \S+: the task stands still until one does")
        assert person.exit_code() == 0


KEYED = {"DENDRO_CHAIN_SECRET": "a key", "DENDRO_CHAIN_KEY_ID": "2026-01"}


@pytest.mark.parametrize("other", [{}, KEYED | {"DENDRO_CHAIN_SECRET": "a slip"}])
def test_who_lacks_the_key_of_the_logs_neither_begins_a_session_nor_takes_one(
    machine: Machine, other: dict[str, str], tmp_path: Path
) -> None:
    keyed, apart = machine.under(**KEYED), machine.under(**other)
    left = keyed.run("run", "--detach", "go")
    session = left.stdout.strip()
    (tmp_path / "export.jsonl").write_text(keyed.run("export", session).stdout)
    for words in (["run", "--detach", "go"], ["worker"], ["import", str(tmp_path / "export.jsonl")]):
        refused = apart.run(*words)
        assert refused.returncode not in (0, 3), words
        assert "sessions could not go on here" in refused.stderr, words
    assert apart.session_ids() == [session], "who only reads needs no key"
    found = {each["name"]: each for each in json.loads(apart.run("doctor", "--json").stdout)}
    assert found["chain key"]["level"] == "missing"
    assert keyed.run("verify", session).returncode == 0
