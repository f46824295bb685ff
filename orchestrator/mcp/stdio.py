"""Messages to and from a program over its pipes: one JSON-RPC message a line, for the SDK's sessions.

In the place of the SDK's own transport, which has no bound on a line, logs each that is no message, and
starts processes that outlive a killed worker.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage
from mcp.types import JSONRPCMessage, jsonrpc_message_adapter

from orchestrator.mcp.bounds import MESSAGE_BYTES, NOISE_LINES
from orchestrator.mcp.faults import Misbehaved
from orchestrator.mcp.records import Pipes
from orchestrator.mcp.traffic import Streams, Traffic

log = logging.getLogger("dendro.mcp")

_Inbound = MemoryObjectSendStream[SessionMessage | Exception]
_Outbound = MemoryObjectReceiveStream[SessionMessage]


@asynccontextmanager
async def over_pipes(pipes: Pipes, traffic: Traffic) -> AsyncIterator[Streams]:
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


async def _read(pipes: Pipes, inbound: _Inbound, traffic: Traffic) -> None:
    """Hands the program's messages to the session until one end closes."""
    lines = Lines(traffic.server)
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
        except Misbehaved as fault:
            traffic.fail(str(fault))
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass


async def _write(pipes: Pipes, outbound: _Outbound, traffic: Traffic) -> None:
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

    def __init__(self, server: str) -> None:
        self._server = server
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
        if self._size > MESSAGE_BYTES:
            raise Misbehaved(f"the server sent a message of more than {MESSAGE_BYTES:,} bytes")
        if part:
            self._parts.append(part)

    def count_noise(self, line: bytes) -> None:
        """Counts a line that is no message; raises `Misbehaved` when there are too many."""
        self._noise += 1
        if self._noise == 1:
            log.warning("MCP server %s: its output holds more than messages: %r", self._server, line[:80])
        if self._noise > NOISE_LINES:
            raise Misbehaved(f"the server does not speak MCP: it sent {line[:80]!r} and the like")
