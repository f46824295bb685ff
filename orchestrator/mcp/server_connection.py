"""A connection to an MCP server: handshake, list of tools, calls, end.

A task of its own holds the SDK's contexts from the first to the last, because they must be left by the task
that entered them; calls come from other tasks. Whatever goes wrong becomes a fault of this connection, which
is then closed: the next call makes a new one.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import anyio
import mcp.types as sdk
import orjson
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp import ClientSession, MCPError
from mcp.client import ClientRequestContext, Transport
from mcp.shared._stream_protocols import ReadStream, WriteStream
from mcp.shared.message import SessionMessage
from mcp.types import JSONRPCError, JSONRPCMessage, JSONRPCRequest, JSONRPCResponse
from pydantic import ValidationError

from orchestrator.mcp.server_records import (
    DESCRIPTION_CHARS,
    ERROR_CHARS,
    JSON_DEPTH,
    MESSAGES_A_MINUTE,
    NAME_CHARS,
    OPEN_REQUESTS,
    PAGES,
    QUESTION_CHARS,
    REQUESTS_A_MINUTE,
    SCHEMA_BYTES,
    TOOLS,
    Ask,
    McpFault,
    Misbehaved,
    Question,
    ServerTool,
    StartFailed,
    TimedOut,
    ToolFault,
    cut,
    is_deeper,
    plain,
)
from orchestrator.protocol.mcp import ElicitationAction, Tool
from orchestrator.tables import McpServerSettings

# ── traffic ───────────────────────────────────────────────────────────────────────────────────────
# The traffic of one connection: how much a server may ask, and why the connection ended.


Streams = tuple[MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]]
"""The messages from a server, and the messages to it."""


class Traffic:
    """The account of one connection."""

    def __init__(self, server: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.server = server
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
        if self._messages > MESSAGES_A_MINUTE:
            raise Misbehaved(f"the server sent more than {MESSAGES_A_MINUTE:,} messages within a minute")
        if isinstance(message, JSONRPCRequest):
            self._asked()

    def _asked(self) -> None:
        self._in_minute += 1
        self._open += 1
        if self._open > OPEN_REQUESTS:
            raise Misbehaved(f"the server asked more than {OPEN_REQUESTS} things at once")
        if self._in_minute > REQUESTS_A_MINUTE:
            raise Misbehaved(f"the server asked more than {REQUESTS_A_MINUTE} things within a minute")

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
            except Misbehaved as fault:
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


log = logging.getLogger("dendro.mcp")

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
        self.tools: tuple[ServerTool, ...] = ()
        self.server_version = ""
        """As the server names it in its handshake; empty for one that has none."""
        self.stale = False
        """Whether the server has said that its tools changed since they were listed."""
        self._traffic = Traffic(settings.id)
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
            raise StartFailed(self.fault)

    async def relist(self) -> None:
        """Lists the tools anew; raises `McpFault` if that cannot be done in time."""
        session = self._session
        if session is None:
            return
        self.stale = False
        try:
            async with asyncio.timeout(self.settings.startup_timeout_s):
                self.tools = await self._listed(session)
        except (TimeoutError, MCPError, ValidationError) as error:
            raise McpFault(f"it does not list its tools any more: {_told(error)}") from None

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

    async def _listed(self, session: ClientSession) -> tuple[ServerTool, ...]:
        """The tools, page by page, cleaned."""
        found: list[dict[str, Any]] = []
        cursor: str | None = None
        for _ in range(PAGES):
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

    async def call(self, tool: str, arguments: dict[str, Any] | None, ask: Ask) -> dict[str, Any]:
        """Calls a tool; answers the result as JSON.

        Raises `ToolFault` when the server says that it failed, `McpFault` when there is no answer. Cancelled,
        it tells the server so.
        """
        session = self._session
        if session is None or self.fault is not None:
            raise McpFault(self.fault or "the connection is not open")
        self._numbers += 1
        number = self._numbers
        running = self._calls[number] = _Call(ask, self.settings.tool_timeout_s)
        self._idle.clear()
        try:
            result = await self._cancelling(self._sent(session, tool, arguments, running))
        except MCPError as error:
            raise self._refused(error) from None
        except ValidationError as error:
            raise Misbehaved(
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
            raise TimedOut(f"it did not answer within {limit:g} s (tool_timeout_sec)") from None

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
        text = cut(error.message, ERROR_CHARS)
        if self.fault is not None:
            return McpFault(self.fault)
        if error.code in (_GONE if self.settings.url is None else _GONE_OVER_HTTP):
            return McpFault(text)
        return ToolFault(text)

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
        question = Question(
            self.settings.id, context.request_id, cut(params.message, QUESTION_CHARS), answerable
        )
        decisions = [await call.asks(question) for call in calls]
        action = decisions[0] if answerable else ElicitationAction.DECLINE
        content: dict[str, Any] | None = {} if action is ElicitationAction.ACCEPT else None
        return sdk.ElicitResult(action=action.value, content=content)


@dataclass(slots=True)
class _Call:
    """A call that runs: the way to its person, and its time limit, which stands while they think."""

    ask: Ask
    limit_s: float
    limit: asyncio.Timeout | None = None

    async def asks(self, question: Question) -> ElicitationAction:
        self._ends(None)
        try:
            return await self.ask(question)
        finally:
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
    return cut(f"{'.'.join(map(str, details['loc']))}: {details['msg']}", 200)


def _told(error: BaseException) -> str:
    """The innermost reason of an error, without what tasks wrapped around it."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    text = cut(str(error), ERROR_CHARS)
    match error:
        case McpFault() | OSError() | MCPError() if text:
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
) -> tuple[list[ServerTool], list[str]]:
    """The tools to offer of those that a server listed (as JSON), and why others are left out."""
    kept: dict[str, ServerTool] = {}
    left_out: list[str] = []
    for tool in tools:
        name = str(tool.get("name", ""))
        if not settings.offers(name):
            continue
        if len(kept) >= TOOLS:
            left_out.append(f"it has more than {TOOLS} tools")
            break
        if (fault := _fault(name, tool, kept)) is not None:
            left_out.append(f"tool {cut(name, 80)!r}: {fault}")
        else:
            kept[name] = _cleaned(name, tool, settings)
    return list(kept.values()), left_out


def _fault(name: str, tool: Mapping[str, Any], kept: Mapping[str, ServerTool]) -> str | None:
    """Why a tool cannot be offered."""
    if not name or not name.isprintable() or len(name) > NAME_CHARS:
        return f"its name is empty, has unprintable characters or more than {NAME_CHARS} characters"
    if name in kept:
        return "a tool of that name came before"
    for key in ("inputSchema", "outputSchema"):
        schema = tool.get(key)
        if is_deeper(schema, JSON_DEPTH):
            return f"its {key} has more than {JSON_DEPTH} levels"
        if len(orjson.dumps(plain(schema))) > SCHEMA_BYTES:
            return f"its {key} has more than {SCHEMA_BYTES:,} bytes"
    return None


def _cleaned(name: str, tool: Mapping[str, Any], settings: McpServerSettings) -> ServerTool:
    description = cut(str(tool.get("description") or ""), DESCRIPTION_CHARS)
    schema = plain(tool.get("inputSchema") or {})
    hints = _hints(tool.get("annotations"))
    title = tool.get("title")
    output_schema = tool.get("outputSchema")
    record = Tool(
        name=name,
        input_schema=schema,
        description=description or None,
        title=cut(str(title), NAME_CHARS) if title else None,
        output_schema=plain(output_schema) if output_schema else None,
        annotations=hints or None,
    )
    read_only = settings.trust_annotations and hints.get("readOnlyHint") is True
    return ServerTool(settings.id, name, description, parameters(schema), record, read_only)


def _hints(annotations: Any) -> dict[str, Any]:
    """The annotations that the protocol names; others are dropped."""
    if not isinstance(annotations, Mapping):
        return {}
    known = {key: annotations[key] for key in _HINTS if annotations.get(key) is not None}
    return {
        key: cut(value, NAME_CHARS) if isinstance(value, str) else bool(value) for key, value in known.items()
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
