"""The repository around a folder, as `git` tells of it, with nothing of its configuration obeyed."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from orchestrator.sandbox.trusted_files import find_program

GIT_PATIENCE_S = 5.0

_OBEY_NOTHING = (
    "--no-optional-locks",
    *("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "-c", "core.pager=cat"),
    *("-c", "safe.bareRepository=explicit", "-c", "protocol.allow=never"),
)
"""An agent may have written the repository's configuration, or a repository into a folder that has none."""


def git(cwd: Path, *words: str) -> str:
    """The output of a git command that only reads; empty if it fails, or if there is no git."""
    if (program := find_program("git")) is None:
        return ""
    try:
        done = subprocess.run(
            [program, *_OBEY_NOTHING, "-C", str(cwd), *words],
            capture_output=True,
            text=True,
            timeout=GIT_PATIENCE_S,
        )
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def from_root(cwd: Path) -> Sequence[Path]:
    """The folders from the repository's root down to `cwd`; outside of a repository `cwd` alone."""
    folder = cwd.resolve()
    top = git(folder, "rev-parse", "--show-toplevel")
    chain = [folder, *folder.parents]
    return chain[chain.index(Path(top)) :: -1] if top and Path(top) in chain else [folder]
