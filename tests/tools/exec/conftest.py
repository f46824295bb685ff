"""Supervisors on the real kernel, one per test."""

import os
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from orchestrator.sandbox.kernel import CLOCK_BOOTTIME
from orchestrator.sandbox.policy_paths import resolve
from orchestrator.sandbox.probe import NoConfinement, Preference, SandboxSupport, choose, probe
from orchestrator.tools.exec.command import Command
from orchestrator.tools.exec.supervisor import Supervisor, SupervisorConfig

MakeCommand = Callable[..., Command]


@pytest.fixture(scope="session")
def machine() -> SandboxSupport:
    return probe()


@pytest.fixture(params=["none", "bubblewrap", "landlock"])
def mechanism(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def prefer(mechanism: str) -> Preference:
    return "landlock" if mechanism == "landlock" else "auto"


@pytest.fixture
def command(mechanism: str, prefer: Preference, machine: SandboxSupport, tmp_path: Path) -> MakeCommand:
    """Makes commands that run in the test's folder under the mechanism of the test."""
    mode = "danger-full-access" if mechanism == "none" else "workspace-write"
    confinement = resolve({"mode": mode, "exclude_slash_tmp": True}, tmp_path, None)
    try:
        found = choose(machine, confinement, "landlock" if mechanism == "landlock" else "auto").name
    except NoConfinement as refused:
        pytest.skip(str(refused))
    if found != mechanism:
        pytest.skip(f"{mechanism} does not work here: {'; '.join(machine.why)}")

    def make(*argv: str, claim: str = "claim", **fields: object) -> Command:
        env = {"PATH": os.defpath}
        made = {"cwd": tmp_path, "env": env, "confinement": confinement, "timeout_s": 30.0, **fields}
        return Command(claim=claim, call_id="call", argv=argv, **made)  # type: ignore[arg-type]

    return make


@pytest.fixture
async def supervisor(machine: SandboxSupport, prefer: Preference) -> AsyncIterator[Supervisor]:
    started = await Supervisor.start(SupervisorConfig(machine, prefer))
    started.extend("claim", time.clock_gettime(CLOCK_BOOTTIME) + 60)
    yield started
    await started.close()
