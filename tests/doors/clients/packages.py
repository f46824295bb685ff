"""Packages of real clients, each installed once into a folder of the user's cache, in a pinned version."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dendro-tests"
MOST_S = 300


def from_pypi(name: str, version: str) -> Path:
    """A folder for PYTHONPATH; skips the test where the package cannot be had."""
    folder = CACHE / f"{name}-{version}"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--disable-pip-version-check"]
    return _installed(folder, lambda draft: [*pip, "--target", str(draft), f"{name}=={version}"])


def wheel_from_pypi(name: str, version: str) -> Path:
    """The wheel itself, for what is only read in it; skips the test where it cannot be had."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--disable-pip-version-check"]
    folder = _installed(
        CACHE / f"{name}-{version}-wheel", lambda draft: [*pip, "--dest", str(draft), f"{name}=={version}"]
    )
    (wheel,) = folder.glob("*.whl")
    return wheel


def from_npm(name: str, version: str) -> Path:
    """A folder with `node_modules`; skips the test where the package cannot be had."""
    folder = CACHE / f"{name.replace('/', '-')}-{version}"
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip(f"npm is not here to install {name}")
    words = [npm, "install", "--silent", "--no-audit", "--no-fund", "--ignore-scripts"]
    return _installed(folder, lambda draft: [*words, "--prefix", str(draft), f"{name}@{version}"])


def _installed(folder: Path, command: Callable[[Path], list[str]]) -> Path:
    if folder.is_dir():
        return folder
    draft = folder.with_name(f"{folder.name}.{os.getpid()}")
    draft.mkdir(parents=True)
    try:
        done = subprocess.run(command(draft), capture_output=True, text=True, timeout=MOST_S)
    except subprocess.TimeoutExpired:
        shutil.rmtree(draft)
        pytest.skip(f"the registry has not sent {folder.name} in {MOST_S} s")
    if done.returncode != 0:
        shutil.rmtree(draft)
        pytest.skip(f"the registry does not give {folder.name}: {done.stderr.strip()[-300:]}")
    try:
        draft.rename(folder)
    except OSError:
        # Another test run was faster.
        shutil.rmtree(draft)
    return folder
