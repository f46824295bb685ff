"""`dendro mcp-server`: sessions as tools of an MCP server on stdio."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from orchestrator.cli.invocation import Invocation
from orchestrator.cli.run import Cwd, NoWorker

if TYPE_CHECKING:
    from orchestrator.cli.processes import Companion
    from orchestrator.settings import Settings


def mcp_server(ctx: typer.Context, cwd: Cwd = None, no_worker: NoWorker = False) -> None:
    """Offers sessions as tools to an MCP client, on stdio.

    The tools are run, reply, threads and tree. What a client asks for never
    permits more than the settings of this command do, and works in its folder
    or below it. A client that leaves ends nothing.

    \b
    dendro mcp-server
    dendro mcp-server -C ~/projects -c sandbox_mode=workspace-write
    """
    import uvloop

    from orchestrator.cli.processes import companion

    invocation = Invocation.of(ctx)
    settings = invocation.settings({"cwd": str(cwd) if cwd else None})
    with companion(invocation, wanted=not no_worker) as worker:
        if worker is not None:
            worker.start()
        uvloop.run(_serve(invocation, settings, worker))


async def _serve(invocation: Invocation, settings: Settings, worker: Companion | None) -> None:
    from orchestrator.cli.invocation import opened
    from orchestrator.cli.terminal import read_stdin, write_json
    from orchestrator.gateways.mcp_server.door import Deployment, McpDoor
    from orchestrator.gateways.ndjson import Streams
    from orchestrator.gateways.principals import HOME_NAMESPACE
    from orchestrator.wiring.asked_sessions import AskedSessions
    from orchestrator.wiring.sessions import VERSION

    async with opened(settings, insists=True) as found:
        client = found.client(namespace=HOME_NAMESPACE)
        folder = Path(settings.session_defaults.cwd)
        asked = AskedSessions(invocation.sources, client, folder)
        door = McpDoor(Deployment(found.broker, client, asked.create, VERSION))
        serving = door.serve(Streams(read_stdin, write_json), settings.wire.line_limit_bytes)
        if worker is not None:
            serving = worker.outliving(serving, "start dendro mcp-server again: its sessions go on")
        await serving
