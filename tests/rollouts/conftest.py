"""A deployment without a server: the simulator's Redis, and an archive in a folder."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.broker.blobs import Texts
from orchestrator.broker.connection import Connection
from tests.rollouts.deployments import Kept
from tests.stated import StatedRedis
from tests.workers.actors import storage_over


@pytest.fixture
def double() -> Any:
    """An empty Redis."""
    return StatedRedis()


@pytest.fixture
async def kept(tmp_path: Path, double: Any) -> AsyncIterator[Kept]:
    """Where sessions are kept, with nothing in it."""
    storage = storage_over(Connection(double, double), tmp_path / "archive")
    await storage.broker.open()
    yield Kept(storage, Texts(storage.blobs), tmp_path / "sessions", double)
    await double.aclose()
