"""`dendro serve` as a process: the page's example, a gateway that is killed, a tidy end."""

from __future__ import annotations

import json
import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cli.machine import Machine, dendro
from tests.started import Started

PAGE = Path(__file__).parents[3] / "docs" / "doors" / "sq-eq.md"


@contextmanager
def serving(machine: Machine, *words: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A gateway, and its address as it says it."""
    with Started(
        dendro("serve", *words), stderr=subprocess.PIPE, text=True, cwd=machine.folder, env=machine.environ
    ) as process:
        try:
            assert process.stderr is not None
            said = process.stderr.readline()
            assert "listening on " in said, said + process.stderr.read()
            yield process, said.split("listening on ")[1].strip()
        finally:
            process.kill()


@contextmanager
def working(machine: Machine) -> Iterator[None]:
    with Started(dendro("worker"), cwd=machine.folder, env=machine.environ) as process:
        try:
            yield
        finally:
            process.terminate()


class Client:
    """A client as simple as `nc -U`: lines in, lines out."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(30)
        self._socket.connect(str(path))
        self._lines = self._socket.makefile("rb")
        self.heard: list[str] = []
        """The types of all events so far."""

    def send(self, line: str) -> None:
        self._socket.sendall(line.encode() + b"\n")

    def until(self, type: str) -> dict[str, Any]:
        for line in self._lines:
            event: dict[str, Any] = json.loads(line)
            self.heard.append(event["msg"]["type"])
            if event["msg"]["type"] == type:
                return event
        raise AssertionError(f"the connection ended before {type}")

    def close(self) -> None:
        self._lines.close()
        self._socket.close()


def test_reader_of_the_page_runs_its_example_and_outlives_a_killed_gateway(
    machine: Machine, tmp_path: Path
) -> None:
    lines = re.findall(r'^\{"id":"\d","op":.*\}$', PAGE.read_text(), re.M)
    path = tmp_path / "g.sock"
    with machine.behaving("echo") as user, working(user):
        with serving(user, "--listen", f"unix://{path}") as (gateway, said):
            assert said == f"unix://{path}"
            client = Client(path)
            client.send(lines[0][:-1] + ',"with_seq":true}')
            configured = client.until("session_configured")
            client.send(lines[1])
            started = client.until("task_started")
            gateway.kill()
            client.close()
        with serving(user, "--listen", f"unix://{path}") as (gateway, said):
            client = Client(path)
            attach = {"type": "configure_session", "session_id": configured["msg"]["session_id"]}
            client.send(json.dumps({"id": "3", "op": attach, "last_event": started["seq"]}))
            assert "count to two" in client.until("task_complete")["msg"]["last_agent_message"]
            gateway.send_signal(signal.SIGTERM)
            assert gateway.wait(10) == 0
            assert not path.exists()
            client.close()


def test_reader_of_the_page_types_its_lines_to_nc(machine: Machine, tmp_path: Path) -> None:
    nc = shutil.which("nc")
    if nc is None:
        pytest.skip("nc is not here: apt-get install netcat-openbsd")
    lines = re.findall(r'^\{"id":"\d","op":.*\}$', PAGE.read_text(), re.M)
    path = tmp_path / "g.sock"
    with (
        machine.behaving("echo") as user,
        working(user),
        serving(user, "--listen", f"unix://{path}"),
        subprocess.Popen(
            [nc, "-U", str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as typed,
    ):
        assert typed.stdin is not None
        assert typed.stdout is not None
        typed.stdin.write("\n".join([*lines[:2], ""]))
        typed.stdin.flush()
        told = (json.loads(line)["msg"] for line in typed.stdout)
        done = next(said for said in told if said["type"] == "task_complete")
        assert "count to two" in done["last_agent_message"]
        typed.kill()


def test_address_beyond_loopback_without_tls_is_refused_with_the_reason(machine: Machine) -> None:
    refused = machine.run("serve", "--listen", "ws://0.0.0.0:0")
    assert refused.returncode == 2
    assert "unencrypted" in refused.stderr
    assert "gateway.tls_certificate" in refused.stderr
