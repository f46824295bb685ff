"""Another user of the machine: a real one, who tries to read what commands of Dendro have written."""

from __future__ import annotations

import functools
import os
import shutil
import signal
import stat
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cli.machine import Machine, says
from tests.servers import debian_redis, required
from tests.started import Started

NOBODY = 65534
PATIENCE_S = 60
SECRET = "a word that nobody else may read"
WRITES = {"items": [{"call": "shell", "args": {"command": ["sh", "-c", f"echo '{SECRET}' > made.txt"]}}]}

pytestmark = [
    pytest.mark.realredis,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user"),
]


@pytest.fixture
def root() -> Iterator[Path]:
    """A folder that every user may enter, which pytest's are not."""
    made = Path(tempfile.mkdtemp(prefix="dendro-users-", dir="/var/tmp"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


def read_by_nobody(paths: list[Path]) -> list[Path]:
    """Those of the paths that a process of another user can read or list."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            signal.alarm(PATIENCE_S)
            for number, path in enumerate(paths):
                try:
                    os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
                except OSError:
                    continue
                os.write(writing, b"%d\n" % number)
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as answers:
        found = [paths[int(line)] for line in answers]
    assert os.waitpid(pid, 0)[1] == 0, "the other user looked at everything"
    return found


def at(root: Path, mask: int) -> Machine:
    required(debian_redis(), "redis-server")
    machine = Machine.at(root).buried
    machine.folder.chmod(0o755)
    return replace(machine, start=functools.partial(Started, umask=mask))


def used(machine: Machine) -> None:
    """Each kind of file that commands leave behind."""
    root = machine.folder.parent
    with machine.model(WRITES, says(SECRET), WRITES, says(SECRET)) as user:
        words = ("-c", "sandbox_mode=workspace-write", "-c", "approval_policy=never")
        for more in ((), ("--portable",)):
            ran = user.run("run", SECRET, *more, *words)
            assert ran.returncode == 0, ran.stderr
        for command in (
            ("export", user.session_ids()[0], str(root / "whole.jsonl"), "--full"),
            ("export", user.session_ids()[1], str(root / "rollout.jsonl")),
            ("keys", "new", str(root / "pack.keys")),
        ):
            ran = user.run(*command)
            assert ran.returncode == 0, ran.stderr
        (user.folder / "dendro.toml").write_text('model = "other"\n')
        ran = user.run("trust")
        assert ran.returncode == 0, ran.stderr


def made_by(machine: Machine) -> list[Path]:
    """All that is below the machine's folder, but the workspace, which is the person's."""
    root = machine.folder.parent
    found = [path for path in root.rglob("*") if not path.is_relative_to(machine.folder)]
    return [path for path in found if path != root / "scenario.json"]


@pytest.mark.slow
@pytest.mark.parametrize("mask", [0o022, 0])
def test_other_user_reads_nothing_that_commands_have_written(root: Path, mask: int) -> None:
    machine = at(root, mask)
    used(machine)
    paths = made_by(machine)
    kinds = ("sessions/*/*/*/*.jsonl", "archive/*/workspaces/*/*.pack", "redis/redis.conf", "trusted.json")
    missing = [kind for kind in kinds if not list((root / "home").glob(kind))]
    assert not missing, [str(path) for path in paths]
    assert {"whole.jsonl", "rollout.jsonl", "pack.keys"} <= {path.name for path in paths}
    assert read_by_nobody(paths) == []
    # Each file for itself, too: a folder may be opened one day. What lies in a copy is a command's.
    copies = root / "home" / "workspaces"
    own = [path for path in paths if not path.is_relative_to(copies) and not path.is_symlink()]
    assert [
        path for path in own if path.lstat().st_mode & 0o077 and not stat.S_ISSOCK(path.lstat().st_mode)
    ] == []


def test_other_user_would_read_what_is_left_open(root: Path) -> None:
    (root / "open").write_text("x")
    (root / "open").chmod(0o644)
    (root / "closed").write_text("x")
    (root / "closed").chmod(0o600)
    assert read_by_nobody([root / "open", root / "closed"]) == [root / "open"]


def test_home_of_an_earlier_version_is_shown_by_doctor_and_closed_by_the_next_command(root: Path) -> None:
    machine = at(root, 0o022)
    home = root / "home"
    (home / "sessions").mkdir(parents=True)
    (home / "sessions" / "old.jsonl").write_text(SECRET)
    for path in (home, home / "sessions"):
        path.chmod(0o755)
    (home / "sessions" / "old.jsonl").chmod(0o644)
    doctor = machine.run("doctor", "--json").stdout
    assert f"{home} could be read by other users of this machine (mode 755)" in doctor
    assert f"chmod 700 {home}" in doctor
    assert stat.S_IMODE(home.stat().st_mode) == 0o755, "the doctor changes nothing"
    listed = machine.run("sessions")
    assert "it is closed now (mode 700)" in listed.stderr
    assert read_by_nobody([home, *home.rglob("*")]) == []
    assert "could be read" not in machine.run("doctor", "--json").stdout


def as_nobody(act: Callable[[], object]) -> None:
    """Does something as another user."""
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            act()
        finally:
            os._exit(0)
    os.waitpid(pid, 0)


PLANTS: dict[str, Callable[[Path], object]] = {
    "dendro.toml": lambda it: it.write_text('notify = ["/bin/sh"]\nsandbox_mode = "danger-full-access"\n'),
    "rules": lambda it: it.mkdir(),
    "own/a.rules": lambda it: it.write_text('prefix_rule(pattern=["sh"])\n'),
    "sessions": lambda it: it.symlink_to("/tmp"),
}


@pytest.mark.parametrize("name", PLANTS)
def test_home_in_which_others_have_put_something_is_refused_until_it_is_removed(
    root: Path, name: str
) -> None:
    machine = at(root, 0o022)
    home, planted = root / "home", root / "home" / name
    for folder in dict.fromkeys((home, planted.parent)):
        folder.mkdir(exist_ok=True)
        folder.chmod(0o777)
    as_nobody(lambda: PLANTS[name](planted))
    for _ in range(2):
        ran = machine.run("sessions")
        assert (ran.returncode, ran.stdout) == (2, "")
        assert f"other users have put something into it: '{planted}'" in ran.stderr
        assert "remove what is not yours" in ran.stderr
    assert "could be read and changed by other users" in machine.run("doctor", "--json").stdout
    shutil.rmtree(planted) if planted.is_dir() and not planted.is_symlink() else planted.unlink()
    assert "it is closed now (mode 700)" in machine.run("sessions").stderr


def test_home_of_another_user_is_refused_by_commands_and_doctor(root: Path) -> None:
    machine = at(root, 0o022)
    (root / "home").mkdir()
    os.chown(root / "home", NOBODY, NOBODY)
    ran = machine.run("sessions")
    assert (ran.returncode, ran.stdout) == (2, "")
    assert f"{root / 'home'} belongs to another user of this machine (uid {NOBODY})" in ran.stderr
    assert "set DENDRO_HOME to a folder of your own" in ran.stderr
    doctor = machine.run("doctor", "--json")
    assert doctor.returncode == 2
    assert "belongs to another user of this machine" in doctor.stdout
    assert list((root / "home").iterdir()) == []
