"""A seed of the commit, for choices of CI: each run of a commit makes the same, another commit others.

`NIGHT` says that nothing is to be left out, which `make nightly` sets.
"""

from __future__ import annotations

import os
import subprocess
import zlib
from functools import cache
from pathlib import Path

WITHOUT_GIT = 20_251_120
NIGHT = "DENDRO_NIGHT" in os.environ


def examples(by_night: int) -> int:
    """How many examples a test draws at random, which are others each time: by day two in five."""
    return by_night if NIGHT else by_night * 2 // 5


@cache
def base_seed() -> int:
    """From the commit's hash; a fixed number where there is no repository."""
    told = _git("rev-parse", "HEAD")
    return int(told[:8], 16) if told else WITHOUT_GIT


@cache
def commit_number() -> int:
    """How many commits its line has, so that the next has the next number; the seed in a shallow clone."""
    if _git("rev-parse", "--is-shallow-repository") != "false":
        return base_seed()
    return int(_git("rev-list", "--count", "--first-parent", "HEAD"))


def name_of_commit(back: int) -> str:
    """The short name of a commit before this one, in its line."""
    return _git("rev-parse", "--short", "--verify", "--quiet", f"HEAD~{back}") or "an unknown commit"


def _git(*words: str) -> str:
    """The answer in this checkout; nothing if git fails or there is no repository."""
    done = subprocess.run(
        ["git", "-C", str(Path(__file__).parent), *words], capture_output=True, text=True, check=False
    )
    return done.stdout.strip() if done.returncode == 0 else ""


def chosen(name: str, turns: int) -> int:
    """A number below `turns` for a name: each number comes with one commit in as many."""
    return (zlib.crc32(name.encode()) + base_seed()) % turns
