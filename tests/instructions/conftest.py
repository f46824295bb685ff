"""A person's folders and a repository, both empty."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from orchestrator.instructions.skills import Skills


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Dendro's own folder."""
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    return folder


@pytest.fixture
def skills(home: Path, tmp_path: Path) -> Skills:
    return Skills(home, tmp_path / "anna", tmp_path / "etc")
