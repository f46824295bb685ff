"""A fork's files hold the conversation that it inherited: whoever opens one needs nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.machine import Machine
from tests.cli.parked_tree import HISTORIAN, PROMPT, parked_tree

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
