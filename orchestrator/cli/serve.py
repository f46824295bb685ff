"""The doors for other programs, and the window: `dendro serve`, `window`, `app-server`, `mcp-server`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.invocation import Invocation
from orchestrator.cli.run import Cwd, NoWorker
from orchestrator.terminal.faults import ExitCode, Fault

if TYPE_CHECKING:
    from orchestrator.gateways.app_server.client_connection import AppServer
    from orchestrator.gateways.wires.addresses import Address
    from orchestrator.settings import Settings, SettingsSources
    from orchestrator.wiring.open_deployment import Opened
    from workers.companion import Companion

USUAL_SOCKET = "gateway.sock"
"""In the home folder, which no command of an agent can look into."""
STDIO = "stdio://"
EARLY_BYTES = 64 << 10
GO_ON = "the sessions stay as they are: dendro sessions lists them"


def serve(
    ctx: typer.Context,
    listen: Annotated[
        list[str] | None,
        typer.Option(
            "--listen",
            metavar="ADDRESS",
            help="tcp://, ws://, http://HOST:PORT, unix://PATH, tcps://, wss://, https://; may be repeated.",
        ),
    ] = None,
) -> None:
    """Serves sessions to clients: a gateway, without a worker of its own.

    tcp:// and tcps:// speak SQ/EQ, a JSON object a line; ws:// and wss:// the
    app-server protocol; unix:// both; http:// and https:// serve the window,
    a page for browsers. Without --listen: unix:// in the home folder. What
    leaves this machine needs TLS and a token (`dendro token`). SIGTERM closes
    it; sessions go on, and clients come back to any gateway.

    \b
    dendro serve --listen http://127.0.0.1:4600
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
        uvloop.run(_serve_sockets(settings, invocation.sources(), addresses))
    except BadAddress as error:
        raise Fault(str(error), ExitCode.USAGE) from None


async def _serve_sockets(
    settings: Settings,
    sources: SettingsSources,
    addresses: list[Address],
    worker: Companion | None = None,
    *,
    opens: bool = False,
) -> None:
    """Until SIGINT or SIGTERM, or the end of the worker beside it."""
    from orchestrator.cli.invocation import opened

    async with opened(settings, insists=True, kind="gateway") as found:
        serving = _until_told(found, sources, addresses, opens=opens)
        if worker is not None:
            serving = worker.outliving(serving, GO_ON)
        await serving


async def _until_told(
    found: Opened, sources: SettingsSources, addresses: list[Address], *, opens: bool
) -> None:
    """Serves until SIGINT or SIGTERM; `opens` a browser at a window's address."""
    import asyncio
    import signal

    from orchestrator.cli.invocation import print_on_stderr
    from orchestrator.wiring.gateway import serving, settle_heap, window_links

    loop, told = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, told.set)
    async with serving(found, sources, addresses) as actual:
        links = await window_links(found, actual)
        for link in links:
            print_on_stderr(f"window at {link}")
        for address in actual:
            print_on_stderr(f"listening on {address}")
        settle_heap()
        with _page_for(found.settings.home, links) if opens else nullcontext():
            await told.wait()


# ── window ────────────────────────────────────────────────────────────────────────────────────────


WINDOW = "http://127.0.0.1:4600"
PAGE = "window.html"


def window(
    ctx: typer.Context,
    listen: Annotated[
        str, typer.Option("--listen", metavar="ADDRESS", help="http://HOST:PORT or https://HOST:PORT.")
    ] = WINDOW,
    no_worker: NoWorker = False,
    no_open: Annotated[
        bool, typer.Option("--no-open", help="Opens no browser: the line with the address is enough.")
    ] = False,
) -> None:
    """Serves the window, a page in which one supervises agents, with a worker.

    At a desktop it opens the browser, signed in. Elsewhere, open the line that
    it prints; it counts once, for ten minutes, and `dendro token code` makes
    another. Ctrl-C ends it; what runs then goes on with whoever serves the pool.

    \b
    dendro window
    dendro window --no-open --listen http://127.0.0.1:0
    """
    import uvloop

    from orchestrator.cli.processes import companion
    from orchestrator.gateways.wires.addresses import HTTP, BadAddress, parse_address

    invocation = Invocation.of(ctx)
    settings = invocation.settings()
    try:
        address = parse_address(listen)
        if address.scheme not in HTTP:
            raise BadAddress(f"{listen!r} is no address for a browser: http://HOST:PORT, or https://")
        with companion(invocation, wanted=not no_worker, imported=False) as worker:
            if worker is not None:
                worker.start()
            opens = not no_open and _at_a_desktop(settings.host.environ)
            uvloop.run(_serve_sockets(settings, invocation.sources(), [address], worker, opens=opens))
    except BadAddress as error:
        raise Fault(str(error), ExitCode.USAGE) from None


def _at_a_desktop(environ: Mapping[str, str]) -> bool:
    return bool(environ.get("DISPLAY") or environ.get("WAYLAND_DISPLAY"))


@contextmanager
def _page_for(home: Path, links: Sequence[str]) -> Iterator[None]:
    """Opens a browser at a window's address, by a private file that leads there.

    A command line is seen by all users of the machine: whoever came first with its code would be signed in.
    """
    import os
    import threading
    import webbrowser

    from orchestrator.private_files import new_file
    from orchestrator.sandbox.trusted_files import program_folders

    # The browser is looked for where no agent can have put one.
    os.environ["PATH"] = os.pathsep.join(program_folders())
    page = home / PAGE
    page.unlink(missing_ok=True)
    with os.fdopen(new_file(page), "w", encoding="utf-8") as opened:
        opened.write(
            f'<!doctype html><meta http-equiv="refresh" content="0;url={links[0]}"><title>Dendro</title>\n'
        )
    # It waits for some browsers to end; nothing waits for it.
    threading.Thread(target=webbrowser.open, args=(page.as_uri(),), daemon=True).start()
    try:
        yield
    finally:
        page.unlink(missing_ok=True)


# ── app-server ────────────────────────────────────────────────────────────────────────────────────


def app_server(
    ctx: typer.Context,
    listen: Annotated[
        str, typer.Option("--listen", metavar="ADDRESS", help="stdio://, ws://HOST:PORT or unix://PATH.")
    ] = STDIO,
    no_worker: NoWorker = False,
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

        uvloop.run(_serve_app(settings, invocation.sources(), (address, greeted), worker))


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


async def _serve_app(
    settings: Settings,
    sources: SettingsSources,
    where: tuple[Address, tuple[bytes, bool]],
    worker: Companion | None,
) -> None:
    address, greeted = where

    from orchestrator.cli.invocation import opened
    from orchestrator.gateways.app_server.client_connection import AppServer
    from orchestrator.wiring.new_threads import door_ports

    async with opened(settings, insists=True, kind="gateway") as found:
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
    from orchestrator.gateways.app_server.greeting import Greeter
    from orchestrator.gateways.principals import machine_user
    from orchestrator.gateways.wires.byte_wire import LineWire, StandardStreams
    from orchestrator.terminal.streams import read_stdin, write_json

    greeter = Greeter(read_stdin, write_json, early, answered)
    await server.serve(LineWire(StandardStreams(greeter.receive, greeter.send), machine_user()))


async def _listening(found: Opened, server: AppServer, address: Address) -> None:
    """Until SIGINT or SIGTERM."""
    import asyncio
    import signal

    from orchestrator.cli.invocation import print_on_stderr
    from orchestrator.gateways.wires.listeners import Doors
    from orchestrator.wiring.gateway import gateway, settle_heap

    loop, told = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, told.set)
    async with gateway(found, [address], lambda entrance: Doors(server.serve)) as (actual,):
        print_on_stderr(f"listening on {actual}")
        settle_heap()
        await told.wait()


# ── mcp-server ────────────────────────────────────────────────────────────────────────────────────


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
        uvloop.run(_serve_tools(invocation, settings, worker))


async def _serve_tools(invocation: Invocation, settings: Settings, worker: Companion | None) -> None:
    from orchestrator.cli.invocation import opened
    from orchestrator.gateways.mcp_server import Deployment, McpDoor
    from orchestrator.gateways.ndjson import Streams
    from orchestrator.gateways.principals import HOME_NAMESPACE
    from orchestrator.terminal.streams import read_stdin, write_json
    from orchestrator.wiring.asked_sessions import AskedSessions
    from orchestrator.wiring.new_sessions import VERSION

    async with opened(settings, insists=True, kind="gateway") as found:
        client = found.client(namespace=HOME_NAMESPACE, via="mcp-server")
        folder = Path(settings.session_defaults.cwd)
        asked = AskedSessions(found, invocation.sources, client, folder)
        door = McpDoor(Deployment(found.broker, client, asked.create, VERSION))
        serving = door.serve(Streams(read_stdin, write_json), settings.wire.line_limit_bytes)
        if worker is not None:
            serving = worker.outliving(serving, "start dendro mcp-server again: its sessions go on")
        await serving
