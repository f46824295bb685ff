"""The check of which files of a plan are outside the writable roots.

A path counts where it really leads: `plan` has followed every symlink and `..` already, so
what is compared here is what will be written. A repository's `.git` is read-only even in a
writable root: a hook or a config entry written there runs as the user, outside of the
sandbox, at the next `git` command. Where `.git` is a file (a worktree, a submodule) or a
symlink, the folders that it leads to are read-only too. So is every `dendro.toml` that is there, however
deep: the next `dendro` that starts beside it reads it, and may trust it. A new one is a stranger's, which
loosens nothing.

It must not know of policies or approvals: roots in, offending paths out.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from orchestrator.core.frozen import record
from orchestrator.sandbox.policy import PROJECT_CONFIG
from orchestrator.sandbox.trusted_files import read_regular
from orchestrator.tools.patch.plan import PatchPlan, PlannedFile

_POINTER = "gitdir:"
_POINTER_BYTES = 8192


@record
class WritableRoots:
    """Folders that may be written, less those inside them that may not.

    The `.git` of each root and every `dendro.toml` that exists are read-only without being named.
    """

    roots: tuple[Path, ...]
    read_only: tuple[Path, ...] = ()


def outside(plan: PatchPlan, roots: WritableRoots | None) -> tuple[Path, ...]:
    """The plan's paths (sources and ends of moves too) that lie outside; None permits all.

    Raises OSError if a root cannot be resolved: unknown is not permitted.
    """
    if roots is None:
        return ()
    allowed = [Path(os.path.realpath(root)) for root in roots.roots]
    refused = [Path(os.path.realpath(path)) for path in roots.read_only]
    refused += [path for root in allowed for path in git_folders(root)]
    return tuple(
        file.path
        for file in plan.files
        if not _within(file.target, allowed) or _within(file.target, refused) or _configures(file)
    )


def _configures(file: PlannedFile) -> bool:
    """Whether settings are changed that may be trusted, or be what keeps a session in bounds."""
    return file.before is not None and PROJECT_CONFIG in (file.path.name, file.target.name)


def git_folders(root: Path) -> Iterator[Path]:
    """The git paths to protect for a work tree at `root`, whether or not they exist yet."""
    entry = root / ".git"
    yield entry
    yield Path(os.path.realpath(entry))
    if (git_dir := _pointed_at(entry, prefix=_POINTER)) is None:
        return
    yield git_dir
    # Hooks and config of a worktree live in the repository that it belongs to.
    if (common := _pointed_at(git_dir / "commondir", prefix="")) is not None:
        yield common


def _pointed_at(file: Path, prefix: str) -> Path | None:
    """The folder that a pointer file names, relative to the pointer's own folder."""
    try:
        if not file.is_file():
            return None
        line = os.fsdecode(read_regular(file, _POINTER_BYTES)).strip()
    except OSError:
        return None
    if not line.startswith(prefix) or "\0" in line:
        return None
    named = line.removeprefix(prefix).strip()
    return Path(os.path.realpath(file.parent / named)) if named else None


def _within(path: Path, folders: list[Path]) -> bool:
    return any(path.is_relative_to(folder) for folder in folders)
