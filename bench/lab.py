"""The processes that a bench runs on: a private Redis, the stub, workers; and a client's view of them.

Everything lives in one folder that is removed at the end, and everything that was started is stopped.
HOME is empty: a login profile would cost a command more than its sandbox does.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

from bench.accounts import Cpu, cpu_of
from orchestrator.broker.embedded import ServerBinary, choose_server, pinged
from orchestrator.core.ids import SessionId
from orchestrator.gateways.client import Client, ClientPorts
from orchestrator.gateways.folder_facts import Workspace
from orchestrator.settings import Settings, SettingsSources, load_settings
from orchestrator.wiring.deployment import Deployment, deployment
from orchestrator.wiring.new_sessions import new_birth

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_END_S = 20.0
_UNSEEN = Workspace()
"""A folder of which a model is told nothing."""


@dataclass(frozen=True, slots=True)
class Lab:
    """A folder with a Redis; whatever else a bench needs is started in it."""

    folder: Path
    server: ServerBinary
    redis: subprocess.Popen[bytes]

    @property
    def redis_url(self) -> str:
        return f"unix://{self.folder}/s"

    @property
    def workspace(self) -> Path:
        return self.folder / "ws"

    def environ(self, **more: str) -> dict[str, str]:
        """The environment of a user with an empty home."""
        home = str(self.folder / "home")
        return {"PATH": PATH, "HOME": home, "DENDRO_REDIS_URL": self.redis_url, "OPENAI_API_KEY": "x", **more}

    def run(self, module: str, *args: str) -> bytes:
        """Runs a module of the bench as a process to its end; returns its output."""
        return subprocess.check_output(
            _argv([module, *args]), env=_with_bench(self.environ()), cwd=self.workspace
        )

    def settings(self, environ: Mapping[str, str], *overrides: str) -> Settings:
        return load_settings(SettingsSources(self.workspace, environ, overrides=overrides))


@contextmanager
def lab(kept: Path | None = None, beside: Mapping[str, str] | None = None) -> Iterator[Lab]:
    """A new lab. Its Redis has AOF everysec and listens on a unix socket, as the embedded one does.

    In the folder `kept`, which stays, it goes on with what an earlier one has left there. Redis has the
    variables `beside` besides.
    """
    with nullcontext(str(kept)) if kept else tempfile.TemporaryDirectory(prefix="dendro-bench-") as name:
        folder = Path(name)
        for part in ("home", "ws", "redis"):
            (folder / part).mkdir(exist_ok=True)
        (folder / "s").unlink(missing_ok=True)
        subprocess.run(
            ["git", "init", "-q", str(folder / "ws")], check=True, env={"PATH": PATH, "HOME": name}
        )
        server = choose_server(PATH)
        redis = _start_redis(server, folder, beside or {})
        try:
            yield Lab(folder, server, redis)
        finally:
            redis.terminate()
            redis.wait(_END_S)


def _start_redis(server: ServerBinary, folder: Path, beside: Mapping[str, str]) -> subprocess.Popen[bytes]:
    socket = folder / "s"
    place = ["--port", "0", "--unixsocket", str(socket), "--dir", str(folder / "redis"), "--save", ""]
    durable = ["--appendonly", "yes", "--appendfsync", "everysec"]
    compact = ["--stream-node-max-bytes", "2048", "--hash-max-ziplist-value", "512"]
    process = subprocess.Popen(
        [server.path, *place, *durable, *compact], stdout=subprocess.DEVNULL, env={**os.environ, **beside}
    )
    while not pinged(socket).startswith(b"+PONG"):
        if process.poll() is not None:
            raise RuntimeError(f"{server.path} ended with {process.returncode}")
        time.sleep(0.01)
    return process


@dataclass(slots=True)
class Fleet:
    """A stub and workers that ask it, with a client of their sessions."""

    lab: Lab
    settings: Settings
    base_url: str
    opened: Deployment
    client: Client
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)
    stub: subprocess.Popen[bytes] | None = None
    """None if it is somebody else's."""
    environ: dict[str, str] = field(default_factory=dict)
    """Variables that its processes have besides."""

    def hire(self, concurrency: int, profile: str = "") -> None:
        """Starts one more worker and waits until it claims."""
        argv = [str(concurrency), *([profile] if profile else [])]
        environ = self.lab.environ(OPENAI_BASE_URL=self.base_url, **self.environ)
        worker = _child(["bench.worker_process", *argv], environ, self.lab)
        self.workers.append(worker)
        _first_line(worker)

    def dismiss_workers(self) -> None:
        """Drains the workers and waits for their end."""
        while self.workers:
            _dismiss(self.workers.pop())

    def costs(self) -> dict[str, Cpu]:
        """CPU so far by part; `commands` stand under what the workers have below them."""
        workers = [cpu_of(worker.pid) for worker in self.workers]
        return {
            "worker": sum(workers, Cpu(0, 0)),
            "redis": cpu_of(self.lab.redis.pid),
            "stub": cpu_of(self.stub.pid) if self.stub else Cpu(0, 0),
            "client": Cpu(time.process_time(), 0),
        }

    async def session(self, pool: str | None = None, workspace: Workspace = _UNSEEN) -> SessionId:
        """A new root session in the lab's workspace; in a pool of its own no worker takes it."""
        now_ms = int(time.time() * 1000)
        birth = new_birth(self.settings, workspace, now_ms, secrets.token_bytes)
        if pool is not None:
            birth = replace(birth, facts=replace(birth.facts, pool=pool))
        return await self.client.create(birth)


@asynccontextmanager
async def fleet(lab: Lab, script: str, *overrides: str, port: int = 0) -> AsyncIterator[Fleet]:
    """A stub that answers by `script`, and a client; workers are hired later.

    Sessions of an earlier fleet go on in this one if its stub has the port of theirs.
    """
    with stub_of(lab, script, port) as (stub, base_url):
        async with attached(lab, base_url, *overrides) as running:
            running.stub = stub
            yield running


@contextmanager
def stub_of(lab: Lab, script: str, port: int = 0) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A stub that answers by `script`, with its address."""
    stub = _child(["bench.stub_process", script, str(port)], lab.environ(), lab)
    try:
        yield stub, _first_line(stub)
    finally:
        _dismiss(stub)


@asynccontextmanager
async def attached(lab: Lab, base_url: str, *overrides: str) -> AsyncIterator[Fleet]:
    """A client beside a model server that runs already; workers are hired later, and dismissed at the end."""
    hired: list[subprocess.Popen[bytes]] = []
    try:
        settings = lab.settings(lab.environ(OPENAI_BASE_URL=base_url), *overrides)
        async with deployment(settings, settings.redis.url or "") as opened:
            client = Client(
                ClientPorts(opened.broker, opened.texts, secrets.token_bytes), secrets.token_hex(8), "bench"
            )
            yield Fleet(lab, settings, base_url, opened, client, hired)
    finally:
        for process in hired:
            _dismiss(process)


def _child(module: list[str], environ: Mapping[str, str], lab: Lab) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        _argv(module),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=_with_bench(environ),
        cwd=lab.workspace,
    )


def _argv(module: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", *module]


def _with_bench(environ: Mapping[str, str]) -> dict[str, str]:
    """The repository's root is where the bench itself was found."""
    return {**environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1])}


def _first_line(process: subprocess.Popen[bytes]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline().decode().strip()
    if not line:
        raise RuntimeError(f"{process.args!r} ended before it was ready")
    return line


def _dismiss(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.close()
    process.wait(_END_S)
    process.stdout.close()
