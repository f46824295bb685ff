"""The example of the model stub's page, as a reader would try it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cli.machine import Machine, says

pytestmark = pytest.mark.realredis

PAGE = Path(__file__).parents[2] / "docs/model-stub.md"


def test_reader_scripts_two_agents_and_their_root(machine: Machine) -> None:
    (example,) = re.findall(r"```json\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (machine.folder / "one.txt").touch()
    with machine.playing(example) as user:
        done = user.run("run", "Review this folder.", "-c", "approval_policy=never")
        assert done.returncode == 0, done.stderr
        assert "Two agents have reported." in done.stdout
        (root,) = {row["tree_id"] for row in user.sessions()}
        counted = user.run("logs", root, "1").stdout
        assert "$ ls | wc -l\n  1\n" in counted
        assert "The tests are counted." in counted
        assert "The documentation is read." in user.run("logs", root, "2").stdout


def test_stub_says_on_its_standard_error_that_a_scenario_calls_a_tool_that_is_not_there(
    machine: Machine, capfd: pytest.CaptureFixture[str]
) -> None:
    with machine.model({"items": [{"call": "shel"}, {"call": "shell", "args": {}}]}, says("done")) as user:
        assert user.run("run", "go", "-c", "approval_policy=never").returncode == 0
    told = [line for line in capfd.readouterr().err.splitlines() if line.startswith("dendro model-stub: ")]
    assert len(told) == 1, "of `shell` nothing is said"
    assert told[0].startswith(
        "dendro model-stub: the scenario calls `shel`, which this request does not offer: it offers "
    )
    assert ", shell, " in told[0]
