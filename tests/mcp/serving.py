"""Real MCP servers for tests: published ones, a bad one, and one of the SDK's own behind HTTP on loopback."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from orchestrator.config_keys import McpServerSettings
from orchestrator.mcp.server_records import Question
from orchestrator.mcp.servers import Servers, ServersConfig
from orchestrator.protocol.mcp import ElicitationAction, McpStartupStatus
from orchestrator.sandbox.probe import SandboxSupport
from orchestrator.tools.exec.command import for_model
from orchestrator.tools.exec.supervisor import Supervisor, SupervisorConfig
from orchestrator.tools.mcp_tools import mcp_programs
from orchestrator.tools.tool_context import ToolConfig

BAD = Path(__file__).with_name("bad_server.py")


def bad(mode: str = "good", *arguments: str, **more: Any) -> McpServerSettings:
    """The bad server, as it starts in a mode."""
    program = {"command": sys.executable, "args": ("-I", str(BAD), mode, *arguments)}
    return McpServerSettings(**{"id": "bad", **program, **more})


def published(name: str, *arguments: str, **more: Any) -> McpServerSettings:
    """A server from PyPI; the test is skipped where it is not installed."""
    module = f"mcp_server_{name}"
    if find_spec(module) is None:
        pytest.skip(f"the server mcp-server-{name} is not installed")
    return McpServerSettings(
        **{"id": name, "command": sys.executable, "args": ("-m", module, *arguments), **more}
    )


class Heard:
    """The reports of starts and the questions of servers."""

    def __init__(self, decision: ElicitationAction = ElicitationAction.DECLINE) -> None:
        self.starts: list[tuple[str, str]] = []
        self.questions: list[Question] = []
        self._decision = decision

    def report(self, server: str, status: McpStartupStatus) -> None:
        self.starts.append((server, str(getattr(status, "state", status))))

    async def ask(self, question: Question) -> ElicitationAction:
        self.questions.append(question)
        return self._decision


@asynccontextmanager
async def supervisor() -> AsyncIterator[Supervisor]:
    started = await Supervisor.start(SupervisorConfig(SandboxSupport(None, 0, ())))
    try:
        yield started
    finally:
        await started.close()


@asynccontextmanager
async def servers(
    *settings: McpServerSettings, environ: Mapping[str, str] | None = None, idle_s: float = 60.0
) -> AsyncIterator[Servers]:
    """The servers of a worker, under a real supervisor."""
    async with servers_and_supervisor(*settings, environ=environ, idle_s=idle_s) as (made, _):
        yield made


@asynccontextmanager
async def servers_and_supervisor(
    *settings: McpServerSettings, environ: Mapping[str, str] | None = None, idle_s: float = 60.0
) -> AsyncIterator[tuple[Servers, Supervisor]]:
    """The servers of a worker, and the supervisor of their programs."""
    async with supervisor() as kept:
        config = ToolConfig(SandboxSupport(None, 0, ()), dict(os.environ) if environ is None else environ)
        made = Servers(
            ServersConfig(
                servers={each.id: each for each in settings},
                start_program=mcp_programs(kept, config),
                shorten=lambda text: for_model(text.encode()),
                version="1",
                idle_s=idle_s,
            )
        )
        try:
            yield made, kept
        finally:
            await made.aclose()


class Fifo:
    """Words that a server writes, one at a time."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "words"
        os.mkfifo(self.path)

    async def word(self) -> str:
        return await asyncio.to_thread(self.path.read_text)


@pytest.fixture
def fifo(tmp_path: Path) -> Fifo:
    return Fifo(tmp_path)


async def until(condition: Callable[[], bool]) -> None:
    """Waits for what has no signal: the end of a process of somebody else's."""
    while not condition():
        await asyncio.sleep(0.005)


def is_alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
