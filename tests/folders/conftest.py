"""A copy for each test of folders."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.folders.workshop import Bench


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)
