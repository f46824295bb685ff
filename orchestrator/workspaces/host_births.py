"""Folders of this machine that portable ones begin with: what is copied of them, and under which rules."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from orchestrator.core.frozen import record
from orchestrator.core.settings import PortableFolder
from orchestrator.folders.head import excludes_of
from orchestrator.folders.records import Bounds, FolderError
from orchestrator.sandbox.git import GitFailed, run_git, work_tree
from orchestrator.tables import WorkspaceSettings

IGNORED_BYTES = 16 << 10
"""Bytes of a person's own rules: the first entry of the log holds them."""
BIRTH_S = 600.0
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")


class UnfitFolder(ValueError):
    """A folder that no portable one can begin with; the text says why and what to do."""


@record
class HostFolder:
    """A folder of this machine, whole: the repository that a working folder is in, or that one itself."""

    top: Path
    within: str
    """The working folder's path in it."""
    portable: PortableFolder


def host_folder(
    folder: Path,
    settings: WorkspaceSettings,
    home: Path | None,
    environ: Mapping[str, str],
    archive: Path | None = None,
) -> HostFolder:
    """The folder to copy for a working folder; blocking. Raises `UnfitFolder`.

    `archive` is the folder of the archive, where that lies outside of the home.
    """
    real = folder.resolve()
    if not real.is_dir():
        raise UnfitFolder(f"there is no folder {folder} on this machine")
    root = settings.root
    assert root is not None, "filled in with the settings"
    for kept in (home.resolve() if home is not None else root.resolve(), root.resolve()):
        if kept.is_relative_to(real) or real.is_relative_to(kept):
            raise UnfitFolder(
                f"{real} and Dendro's own folder {kept} contain each other; name a folder of work"
            )
    top = _top_of(real)
    if settings.key_file is not None and settings.key_file.resolve().is_relative_to(top):
        raise UnfitFolder(
            f"{settings.key_file} (`workspace.key_file`) lies in {top}, and would be stored with it; keep it "
            "elsewhere"
        )
    if archive is not None and archive.resolve().is_relative_to(top):
        raise UnfitFolder(
            f"{archive} (`upkeep.archive_url`) lies in {top}, and agents with copies of that would read the "
            "logs of all sessions; keep it elsewhere"
        )
    hidden = tuple(it for it in (home, root, settings.key_file, archive) if it is not None)
    repository = repository_of(top)
    if repository is not None and any(repository.resolve().is_relative_to(it.resolve()) for it in hidden):
        raise UnfitFolder(f"the repository of {top} lies in Dendro's own folder: no copy is made of it")
    try:
        ignored = _own_ignores(environ, top, repository, hidden)
    except FolderError as error:
        raise UnfitFolder(error.text) from error
    return HostFolder(top, str(real.relative_to(top)), portable_folder(settings, top.name, ignored=ignored))


def portable_folder(settings: WorkspaceSettings, name: str, **more: object) -> PortableFolder:
    """A portable folder under these settings; a name that is no plain word becomes one."""
    plain = name if _NAME.fullmatch(name) else "work"
    globs: dict[str, object] = {"include": settings.include, "exclude": settings.exclude, **more}
    return PortableFolder(str(settings.root), plain, **globs)  # type: ignore[arg-type]


def _own_ignores(
    environ: Mapping[str, str], top: Path, repository: Path | None, hidden: tuple[Path, ...]
) -> tuple[str, ...]:
    """The person's own rules, which no other machine has: what they hide must not be uploaded from there."""
    lines: list[str] = []
    for line in excludes_of(environ, repository, hidden):
        if sum(map(len, lines)) + len(line) > IGNORED_BYTES:
            raise UnfitFolder(
                f"the rules of your own for {top} (`core.excludesFile`, `.git/info/exclude`) travel "
                f"with the session, and have more than {IGNORED_BYTES:,} bytes; shorten them"
            )
        if line.strip() and not line.startswith("#"):
            lines.append(line)
    return tuple(lines)


def birth_bounds(settings: WorkspaceSettings, portable: PortableFolder) -> Bounds:
    """The bounds of the first snapshot."""
    return Bounds(
        max_file=settings.max_file,
        max_files=settings.max_files,
        max_bytes=settings.max_bytes,
        seconds=max(settings.seconds, BIRTH_S),
        include=portable.include,
        exclude=portable.exclude,
        ignored=portable.ignored,
    )


def commit_of(top: Path) -> tuple[str, Path | None]:
    """The commit that a folder's repository is at, and the repository; none outside of one. Blocking.

    Raises `UnfitFolder` where git does not answer.
    """
    repository = repository_of(top)
    if repository is None:
        return "", None
    commit = _asked(top, "rev-parse", "--verify", "--quiet", "HEAD^{commit}")
    return (commit, repository) if commit else ("", None)


def repository_of(top: Path) -> Path | None:
    """The repository of a folder that has one of its own: the `.git` that all its work trees share."""
    if not os.path.lexists(top / ".git"):
        return None
    common = _asked(top, "rev-parse", "--path-format=absolute", "--git-common-dir")
    return Path(common) if common else None


def _asked(folder: Path, *words: str) -> str:
    try:
        return run_git(folder, *words).text
    except GitFailed as error:
        raise UnfitFolder(str(error)) from error


def _top_of(folder: Path) -> Path:
    """The top of the repository around a folder, else the folder."""
    try:
        return work_tree(folder) or folder
    except GitFailed as error:
        raise UnfitFolder(str(error)) from error
