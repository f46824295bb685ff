"""The commands of docs/fleet.md, each on the host that the page says, in shells that stay open."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.doors.clients.packages import from_npm
from tests.doors.clients.test_terminal import Screen
from tests.machines.conftest import fleet_model
from tests.machines.host import Host, Network, host, network
from tests.reliability.test_rights import documented, documented_for
from tests.servers import debian_redis, required

pytestmark = pytest.mark.realredis

REPOSITORY = Path(__file__).parents[2]
PAGE = (REPOSITORY / "docs/fleet.md").read_text()
BLOCKS = re.findall(r"<!-- (\w+) -->\n```sh\n(.*?)```", PAGE, re.DOTALL)
DONE = "--done--"
SYSTEM = f"/srv/bin:{Path(sys.base_prefix) / 'bin'}:{os.environ['PATH']}".replace(f"{sys.prefix}/bin:", "")
"""PATH of who has no environment of Python activated."""
MEET = "hostname > {label}; until [ -e /mnt/both-are-there ]; do sleep 0.02; done; cat {label}"


class Shell:
    """A person's shell, on a host or at home: a line fails where any of its commands does."""

    def __init__(self, inside: Sequence[str], environ: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [*inside, "bash", "-u"],
            cwd=environ["HOME"] if not inside else "/",
            env=dict(environ),
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


@dataclass(frozen=True)
class Place:
    """Two empty hosts and a laptop on one network, with what the page takes for granted."""

    root: Path
    network: Network
    hosts: Mapping[str, Host]
    home: Path
    """The folder of who sits at the laptop; its path is short enough for a socket."""
    shells: Mapping[str, Shell]

    def log(self, name: str) -> str:
        """A file in `/srv/dendro` of `one`."""
        file = self.hosts["one"].srv("dendro", name)
        return file.read_text() if file.exists() else ""


@contextmanager
def place(tmp_path: Path) -> Iterator[Place]:
    common = tmp_path / "common"
    (common / "dendro").mkdir(parents=True)
    packages = _packages(tmp_path / "packages")
    with ExitStack() as stack:
        net = stack.enter_context(network("10.0.0.1", "10.0.0.2"))
        home = Path(stack.enter_context(TemporaryDirectory(prefix="dr-")))
        hosts = {
            name: stack.enter_context(host(tmp_path / name, name, {}, common, net)) for name in ("one", "two")
        }
        # The registry's part is a folder: the checkout's own wheel, and those that it asks for.
        environ = {
            "PIP_CONFIG_FILE": "/dev/null",
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(packages),
            "PIP_NO_COMPILE": "1",
            "PATH": SYSTEM,
        }
        shells = {}
        for one in hosts.values():
            _program(one.srv("bin/scp"), _copies_from(tmp_path))
            one.srv("dendro").mkdir()
            shells[one.name] = Shell(one.inside, {**one.user.environ, **environ})
        _program(home / "bin/scp", _copies_from(tmp_path))
        _program(home / "bin/ssh", _forwards_from(hosts["one"], home))
        _program(home / "bin/codex", _codex(home))
        stack.callback(
            subprocess.run, ["tmux", "-S", str(home / "screen"), "kill-server"], capture_output=True
        )
        at_home = {"HOME": str(home), "PATH": f"{home}/bin:{SYSTEM}", "LANG": "C.UTF-8"}
        shells["laptop"] = Shell(["env", "-C", str(home), *net.inside], at_home)
        for shell in shells.values():
            stack.callback(shell.close)
        yield Place(tmp_path, net, hosts, home, shells)


def _packages(folder: Path) -> Path:
    """The wheel of this checkout and all that it needs, in the locked versions; or a skip."""
    pip: list[str | Path] = [sys.executable, "-m", "pip", "wheel", "--quiet", "--wheel-dir", folder]
    locked = ("--constraint", REPOSITORY / "requirements.lock", REPOSITORY)
    done = subprocess.run([*pip, *locked], capture_output=True, text=True, cwd=folder.parent)
    if done.returncode != 0:
        pytest.skip(f"the registry does not give the product's packages: {done.stderr.strip()[-300:]}")
    return folder


def _copies_from(root: Path) -> str:
    """`scp HOST:/srv/… .`: the other host's files, for who has a shell there."""
    return f'for file; do [ "$file" = . ] || cp "{root}/${{file%%:*}}/srv/${{file#*:/srv/}}" .; done'


def _forwards_from(one: Host, home: Path) -> str:
    """`ssh … -L NEAR:FAR one`: a process of the host's user connects to the socket there, as sshd's does."""
    forward = home / "forward.py"
    forward.write_text(FORWARD)
    # The laptop is on the network already, and nobody enters where he is.
    program = shlex.join([*one.from_its_network, sys.executable, str(forward)])
    parts = 'while [ "$1" != -L ]; do shift; done; [ "$3" = one ]'
    return f'set -e\n{parts}\nread -r _ < <({program} "${{2%%:*}}" "${{2#*:}}" 2> "{home}/ssh.log")'


def _codex(home: Path) -> str:
    """Codex's own terminal, unchanged, in a terminal that `tmux` keeps: the shell of the test has none."""
    required(Path(found) if (found := shutil.which("tmux")) else None, "tmux")
    client = from_npm("@openai/codex", "0.169.0") / "node_modules/.bin/codex"
    line = f"{client} $(printf '%q ' \"$@\"); echo it has ended; sleep 600"
    return f'export TERM=xterm-256color\ntmux -S "{home}/screen" new-session -d -x 240 -y 40 "{line}"'


FORWARD = """
import asyncio, sys
near, far = sys.argv[1:]
async def carry(reader, writer):
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()
async def come(reader, writer):
    there = await asyncio.open_unix_connection(far)
    await asyncio.gather(carry(reader, there[1]), carry(there[0], writer))
async def main():
    server = await asyncio.start_unix_server(come, near)
    print("ready", flush=True)
    await server.serve_forever()
asyncio.run(main())
"""


def _program(file: Path, script: str) -> None:
    file.parent.mkdir(exist_ok=True)
    file.write_text(f"#!/bin/bash\n{script}\n")
    file.chmod(0o755)


@pytest.mark.timeout(600)
@pytest.mark.night
def test_two_empty_hosts_become_a_fleet_that_runs_a_tree_and_serves_a_laptop(tmp_path: Path) -> None:
    required(debian_redis(), "redis-server")
    said = {"title": "A title", "greet me": "The fleet says hello."}
    with (
        place(tmp_path) as found,
        fleet_model(tmp_path, MEET, said, found.network) as stub,
        Meeting(tmp_path),
    ):
        # The key of a person, and room for one session each: else a machine might do it all.
        model = f"OPENAI_BASE_URL={stub.environ['OPENAI_BASE_URL']}\nOPENAI_API_KEY=none"
        model += "\nDENDRO_WORKER_CONCURRENCY=1"
        heard = ""
        for name, block in BLOCKS:
            block = block.replace("OPENAI_API_KEY=sk-...", model)
            with ThreadPoolExecutor() as together:
                typed = [found.shells[one] for one in (found.hosts if name == "both" else (name,))]
                heard += "".join(together.map(Shell.types, typed, repeat(block)))
            if block == "dendro workers\n":
                _await(
                    lambda: all(
                        f"{one}-" in found.shells["one"].types("dendro workers") for one in found.hosts
                    )
                )
            if "redis-server" in block:
                _await(lambda: "Ready to accept connections" in found.log("redis.log"))
            if "dendro serve" in block:
                _await(lambda: found.log("gateway.log").count("listening on") == 2)
            if "codex " in block:
                _greets(Screen(found.home / "screen"), asked_for_trust="ssh" in block)
        assert "both have met" in heard


def _greets(screen: Screen, *, asked_for_trust: bool) -> None:
    """Speaks to the fleet in the terminal that has been started, and leaves it.

    It asks once for each folder. What is typed before that question keeps it from being asked, and what is
    pressed while the question is drawn is lost.
    """
    if asked_for_trust:
        screen.wait_for("Trust this folder")
        time.sleep(1)
        screen.press("Enter")
    screen.wait_for("Ask Codex|describe a task")
    screen.type("please greet me")
    screen.wait_for("The fleet says hello")
    screen.type("/quit")
    screen.wait_for("it has ended")
    subprocess.run(["tmux", "-S", str(screen.socket), "kill-server"], check=True)


def test_every_command_of_the_page_is_run() -> None:
    assert PAGE.count("```") == 2 * len(BLOCKS)
    assert {name for name, _ in BLOCKS} == {"both", "one", "two", "laptop"}


def _await(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 40
    while not what():
        # A log tells nobody that it has grown.
        assert time.monotonic() < deadline
        time.sleep(0.02)


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


def test_users_of_the_page_have_the_rights_that_the_operators_page_names() -> None:
    (rights,) = re.findall(r'RIGHTS="(.*?)"', PAGE, re.DOTALL)
    assert rights.replace("\\\n", "").split() == [*documented(), "+info"]
    (more,) = re.findall(r"^user upkeep on >\S+ \$RIGHTS (.*)$", PAGE, re.MULTILINE)
    assert {*more.split(), "+info"} == set(documented_for("`dendro upkeep`"))
