"""Codex's own terminal, unchanged, over `dendro app-server --listen`: typed to, and read from."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cli.machine import PATIENCE_S, Machine, dendro
from tests.doors.clients.packages import from_npm
from tests.started import Started

pytestmark = pytest.mark.realredis

ASK = {
    "command": ["bash", "-c", "echo made > made.txt"],
    "with_escalated_permissions": True,
    "justification": "It writes.",
}
SLOWLY = {
    # A terminal shows a line when it is whole.
    "delta_delay_ms": 300,
    "items": [{"text": "These are many words.\n\nThey come slowly,\n\nand all of them\n\none by one."}],
}
SCENARIO = {
    "per_session": True,
    "after_end": "repeat_last",
    "agents": [{"prompt": "title", "steps": [{"items": [{"text": "A title"}]}]}],
    "steps": [
        {"items": [{"call": "shell", "args": ASK}]},
        {"items": [{"text": "Approved and done."}]},
        SLOWLY,
    ],
}
SPAWN = {"call": "subagent_spawn", "args": {"label": "scout", "prompt": "Do it."}}
WAIT = {"call": "subagent_await", "args": {"agent_ids": [1]}}
TREE = {
    "per_session": True,
    "after_end": "repeat_last",
    "agents": [
        {"prompt": "title", "steps": [{"items": [{"text": "A title"}]}]},
        {
            "label": "scout",
            "steps": [{"items": [{"call": "shell", "args": ASK}]}, {"items": [{"text": "Scouted."}]}],
        },
    ],
    "steps": [
        {"items": [SPAWN]},
        {"items": [WAIT]},
        {"items": [{"text": "The scout is back."}]},
        SLOWLY,
    ],
}

_numbers = itertools.count(1)


@dataclass
class Screen:
    """A terminal that `tmux` keeps, with the client in it."""

    socket: Path

    def _tmux(self, *words: str) -> str:
        command = ["tmux", "-S", str(self.socket), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    def wait_for(self, pattern: str) -> str:
        """The screen, as soon as it shows a pattern."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            shown = self._tmux("capture-pane", "-p")
            if re.search(pattern, shown):
                return shown
            # A screen tells nobody that it has changed.
            assert time.monotonic() < deadline, f"{pattern!r} did not come; the screen shows:\n{shown}"
            time.sleep(0.1)

    def type(self, text: str) -> None:
        """Types a line; the client takes an Enter that comes with the text for a part of what was pasted."""
        self._tmux("send-keys", "-l", text)
        self.wait_for(re.escape(text))
        time.sleep(0.3)
        self._tmux("send-keys", "Enter")

    def press(self, key: str) -> None:
        self._tmux("send-keys", key)


@contextmanager
def terminal(machine: Machine, *words: str) -> Iterator[Screen]:
    """The client at a terminal of its own."""
    tmux = shutil.which("tmux")
    if tmux is None:
        pytest.skip("tmux is not here to show a terminal")
    client = from_npm("@openai/codex", "0.169.0") / "node_modules/.bin/codex"
    home = machine.folder.parent / "codex"
    home.mkdir(exist_ok=True)
    screen = Screen(machine.folder.parent / f"tmux-{next(_numbers)}")
    line = f"{shlex.join([str(client), *words])}; echo; echo it has ended"
    start = [
        tmux,
        "-S",
        str(screen.socket),
        "new-session",
        "-d",
        "-x",
        "240",
        "-y",
        "40",
        f"{line}; sleep 600",
    ]
    environ = {**machine.environ, "CODEX_HOME": str(home), "TERM": "xterm-256color"}
    subprocess.run(start, check=True, cwd=machine.folder, env=environ)
    try:
        yield screen
    finally:
        subprocess.run([tmux, "-S", str(screen.socket), "kill-server"], check=False)


@contextmanager
def server(machine: Machine, address: str, *words: str) -> Iterator[subprocess.Popen[str]]:
    """`dendro app-server` at an address; it is killed at the end."""
    process = Started(
        dendro("app-server", "--listen", address, *words),
        stderr=subprocess.PIPE,
        text=True,
        cwd=machine.folder,
        env=machine.environ,
    )
    assert process.stderr is not None
    try:
        while "listening on" not in (line := process.stderr.readline()):
            assert line, "the server has ended"
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
        process.wait()
        process.stderr.close()


# Four servers and two terminals start here, one behind the other: on a busy machine that takes its time.
@pytest.mark.timeout(300)
def test_terminal_asks_and_reads_on_across_deaths_of_its_server_and_resumes_at_another(
    machine: Machine,
) -> None:
    address, elsewhere = (f"unix://{machine.folder.parent / name}" for name in ("door", "other"))
    with (
        machine.buried.playing(json.dumps(SCENARIO)) as user,
        server(user, address) as first,
        terminal(user, "--remote", address) as screen,
    ):
        screen.wait_for("Ask Codex|describe a task")
        screen.type("please write")
        screen.wait_for("Would you like to run the following command")
        os.kill(first.pid, signal.SIGKILL)
        screen.wait_for("Reconnecting")
        with server(user, address) as second:
            asked = " ".join(screen.wait_for("Would you like to run the following command").split())
            assert f"Reason: OUTSIDE THE SANDBOX, in {machine.folder} on {socket.gethostname()}" in asked
            assert "the agent says: “It writes.”" in asked
            screen.press("y")
            screen.wait_for("Approved and done")
            screen.type("tell me more")
            screen.wait_for("These are many")
            os.kill(second.pid, signal.SIGKILL)
            screen.wait_for("Reconnecting")
        with server(user, address), server(user, elsewhere):
            screen.wait_for("one by one")
            screen.type("/quit")
            left = screen.wait_for("resume [0-9a-f-]{36}")
            (thread,) = re.findall("resume ([0-9a-f-]{36})", left)
            with terminal(user, "resume", thread, "--remote", elsewhere) as back:
                back.wait_for("Approved and done")
                back.wait_for("one by one")
    assert (machine.folder / "made.txt").read_text() == "made\n"


@contextmanager
def worker(machine: Machine) -> Iterator[subprocess.Popen[bytes]]:
    """A worker whose death is noticed soon; it is killed at the end."""
    command = dendro(
        "worker", "-c", "worker.lease_s=2", "-c", "worker.trust_s=1.5", "-c", "worker.renew_s=0.5"
    )
    with Started(command, stderr=subprocess.DEVNULL, cwd=machine.folder, env=machine.environ) as process:
        try:
            yield process
        finally:
            process.kill()


def test_terminal_answers_for_an_agent_outlives_its_worker_and_lists_its_thread(machine: Machine) -> None:
    address = f"unix://{machine.folder.parent / 'door'}"
    with (
        machine.buried.playing(json.dumps(TREE)) as user,
        server(user, address, "--no-worker"),
        terminal(user, "--remote", address) as screen,
    ):
        with worker(user):
            screen.wait_for("Ask Codex|describe a task")
            screen.type("send a scout")
            screen.wait_for("Would you like to run the following command")
            screen.press("y")
            screen.wait_for("The scout is back")
            screen.type("tell me more")
            screen.wait_for("These are many")
        with worker(user):
            screen.wait_for("one by one")
        with terminal(user, "resume", "--remote", address) as listed:
            listed.wait_for("send a scout|A title")
    assert (machine.folder / "made.txt").read_text() == "made\n"


def test_terminal_that_resumes_a_root_is_asked_what_its_agent_asks(machine: Machine) -> None:
    address = f"unix://{machine.folder.parent / 'door'}"
    with machine.playing(json.dumps(TREE)) as user, worker(user):
        with (
            server(user, address, "--no-worker"),
            terminal(user, "--remote", address) as screen,
        ):
            screen.wait_for("Ask Codex|describe a task")
            screen.type("send a scout")
            screen.wait_for("Would you like to run the following command")
        with (
            server(user, address, "--no-worker"),
            terminal(user, "resume", "--last", "--remote", address) as back,
        ):
            asked = back.wait_for("Would you like to run the following command")
            assert "Thread: /root/1" in asked
            back.press("y")
            back.wait_for("The scout is back")
    assert (machine.folder / "made.txt").read_text() == "made\n"


@pytest.mark.timeout(300)
def test_terminal_works_in_portable_folders_where_its_gateway_says_so(machine: Machine) -> None:
    address = f"unix://{machine.folder.parent / 'door'}"
    words = ("--remote", address, "--sandbox", "workspace-write")
    (machine.folder / "here.txt").write_text("here")
    steps = [
        {"items": [{"call": "shell", "args": {"command": ["bash", "-c", "ls; touch made.txt"]}}]},
        {"items": [{"text": "All is made."}]},
        {"items": [{"text": "All is told."}]},
    ]
    agents = [{"prompt": "title", "steps": [{"items": [{"text": "A title"}]}]}]
    scenario = {"per_session": True, "after_end": "repeat_last", "agents": agents, "steps": steps}
    with (
        machine.playing(json.dumps(scenario)) as user,
        server(user, address, "-c", "gateway.workspace=portable"),
    ):
        with terminal(user, *words) as screen:
            screen.wait_for("Ask Codex|describe a task")
            screen.type("make it here")
            screen.wait_for("All is made")
            screen.type("tell me more")
            screen.wait_for("All is told")
        with terminal(user, *words, "-C", str(machine.folder)) as screen:
            screen.wait_for("Trust this folder")
            time.sleep(1)
            screen.press("Enter")
            screen.wait_for("describe a task")
            screen.type("make it there")
            screen.wait_for("All is made")
            screen.type("tell me more")
            screen.wait_for("All is told")
        made = {one["title"]: one["session_id"] for one in user.sessions()}
        here, there = (made["make it here"], made["make it there"])
        logs = [user.run("logs", one).stdout for one in (here, there)]
        changes = [user.run("diff", one, "--stat").stdout for one in (here, there)]
    assert ["  here.txt\n" in log for log in logs] == [False, True]
    assert all("made.txt" in change for change in changes)
    assert [path.name for path in machine.folder.iterdir()] == ["here.txt"]


@pytest.mark.timeout(300)
def test_terminal_asks_once_whether_it_may_trust_a_folder(machine: Machine) -> None:
    address = f"unix://{machine.folder.parent / 'door'}"
    words = ("--remote", address, "-C", str(machine.folder))
    with machine.playing(json.dumps(SCENARIO)) as user:
        with server(user, address), terminal(user, *words) as screen:
            screen.wait_for("Trust this folder")
            # What is pressed while the dialog is being drawn is lost, and nothing tells when it is drawn.
            time.sleep(1)
            screen.press("Enter")
            screen.wait_for("describe a task")
        with server(user, address), terminal(user, *words) as screen:
            shown = screen.wait_for("describe a task|Trust this folder")
            assert "Trust this folder" not in shown
        done = user.run("sessions")
        assert (done.returncode, done.stderr) == (0, "")


def test_terminal_reads_why_there_is_no_goal_and_goes_on_behind_stop(machine: Machine) -> None:
    address = f"unix://{machine.folder.parent / 'door'}"
    with (
        machine.playing(json.dumps(SCENARIO)) as user,
        server(user, address),
        terminal(user, "--remote", address) as screen,
    ):
        screen.wait_for("Ask Codex|describe a task")
        screen.type("/stop")
        screen.wait_for("Stopping all background terminals")
        screen.type("/goal write it all")
        screen.wait_for("1 warning")
        screen.press("F2")
        screen.wait_for("goals are plans: turn/start in plan mode")
