"""Windows for tests: in this process without a browser, and of processes as a person starts them."""

from __future__ import annotations

import re
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import pytest

from tests.cli.conftest import machine
from tests.cli.machine import Machine, dendro
from tests.runtime.conftest import harness, redis_server
from tests.runtime.harness import Harness
from tests.started import Started
from tests.window.site import Site, site

__all__ = ["harness", "machine", "redis_server"]
_SAID = re.compile(r"window at (\S+)/#c=(\S+)")


@pytest.fixture(name="site")
async def site_of_harness(harness: Harness) -> AsyncIterator[Site]:
    """The window of a scripted deployment, in this process."""
    async with site(harness) as found:
        yield found


@dataclass
class Served:
    """A window as a person started it: `dendro serve`, a worker, a model stub, a Redis."""

    machine: Machine
    url: str
    code: str
    """The code that `serve` printed; it signs in once."""
    gateway: subprocess.Popen[str]

    def new_code(self, *words: str) -> str:
        """Another code, by the command."""
        return self.machine.run("token", "code", *words).stdout.split()[0]


@contextmanager
def serving(machine: Machine, listen: str = "http://127.0.0.1:0", *words: str) -> Iterator[Served]:
    """`dendro serve` for a window; its address and code as it says them."""
    with Started(
        dendro("serve", "--listen", listen, *words),
        stderr=subprocess.PIPE,
        text=True,
        cwd=machine.folder,
        env=machine.environ,
    ) as process:
        try:
            assert process.stderr is not None
            said = process.stderr.readline()
            found = _SAID.search(said)
            assert found is not None, said + process.stderr.read()
            process.stderr.readline()
            yield Served(machine, found[1], found[2], process)
        finally:
            process.kill()


@contextmanager
def working(machine: Machine) -> Iterator[subprocess.Popen[bytes]]:
    """`dendro worker`, until the block ends."""
    with Started(dendro("worker"), cwd=machine.folder, env=machine.environ) as process:
        try:
            yield process
        finally:
            process.terminate()


@pytest.fixture
def served(machine: Machine) -> Iterator[Callable[..., Served]]:
    """Starts windows with a worker and a model: `served("echo")`, or scripted: `served(steps=[…])`."""
    with ExitStack() as stack:

        def start(behaviour: str = "echo", *, steps: list[dict[str, object]] | None = None) -> Served:
            model = machine.behaving(behaviour) if steps is None else machine.model(*steps)
            user = stack.enter_context(model)
            stack.enter_context(working(user))
            return stack.enter_context(serving(user))

        yield start
