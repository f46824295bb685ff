"""A preloaded command has a folder, an environment, descriptors and signals of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from tests.started import COMMAND, Started, create_started


def environ(home: Path, **more: str) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "HOME": str(home), "DENDRO_HOME": str(home / "data"), **more}


def said(words: list[str], folder: Path, env: dict[str, str]) -> tuple[int, str, str]:
    with Started([*COMMAND, *words], stdout=-1, stderr=-1, text=True, cwd=folder, env=env) as process:
        stdout, stderr = process.communicate()
    return process.returncode, stdout, stderr


def held_by(process: subprocess.Popen[bytes]) -> list[str]:
    """The files that a process has open; it may open and close others meanwhile."""
    held = []
    for link in Path(f"/proc/{process.pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            held.append(str(link.readlink()))
    return held


@pytest.fixture
def stub(tmp_path: Path) -> subprocess.Popen[bytes]:
    """A command that serves until it is told to end."""
    return Started([*COMMAND, "model-stub"], stdout=-1, cwd=tmp_path, env=environ(tmp_path))


def test_command_says_and_ends_as_a_new_python_does(tmp_path: Path) -> None:
    (tmp_path / "dendro.toml").write_text("nonsense = 1\n")
    for words in (["run", " "], ["no-such-command"]):
        env = environ(tmp_path, COLUMNS="90")
        new = subprocess.run([*COMMAND, *words], capture_output=True, text=True, cwd=tmp_path, env=env)
        assert said(words, tmp_path, env) == (new.returncode, new.stdout, new.stderr)


def test_commands_are_started_by_several_threads_at_once(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as people:
        runs = [people.submit(said, ["run", " "], tmp_path, environ(tmp_path)) for _ in range(16)]
        assert {run.result()[0] for run in runs} == {2}


def test_command_is_in_its_folder_with_its_environment_alone(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "dendro.toml").write_text("nonsense = 1\n")
    assert "nonsense" in said(["run", " "], tmp_path / "a", environ(tmp_path))[2]
    assert "nonsense" not in said(["run", " "], tmp_path, environ(tmp_path))[2]
    refused = said(["run", " "], tmp_path, environ(tmp_path, DENDRO_WORKER_CONCURRENCY="0"))[2]
    assert "at least 1" in refused
    assert "at least 1" not in said(["run", " "], tmp_path, environ(tmp_path))[2]


def test_command_is_a_child_of_the_test_and_holds_nothing_else_open(
    stub: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    with stub as process, (tmp_path / "mine").open("w"):
        assert process.stdout is not None
        process.stdout.readline()
        status = Path(f"/proc/{process.pid}/status").read_text()
        assert f"PPid:\t{os.getpid()}\n" in status
        held = held_by(process)
        process.kill()
        assert not [path for path in held if path.startswith(str(tmp_path)) or "memfd" in path]
        assert process.wait() == -signal.SIGKILL


async def test_loop_waits_for_a_command_and_reads_it_as_any_process(tmp_path: Path) -> None:
    given = {"stdout": subprocess.PIPE, "cwd": tmp_path, "env": environ(tmp_path)}
    process = await create_started(*COMMAND, "model-stub", **given)
    assert process.stdout is not None
    assert (await process.stdout.readline()).startswith(b"http://")
    assert b"tests.preloaded" in Path(f"/proc/{process.pid}/cmdline").read_bytes()
    process.terminate()
    assert await process.wait() == 0


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 0), (signal.SIGUSR1, -10)])
def test_signal_reaches_a_command(stub: subprocess.Popen[bytes], number: signal.Signals, code: int) -> None:
    with stub as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(number)
        assert process.wait() == code


def test_command_whose_python_reads_another_environment_is_a_new_python(tmp_path: Path) -> None:
    with Started(
        [*COMMAND, "model-stub"], stdout=-1, cwd=tmp_path, env=environ(tmp_path, PYTHONUTF8="1")
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        words = Path(f"/proc/{process.pid}/cmdline").read_text().split("\0")
        process.kill()
    assert words[1:4] == ["-m", "orchestrator.cli.main", "model-stub"]
    assert words[0] == sys.executable


def test_command_finds_the_confinements_of_its_own_path(tmp_path: Path) -> None:
    there, without = (
        next(
            it["detail"]
            for it in json.loads(said(["doctor", "--json"], tmp_path, environ(tmp_path, PATH=path))[1])
            if it["name"] == "sandbox"
        )
        for path in (os.environ["PATH"], "/nonexistent")
    )
    assert "no bwrap on PATH" in without
    assert "no bwrap on PATH" not in there


@pytest.mark.parametrize("mask", [0, 0o077])
def test_command_has_the_umask_that_it_was_given(tmp_path: Path, mask: int) -> None:
    stub = Started([*COMMAND, "model-stub"], stdout=-1, cwd=tmp_path, env=environ(tmp_path), umask=mask)
    with stub:
        assert stub.stdout is not None
        assert stub.stdout.readline()
        status = Path(f"/proc/{stub.pid}/status").read_text()
        stub.kill()
    assert f"Umask:\t{mask:04o}\n" in status


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_command_of_another_user_has_its_rights_and_no_other(tmp_path: Path) -> None:
    nobody = 65534
    stub = Started([*COMMAND, "model-stub"], stdout=-1, cwd="/", env=environ(tmp_path), user=nobody)
    with stub:
        assert stub.stdout is not None
        assert stub.stdout.readline()
        status = Path(f"/proc/{stub.pid}/status").read_text()
        stub.kill()
    told = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert told["Uid"].split() == told["Gid"].split() == [str(nobody)] * 4
    assert told["Groups"].split() == []
    assert {int(told[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")} == {0}
