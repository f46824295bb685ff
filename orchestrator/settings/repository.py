"""Detection of a git work tree: git itself is asked, because a `.git` may be empty, or nobody's.

Nothing of the repository runs: `rev-parse` obeys no hook and no monitor, and what a configuration could
name as a program is switched off besides.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

PATIENCE_S = 5.0
_HARMLESS = ("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "-c", "core.pager=cat")


def in_work_tree(folder: Path, environ: Mapping[str, str]) -> bool:
    """Whether git works here; False without git. Blocking: some 2 ms where a `.git` lies above."""
    if not any(os.path.lexists(parent / ".git") for parent in (folder, *folder.resolve().parents)):
        return False
    import subprocess

    from orchestrator.sandbox.trusted_files import find_program

    git = find_program("git", environ.get("PATH", os.defpath))
    if git is None:
        return False
    words = [git, *_HARMLESS, "-C", str(folder), "rev-parse", "--is-inside-work-tree"]
    try:
        done = subprocess.run(
            words, capture_output=True, env=_environment(environ), timeout=PATIENCE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0 and done.stdout.strip() == b"true"


def _environment(inherited: Mapping[str, str]) -> dict[str, str]:
    """The variables that git gets: none that leads it elsewhere than where it is asked."""
    kept = {name: value for name, value in inherited.items() if not name.startswith("GIT_")}
    return {**kept, "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
