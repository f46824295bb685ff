"""Facts about a new session's folder, and the mark by which the session recognises the folder.

The mark is a random id in a file of its own. Nothing else holds on every machine of a pool: device
numbers are each host's own, inodes repeat on volumes made alike, and two clones of a repository have
the same commits and remote. In a repository the file lies in the git folder, which no clone copies and
no status shows; elsewhere in a folder that ignores itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import field
from pathlib import Path

from orchestrator.core.frozen import record
from orchestrator.core.settings import MARK_BYTES, WorkspaceMark
from orchestrator.instructions.project import Repository, git, repository
from orchestrator.instructions.skills import Guide
from orchestrator.sandbox.trusted_files import read_regular

MARK_IN_GIT = "dendro-workspace"
MARK_FOLDER, MARK_FILE = ".dendro", "workspace"


@record
class Workspace:
    """A folder as it was when the session was made."""

    git: dict[str, str] = field(default_factory=dict)
    """`commit_hash`, `branch`, `repository_url`, as far as there are any (GitInfo)."""
    instructions: str | None = None
    warnings: tuple[str, ...] = ()
    """For people: why git knows no repository here, why commands may not write, instructions left out."""


def look_at(
    cwd: Path, guide: Guide, ask: Callable[[Path], Repository] = repository, *, skills: bool = True
) -> Workspace:
    """Reads what there is; blocking, a few milliseconds. `ask` finds the repository.

    Without `skills` the instructions tell nothing of those.
    """
    found = ask(cwd)
    facts = {"commit_hash": found.commit, "branch": found.branch, "repository_url": found.origin}
    told = guide.first(cwd, found.top, skills=skills)
    warnings = (*((found.fault,) if found.fault else ()), *told.warnings)
    return Workspace({name: value for name, value in facts.items() if value}, told.text, warnings)


def mark(cwd: Path, new_id: str) -> WorkspaceMark | None:
    """The folder's mark, which is made with `new_id` if there is none yet; blocking.

    None for a folder that can be neither read for a mark nor given one: where nothing can be
    written, no work can be missing after a takeover.
    """
    git_folder = git(cwd, "rev-parse", "--absolute-git-dir")
    file = Path(git_folder, MARK_IN_GIT) if git_folder else cwd.absolute() / MARK_FOLDER / MARK_FILE
    try:
        if file.parent.is_symlink():
            return None
        if not git_folder:
            _self_ignoring(file.parent)
        if not file.exists():
            _put(file, new_id)
        found = read_regular(file, MARK_BYTES, below=file.parent).decode("utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return None
    return WorkspaceMark(str(cwd.absolute()), str(file), found) if found else None


def _put(file: Path, text: str) -> None:
    """Whole or not at all, and never over another's: two sessions may be born here at once."""
    draft = file.with_name(f"{file.name}.{text}")
    draft.write_text(f"{text}\n", encoding="utf-8")
    try:
        os.link(draft, file)
    except FileExistsError:
        pass
    finally:
        draft.unlink()


def _self_ignoring(folder: Path) -> None:
    if not folder.exists():
        folder.mkdir(exist_ok=True)
        (folder / ".gitignore").write_text("*\n", encoding="utf-8")
