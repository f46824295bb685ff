"""Folders of this machine that portable ones begin with: what is copied of them, and under which rules."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from orchestrator.core.settings import PortableFolder
from orchestrator.folders.head import excludes_of
from orchestrator.folders.records import Bounds
from orchestrator.instructions.repository import git
from orchestrator.tables import WorkspaceSettings

IGNORED_BYTES = 16 << 10
"""Bytes of a person's own rules: the first entry of the log holds them."""
BIRTH_S = 600.0
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")


class UnfitFolder(ValueError):
    """A folder that no portable one can begin with; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class HostFolder:
    """A folder of this machine, whole: the repository that a working folder is in, or that one itself."""

    top: Path
    within: str
    """The working folder's path in it."""
    portable: PortableFolder


def host_folder(
    folder: Path, settings: WorkspaceSettings, home: Path | None, environ: Mapping[str, str]
) -> HostFolder:
    """The folder to copy for a working folder; blocking. Raises `UnfitFolder`."""
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
    top = Path(git(real, "rev-parse", "--show-toplevel") or real)
    top = top if real.is_relative_to(top) else real
    if settings.key_file is not None and settings.key_file.resolve().is_relative_to(top):
        raise UnfitFolder(
            f"{settings.key_file} (`workspace.key_file`) lies in {top}, and would be stored with it; keep it "
            "elsewhere"
        )
    portable = portable_folder(settings, top.name, ignored=_own_ignores(environ, top))
    return HostFolder(top, str(real.relative_to(top)), portable)


def portable_folder(settings: WorkspaceSettings, name: str, **more: object) -> PortableFolder:
    """A portable folder under these settings; a name that is no plain word becomes one."""
    plain = name if _NAME.fullmatch(name) else "work"
    globs: dict[str, object] = {"include": settings.include, "exclude": settings.exclude, **more}
    return PortableFolder(str(settings.root), plain, **globs)  # type: ignore[arg-type]


def _own_ignores(environ: Mapping[str, str], top: Path) -> tuple[str, ...]:
    """The person's own rules, which no other machine has: what they hide must not be uploaded from there."""
    lines: list[str] = []
    for line in excludes_of(environ, top):
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
    """The commit that a folder's repository is at, and the repository; none outside of one. Blocking."""
    commit = git(top, "rev-parse", "--verify", "--quiet", "HEAD^{commit}")
    common = git(top, "rev-parse", "--path-format=absolute", "--git-common-dir")
    return (commit, Path(common)) if commit and common else ("", None)
