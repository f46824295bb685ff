"""Holds one conversation with `dendro proto` as a client would: a process, its pipes, a model over HTTP.

Each submission is sent once every recorded event before it has come. What the program was told
and what it did is handed back; judging it is the comparator's.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.stub import Scenario, StubConfig, running
from orchestrator.stub.server import RequestJournal
from tests.acceptance.allowances import Message
from tests.acceptance.comparator import has_come
from tests.acceptance.placeholders import Bindings
from tests.acceptance.wires import RESPONSES, asked
from tests.servers import plain_http
from tests.started import COMMAND, Started

PATIENCE_S = 45.0
"""How long an event may take on a loaded machine before the conversation counts as stuck."""

_PIPE_BYTES = 64 * 1024 * 1024
_RETRY_KEYS = ("request_max_retries", "stream_max_retries", "stream_idle_timeout_ms")


@dataclass(frozen=True, slots=True)
class Setup:
    """The folders of one conversation, and its Redis if that is not one of its own."""

    root: Path
    redis_url: str = ""

    @property
    def workspace(self) -> Path:
        return self.root / "workspace"

    @property
    def outside(self) -> Path:
        return self.root / "outside"

    @property
    def home(self) -> Path:
        return self.root / "home"

    @property
    def data(self) -> Path:
        return self.home / "data"

    def bindings(self) -> Bindings:
        return Bindings({"WORKSPACE": str(self.workspace), "OUTSIDE": str(self.outside)})


def set_up(root: Path, config: str, redis_url: str = "") -> Setup:
    """A committed workspace, a folder beside it, and an empty home with the configuration."""
    setup = Setup(root, redis_url)
    for folder in (setup.outside, setup.data):
        folder.mkdir(parents=True)
    shutil.copytree(_committed(), setup.workspace)
    (setup.data / "dendro.toml").write_text(config)
    return setup


@functools.cache
def _committed() -> Path:
    """A repository with one commit, which this process makes once: its copy takes a tenth of the time."""
    home = Path(tempfile.mkdtemp(prefix="dendro-committed-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    made = home / "workspace"
    made.mkdir()
    (made / "README.md").write_text("hello\n")
    (made / "a.txt").write_text("one\ntwo\nthree\n")
    git = ["git", "-c", "user.name=A", "-c", "user.email=a@example.com", "-c", "init.defaultBranch=main"]
    environ = {"PATH": os.environ["PATH"], "HOME": str(home), "LANG": "C.UTF-8"}
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "start"]):
        subprocess.run([*git, *words], cwd=made, check=True, env=environ)
    shutil.rmtree(made / ".git" / "hooks")
    return made


def environment(setup: Setup, base_url: str = "") -> dict[str, str]:
    redis = {"DENDRO_REDIS_URL": setup.redis_url} if setup.redis_url else {}
    return {
        **redis,
        "PATH": os.environ["PATH"],
        "HOME": str(setup.home),
        "LANG": "C.UTF-8",
        "DENDRO_HOME": str(setup.data),
        "OPENAI_API_KEY": "not-a-key",
        "OPENAI_BASE_URL": base_url,
    }


@dataclass(slots=True)
class Held:
    """Results of a conversation."""

    events: list[Message] = field(default_factory=list)
    requests: list[Message] = field(default_factory=list)
    rollout: list[Message] = field(default_factory=list)
    exit_codes: list[int] = field(default_factory=list)
    stderr: str = ""

    def told(self) -> str:
        """For the report of a failing test."""
        lines = [json.dumps(event)[:1200] for event in self.events]
        return "\n".join([*lines, f"exit codes {self.exit_codes}", self.stderr[-4000:]])


class Stuck(AssertionError):
    """An event that the next submission waits for did not come."""


@dataclass(frozen=True, slots=True)
class Pipes:
    """The pipes of a process, as streams of the test's loop."""

    stdin: asyncio.StreamWriter
    stdout: asyncio.StreamReader
    stderr: asyncio.StreamReader
    _transports: Sequence[asyncio.BaseTransport]

    @classmethod
    async def of(cls, process: subprocess.Popen[bytes]) -> Pipes:
        loop = asyncio.get_running_loop()
        stdout, stderr = asyncio.StreamReader(_PIPE_BYTES), asyncio.StreamReader(_PIPE_BYTES)
        written = asyncio.StreamReaderProtocol(asyncio.StreamReader())
        to, _ = await loop.connect_write_pipe(lambda: written, process.stdin)
        out, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stdout), process.stdout)
        err, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stderr), process.stderr)
        return cls(asyncio.StreamWriter(to, written, None, loop), stdout, stderr, (to, out, err))

    def close(self) -> None:
        for transport in self._transports:
            transport.close()


class Proto:
    """A `dendro proto` process."""

    def __init__(self, process: subprocess.Popen[bytes], pipes: Pipes, held: Held) -> None:
        self._process = process
        self._pipes = pipes
        self._held = held
        self._begin = len(held.events)
        self._changed = asyncio.Event()
        self._reading = asyncio.create_task(self._read())
        self._complaining = asyncio.create_task(self._complain())

    @property
    def events(self) -> list[Message]:
        """Events that this process has written so far."""
        return self._held.events[self._begin :]

    async def _read(self) -> None:
        async for line in self._pipes.stdout:
            self._held.events.append(json.loads(line))
            self._changed.set()
        self._changed.set()

    async def _complain(self) -> None:
        async for line in self._pipes.stderr:
            self._held.stderr += line.decode(errors="replace")

    async def say(self, line: bytes) -> None:
        """Writes bytes as they are."""
        self._pipes.stdin.write(line)
        await self._pipes.stdin.drain()

    def hang_up(self) -> None:
        """Ends the input."""
        self._pipes.stdin.close()

    async def until(self, expected: Sequence[Message]) -> None:
        """Waits until all these events have come; raises `Stuck` if they do not."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not has_come(expected, self.events):
                    if self._reading.done():
                        raise Stuck(f"the program left before {expected[-1]}\n{self._held.told()}")
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise Stuck(f"never came: {expected[-1]}\n{self._held.told()}") from None

    async def left(self) -> int:
        """Waits for the process to end by itself, and answers its exit code."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                await asyncio.gather(self._reading, self._complaining)
                return await asyncio.to_thread(self._process.wait)
        except TimeoutError:
            raise Stuck(f"the program does not end\n{self._held.told()}") from None

    async def close(self) -> None:
        """Kills the process if it still runs: its worker follows, its pipe being closed."""
        self._process.kill()
        await asyncio.to_thread(self._process.wait)
        for task in (self._reading, self._complaining):
            task.cancel()
        await asyncio.gather(self._reading, self._complaining, return_exceptions=True)
        self._pipes.close()


@dataclass(frozen=True, slots=True)
class Scene:
    """Where processes are started: the folders, and the model that answers them."""

    setup: Setup
    base_url: str
    held: Held
    asked: RequestJournal
    """Requests to the model, as they come."""

    @contextlib.asynccontextmanager
    async def proto(self, *arguments: str, preloaded: bool = True) -> AsyncIterator[Proto]:
        """A running `dendro proto` in the workspace; a new Python where it is not a preloaded one."""
        start = Started if preloaded else subprocess.Popen
        process = start(
            [*COMMAND, "proto", *arguments],
            cwd=self.setup.workspace,
            env=environment(self.setup, self.base_url),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
        )
        proto = Proto(process, await Pipes.of(process), self.held)
        try:
            yield proto
        finally:
            await proto.close()


@contextlib.asynccontextmanager
async def scene(
    root: Path,
    config: str,
    model: Sequence[Message] | Message,
    wire: str = RESPONSES,
    redis_url: str = "",
) -> AsyncIterator[Scene]:
    """Sets up the folders and serves the scripted model; requests and log are read at the end."""
    setup = set_up(root, with_provider_table(config, wire), redis_url)
    try:
        scenario = Scenario.parse(model if isinstance(model, dict) else [*model])
        async with running(StubConfig(scenario)) as stub:
            found = Scene(setup, stub.base_url, Held(), stub.journal)
            yield found
            found.held.requests += [asked(body, wire) for body in await _requests(stub.base_url)]
        found.held.rollout += list(_rollout(found.held))
    finally:
        stop_orphan(setup)


def stop_orphan(setup: Setup) -> None:
    """Ends the setup's own server if its last user was killed: nobody else will."""
    pidfile = setup.data / "redis" / "redis.pid"
    with contextlib.suppress(FileNotFoundError, ProcessLookupError, ValueError):
        os.kill(int(pidfile.read_text()), signal.SIGTERM)


def with_provider_table(config: str, wire: str = RESPONSES) -> str:
    """`config.toml` holds a choice of lines: retry keys and format belong to the provider's table."""
    lines = config.splitlines()
    own = [line for line in lines if line.split("=")[0].strip() in _RETRY_KEYS]
    rest = [line for line in lines if line not in own]
    if wire != RESPONSES:
        own.append(f'wire_api = "{wire}"')
    return "\n".join([*rest, "[model_providers.openai]", *own]) + "\n" if own else config


async def _requests(base_url: str) -> list[Message]:
    async with plain_http() as client:
        exchanges = (await client.get(base_url.removesuffix("/v1") + "/requests")).json()
    return [exchange["body"] for exchange in exchanges]


def _rollout(held: Held) -> Iterator[Message]:
    configured = [e["msg"] for e in held.events if e["msg"]["type"] == "session_configured"]
    path = Path(configured[-1]["rollout_path"]) if configured else None
    if path is not None and path.is_file():
        yield from (json.loads(line) for line in path.read_text().splitlines())


async def hold(
    proto: Proto, lines: Sequence[Message], bindings: Bindings, asked: RequestJournal | None = None
) -> int:
    """Plays one process's part: `sq` and `raw` lines are sent in their turn, `eof` ends the input.

    `asked` in a line waits until the model has had so many requests, which `asked` counts.
    """
    expected: list[Message] = []
    for line in lines:
        if "eq" in line:
            expected.append(line["eq"])
            continue
        await proto.until(expected)
        if "asked" in line:
            await _has_been(asked, line["asked"])
        elif "eof" in line:
            proto.hang_up()
        else:
            await proto.say(_bytes(line, bindings))
    await proto.until(expected)
    return await proto.left()


async def _has_been(asked: RequestJournal | None, times: int) -> None:
    assert asked is not None, "this conversation is not told of requests"
    async with asyncio.timeout(PATIENCE_S):
        await asked.until(lambda journal: journal.received >= times)


def _bytes(line: Message, bindings: Bindings) -> bytes:
    text: Any = line["raw"] if "raw" in line else json.dumps(line["sq"])
    return bindings.fill(text).encode() + b"\n"
