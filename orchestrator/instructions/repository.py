"""The repository around a folder, as `git` tells of it, with nothing of its configuration obeyed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from orchestrator.core.frozen import record
from orchestrator.sandbox.git import GitFailed, git_fault, repository_above, run_git
from orchestrator.sandbox.policy import git_link


def git(cwd: Path, *words: str) -> str:
    """The output of a git command that only reads; empty if it fails, or if there is no git."""
    try:
        return run_git(cwd, *words).text
    except (GitFailed, OSError, ValueError):
        return ""


@record
class Repository:
    """The repository around a folder; empty texts where there is none."""

    top: str = ""
    commit: str = ""
    branch: str = ""
    origin: str = ""
    fault: str = ""
    """News of the repository for people: why git knows none here, or why commands may not write."""


def repository(cwd: Path) -> Repository:
    """Asks git, in two processes side by side. Blocking: some 3 ms."""
    with ThreadPoolExecutor(1) as beside:
        origin = beside.submit(git, cwd, "config", "--get", "remote.origin.url")
        told = git(cwd, "rev-parse", "--show-toplevel", "HEAD", "--symbolic-full-name", "HEAD").split("\n")
        if len(told) == 3:
            top, commit, ref = told
            branch = ref.removeprefix("refs/heads/") if ref.startswith("refs/heads/") else ""
        else:
            # Without a commit git tells nothing at once; and a folder's name may have two lines.
            top, commit = git(cwd, "rev-parse", "--show-toplevel"), git(cwd, "rev-parse", "HEAD")
            branch = git(cwd, "symbolic-ref", "--quiet", "--short", "HEAD")
        return Repository(top, commit, branch, origin.result(), git_link(cwd) or ("" if top else _fault(cwd)))


def _fault(cwd: Path) -> str:
    """An empty `.git` is none: one is mounted in its place while commands run."""
    place = repository_above(cwd)
    if place is None or not (place.is_file() or os.path.lexists(place / "HEAD")):
        return git_fault(cwd)
    try:
        why = git_fault(cwd) or run_git(cwd, "rev-parse", "--git-dir").why
    except (GitFailed, OSError, ValueError) as error:
        why = str(error)
    return f"{place} counts as no repository, so nothing is known of its commit and branch: {why}"


def from_root(cwd: Path, top: str | None = None) -> Sequence[Path]:
    """The folders from the repository's root down to `cwd`; outside of a repository `cwd` alone.

    `top` is the root as git has told it; None asks git. One that is not where the nearest `.git` lies does
    not count: a stranger's configuration can name any folder (`core.worktree`).
    """
    folder = cwd.resolve()
    if top is None:
        top = git(folder, "rev-parse", "--show-toplevel")
    place = repository_above(folder)
    if not top or place is None or place.parent != Path(top):
        return [folder]
    chain = [folder, *folder.parents]
    return chain[chain.index(place.parent) :: -1]
