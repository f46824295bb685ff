"""Attacks on the confinement, as bash scripts, and a scene on which each is tried for real.

Standard library only: the same attacks run under an interpreter that another user can start.
A script prints HARM when it has got what it wanted; harm to files, to the victim and to the
listeners is looked for from outside.
"""

# ruff: noqa: E501  a script reads best on its line

from __future__ import annotations

import ctypes
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from orchestrator.sandbox.kernel import CLOCK_BOOTTIME
from orchestrator.sandbox.limits import Limits
from orchestrator.sandbox.policy_paths import resolve
from orchestrator.sandbox.probe import Preference, SandboxSupport
from orchestrator.tools.exec.command import Command, Finished
from orchestrator.tools.exec.supervisor import Supervisor, SupervisorConfig

SECRET = "swordfish-4711"

LOOK_FOR_DESCRIPTORS = """
import os
for fd in range(3, 1024):
    try: os.fstat(fd)
    except OSError: continue
    exit(0)
exit(1)
"""

FORK_ON = """
import os, signal
for _ in range(400):
    if os.fork() == 0:
        signal.pause()
"""

ATTACKS: Mapping[str, str] = {
    "writes a new file outside": "echo x > $OUTSIDE/new",
    "overwrites a file outside": "echo x > $OUTSIDE/target",
    "truncates a file outside": "truncate -s 0 $OUTSIDE/target",
    "deletes a file outside": "rm -f $OUTSIDE/target",
    "moves a file out": "echo x > mine; mv mine $OUTSIDE/mine",
    "takes a file from outside": "mv $OUTSIDE/target mine",
    "writes through a symlink": "ln -s $OUTSIDE/target s; echo x > s",
    "writes through a symlinked folder": "ln -s $OUTSIDE d; echo x > d/new",
    "writes through a hard link": "ln $OUTSIDE/target h && echo x > h",
    "changes the mode of a file outside": "chmod 777 $OUTSIDE/target",
    "changes the times of a file outside": "touch -d 2001-01-01 $OUTSIDE/target",
    "writes through another process's root": "for p in /proc/[0-9]*; do echo x > $p/root$OUTSIDE/target; done",
    "writes through another process's folder": "for p in /proc/[0-9]*; do echo x > $p/cwd/../outside/target; done",
    "mounts its way out": "unshare -Urm bash -c 'mount -o remount,rw,bind /; mount -o remount,rw /; "
    "umount -l $OUTSIDE; echo x > $OUTSIDE/target'",
    "switches the kernel through /proc": "S=/proc/sys/kernel/core_pattern; echo $(<$S) > $S && echo HARM",
    "makes a block device": "mknod disk b 254 0 && echo HARM",
    "edits the repository's configuration": "echo '[core]' >> repo/.git/config",
    "plants a hook": "mkdir -p repo/.git/hooks; echo x > repo/.git/hooks/post-checkout",
    "swaps the repository for its own": "mv repo/.git repo/.old && mkdir repo/.git",
    "swaps a repository to which a link leads": "rm -f linked/.git; mv linked/.git linked/away; "
    "mkdir linked/.git; echo x > linked/.git/config; mv linked moved",
    "makes a repository where there is none": "mkdir .git && touch .git/config; touch .git/HEAD; git init -q .",
    "edits the folder's configuration": "echo 'sandbox_mode = 1' >> repo/dendro.toml",
    "swaps the folder's configuration": "rm -f repo/dendro.toml; echo x > new; mv -f new repo/dendro.toml",
    "puts back a configuration that was trusted": "echo x > dendro.toml; rmdir dendro.toml; touch dendro.toml; "
    "echo x > new; mv new dendro.toml; echo x > dendro.toml/x; ln -s repo dendro.toml/y",
    "edits a configuration through its link": "echo x >> temporary/dendro.toml; echo x >> temporary/real.toml",
    "makes what a link of that name leads to": "echo x > dangling/absent.toml; mkdir dangling/absent.toml/x",
    "edits the configuration in force": "echo x >> way/named.toml; rm -f way/named.toml; echo x > way/named.toml",
    "writes where Dendro's own files are": "echo x > $HIDDEN/new; mv $HIDDEN moved && mkdir $HIDDEN && echo x > $HIDDEN/new",
    "moves what is kept away with a folder around it": "mv way away && cat away/hidden/secret && echo HARM; "
    "mv nested/in away && echo HARM; mv nested away && echo HARM; $PYTHON -c 'import ctypes; "
    'exit(ctypes.CDLL(None).renameat2(-100, b"nested", -100, b"repo", 2) != 0)\' && echo HARM; rm -r way; rmdir nested && echo HARM',
    "connects over TCP": "$PYTHON -c 'import os,socket; "
    'socket.create_connection(("127.0.0.1", int(os.environ["TCP"])), 1)\' && echo HARM',
    "sends over UDP": "$PYTHON -c 'import os,socket; "
    'socket.socket(2, 2).sendto(b"x", ("127.0.0.1", int(os.environ["UDP"])))\'',
    "reaches an abstract Unix socket": "$PYTHON -c 'import os,socket; "
    'socket.socket(1, 1).connect("\\0" + os.environ["ABSTRACT"])\' && echo HARM',
    "reaches a hidden Unix socket": "$PYTHON -c 'import os,socket; "
    'socket.socket(1, 1).connect(os.environ["HIDDEN"] + "/sock")\' && echo HARM',
    "reaches a Unix socket that nobody hid": "$PYTHON -c 'import os,socket; "
    'socket.socket(1, 1).connect(os.environ["LOOSE"])\' && echo HARM',
    "sends to a socket by one end of a pair": "for kind in 2 3; do $PYTHON -c 'import os,socket,sys; "
    'socket.socketpair(1, int(sys.argv[1]))[0].sendto(b"x", os.environ["LETTERS"])\' $kind && echo HARM; done',
    "opens a socket to the hypervisor": "$PYTHON -c 'import socket; socket.socket(40, 1)' && echo HARM",
    "uses io_uring": "$PYTHON -c 'import ctypes; exit(ctypes.CDLL(None, use_errno=True).syscall(425, 1, 0) "
    "!= -1 or ctypes.get_errno() != 1)' || echo HARM",
    "lowers the limits of a foreign process": "prlimit --pid $VICTIM --cpu=1 && echo HARM",
    "reads or writes a foreign terminal": "exec 3<>$TERMINAL && echo x >&3 && echo HARM",
    "finds foreign shared memory": "[ -e /dev/shm/$SHARED ] && echo HARM",
    "attaches to a foreign System V segment": "$PYTHON -c 'import ctypes,os; "
    'exit(ctypes.CDLL(None).shmget(int(os.environ["SEGMENT"]), 4096, 0o600) != -1)\' || echo HARM',
    "reads what is hidden": "cat $HIDDEN/secret && echo HARM",
    "kills a foreign process": "kill -9 $VICTIM",
    "stops a foreign process": "kill -STOP $VICTIM && echo HARM",
    "kills its shim and its supervisor": "for p in $PPID $(pgrep -f supervisor_process); do [ $p -gt 2 ] && kill -9 $p; done",
    "reads the environment of others": "cat /proc/*/environ | tr '\\0' '\\n' | grep -q "
    + SECRET
    + " && echo HARM",
    "reads its own environment for secrets": "env | grep -q " + SECRET + " && echo HARM",
    "looks into a foreign process": "ls /proc/$VICTIM/fd/ && [ $(readlink /proc/$VICTIM/fd/0) ] && echo HARM",
    "forks past its limit": "$PYTHON -c '" + FORK_ON + "' && echo HARM",
    "uses an inherited descriptor": "$PYTHON -c '" + LOOK_FOR_DESCRIPTORS + "' && echo HARM",
}

CONFIGURATIONS: Mapping[str, str | None] = {
    "repo/dendro.toml": "",
    "dendro.toml": None,
    "temporary/real.toml": "",
    "dangling/absent.toml": None,
    "way/named.toml": "",
}
"""Configuration files by their paths in the workspace, with what they hold; None is to stay absent."""

NEEDS_MOUNTS = frozenset(
    (
        "changes the mode of a file outside",
        "changes the times of a file outside",
        "edits the repository's configuration",
        "plants a hook",
        "swaps the repository for its own",
        "swaps a repository to which a link leads",
        "makes a repository where there is none",
        "edits the folder's configuration",
        "swaps the folder's configuration",
        "puts back a configuration that was trusted",
        "edits a configuration through its link",
        "makes what a link of that name leads to",
        "edits the configuration in force",
        "moves what is kept away with a folder around it",
        "writes where Dendro's own files are",
        "reads or writes a foreign terminal",
        "finds foreign shared memory",
        "attaches to a foreign System V segment",
        "reads what is hidden",
    )
)
"""Attacks that Landlock alone does not stop; its launcher names these gaps."""


@dataclass(frozen=True, slots=True)
class Scene:
    """Targets of the attacks."""

    workspace: Path
    outside: Path
    hidden: Path
    victim: subprocess.Popen[bytes]
    listeners: Mapping[str, socket.socket]
    terminal: str
    shared: str
    segment: int

    def environment(self) -> dict[str, str]:
        return {
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "OUTSIDE": str(self.outside),
            "HIDDEN": str(self.hidden),
            "LOOSE": str(self.outside.parent / "loose"),
            "LETTERS": str(self.outside.parent / "letters"),
            "VICTIM": str(self.victim.pid),
            "TERMINAL": self.terminal,
            "SHARED": self.shared,
            "SEGMENT": str(self.segment),
            "PYTHON": sys.executable,
            "TCP": str(self.listeners["tcp"].getsockname()[1]),
            "UDP": str(self.listeners["udp"].getsockname()[1]),
            "ABSTRACT": self.listeners["abstract"].getsockname()[1:].decode(),
        }

    def harm(self) -> list[str]:
        """Differences from the targets as they were set up."""
        found = [f"outside holds {name}" for name in _names(self.outside) if name != "target"]
        target, git = self.outside / "target", self.workspace / "repo/.git"
        if not target.is_file() or target.read_text() != "intact":
            found.append("the target was changed")
        elif target.stat().st_mode & 0o777 != 0o644 or target.stat().st_mtime < 1e9:
            found.append("the target's mode or times were changed")
        if not git.is_dir() or (git / "config").read_text() != "" or _names(git) != ["config"]:
            found.append("the repository was changed")
        if not (self.workspace / "linked/.git").is_symlink():
            found.append("a repository was swapped")
        if (self.workspace / ".git").exists():
            found.append("a repository was made")
        hidden = set(_names(self.hidden))
        found += [f"{name} came into the hidden folder" for name in hidden - {"sock", "secret"}]
        found += [f"{name} was changed" for name in CONFIGURATIONS if not self._intact(name)]
        if self.victim.poll() is not None:
            found.append("the victim was killed")
        return found + [f"{name} was reached" for name, it in self.listeners.items() if _was_reached(it)]

    def _intact(self, name: str) -> bool:
        file, held = self.workspace / name, CONFIGURATIONS[name]
        return not file.exists() if held is None else file.is_file() and file.read_text() == held


def _names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def _was_reached(listener: socket.socket) -> bool:
    try:
        return bool(listener.recv(1) if listener.type == socket.SOCK_DGRAM else listener.accept())
    except BlockingIOError:
        return False


@contextmanager
def scene(folder: Path) -> Iterator[Scene]:
    """Sets up a workspace with a repository, files outside of it, listeners and a victim with a secret."""
    workspace, outside, hidden = (folder / name for name in ("workspace", "outside", "workspace/way/hidden"))
    roots = (workspace / "temporary", workspace / "dangling", workspace / "linked")
    for path in (workspace, outside, hidden, workspace / "repo/.git", workspace / "nested/in/root", *roots):
        path.mkdir(parents=True)
    for file in (file for file, held in CONFIGURATIONS.items() if held is not None):
        (workspace / file).write_text("")
    (workspace / "linked/.git").symlink_to("../repo/.git")
    (workspace / "temporary/dendro.toml").symlink_to("real.toml")
    (workspace / "dangling/dendro.toml").symlink_to("absent.toml")
    (hidden / "secret").write_text(SECRET)
    (outside / "target").write_text("intact")
    (outside / "target").chmod(0o644)
    (workspace / "repo/.git/config").write_text("")
    with ExitStack() as stack:
        listeners = {
            "tcp": _listen(stack, socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0)),
            "udp": _listen(stack, socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 0)),
            "abstract": _listen(
                stack, socket.AF_UNIX, socket.SOCK_STREAM, f"\0dendro-{os.getpid()}-{folder.name}"
            ),
            "hidden": _listen(stack, socket.AF_UNIX, socket.SOCK_STREAM, _short(hidden / "sock")),
            "loose": _listen(stack, socket.AF_UNIX, socket.SOCK_STREAM, _short(folder / "loose")),
            "letters": _listen(stack, socket.AF_UNIX, socket.SOCK_DGRAM, _short(folder / "letters")),
        }
        victim = subprocess.Popen(["sleep", "600"], stdin=subprocess.PIPE, env={"PATH": "/bin", "MY": SECRET})
        try:
            yield Scene(workspace, outside, hidden, victim, listeners, *_devices(stack, folder.name))
        finally:
            victim.kill()
            victim.communicate()


def _devices(stack: ExitStack, name: str) -> tuple[str, str, int]:
    """A terminal, a file of shared memory and a System V segment that belong to somebody else."""
    ours, theirs = os.openpty()
    stack.callback(os.close, ours)
    stack.callback(os.close, theirs)
    shared = Path("/dev/shm", f"dendro-{os.getpid()}-{name}")
    shared.write_text("x")
    stack.callback(shared.unlink)
    libc, key = ctypes.CDLL(None), os.getpid()
    segment = libc.shmget(key, 4096, 0o1600)
    stack.callback(libc.shmctl, segment, 0, None)
    return os.ttyname(theirs), shared.name, key


def _short(path: Path) -> str:
    """A socket's path that fits 107 bytes, however deep the test's folder lies."""
    return os.path.relpath(path) if len(os.path.relpath(path)) < len(str(path)) else str(path)


def _listen(stack: ExitStack, family: int, kind: int, address: object) -> socket.socket:
    listener = stack.enter_context(socket.socket(family, kind))
    listener.bind(address)  # type: ignore[arg-type]
    if kind == socket.SOCK_STREAM:
        listener.listen()
    listener.setblocking(False)
    return listener


@asynccontextmanager
async def supervised(prefer: Preference, support: SandboxSupport) -> AsyncIterator[Supervisor]:
    """A supervisor that confines by this mechanism, for any number of attacks."""
    supervisor = await Supervisor.start(SupervisorConfig(support, prefer))
    try:
        yield supervisor
    finally:
        await supervisor.close()


async def run_in(
    there: Scene, script: str, supervisor: Supervisor, mode: str = "workspace-write"
) -> Finished:
    """Runs a script in the scene's workspace."""
    policy = {
        "mode": mode,
        "exclude_slash_tmp": True,
        "exclude_tmpdir_env_var": True,
        "writable_roots": [
            str(there.workspace / root)
            for root in ("repo", "temporary", "dangling", "linked", "nested/in/root")
        ],
    }
    named = [there.workspace / "way/named.toml"]
    trusted = [there.workspace / name for name in ("dendro.toml", "dangling/dendro.toml")]
    confinement = resolve(
        policy, there.workspace, None, hidden=[there.hidden], read_only=named, trusted=trusted
    )
    command = Command(
        claim="claim",
        call_id="call",
        argv=("bash", "-c", script),
        cwd=there.workspace,
        env=there.environment(),
        confinement=confinement,
        timeout_s=20.0,
        limits=Limits(processes=200),
    )
    supervisor.extend("claim", time.clock_gettime(CLOCK_BOOTTIME) + 60)
    return await supervisor.run(command, lambda *_: None)
