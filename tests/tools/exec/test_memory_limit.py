"""A command that wants more memory than it may have is told so, and nobody else suffers."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import AsyncIterator

import pytest

from orchestrator.sandbox.kernel import CLOCK_BOOTTIME
from orchestrator.sandbox.limits import Limits
from orchestrator.sandbox.probe import Preference, SandboxSupport
from orchestrator.tools.exec.command import formatted_output, model_output
from orchestrator.tools.exec.supervisor import Supervisor, SupervisorConfig

from .conftest import MakeCommand

pytestmark = pytest.mark.sandbox

MIB = 1 << 20
LIMIT = 256 * MIB
TOLD = "command passed its memory limit of 256 MiB (sandbox.max_memory_bytes)\n"
HOG = "x = [bytearray(b'x') * (1 << 20) for _ in range(1024)]; print('HARM')"
HOGS = """
import subprocess, sys
more = "x = [bytearray(b'x') * (1 << 20) for _ in range(150)]; print('up', flush=True); input()"
hogs = [subprocess.Popen([sys.executable, "-I", "-S", "-c", more], stdin=-1, stdout=-1) for _ in range(4)]
up = [hog for hog in hogs if hog.stdout.readline()]
print(len([hog for hog in up if hog.poll() is None]))
"""
"""Processes that take more than the limit together; tells how many live: one that is up may be killed for
the next."""


@pytest.fixture(params=["cgroup", "rlimit"])
def counted(request: pytest.FixtureRequest, machine: SandboxSupport) -> SandboxSupport:
    """The machine with its memory cgroup, or without."""
    if request.param == "rlimit":
        return dataclasses.replace(machine, memory_cgroup=None)
    if machine.memory_cgroup is None:
        pytest.skip("; ".join(machine.why))
    return machine


@pytest.fixture
async def supervisor(counted: SandboxSupport, prefer: Preference) -> AsyncIterator[Supervisor]:
    started = await Supervisor.start(SupervisorConfig(counted, prefer))
    started.extend("claim", time.clock_gettime(CLOCK_BOOTTIME) + 60)
    yield started
    await started.close()


def ignore(stream: str, data: bytes) -> None:
    """A sink for tests that look at the end only."""


async def test_command_that_takes_too_much_memory_is_ended_and_told(
    supervisor: Supervisor, command: MakeCommand
) -> None:
    hog = command(sys.executable, "-I", "-S", "-c", HOG, limits=Limits(memory_bytes=LIMIT))
    finished = await supervisor.run(hog, ignore)
    assert finished.exit_code != 0
    assert b"HARM" not in finished.stdout
    assert finished.memory_limit == LIMIT
    assert formatted_output(finished).startswith(TOLD)
    assert "memory limit of 256 MiB" in model_output(finished)
    assert supervisor.alive
    after = await supervisor.run(command("echo", "hello", limits=Limits(memory_bytes=LIMIT)), ignore)
    assert (after.stdout, after.memory_limit) == (b"hello\n", None)


@pytest.mark.parametrize("counted", ["cgroup"], indirect=True)
async def test_processes_of_a_command_are_counted_together(
    supervisor: Supervisor, command: MakeCommand
) -> None:
    hogs = command(sys.executable, "-I", "-S", "-c", HOGS, limits=Limits(memory_bytes=LIMIT))
    finished = await supervisor.run(hogs, ignore)
    assert int(finished.stdout) < 4
    assert finished.memory_limit == LIMIT


async def test_command_that_reserves_more_than_it_uses_goes_on(
    supervisor: Supervisor, command: MakeCommand
) -> None:
    # As Go, Java and Node do: address space that nobody may write yet.
    script = "import mmap; m = mmap.mmap(-1, 1 << 36, prot=0, flags=mmap.MAP_PRIVATE | 0x4000); print('up')"
    reserving = command(sys.executable, "-I", "-c", script, limits=Limits(memory_bytes=LIMIT))
    finished = await supervisor.run(reserving, ignore)
    assert (finished.stdout, finished.exit_code, finished.memory_limit) == (b"up\n", 0, None)


async def test_command_that_fails_for_another_reason_is_told_nothing_of_memory(
    supervisor: Supervisor, command: MakeCommand
) -> None:
    failing = command("sh", "-c", "echo no >&2; exit 3", limits=Limits(memory_bytes=LIMIT))
    assert (await supervisor.run(failing, ignore)).memory_limit is None


@pytest.mark.parametrize("counted", ["cgroup"], indirect=True)
async def test_no_cgroup_is_left_behind(
    supervisor: Supervisor, command: MakeCommand, counted: SandboxSupport
) -> None:
    from pathlib import Path

    for megabytes in (1, 1, 100, 1):
        script = f"head -c {megabytes}000000 /dev/zero | tail -c 1 >/dev/null"
        await supervisor.run(command("sh", "-c", script, limits=Limits(memory_bytes=LIMIT)), ignore)
    await supervisor.close()
    assert counted.memory_cgroup is not None
    assert list(Path(counted.memory_cgroup).glob(f"dendro-{supervisor.pid}-*")) == []
