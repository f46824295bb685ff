"""`dendro app-server`: sessions over JSON-RPC for terminals, SDKs and editors, a drop-in for Codex's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.invocation import Invocation

if TYPE_CHECKING:
    from orchestrator.cli.processes import Companion
    from orchestrator.gateways.app_server.server import AppServer
    from orchestrator.gateways.wires.addresses import Address
    from orchestrator.settings import Settings, SettingsSources
    from orchestrator.wiring.open_deployment import Opened

GO_ON = "the sessions stay as they are: dendro sessions lists them"


def app_server(
    ctx: typer.Context,
    listen: Annotated[
        str, typer.Option("--listen", metavar="ADDRESS", help="stdio://, ws://HOST:PORT or unix://PATH.")
    ] = "stdio://",
    no_worker: Annotated[
        bool, typer.Option("--no-worker", help="Start no worker: others serve the sessions' pool.")
    ] = False,
) -> None:
    """Serves sessions to clients of Codex's app-server protocol.

    One JSON message a line on stdio, or a frame of a WebSocket. The end of stdin
    ends it; one that listens runs until SIGTERM or SIGINT. What runs then goes on
    with whoever serves the pool.

    \b
    dendro app-server
    dendro app-server --listen unix:///tmp/dendro.sock
    dendro app-server --listen ws://127.0.0.1:7777
    """
    from orchestrator.cli.processes import companion
    from orchestrator.gateways.wires.addresses import parse_address

    address = parse_address(listen)
    invocation = Invocation.of(ctx)
    settings = invocation.settings()
    # The client waits for an answer, and not for the worker: that imports what it needs beside.
    with companion(invocation, wanted=not no_worker, imported=False) as worker:
        if worker is not None:
            worker.start()
        import uvloop

        uvloop.run(_serve(settings, invocation.sources(), address, worker))


async def _serve(
    settings: Settings, sources: SettingsSources, address: Address, worker: Companion | None
) -> None:
    from orchestrator.cli.invocation import opened
    from orchestrator.gateways.app_server.server import AppServer
    from orchestrator.wiring.new_threads import door_ports

    async with opened(settings, insists=True) as found:
        server = AppServer(door_ports(found, sources))
        serving = _on_stdio(server) if address.scheme == "stdio" else _listening(found, server, address)
        if worker is not None:
            serving = worker.outliving(serving, GO_ON)
        try:
            await serving
        finally:
            await server.close()


async def _on_stdio(server: AppServer) -> None:
    from orchestrator.cli.terminal import read_stdin, write_json
    from orchestrator.gateways.principals import machine_user
    from orchestrator.gateways.wires.lines import LineWire, StandardStreams

    await server.serve(LineWire(StandardStreams(read_stdin, write_json), machine_user()))


async def _listening(found: Opened, server: AppServer, address: Address) -> None:
    """Until SIGINT or SIGTERM."""
    import asyncio
    import signal

    from orchestrator.cli.invocation import print_on_stderr
    from orchestrator.gateways.wires.listeners import Doors
    from orchestrator.wiring.gateway import gateway

    loop, told = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, told.set)
    async with gateway(found, [address], lambda gate, watch: Doors(server.serve)) as (actual,):
        print_on_stderr(f"listening on {actual}")
        await told.wait()
