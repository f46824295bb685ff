"""A whole worker that is killed between two files of a merge: nobody ever sees a half of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from orchestrator.sandbox.probe import probe
from tests.cli.machine import PATIENCE_S, Machine, dendro, events, kinds
from tests.servers import start_redis

pytestmark = [
    pytest.mark.realredis,
    pytest.mark.sandbox,
    pytest.mark.skipif(probe().bubblewrap is None, reason="bubblewrap does not work here"),
]
ROOT = Path(__file__).parents[2]
SOON = [word for key in ("lease_s=2", "trust_s=1.5", "renew_s=0.5") for word in ("-c", f"worker.{key}")]
"""A lost worker's session is taken over soon."""
NEVER = ("-c", "approval_policy=never")
LOOK = "cat a b; [ ! -e c ] || cat c"
OLD, HALF, NEW = "old\nold\n", "new\nold\n", "new\nnew\nnew\n"


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"items": [{"call": name, "args": arguments}]}


def shell(script: str) -> dict[str, Any]:
    return call("shell", command=["bash", "-c", script])


def scenario(**spawn: str) -> str:
    """An agent that changes two files and makes one, and a root that merges them twice, and looks between."""
    done = {"items": [{"text": "done"}]}
    merge = call("subagent_merge", agent_id=1)
    steps = [
        call("subagent_spawn", label="one", prompt="Change them.", **spawn),
        call("subagent_await"),
        merge,
        shell(LOOK),
        merge,
        shell(LOOK),
        done,
    ]
    agent = {"label": "one", "steps": [shell("echo new > a; echo new > b; echo new > c"), done]}
    return json.dumps({"steps": steps, "agents": [agent]})


@contextmanager
def killed_in_the_merge(user: Machine, fifo: Path) -> Iterator[None]:
    """A worker that lives until one file of a merge is written; the context runs in between."""
    os.mkfifo(fifo)
    said = os.open(fifo, os.O_RDWR)
    command = [sys.executable, "-m", "tests.workspaces.doomed_worker", str(fifo), *SOON, "worker"]
    environ = {**user.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, cwd=user.folder, env=environ, start_new_session=True) as worker:
        try:
            keeper = int(os.read(said, 64))
            yield
        finally:
            os.killpg(worker.pid, signal.SIGKILL)
            os.close(said)
        os.kill(keeper, signal.SIGKILL)


def interrupted_in_the_merge(user: Machine, fifo: Path, *words: str) -> str:
    """The session of a run whose worker is killed in a merge, and whose task is interrupted then."""
    run = dendro(*SOON, *NEVER, "run", "--no-worker", "--json", *words, "Go.")
    with user.start(run, cwd=user.folder, env=user.environ, stdout=subprocess.PIPE, text=True) as client:
        try:
            with killed_in_the_merge(user, fifo):
                session = str(user.sessions()[0]["tree_id"])
            assert user.run("interrupt", session).returncode == 0
            with working(user):
                said, _ = client.communicate(timeout=PATIENCE_S)
        finally:
            client.kill()
    assert kinds(said)[-1] == "turn_aborted"
    return session


def looks_and_merges(user: Machine, session: str) -> list[str]:
    """The folder as commands see it, before the merge that is asked for again and behind it."""
    done = user.run(*NEVER, "run", "--json", "--resume", session, "Go on.")
    assert done.returncode == 0, done.stderr
    found = events(done.stdout)
    assert [event["success"] for event in found if event["type"] == "patch_apply_end"] == [True]
    return [event["stdout"] for event in found if event["type"] == "exec_command_end"]


@contextmanager
def working(user: Machine) -> Iterator[None]:
    worker = dendro(*SOON, "worker")
    with user.start(worker, cwd=user.folder, env=user.environ, stdout=subprocess.DEVNULL) as process:
        yield
        process.terminate()


@pytest.fixture
def person(tmp_path: Path) -> Iterator[Machine]:
    (tmp_path / "redis").mkdir()
    with start_redis(tmp_path / "redis") as server:
        machine = Machine.at(tmp_path, server.url).buried
        for name in ("a", "b"):
            (machine.folder / name).write_text("old\n")
        yield machine.under(DENDRO_SANDBOX_MODE="workspace-write")


def content(folder: Path) -> str:
    return "".join(file.read_text() for name in "abc" if (file := folder / name).exists())


def test_half_a_merge_is_in_no_portable_folder_that_the_next_holder_has(
    person: Machine, tmp_path: Path
) -> None:
    with person.playing(scenario()) as user:
        session = interrupted_in_the_merge(user, tmp_path / "fifo", "--portable")
        copy = tmp_path / "home/workspaces/copies" / session / "folder"
        assert content(copy) == HALF, "so it was left behind"
        assert looks_and_merges(user, session) == [OLD, NEW]
    assert content(person.folder) == OLD


def test_half_a_merge_is_taken_out_of_a_persons_folder_by_the_next_worker(
    person: Machine, tmp_path: Path
) -> None:
    with person.playing(scenario(workspace="own")) as user:
        session = interrupted_in_the_merge(user, tmp_path / "fifo")
        assert content(person.folder) == OLD, "also where nobody merges any more"
        assert looks_and_merges(user, session) == [OLD, NEW]
