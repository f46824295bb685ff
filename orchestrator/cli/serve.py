"""`dendro serve`: a gateway for clients from anywhere, which runs nothing itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.faults import ExitCode, Fault
from orchestrator.cli.invocation import Invocation

if TYPE_CHECKING:
    from orchestrator.gateways.wires.addresses import Address
    from orchestrator.settings import Settings, SettingsSources

USUAL_SOCKET = "gateway.sock"
"""In the home folder, which no command of an agent can look into."""


def serve(
    ctx: typer.Context,
    listen: Annotated[
        list[str] | None,
        typer.Option(
            "--listen",
            metavar="ADDRESS",
            help="tcp://HOST:PORT, ws://HOST:PORT, unix://PATH, wss:// or tcps://; may be repeated.",
        ),
    ] = None,
) -> None:
    """Serves sessions to clients: a gateway, without a worker of its own.

    tcp:// and tcps:// speak SQ/EQ, a JSON object a line; ws:// and wss:// the
    app-server protocol; unix:// both. Without --listen: unix:// in the home
    folder. What leaves this machine needs TLS and a token (`dendro token`).
    SIGTERM closes it; sessions go on, and clients come back to any gateway.

    \b
    dendro serve --listen ws://127.0.0.1:4500 --listen tcp://127.0.0.1:4501
    dendro serve --listen unix:///run/user/1000/dendro.sock
    dendro serve --listen wss://0.0.0.0:443 -c gateway.tls_certificate=c.pem -c gateway.tls_key=k.pem
    """
    import uvloop

    from orchestrator.gateways.wires.addresses import BadAddress, parse_address

    invocation = Invocation.of(ctx)
    settings = invocation.settings()
    try:
        usual = settings.home / USUAL_SOCKET
        addresses = [parse_address(text, usual) for text in listen or ("unix://",)]
        if any(address.scheme == "stdio" for address in addresses):
            raise BadAddress(
                "stdio:// is for `dendro proto` and `dendro app-server`: serve listens on sockets"
            )
        uvloop.run(_serve(settings, invocation.sources(), addresses))
    except BadAddress as error:
        raise Fault(str(error), ExitCode.USAGE) from None


async def _serve(settings: Settings, sources: SettingsSources, addresses: list[Address]) -> None:
    """Until SIGINT or SIGTERM."""
    import asyncio
    import signal

    from orchestrator.cli.invocation import opened, print_on_stderr
    from orchestrator.wiring.gateway import serving
    from orchestrator.wiring.heap import settle_heap

    loop, told = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, told.set)
    async with opened(settings, insists=True) as found, serving(found, sources, addresses) as actual:
        for address in actual:
            print_on_stderr(f"listening on {address}")
        settle_heap()
        await told.wait()
