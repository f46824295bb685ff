"""Detection of a git work tree: git itself is asked, because a `.git` may be empty, or nobody's."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def in_work_tree(folder: Path, environ: Mapping[str, str]) -> bool:
    """Whether git works here; False without git. Blocking: some 2 ms where a `.git` lies above."""
    if not any(os.path.lexists(parent / ".git") for parent in (folder, *folder.resolve().parents)):
        return False
    from orchestrator.sandbox.git import GitFailed, run_git

    try:
        return run_git(folder, "rev-parse", "--is-inside-work-tree", person=environ).text == "true"
    except (GitFailed, OSError, ValueError):
        return False
