"""Commands that try to break out, on the real kernel, under every mechanism that it has."""

import dataclasses
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import pytest_asyncio

from orchestrator.sandbox.bubblewrap import _PROC_CONTROLS, COVERED_CONTROLS
from orchestrator.sandbox.probe import Preference, SandboxSupport, probe
from orchestrator.tools.exec.supervisor import Supervisor

from .attacks import ATTACKS, NEEDS_MOUNTS, Scene, run_in, scene, supervised

pytestmark = [pytest.mark.sandbox, pytest.mark.asyncio(loop_scope="module")]
Supervisors = Callable[[Preference, SandboxSupport], Awaitable[Supervisor]]


@pytest.fixture(scope="session")
def machine() -> SandboxSupport:
    return probe()


@pytest.fixture(params=["bubblewrap", "landlock", "landlock without mounts"])
def mechanism(request: pytest.FixtureRequest, machine: SandboxSupport) -> tuple[Preference, SandboxSupport]:
    """A mechanism to prefer, and the machine's support as it is to be seen."""
    if request.param == "bubblewrap":
        if machine.bubblewrap is None:
            pytest.skip("; ".join(machine.why))
        return "bubblewrap", machine
    if not machine.landlock_abi:
        pytest.skip("; ".join(machine.why))
    if request.param == "landlock" and not machine.can_mount:
        pytest.skip("no mount namespace can be had here")
    return "landlock", dataclasses.replace(machine, can_mount=request.param == "landlock")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def supervisors() -> AsyncIterator[Supervisors]:
    """The supervisor of a mechanism, which all attacks on it share: it is to outlive each of them."""
    made: dict[tuple[Preference, bool], Supervisor] = {}
    async with AsyncExitStack() as stack:

        async def of(prefer: Preference, support: SandboxSupport) -> Supervisor:
            key = prefer, support.can_mount
            if key not in made:
                made[key] = await stack.enter_async_context(supervised(prefer, support))
            return made[key]

        yield of


@pytest.fixture
def there(tmp_path: Path) -> Iterator[Scene]:
    with scene(tmp_path) as made:
        yield made


@pytest.mark.parametrize("attack", ATTACKS)
async def test_no_command_breaks_out(
    attack: str, mechanism: tuple[Preference, SandboxSupport], there: Scene, supervisors: Supervisors
) -> None:
    prefer, support = mechanism
    if prefer == "landlock" and not support.can_mount and attack in NEEDS_MOUNTS:
        pytest.skip("a gap that Landlock without mounts names")
    if attack == "forks past its limit" and support.pids_cgroup is None and os.geteuid() == 0:
        pytest.skip("no pids cgroup can be made, and RLIMIT_NPROC does not bind root")
    finished = await run_in(there, ATTACKS[attack], await supervisors(prefer, support))
    assert finished.error is None
    assert there.harm() == []
    assert b"HARM" not in finished.stdout


async def test_the_same_script_without_confinement_does_harm(
    machine: SandboxSupport, there: Scene, supervisors: Supervisors
) -> None:
    supervisor = await supervisors("auto", machine)
    finished = await run_in(there, ATTACKS["writes a new file outside"], supervisor, "danger-full-access")
    assert finished.exit_code == 0
    assert there.harm() == ["outside holds new"]


async def test_a_read_only_command_writes_nothing_in_the_workspace_either(
    mechanism: tuple[Preference, SandboxSupport], there: Scene, supervisors: Supervisors
) -> None:
    supervisor = await supervisors(*mechanism)
    finished = await run_in(there, "echo x > mine; cat repo/.git/config", supervisor, "read-only")
    assert finished.exit_code == 0
    assert not (there.workspace / "mine").exists()


async def test_nothing_is_mounted_twice_and_one_mount_guards_one_thing(
    machine: SandboxSupport, there: Scene, supervisors: Supervisors
) -> None:
    """For each mount bubblewrap reads the table of all mounts: that is a third of its time."""
    if machine.bubblewrap is None:
        pytest.skip("; ".join(machine.why))
    supervisor = await supervisors("bubblewrap", machine)
    finished = await run_in(there, "cut -d' ' -f5 /proc/self/mountinfo", supervisor)
    of_machine = {line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()}
    made = [path for path in finished.stdout.decode().split() if path not in of_machine - {"/dev", "/proc"}]
    for path in set(made) - {"/dev", "/proc"}:
        assert made.count(path) == 1, f"{path} is mounted over and over"
    devices = {"null", "zero", "full", "random", "urandom", "tty"}
    assert {path for path in made if path.startswith("/dev/")} <= {
        f"/dev/{name}" for name in (*devices, "pts")
    }
    controls = {path for path in made if path.startswith("/proc/")}
    expected = {
        f"/proc/{name}" for name in (*_PROC_CONTROLS, *COVERED_CONTROLS) if Path("/proc", name).exists()
    }
    assert controls <= expected
    assert controls >= expected or os.geteuid() != 0


WORK = """
set -e
echo hello > file; mkdir -p a/b; mv file a/b/; chmod +x a/b/file; ln -s a link; rm -r a link
echo x > /dev/null; head -c 4 /dev/urandom > /dev/null; echo x > /dev/shm/dendro-$$; rm /dev/shm/dendro-$$
cat <<< here-document
cat <(echo process-substitution)
$PYTHON -c 'import socket; a, b = socket.socketpair(); a.send(b"x"); assert b.recv(1) == b"x"'
$PYTHON -c 'import os, pty; a, b = pty.openpty(); os.write(b, b"x"); assert os.read(a, 1) == b"x"'
$PYTHON -c 'from multiprocessing import shared_memory as m; m.SharedMemory(create=True, size=9).unlink()'
kill -0 $$; sleep 60 & kill $!; wait || true
echo done
"""


async def test_ordinary_work_goes_on_inside(
    mechanism: tuple[Preference, SandboxSupport], there: Scene, supervisors: Supervisors
) -> None:
    finished = await run_in(there, WORK, await supervisors(*mechanism))
    assert (finished.stdout.decode(), finished.exit_code) == (
        "here-document\nprocess-substitution\ndone\n",
        0,
    )
    assert there.harm() == []
