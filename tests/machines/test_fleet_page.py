"""The commands of docs/fleet.md, each on the host that the page says, in shells that stay open."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.machines.conftest import IN_TURN, WHOLE, fleet_model
from tests.machines.host import Host, host
from tests.reliability.test_rights import documented, documented_for
from tests.servers import debian_redis, free_ports, required

pytestmark = pytest.mark.realredis

REPOSITORY = Path(__file__).parents[2]
PAGE = (REPOSITORY / "docs/fleet.md").read_text()
BLOCKS = re.findall(r"<!-- (\w+) -->\n```sh\n(.*?)```", PAGE, re.DOTALL)
DONE = "--done--"
MEET = "hostname > {label}; until [ -e /mnt/both-are-there ]; do sleep 0.02; done; cat {label}"


class Shell:
    """A person's shell on a host: a line fails where any of its commands does."""

    def __init__(self, on: Host) -> None:
        self._process = subprocess.Popen(
            [*on.inside, "bash", "-u"],
            cwd="/",
            env={**on.user.environ, "PATH": f"/srv/bin:{on.user.environ['PATH']}"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def types(self, block: str) -> str:
        """Everything that is said until the block is over."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"set -e\n{block}\nset +e\necho {DONE}\n")
        self._process.stdin.flush()
        said = ""
        for line in self._process.stdout:
            if line.strip() == DONE:
                return said
            said += line
        raise AssertionError(f"the shell ended in\n{block}\nand said\n{said}")

    def close(self) -> None:
        # What it has left in the background keeps its standard output open.
        self._process.kill()
        for end in (self._process.stdin, self._process.stdout):
            assert end is not None
            end.close()
        self._process.wait()


@contextmanager
def shells(tmp_path: Path) -> Iterator[dict[str, Shell]]:
    """Two empty hosts, with what the page takes for granted: the program, `scp`, and a mount in common."""
    common = tmp_path / "common"
    (common / "dendro").mkdir(parents=True)
    with ExitStack() as stack:
        hosts = [stack.enter_context(host(tmp_path / name, name, {}, common)) for name in ("one", "two")]
        for one in hosts:
            _program(one.srv("bin/dendro"), f'exec {sys.executable} -m orchestrator.cli.main "$@"')
            # The other host's files, for who has a shell there.
            copy = (
                f'for file; do [ "$file" = . ] || cp "{tmp_path}/${{file%%:*}}/srv/${{file#*:/srv/}}" .; done'
            )
            _program(one.srv("bin/scp"), copy)
            one.srv("dendro").mkdir()
        found = {one.name: Shell(one) for one in hosts}
        for shell in found.values():
            stack.callback(shell.close)
        yield found


def _program(file: Path, script: str) -> None:
    file.parent.mkdir(exist_ok=True)
    file.write_text(f"#!/bin/bash\n{script}\n")
    file.chmod(0o755)


@pytest.mark.skipif(not WHOLE, reason=f"nine starts of Python: `make machines`, and one commit in {IN_TURN}")
def test_two_empty_hosts_become_a_fleet_that_runs_a_tree(tmp_path: Path) -> None:
    required(debian_redis(), "redis-server")
    (port,) = free_ports(1)
    with shells(tmp_path) as typed, fleet_model(tmp_path, MEET) as stub, Meeting(tmp_path):
        # The machines of the test share their network, and its model is no one's.
        here = {"10.0.0.1": "127.0.0.1", "6379": str(port)}
        model = f"OPENAI_BASE_URL={stub.environ['OPENAI_BASE_URL']}\nOPENAI_API_KEY=none"
        # Room for one session each: else a machine might do it all.
        model += "\nDENDRO_WORKER_CONCURRENCY=1"
        said = []
        for name, block in BLOCKS:
            for there, value in here.items():
                block = block.replace(there, value)
            block = block.replace("OPENAI_API_KEY=sk-...", model)
            said.append(typed[name].types(block))
            while block == "dendro workers\n" and not all(f"{one}-" in said[-1] for one in typed):
                # They need a moment to start.
                said.append(typed[name].types(block))
            if "redis-server" in block:
                _await_server(port)
    assert "both have met" in said[-1]


class Meeting(threading.Thread):
    """Lets the agents' commands end once one runs on each host: in the folder that the host has of it."""

    def __init__(self, root: Path) -> None:
        super().__init__(daemon=True)
        self._root = root
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.wait(0.02):
            copies = "srv/dendro/workspaces/copies/*/folder"
            there = [
                next((self._root / host).glob(f"{copies}/{label}"), None)
                for host in ("one", "two")
                for label in ("left", "right")
            ]
            if any(there[:2]) and any(there[2:]):
                (self._root / "common/both-are-there").touch()
                return

    def __enter__(self) -> None:
        self.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()


def _await_server(port: int) -> None:
    deadline = time.monotonic() + 20
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except ConnectionRefusedError:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_users_of_the_page_have_the_rights_that_the_operators_page_names() -> None:
    (rights,) = re.findall(r'RIGHTS="(.*?)"', PAGE, re.DOTALL)
    assert rights.replace("\\\n", "").split() == [*documented(), "+info"]
    (more,) = re.findall(r"^user upkeep on >\S+ \$RIGHTS (.*)$", PAGE, re.MULTILINE)
    assert {*more.split(), "+info"} == set(documented_for("`dendro upkeep`"))
