"""What a new session is told of the folder that it works in: its git state, its instructions."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

INSTRUCTIONS_FILE = "AGENTS.md"
INSTRUCTIONS_LIMIT = 32 * 1024
"""Bytes of instructions that are read in all; the rest is left out."""
GIT_PATIENCE_S = 5.0


@dataclass(frozen=True, slots=True)
class Workspace:
    """A folder as it was when the session was made."""

    git: dict[str, str] = field(default_factory=dict)
    """`commit_hash`, `branch`, `repository_url`, as far as there are any (GitInfo)."""
    instructions: str | None = None


def look_at(cwd: Path) -> Workspace:
    """Reads what there is; blocking, a few milliseconds. A folder that is no repository has none of it."""
    return Workspace(git_info(cwd), project_instructions(cwd))


def git_info(cwd: Path) -> dict[str, str]:
    """The folder's commit, branch and origin; empty outside of a repository, or without git."""
    found = {
        "commit_hash": _git(cwd, "rev-parse", "HEAD"),
        "branch": _git(cwd, "symbolic-ref", "--quiet", "--short", "HEAD"),
        "repository_url": _git(cwd, "config", "--get", "remote.origin.url"),
    }
    return {name: value for name, value in found.items() if value}


def _git(cwd: Path, *words: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(cwd), *words], capture_output=True, text=True, timeout=GIT_PATIENCE_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def project_instructions(cwd: Path) -> str | None:
    """The `AGENTS.md` files from the repository's root down to the folder, outermost first."""
    texts, left = [], INSTRUCTIONS_LIMIT
    for folder in _from_root(cwd.resolve()):
        file = folder / INSTRUCTIONS_FILE
        if left > 0 and file.is_file():
            text = file.read_bytes()[:left].decode("utf-8", "replace").strip()
            left -= len(text.encode())
            texts.append(text)
    return "\n\n".join(filter(None, texts)) or None


def _from_root(cwd: Path) -> Iterator[Path]:
    chain = [cwd, *cwd.parents]
    roots = [depth for depth, folder in enumerate(chain) if (folder / ".git").exists()]
    return reversed(chain[: roots[0] + 1] if roots else [cwd])
