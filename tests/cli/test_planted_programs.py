"""An agent, or a stranger, plants programs where a person's PATH or git looks for them: real processes.

The project lies beside the checkout: what is below a temporary folder counts as writable in any case.
"""

from __future__ import annotations

import functools
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.sandbox.probe import probe
from tests.cli.machine import Machine, says
from tests.machines.host import started_in
from tests.servers import debian_redis, required
from tests.started import Started

NOBODY = 65534
SYSTEM = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
MINE = ("git", "cat", "bwrap", "redis-server", "valkey-server", "sh", "bash", "python3", "ps", "uname", "env")
"""Programs that the agent plants. Each leaves a mark where no confined command may write."""

pytestmark = [
    pytest.mark.realredis,
    pytest.mark.sandbox,
    pytest.mark.slow,
    pytest.mark.skipif(probe().bubblewrap is None, reason="bubblewrap does not work here"),
]


def calls(tool: str, **args: Any) -> dict[str, Any]:
    return {"items": [{"call": tool, "args": args}]}


@pytest.fixture
def root() -> Iterator[Path]:
    checkout = Path(__file__).parents[2]
    # Confined commands write to temporary folders, where their marks would look like those of others.
    outside = "/var/tmp" if checkout.is_relative_to("/tmp") else checkout
    made = Path(tempfile.mkdtemp(prefix=".planted-", dir=outside))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


OPEN_PYTHON = """
set -e
/bin/mount --bind {kept} /mnt
/bin/mount -t tmpfs -o mode=755 none {closed}
/bin/mkdir -p {kept}
/bin/mount --move /mnt {kept}
exec "$@"
"""
"""Lets other users reach an interpreter that lies in a closed home folder, in a mount namespace."""


@contextmanager
def as_nobody() -> Iterator[Callable[..., subprocess.Popen[Any]]]:
    """Starts commands as a user without privileges."""
    python = Path(sys.base_prefix)
    closed = next((it for it in (*python.parents[::-1], python) if not it.stat().st_mode & 0o001), None)
    if closed is None:
        yield functools.partial(Started, user=NOBODY)
        return
    script = OPEN_PYTHON.format(kept=shlex.quote(str(python)), closed=shlex.quote(str(closed)))
    words = ["/usr/bin/unshare", "-m", "/bin/sh", "-c", script, "sh", "sh", "-c", "echo; exec sleep infinity"]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"\n"
        yield functools.partial(started_in(holder.pid, ["mnt"]), user=NOBODY)
        holder.kill()


@pytest.fixture(params=[os.geteuid(), NOBODY], ids=["this user", "nobody"])
def person(request: pytest.FixtureRequest, root: Path) -> Iterator[Machine]:
    """A person in a project whose environment is activated, with the private server."""
    dropped = request.param != os.geteuid()
    if dropped and os.geteuid() != 0:
        pytest.skip("only root can become another user")
    required(debian_redis(), "redis-server")
    machine = Machine.at(root).buried
    (root / "marks").mkdir()
    (root / ".gitconfig").write_text("[user]\n\tname = Ann\n\temail = ann@example.invalid\n")
    bin = machine.folder / ".venv/bin"
    bin.mkdir(parents=True)
    (bin.parent / "pyvenv.cfg").touch()
    path = ":".join((str(bin), *SYSTEM))
    machine = machine.under(PATH=path, VIRTUAL_ENV=str(bin.parent))
    if not dropped:
        yield machine
        return
    for owned in (root, *root.rglob("*")):
        os.chown(owned, NOBODY, NOBODY)
    with as_nobody() as start:
        yield replace(machine, start=start)


def trap(marks: Path) -> str:
    return f'#!/bin/sh\n: > "{marks}/${{0##*/}}"\nexit 1\n'


def plant_all(machine: Machine) -> None:
    """Every name of a program of this machine, as the agent has left it."""
    bin = machine.folder / ".venv/bin"
    program = bin / "trap"
    program.write_text(trap(machine.folder.parent / "marks"))
    program.chmod(0o755)
    for name in {path.name for folder in SYSTEM for path in Path(folder).iterdir()}:
        (bin / name).symlink_to("trap")


def marks(machine: Machine) -> list[str]:
    """The planted programs that ran outside of the sandbox."""
    return sorted(path.name for path in (machine.folder.parent / "marks").iterdir())


def patch_of(machine: Machine) -> str:
    text = trap(machine.folder.parent / "marks")
    lines = "".join(f"+{line}\n" for line in text.splitlines())
    files = "".join(f"*** Add File: .venv/bin/{name}\n{lines}" for name in MINE)
    return f"*** Begin Patch\n{files}*** End Patch"


def seen(ran: subprocess.CompletedProcess[str]) -> str:
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout + ran.stderr


def playing(*steps: dict[str, Any], text: str = "done") -> str:
    """A root that does these steps, then makes an agent in a copy of its folder, and waits for it."""
    spawn = calls("subagent_spawn", label="one", prompt="one", workspace="own")
    child = {"label": "one", "steps": [calls("shell", command=["/bin/ls", "-a"]), says("looked")]}
    whole = [*steps, spawn, calls("subagent_await"), says(text)]
    return json.dumps({"steps": whole, "agents": [child]})


def outputs(told: str) -> list[str]:
    """The output of the commands of the agents, and how they ended."""
    events = [json.loads(line)["msg"] for line in told.splitlines() if line.startswith("{")]
    return [event["stdout"] for event in events if event["type"] == "exec_command_end"]


def portable_session(user: Machine, *words: str) -> str:
    ran = seen(user.run("run", "--portable", "--json", "go", *words))
    events = [json.loads(line)["msg"] for line in ran.splitlines() if line.startswith("{")]
    return next(str(event["session_id"]) for event in events if event["type"] == "session_configured")


def test_programs_that_an_agent_plants_first_on_the_path_never_run_outside(person: Machine) -> None:
    git(person, "init", "-q", "-b", "main")
    git(person, "commit", "-q", "--allow-empty", "-m", "first")
    planted = [
        calls("apply_patch", input=patch_of(person)),
        calls("shell", command=["/bin/chmod", "-R", "+x", ".venv/bin"]),
        calls("shell", command=[f"{person.folder}/.venv/bin/cat"]),
    ]
    with person.playing(playing(*planted)) as user:
        told = seen(user.run("run", "go", "--json"))
        user.run("doctor")
    assert (person.folder / ".venv/bin/git").stat().st_mode & 0o111, told
    assert "looked" in told, told
    assert marks(person) == []


NOBODY_BY_NIGHT = pytest.mark.parametrize(
    "person",
    [
        pytest.param(os.geteuid(), id="this user"),
        pytest.param(NOBODY, id="nobody", marks=pytest.mark.night),
    ],
    indirect=True,
)
"""Long tests; with each commit, what an agent has planted is tried for nobody, too."""


@NOBODY_BY_NIGHT
def test_no_program_of_a_project_runs_outside_whatever_the_person_does_next(person: Machine) -> None:
    git(person, "init", "-q", "-b", "main")
    git(person, "commit", "-q", "--allow-empty", "-m", "first")
    plant_all(person)
    with person.playing(playing(calls("shell", command=["/bin/touch", "made"]))) as user:
        seen(user.run("run", "go", "--json"))
        session = portable_session(user)
        assert "dendro/" in seen(user.run("push", session))
        user.run("review", "--uncommitted")
        user.run("doctor")
        seen(user.run("sessions"))
    assert marks(person) == []


STRANGERS = {
    "core.repositoryFormatVersion": "1",
    "extensions.partialClone": "origin",
    "remote.origin.promisor": "true",
    "protocol.allow": "always",
    "protocol.ext.allow": "always",
    "log.showSignature": "true",
    "filter.trap.required": "true",
    "commit.gpgSign": "true",
    "core.excludesFile": "{home}/secret",
}
PROGRAMS = (
    *("gpg.program", "core.fsmonitor", "core.sshCommand", "core.editor", "core.pager", "diff.external"),
    *("core.askPass", "core.alternateRefsCommand", "credential.helper", "uploadpack.packObjectsHook"),
    *("filter.trap.clean", "filter.trap.smudge", "filter.trap.process", "diff.trap.textconv"),
)
SECRET = "swordfish-4711"


def as_a_stranger_has_made_it(person: Machine) -> None:
    """A repository from an archive, whose every setting names a program or a file of the home."""
    home = person.folder.parent
    (home / "secret").write_text(f"{SECRET}\n")
    git(person, "init", "-q", "-b", "main")
    (person.folder / ".gitattributes").write_text("* filter=trap diff=trap\n")
    (person.folder / "a.txt").write_text("a\n")
    git(person, "add", ".")
    git(person, "commit", "-q", "-m", "first")
    program = home / "trap"
    program.write_text(trap(home / "marks"))
    program.chmod(0o755)
    for hook in ("post-index-change", "pre-commit", "reference-transaction", "post-checkout"):
        for folder in (person.folder / ".git/hooks", person.folder / "hooks"):
            folder.mkdir(exist_ok=True)
            (folder / hook).symlink_to(program)
    settings = {**STRANGERS, "core.hooksPath": "hooks", "remote.origin.url": f"ext::{program}"}
    for key, value in {**settings, **dict.fromkeys(PROGRAMS, str(program))}.items():
        git(person, "config", key, value.format(home=home))


@NOBODY_BY_NIGHT
@pytest.mark.parametrize("commit", ["is there", "is missing"])
def test_repository_of_a_stranger_starts_and_tells_nothing(person: Machine, commit: str) -> None:
    as_a_stranger_has_made_it(person)
    if commit == "is missing":
        (person.folder / ".git/refs/heads/main").write_text("1" * 40 + "\n")
    look = calls("shell", command=["/bin/sh", "-c", "/bin/cat .git/info/exclude .gitignore; exit 0"])
    with person.playing(playing(look)) as user:
        told = seen(user.run("run", "go", "--json"))
        session = portable_session(user)
        told += user.run("push", session, "--branch", "theirs").stderr
        told += user.run("review", "--uncommitted").stdout + user.run("doctor").stdout
        told += user.run("logs", session).stdout
    assert marks(person) == []
    assert SECRET not in told
    assert SECRET not in "".join(outputs(told))


def git(person: Machine, *words: str) -> None:
    owner = person.folder.stat().st_uid
    environ = {"PATH": os.environ["PATH"], "HOME": str(person.folder.parent)}
    subprocess.run(["git", *words], cwd=person.folder, env=environ, user=owner, group=owner, check=True)
