"""The commands of docs/workspaces.md, in a checkout of a person's, with a model that plays the agent."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.cli.machine import Machine, kinds, says
from tests.folders.workshop import git

pytestmark = pytest.mark.realredis

PAGE = (Path(__file__).parents[2] / "docs/workspaces.md").read_text()
BLOCKS = re.findall(r"<!-- run -->\n```sh\n(.*?)```", PAGE, re.DOTALL)
WRITE = 'echo "Hello!" >> README.md; echo "print(\'Hello!\')" > hello.py'
AGENT = ({"items": [{"call": "shell", "args": {"command": ["bash", "-c", WRITE]}}]}, says("It says hello."))


def test_person_types_the_page_and_has_the_agents_work_in_three_ways(machine: Machine) -> None:
    checkout = repository(machine)
    (checkout / "notes.txt").write_text("not committed\n")
    names = {
        f"GIT_{who}_{what}": "p@x.example" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")
    }
    with machine.model(*AGENT) as user:
        reader = Reader(user.under(DENDRO_APPROVAL_POLICY="never", **names))
        told = [reader.types(line) for block in BLOCKS for line in block.splitlines()]
    assert "+2 −0 in 2 files" in told[1], "the list says how much it changed"
    assert (checkout / "README.md").read_text() == "# Small\nHello!\n"
    assert git(checkout, "show", "hello:hello.py") == b"print('Hello!')\n"
    assert (checkout.parent / "hello/notes.txt").read_text() == "not committed\n"
    assert (checkout.parent / "before/README.md").read_text() == "# Small\n"
    assert git(checkout, "status", "--porcelain").splitlines() == [
        b" M README.md",
        b"?? hello.py",
        b"?? notes.txt",
    ]


def repository(machine: Machine) -> Path:
    """A person's checkout with one commit."""
    (machine.folder / "README.md").write_text("# Small\n")
    for words in (["init", "-q", "-b", "main"], ["add", "."], ["commit", "-q", "-m", "First"]):
        git(machine.folder, *words)
    return machine.folder


def test_work_is_merged_at_the_end_of_a_task_whose_events_stay_ndjson(machine: Machine) -> None:
    checkout = repository(machine)
    with machine.model(*AGENT) as user:
        user = user.under(DENDRO_APPROVAL_POLICY="never")
        done = user.run("run", "--portable", "--apply", "--json", "Say hello.")
    assert done.returncode == 0, done.stderr
    assert kinds(done.stdout)[-1] == "task_complete"
    assert f"{checkout}: 2 files changed" in done.stderr
    assert (checkout / "README.md").read_text() == "# Small\nHello!\n"
    assert user.run("run", "--apply", "hello").returncode == 2


class Reader:
    """A person who types what stands on the page, with the id and the entry of their own session."""

    def __init__(self, user: Machine) -> None:
        self._user = user
        self._known: dict[str, str] = {}

    def types(self, line: str) -> str:
        """Types a line, and answers what it says."""
        for name, known in self._known.items():
            line = re.sub(rf"\b{name}\b", known, line)
        done = self._user.run(*shlex.split(line)[1:])
        assert done.returncode == 0, f"{line}: {done.stdout}{done.stderr}"
        if "run" in line:
            self._known["ID"] = self._user.session_ids()[0]
        if "--entries" in line:
            self._known["SEQ"] = done.stdout.split()[0]
        return done.stdout
