"""The start of a command: its session, cgroups, descriptors and confinement, then its exec.

A command that a wrapper confines, or nobody, is spawned. One that has to confine itself is a fork, which
never runs half confined: whatever fails before the exec ends it, and the shim hears what it was and the
errno.

Or the fork that writes a patch, which needs no exec: what it runs is the product's own, so
it goes without a sandbox and writes what was checked. Loaded into the supervisor: only light
imports.
"""

# pathlib would add a third to what each fork copies.
# ruff: noqa: PTH112, PTH113, PTH118, PTH123, PTH208

from __future__ import annotations

import errno
import fcntl
import marshal
import os
import signal

from orchestrator.sandbox import confine, kernel
from orchestrator.tools.patch import writer

TYPE_CHECKING = False  # typing's import costs the supervisor more than its own code
if TYPE_CHECKING:
    from typing import Any

    from orchestrator.tools.exec.held_objects import Cgroup

KILL_SIGNAL = signal.SIGUSR1
"""The signal that makes a shim kill everything; no terminal and no service manager sends it."""
IGNORED_SIGNALS = (
    *(signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGQUIT, signal.SIGTSTP),
    *(signal.SIGTTIN, signal.SIGTTOU, signal.SIGPIPE, signal.SIGUSR2, signal.SIGALRM),
)
_TAKEN_SIGNALS = (*IGNORED_SIGNALS, signal.SIGCHLD, KILL_SIGNAL)
_SECCOMP_FD = 3
_OPTIONS_FD = 4


def start(
    spec: dict[str, Any], stdout: int, stderr: int, ruleset: int | None, cgroups: list[Cgroup]
) -> tuple[int, str]:
    """Starts the command; its pid, or -1 and the line that says why it did not start."""
    program = _locate(spec["program"], spec["path"], spec["cwd"])
    if isinstance(program, int):
        return -1, f"failed program {program}"
    comes_back = all(cgroup.has_way_back for cgroup in cgroups)
    if not comes_back or ruleset is not None or not _confines_nothing(spec["confine"]):
        return _fork(spec, program, (stdout, stderr, ruleset), cgroups)
    return _spawn(spec, program, (stdout, stderr), cgroups)


def _confines_nothing(confine: dict[str, Any]) -> bool:
    """Whether the child itself has nothing to do before its exec: a wrapper confines, or nobody."""
    return not confine["mounts"] and not confine["seccomp"] and confine["keep_capabilities"]


def _spawn(
    spec: dict[str, Any], program: str, outputs: tuple[int, int], cgroups: list[Cgroup]
) -> tuple[int, str]:
    """Starts it without a copy of this process, which goes into the command's cgroups for the moment.

    A fork copies the tables of all pages, and each page that either of the two then writes.
    """
    opened: list[int] = []
    stage = "preparation"
    try:
        actions = _own_descriptors(spec, *outputs, opened)
        stage = "cwd"
        os.chdir(spec["cwd"])
        stage = "preparation"
        for cgroup in cgroups:
            cgroup.enter()
        stage = "program"
        argv = spec["argv"]
        return os.posix_spawn(
            _locate_launcher(argv, program, spec),
            argv,
            spec["env"],
            file_actions=actions,
            setsid=True,
            setsigdef=_TAKEN_SIGNALS,
        ), ""
    except (OSError, ValueError) as refused:
        # What exec cannot even be asked, a NUL byte in a word, is a ValueError without an errno.
        return -1, f"failed {stage} {getattr(refused, 'errno', None) or errno.EINVAL}"
    finally:
        for cgroup in cgroups:
            cgroup.leave()
        os.chdir("/")
        for descriptor in opened:
            os.close(descriptor)


def _own_descriptors(
    spec: dict[str, Any], stdout: int, stderr: int, opened: list[int]
) -> list[tuple[int, int, int]]:
    """The file actions that give a command its descriptors; those that are made for it go into `opened`."""
    given = {0: stdout, 1: stdout, 2: stderr}
    if not spec["tty"]:
        given[0] = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        opened.append(given[0])
    for number, make in ((_SECCOMP_FD, _filter_pipe), (_OPTIONS_FD, _memory_file)):
        made = make(spec["seccomp_on_fd" if number == _SECCOMP_FD else "options_on_fd"])
        if made is not None:
            given[number] = made
            opened.append(made)
    return [(os.POSIX_SPAWN_DUP2, source, number) for number, source in given.items()]


def _fork(
    spec: dict[str, Any], program: str, descriptors: tuple[int, int, int | None], cgroups: list[Cgroup]
) -> tuple[int, str]:
    """Starts it by a fork of this process that confines itself."""
    news_in, news_out = os.pipe2(os.O_CLOEXEC)
    try:
        pid = os.fork()
    except OSError as refused:
        os.close(news_in)
        os.close(news_out)
        return -1, f"failed fork {refused.errno}"
    if pid == 0:
        _become_command(spec, program, cgroups, (*descriptors, news_out))
    os.close(news_out)
    failure = os.read(news_in, 256).decode()
    os.close(news_in)
    return pid, failure


def start_writer(job: writer.Job, stdout: int) -> tuple[int, str]:
    """Forks the writer of a patch, whose outcome goes to `stdout`; answers as `start` does."""
    shim_pid = os.getpid()
    try:
        pid = os.fork()
    except OSError as refused:
        return -1, f"failed fork {refused.errno}"
    if pid == 0:
        _become_writer(shim_pid, job, stdout)
    return pid, ""


def _become_writer(shim_pid: int, job: writer.Job, stdout: int) -> None:
    """In the fork: writes, reports the outcome, and exits; the writer does not outlive its shim."""
    code = 1
    try:
        _take_signals()
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == shim_pid:
            os.write(stdout, marshal.dumps(writer.carry_out(job)))
            code = 0
    except BaseException as broken:
        os.write(2, f"dendro supervisor: a patch's writer failed: {broken!r}\n".encode())
    finally:
        os._exit(code)


def _become_command(
    spec: dict[str, Any], program: str, cgroups: list[Cgroup], descriptors: tuple[int, int, int | None, int]
) -> None:
    """In the fork: becomes the command, or reports why not and exits; never runs it half confined."""
    stdout, stderr, ruleset, news = (None if fd is None else _high(fd) for fd in descriptors)
    assert stdout is not None
    assert stderr is not None
    assert news is not None
    stage = "preparation"
    try:
        _prepare(spec, stdout, stderr, cgroups)
        stage = "confinement"
        confine.confine_self(**spec["confine"], ruleset=ruleset)
        # Only now: a folder entered before would lie on the mount from before, which is read-only.
        stage = "cwd"
        os.chdir(spec["cwd"])
        stage = "program"
        argv = spec["argv"]
        os.execve(_locate_launcher(argv, program, spec), argv, spec["env"])
    except BaseException as refused:
        # What exec cannot even be asked, a NUL byte in a word, is a ValueError without an errno.
        os.write(news, f"failed {stage} {getattr(refused, 'errno', None) or errno.EINVAL}".encode())
    finally:
        os._exit(127)


def _high(descriptor: int) -> int:
    """A copy above the numbers that the command's own descriptors are put on."""
    return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 10)


def _lifted(descriptor: int) -> int:
    """The descriptor above those numbers."""
    lifted = _high(descriptor)
    os.close(descriptor)
    return lifted


def _locate(program: str, path: str, cwd: str) -> str | int:
    """The program's file, found as execvp does it, or the errno that execvp would give.

    Looked up before any wrapper starts: otherwise a missing program is the wrapper's exit
    code, indistinguishable from the command's own.
    """
    if not os.path.isdir(cwd):
        return program  # the change of directory will say so
    candidates = [program] if "/" in program else [f"{folder or '.'}/{program}" for folder in path.split(":")]
    answer = errno.ENOENT
    for candidate in candidates:
        full = os.path.join(cwd, candidate)
        if not os.path.isfile(full):
            continue
        if os.access(full, os.X_OK):
            return full
        answer = errno.EACCES
    return answer


def _locate_launcher(argv: list[str], program: str, spec: dict[str, Any]) -> str:
    """A wrapper is named by its full path; a bare command runs under the file found for it."""
    return program if argv[0] == spec["program"] else argv[0]


def _prepare(spec: dict[str, Any], stdout: int, stderr: int, cgroups: list[Cgroup]) -> None:
    """A session of its own, the cgroups, the three descriptors, the signals as a shell expects them."""
    os.setsid()
    for cgroup in cgroups:
        cgroup.enter()
    filter_fd = _filter_pipe(spec["seccomp_on_fd"])
    options_fd = _memory_file(spec["options_on_fd"])
    os.dup2(stdout if spec["tty"] else os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC), 0)
    os.dup2(stdout, 1)
    os.dup2(stderr, 2)
    if filter_fd is not None:
        os.dup2(filter_fd, _SECCOMP_FD)
    if options_fd is not None:
        os.dup2(options_fd, _OPTIONS_FD)
    _take_signals()


def _take_signals() -> None:
    """Signals as a program expects them at its start."""
    signal.set_wakeup_fd(-1)
    for number in _TAKEN_SIGNALS:
        signal.signal(number, signal.SIG_DFL)


def _filter_pipe(program: bytes) -> int | None:
    """A pipe that holds the filter: it fits the pipe's buffer, so nobody has to write while bwrap reads."""
    if not program:
        return None
    reading, writing = os.pipe2(os.O_CLOEXEC)
    os.write(writing, program)
    os.close(writing)
    return _lifted(reading)


def _memory_file(content: bytes) -> int | None:
    """A file in memory: an environment may be larger than a pipe's buffer."""
    if not content:
        return None
    descriptor = os.memfd_create("dendro-options", os.MFD_CLOEXEC)
    written = 0
    while written < len(content):
        written += os.pwrite(descriptor, content[written:], written)
    return _lifted(descriptor)


# ── descendants ───────────────────────────────────────────────────────────────────────────────────
# Finding and killing every descendant of a process, those that called setsid included.
#
# Works on the parent links in /proc: an orphan's parent is the nearest living subreaper above it, so
# nothing that a command started can leave the tree of its shim. Loaded into the supervisor, which forks
# per command: only light imports.


def descendants_of(root: int, spared: frozenset[int] = frozenset()) -> list[int]:
    """The living processes below `root`, without `spared` and what is below those; zombies are left out."""
    children = _children_by_parent()
    found: list[int] = []
    frontier = [root]
    while frontier:
        for pid, state in children.get(frontier.pop(), ()):
            if pid in spared:
                continue
            frontier.append(pid)
            if state not in "ZX":
                found.append(pid)
    return found


def kill_all(pids: list[int]) -> int:
    """Kills the processes; how many could not be, because they belong to another user.

    Stops them all first: a stopped process cannot fork, so a fork bomb that is met half-way
    through the list finds no brother left to replace what was killed.
    """
    for pid in pids:
        _send(pid, signal.SIGSTOP)
    return sum(not _send(pid, signal.SIGKILL) for pid in pids)


def _send(pid: int, number: signal.Signals) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return True


def _children_by_parent() -> dict[int, list[tuple[int, str]]]:
    children: dict[int, list[tuple[int, str]]] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                stat = file.read()
        except OSError:
            continue  # gone between the listing and the reading
        # The name in parentheses may hold blanks and parentheses itself: count from its end.
        state, parent = stat[stat.rindex(b")") + 2 :].split(b" ", 2)[:2]
        children.setdefault(int(parent), []).append((int(name), state.decode()))
    return children
