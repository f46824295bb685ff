"""The stub's `tree` behaviour, as a user meets it: `dendro proto`, real processes, real commands.

One root and eight agents, two levels deep: a fork, one that asks, one that is interrupted
with a message, one that fails; one merged report.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cli.machine import Machine, dendro
from tests.servers import RedisServer
from tests.started import Started

pytestmark = [pytest.mark.realredis, pytest.mark.slow]
GIT = ["git", "-c", "user.name=A", "-c", "user.email=a@example.com", "-c", "init.defaultBranch=main"]


@pytest.fixture
def machine(tmp_path: Path, redis_server: RedisServer) -> Machine:
    """A machine whose workspace is a repository of three folders."""
    with redis_server.client() as client:
        client.flushall()
    machine = Machine.at(tmp_path, redis_server.url)
    for folder, files in (("core", 5), ("tests", 4), ("docs", 3)):
        (machine.folder / folder).mkdir()
        for n in range(files):
            (machine.folder / folder / f"{n}.txt").write_text(f"line of {folder}\n" * (n + 1))
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "the first and last change"]):
        subprocess.run([*GIT, *words], cwd=machine.folder, check=True, env=machine.environ)
    return machine


@contextmanager
def stub(machine: Machine) -> Iterator[Machine]:
    """The machine with the model stub's tree behaviour for a model."""
    command = dendro("model-stub", "--behaviour", "tree")
    with Started(command, stdout=subprocess.PIPE, text=True, env=machine.environ) as process:
        assert process.stdout is not None
        try:
            yield machine.under(OPENAI_BASE_URL=process.stdout.readline().strip(), OPENAI_API_KEY="none")
        finally:
            process.terminate()


class Proto:
    """A client of `dendro proto`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.events: list[dict[str, Any]] = []

    def say(self, submission: str, **op: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"id": submission, "op": op}) + "\n")
        self._process.stdin.flush()

    def until(self, type: str) -> dict[str, Any]:
        """Reads up to the first event of this type."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            event = json.loads(line)
            self.events.append(event["msg"])
            if event["msg"]["type"] == type:
                return dict(event["msg"])
        raise AssertionError(f"no {type} came; last: {self.events[-5:]}")

    def told(self, event: str) -> list[dict[str, Any]]:
        return [msg for msg in self.events if msg.get("event") == event]


@contextmanager
def proto(machine: Machine) -> Iterator[Proto]:
    process = Started(
        dendro("proto"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=machine.folder,
        env=machine.environ,
    )
    try:
        yield Proto(process)
    finally:
        process.kill()
        process.communicate()


@pytest.mark.timeout(120)
def test_root_divides_a_repository_and_merges_one_report(machine: Machine) -> None:
    with stub(machine) as served, proto(served) as client:
        client.say("u1", type="user_input", items=[{"type": "text", "text": "Divide this; write TREE.md."}])
        asked = client.until("exec_approval_request")
        assert asked["agent_path"].count("/") == 1
        client.say("a1", type="exec_approval", id=asked["call_id"], decision="approved")
        done = client.until("task_complete")
    assert "TREE.md has it all" in done["last_agent_message"], done
    report = (machine.folder / "TREE.md").read_text()
    for section in ("## core", "## tests", "## docs", "## historian", "## asker", "## waiter", "## failing"):
        assert section in report
    assert "core: 5 files" in report
    assert "line of core" in report, "the reader's words, two levels down"
    assert "the first and last change" in report
    assert "It ended early (failed)" in report
    created = [msg["subagent"] for msg in client.told("created")]
    assert len(created) == 8
    assert {made["origin"] for made in created} == {"spawn", "fork"}
    assert max(made["agent_path"].count("/") for made in created) == 2
    final = {msg["agent_id"]: msg["status"] for msg in client.told("status")}
    assert sorted(final.values()) == ["failed", *["idle"] * 7]
