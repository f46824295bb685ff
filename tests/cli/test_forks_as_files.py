"""A fork's files hold the conversation that it inherited: whoever opens one needs nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.machine import Machine, says
from tests.cli.parked_tree import HISTORIAN, PROMPT, parked_tree
from tests.cli.test_mcp import proto, requests

pytestmark = pytest.mark.realredis


def history(machine: Machine, source: str) -> str:
    """The conversation that a replay folds, as JSON."""
    done = machine.run("replay", source, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    return json.dumps(json.loads(done.stdout)["state"]["history"])


def test_fork_is_exported_imported_and_replayed_with_its_whole_history(machine: Machine) -> None:
    with parked_tree(machine) as found:
        user, session = found.machine, found.agent(HISTORIAN)["session_id"]
        [written] = Path(user.environ["DENDRO_HOME"]).glob(f"sessions/*/*/*/*-{session}.jsonl")
        found.says("export", session, "fork.jsonl")
        for file in (str(written), "fork.jsonl"):
            assert "entries follow from each other" in found.says("verify", file)
            told = history(user, file)
            assert PROMPT in told, "what the parent was told first"
            assert '"inherited"' not in told
            imported = found.says("import", file).strip()
            assert history(user, imported) == told
        text = Path(user.folder, "fork.jsonl").read_text()
        Path(user.folder, "altered.jsonl").write_text(text.replace(PROMPT, "Do something else.", 1))
        done = user.run("verify", "altered.jsonl")
        assert (done.returncode, "BROKEN" in done.stdout) == (1, True)


@pytest.mark.slow
def test_conversation_that_was_put_back_is_in_the_file_of_its_session(machine: Machine) -> None:
    reads = {"items": [{"call": "shell", "args": {"command": ["cat", "large.txt"]}}]}
    (machine.folder / "large.txt").write_text("a large output " * 600)
    answers = (reads, says("one"), says("a summary"), says("two"), says("three"))
    with machine.model(*answers) as user:
        with proto(user) as client:
            client.say("first")
            mark = client.until("task_complete")["msg"]["response_id"]
            session = client.all("session_configured")[0]["msg"]["session_id"]
            client.send("k", type="compact")
            client.until("task_complete")
            words = [{"type": "text", "text": "instead"}]
            client.send("u2", type="user_input", items=words, last_response_id=mark)
            client.until("task_complete")
        for command in (("verify", session), ("replay", session), ("export", session, "talk.jsonl")):
            done = user.run(*command)
            assert done.returncode == 0, done.stdout + done.stderr
        assert "entries follow from each other" in user.run("verify", "talk.jsonl").stdout
        imported = user.run("import", "talk.jsonl").stdout.strip()
        with proto(user, front=("--resume", imported)) as client:
            client.send("u3", type="user_input", items=[{"type": "text", "text": "on"}])
            client.until("task_complete")
        before, after = (request["body"]["input"] for request in requests(user)[-2:])
    assert after[: len(before)] == before
    assert "a large output a large output" in json.dumps(after)
