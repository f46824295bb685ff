"""All MCP servers of a worker: one connection for each server and folder, shared by the sessions there.

A session holds the servers of its folder from its first request until the worker gives it back. Servers that
nobody holds are closed after a while. A connection that is at fault is replaced once, by the next call.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mcp.client import Transport

from orchestrator.mcp.bounds import OFFERED_BYTES
from orchestrator.mcp.connection import Connection
from orchestrator.mcp.faults import McpFault, StartFailed, ToolFault
from orchestrator.mcp.http import over_http
from orchestrator.mcp.names import named
from orchestrator.mcp.records import (
    Answer,
    Ask,
    OfferedTool,
    Report,
    ServerTool,
    Started,
    StartProgram,
)
from orchestrator.mcp.results import Shorten, answered, failed
from orchestrator.mcp.stdio import over_pipes
from orchestrator.mcp.traffic import Streams, Traffic
from orchestrator.protocol.mcp import McpFailed, McpReady, McpStarting
from orchestrator.tables import McpServerSettings

log = logging.getLogger("dendro.mcp")

_SDK_LOGGERS = ("mcp", "client", "httpx2")
"""They report each wrong message of a server with a stack; here it ends a call or a connection, and is told
there. A server must not be able to fill the worker's log."""

IDLE_S = 60.0
"""After which a server that nobody holds is closed."""
FAILED_AGAIN_S = 30.0
"""Before a server that could not be started is tried again for a new request."""


@dataclass(frozen=True, slots=True)
class ServersConfig:
    """The servers of a worker, and what they are started with."""

    servers: Mapping[str, McpServerSettings]
    start_program: StartProgram
    shorten: Shorten
    version: str
    idle_s: float = IDLE_S


@dataclass(slots=True)
class _Slot:
    """A server in one folder."""

    settings: McpServerSettings
    cwd: Path
    connection: Connection | None = None
    starting: asyncio.Task[Connection] | None = None
    failed: str = ""
    failed_at: float = 0.0
    tools: tuple[ServerTool, ...] = ()
    """As they were listed last: a server that was closed meanwhile still has them."""
    last_used: float = 0.0


@dataclass(slots=True)
class _Folder:
    slots: dict[str, _Slot]
    holders: set[str] = field(default_factory=set)
    offered: tuple[OfferedTool, ...] = ()


class Servers:
    """Implements `records.McpTools`. Bound to one event loop."""

    def __init__(self, config: ServersConfig) -> None:
        self._config = config
        self._loop = asyncio.get_running_loop()
        self._folders: dict[Path, _Folder] = {}
        self._held: dict[str, Path] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        for name in _SDK_LOGGERS:
            logging.getLogger(name).setLevel(logging.CRITICAL)

    # ── starting ──────────────────────────────────────────────────────────────────────────────

    async def start(self, session: str, cwd: Path, report: Report) -> Started:
        """Holds the folder's servers for a session and starts those that do not run, all at once."""
        folder = self._folder(cwd)
        before = self._held.get(session)
        anew = before != cwd
        if before is not None and anew:
            self._folders[before].holders.discard(session)
        self._held[session] = cwd
        folder.holders.add(session)
        await asyncio.gather(*(self._up(slot, report, anew) for slot in folder.slots.values()))
        return Started(
            ready=tuple(name for name, slot in folder.slots.items() if slot.connection is not None),
            failed={name: slot.failed for name, slot in folder.slots.items() if slot.failed},
        )

    def _folder(self, cwd: Path) -> _Folder:
        if cwd not in self._folders:
            chosen = sorted(name for name, each in self._config.servers.items() if each.enabled)
            slots = {name: _Slot(self._config.servers[name], cwd) for name in chosen}
            self._folders[cwd] = _Folder(slots)
        return self._folders[cwd]

    async def _up(self, slot: _Slot, report: Report, anew: bool) -> None:
        """Brings a server up for a request.

        One that failed is tried again for a session that comes `anew`, and not at once: a session must not
        wait for it before each of its requests.
        """
        name = slot.settings.id
        slot.last_used = self._loop.time()
        if slot.connection is not None and not slot.connection.fault:
            await self._relist(slot, slot.connection)
            return
        if slot.failed and (not anew or self._loop.time() - slot.failed_at < FAILED_AGAIN_S):
            return
        report(name, McpStarting())
        try:
            await self._connected(slot)
            report(name, McpReady())
        except McpFault as fault:
            report(name, McpFailed(error=_redacted(slot.settings, fault)))

    async def _relist(self, slot: _Slot, connection: Connection) -> None:
        """Asks a server for its tools again if it said that they changed."""
        if not connection.stale:
            return
        try:
            await connection.relist()
        except McpFault as fault:
            self._retire(slot, _redacted(slot.settings, fault))
        else:
            slot.tools = connection.tools
            self._offer(self._folders[slot.cwd])

    async def _connected(self, slot: _Slot) -> Connection:
        """The server's connection, a new one if the last is at fault; callers wait for the same start."""
        if self._closed:
            raise McpFault("the worker is leaving")
        connection = slot.connection
        if connection is not None and not connection.fault:
            return connection
        if slot.starting is None:
            slot.starting = self._loop.create_task(self._start(slot), name=f"mcp-start:{slot.settings.id}")
            slot.starting.add_done_callback(_seen)
        # Shielded: one caller's cancellation must not end the start that others wait for.
        return await asyncio.shield(slot.starting)

    async def _start(self, slot: _Slot) -> Connection:
        connection = Connection(
            slot.settings, lambda traffic: self._streams(slot, traffic), self._config.version
        )
        try:
            self._retire(slot)
            await connection.start()
        except StartFailed as fault:
            slot.failed, slot.failed_at = _redacted(slot.settings, fault), self._loop.time()
            raise
        finally:
            slot.starting = None
        slot.connection, slot.tools, slot.failed = connection, connection.tools, ""
        slot.last_used = self._loop.time()
        self._offer(self._folders[slot.cwd])
        self._watch()
        return connection

    def _streams(self, slot: _Slot, traffic: Traffic) -> Transport:
        if slot.settings.url is not None:
            return over_http(slot.settings, traffic)
        return _over_program(self._config.start_program, slot, traffic)

    def _offer(self, folder: _Folder) -> None:
        """Names the tools anew: those of all servers together may be so many bytes."""
        room, kept = OFFERED_BYTES, list[OfferedTool]()
        for offered in named(tool for slot in folder.slots.values() for tool in slot.tools):
            room -= len(offered.tool.record.model_dump_json())
            if room < 0:
                log.warning(
                    "MCP: the tools from %s on are left out: together they are too many", offered.full_name
                )
                break
            kept.append(offered)
        folder.offered = tuple(kept)

    # ── using ─────────────────────────────────────────────────────────────────────────────────

    def offered(self, cwd: Path) -> Sequence[OfferedTool]:
        """The tools of the folder's servers that have started; sorted, so that they come in one order."""
        folder = self._folders.get(cwd)
        return folder.offered if folder is not None else ()

    async def up(self, cwd: Path) -> Sequence[OfferedTool]:
        """The same, once the servers that did not run have started."""
        await asyncio.gather(
            *(self._up(slot, _unreported, False) for slot in self._folder(cwd).slots.values())
        )
        return self.offered(cwd)

    async def find(self, full_name: str, cwd: Path) -> ServerTool | None:
        """The tool of that name; a worker that has just taken the session over starts the servers first."""
        if (found := self._known(full_name, cwd)) is not None:
            return found
        await self.up(cwd)
        return self._known(full_name, cwd)

    def _known(self, full_name: str, cwd: Path) -> ServerTool | None:
        return next((each.tool for each in self.offered(cwd) if each.full_name == full_name), None)

    async def call(
        self, tool: tuple[str, str], arguments: dict[str, Any] | None, cwd: Path, ask: Ask
    ) -> Answer:
        """Calls a server's tool; whatever goes wrong is in the answer."""
        server, name = tool
        slot = self._folder(cwd).slots.get(server)
        if slot is None:
            return failed(
                f"there is no MCP server {server} here: it was removed from the settings, or disabled"
            )
        try:
            connection = await self._connected(slot)
        except McpFault as fault:
            why = _redacted(slot.settings, fault)
            return failed(f"tool call failed: MCP server {server} could not be started: {why}")
        try:
            return answered(await connection.call(name, arguments, ask), self._config.shorten)
        except ToolFault as fault:
            return failed(f"tool call error: {_redacted(slot.settings, fault)}")
        except McpFault as fault:
            why = _redacted(slot.settings, fault)
            if slot.connection is connection:
                self._retire(slot, why)
            return failed(f"tool call failed: MCP server {server}: {why}")
        finally:
            slot.last_used = self._loop.time()

    def let_go(self, session: str) -> None:
        """Ends the session's hold on its servers."""
        cwd = self._held.pop(session, None)
        if cwd is None:
            return
        folder = self._folders[cwd]
        folder.holders.discard(session)
        for slot in folder.slots.values():
            slot.last_used = self._loop.time()
        self._watch()

    # ── ending ────────────────────────────────────────────────────────────────────────────────

    def _retire(self, slot: _Slot, why: str = "") -> None:
        """Takes a connection out of use and closes it beside everything else."""
        connection, slot.connection = slot.connection, None
        if connection is not None:
            if why:
                log.warning("MCP server %s: %s; its connection is closed", slot.settings.id, why)
            closing = self._loop.create_task(connection.drain(), name=f"mcp-close:{slot.settings.id}")
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    def _watch(self) -> None:
        if self._timer is None and not self._closed:
            self._timer = self._loop.call_later(self._config.idle_s, self._close_idle)

    def _close_idle(self) -> None:
        """Closes what nobody has held or used for a while, and forgets folders without a server."""
        self._timer = None
        now = self._loop.time()
        for cwd, folder in list(self._folders.items()):
            open_slots = [
                slot for slot in folder.slots.values() if slot.connection is not None or slot.starting
            ]
            for slot in open_slots:
                used = folder.holders or (slot.connection is not None and not slot.connection.idle)
                if not used and now - slot.last_used >= self._config.idle_s:
                    self._retire(slot)
            if not open_slots and not folder.holders:
                del self._folders[cwd]
        if any(slot.connection for folder in self._folders.values() for slot in folder.slots.values()):
            self._watch()

    async def aclose(self) -> None:
        """Ends every connection and every program."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        slots = [slot for folder in self._folders.values() for slot in folder.slots.values()]
        await asyncio.gather(*(slot.connection.close() for slot in slots if slot.connection is not None))
        starting = [slot.starting for slot in slots if slot.starting is not None]
        for task in starting:
            task.cancel()
        await asyncio.gather(*starting, return_exceptions=True)
        await asyncio.gather(*self._closing, return_exceptions=True)


@asynccontextmanager
async def _over_program(start: StartProgram, slot: _Slot, traffic: Traffic) -> AsyncIterator[Streams]:
    async with start(slot.settings, slot.cwd) as pipes, over_pipes(pipes, traffic) as streams:
        yield streams


def _redacted(settings: McpServerSettings, fault: McpFault | ToolFault) -> str:
    """The text of a fault without the server's secrets: servers like to quote the key that they refuse."""
    text = str(fault)
    given = (settings.bearer_token, *settings.secret_headers.values(), *settings.given_env.values())
    for secret in given:
        if secret:
            text = text.replace(secret, "[redacted]")
    return text


def _seen(task: asyncio.Task[Connection]) -> None:
    """Looks at the error of a start for which nobody waits any more."""
    if not task.cancelled():
        task.exception()


def _unreported(server: str, status: object) -> None:
    """Drops the report of a start that no session waits for."""
