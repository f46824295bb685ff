"""Doors for other programs, and the window: `dendro serve`, `window`, `app-server`, `mcp-server`, `proto`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.invocation import Invocation, warn_if_read_only
from orchestrator.cli.run import At, Cwd, ForkOption, From, NoWorker, Portable, Resume, first_content
from orchestrator.home import without_links
from orchestrator.terminal.faults import ExitCode, Fault
from orchestrator.terminal.origin import Origin

if TYPE_CHECKING:
    from orchestrator.core.ids import SessionId
    from orchestrator.gateways.app_server.client_connection import AppServer
    from orchestrator.gateways.client import Client
    from orchestrator.gateways.mcp_server import RunArguments
    from orchestrator.gateways.wires.addresses import Address
    from orchestrator.protocol.ops import WorkspaceSource
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
    from orchestrator.sandbox.kernel import share_heap

    share_heap()
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
    from orchestrator.sandbox.kernel import share_heap
    from orchestrator.wiring.new_threads import door_ports

    if address.scheme != "stdio":
        share_heap()
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


class AskedSessions:
    """Makes sessions that a program asks for, in one folder or below it or in copies of those folders.

    `sources` are the person's with these flags laid over them. What a `run` asks for is in the name of a
    model: never beyond the person's own settings.
    """

    def __init__(
        self,
        found: Opened,
        sources: Callable[[Mapping[str, object]], SettingsSources],
        client: Client,
        folder: Path,
    ) -> None:
        self._found = found
        self._sources = sources
        self._client = client
        self._folder = without_links(folder)

    async def create(self, asked: RunArguments) -> SessionId:
        """A session as a `run` wants it; raises `NotPermitted` for more than the person permits, `ViewError`
        for a folder that cannot be copied.
        """
        from orchestrator.protocol.ops import WorkspaceSource
        from orchestrator.sandbox.git import in_git_thread
        from orchestrator.wiring.open_deployment import new_session, portable_session

        # The folder is looked at, and files are read.
        settings = await in_git_thread(self._settings, asked)
        if self._found.settings.gateway.workspace == "host":
            return await new_session(settings, self._client)
        copied = WorkspaceSource(folder=str(settings.session_defaults.cwd))
        return await portable_session(replace(self._found, settings=settings), self._client, copied)

    def _settings(self, asked: RunArguments) -> Settings:
        from orchestrator.gateways.mcp_server import NotPermitted
        from orchestrator.settings import SettingsError, keys_that_loosen, load_settings

        folder = self._in_folder(asked.cwd)
        wanted = {key: value for key, value in _wanted(asked).items() if value is not None}
        try:
            if refused := keys_that_loosen(self._sources({"cwd": str(folder)}), wanted):
                raise NotPermitted(
                    f"only a person may set {', '.join(refused)} so: it permits more than this server was "
                    "started with; start it with it (dendro mcp-server -c KEY=VALUE), or leave it out"
                )
            return load_settings(self._sources({"cwd": str(folder), **wanted}))
        except SettingsError as error:
            raise NotPermitted(str(error)) from error

    def _in_folder(self, cwd: str | None) -> Path:
        from orchestrator.gateways.mcp_server import NotPermitted

        try:
            folder = without_links(self._folder / (cwd or "."))
            there = folder.is_dir()
        except (OSError, ValueError):
            raise NotPermitted(f"cwd: {cwd!r} is no folder") from None
        if not folder.is_relative_to(self._folder):
            raise NotPermitted(
                f"cwd: {cwd} is outside of {self._folder}, the folder that this server was started for; "
                "start it with -C and a folder above both"
            )
        if not there:
            raise NotPermitted(f"cwd: {cwd} is no folder")
        return folder


def _wanted(asked: RunArguments) -> dict[str, object]:
    from orchestrator.config_keys import SESSION_KEYS

    named = {key: getattr(asked, name, None) for name, key in SESSION_KEYS.items()}
    return _flat(asked.config or {}) | {key: value for key, value in named.items() if value is not None}


def _flat(table: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """The values of nested tables by their dotted keys."""
    flat: dict[str, object] = {}
    for key, value in table.items():
        if isinstance(value, Mapping) and value:
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


# ── proto ─────────────────────────────────────────────────────────────────────────────────────────


def proto(
    ctx: typer.Context,
    resume: Resume = None,
    fork: ForkOption = None,
    at: At = None,
    no_worker: NoWorker = False,
    portable: Portable = False,
    origin_url: From = None,
) -> None:
    """Serves one session on stdio: submissions in, events out, as NDJSON.

    The first line out is `session_configured`. The end of stdin ends it when
    nothing runs any more; exit code 3 if the session waits for an answer or for
    more budget then, 1 if nobody can go on with it.
    --fork makes a session that goes on where another stands, or where its
    turn --at ended; that other session stays as it is. With --portable the
    session works in a copy of this folder, or of a repository.

    \b
    echo '{"id":"1","op":{"type":"user_input","items":[{"type":"text","text":"hi"}]}}' | dendro proto
    dendro proto --resume 0199a2b4 --no-worker
    dendro proto --fork 0199a2b4 --at resp_68d1
    """
    import uvloop

    from orchestrator.cli.processes import companion

    invocation = Invocation.of(ctx)
    settings = invocation.settings()
    origin = Origin.of(resume, fork, at)
    workspace = first_content(settings, origin, origin_url, portable=portable)
    if origin.is_new and workspace is None:
        warn_if_read_only(settings)
    with companion(invocation, wanted=not no_worker) as worker:
        if worker is not None and origin.resume is None:
            worker.start()
        try:
            code = uvloop.run(_serve_session(settings, origin, worker, workspace))
        except BrokenPipeError:
            # The client has gone. What runs goes on with whoever serves the pool.
            code = ExitCode.FAILED
        if worker is not None and code == ExitCode.FAILED:
            worker.dismiss()
    raise typer.Exit(code)


async def _serve_session(
    settings: Settings, origin: Origin, worker: Companion | None, workspace: WorkspaceSource | None
) -> ExitCode:
    from orchestrator.broker.follow import BEGINNING
    from orchestrator.cli.invocation import opened
    from orchestrator.gateways.ndjson import Ending, NdjsonConnection, Streams
    from orchestrator.gateways.resume import greeting, to_resume, until_read
    from orchestrator.terminal.origin import forked
    from orchestrator.terminal.streams import read_stdin, write_json
    from orchestrator.views import SetAside
    from orchestrator.wiring.open_deployment import new_session, portable_session

    async with opened(settings, insists=True, kind="gateway") as found:
        client, cursor = found.client(via="proto"), BEGINNING
        if workspace is not None:
            session = await portable_session(found, client, workspace)
        elif origin.is_new:
            session = await new_session(settings, client)
        else:
            if origin.resume is None:
                head = await forked(found, client, origin)
            else:
                head = await to_resume(found, origin.resume)
                if worker is not None:
                    worker.start()
                    await worker.outliving(until_read(found, head), _how_to_go_on(head.session))
            session = head.session
            told = await greeting(found, head, await client.history())
            cursor = told.cursor
            await write_json(told.lines())
        streams = Streams(read_stdin, write_json)
        connection = NdjsonConnection(client, session, streams, settings.wire.line_limit_bytes)
        serving = connection.serve(cursor)
        if worker is not None:
            serving = worker.outliving(serving, _how_to_go_on(session))
        ending = await serving
    if ending is Ending.QUARANTINED:
        raise SetAside(session)
    return ExitCode.WAITING if ending is Ending.WAITING else ExitCode.DONE


def _how_to_go_on(session: SessionId) -> str:
    return f"go on with: dendro proto --resume {session}"
