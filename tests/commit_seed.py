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
    words = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return int(done.stdout[:8], 16) if done.returncode == 0 else WITHOUT_GIT


def chosen(name: str, turns: int) -> int:
    """A number below `turns` for a name: each number comes with one commit in as many."""
    return (zlib.crc32(name.encode()) + base_seed()) % turns
