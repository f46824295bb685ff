"""The floor: request, command, request, in memory. What every peer does besides is what it costs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import uuid4

import httpx

from peers.wire import Peer, serve
from peers.work import Item, ask, calls, client, run, said


class Bare(Peer):
    """Conversations in memory."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http
        self._kept: dict[str, list[Item]] = {}

    async def turn(self, id: str, text: str) -> str:
        id = id or uuid4().hex
        items = self._kept.setdefault(id, [])
        items.append(said(text))
        while True:
            answer = await ask(self._http, items)
            items += answer
            wanted = calls(answer)
            if not wanted:
                return id
            for call in wanted:
                items.append(await run(call))

    async def resume(self, id: str) -> int:
        return len(self._kept.get(id, []))


@asynccontextmanager
async def opened() -> AsyncIterator[Peer]:
    """The loop, with its connections."""
    async with client() as http:
        yield Bare(http)


if __name__ == "__main__":
    serve(opened)
