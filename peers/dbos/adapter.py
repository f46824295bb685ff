"""DBOS with SQLite or PostgreSQL: a turn is a workflow, each request and each command a step of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from typing import Any

import httpx
from dbos import DBOS

from peers.servers import postgres
from peers.wire import Peer, folder, serve, variant
from peers.work import Item, ask, calls, client, run, said

HTTP: list[httpx.AsyncClient] = []


@DBOS.step()
async def think(items: list[Item]) -> list[Item]:
    """A request."""
    return await ask(HTTP[0], items)


@DBOS.step()
async def act(call: Item) -> Item:
    """A command."""
    return await run(call)


@DBOS.workflow()
async def work(items: list[Item]) -> list[Item]:
    """A turn; the conversation behind it."""
    while True:
        answer = await think(items)
        items = [*items, *answer]
        if not calls(answer):
            return items
        for call in calls(answer):
            items = [*items, await act(call)]


class Durable(Peer):
    """Conversations, each known by the workflow of its last turn."""

    async def turn(self, id: str, text: str) -> str:
        items = await DBOS.get_result_async(id) if id else []
        handle: Any = await DBOS.start_workflow_async(work, [*(items or ()), said(text)])
        await handle.get_result()
        return str(handle.workflow_id)

    async def resume(self, id: str) -> int:
        return len(await DBOS.get_result_async(id) or ())


@asynccontextmanager
async def opened() -> AsyncIterator[Peer]:
    """The library on its store; what was interrupted goes on when it is launched."""
    with ExitStack() as stack:
        url = f"sqlite:///{folder()}/dbos.db"
        if variant() == "postgres":
            url = stack.enter_context(postgres()).replace("postgresql://", "postgresql+psycopg://")
        async with client() as http:
            HTTP.append(http)
            DBOS(config={"name": "peer", "system_database_url": url, "application_version": "1"})
            DBOS.launch()
            yield Durable()
            DBOS.destroy()


if __name__ == "__main__":
    serve(opened)
