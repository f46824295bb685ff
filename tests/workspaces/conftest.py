"""A store, and machines that use it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.rollouts.object_store import Objects
from tests.workspaces.machines import Machine, NewMachine


@pytest.fixture
def store(tmp_path: Path) -> Objects:
    return Objects((tmp_path / "store").as_uri())


@pytest.fixture
async def machine(tmp_path: Path, store: Objects) -> AsyncIterator[NewMachine]:
    """Makes machines; those of one name have one disk."""
    made: list[Machine] = []

    def new(name: str = "m1", **settings: Any) -> Machine:
        root = tmp_path / name / "workspaces"
        made.append(Machine(name, root, store, **settings))
        return made[-1]

    yield new
    for each in made:
        for held in list(each.folders._held.values()):
            await each.folders.release(held.copy.session, held.claim)
