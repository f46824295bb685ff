"""A client against a real HTTP server on loopback: the stub, or one that misbehaves byte by byte."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from orchestrator.config_keys import ProviderSettings, Secret
from orchestrator.model.connections import MAX_CONNECTIONS
from orchestrator.model.model_client import ClientPorts, HttpBudget, ModelClient
from orchestrator.model.prompt import ModelEvent, Prompt
from orchestrator.stub import RunningStub, Scenario, Script, StubConfig, running

API_KEY = "sk-very-secret"


@dataclass
class Connected:
    """A client, the stub that it talks to, and the naps that it would have taken."""

    client: ModelClient
    stub: RunningStub
    naps: list[float] = field(default_factory=list)

    async def ask(self, budget: int = 4, session: str = "s1", text: str = "hi") -> list[ModelEvent]:
        """All events of one request."""
        stream = self.client.stream(prompt(session, text), HttpBudget(budget))
        return [event async for event in stream]


def prompt(session: str = "s1", text: str = "hi", **changes: Any) -> Prompt:
    """A small prompt; `changes` replace its fields."""
    message = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}
    fields: dict[str, Any] = {
        "model": "gpt-5",
        "instructions": "Be brief.",
        "input": [message],
        "tools": [],
        "effort": None,
        "summary": "auto",
        "verbosity": None,
        "session_id": session,
        "supports_reasoning": True,
    }
    return Prompt(**fields | changes)


def provider(url: str, id: str = "raw", **options: Any) -> ProviderSettings:
    """The table of a provider at this URL."""
    return ProviderSettings(id=id, base_url=url, **options)


@contextlib.asynccontextmanager
async def connected(
    script: Script | Sequence[Any], max_connections: int = MAX_CONNECTIONS, **options: Any
) -> AsyncIterator[Connected]:
    """Starts a stub with a script (or a list of steps) and a client whose provider has these options."""
    chosen = Scenario.parse(list(script)) if isinstance(script, Sequence) else script
    naps: list[float] = []

    async def nap(seconds: float) -> None:
        naps.append(seconds)

    async with running(StubConfig(chosen)) as stub:
        table = provider(stub.base_url, "stub", **{"api_key": Secret(API_KEY), **options})
        ports = ClientPorts(sleep=nap, jitter=lambda: 1.0)
        async with ModelClient(table, ports, max_connections) as client:
            yield Connected(client, stub, naps)


@dataclass
class RawServer:
    """A server that answers every request with the same bytes."""

    url: str = ""
    connections: int = 0


@contextlib.asynccontextmanager
async def raw_server(
    reply: bytes, after: Callable[[asyncio.StreamWriter], Awaitable[None]] | None = None
) -> AsyncIterator[RawServer]:
    """Answers with `reply`, then does `after` and hangs up; without `after` it keeps the connection."""
    facts = RawServer()
    open_ends: list[asyncio.StreamWriter] = []
    at_work: list[asyncio.Task[None]] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        facts.connections += 1
        open_ends.append(writer)
        at_work.append(cast("asyncio.Task[None]", asyncio.current_task()))
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                await read_request(reader)
                writer.write(reply)
                await writer.drain()
                if after is not None:
                    await after(writer)
                    break
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    facts.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    async with server:
        try:
            yield facts
        finally:
            for writer in open_ends:
                writer.close()
                with contextlib.suppress(ConnectionError):
                    await writer.wait_closed()
            # A handler that the loop's end would have to cancel is reported as an error of its own.
            await asyncio.gather(*at_work)


async def read_request(reader: asyncio.StreamReader) -> None:
    """Reads one request to its last byte."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
    await reader.readexactly(length)
