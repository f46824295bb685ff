"""A portable session by `dendro proto` and `dendro run`, from a folder to a change that a person can see."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.sandbox.probe import probe
from orchestrator.terminal.faults import ExitCode
from tests.cli.machine import Machine, says
from tests.servers import start_redis

pytestmark = pytest.mark.realredis
NEVER = ("-c", "approval_policy=never")
SHELL = {
    "items": [{"call": "shell", "args": {"command": ["bash", "-c", "pwd; cat a; echo 2 >> a; rm gone"]}}]
}


@pytest.mark.sandbox
@pytest.mark.skipif(probe().bubblewrap is None, reason="bubblewrap does not work here")
@pytest.mark.always
def test_program_at_proto_sees_a_portable_session_leave_the_folder_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "redis").mkdir()
    with start_redis(tmp_path / "redis") as server:
        person = Machine.at(tmp_path, server.url)
        for name, text in (("a", "1\n"), ("gone", "x\n"), (".env", "hush")):
            (person.folder / name).write_text(text)
        asked = {"type": "user_input", "items": [{"type": "text", "text": "go"}]}
        with person.model(SHELL, says("done")) as user:
            ran = user.run(*NEVER, "proto", "--portable", input=json.dumps({"id": "1", "op": asked}) + "\n")
        events = [json.loads(line)["msg"] for line in ran.stdout.splitlines()]
        session = events[0]["session_id"]
        diff = person.run("diff", session, "--stat").stdout
    told = [event["message"] for event in events if event["type"] == "warning"]
    assert any(".env" in text for text in told), ran.stderr
    (ended,) = (event for event in events if event["type"] == "exec_command_end")
    assert ended["stdout"] == f"{tmp_path}/home/workspaces/{session}/workspace\n1\n"
    assert sorted(path.name for path in person.folder.iterdir()) == [".env", "a", "gone"]
    assert (person.folder / "a").read_text() == "1\n"
    assert "a" in diff
    assert "gone" in diff


def test_person_who_asks_for_what_does_not_go_together_is_told_so(tmp_path: Path) -> None:
    person = Machine.at(tmp_path)
    for words, why in (
        (("run", "--from", "https://x/a.git", "go"), "add --portable"),
        (("run", "--portable", "--resume", "0199a2b4", "go"), "keeps its folder"),
        (("proto", "--portable", "--resume", "0199a2b4"), "keeps its folder"),
    ):
        done = person.run(*words)
        assert done.returncode == ExitCode.USAGE
        assert why in done.stderr
