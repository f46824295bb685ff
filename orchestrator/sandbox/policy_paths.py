"""From the wire's sandbox policy to paths: what one command may write, and what it may not see.

Resolves symlinks once, before anything runs, so that every mechanism enforces the same
real paths. Knows nothing of how they are enforced.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, Final, Literal, get_args

from orchestrator.sandbox.trusted_files import own_link, read_regular

# ── place ─────────────────────────────────────────────────────────────────────────────────────────
# The place of a session's folder on this machine, where its commands see it under another path.
#
# A portable folder has one path on every machine, and every agent of a tree sees its own copy there. So
# the copies lie elsewhere, and a command's is mounted at that path, with a `/tmp` of its own. The worker
# itself has no such mounts: what it reads or writes for a session, it looks up here.


MOST_LINKS = 40
"""Links that one path may lead through, as in the kernel."""
TEMPORARY = Path("/tmp")
COPIES = "copies"


@dataclass(frozen=True, slots=True)
class Place:
    """A folder, and the `/tmp` beside it: where commands see them, and where they are."""

    seen: Path
    """The folder's path for commands, events and models: `<root>/<tree>/<name>`."""
    here: Path
    """Its path on this machine, free of links."""
    temporary: Path
    """The folder that commands see as `/tmp`."""

    @classmethod
    def of(cls, root: Path, tree: str, session: str, name: str) -> Place:
        """The place of a session's folder below the root that all workers of its pool share."""
        copy = copy_of(root, session)
        return cls(root / tree / name, copy / "folder", copy / "tmp")

    def on_machine(self, path: Path) -> Path:
        """The path on this machine of what commands call `path`; links in it are not followed."""
        named = Path(os.path.normpath(path))
        for seen, here in ((self.seen, self.here), (TEMPORARY, self.temporary)):
            if named.is_relative_to(seen) and not named.is_relative_to(self.here.parent):
                return here / named.relative_to(seen)
        return named

    def followed(self, path: Path) -> Path:
        """The path on this machine that `path` leads to, every link followed as a command would follow it.

        Raises `OSError` (ELOOP) for links that do not end.
        """
        now = self.on_machine(path)
        for _ in range(MOST_LINKS):
            # A link that names the folder by its path for commands leads out of the copy, and back in.
            real = Path(os.path.realpath(now))
            now = self.on_machine(real)
            if now == real:
                return real
        raise OSError(40, os.strerror(40), str(path))

    def for_commands(self, path: Path) -> Path:
        """The name that commands have for a path on this machine."""
        for seen, here in ((self.seen, self.here), (TEMPORARY, self.temporary)):
            if path.is_relative_to(here):
                return seen / path.relative_to(here)
        return path

    def holds(self, path: Path) -> bool:
        """Whether a path on this machine, links followed, is of the folder or its `/tmp`."""
        return path.is_relative_to(self.here) or path.is_relative_to(self.temporary)


def copy_of(root: Path, session: str) -> Path:
    """The folder of all that a machine keeps of a session's folder."""
    return root / COPIES / session


# ── policy ────────────────────────────────────────────────────────────────────────────────────────


Mode = Literal["read-only", "workspace-write", "danger-full-access"]

CONTROL_SOCKETS = (
    "/run/docker.sock",
    "/run/containerd",
    "/run/crio",
    "/run/podman",
    "/run/libvirt",
    "/run/dbus",
    "/run/systemd/private",
    "/run/initctl",
    "/run/user/{uid}",
    "/tmp/.X11-unix",
    "/tmp/tmux-{uid}",
    "/run/screen",
)
"""Sockets, and one pipe, whose servers start programs for any client. A read-only mount does not
stop a connect, so a confined command that reaches one of them is not confined."""

PROJECT_CONFIG = "dendro.toml"
"""The name of a folder's own configuration file."""


_MOST_NAMED = 8192


class InvalidPolicy(ValueError):
    """The policy names no known mode or holds a field of the wrong type; the message says which."""


@dataclass(frozen=True, slots=True)
class Confinement:
    """The boundaries of a command, all paths absolute and free of symlinks.

    Where a writable and a read-only or hidden path contain each other, the deeper one decides.
    """

    mode: Mode
    cwd: Path
    writable_roots: tuple[Path, ...] = ()
    read_only_subpaths: tuple[Path, ...] = ()
    missing: tuple[Path, ...] = ()
    """Paths that do not exist and must not come into being: a root's `.git`, because a repository made up
    by a command is code that the next `git status` outside of the sandbox runs, and a `dendro.toml` that a
    person has trusted and taken away, because the same content would count again. Any other new
    `dendro.toml` is a stranger's, which loosens nothing."""
    hidden: tuple[Path, ...] = ()
    passed: tuple[Path, ...] = ()
    """The folders between a writable root and what is kept in it, or is a root in it: written, never moved.
    With such a folder a command would move what is kept to where the next command has no guard, and could
    put a link to another place under its name."""
    network: bool = False
    unix_sockets: bool = False
    """Whether it may make Unix sockets that others can be reached by; pairs are always given out."""
    place: Place | None = None
    """The place of a portable folder: all paths here are of this machine, and commands see them elsewhere."""

    def may_write(self, path: Path) -> bool:
        """Whether commands may make or change a path; with full access nothing is asked."""
        kept = (*self.read_only_subpaths, *self.missing, *self.hidden)
        return _below(_real(path), self.writable_roots) and not _below(_real(path), kept)


def resolve(
    policy: Mapping[str, Any],
    cwd: Path,
    tmpdir: str | None,
    *,
    hidden: Iterable[Path] = (),
    read_only: Iterable[Path] = (),
    trusted: Iterable[Path] = (),
    unix_sockets: bool = False,
    place: Place | None = None,
) -> Confinement:
    """Resolves a wire policy for a command that starts in `cwd`.

    With a `place` the folder is a portable one: `cwd` is its path on this machine, `/tmp` is its own, and no
    other folder may be written.

    `tmpdir` is the command's `$TMPDIR`. `hidden` names what belongs to Dendro itself, such
    as the folder of the Redis socket: a command that reaches it could approve itself.
    `read_only` names files that no command may write, such as the configuration in force.
    `trusted` names the places of configurations that a person has trusted: no command may put one there.
    `unix_sockets` counts only where every path to hide is a folder that can be hidden: a
    server that starts again makes a new file, and what was put on the old one is gone.
    A folder of which `.git` is a link is none that may be written: `git_link` says it to the person.
    """
    mode = _mode(policy)
    real_cwd = _real(cwd)
    if mode == "danger-full-access":
        return Confinement(mode=mode, cwd=real_cwd, network=True, place=place)
    guarded, roots = ((), ()) if mode == "read-only" else _roots(policy, (cwd, real_cwd), tmpdir, place)
    own = tuple(hidden)
    found = _existing([*_control_sockets(os.getuid()), *own])
    concealed = _outermost(found)
    # Dendro's own folder as a workspace: an agent would write what decides over agents.
    # No mount holds a link: a command would put a repository of its own in the place of `.git`.
    linked = tuple(path for path in guarded if (path / ".git").is_symlink())
    closed = {*found, *linked}
    guarded, roots = (tuple(path for path in paths if path not in closed) for paths in (guarded, roots))
    if not all(path.is_dir() and _below(_real(path), concealed) for path in own):
        unix_sockets = False
    if mode == "read-only":
        return Confinement(mode=mode, cwd=real_cwd, hidden=concealed, unix_sockets=unix_sockets, place=place)
    places = _reachable(trusted, roots, concealed)
    trusted = [path for path in places if not _absent(path)]
    inner = _submodule_places(guarded) if place is None else []
    held = [
        *_git_paths(roots),
        *_git_entries(inner),
        *_config_files(roots),
        *trusted,
        *_reachable(read_only, roots, concealed),
        *_reachable(linked, roots, concealed),
    ]
    kept = tuple(path for path in _existing(held) if path not in roots)
    absent = (path for path in (*(root / ".git" for root in guarded), *inner, *places) if _absent(path))
    missing = tuple(dict.fromkeys(map(_real, absent)))
    return Confinement(
        mode=mode,
        cwd=real_cwd,
        writable_roots=roots,
        read_only_subpaths=kept,
        missing=missing,
        hidden=concealed,
        passed=_passed(roots, (*kept, *missing, *concealed)),
        network=_flag(policy, "network_access"),
        unix_sockets=unix_sockets,
        place=place,
    )


def git_link(folder: Path) -> str:
    """The reason why no command may write a folder of which `.git` is a link; empty for others."""
    place = folder / ".git"
    if not place.is_symlink():
        return ""
    return (
        f"{place} is a link, which a command could exchange for a repository of its own, whose programs your "
        f"next git would run: so commands may not write in {folder}. Make it a file that says "
        f"`gitdir: {_real(place)}`, which git takes the same way"
    )


def _roots(
    policy: Mapping[str, Any], cwds: tuple[Path, Path], tmpdir: str | None, place: Place | None
) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
    """The folders whose repositories are guarded, and all that may be written.

    `cwds` is the folder as it was named, and where that leads.
    """
    if place is not None:
        return _portable_roots(policy, place)
    cwd, real_cwd = cwds
    declared = [cwd.absolute(), *_declared_roots(policy, real_cwd)]
    temporary = _temporary_roots(policy, tmpdir)
    named = [Path(os.path.normpath(path)) for path in (*declared, *temporary)]
    if own_link(cwd) is not None:
        # A command of another session may have put it in the place of the folder since that was chosen.
        declared = declared[1:]
    guarded = _existing(path for path in declared if _is_steady(path, named))
    others = _existing(path for path in temporary if _is_steady(path, named))
    return guarded, tuple(dict.fromkeys((*guarded, *others)))


def _portable_roots(policy: Mapping[str, Any], place: Place) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
    """The folder and its own `/tmp`: what is written elsewhere is in no snapshot."""
    for root in _declared_roots(policy, place.seen):
        if not Path(os.path.normpath(root)).is_relative_to(place.seen):
            raise InvalidPolicy(
                f"sandbox policy field writable_roots names {root}: the session's folder is portable, and "
                f"what is written outside of {place.seen} and {TEMPORARY} would be lost with this machine. "
                "Leave it out"
            )
    temporary = () if _flag(policy, "exclude_slash_tmp") else (place.temporary,)
    return (place.here,), (place.here, *temporary)


def _is_steady(path: Path, roots: Sequence[Path]) -> bool:
    """Whether no symlink on the way to a root lies inside of another root: a command may have made it.

    Else a command puts a link to any folder in the place of a root, and the next one may write there.
    """
    place = Path(os.path.normpath(path))
    links = [Path(step) for step in _way(str(place)) if _is_link(step)]
    others = tuple(_real(root) for root in roots if root != place) if links else ()
    return not any(_below(_real(link.parent) / link.name, others) for link in links)


def _way(path: str) -> Iterator[str]:
    """A normal absolute path and the folders that it is in, from the inside: `Path.parents` at a tenth."""
    while path != "/":
        yield path
        path = path.rpartition("/")[0] or "/"
    yield path


def _is_link(path: str) -> bool:
    """`Path.is_symlink`, which raises `OSError` where nobody may look."""
    try:
        return stat.S_ISLNK(os.lstat(path).st_mode)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.EBADF, errno.ELOOP):
            raise
    except ValueError:
        # Of a path with a NUL there is none.
        pass
    return False


def _mode(policy: Mapping[str, Any]) -> Mode:
    named = policy.get("mode", policy.get("type"))
    for mode in get_args(Mode):
        if named == mode:
            return mode  # type: ignore[no-any-return]
    raise InvalidPolicy(f"sandbox policy mode {named!r} is none of {', '.join(get_args(Mode))}")


def _flag(policy: Mapping[str, Any], name: str) -> bool:
    value = policy.get(name, False)
    if not isinstance(value, bool):
        raise InvalidPolicy(f"sandbox policy field {name} must be true or false, not {value!r}")
    return value


def _declared_roots(policy: Mapping[str, Any], cwd: Path) -> list[Path]:
    declared = policy.get("writable_roots") or ()
    if isinstance(declared, str) or not isinstance(declared, Sequence):
        raise InvalidPolicy(f"sandbox policy field writable_roots must be a list of paths, not {declared!r}")
    return [cwd / root for root in declared]


def _temporary_roots(policy: Mapping[str, Any], tmpdir: str | None) -> list[Path]:
    roots = []
    if not _flag(policy, "exclude_slash_tmp"):
        roots.append(Path("/tmp"))
    if tmpdir and Path(tmpdir).is_absolute() and not _flag(policy, "exclude_tmpdir_env_var"):
        roots.append(Path(tmpdir))
    return roots


def _existing(paths: Iterable[Path]) -> tuple[Path, ...]:
    """The real paths of those that exist, each once, in order."""
    return tuple(dict.fromkeys(_real(path) for path in paths if os.path.lexists(path)))


def _outermost(paths: tuple[Path, ...]) -> tuple[Path, ...]:
    """Without those inside another: a hidden folder hides what is in it, and has no place to mount on."""
    return tuple(
        path for path in paths if not any(path != other and _below(path, (other,)) for other in paths)
    )


def _reachable(files: Iterable[Path], roots: tuple[Path, ...], concealed: tuple[Path, ...]) -> list[Path]:
    """The files that a command could write: a file in a hidden folder has no place to mount on."""

    return [file for file in map(_real, files) if _below(file, roots) and not _below(file, concealed)]


def _passed(roots: tuple[Path, ...], kept: tuple[Path, ...]) -> tuple[Path, ...]:
    """The folders on the way from a root to what is kept in it, or to another root in it."""
    around = {str(root) for root in roots} - {str(path) for path in kept}
    ends = dict.fromkeys(str(path) for path in (*roots, *kept))
    found: list[str] = []
    for end in ends:
        # From the end outwards: what lies around the next such place is found from there.
        way: list[str] = []
        for folder in islice(_way(end), 1, None):
            if folder in ends:
                found += way if folder in around else ()
                break
            way.append(folder)
    return tuple(map(Path, dict.fromkeys(found)))


def _below(path: Path, folders: tuple[Path, ...]) -> bool:
    """`Path.is_relative_to` for each of the folders, which makes three paths to compare two."""
    parts = path.parts
    return any(parts[: len(folder.parts)] == folder.parts for folder in folders)


def _absent(entry: Path) -> bool:
    """Whether the folder is there and the entry not: it leads nowhere, or is an empty directory.

    That is what an interrupted guard leaves behind.

    One look decides: guards of other commands come and go meanwhile, and an entry that went is one to guard.
    """
    if not entry.parent.is_dir():
        return False
    try:
        mode = entry.lstat().st_mode
    except FileNotFoundError:
        return True
    if stat.S_ISLNK(mode):
        return not entry.exists() and _real(entry).parent.is_dir()
    return stat.S_ISDIR(mode) and _is_empty(entry)


def _is_empty(folder: Path) -> bool:
    try:
        return not any(folder.iterdir())
    except FileNotFoundError:
        # The guard of a command that has ended meanwhile.
        return True


def _real(path: Path) -> Path:
    """The path with symlinks resolved; of a symlink in a circle, the path itself."""
    return Path(os.path.realpath(path))


def _config_files(roots: Iterable[Path]) -> list[Path]:
    """Each root's configuration file; of a symlink, which nothing can be mounted on, its target."""
    return [file for root in roots if (file := root / PROJECT_CONFIG).is_file()]


def _git_paths(roots: Iterable[Path]) -> list[Path]:
    """Each root's `.git`; for a worktree's `.git` file also the directories that it leads to."""
    return _git_entries(root / ".git" for root in roots)


def _submodule_places(roots: Iterable[Path]) -> list[Path]:
    """The `.git` of each submodule of the roots' repositories, and of theirs, whether or not it is there."""
    found: list[Path] = []
    waiting = list(roots)
    while waiting and len(found) < MOST_SUBMODULES:
        top = waiting.pop()
        git = top / ".git"
        folder = next(iter(_linked_directories(git)), git) if git.is_file() else git
        for name in submodules(folder / "index"):
            path = top / name
            # An index is a stranger's: a guard is made for what it names, so that is a folder in this one.
            if path != top and _below(path, (top,)) and os.path.isdir(path) and _real(path) == path:  # noqa: PTH112
                found.append(path / ".git")
                waiting.append(path)
    return found[:MOST_SUBMODULES]


def _git_entries(places: Iterable[Path]) -> list[Path]:
    found: list[Path] = []
    for git in places:
        if git.is_symlink():
            found.append(git.parent)  # no mount holds a link
        if git.is_file():
            found += [git, *_linked_directories(git)]
        elif git.is_dir() and not _absent(git):
            found.append(git)
    return found


def _linked_directories(git_file: Path) -> list[Path]:
    """The gitdir that a `.git` file names and, for a worktree, the repository that it shares."""
    first_line = _words_of(git_file).partition("\n")[0]
    label, _, target = first_line.partition(":")
    if label != "gitdir":
        return []
    gitdir = git_file.parent / target.strip()
    common = gitdir / "commondir"
    if not common.is_file():
        return [gitdir]
    return [gitdir, gitdir / _words_of(common).strip()]


def _words_of(file: Path) -> str:
    """A file of a repository is a stranger's: a path fits into this, and a terabyte does not."""
    return read_regular(file, _MOST_NAMED).decode("utf-8", "surrogateescape")


@lru_cache(maxsize=1)
def _control_sockets(uid: int) -> tuple[Path, ...]:
    return tuple(Path(path.format(uid=uid)) for path in CONTROL_SOCKETS)


# ── submodules ────────────────────────────────────────────────────────────────────────────────────
# Submodules of a repository, by its index: `git status` at the top runs git in each, under its own
# settings.
#
# The index lies in `.git`, which no confined command writes; `.gitmodules` is anybody's.


MOST_SUBMODULES: Final = 256
"""Submodules of one repository, those of submodules too; what lies beyond is not known of."""
MOST_BYTES: Final = 64 << 20
"""Of an index; git writes some 100 for each file."""
_LINK: Final = 0o160000
_MODES: Final = frozenset((0o100644, 0o100755, 0o120000, 0o040000, _LINK))
_LONG: Final = 0xFFF
_EXTENDED: Final = 0x4000
_HASHES: Final = (20, 32)
"""Bytes of an object's name: SHA-1, SHA-256."""


def submodules(index: Path) -> tuple[str, ...]:
    """The paths of submodules in an index, relative to its work tree; none of a file that is no index."""
    try:
        about = index.stat()
        return _known(index, about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns)
    except OSError:
        return ()


@lru_cache(maxsize=64)
def _known(index: Path, *_signs: int) -> tuple[str, ...]:
    data = read_regular(index, MOST_BYTES)
    # Most repositories have none, and this is a hundred times faster than the entries one by one.
    if struct.pack(">I", _LINK) not in data:
        return ()
    for size in _HASHES:
        try:
            found = [name for name, mode in _entries(data, size) if mode == _LINK and b"\0" not in name]
        except (ValueError, struct.error, IndexError):
            continue
        return tuple(name.decode("utf-8", "surrogateescape") for name in found[:MOST_SUBMODULES])
    return ()


def _entries(data: bytes, hash_bytes: int) -> Iterator[tuple[bytes, int]]:
    """Names and modes (gitformat-index, versions 2 to 4); raises `ValueError` for what is none."""
    signature, version, count = struct.unpack_from(">4sII", data)
    if signature != b"DIRC" or version not in (2, 3, 4):
        raise ValueError("no index")
    at, name = 12, b""
    for _ in range(count):
        (mode,) = struct.unpack_from(">I", data, at + 24)
        (flags,) = struct.unpack_from(">H", data, at + 40 + hash_bytes)
        if mode not in _MODES:
            raise ValueError("no entry of an index")
        begin = at + 42 + hash_bytes + (2 if version > 2 and flags & _EXTENDED else 0)
        if version == 4:
            cut, begin = _number(data, begin)
            end = data.index(b"\0", begin)
            name, at = name[: len(name) - cut] + data[begin:end], end + 1
        else:
            length = flags & _LONG
            end = begin + length if length < _LONG else data.index(b"\0", begin + length)
            name, at = data[begin:end], at + ((end - at + 8) & ~7)
        yield name, mode


def _number(data: bytes, at: int) -> tuple[int, int]:
    """A number as git writes offsets, and where it ends."""
    value = data[at] & 0x7F
    while data[at] & 0x80:
        at += 1
        value = ((value + 1) << 7) | (data[at] & 0x7F)
    return value, at + 1
