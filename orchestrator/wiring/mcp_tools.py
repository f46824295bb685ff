"""The tools of a worker's MCP servers, from settings."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from orchestrator.settings import Settings
from orchestrator.tools.exec.command import for_model
from orchestrator.tools.exec.supervisor import Supervisor
from orchestrator.tools.mcp import McpToolbox, mcp_programs
from orchestrator.tools.site import ToolConfig
from orchestrator.wiring.sessions import VERSION


@asynccontextmanager
async def mcp_toolbox(
    settings: Settings, supervisor: Supervisor, config: ToolConfig
) -> AsyncIterator[McpToolbox | None]:
    """The tools; None where no server is configured. At the end every server's connection is closed."""
    if not any(server.enabled for server in settings.mcp_servers.values()):
        yield None
        return
    # The SDK takes most of a second to import: only a worker that has a use for it pays that.
    from orchestrator.mcp.servers import Servers, ServersConfig

    servers = Servers(
        ServersConfig(
            servers=settings.mcp_servers,
            start_program=mcp_programs(supervisor, config),
            shorten=_shortened,
            version=VERSION,
        )
    )
    try:
        yield McpToolbox(servers)
    finally:
        await servers.aclose()


def _shortened(text: str) -> str:
    return for_model(text.encode("utf-8", "replace"))
