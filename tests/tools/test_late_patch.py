"""A patch has no process that the keeper could kill: it asks for the right to write before it does."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.commands import ApplyPatch
from orchestrator.core.settings import TurnSettings
from orchestrator.core.state import Call, State, Task
from orchestrator.sandbox.probe import SandboxSupport
from orchestrator.tools.exec.keeper import Keeper, KeeperConfig
from orchestrator.tools.patching import LATE
from orchestrator.tools.toolbox import Site, Toolbox, ToolConfig

SUPPORT = SandboxSupport(None, 0, ())


@pytest.fixture
async def keeper() -> AsyncIterator[Keeper]:
    started = await Keeper.start(KeeperConfig(SUPPORT))
    yield started
    await started.close()


async def _patched(keeper: Keeper, folder: Path) -> Any:
    """The result of a patch that was accepted, run under the claim `c`."""
    toolbox = Toolbox(ToolConfig(SUPPORT, {}), keeper)
    settings = TurnSettings(str(folder), "never", {"mode": "danger-full-access"}, "gpt-5")
    site = Site("c", State(task=Task("u1", "user", settings)), lambda _: None)
    patch = "*** Begin Patch\n*** Add File: a.txt\n+one\n*** End Patch"
    item = {"type": "custom_tool_call", "name": "apply_patch", "input": patch, "call_id": "p1"}
    assessed = await toolbox.assess(Call("p1", "apply_patch", item), site)
    assert isinstance(assessed, ApplyPatch)
    spec = {
        "kind": "patch",
        "patch": assessed.patch,
        "cwd": assessed.cwd,
        "record": assessed.record,
        "baselines": assessed.baselines,
        "summary": assessed.summary,
        "sandboxed": False,
    }
    return await toolbox.run(Call("p1", "apply_patch", item, spec=spec), site)


def _from_now(seconds: float) -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME) + seconds


async def test_patch_of_a_worker_that_woke_up_behind_its_deadline_writes_nothing(
    keeper: Keeper, tmp_path: Path
) -> None:
    keeper.extend("c", _from_now(-0.001))
    late = await _patched(keeper, tmp_path)
    assert not late.applied
    assert LATE in late.output
    assert list(tmp_path.iterdir()) == []


async def test_patch_within_the_deadline_is_written(keeper: Keeper, tmp_path: Path) -> None:
    keeper.extend("c", _from_now(60))
    done = await _patched(keeper, tmp_path)
    assert done.applied
    assert (tmp_path / "a.txt").read_text() == "one\n"
