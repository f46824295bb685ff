"""Set-ups of portable folders, as a person meets them: given, trusted, failing, and killed in the middle."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from subprocess import PIPE

import pytest

from orchestrator.sandbox.probe import probe
from tests.cli.machine import PATIENCE_S, Machine, dendro, says
from tests.cli.test_workspaces_page import repository

pytestmark = [
    pytest.mark.realredis,
    pytest.mark.sandbox,
    pytest.mark.skipif(probe().bubblewrap is None, reason="bubblewrap does not work here"),
]
LOOK = {"items": [{"call": "shell", "args": {"command": ["bash", "-c", "cat deps/*; git status -s"]}}]}


def events_of(stdout: str, kind: str) -> list[dict[str, object]]:
    found = [json.loads(line)["msg"] for line in stdout.splitlines()]
    return [event for event in found if event["type"] == kind]


def test_setup_installs_ignored_files_that_commands_see_and_its_changes_are_in_the_diff(
    machine: Machine,
) -> None:
    checkout = repository(machine)
    (checkout / ".gitignore").write_text("deps/\n")
    script = checkout.parent / "install.sh"
    script.write_text("mkdir deps && echo installed > deps/one && echo locked > lock\n")
    with machine.model(LOOK, says("done")) as user:
        # The file that is named counts, and not the script of the settings.
        user = user.under(DENDRO_APPROVAL_POLICY="never", DENDRO_WORKSPACE_SETUP_SCRIPT="exit 9")
        done = user.run("run", "--portable", "--setup", str(script), "--json", "Look.")
        session = user.session_ids()[0]
        diff = user.run("diff", session, "--stat").stdout
    assert done.returncode == 0, done.stderr
    (ended,) = events_of(done.stdout, "exec_command_end")
    assert str(ended["stdout"]).startswith("installed\n")
    told = [str(event["message"]) for event in events_of(done.stdout, "background_event")]
    assert "setting up the folder" in told[0]
    assert "the folder is set up" in told[1]
    assert "lock" in diff
    assert "deps" not in diff
    assert not (checkout / "lock").exists()


def test_folders_own_setup_is_named_until_it_is_trusted_and_fails_the_task_with_its_output(
    machine: Machine,
) -> None:
    checkout = repository(machine)
    own = checkout / ".dendro/setup.sh"
    own.parent.mkdir()
    own.write_text("echo no such package >&2\nexit 3\n")
    with machine.model(LOOK, says("done")) as user:
        user = user.under(DENDRO_APPROVAL_POLICY="never")
        untrusted = user.run("run", "--portable", "--json", "Look.")
    assert untrusted.returncode == 0, untrusted.stderr
    (warned,) = events_of(untrusted.stdout, "warning")
    assert f"dendro trust {own}" in str(warned["message"])
    shown = machine.run("trust", ".dendro/setup.sh").stdout
    assert "echo no such package >&2" in shown
    with machine.model(LOOK, says("done")) as user:
        user = user.under(DENDRO_APPROVAL_POLICY="never")
        failed = user.run("run", "--portable", "--json", "Look.")
    assert failed.returncode == 1
    (error,) = events_of(failed.stdout, "error")
    assert ".dendro/setup.sh ended with exit code 3. It said:\nno such package" in str(error["message"])
    assert events_of(failed.stdout, "exec_command_begin") == []


def test_setup_that_is_killed_in_the_middle_runs_again_in_a_folder_made_anew(machine: Machine) -> None:
    checkout = repository(machine)
    (checkout / ".gitignore").write_text("deps/\n")
    script = checkout.parent / "install.sh"
    first = '[ -n "$AGAIN" ] || { mkdir deps; touch begun; exec sleep 600; }'
    script.write_text(f"{first}\nmkdir deps && echo installed > deps/one && [ ! -e begun ]\n")
    soon = [word for key in ("lease_s=2", "trust_s=1.5", "renew_s=0.5") for word in ("-c", f"worker.{key}")]
    with machine.buried.model(LOOK, says("done")) as user:
        user = user.under(DENDRO_APPROVAL_POLICY="never", DENDRO_POOL="default")
        asked = dendro("run", "--portable", "--no-worker", "--setup", str(script), "--json", "Look.")
        with (
            user.start(dendro(*soon, "worker"), cwd=user.folder, env=user.environ) as lost,
            user.start(asked, cwd=user.folder, env=user.environ, stdout=PIPE, text=True) as ran,
        ):
            copies = Path(user.environ["DENDRO_HOME"]) / "workspaces/copies"
            wait_for(lambda: next(iter(copies.glob("*/folder/begun")), None))
            lost.kill()
            again = user.under(AGAIN="1")
            with again.start(dendro(*soon, "worker"), cwd=again.folder, env=again.environ) as worker:
                stdout, _ = ran.communicate(timeout=PATIENCE_S)
                worker.terminate()
    assert ran.returncode == 0
    (ended,) = events_of(stdout, "exec_command_end")
    assert str(ended["stdout"]).startswith("installed\n")
    assert any("broken off with its worker" in str(each["message"]) for each in events_of(stdout, "warning"))


def wait_for(look: Callable[[], Path | None]) -> Path:
    until = time.monotonic() + PATIENCE_S
    while (found := look()) is None:
        assert time.monotonic() < until
        time.sleep(0.02)
    return found
