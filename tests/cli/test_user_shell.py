"""People's own commands in whole processes: run, confined, interrupted, lost with their worker, typed."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.cli.machine import Machine, says
from tests.cli.test_mcp import Client, proto, requests, worker
from tests.mcp.serving import Fifo, fifo

__all__ = ["fifo"]

pytestmark = [pytest.mark.realredis, pytest.mark.slow]

NEVER = ("-c", "approval_policy=never")
WRITES = (*NEVER, "-c", "sandbox_mode=workspace-write")


def runs(client: Client, id: str, command: str) -> None:
    client.send(id, type="run_user_shell_command", command=command)


def told(request: dict[str, Any]) -> list[str]:
    """The results of commands that a request of the model holds."""
    body = request.get("body", request)
    texts = [item["content"][0]["text"] for item in body["input"] if item.get("role") == "user"]
    return [text for text in texts if text.startswith("<user_shell_command>")]


def test_command_of_a_person_runs_in_the_session_and_the_model_reads_it_next(machine: Machine) -> None:
    with machine.model(says("I see.")) as user, proto(user, *NEVER, "-c", "sandbox_mode=read-only") as client:
        runs(client, "r1", "echo $((6*7)); touch made.txt")
        begin = client.until("exec_command_begin")
        end = client.until("exec_command_end")["msg"]
        over = client.until("task_complete")
        assert (begin["id"], over["id"], over["msg"]["last_agent_message"]) == ("r1", "r1", None)
        assert begin["msg"]["source"] == end["source"] == "user_shell"
        assert begin["msg"]["command"][1:] == ["-lc", "echo $((6*7)); touch made.txt"]
        assert begin["msg"]["cwd"] == str(machine.folder)
        assert end["stdout"] == "42\n"
        assert end["exit_code"] == 1, "the session's sandbox is read-only"
        assert not (machine.folder / "made.txt").exists()
        client.say("What came of it?")
        client.until("task_complete")
        (text,) = told(requests(user)[0])
    assert text.startswith("<user_shell_command>\n<command>\necho $((6*7)); touch made.txt\n</command>")
    assert "Exit code: 1\n" in text
    assert "Output:\n42\n" in text


def test_interrupted_command_is_killed(machine: Machine, fifo: Fifo) -> None:
    with machine.model(says("I see.")) as user, proto(user, *NEVER) as client:
        runs(client, "r1", f"echo begun > {fifo.path}; sleep 60")
        assert fifo.path.read_text() == "begun\n"
        client.send("i1", type="interrupt")
        assert client.until("turn_aborted")["msg"]["reason"] == "interrupted"
        client.say("And?")
        client.until("task_complete")
        assert "aborted by user after" in told(requests(user)[0])[0]


def test_command_of_a_killed_worker_is_in_doubt_and_is_not_run_again(machine: Machine, fifo: Fifo) -> None:
    killing = machine.buried.model(says("I see."))
    with killing as user, proto(user, *NEVER, front=("--no-worker",)) as client:
        with worker(user, *NEVER) as first:
            runs(client, "r1", f"echo begun > {fifo.path}; sleep 60")
            assert fifo.path.read_text() == "begun\n"
            first.send_signal(signal.SIGKILL)
            first.wait(30)
        with worker(user, *NEVER):
            end = client.until("exec_command_end")["msg"]
            client.until("warning")
            assert client.until("task_complete")["id"] == "r1"
            client.say("And?")
            client.until("task_complete")
            assert "in doubt: the worker was lost" in told(requests(user)[0])[0]
    assert end["exit_code"] == -1
    assert len(client.all("exec_command_begin")) == 1


def test_person_types_a_command_into_a_conversation(machine: Machine) -> None:
    with machine.model(says("It holds a note.")) as user, user.terminal("run", *WRITES) as person:
        person.wait_for("/help shows words")
        person.type("!echo one > note; cat note | tr a-z A-Z\r")
        person.wait_for("ONE")
        person.wait_for("— ")
        person.type("what is in it?\r")
        person.wait_for("It holds a note.")
        person.type("/quit\r")
        assert person.exit_code() == 0
        assert "cat note" in told(requests(user)[0])[0]


def test_command_that_would_stop_the_agent_is_not_taken(machine: Machine, fifo: Fifo) -> None:
    script = f"echo begun > {fifo.path}; cat {fifo.path}"
    step = {"items": [{"call": "shell", "args": {"command": ["sh", "-c", script], "timeout_ms": 60_000}}]}
    with machine.model(step, says("done")) as user, user.terminal("run", *NEVER) as person:
        person.wait_for("/help shows words")
        person.type("go\r")
        assert Path(fifo.path).read_text() == "begun\n"
        person.type("!rm -rf build\r")
        person.wait_for("would stop it: ")
        Path(fifo.path).write_text("on\n")
        person.wait_for("done")
        person.type("/quit\r")
        assert person.exit_code() == 0


def test_models_are_listed_from_the_settings(machine: Machine) -> None:
    home = Path(machine.environ["DENDRO_HOME"])
    home.mkdir()
    (home / "dendro.toml").write_text(
        'model = "gpt-5"\n[model_prices."gpt-5"]\ninput = 1.0\n'
        '[model_prices."codex-mini-latest"]\ninput = 1.0\n'
    )
    with machine.model(says("never asked")) as user, proto(user) as client:
        client.send("o1", type="override_turn_context", model="llama")
        client.send("m1", type="list_models")
        listed = client.until("list_models_response")
    assert listed["id"] == "m1"
    assert json.loads(json.dumps(listed["msg"]["models"])) == [
        {"model": "gpt-5", "model_provider": "openai", "is_default": True, "context_window": 272_000},
        {"model": "llama", "model_provider": "openai", "is_default": False},
        {"model": "codex-mini-latest", "is_default": False, "context_window": 200_000},
    ]
