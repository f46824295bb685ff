"""Portable sessions of a deployment with a key, by the commands that a person types."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from orchestrator.cli.main import app
from orchestrator.sandbox.probe import probe
from orchestrator.terminal.faults import ExitCode, Fault, explain
from orchestrator.workspaces.pack_keys import KeyUnavailable, new_file, read_keys
from tests.cli.machine import Machine, says
from tests.cli.portable import PortableLog
from tests.folders.workshop import Bench

WRITE = {"items": [{"call": "shell", "args": {"command": ["bash", "-c", "cat plain; echo more >> plain"]}}]}
LINE = "nobody who reads the store reads this line\n"


def with_key(machine: Machine, tmp_path: Path) -> Machine:
    new_file(tmp_path / "pack.keys")
    return machine.under(DENDRO_WORKSPACE_KEY_FILE=f"{tmp_path}/pack.keys", OPENAI_API_KEY="hush")


def test_person_makes_adds_and_lists_keys_and_none_is_shown(tmp_path: Path) -> None:
    file = tmp_path / "home/dendro/pack.keys"

    def said(*words: str) -> str:
        done = CliRunner().invoke(app, ["keys", *words, str(file)])
        if isinstance(done.exception, Exception):
            raise done.exception
        assert not any(key.secret.hex() in done.output for key in read_keys(file))
        return done.output

    assert f"workspace.key_file = '{file}'" in said("new")
    assert (file.parent.stat().st_mode & 0o777, file.stat().st_mode & 0o777) == (0o700, 0o600)
    with pytest.raises(Fault, match=f"dendro keys add {file}") as refused:
        said("new")
    assert explain(refused.value)[1] == ExitCode.USAGE
    added = said("add")
    listed = said("list").splitlines()
    assert [line.split("  ")[1] for line in listed] == ["writes and reads", "reads"]
    assert listed[1].split()[0] in added
    file.chmod(0o640)
    with pytest.raises(KeyUnavailable, match=f"chmod 600 {file}") as kept:
        said("list")
    assert explain(kept.value)[1] == ExitCode.USAGE


@pytest.mark.realredis
@pytest.mark.sandbox
@pytest.mark.skipif(probe().bubblewrap is None, reason="bubblewrap does not work here")
def test_folder_of_a_task_is_stored_so_that_only_the_key_reads_it(machine: Machine, tmp_path: Path) -> None:
    (machine.folder / "plain").write_text(LINE)
    keyed = with_key(machine, tmp_path)
    with keyed.model(WRITE, says("one"), WRITE, says("two")) as user:
        ran = user.run("run", "--portable", "-c", "approval_policy=never", "go")
        (session,) = user.session_ids()
        again = user.run("run", "-c", "approval_policy=never", "--resume", session, "go on")
    assert (ran.returncode, again.returncode) == (0, 0), ran.stderr + again.stderr
    packs = list((tmp_path / "home/archive").rglob("*.pack"))
    assert len(packs) == 3
    for pack in packs:
        assert pack.read_bytes().startswith(b"DENDRPK")
    assert "+more" in keyed.run("diff", session).stdout
    assert keyed.run("verify", session, "--workspaces").returncode == 0
    without = machine.run("checkout", session, "there")
    assert without.returncode == ExitCode.USAGE
    assert "set `workspace.key_file` to the deployment's" in without.stderr
    assert not (machine.folder / "there").exists()


@pytest.mark.realredis
def test_process_whose_key_file_others_can_read_does_not_begin(machine: Machine, tmp_path: Path) -> None:
    keyed = with_key(machine, tmp_path)
    (tmp_path / "pack.keys").chmod(0o644)
    for words, code in ((("worker",), ExitCode.USAGE), (("run", "--portable", "go"), ExitCode.FAILED)):
        refused = keyed.run(*words)
        assert refused.returncode == code, refused.stderr
        assert f"chmod 600 {tmp_path}/pack.keys" in refused.stderr
    assert keyed.session_ids() == []


@pytest.mark.realredis
def test_session_of_a_file_is_imported_with_its_folder_under_the_key(
    machine: Machine, tmp_path: Path
) -> None:
    keyed = with_key(machine, tmp_path)
    log = PortableLog(Bench(tmp_path / "bench"))
    log.born({"plain": LINE.encode()})
    session = log.plant(keyed)
    file = str(tmp_path / "session.jsonl")
    assert keyed.run("export", session, file, "--full").returncode == 0
    refused = machine.run("import", file)
    assert (refused.returncode, "workspace.key_file" in refused.stderr) == (ExitCode.USAGE, True)
    assert keyed.run("import", file).returncode == 0
    (copy,) = (each for each in keyed.session_ids() if each != session)
    assert keyed.run("verify", copy, "--workspaces").returncode == 0
    packs = list((tmp_path / "home/archive").rglob("*.pack"))
    assert len(packs) == 2
    assert len({pack.read_bytes() for pack in packs}) == 2, "each is bound to its own name"
