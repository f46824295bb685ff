"""The programs of MCP servers: supervised, in the environment of commands and their own variables."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

from orchestrator.mcp.bounds import STDERR_BYTES, UNREAD_BYTES
from orchestrator.mcp.records import Pipes, StartProgram
from orchestrator.sandbox.environment import command_environment
from orchestrator.sandbox.policy import Confinement
from orchestrator.sandbox.trusted_files import named_environment
from orchestrator.tables import McpServerSettings
from orchestrator.tools.exec.programs import Program, running_program
from orchestrator.tools.exec.supervisor import Supervisor
from orchestrator.tools.site import ToolConfig


def mcp_programs(supervisor: Supervisor, config: ToolConfig) -> StartProgram:
    """Starts servers outside of the sandbox: the person has configured them."""

    def start(settings: McpServerSettings, cwd: Path) -> AbstractAsyncContextManager[Pipes]:
        return _started(supervisor, _program(settings, cwd, config))

    return start


@asynccontextmanager
async def _started(supervisor: Supervisor, program: Program) -> AsyncIterator[Pipes]:
    async with running_program(supervisor, program) as running:
        yield running


def _program(settings: McpServerSettings, cwd: Path, config: ToolConfig) -> Program:
    assert settings.command is not None
    folder = settings.cwd or cwd
    inherited = command_environment(
        config.environ, config.sandbox.environment, Confinement("danger-full-access", folder)
    )
    argv, path = (settings.command, *settings.args), inherited.get("PATH", os.defpath)
    return Program(
        argv=argv,
        cwd=folder,
        env={
            **inherited,
            **named_environment(argv, path, (folder, cwd)),
            **settings.given_env,
            **settings.env,
        },
        unread_bytes=UNREAD_BYTES,
        stderr_bytes=STDERR_BYTES,
    )
