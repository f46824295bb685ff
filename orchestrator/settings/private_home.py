"""Whether other users of the machine can look into Dendro's folders: looked at whenever a command starts.

An earlier version made the home folder and the archive by the umask. What this user owns is closed, and the
person is told; what another user owns is refused, and so is a way to the home over another user's link. A
folder on the way that others can write to is told of: there they can put another folder in the home's place.
"""

from __future__ import annotations

import grp
import os
import pwd
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path

from orchestrator.core.frozen import record
from orchestrator.home import folder_of, without_links
from orchestrator.private_files import OTHERS, NotPrivate, close_below, own_folder
from orchestrator.settings.layers import SettingsError
from orchestrator.settings.load import Settings

CLOSED_BELOW = ("archive", "procfile", "prompts", "redis", "rules", "sessions", "skills")
"""Folders of the home whose files are closed, too; in `workspaces` modes are a command's own."""
WRITABLE = 0o022
"""The bits of a mode that let others put something into a folder."""
SHOWN = 3
MOST_LINKS = 40
COPIES = "workspaces"
SHARED = frozenset(
    map(
        Path,
        (
            "/",
            "/dev/shm",
            "/etc",
            "/home",
            "/run",
            "/srv",
            "/tmp",
            "/usr",
            "/var",
            "/var/lib",
            "/var/run",
            "/var/tmp",
        ),
    )
)
"""Folders that others need: none of them is made anybody's own."""


@record
class OpenFolder:
    """A folder of Dendro's that others than its user can look into, or that is not this user's."""

    path: Path
    why: str
    remedy: str
    closable: bool
    """Whether it is this user's own, and a `chmod` away from being private."""
    refused: bool = False
    """Whether nothing is done with it: its content decides what runs."""


def open_folders(settings: Settings) -> list[OpenFolder]:
    """The home folder, the way to it and the archive, as far as they are open to others. Changes nothing."""
    home = _judged(settings, settings.home, "DENDRO_HOME")
    found = [
        _way_to(settings.home),
        None if home is None else replace(home, refused=not home.closable),
        _judged(settings, archive_outside(settings), "upkeep.archive_url"),
    ]
    return [folder for folder in found if folder is not None]


def require_private(settings: Settings) -> list[str]:
    """Closes what is open and this user's own, and answers a line about each.

    Raises `SettingsError` for a home folder that cannot be closed or is reached over another user's link, and
    for one in which others could have put settings, rules or links, and something is theirs. An archive of
    another user's is left as it is: what is put there has mode 600. A folder on the way to the home that
    others can write to is told of, too.
    """
    lines, way = [], _way_to(settings.home)
    for folder in open_folders(settings):
        if folder.refused:
            raise SettingsError("settings", "home", f"{folder.path} {folder.why}", folder.remedy)
        if folder.closable:
            if folder.path == settings.home and folder.path.stat().st_mode & WRITABLE:
                _require_own_entries(folder)
            lines.append(_closed(folder, inside=folder.path == settings.home))
        elif folder == way:
            lines.append(f"{folder.path} {folder.why}: {folder.remedy}")
    return lines


def _way_to(home: Path) -> OpenFolder | None:
    """A place on the way to the home where another user decides what it is, a link first; None if none is."""
    found = list(_faults_on_the_way(home))
    return next((place for place in found if place.refused), next(iter(found), None))


def _faults_on_the_way(home: Path) -> Iterator[OpenFolder]:
    system = {0, os.geteuid(), Path("/").stat().st_uid}
    todo, at, links = [*home.absolute().parts[:0:-1]], Path("/"), 0
    while todo:
        try:
            around, step = at.stat(), at / todo.pop()
            found = step.lstat()
        except OSError:
            return  # nothing is there yet, or it is told of where it is used
        if (fault := _replaceable(around, system)) and not _keeps(around, found, system):
            remedy = (
                f"they can put another folder in the place of {step}: chmod go-w {at}, or set DENDRO_HOME to "
                "a folder that only you write to"
            )
            yield OpenFolder(at, fault, remedy, closable=False)
        if not stat.S_ISLNK(found.st_mode):
            at = step
            continue
        links += 1
        if found.st_uid not in system or links > MOST_LINKS:
            why = f"is on the way to {home}, and a link of another user's (uid {found.st_uid})"
            remedy = "set DENDRO_HOME to the folder itself, if it is yours"
            yield OpenFolder(step, why, remedy, closable=False, refused=True)
            return
        target = step.readlink()
        todo += [part for part in reversed(target.parts) if part != "/"]
        at = Path("/") if target.is_absolute() else at


def _replaceable(folder: os.stat_result, system: set[int]) -> str:
    """The reason why others could rename what is in a folder; empty if they cannot."""
    if folder.st_uid not in system:
        return f"belongs to another user of this machine (uid {folder.st_uid})"
    open_to_group = folder.st_mode & stat.S_IWGRP and not _is_own_group(folder.st_gid)
    if folder.st_mode & stat.S_IWOTH or open_to_group:
        return f"can be written to by other users of this machine (mode {stat.S_IMODE(folder.st_mode):o})"
    return ""


def _keeps(folder: os.stat_result, entry: os.stat_result, system: set[int]) -> bool:
    """Whether a folder's sticky bit keeps others from renaming an entry."""
    return bool(folder.st_mode & stat.S_ISVTX) and {folder.st_uid, entry.st_uid} <= system


def _is_own_group(gid: int) -> bool:
    """Whether a group is this user's alone, as many systems make one for each user."""
    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(gid)
    except KeyError:
        return False
    return (gid, group.gr_name) == (user.pw_gid, user.pw_name) and {*group.gr_mem} <= {user.pw_name}


def _require_own_entries(folder: OpenFolder) -> None:
    """Raises `SettingsError` if something in a home is another user's: it may decide what Dendro runs."""
    theirs = list(islice(_of_others(folder.path), SHOWN + 1))
    if theirs:
        more = " and more" if len(theirs) > SHOWN else ""
        shown = ", ".join(map(repr, map(str, theirs[:SHOWN]))) + more
        why = f"{folder.path} {folder.why}, and other users have put something into it: {shown}"
        remedy = f"look at it, remove what is not yours, then: {folder.remedy}"
        raise SettingsError("settings", "home", why, remedy)


def _of_others(folder: Path) -> Iterator[Path]:
    """Files, folders and links below a folder that neither this user nor root owns, without copies."""
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(place, name)
            with suppress(FileNotFoundError):
                if path.lstat().st_uid not in (os.geteuid(), 0):
                    yield path
        if place == str(folder) and COPIES in folders:
            folders.remove(COPIES)


def _closed(folder: OpenFolder, *, inside: bool) -> str:
    try:
        own_folder(without_links(folder.path))
        for path in folder.path.iterdir() if inside else ():
            _close(path)
    except NotPrivate as error:
        raise SettingsError("settings", "home", str(error.strerror), folder.remedy) from None
    except OSError as error:
        why = f"{folder.path} {folder.why}, and cannot be closed: {error.strerror}"
        raise SettingsError("settings", "home", why, folder.remedy) from None
    return (
        f"{folder.path} {folder.why}: it is closed now (mode 700). Whoever has an account on this machine "
        "may have read conversations, outputs and packs in it until now"
    )


def _close(path: Path) -> None:
    found = path.lstat()
    if stat.S_ISDIR(found.st_mode) and path.name in CLOSED_BELOW:
        close_below(path)
    elif stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and found.st_mode & OTHERS:
        path.chmod(stat.S_IMODE(found.st_mode) & ~OTHERS)


def archive_outside(settings: Settings) -> Path | None:
    """The archive's folder, where it is one outside of the home."""
    return _outside(settings, settings.upkeep.archive_url)


def register_outside(settings: Settings) -> Path | None:
    """The folder of the registers, where it is one outside of the home."""
    return _outside(settings, settings.receipts.url or "")


def _outside(settings: Settings, url: str) -> Path | None:
    folder = folder_of(url)
    return None if folder is None or folder.is_relative_to(settings.home) else folder


def _judged(settings: Settings, folder: Path | None, named_by: str) -> OpenFolder | None:
    try:
        found = None if folder is None else folder.stat()
    except OSError:
        return None  # there is none yet, or it is told of where it is used
    if folder is None or found is None or not stat.S_ISDIR(found.st_mode):
        return None
    elsewhere = f"set {named_by} to a folder of your own"
    if is_shared(settings, folder) or found.st_mode & stat.S_ISVTX:
        return OpenFolder(folder, "is a folder that others use, too", elsewhere, closable=False)
    if found.st_uid != os.geteuid():
        why = f"belongs to another user of this machine (uid {found.st_uid})"
        return OpenFolder(folder, why, f"{elsewhere}, or run Dendro as that user", closable=False)
    if found.st_mode & OTHERS:
        could = "read and changed" if found.st_mode & WRITABLE else "read"
        why = f"could be {could} by other users of this machine (mode {stat.S_IMODE(found.st_mode):o})"
        return OpenFolder(folder, why, f"chmod 700 {folder}", closable=True)
    return None


def is_shared(settings: Settings, folder: Path) -> bool:
    """Whether a folder is one that other programs or users need as it is."""
    host = settings.host
    shared = {*SHARED, host.user_home, *([host.temp_dir] if host.temp_dir else [])}
    return without_links(folder) in set(map(without_links, shared))
