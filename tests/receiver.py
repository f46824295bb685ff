"""A server on loopback that gets what a webhook sends, and answers as a test wants it."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

SECRET = "a secret of the tests"
PATIENCE_S = 40.0
HANGS = "hangs"
TAKEN = "204 No Content"


@dataclass(frozen=True)
class Call:
    """A request as it came."""

    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def value(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)
        return found

    def is_signed(self, secret: str = SECRET) -> bool:
        """Whether it has the signature of Standard Webhooks."""
        signed = f"{self.headers['webhook-id']}.{self.headers['webhook-timestamp']}.".encode() + self.body
        digest = hmac.new(secret.encode(), signed, hashlib.sha256).digest()
        return self.headers["webhook-signature"] == f"v1,{base64.b64encode(digest).decode()}"


@dataclass
class Receiver:
    """The calls that came, in their order; `answers` are given in turn, and then `TAKEN`."""

    url: str = ""
    answers: list[str] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    _came: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def got(self, count: int) -> list[Call]:
        """Waits for so many calls, counted from the first."""
        async with asyncio.timeout(PATIENCE_S), self._came:
            await self._came.wait_for(lambda: len(self.calls) >= count)
        return self.calls[:count]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:])}
        body = await reader.readexactly(int(headers["content-length"]))
        answer = self.answers.pop(0) if self.answers else TAKEN
        async with self._came:
            self.calls.append(Call(head[0].split()[1], headers, body))
            self._came.notify_all()
        if answer == HANGS:
            await reader.read()
        else:
            writer.write(f"HTTP/1.1 {answer}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
        writer.close()


@asynccontextmanager
async def receiver(*answers: str) -> AsyncIterator[Receiver]:
    """A server until the test is over."""
    found = Receiver(answers=list(answers))
    server = await asyncio.start_server(found.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    found.url = f"http://127.0.0.1:{port}/hook"
    try:
        yield found
    finally:
        server.close()
