"""All MCP servers of a worker: one connection for each server and folder, shared by the sessions there.

A session holds the servers of its folder from its first request until the worker gives it back. Servers that
nobody holds are closed after a while. A connection that is at fault is replaced once, by the next call.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import ssl
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import httpx2
import mcp.types as sdk
import orjson
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp import ClientSession, MCPError
from mcp.client import ClientRequestContext, Transport
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._stream_protocols import ReadStream, WriteStream
from mcp.shared.message import SessionMessage
from mcp.types import JSONRPCError, JSONRPCMessage, JSONRPCRequest, JSONRPCResponse, jsonrpc_message_adapter
from pydantic import ValidationError

from orchestrator.config_keys import McpServerSettings, headers_of, redacted, stated_secrets
from orchestrator.mcp import server_records
from orchestrator.protocol import mcp
from orchestrator.protocol.items import ContentItem, InputImage, InputText, ToolOutput, image_kind
from orchestrator.protocol.wire import written

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
    start_program: server_records.StartProgram
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
    tools: tuple[server_records.ServerTool, ...] = ()
    """As they were listed last: a server that was closed meanwhile still has them."""
    last_used: float = 0.0


@dataclass(slots=True)
class _Folder:
    slots: dict[str, _Slot]
    holders: set[str] = field(default_factory=set)
    offered: tuple[server_records.OfferedTool, ...] = ()


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

    async def start(self, session: str, cwd: Path, report: server_records.Report) -> server_records.Started:
        """Holds the folder's servers for a session and starts those that do not run, all at once."""
        folder = self._folder(cwd)
        before = self._held.get(session)
        anew = before != cwd
        if before is not None and anew:
            self._folders[before].holders.discard(session)
        self._held[session] = cwd
        folder.holders.add(session)
        await asyncio.gather(*(self._up(slot, report, anew) for slot in folder.slots.values()))
        return server_records.Started(
            ready=tuple(name for name, slot in folder.slots.items() if slot.connection is not None),
            failed={name: slot.failed for name, slot in folder.slots.items() if slot.failed},
        )

    def _folder(self, cwd: Path) -> _Folder:
        if cwd not in self._folders:
            chosen = sorted(name for name, each in self._config.servers.items() if each.enabled)
            slots = {name: _Slot(self._config.servers[name], cwd) for name in chosen}
            self._folders[cwd] = _Folder(slots)
        return self._folders[cwd]

    async def _up(self, slot: _Slot, report: server_records.Report, anew: bool) -> None:
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
        report(name, mcp.McpStarting())
        try:
            await self._connected(slot)
            report(name, mcp.McpReady())
        except server_records.McpFault as fault:
            report(name, mcp.McpFailed(error=_redacted(slot.settings, fault)))

    async def _relist(self, slot: _Slot, connection: Connection) -> None:
        """Asks a server for its tools again if it said that they changed, or waits for who asks already."""
        if not (connection.stale or connection.lists):
            return
        try:
            await connection.relist()
        except server_records.McpFault as fault:
            if slot.connection is connection:
                self._retire(slot, _redacted(slot.settings, fault))
        else:
            if slot.connection is connection:
                slot.tools = connection.tools
                self._offer(self._folders[slot.cwd])

    async def _connected(self, slot: _Slot) -> Connection:
        """The server's connection, a new one if the last is at fault; callers wait for the same start."""
        if self._closed:
            raise server_records.McpFault("the worker is leaving")
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
        except server_records.StartFailed as fault:
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
        room, kept = server_records.OFFERED_BYTES, list[server_records.OfferedTool]()
        for offered in server_records.named(tool for slot in folder.slots.values() for tool in slot.tools):
            room -= len(offered.tool.record.model_dump_json().encode())
            if room < 0:
                log.warning(
                    "MCP: the tools from %s on are left out: together they are too many", offered.full_name
                )
                break
            kept.append(offered)
        folder.offered = tuple(kept)

    # ── using ─────────────────────────────────────────────────────────────────────────────────

    def offered(self, cwd: Path) -> Sequence[server_records.OfferedTool]:
        """The tools of the folder's servers that have started; sorted, so that they come in one order."""
        folder = self._folders.get(cwd)
        return folder.offered if folder is not None else ()

    def known(self, cwd: Path) -> Sequence[tuple[str, str, Sequence[server_records.ServerTool]]]:
        """The folder's servers by their names, each with its version and its tools as they were listed last;
        nothing is started for it."""
        slots = self._folder(cwd).slots.items()
        return [
            (name, slot.connection.server_version if slot.connection else "", slot.tools)
            for name, slot in slots
        ]

    async def up(self, cwd: Path) -> Sequence[server_records.OfferedTool]:
        """The same, once the servers that did not run have started."""
        await asyncio.gather(
            *(self._up(slot, _unreported, False) for slot in self._folder(cwd).slots.values())
        )
        return self.offered(cwd)

    async def find(self, full_name: str, cwd: Path) -> server_records.ServerTool | None:
        """The tool of that name; a worker that has just taken the session over starts the servers first."""
        if (found := self._known(full_name, cwd)) is not None:
            return found
        await self.up(cwd)
        return self._known(full_name, cwd)

    def _known(self, full_name: str, cwd: Path) -> server_records.ServerTool | None:
        return next((each.tool for each in self.offered(cwd) if each.full_name == full_name), None)

    async def call(
        self, tool: tuple[str, str], arguments: dict[str, Any] | None, cwd: Path, ask: server_records.Ask
    ) -> server_records.Answer:
        """Calls a server's tool; whatever goes wrong is in the answer."""
        server, name = tool
        slot = self._folder(cwd).slots.get(server)
        if slot is None:
            return failed(
                f"there is no MCP server {server} here: it was removed from the settings, or disabled"
            )
        try:
            connection = await self._connected(slot)
        except server_records.McpFault as fault:
            why = _redacted(slot.settings, fault)
            return failed(f"tool call failed: MCP server {server} could not be started: {why}")
        try:
            return answered(await connection.call(name, arguments, ask), self._config.shorten)
        except server_records.ToolFault as fault:
            return failed(f"tool call error: {_redacted(slot.settings, fault)}")
        except server_records.McpFault as fault:
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
async def _over_program(
    start: server_records.StartProgram, slot: _Slot, traffic: Traffic
) -> AsyncIterator[Streams]:
    async with start(slot.settings, slot.cwd) as pipes, over_pipes(pipes, traffic) as streams:
        yield streams


def _redacted(
    settings: McpServerSettings, fault: server_records.McpFault | server_records.ToolFault | str
) -> str:
    """The text of a fault without the server's secrets: servers like to quote the key that they refuse."""
    stated = stated_secrets((settings.url, settings.proxy), settings.http_headers)
    handed = (*settings.secret_headers.values(), *settings.given_env.values())
    return redacted(str(fault), (settings.bearer_token, *handed, *stated))


def _seen(task: asyncio.Task[Connection]) -> None:
    """Looks at the error of a start for which nobody waits any more."""
    if not task.cancelled():
        task.exception()


def _unreported(server: str, status: object) -> None:
    """Drops the report of a start that no session waits for."""


# ── http ──────────────────────────────────────────────────────────────────────────────────────────
# Messages to and from a URL: the SDK's streamable HTTP, on a client with bounds.
#
# The SDK bounds one event of a stream. Bodies that are no stream, the number of open responses and the
# pace at which a stream is asked for again are bounded here.


Reading = ReadStream[SessionMessage | Exception]
Writing = WriteStream[SessionMessage]

CONNECT_S = 10.0
SILENCE_S = 300.0
"""A response that brings nothing for so long is closed."""
GOODBYE_S = 1.0
"""For each part of the request that ends a session: a worker that leaves does not wait for its servers."""
PAUSE_S = 1.0
"""Between two requests for the server's own stream: a server can end it at once, again and again."""


@asynccontextmanager
async def over_http(settings: McpServerSettings, traffic: Traffic) -> AsyncIterator[tuple[Reading, Writing]]:
    """The streams of a session with a URL; too much of it is told to `traffic`."""
    assert settings.url is not None
    timeout = httpx2.Timeout(CONNECT_S, read=SILENCE_S)
    async with (
        httpx2.AsyncClient(
            transport=Bounded(_transport(settings), traffic),
            headers=_headers(settings),
            timeout=timeout,
            trust_env=False,
        ) as client,
        streamable_http_client(
            settings.url, http_client=client, max_sse_event_size=server_records.MESSAGE_BYTES
        ) as streams,
    ):
        yield streams


def _headers(settings: McpServerSettings) -> Mapping[str, str]:
    """The headers of every request. Nothing compressed is asked for: it would pass the bounds small."""
    token = {"Authorization": f"Bearer {settings.bearer_token}"} if settings.bearer_token else {}
    own = settings.http_headers, settings.secret_headers
    return headers_of({"Accept-Encoding": "identity"}, *own, token)


def _transport(settings: McpServerSettings) -> httpx2.AsyncHTTPTransport:
    limits = httpx2.Limits(max_connections=server_records.OPEN_EXCHANGES + 1)
    return httpx2.AsyncHTTPTransport(
        verify=_authorities(settings), limits=limits, proxy=settings.proxy, trust_env=False
    )


def _authorities(settings: McpServerSettings) -> ssl.SSLContext | bool:
    """Raises `OSError` if the file of the authorities cannot be read."""
    return True if settings.ca_file is None else ssl.create_default_context(cafile=settings.ca_file)


class Bounded(httpx2.AsyncBaseTransport):
    """A transport that bounds what comes back."""

    def __init__(self, inner: httpx2.AsyncBaseTransport, traffic: Traffic) -> None:
        self._inner = inner
        self._traffic = traffic
        self._open = 0
        self._asked_at = float("-inf")

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Sends a request; its response is read as far as a message may be long."""
        if self._open >= server_records.OPEN_EXCHANGES:
            self._traffic.fail(f"the server leaves more than {server_records.OPEN_EXCHANGES} responses open")
            raise httpx2.RequestError("too many open responses", request=request)
        if request.method == "GET":
            await self._pause()
        elif request.method == "DELETE":
            request.extensions["timeout"] = httpx2.Timeout(GOODBYE_S).as_dict()
        self._open += 1
        try:
            response = await self._inner.handle_async_request(request)
        except BaseException:
            self._open -= 1
            raise
        return self._bounded(response)

    async def _pause(self) -> None:
        loop = asyncio.get_running_loop()
        wait = self._asked_at + PAUSE_S - loop.time()
        self._asked_at = loop.time() + max(0.0, wait)
        if wait > 0:
            await asyncio.sleep(wait)

    def _bounded(self, response: httpx2.Response) -> httpx2.Response:
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        streamed = response.headers.get("content-type", "").lower().startswith("text/event-stream")
        encoded = response.headers.get("content-encoding", "identity").lower() != "identity"
        most = 0 if encoded else None if streamed else server_records.MESSAGE_BYTES
        response.stream = _Body(response.stream, most, self._closed)
        return response

    def _closed(self) -> None:
        self._open -= 1

    async def aclose(self) -> None:
        await self._inner.aclose()


class _Body(httpx2.AsyncByteStream):
    """The body of a response, to its bound; None is a stream of events, each bounded by itself."""

    def __init__(self, inner: httpx2.AsyncByteStream, most: int | None, closed: Callable[[], None]) -> None:
        self._inner = inner
        self._most = most
        self._closed: Callable[[], None] | None = closed

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for chunk in self._inner:
            size += len(chunk)
            if self._most is not None and size > self._most:
                raise httpx2.ReadError(f"the server sent more than {self._most:,} bytes that can be read")
            yield chunk

    async def aclose(self) -> None:
        if self._closed is not None:
            self._closed()
            self._closed = None
        await self._inner.aclose()


# ── results ───────────────────────────────────────────────────────────────────────────────────────
# The result of a call: as its event shows it, and as the model reads it. Both within bounds.


Shorten = Callable[[str], str]
"""Cuts a text to what one call may tell a model."""


def answered(result: Mapping[str, Any], shorten: Shorten) -> server_records.Answer:
    """The answer of a server's result, as its JSON came."""
    blocks = list(_blocks(result.get("content") or ()))
    structured = _structured(result.get("structuredContent"))
    shown = mcp.CallToolResult(
        content=tuple(_within(blocks)),
        structured_content=structured if _size(structured) <= server_records.RESULT_BYTES else None,
        is_error=True if result.get("isError") else None,
    )
    return server_records.Answer(shown, _output(blocks, structured, shorten))


def failed(why: str) -> server_records.Answer:
    """The answer of a call that has no result."""
    text = server_records.cut(why, server_records.ERROR_CHARS)
    return server_records.Answer(text, text)


def _blocks(content: Sequence[Any]) -> Iterator[dict[str, Any]]:
    """The content blocks that are well-formed; a note stands in the place of what is not shown."""
    images = 0
    for block in content[: server_records.BLOCKS]:
        if not isinstance(block, Mapping) or server_records.is_deeper(block, server_records.JSON_DEPTH):
            yield mcp.text_block("[a block that is nested too deep]")
            continue
        kind = block.get("type")
        if kind == "image":
            images += 1
            yield (
                _image(block)
                if images <= server_records.IMAGES
                else mcp.text_block(f"[an image beyond the first {server_records.IMAGES}]")
            )
        elif kind == "text":
            yield mcp.text_block(server_records.plain(str(block.get("text", ""))))
        else:
            yield server_records.plain(block)
    if len(content) > server_records.BLOCKS:
        yield mcp.text_block(f"[{len(content) - server_records.BLOCKS} more blocks]")


def _image(block: Mapping[str, Any]) -> dict[str, Any]:
    # A model's provider refuses every request with an image that is none, or is another than it is called.
    data = "".join(str(block.get("data")).split())
    try:
        kind = image_kind(base64.b64decode(data, validate=True))
    except ValueError:
        told = server_records.cut(str(block.get("mimeType")), 80)
        return mcp.text_block(f"[an image that cannot be shown: {told}]")
    return written(mcp.ImageBlock(data=data, mime_type=f"image/{kind}"))


def _structured(value: Any) -> Any:
    return (
        None
        if value is None or server_records.is_deeper(value, server_records.JSON_DEPTH)
        else server_records.plain(value)
    )


def _within(blocks: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The blocks for the event: texts share its bound; images are stored beside the log."""
    room = server_records.RESULT_BYTES
    for block in blocks:
        if block.get("type") == "image":
            yield block
            continue
        size = _size(block)
        if size <= room:
            yield block
        elif block.get("type") == "text":
            kept = block["text"].encode()[:room].decode("utf-8", "ignore")
            yield mcp.text_block(f"{kept}\n[{size - room} more bytes]")
        else:
            yield mcp.text_block(f"[a block of {size} bytes]")
        room = max(0, room - size)


def _size(value: Any) -> int:
    return len(orjson.dumps(value))


def _output(blocks: Sequence[dict[str, Any]], structured: Any, shorten: Shorten) -> ToolOutput:
    if any(block.get("type") == "image" for block in blocks):
        return tuple(_items(blocks, structured, shorten))
    return shorten(orjson.dumps(blocks if structured is None else structured).decode())


def _items(blocks: Sequence[dict[str, Any]], structured: Any, shorten: Shorten) -> Iterator[ContentItem]:
    """The images, and before them the structured result or else the texts, in the room of one output."""
    texts: list[str] = []
    images: list[InputImage] = []
    for block in blocks:
        if block.get("type") == "image":
            images.append(InputImage(image_url=f"data:{block['mimeType']};base64,{block['data']}"))
        else:
            texts.append(block["text"] if block.get("type") == "text" else orjson.dumps(block).decode())
    if structured is not None:
        yield InputText(text=shorten(orjson.dumps(structured).decode()))
    elif texts:
        yield InputText(text=shorten("\n".join(texts)))
    yield from images


# ── stdio ─────────────────────────────────────────────────────────────────────────────────────────
# Messages to and from a program over its pipes: one JSON-RPC message a line, for the SDK's sessions.
#
# In the place of the SDK's own transport, which has no bound on a line, logs each that is no message, and
# starts processes that outlive a killed worker.


_Inbound = MemoryObjectSendStream[SessionMessage | Exception]
_Outbound = MemoryObjectReceiveStream[SessionMessage]


@asynccontextmanager
async def over_pipes(pipes: server_records.Pipes, traffic: Traffic) -> AsyncIterator[Streams]:
    """The streams of a session with a program; what ends them is told to `traffic`."""
    inbound, to_session = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    from_session, outbound = anyio.create_memory_object_stream[SessionMessage](0)
    async with inbound, to_session, from_session, outbound, anyio.create_task_group() as group:
        group.start_soon(_read, pipes, inbound, traffic)
        group.start_soon(_write, pipes, outbound, traffic)
        try:
            yield to_session, from_session
        finally:
            group.cancel_scope.cancel()


async def _read(pipes: server_records.Pipes, inbound: _Inbound, traffic: Traffic) -> None:
    """Hands the program's messages to the session until one end closes."""
    lines = Lines(traffic.server, traffic.censor)
    async with inbound:
        try:
            while chunk := await pipes.read():
                for line in lines.of(chunk):
                    message = _message(line)
                    if message is None:
                        lines.count_noise(line)
                    else:
                        await inbound.send(SessionMessage(message))
            traffic.fail(f"the server ended: {pipes.last_words()}")
        except server_records.Misbehaved as fault:
            traffic.fail(str(fault))
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass


async def _write(pipes: server_records.Pipes, outbound: _Outbound, traffic: Traffic) -> None:
    async with outbound:
        async for sent in outbound:
            try:
                await pipes.write(
                    sent.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n"
                )
            except OSError as error:
                traffic.fail(f"the server does not read any more ({error}): {pipes.last_words()}")
                return


def _message(line: bytes) -> JSONRPCMessage | None:
    try:
        return jsonrpc_message_adapter.validate_json(line, by_name=False)
    except ValueError:
        return None


class Lines:
    """Cuts a stream of bytes into lines, and counts what is no message among them."""

    def __init__(self, server: str, censor: Callable[[str], str] = str) -> None:
        self._server = server
        self._censor = censor
        self._parts: list[bytes] = []
        self._size = 0
        self._noise = 0

    def of(self, chunk: bytes) -> list[bytes]:
        """The lines that the next part completes; empty ones are left out.

        Raises `Misbehaved` for a line that is too long, whether or not its end has come.
        """
        *ends, rest = chunk.split(b"\n")
        whole: list[bytes] = []
        for end in ends:
            self._add(end)
            line = b"".join(self._parts).strip()
            self._parts, self._size = [], 0
            if line:
                whole.append(line)
        self._add(rest)
        return whole

    def _add(self, part: bytes) -> None:
        self._size += len(part)
        if self._size > server_records.MESSAGE_BYTES:
            raise server_records.Misbehaved(
                f"the server sent a message of more than {server_records.MESSAGE_BYTES:,} bytes"
            )
        if part:
            self._parts.append(part)

    def count_noise(self, line: bytes) -> None:
        """Counts a line that is no message; raises `Misbehaved` when there are too many."""
        self._noise += 1
        if self._noise not in (1, server_records.NOISE_LINES + 1):
            return
        shown = self._censor(line[: server_records.ERROR_CHARS].decode("utf-8", "replace"))[:80]
        if self._noise == 1:
            log.warning("MCP server %s: its output holds more than messages: %r", self._server, shown)
        else:
            raise server_records.Misbehaved(f"the server does not speak MCP: it sent {shown!r} and the like")


# ── server connection ─────────────────────────────────────────────────────────────────────────────
# A connection to an MCP server: handshake, list of tools, calls, end.
#
# A task of its own holds the SDK's contexts from the first to the last, because they must be left by the
# task that entered them; calls come from other tasks. Whatever goes wrong becomes a fault of this
# connection, which is then closed: the next call makes a new one.


# ── traffic ───────────────────────────────────────────────────────────────────────────────────────
# The traffic of one connection: how much a server may ask, and why the connection ended.


Streams = tuple[MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]]
"""The messages from a server, and the messages to it."""


class Traffic:
    """The account of one connection."""

    def __init__(
        self,
        server: str,
        clock: Callable[[], float] = time.monotonic,
        censor: Callable[[str], str] = str,
    ) -> None:
        self.server = server
        self.censor = censor
        """Takes the server's secrets out of a text."""
        self.fault: str | None = None
        """Why the connection is over; the first reason counts."""
        self.over = asyncio.Event()
        self._clock = clock
        self._open = 0
        self._minute = clock()
        self._in_minute = 0
        self._messages = 0

    def received(self, message: JSONRPCMessage) -> None:
        """Counts a message of the server; raises `Misbehaved` when it asks too much.

        The SDK answers each request in a task of its own: a server that does not read would pile them up,
        and one that reads would keep the worker busy with answers.
        """
        now = self._clock()
        if now - self._minute >= 60:
            self._minute, self._in_minute, self._messages = now, 0, 0
        self._messages += 1
        if self._messages > server_records.MESSAGES_A_MINUTE:
            raise server_records.Misbehaved(
                f"the server sent more than {server_records.MESSAGES_A_MINUTE:,} messages within a minute"
            )
        if isinstance(message, JSONRPCRequest):
            self._asked()

    def _asked(self) -> None:
        self._in_minute += 1
        self._open += 1
        if self._open > server_records.OPEN_REQUESTS:
            raise server_records.Misbehaved(
                f"the server asked more than {server_records.OPEN_REQUESTS} things at once"
            )
        if self._in_minute > server_records.REQUESTS_A_MINUTE:
            raise server_records.Misbehaved(
                f"the server asked more than {server_records.REQUESTS_A_MINUTE} things within a minute"
            )

    def sent(self, message: JSONRPCMessage) -> None:
        """Counts a message to the server."""
        if isinstance(message, JSONRPCResponse | JSONRPCError):
            self._open -= 1

    def fail(self, why: str) -> None:
        """Records that the connection is over."""
        if self.fault is None:
            self.fault = why
        self.over.set()


@asynccontextmanager
async def counted(
    received: ReadStream[SessionMessage | Exception], sent: WriteStream[SessionMessage], traffic: Traffic
) -> AsyncIterator[Streams]:
    """The streams of a transport, each message of which is counted; too many of them end the connection."""
    inbound, to_session = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    from_session, outbound = anyio.create_memory_object_stream[SessionMessage](0)

    async def read() -> None:
        async with inbound:
            try:
                async for message in received:
                    if isinstance(message, SessionMessage):
                        traffic.received(message.message)
                    await inbound.send(message)
            except server_records.Misbehaved as fault:
                traffic.fail(str(fault))
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                pass

    async def write() -> None:
        async with outbound:
            async for message in outbound:
                traffic.sent(message.message)
                try:
                    await sent.send(message)
                except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                    return

    async with inbound, to_session, from_session, outbound, anyio.create_task_group() as group:
        group.start_soon(read)
        group.start_soon(write)
        try:
            yield to_session, from_session
        finally:
            group.cancel_scope.cancel()


# ── connection ────────────────────────────────────────────────────────────────────────────────────


END_S = 5.0
"""For leaving the SDK's contexts; a server that is still there then is left to its transport."""
CANCEL_S = 2.0
"""For telling the server that a call is not waited for any more."""

OpenStreams = Callable[[Traffic], Transport]
"""Opens the streams of messages to and from a server."""

_GONE = frozenset({sdk.CONNECTION_CLOSED})
_GONE_OVER_HTTP = frozenset({*_GONE, sdk.INVALID_REQUEST, sdk.INTERNAL_ERROR, sdk.PARSE_ERROR})
"""Codes with which the SDK tells that a connection is of no use any more. A server may answer a call with
one of them, too: then a new connection is made for nothing."""


class Connection:
    """A server that was started for one folder."""

    def __init__(self, settings: McpServerSettings, streams: OpenStreams, version: str) -> None:
        self.settings = settings
        self.tools: tuple[server_records.ServerTool, ...] = ()
        self.server_version = ""
        """As the server names it in its handshake; empty for one that has none."""
        self.stale = False
        """Whether the server has said that its tools changed since they were listed."""
        self._listing = asyncio.Lock()
        self._traffic = Traffic(settings.id, censor=lambda text: _redacted(settings, text))
        self._streams = streams
        self._info = sdk.Implementation(name="dendro", version=version)
        self._session: ClientSession | None = None
        self._started = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._calls: dict[int, _Call] = {}
        """The calls that run."""
        self._numbers = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def fault(self) -> str | None:
        """Why the connection cannot be used any more."""
        return self._traffic.fault

    @property
    def lists(self) -> bool:
        """Whether its tools are being listed anew."""
        return self._listing.locked()

    @property
    def idle(self) -> bool:
        """Whether no call runs."""
        return not self._calls

    # ── from start to end ─────────────────────────────────────────────────────────────────────

    async def start(self) -> None:
        """Connects and lists the tools; raises `StartFailed` if that cannot be done in time."""
        limit = self.settings.startup_timeout_s
        self._task = asyncio.create_task(self._hold(), name=f"mcp:{self.settings.id}")
        try:
            async with asyncio.timeout(limit):
                await self._started.wait()
        except TimeoutError:
            self._traffic.fail(f"it did not list its tools within {limit:g} s (startup_timeout_sec)")
        except asyncio.CancelledError:
            self._traffic.fail("its start was given up")
            await self.close()
            raise
        if self.fault is not None:
            await self.close()
            raise server_records.StartFailed(self.fault)

    async def relist(self) -> None:
        """Lists the tools anew if they changed; raises `McpFault` if that cannot be done in time.

        Sessions that come meanwhile wait for the same list, or make it where the first of them leaves.
        """
        async with self._listing:
            session = self._session
            if session is None or not self.stale:
                return
            self.stale = False
            try:
                async with asyncio.timeout(self.settings.startup_timeout_s):
                    self.tools = await self._listed(session)
            except (TimeoutError, MCPError, ValidationError) as error:
                why = f"it does not list its tools any more: {_told(error)}"
                raise server_records.McpFault(why) from None
            except asyncio.CancelledError:
                self.stale = True
                raise

    async def drain(self) -> None:
        """Closes the connection once its calls have ended, if it is not at fault already."""
        if self.fault is None:
            await self._idle.wait()
        await self.close()

    async def close(self) -> None:
        """Ends the connection, and with it the program."""
        self._traffic.fail("the connection was closed")
        if self._task is None:
            return
        _, late = await asyncio.wait({self._task}, timeout=END_S)
        if late:
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=END_S)

    async def _hold(self) -> None:
        """Keeps the SDK's contexts open until the connection is over."""
        try:
            async with self._session_of(self._streams) as session:
                over = asyncio.ensure_future(self._traffic.over.wait())
                begin = asyncio.ensure_future(self._begin(session))
                try:
                    await asyncio.wait({over, begin}, return_when=asyncio.FIRST_COMPLETED)
                    if begin.done():
                        begin.result()
                        self._started.set()
                        await over
                finally:
                    over.cancel()
                    begin.cancel()
                    await asyncio.wait({over, begin})
        except asyncio.CancelledError:
            self._traffic.fail("the connection was closed")
            raise
        except BaseException as error:
            self._traffic.fail(_told(error))
        finally:
            self._session = None
            self._traffic.fail("the connection ended")
            self._started.set()

    @asynccontextmanager
    async def _session_of(self, streams: OpenStreams) -> AsyncIterator[ClientSession]:
        async with (
            streams(self._traffic) as transport,
            counted(*transport, self._traffic) as (inbound, outbound),
            ClientSession(
                inbound,
                outbound,
                client_info=self._info,
                elicitation_callback=self._asked,
                message_handler=self._notified,
            ) as session,
        ):
            yield session

    async def _begin(self, session: ClientSession) -> None:
        try:
            begun = await session.initialize()
            self.server_version = begun.server_info.version
        except MCPError as refused:
            if refused.code == sdk.CONNECTION_CLOSED:
                raise
            # A server that has no handshake any more: the versions from 2026-07 on.
            await session.discover()
        self.tools = await self._listed(session)
        self._session = session

    async def _listed(self, session: ClientSession) -> tuple[server_records.ServerTool, ...]:
        """The tools, page by page, cleaned."""
        found: list[dict[str, Any]] = []
        cursor: str | None = None
        for _ in range(server_records.PAGES):
            page = await session.list_tools(params=sdk.PaginatedRequestParams(cursor=cursor))
            found += [tool.model_dump(by_alias=True, exclude_none=True) for tool in page.tools]
            if page.next_cursor is None or page.next_cursor == cursor:
                break
            cursor = page.next_cursor
        tools, left_out = cleaned(found, self.settings)
        for why in left_out:
            log.warning("MCP server %s: left out: %s", self.settings.id, why)
        return tuple(tools)

    # ── calls ─────────────────────────────────────────────────────────────────────────────────

    async def call(
        self, tool: str, arguments: dict[str, Any] | None, ask: server_records.Ask
    ) -> dict[str, Any]:
        """Calls a tool; answers the result as JSON.

        Raises `ToolFault` when the server says that it failed, `McpFault` when there is no answer. Cancelled,
        it tells the server so.
        """
        session = self._session
        if session is None or self.fault is not None:
            raise server_records.McpFault(self.fault or "the connection is not open")
        self._numbers += 1
        number = self._numbers
        running = self._calls[number] = _Call(ask, self.settings.tool_timeout_s)
        self._idle.clear()
        try:
            result = await self._cancelling(self._sent(session, tool, arguments, running))
        except MCPError as error:
            raise self._refused(error) from None
        except ValidationError as error:
            raise server_records.Misbehaved(
                f"it answered with something that is no tool's result: {_first(error)}"
            ) from None
        finally:
            del self._calls[number]
            if not self._calls:
                self._idle.set()
        return result.model_dump(by_alias=True, exclude_none=True)

    async def _sent(
        self, session: ClientSession, tool: str, arguments: dict[str, Any] | None, running: _Call
    ) -> sdk.CallToolResult:
        # Not `session.call_tool`: it checks results against patterns of the server's own, which can take
        # for ever.
        request = sdk.CallToolRequest(params=sdk.CallToolRequestParams(name=tool, arguments=arguments))
        limit = self.settings.tool_timeout_s
        try:
            async with asyncio.timeout(limit) as running.limit:
                return await session.send_request(request, sdk.CallToolResult)
        except TimeoutError:
            raise server_records.TimedOut(
                f"it did not answer within {limit:g} s (tool_timeout_sec)"
            ) from None

    async def _cancelling(self, sending: Coroutine[Any, Any, sdk.CallToolResult]) -> sdk.CallToolResult:
        """Waits for a call. Cancelled, it has the time to tell the server; a server that does not even
        read that is at fault."""
        call = asyncio.ensure_future(sending)
        try:
            return await asyncio.shield(call)
        except asyncio.CancelledError:
            call.cancel()
            _, late = await asyncio.wait({call}, timeout=CANCEL_S)
            if late:
                self._traffic.fail("it does not read any more")
            raise

    def _refused(self, error: MCPError) -> Exception:
        text = server_records.cut(error.message, server_records.ERROR_CHARS)
        if self.fault is not None:
            return server_records.McpFault(self.fault)
        if error.code in (_GONE if self.settings.url is None else _GONE_OVER_HTTP):
            return server_records.McpFault(text)
        return server_records.ToolFault(text)

    # ── what the server says by itself ────────────────────────────────────────────────────────

    async def _notified(self, message: object) -> None:
        if isinstance(message, sdk.ToolListChangedNotification):
            self.stale = True

    async def _asked(
        self, context: ClientRequestContext, params: sdk.ElicitRequestParams
    ) -> sdk.ElicitResult | sdk.ErrorData:
        """Puts a question of the server to the person whose call runs.

        With several calls, of several sessions perhaps, nobody can tell whose it is: none is asked.
        """
        calls = list(self._calls.values())
        form = isinstance(params, sdk.ElicitRequestFormParams)
        answerable = len(calls) == 1 and form and not _properties(params)
        question = server_records.Question(
            self.settings.id,
            context.request_id,
            server_records.cut(params.message, server_records.QUESTION_CHARS),
            answerable,
        )
        decisions = [await call.asks(question) for call in calls]
        action = decisions[0] if answerable else mcp.ElicitationAction.DECLINE
        content: dict[str, Any] | None = {} if action is mcp.ElicitationAction.ACCEPT else None
        return sdk.ElicitResult(action=action.value, content=content)


@dataclass(slots=True)
class _Call:
    """A call that runs: the way to its person, and its time limit, which stands while they think."""

    ask: server_records.Ask
    limit_s: float
    limit: asyncio.Timeout | None = None
    thinking: int = 0
    """Questions that nobody has answered yet: a server may ask several at once."""

    async def asks(self, question: server_records.Question) -> mcp.ElicitationAction:
        self.thinking += 1
        self._ends(None)
        try:
            return await self.ask(question)
        finally:
            self.thinking -= 1
            if not self.thinking:
                self._ends(asyncio.get_running_loop().time() + self.limit_s)

    def _ends(self, at: float | None) -> None:
        if self.limit is not None:
            # A server may answer the call before it hears the answer: then there is no limit any more.
            with suppress(RuntimeError):
                self.limit.reschedule(at)


def _properties(params: sdk.ElicitRequestParams) -> bool:
    """Whether a form has fields."""
    schema = getattr(params, "requested_schema", None)
    return bool(isinstance(schema, dict) and schema.get("properties"))


def _first(error: ValidationError) -> str:
    details = error.errors(include_input=False, include_url=False)[0]
    return server_records.cut(f"{'.'.join(map(str, details['loc']))}: {details['msg']}", 200)


def _told(error: BaseException) -> str:
    """The innermost reason of an error, without what tasks wrapped around it."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    text = server_records.cut(str(error), server_records.ERROR_CHARS)
    match error:
        case server_records.McpFault() | OSError() | MCPError() if text:
            return text
        case ValidationError():
            return f"it does not speak MCP: {_first(error)}"
        case _:
            return f"{type(error).__name__}: {text}" if text else type(error).__name__


# ── schemas ───────────────────────────────────────────────────────────────────────────────────────
# A server's list of tools, cleaned: schemas that providers take, texts and sizes within their bounds.
#
# Providers refuse a whole request for one schema that they do not take, so a tool that cannot be mended is
# left out, with a reason for the log.


_SINGLE = ("items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_NAMED = ("properties", "patternProperties", "$defs", "definitions")
_NOT_AT_ROOT = ("anyOf", "oneOf", "allOf", "not", "enum", "const", "$schema", "$id", "if", "then", "else")
"""Keywords that the Responses API refuses in the schema of a function's arguments, or has no use for."""
_HINTS = ("title", "readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")


def cleaned(
    tools: Iterable[Mapping[str, Any]], settings: McpServerSettings
) -> tuple[list[server_records.ServerTool], list[str]]:
    """The tools to offer of those that a server listed (as JSON), and why others are left out."""
    kept: dict[str, server_records.ServerTool] = {}
    left_out: list[str] = []
    for tool in tools:
        name = str(tool.get("name", ""))
        if not settings.offers(name):
            continue
        if len(kept) >= server_records.TOOLS:
            left_out.append(f"it has more than {server_records.TOOLS} tools")
            break
        if (fault := _fault(name, tool, kept)) is not None:
            left_out.append(f"tool {server_records.cut(name, 80)!r}: {fault}")
        else:
            kept[name] = _cleaned(name, tool, settings)
    return list(kept.values()), left_out


def _fault(name: str, tool: Mapping[str, Any], kept: Mapping[str, server_records.ServerTool]) -> str | None:
    """Why a tool cannot be offered."""
    if not name or not name.isprintable() or len(name) > server_records.NAME_CHARS:
        most = server_records.NAME_CHARS
        return f"its name is empty, has unprintable characters or more than {most} characters"
    if name in kept:
        return "a tool of that name came before"
    for key in ("inputSchema", "outputSchema"):
        schema = tool.get(key)
        if server_records.is_deeper(schema, server_records.JSON_DEPTH):
            return f"its {key} has more than {server_records.JSON_DEPTH} levels"
        if len(orjson.dumps(server_records.plain(schema))) > server_records.SCHEMA_BYTES:
            return f"its {key} has more than {server_records.SCHEMA_BYTES:,} bytes"
    return None


def _cleaned(name: str, tool: Mapping[str, Any], settings: McpServerSettings) -> server_records.ServerTool:
    description = server_records.cut(str(tool.get("description") or ""), server_records.DESCRIPTION_CHARS)
    schema = server_records.plain(tool.get("inputSchema") or {})
    hints = _hints(tool.get("annotations"))
    title = tool.get("title")
    output_schema = tool.get("outputSchema")
    record = mcp.Tool(
        name=name,
        input_schema=schema,
        description=description or None,
        title=server_records.cut(str(title), server_records.NAME_CHARS) if title else None,
        output_schema=server_records.plain(output_schema) if output_schema else None,
        annotations=hints or None,
    )
    read_only = settings.trust_annotations and hints.get("readOnlyHint") is True
    return server_records.ServerTool(settings.id, name, description, parameters(schema), record, read_only)


def _hints(annotations: Any) -> dict[str, Any]:
    """The annotations that the protocol names; others are dropped."""
    if not isinstance(annotations, Mapping):
        return {}
    known = {key: annotations[key] for key in _HINTS if annotations.get(key) is not None}
    return {
        key: server_records.cut(value, server_records.NAME_CHARS) if isinstance(value, str) else bool(value)
        for key, value in known.items()
    }


def parameters(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A schema of arguments as the Responses API takes it: an object with named properties."""
    root = {key: value for key, value in schema.items() if key not in _NOT_AT_ROOT}
    return {**_mended(root), "type": "object", "properties": _mended(root).get("properties", {})}


def _mended(schema: Any) -> Any:
    """A schema whose objects name properties, whose arrays name items, and whose parts are objects."""
    if not isinstance(schema, Mapping):
        return {}
    mended = dict(schema)
    for key in _SINGLE:
        if isinstance(mended.get(key), Mapping):
            mended[key] = _mended(mended[key])
        elif key in mended and not isinstance(mended[key], bool):
            del mended[key]
    for key in _LISTS:
        if key in mended:
            parts = mended[key]
            mended[key] = [_mended(each) for each in parts] if isinstance(parts, list) else []
            if not mended[key]:
                del mended[key]
    for key in _NAMED:
        if key in mended:
            parts = mended[key]
            mended[key] = (
                {name: _mended(each) for name, each in parts.items()} if isinstance(parts, Mapping) else {}
            )
    if mended.get("type") == "object":
        mended.setdefault("properties", {})
    if mended.get("type") == "array" and not isinstance(mended.get("items"), Mapping):
        mended["items"] = {}
    return mended
