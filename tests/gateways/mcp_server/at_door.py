"""A client of the SDK's own before a door, on a pair of sockets; and a worker behind it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import mcp.types as sdk
from mcp import ClientSession

from orchestrator.core.ids import SessionId
from orchestrator.gateways.mcp_server import Deployment, McpDoor, RunArguments, messages
from orchestrator.gateways.ndjson import Streams
from tests.runtime.harness import Harness

LINE = 2 << 20
Answering = Callable[[Any], sdk.ElicitResult | Awaitable[sdk.ElicitResult]]


@dataclass
class AtDoor:
    """A client that is connected, and what it was told."""

    session: ClientSession
    door: McpDoor
    serving: asyncio.Task[None]
    harness: Harness
    end: asyncio.StreamWriter
    """The client's end of the connection."""
    progress: list[str] = field(default_factory=list)
    asked: list[sdk.ElicitRequestFormParams] = field(default_factory=list)
    told: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def call(self, tool: str, **arguments: Any) -> sdk.CallToolResult:
        result = await self.session.call_tool(tool, arguments, progress_callback=self._progress)
        assert isinstance(result, sdk.CallToolResult)
        return result

    async def _progress(self, progress: float, total: float | None, message: str | None) -> None:
        async with self.told:
            self.progress.append(message or "")
            self.told.notify_all()

    async def until_told(self, words: str) -> None:
        async with self.told:
            await self.told.wait_for(lambda: any(words in line for line in self.progress))

    async def running_session(self) -> SessionId:
        """The only session of the fleet."""
        (session,) = await self.harness.broker.logs.newest(2)
        return session


def words(result: sdk.CallToolResult) -> str:
    (content,) = result.content
    assert isinstance(content, sdk.TextContent)
    return content.text


async def streams_of(end: socket.socket) -> tuple[Streams, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection(sock=end, limit=1 << 22)

    async def write(data: bytes) -> None:
        writer.write(data)
        await writer.drain()

    return Streams(reader.read, write), writer


@asynccontextmanager
async def at_door(
    harness: Harness,
    answering: Answering | None = None,
    policy: str = "untrusted",
    worker: bool = True,
    namespace: str | None = None,
) -> AsyncIterator[AtDoor]:
    """A client whose person answers forms by `answering`; None: it cannot ask one."""

    async def create(asked: RunArguments) -> SessionId:
        return await harness.session(policy)

    harness.client.namespace = namespace
    ours, theirs = socket.socketpair()
    door = McpDoor(Deployment(harness.broker, harness.client, create, "0"))
    (served, serving_end), (client_streams, client_end) = await streams_of(ours), await streams_of(theirs)
    serving = asyncio.create_task(door.serve(served, LINE))
    served_by = harness.worker()
    running = asyncio.create_task(served_by.run()) if worker else None
    found: list[AtDoor] = []

    async def elicited(context: Any, params: Any) -> sdk.ElicitResult:
        found[0].asked.append(params)
        assert answering is not None
        answer = answering(params)
        return answer if isinstance(answer, sdk.ElicitResult) else await answer

    try:
        async with (
            messages(client_streams, LINE) as (received, sent),
            ClientSession(received, sent, elicitation_callback=elicited if answering else None) as session,
        ):
            await session.initialize()
            found.append(AtDoor(session, door, serving, harness, client_end))
            yield found[0]
    finally:
        client_end.close()
        if running is not None:
            served_by.drain()
            await running
        await door.close()
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        serving_end.close()
