"""Variables that a model sets for a command reach the command, and nothing outside of its sandbox."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from orchestrator.sandbox.bubblewrap import Bubblewrap
from orchestrator.sandbox.policy_paths import Confinement
from orchestrator.tools.exec.supervisor import Supervisor

from .conftest import MakeCommand

pytestmark = pytest.mark.sandbox

CONFINED = pytest.mark.parametrize("mechanism", ["bubblewrap", "landlock"], indirect=True)


def ignore(stream: str, data: bytes) -> None:
    """A sink for tests that look at the end only."""


@pytest.fixture
def outside(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("outside")


@CONFINED
async def test_loaders_variable_makes_no_file_outside_of_the_sandbox(
    supervisor: Supervisor, command: MakeCommand, outside: Path
) -> None:
    env = {"PATH": os.defpath, "LD_DEBUG": "all", "LD_DEBUG_OUTPUT": str(outside / "traced")}
    finished = await supervisor.run(command("true", env=env), ignore)
    assert finished.error is None
    assert list(outside.iterdir()) == []


@CONFINED
async def test_preloaded_library_is_loaded_by_the_command_alone(
    supervisor: Supervisor, command: MakeCommand, tmp_path: Path
) -> None:
    # The loader complains of a library that it cannot load, once in each program that loads it.
    env = {"PATH": os.defpath, "LD_PRELOAD": str(tmp_path / "evil.so")}
    finished = await supervisor.run(command("true", env=env), ignore)
    assert finished.stderr.count(b"evil.so") == 1


@CONFINED
async def test_command_gets_every_variable_as_it_is(supervisor: Supervisor, command: MakeCommand) -> None:
    env = {"PATH": os.defpath, "EMPTY": "", "LINES_OF": "a\nb", "--bind": "/", "ODD": "ü=\udcff'\"$(x)"}
    env |= {"LARGE": "x" * 100_000}
    script = "import os; print(sorted(os.environb.items()))"
    finished = await supervisor.run(command(sys.executable, "-I", "-c", script, env=env), ignore)
    for name, value in env.items():
        assert repr((os.fsencode(name), os.fsencode(value))).encode() in finished.stdout


@CONFINED
@pytest.mark.parametrize("name", ["A", "A\0--bind\0/\0/\0--setenv\0B", "A=B", ""])
async def test_variable_that_holds_a_nul_byte_starts_nothing(
    name: str, supervisor: Supervisor, command: MakeCommand, outside: Path
) -> None:
    value = "x\0--bind\0/\0/" if name == "A" else "x"
    env = {"PATH": os.defpath, name: value}
    finished = await supervisor.run(command("touch", str(outside / "made"), env=env), ignore)
    assert finished.exit_code == -1
    assert "cannot be set" in (finished.error or "")
    assert list(outside.iterdir()) == []


def test_wrapper_is_never_given_an_option_in_a_value() -> None:
    root, variables = Path("/"), {"A": "\0--bind\0/\0/"}
    with pytest.raises(ValueError, match="NUL"):
        Bubblewrap("/usr/bin/bwrap", "x86_64", True).launch(
            ("true",), variables, root, Confinement("read-only", root)
        )


@CONFINED
async def test_values_stand_in_no_command_line(supervisor: Supervisor, command: MakeCommand) -> None:
    env = {"PATH": os.defpath, "MY": f"marked{os.getpid()}"}
    finished = await supervisor.run(command("sh", "-c", "cat /proc/[0-9]*/cmdline", env=env), ignore)
    assert finished.exit_code == 0 or finished.stdout
    assert env["MY"].encode() not in finished.stdout
