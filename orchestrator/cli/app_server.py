"""`dendro app-server`: sessions over JSON-RPC for terminals, SDKs and editors, a drop-in for Codex's."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.invocation import Invocation

if TYPE_CHECKING:
    from orchestrator.cli.processes import Companion
    from orchestrator.gateways.app_server.server import AppServer
    from orchestrator.gateways.wires.addresses import Address
    from orchestrator.settings import Settings, SettingsSources
    from orchestrator.wiring.open_deployment import Opened

STDIO = "stdio://"
EARLY_BYTES = 64 << 10
GO_ON = "the sessions stay as they are: dendro sessions lists them"


def app_server(
    ctx: typer.Context,
    listen: Annotated[
        str, typer.Option("--listen", metavar="ADDRESS", help="stdio://, ws://HOST:PORT or unix://PATH.")
    ] = STDIO,
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
    invocation = Invocation.of(ctx)
    # The client waits for an answer, and neither for what serves it nor for the worker.
    greeted = _greeted(invocation) if listen == STDIO else (b"", False)

    from orchestrator.cli.processes import companion
    from orchestrator.gateways.wires.addresses import parse_address

    address = parse_address(listen)
    settings = invocation.settings()
    with companion(invocation, wanted=not no_worker, imported=False) as worker:
        if worker is not None:
            worker.start()
        import uvloop

        uvloop.run(_serve(settings, invocation.sources(), (address, greeted), worker))


def _greeted(invocation: Invocation) -> tuple[bytes, bool]:
    """The bytes that a client has written by now, and whether they were answered."""
    import os
    import select
    from importlib.metadata import version

    from orchestrator.gateways.app_server.greeting import early_answer
    from orchestrator.home import home_of_process

    if os.isatty(0) or not select.select((0,), (), (), 0)[0]:
        return b"", False
    early = os.read(0, EARLY_BYTES)
    answer = early_answer(early, version("dendro-orchestrator"), home_of_process(invocation.home))
    if answer is not None:
        with suppress(BrokenPipeError):
            os.write(1, answer)
    return early, answer is not None


async def _serve(
    settings: Settings,
    sources: SettingsSources,
    where: tuple[Address, tuple[bytes, bool]],
    worker: Companion | None,
) -> None:
    address, greeted = where

    from orchestrator.cli.invocation import opened
    from orchestrator.gateways.app_server.server import AppServer
    from orchestrator.wiring.new_threads import door_ports

    async with opened(settings, insists=True) as found:
        server = AppServer(door_ports(found, sources))
        serving = (
            _on_stdio(server, *greeted) if address.scheme == "stdio" else _listening(found, server, address)
        )
        if worker is not None:
            serving = worker.outliving(serving, GO_ON)
        try:
            await serving
        finally:
            await server.close()


async def _on_stdio(server: AppServer, early: bytes, answered: bool) -> None:
    from orchestrator.cli.terminal import read_stdin, write_json
    from orchestrator.gateways.app_server.greeting import Greeter
    from orchestrator.gateways.principals import machine_user
    from orchestrator.gateways.wires.lines import LineWire, StandardStreams

    greeter = Greeter(read_stdin, write_json, early, answered)
    await server.serve(LineWire(StandardStreams(greeter.receive, greeter.send), machine_user()))


async def _listening(found: Opened, server: AppServer, address: Address) -> None:
    """Until SIGINT or SIGTERM."""
    import asyncio
    import signal

    from orchestrator.cli.invocation import print_on_stderr
    from orchestrator.gateways.wires.listeners import Doors
    from orchestrator.wiring.gateway import gateway
    from orchestrator.wiring.heap import settle_heap

    loop, told = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, told.set)
    async with gateway(found, [address], lambda gate, watch: Doors(server.serve)) as (actual,):
        print_on_stderr(f"listening on {actual}")
        settle_heap()
        await told.wait()
