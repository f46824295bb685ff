"""Machines that are processes of one computer, in mount and UTS namespaces of their own.

Each has a host name, a machine id, and content of its own at paths that all of them have. They share the
rest: the kernel, all other folders, and servers on loopback or on sockets.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from orchestrator.core.frozen import record
from orchestrator.private_files import make_folder, write_file
from orchestrator.sandbox.trusted_files import find_program

KINDS = ("user", "mnt", "uts")
"""The namespaces that a machine has to itself, as /proc names them, in the order of entering."""
_OPTIONS = ("--user", "--map-root-user", "--mount", "--uts")
_BIRTH = """
set -e
name=$1 identity=$2
shift 2
mount --make-rprivate /
while [ "$1" != -- ]; do
    mount --bind "$1" "$2"
    shift 2
done
shift
for file in /etc/machine-id /var/lib/dbus/machine-id; do
    if [ -e "$file" ]; then mount --bind "$identity" "$file"; fi
done
hostname "$name"
exec "$@"
"""
_PAUSE_S = 0.005


@record
class LocalMachine:
    """A machine that is there for as long as a process of it runs."""

    name: str
    identity: Path
    """A file with its machine id."""
    folders: Sequence[tuple[Path, Path]]
    """Folders of its own, each with the path at which only this machine sees it."""

    def words(self, *command: str) -> list[str]:
        """The words of a command that makes the machine and runs in it, in one process."""
        pairs = (str(path) for pair in self.folders for path in pair)
        birth = ("/bin/sh", "-c", _BIRTH, "sh", self.name, str(self.identity), *pairs, "--")
        return [find_program("unshare") or "/usr/bin/unshare", *_OPTIONS, *birth, *command]

    def lacking(self) -> str:
        """The reason why no such machine can be had here; empty if one can."""
        try:
            done = subprocess.run(self.words("true"), cwd="/", capture_output=True, text=True, check=False)
        except OSError as error:
            return f"unshare: {error.strerror}"
        return "" if done.returncode == 0 else done.stderr.strip() or f"unshare ended with {done.returncode}"


@record
class DemoWorker:
    """A worker, and the machine that it runs on."""

    process: subprocess.Popen[str]
    machine: str
    """Its name; empty for this machine itself."""

    def named(self) -> str:
        where = f" on machine {self.machine}" if self.machine else ""
        return f"worker {self.process.pid}{where}"

    def kill(self) -> None:
        """Ends it at once: with everything on its machine, where that is its own."""
        if self.machine:
            lose_machine(self.process.pid)
        self.process.kill()
        self.process.wait()


def machine_at(root: Path, name: str, folders: Sequence[tuple[str, Path]]) -> LocalMachine:
    """A machine whose own folders are made below `root`, each with the path that it has for the machine."""
    own = [(root / inside, path) for inside, path in folders]
    for folder, _ in own:
        make_folder(folder)
    identity = root / "machine-id"
    write_file(identity, f"{name:0<32}\n".encode())
    return LocalMachine(name, identity, own)


def lose_machine(pid: int, kept: Iterable[int] = ()) -> None:
    """Kills everything on the machine of a process at once, as a power failure does; its folders stay.

    Raises `ValueError` for this process's own machine.
    """
    namespace, spared = _namespace(pid), frozenset(kept)
    if namespace == _namespace(os.getpid()):
        raise ValueError(f"process {pid} is on no machine of its own")
    while running := [one for one in _in_namespace(namespace) if one not in spared]:
        for one in running:
            with suppress(ProcessLookupError):
                os.kill(one, signal.SIGKILL)
        # A zombie runs no more; its parent, perhaps the caller, has still to ask for its end.
        if all(_state(one) in "ZX" for one in running):
            return
        time.sleep(_PAUSE_S)


def _namespace(pid: int) -> Path:
    return Path(f"/proc/{pid}/ns/uts").readlink()


def _in_namespace(namespace: Path) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and (entry / "ns/uts").readlink() == namespace:
                found.append(int(entry.name))
    return found


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][:1]
    except OSError:
        return "X"
