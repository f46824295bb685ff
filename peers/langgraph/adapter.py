"""LangGraph with its SQLite or PostgreSQL saver: a graph of two nodes, the model and the commands."""

from __future__ import annotations

import asyncio
import operator
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Annotated, Any, TypedDict
from uuid import uuid4

from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, StateGraph

from peers.servers import postgres
from peers.wire import Peer, folder, serve, variant
from peers.work import Item, ask, calls, client, run, said


class State(TypedDict):
    """A conversation."""

    items: Annotated[list[Item], operator.add]


class Graph(Peer):
    """Threads of the graph."""

    def __init__(self, graph: Any) -> None:
        self._graph = graph
        self._tasks = set[asyncio.Task[Any]]()

    async def turn(self, id: str, text: str) -> str:
        id = id or uuid4().hex
        await self._graph.ainvoke({"items": [said(text)]}, _of(id))
        return id

    async def resume(self, id: str) -> int:
        state = await self._graph.aget_state(_of(id))
        if state.next:
            self._tasks.add(asyncio.create_task(self._graph.ainvoke(None, _of(id))))
        return len(state.values["items"])


def _of(id: str) -> dict[str, Any]:
    return {"configurable": {"thread_id": id}, "recursion_limit": 10_000}


@asynccontextmanager
async def opened() -> AsyncIterator[Peer]:
    """The compiled graph on its saver."""
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(client())
        if variant() == "postgres":
            saver = AsyncPostgresSaver.from_conn_string(stack.enter_context(postgres()))
        else:
            saver = AsyncSqliteSaver.from_conn_string(str(folder() / "graph.db"))
        kept = await stack.enter_async_context(saver)
        await kept.setup()

        async def think(state: State) -> Any:
            return {"items": await ask(http, state["items"])}

        async def act(state: State) -> Any:
            done = {item["call_id"] for item in state["items"] if item["type"] == "function_call_output"}
            return {"items": [await run(one) for one in calls(state["items"]) if one["call_id"] not in done]}

        graph = StateGraph(State)
        graph.add_node("think", think)
        graph.add_node("act", act)
        graph.add_edge(START, "think")
        graph.add_edge("act", "think")
        graph.add_conditional_edges("think", lambda state: "act" if calls(state["items"][-1:]) else END)
        yield Graph(graph.compile(checkpointer=kept))


if __name__ == "__main__":
    serve(opened)
