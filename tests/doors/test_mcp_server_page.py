"""`dendro mcp-server` as a process: the page's client, and a server that is killed."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import mcp.types as sdk
import pytest
from mcp import ClientSession

from orchestrator.gateways.mcp_server import messages
from orchestrator.gateways.ndjson import Streams
from tests.cli.machine import Machine, dendro, says
from tests.servers import RedisServer, start_redis
from tests.started import Started

pytestmark = pytest.mark.realredis

PAGE = Path(__file__).parents[2] / "docs/doors/mcp-server.md"


@pytest.fixture(scope="module")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with start_redis(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def machine(tmp_path: Path, redis_server: RedisServer) -> Machine:
    with redis_server.client() as client:
        client.flushall()
    return Machine.at(tmp_path, redis_server.url)


def test_client_of_the_page_runs_a_session_and_goes_on_with_it(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    home = f"{machine.environ['DENDRO_HOME']}"
    # The SDK hands a server a few variables only; what else it needs stands in the person's file.
    with machine.model(says("Here it is."), says("Shorter.")) as user:
        Path(home).mkdir()
        file = Path(home) / "dendro.toml"
        file.write_text(
            f'[redis]\nurl = "{user.environ["DENDRO_REDIS_URL"]}"\n'
            f'[model_providers.stub]\nbase_url = "{user.environ["OPENAI_BASE_URL"]}"\n'
        )
        words = [*dendro(), "--home", home, "-c", "model_provider=stub", "mcp-server"]
        program = program.replace(
            'command="dendro", args=["mcp-server"]', f"command={words[0]!r}, args={words[1:]!r}"
        )
        monkeypatch.chdir(user.folder)
        exec(compile(program, str(PAGE), "exec"), {"__name__": "page"})
    assert capfd.readouterr().out.splitlines() == ["Here it is.", "completed · Shorter."]


@asynccontextmanager
async def client_of(user: Machine, *words: str) -> AsyncIterator[tuple[ClientSession, int]]:
    """A client of a server's process, and the process's id."""
    command = dendro("-c", "worker.drain_grace_s=0", "mcp-server", *words)
    process = Started(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=user.folder, env=dict(user.environ)
    )
    assert process.stdin is not None
    assert process.stdout is not None
    ours, reader = process.stdin, asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    pipe, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), process.stdout)

    async def write(data: bytes) -> None:
        ours.write(data)
        ours.flush()

    try:
        async with (
            messages(Streams(reader.read, write), 1 << 22) as (received, sent),
            ClientSession(received, sent) as client,
        ):
            await client.initialize()
            yield client, process.pid
    finally:
        with suppress(BrokenPipeError):
            ours.close()
        await asyncio.to_thread(process.wait)
        pipe.close()


async def test_turn_of_a_killed_server_ends_under_the_next_one(machine: Machine) -> None:
    slow = {"items": [{"call": "shell", "args": {"command": ["cat", "gate"]}}]}
    os.mkfifo(machine.folder / "gate")
    begun = asyncio.Event()

    async def told(progress: float, total: float | None, message: str | None) -> None:
        if message == "$ cat gate":
            begun.set()

    with machine.buried.model(slow, says("It went on."), says("And then.")) as user:
        async with client_of(user) as (client, pid):
            calling = asyncio.create_task(client.call_tool("run", {"prompt": "go"}, progress_callback=told))
            await begun.wait()
            os.kill(pid, signal.SIGKILL)
            await asyncio.gather(calling, return_exceptions=True)
        async with client_of(user) as (client, _):
            listed = await client.call_tool("threads", {})
            assert isinstance(listed, sdk.CallToolResult)
            assert listed.structured_content is not None
            (thread,) = [each["threadId"] for each in listed.structured_content["threads"]]
            done = await client.call_tool("reply", {"thread_id": thread, "prompt": "and then"})
    assert isinstance(done, sdk.CallToolResult)
    assert done.structured_content is not None
    assert (done.structured_content["threadId"], done.structured_content["status"]) == (thread, "completed")
    # The model's second answer ended the turn whose server was killed.
    (said,) = done.content
    assert isinstance(said, sdk.TextContent)
    assert said.text == "And then."
