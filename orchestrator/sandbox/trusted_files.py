"""Files and programs that the product itself uses, outside of a sandbox, where commands may write.

A command can leave anything under a name that is read later: a pipe that never ends, a device, a
terabyte of zeros, a link to what is hidden from it, or a `git` of its own.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
import sys
import time
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path

from orchestrator.home import without_links

SYSTEM_FOLDERS = frozenset(
    (
        "/usr/local/sbin",
        "/usr/local/bin",
        "/usr/sbin",
        "/usr/bin",
        "/sbin",
        "/bin",
        "/run/current-system/sw/bin",
    )
)
"""Folders of programs that belong to the machine, whoever this process runs as."""
_SYSTEM_TREES = ("/usr", "/bin", "/sbin", "/nix/store", "/gnu/store")
_LINKED = frozenset(("/", "/usr", "/var"))
"""Folders in which the machine has links of its own, also where this user is root."""
_SYSTEM_WORK = "/usr/src"
"""A folder below them that images of containers keep projects in."""
PROGRAMS = "DENDRO_PROGRAMS"
"""The variable by which a person vouches for other folders: no session ever writes there."""
_TEMPORARY = ("/tmp", "/var/tmp", "/dev/shm")
_NAMES = ("TMPDIR", "TMP", "TEMP")
_ROOT = 0
_REMEMBER_S = 10.0
_MOST_LINKS = 40
_PYTHON = re.compile(r"(python|pypy)([0-9][0-9.]*[dmtu]*)?(-dbg)?")
"""Names of Python's program, with the letters of special builds (`python3.13t` is without a global lock)."""
_RUNS = re.compile(r"-[^-cmWXQ]*[cm].*", re.DOTALL)
"""A word of Python's options with `-m` or `-c`; of letters in one word, the first with a value ends them."""
_APART = re.compile(r"-[^-cmWXQ]*[WXQ]|--check-hash-based-pycs|--jit")
"""A word of them whose value is the next word. `-Q` is Python 2's, `--jit` PyPy's."""
_MARKS = (".git", "pyvenv.cfg")
"""Names in a folder that is a project, or an environment of one."""


class LeadsOut(PermissionError):
    """A link leads out of the folder in which a file has to lie."""


def read_regular(path: Path, limit: int, hidden: Iterable[Path] = (), below: Path | None = None) -> bytes:
    """At most `limit` bytes of a file. Never waits for a pipe.

    Raises OSError for what is no regular file, for what really lies below a hidden path, and with `below`
    LeadsOut for what lies anywhere but below that folder.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "Not a regular file", str(path))
        # What was opened, not what the name leads to by now.
        found = Path(f"/proc/self/fd/{descriptor}").readlink()
        if below is not None and not found.is_relative_to(without_links(below)):
            raise LeadsOut(errno.EACCES, f"A link leads out of {below}", str(path))
        if any(found.is_relative_to(without_links(folder)) for folder in hidden):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return file.read(limit)


def find_program(name: str, search_path: str | None = None) -> str | None:
    """The path of a program that the product itself needs, by PATH, where no session can have written it.

    Sessions may work in any folder of the person's, so a folder counts if it is one of the system's, if the
    person has vouched for it (`DENDRO_PROGRAMS`), or if it is root's, and this user cannot write it, nor any
    folder or link on the way to it; the same holds for the file that the program's name leads to.
    """
    for folder in program_folders(search_path):
        path = shutil.which(name, path=folder)
        if path is not None and _is_steady(path, os.path.realpath(path)):
            return path
    return None


def program_folders(search_path: str | None = None) -> list[str]:
    """The parts of a PATH in which `find_program` looks."""
    said = tuple(os.get_exec_path() if search_path is None else search_path.split(":"))
    known = _here(), os.environ.get(PROGRAMS, ""), tuple(map(os.environ.get, _NAMES))
    return list(_trusted(said, known, int(time.monotonic() // _REMEMBER_S)))


@lru_cache(maxsize=32)
def _trusted(said: tuple[str, ...], known: object, now: int) -> tuple[str, ...]:
    """The folders that no session writes; `known` is what else decides, and the answer holds for seconds."""
    never = [path for place in _never() for path in {str(place), os.path.realpath(place)}]
    return tuple(dict.fromkeys(folder for folder in said if _is_trusted(folder, never)))


def program_environment() -> dict[str, str]:
    """Variables for a process of the product's own that finds programs itself."""
    vouched = os.environ.get(PROGRAMS)
    return {"PATH": ":".join(program_folders()), **({PROGRAMS: vouched} if vouched else {})}


def find_named_program(name: str, search_path: str, work: Iterable[Path] = ()) -> str | None:
    """The path of a program that a person has named in the settings: of an MCP server, for notifications.

    Such programs often lie in the home folder. So folders of PATH count unless they are below a project, the
    current folder, `work` or a temporary folder. Who names a program by its path gets that one.
    """
    if name.startswith("/"):
        return shutil.which(name)
    if "/" in name:
        return None
    folders = named_folders(search_path, work)
    return shutil.which(name, path=":".join(folders)) if folders else None


def not_found(name: str) -> str:
    """The reason why `find_named_program` finds no program of that name."""
    if "/" in name:
        return "is not there, or cannot be run"
    return "is not on PATH outside of projects and temporary folders"


def named_folders(search_path: str, work: Iterable[Path] = ()) -> list[str]:
    """The parts of a PATH in which `find_named_program` looks."""
    away = [Path(_here()), *work, *_temporary()]
    said = [folder for folder in search_path.split(":") if folder.startswith("/")]
    return [it for it in said if it in SYSTEM_FOLDERS or _is_vouched(it) or not _is_work(Path(it), away)]


def named_environment(argv: Sequence[str], search_path: str, work: Iterable[Path] = ()) -> dict[str, str]:
    """Variables with which such a program takes nothing from where sessions write.

    What it starts itself (`env node` of its first line, `git`) is found where it could be found itself.
    """
    safe = {"PYTHONSAFEPATH": "1"} if _imports_from_its_folder(argv) else {}
    return {"PATH": ":".join(named_folders(search_path, work)), **safe}


def own_environment(argv: Sequence[str], search_path: str, work: Iterable[Path] = ()) -> dict[str, str]:
    """The variables of this process, for such a program; those of `named_environment` go before."""
    return {**os.environ, **named_environment(argv, search_path, work)}


def _imports_from_its_folder(argv: Sequence[str]) -> bool:
    """Whether it is a Python without a file, with `-m` or `-c`: it imports first from where it starts.

    In a session's folder a module of the program's or the standard library's name is whoever's.
    """
    if _PYTHON.fullmatch(argv[0].rpartition("/")[2]) is None:
        return False
    words = iter(argv[1:])
    for word in words:
        if word in ("-", "--") or not word.startswith("-"):
            # A file; without one, or as `-`, Python reads its program from stdin.
            return (next(words, "-") if word == "--" else word) == "-"
        if _RUNS.fullmatch(word):
            return True
        if _APART.fullmatch(word):
            next(words, None)
    return True


def _is_trusted(folder: str, never: Iterable[str]) -> bool:
    if not folder.startswith("/"):
        return False
    if _is_vouched(folder):
        return True
    real = os.path.realpath(folder)
    if any(_below(folder, place) or _below(real, place) for place in never):
        return False
    return folder in SYSTEM_FOLDERS or _is_steady(folder, real)


def _is_steady(path: str, real: str) -> bool:
    """Whether no session can write what is at a path."""
    named = _parent(path)
    if (path in SYSTEM_FOLDERS or named in SYSTEM_FOLDERS) and _is_of_system(real):
        return True
    return _is_vouched(named) or not _may_change_on_the_way(path)


def _is_of_system(real: str) -> bool:
    return any(_below(real, tree) for tree in _SYSTEM_TREES) and not _below(real, _SYSTEM_WORK)


def _is_vouched(folder: str) -> bool:
    places = [place for place in os.environ.get(PROGRAMS, "").split(":") if place.startswith("/")]
    return any(_below(folder, place) for place in places)


def _may_change_on_the_way(path: str) -> bool:
    """Whether this user, or one who is not root, could put something else at the path, link by link."""
    todo = [part for part in path.split("/") if part][::-1]
    at, links = "/", 0
    while True:
        try:
            found = os.lstat(at)
        except OSError:
            return True
        if stat.S_ISLNK(found.st_mode):
            links += 1
            if links > _MOST_LINKS:
                return True
            target = str(Path(at).readlink())
            todo += [part for part in target.split("/") if part][::-1]
            at = "/" if target.startswith("/") else _parent(at)
            continue
        if found.st_uid != _ROOT or os.geteuid() == _ROOT or found.st_mode & stat.S_IWOTH or _may_write(at):
            return True
        if not todo:
            return False
        name = todo.pop()
        at = _parent(at) if name == ".." else os.path.normpath(f"{at}/{name}")


def own_link(path: Path) -> Path | None:
    """The first link on the way to a path that this user can have made, and so a command of any session.

    Links in the folders of the machine are not meant: `/home` leads elsewhere on some.
    """
    todo = [part for part in str(path.absolute()).split("/") if part][::-1]
    at, links = "/", 0
    while todo:
        name = todo.pop()
        step = _parent(at) if name == ".." else f"{at.rstrip('/')}/{name}"
        try:
            target = os.readlink(step)  # noqa: PTH115 - a Path for each step costs more than the look
        except OSError:
            at = step  # no link, or not there
            continue
        links += 1
        if links > _MOST_LINKS or (at not in _LINKED and _may_write(at)):
            return Path(step)
        todo += [part for part in target.split("/") if part not in ("", ".")][::-1]
        at = "/" if target.startswith("/") else at
    return None


def _parent(path: str) -> str:
    return path.rpartition("/")[0] or "/"


def _may_write(path: str) -> bool:
    return os.access(path, os.W_OK, effective_ids=True)


def _here() -> str:
    try:
        return str(Path.cwd())
    except OSError:
        return "/"  # it has been removed


def _never() -> list[Path]:
    """Folders that sessions write wherever they work, and the current one."""
    here = Path(_here())
    return [*([here] if len(here.parts) > 1 else []), *_temporary()]


def _temporary() -> list[Path]:
    named = (os.environ.get(name, "") for name in _NAMES)
    return [Path(folder) for folder in (*_TEMPORARY, *named) if folder.startswith("/") and folder != "/"]


def _is_below(folder: Path, place: Path) -> bool:
    return folder.is_relative_to(place) or folder.is_relative_to(os.path.realpath(place))


def _below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder}/")


def _is_work(folder: Path, away: Iterable[Path]) -> bool:
    real = Path(os.path.realpath(folder))
    if real.is_relative_to(sys.prefix):
        return False
    if any(_is_below(it, place) for it in (folder, real) for place in away if len(place.parts) > 1):
        return True
    home = Path(os.path.realpath(Path("~").expanduser()))
    around = {it for place in (folder, real) for it in (place, *place.parents) if len(it.parts) > 1}
    if any((it.parent / "pyvenv.cfg").exists() for it in (folder, real)) or "node_modules" in folder.parts:
        return True
    # Managers of versions (`~/.nvm`, `~/.pyenv`) are clones as well.
    shown = [it for it in around if it != home and not it.name.startswith(".")]
    return any((it / mark).exists() for it in shown for mark in _MARKS)
