"""Git, which the product calls in this one way, whosever repository it is.

A repository's configuration is a stranger's or an agent's, and git starts programs, reads files and fetches
because it says so. So git is found where no session writes; it gets an environment of its own, in which no
protocol is allowed; what names a program is switched off; it runs for a limited time; and it is confined: it
writes nothing but what the call needs, has no network, and sees no process of the person's.
"""

from __future__ import annotations

import os
import select
import signal
import stat
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, Final, TypeVar

from orchestrator.home import without_links
from orchestrator.sandbox import landlock
from orchestrator.sandbox.trusted_files import find_program, program_folders, read_regular

PATIENCE_S = 3.0
REMEMBER_S: Final = 30.0
"""For so long a folder is not asked about again after git has not answered."""
MOST_BYTES: Final = 64 << 20
"""Bytes of an answer that are read."""
_MOST_FOLDERS: Final = 256
_MOST_HOOKS: Final = 100
_MOST_REFS: Final = 5
"""Names of branches that git follows, one leading to the next."""
_OBEY_NOTHING: Final = (
    *("core.fsmonitor=false", "core.hooksPath=/dev/null", "core.pager=", "core.editor=:", "core.askPass="),
    *("core.sshCommand=/dev/null", "core.gitProxy=", "core.alternateRefsCommand=", "credential.helper="),
    *("diff.external=", "gpg.program=/dev/null", "gpg.ssh.program=/dev/null", "gpg.x509.program=/dev/null"),
    *("log.showSignature=false", "commit.gpgSign=false", "gc.auto=0", "maintenance.auto=false"),
    *("uploadpack.packObjectsHook=", "safe.bareRepository=explicit", "protocol.allow=never"),
)
_PERSON: Final = (
    *("HOME", "XDG_CONFIG_HOME", "USER", "LOGNAME", "SUDO_UID", "EMAIL"),
    *("GIT_CONFIG_GLOBAL", "GIT_CEILING_DIRECTORIES"),
    *("GIT_AUTHOR_NAME", "GIT_AUTHOR_EMAIL", "GIT_COMMITTER_NAME", "GIT_COMMITTER_EMAIL"),
)
"""Variables of the person's that git gets: their own configuration and name."""
_T = TypeVar("_T")


class GitFailed(Exception):
    """Git could not be asked; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The end of a git that ran to it."""

    code: int
    out: bytes
    complaint: bytes

    @property
    def text(self) -> str:
        """The output, if it succeeded."""
        return self.out.decode("utf-8", "surrogateescape").strip() if self.code == 0 else ""

    @property
    def why(self) -> str:
        """The last of its complaint."""
        return self.complaint.decode("utf-8", "replace").strip()[-500:]


def git_words(*words: str) -> list[str]:
    """The command line of a git that obeys no program which a configuration names; raises `GitFailed`."""
    if (program := find_program("git")) is None:
        raise GitFailed(
            "git is not installed on this machine, or only where sessions may write: install it, or name its "
            "folder in DENDRO_PROGRAMS"
        )
    settings = (part for setting in _OBEY_NOTHING for part in ("-c", setting))
    return [program, "--no-pager", "--no-optional-locks", *settings, *words]


def git_environment(
    repository: Path | None = None, person: Mapping[str, str] | None = None, allow: str = "none"
) -> dict[str, str]:
    """The variables of every git: it asks nobody, and fetches by the protocols of `allow` alone.

    `repository` is the `.git` folder to use; None lets git look for it. `person` lends their own
    configuration and name; without it git reads no configuration but the repository's.
    """
    kept = {name: person[name] for name in _PERSON if name in person} if person is not None else {}
    return {
        **({} if person is not None else {"GIT_CONFIG_GLOBAL": os.devnull}),
        **kept,
        **({"GIT_DIR": str(repository)} if repository is not None else {}),
        "PATH": ":".join(program_folders()),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_ALLOW_PROTOCOL": allow,
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_LFS_SKIP_SMUDGE": "1",
        "LC_ALL": "C",
    }


def run_git(
    folder: Path,
    *words: str,
    person: Mapping[str, str] | None = None,
    more: Mapping[str, str] | None = None,
    input: bytes = b"",
    seconds: float | None = None,
    writable: Iterable[Path] = (),
    allow: str = "none",
) -> Answer:
    """Runs git about the repository around a folder, confined; blocking. Raises `GitFailed`.

    `writable` are the folders that the call may write.
    """
    where, patience = str(Path.cwd() / folder), PATIENCE_S if seconds is None else seconds
    above = repository_above(folder)
    if fault := _silent(where) or (irregular(above) if above is not None else ""):
        raise GitFailed(fault)
    argv = git_words("-C", where, *words)
    environ = {
        **git_environment(person=os.environ if person is None else person, allow=allow),
        **(more or {}),
    }
    roots = tuple(writable)
    try:
        if roots:
            environ |= _without_hooks(where, environ, patience)
        return _finished(lambda start: _start_confined(start, roots), argv, environ, input, patience)
    except TimeoutError:
        text = (
            f"git did not answer about {folder} within {patience:g} s: the repository names a file that "
            "never ends, or its disk does not answer. Look at its .git/config, at what that includes, and at "
            ".git/HEAD"
        )
        _remember(where, text)
        raise GitFailed(text) from None


def _without_hooks(where: str, environ: Mapping[str, str], seconds: float) -> dict[str, str]:
    """Variables that switch off the hooks which configurations name, from git 2.54 on (`hook.NAME.command`).

    `core.hooksPath` knows nothing of them, and there is no word for all of them. A name may hold anything, so
    it stands in no `-c`. Raises `GitFailed`.
    """
    argv = git_words("-C", where, "config", "--null", "--name-only", "--get-regexp", r"^hook\..*\.event$")
    found = _finished(lambda start: _start_confined(start, ()), argv, environ, b"", seconds)
    if found.code not in (0, 1):  # 1: there is none
        raise GitFailed(f"git cannot tell its hooks: {found.why}")
    names = sorted({os.fsdecode(key)[: -len("event")] for key in found.out.split(b"\0") if key})
    if len(names) > _MOST_HOOKS:
        raise GitFailed(f"the configuration of git names more than {_MOST_HOOKS} hooks: remove some")
    told = {"GIT_CONFIG_COUNT": str(len(names))}
    for number, name in enumerate(names):
        told |= {f"GIT_CONFIG_KEY_{number}": f"{name}enabled", f"GIT_CONFIG_VALUE_{number}": "false"}
    return told


def run_git_here(words: tuple[str, ...], environ: Mapping[str, str], folder: Path, seconds: float) -> Answer:
    """Runs git in a process that is confined already; raises `GitFailed`."""
    try:
        return _finished(lambda start: start(), git_words(*words), environ, b"", seconds, folder)
    except TimeoutError:
        raise GitFailed(
            f"git {words[0]} did not answer within {seconds:g} s: the repository names a file that never "
            "ends, or the disk does not answer. Look at its config, at what that includes, and at HEAD"
        ) from None


async def in_git_thread(ask: Callable[..., _T], *arguments: object) -> _T:
    """Runs a function that asks git in threads of its own: a git that hangs holds up nothing else."""
    import asyncio  # a keeper, which asks git without threads, would start a third slower

    return await asyncio.get_running_loop().run_in_executor(_threads().waiting, ask, *arguments)


# ── one run ───────────────────────────────────────────────────────────────────────────────────────


def _finished(
    begin: Callable[[Callable[[], subprocess.Popen[bytes]]], subprocess.Popen[bytes]],
    argv: list[str],
    environ: Mapping[str, str],
    input: bytes,
    seconds: float,
    folder: Path | None = None,
) -> Answer:
    """A run; with a folder it stays in the session of this process, which dies as a whole.

    Raises `GitFailed`, `TimeoutError`.
    """
    # Files in memory, and no pipes: a helper that git leaves behind would keep a pipe open.
    with _memory() as given, _memory() as out, _memory() as complaint:
        given.write(input)
        given.seek(0)

        def start() -> subprocess.Popen[bytes]:
            return subprocess.Popen(
                argv,
                stdin=given if input else subprocess.DEVNULL,
                stdout=out,
                stderr=complaint,
                env=dict(environ),
                cwd=folder or "/",
                start_new_session=folder is None,
                pass_fds=passed(),
            )

        try:
            process = begin(start)
        except (OSError, ValueError) as error:
            raise GitFailed(f"git cannot be started: {error}") from error
        _await(process, seconds, group=folder is None)
        return Answer(process.returncode, _content(out), _content(complaint))


def _await(process: subprocess.Popen[bytes], seconds: float, *, group: bool) -> None:
    """Waits for the end; kills it and all that it started behind the time, and raises `TimeoutError`."""
    ended = os.pidfd_open(process.pid)
    try:
        waiting = select.poll()
        waiting.register(ended, select.POLLIN)
        late = not waiting.poll(seconds * 1000)
    finally:
        os.close(ended)
        # Not yet waited for, so the number is still its own.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL) if group else os.kill(process.pid, signal.SIGKILL)
        process.wait()
    if late:
        raise TimeoutError


def _memory() -> IO[bytes]:
    return os.fdopen(os.memfd_create("dendro-git", os.MFD_CLOEXEC), "w+b", buffering=0)


def _content(file: IO[bytes]) -> bytes:
    size = os.fstat(file.fileno()).st_size
    if size > MOST_BYTES:
        raise GitFailed(f"git answered with {size:,} bytes, and {MOST_BYTES:,} are read")
    return os.pread(file.fileno(), size, 0)


# ── what is known to hang ─────────────────────────────────────────────────────────────────────────

_late: dict[str, tuple[float, str]] = {}


def _silent(folder: str) -> str:
    """The reason why git is not asked about a folder again so soon."""
    until, text = _late.get(folder, (0.0, ""))
    return text if time.monotonic() < until else ""


def _remember(folder: str, text: str) -> None:
    while len(_late) >= _MOST_FOLDERS:
        with suppress(KeyError, RuntimeError):
            del _late[next(iter(_late))]
    _late[folder] = (time.monotonic() + REMEMBER_S, text)


def repository_above(folder: Path) -> Path | None:
    """The nearest `.git` above a folder, or in it."""
    own = without_links(folder)
    return next((it / ".git" for it in (own, *own.parents) if os.path.lexists(it / ".git")), None)


def work_tree(folder: Path) -> Path | None:
    """The top of the repository around a folder; None without one. Blocking; raises `GitFailed`.

    The nearest `.git` decides: a repository's configuration can name any other folder (`core.worktree`), and
    a stranger's would make all that lies around it a part of it.
    """
    place = repository_above(folder)
    if place is None or run_git(folder, "rev-parse", "--show-toplevel").text != str(place.parent):
        return None
    return place.parent


def irregular(repository: Path) -> str:
    """The fault of a repository (its `.git`) in which a file is none: git would wait for a pipe."""
    for file in (repository, *_files_of(repository)):
        if _is_odd(file):
            return f"{file} is no file but a pipe or a device, so git is not asked: remove it"
    return ""


def _is_odd(file: Path) -> bool:
    """Whether there is something that is neither a file nor a folder."""
    try:
        mode = file.stat().st_mode
    except (OSError, ValueError):
        # Of a name that no file can have git says so itself.
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def _files_of(place: Path) -> tuple[Path, ...]:
    """The files that git reads of a repository in any case."""
    folder = place
    if place.is_file():
        with suppress(OSError, ValueError):
            named = read_regular(place, 4096).decode("utf-8", "surrogateescape")
            folder = place.parent / named.removeprefix("gitdir:").strip()
    common = folder
    with suppress(OSError, ValueError):
        common = folder / read_regular(folder / "commondir", 4096).decode("utf-8", "surrogateescape").strip()
    names = ("HEAD", "commondir", "config.worktree", "index")
    shared = ("config", "packed-refs", "shallow", "info/exclude", "objects/info/alternates")
    return (*(folder / name for name in names), *(common / name for name in shared), *_branch(folder, common))


def _branch(folder: Path, common: Path) -> tuple[Path, ...]:
    """The files of the branch that HEAD names, and of those that a branch's file leads on to.

    A linked work tree has some branches for itself (`refs/bisect`), and shares the others.
    """
    found: list[Path] = []
    file = folder / "HEAD"
    with suppress(OSError, ValueError):
        for _ in range(_MOST_REFS):
            said = read_regular(file, 4096).decode("utf-8", "surrogateescape").strip()
            name = said.removeprefix("ref:").strip()
            if name == said or not name.startswith("refs/"):
                break
            own, shared = folder / name, common / name
            found += (own, shared)
            file = own if own.exists() else shared
    return tuple(found)


def git_fault(folder: Path) -> str:
    """The reason why git does not answer about the repository around a folder, for people."""
    above = repository_above(folder)
    return "" if above is None else _silent(str(Path.cwd() / folder)) or irregular(above)


# ── threads ───────────────────────────────────────────────────────────────────────────────────────


class _Threads:
    """The threads of this process for git: one confined that starts readers, and some that wait."""

    def __init__(self) -> None:
        from concurrent.futures import ThreadPoolExecutor

        self.starting = ThreadPoolExecutor(1, "dendro-git-start", landlock.confine_here)
        self.waiting = ThreadPoolExecutor(16, "dendro-git")


_made: _Threads | None = None
_making = threading.Lock()


def _threads() -> _Threads:
    global _made
    with _making:
        if _made is None:
            _made = _Threads()
        return _made


def _forked() -> None:
    global _made, _making
    _made, _making = None, threading.Lock()


os.register_at_fork(after_in_child=_forked)


def _start_confined(
    start: Callable[[], subprocess.Popen[bytes]], writable: tuple[Path, ...]
) -> subprocess.Popen[bytes]:
    """Starts a process from a thread that has confined itself, so that it is confined from its beginning."""
    if not writable:
        return _threads().starting.submit(start).result()
    from concurrent.futures import Future

    started: Future[subprocess.Popen[bytes]] = Future()

    def confined() -> None:
        try:
            landlock.confine_here(writable)
            started.set_result(start())
        except BaseException as error:
            started.set_exception(error)

    thread = threading.Thread(target=confined, name="dendro-git-write")
    thread.start()
    thread.join()
    return started.result()


# ── lifeline ──────────────────────────────────────────────────────────────────────────────────────
# A pipe that ends with this process and the last of those that it started to write something.
#
# Each of these children is given the pipe's writing end, and gives it to nobody. So the reading end comes
# to its end when all of them are gone, and this process too: by the kernel's word, whoever killed them. A
# program that only reads, or writes what nobody else looks at, is not given it.
#
# One for each process; a fork that was made without an `exec` keeps it, too.


@cache
def ends() -> tuple[int, int]:
    """The reading end and the writing one; made when they are first asked for."""
    return os.pipe2(os.O_CLOEXEC)


def passed() -> tuple[int, ...]:
    """The descriptors that a child which writes is to be passed; none where nobody reads."""
    return ends()[1:] if ends.cache_info().currsize else ()
