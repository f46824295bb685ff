"""The repository around a folder, as `git` tells of it, with nothing of its configuration obeyed."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from orchestrator.sandbox.trusted_files import find_program

GIT_PATIENCE_S = 5.0

OBEY_NOTHING = (
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
            [program, *OBEY_NOTHING, "-C", str(cwd), *words],
            capture_output=True,
            text=True,
            timeout=GIT_PATIENCE_S,
        )
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


@dataclass(frozen=True, slots=True)
class Repository:
    """The repository around a folder; empty texts where there is none."""

    top: str = ""
    commit: str = ""
    branch: str = ""
    origin: str = ""


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
        return Repository(top, commit, branch, origin.result())


def from_root(cwd: Path, top: str | None = None) -> Sequence[Path]:
    """The folders from the repository's root down to `cwd`; outside of a repository `cwd` alone.

    `top` is the root as git has told it; None asks git.
    """
    folder = cwd.resolve()
    if top is None:
        top = git(folder, "rev-parse", "--show-toplevel")
    chain = [folder, *folder.parents]
    return chain[chain.index(Path(top)) :: -1] if top and Path(top) in chain else [folder]
