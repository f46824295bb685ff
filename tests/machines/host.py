"""Machines of a fleet, as processes in mount and UTS namespaces of their own.

Each has `/srv` to itself: home, temporary files, copies of workspaces. All of them see one folder of the
test's as `/mnt`, and reach servers by TCP on loopback; `dendro demo` makes its machines in the same way.
What goes wrong on a machine, goes wrong on all that it runs: `lose` is a power failure.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.demo import KINDS, lose_machine, machine_at
from tests.cli.machine import PATIENCE_S, Machine, dendro
from tests.started import Started

HOME = Path("/srv/home")
"""The home folder of a machine's one user: the same path on each, another folder."""


@dataclass(frozen=True)
class Host:
    """A machine, and its user."""

    name: str
    root: Path
    """The machine's own folders as the test sees them: `srv/…` is `/srv/…` there."""
    pid: int
    user: Machine
    network: tuple[str, ...] = ()
    """Words before a command that is to run in the machine's network, if that is not this machine's."""

    def srv(self, *parts: str) -> Path:
        """A path below `/srv` of this machine, as the test sees it."""
        return self.root.joinpath("srv", *parts)

    def under(self, **more: str) -> Host:
        """The same machine with more environment variables for its user."""
        return replace(self, user=self.user.under(**more))

    @property
    def inside(self) -> list[str]:
        """Words before a command that is to run there, as the machine's root."""
        return [*self.network, *self.from_its_network]

    @property
    def from_its_network(self) -> list[str]:
        """The same from the machine's network: no process enters its own namespace again."""
        return ["nsenter", f"--target={self.pid}", "--user", "--mount", "--uts", "--preserve-credentials"]

    def run(self, *words: str, input: str = "") -> subprocess.CompletedProcess[str]:
        """Runs a `dendro` command there to its end."""
        return self.user.run(*words, input=input)

    def says(self, *words: str) -> str:
        """The output of a command that succeeds."""
        done = self.run(*words)
        assert done.returncode == 0, f"{words} on {self.name}: {done.stdout}{done.stderr}"
        return done.stdout

    def shell(self, script: str) -> str:
        """The output of a script there, as the machine's root; fails with the script's first failure."""
        done = subprocess.run(
            [*self.inside, "bash", "-euo", "pipefail", "-c", script],
            cwd="/",
            env=dict(self.user.environ),
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.returncode == 0, f"{script}\non {self.name}: {done.stdout}{done.stderr}"
        return done.stdout

    @contextmanager
    def worker(self, *settings: str) -> Iterator[subprocess.Popen[bytes]]:
        """A worker there; it is told to leave at the end, if it is still there."""
        options = [word for setting in settings for word in ("-c", setting)]
        with self.user.start(
            dendro(*options, "worker"), cwd=self.user.folder, env=self.user.environ, stdout=subprocess.DEVNULL
        ) as process:
            while process.pid not in self.processes():
                # It is forked outside and enters; before that no failure of the machine reaches it.
                assert process.poll() is None
                time.sleep(0.005)
            try:
                yield process
            finally:
                if process.poll() is None:
                    process.terminate()

    def processes(self) -> list[int]:
        """Everything that runs there but what keeps the machine itself."""
        return [pid for pid in _running_beside(self.pid) if pid != self.pid]

    def lose(self) -> None:
        """A power failure: everything that runs there is killed, its folders stay."""
        lose_machine(self.pid, kept=(self.pid,))


@dataclass(frozen=True)
class Network:
    """A network that machines share: addresses of its own, every port of them free, no way out."""

    pid: int

    @property
    def inside(self) -> tuple[str, ...]:
        """Words before a command that is to run in it."""
        return ("nsenter", f"--target={self.pid}", "--user", "--net", "--preserve-credentials")

    @property
    def started(self) -> Any:
        """`Started`, for `dendro` commands in it."""
        return started_in(self.pid, ("user", "net"))


@contextmanager
def network(*addresses: str) -> Iterator[Network]:
    """A network with some addresses. Skips the test where namespaces cannot be had."""
    up = "".join(f"ip address add {one}/32 dev lo\n" for one in addresses)
    script = f"set -e\nip link set lo up\n{up}echo ready\nexec sleep infinity"
    with subprocess.Popen(
        ["unshare", "--user", "--map-root-user", "--net", "sh", "-c", script],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as holder:
        try:
            assert holder.stdout is not None
            if (said := holder.stdout.readline()) != "ready\n":
                _not_here(f"no network of its own can be had here: {said.strip()}")
            yield Network(holder.pid)
        finally:
            holder.kill()


@contextmanager
def host(
    root: Path, name: str, environ: Mapping[str, str], common: Path, on: Network | None = None
) -> Iterator[Host]:
    """A machine whose own folders are below `root`, with `common` as `/mnt`, on a network or on this one.

    Skips the test where namespaces cannot be had.
    """
    for folder in ("home", "tmp", "work"):
        (root / "srv" / folder).mkdir(parents=True)
    made = machine_at(root, name, [("srv", Path("/srv"))])
    made = replace(made, folders=(*made.folders, (common, Path("/mnt"))))
    entered = on.inside if on else ()
    with subprocess.Popen(
        (*entered, *made.words("sh", "-c", "echo ready; exec sleep infinity")),
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as holder:
        try:
            assert holder.stdout is not None
            if (said := holder.stdout.readline()) != "ready\n":
                _not_here(f"no machine in namespaces of its own can be had here: {said.strip()}")
            found = Host(name, root, holder.pid, _user(root, holder.pid, environ), entered)
            try:
                yield found
            finally:
                # What a test that failed has left in the background goes, too.
                found.lose()
        finally:
            holder.kill()


def _not_here(why: str) -> None:
    pytest.skip(why)


def _user(root: Path, pid: int, environ: Mapping[str, str]) -> Machine:
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "PYTHONPATH") if name in os.environ}
    own = {"HOME": "/srv", "DENDRO_HOME": str(HOME), "TMPDIR": "/srv/tmp", "TERM": "xterm"}
    return Machine(Path("/srv/work"), {**kept, **own, **environ}, started_in(pid))


def started_in(pid: int, kinds: Sequence[str] = KINDS) -> Any:
    """`Started`, for commands in the namespaces of a process."""
    return type("Started", (Started,), {"namespaces": tuple(f"/proc/{pid}/ns/{kind}" for kind in kinds)})


def _running_beside(pid: int) -> list[int]:
    """All processes of the machine that a process is on, but those that are killed and not reaped yet."""
    namespace, found = Path(f"/proc/{pid}/ns/uts").readlink(), []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and (entry / "ns/uts").readlink() == namespace:
                state = (entry / "stat").read_text().rpartition(") ")[2][:1]
                found += [int(entry.name)] if state not in "ZX" else []
    return found
