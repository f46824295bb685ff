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


ASKING = """
import json, sys
from openai_codex.client import CodexClient, CodexConfig

heard = []

def decide(method, params):
    heard.append([method, params["command"], params["reason"]])
    return {"decision": "accept"}

config = CodexConfig(launch_args_override=tuple(sys.argv[1:]))
with CodexClient(config=config, approval_handler=decide) as codex:
    codex.initialize()
    words = {"approvalPolicy": "on-request", "sandbox": "workspace-write"}
    thread = codex.thread_start(words).thread.id
    turn = codex.turn_start(thread, "Build it.").turn.id
    codex.wait_for_turn_completed(turn)
print(json.dumps(heard))
"""


def test_python_sdk_gives_its_handler_where_a_command_would_run_before_the_models_words(
    machine: Machine,
) -> None:
    sdk = from_pypi("openai-codex", "0.163.0")
    escalated = {
        "command": ["touch", "made.txt"],
        "with_escalated_permissions": True,
        "justification": "It stays in the sandbox.",
    }
    with machine.model({"items": [{"call": "shell", "args": escalated}]}, says("Built.")) as user:
        done = subprocess.run(
            [sys.executable, "-c", ASKING, *dendro("app-server", "--listen", "stdio://")],
            capture_output=True,
            text=True,
            cwd=user.folder,
            env={**user.environ, "PYTHONPATH": str(sdk)},
            timeout=2 * PATIENCE_S,
        )
    assert done.returncode == 0, done.stderr
    ((method, command, reason),) = json.loads(done.stdout)
    assert (method, command) == ("item/commandExecution/requestApproval", "touch made.txt")
    assert reason.startswith(f"OUTSIDE THE SANDBOX, in {machine.folder} on ")
    assert reason.index("with all rights of the user who runs the worker") < reason.index("the agent says: “")
    assert reason.endswith("the agent says: “It stays in the sandbox.”")
    assert (machine.folder / "made.txt").exists()
