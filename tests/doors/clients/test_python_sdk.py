"""Codex's own Python SDK, unchanged, over `dendro app-server`."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.cli.machine import PATIENCE_S, Machine, dendro, says
from tests.doors.clients.packages import from_pypi

pytestmark = pytest.mark.realredis

PROGRAM = """
import json, sys
from openai_codex import Codex, CodexConfig

words = tuple(sys.argv[1:])
found = {}
with Codex(config=CodexConfig(launch_args_override=words)) as codex:
    thread = codex.thread_start()
    found["first"] = thread.run("Say hello.").final_response
    turn = thread.turn("Say more.")
    found["streamed"] = [event.method for event in turn.stream()]
    found["items"] = [item.root.type for item in thread.read(include_turns=True).thread.turns[0].items]
with Codex(config=CodexConfig(launch_args_override=words)) as codex:
    again = codex.thread_resume(thread.id)
    found["second"] = again.run("Say bye.").final_response
    found["listed"] = thread.id in [each.id for each in codex.thread_list().data]
print(json.dumps(found))
"""


def test_python_sdk_runs_turns_streams_them_and_resumes_a_thread_at_another_server(machine: Machine) -> None:
    sdk = from_pypi("openai-codex", "0.163.0")
    with machine.model(says("Hello."), says("More."), says("Bye.")) as user:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, *dendro("app-server", "--listen", "stdio://")],
            capture_output=True,
            text=True,
            cwd=user.folder,
            env={**user.environ, "PYTHONPATH": str(sdk)},
            timeout=2 * PATIENCE_S,
        )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert (found["first"], found["second"]) == ("Hello.", "Bye.")
    assert found["streamed"][-1] == "turn/completed"
    assert "item/agentMessage/delta" in found["streamed"]
    assert found["items"] == ["userMessage", "agentMessage"]
    assert found["listed"]
