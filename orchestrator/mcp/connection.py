"""A connection to an MCP server: handshake, list of tools, calls, end.

A task of its own holds the SDK's contexts from the first to the last, because they must be left by the task
that entered them; calls come from other tasks. Whatever goes wrong becomes a fault of this connection, which
is then closed: the next call makes a new one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import mcp.types as sdk
from mcp import ClientSession, MCPError
from mcp.client import ClientRequestContext, Transport
from pydantic import ValidationError

from orchestrator.mcp.bounds import ERROR_CHARS, PAGES, QUESTION_CHARS, cut
from orchestrator.mcp.faults import McpFault, Misbehaved, StartFailed, TimedOut, ToolFault
from orchestrator.mcp.records import Ask, Question, ServerTool
from orchestrator.mcp.schemas import cleaned
from orchestrator.mcp.traffic import Traffic, counted
from orchestrator.protocol.mcp import ElicitationAction
from orchestrator.tables import McpServerSettings

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
            await session.initialize()
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
