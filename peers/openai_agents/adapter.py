"""OpenAI's Agents SDK with its `SQLiteSession`, one file for all conversations; tracing is off."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

from agents import Agent, FunctionTool, OpenAIResponsesModel, Runner, SQLiteSession, set_tracing_disabled
from openai import AsyncOpenAI

from peers.wire import Peer, folder, model, serve
from peers.work import SCHEMA, execute

MOST_TURNS = 10_000


class Agents(Peer):
    """Runs of one agent; a session is read and written by each of them."""

    def __init__(self, agent: Agent[Any]) -> None:
        self._agent = agent

    def _session(self, id: str) -> SQLiteSession:
        return SQLiteSession(id, folder() / "sessions.db")

    async def turn(self, id: str, text: str) -> str:
        id = id or uuid4().hex
        session = self._session(id)
        run = Runner.run_streamed(self._agent, text, session=session, max_turns=MOST_TURNS)
        async for _ in run.stream_events():
            pass
        session.close()
        return id

    async def resume(self, id: str) -> int:
        return len(await self._session(id).get_items())


async def _shell(_: Any, arguments: str) -> str:
    return await execute(json.loads(arguments)["command"])


@asynccontextmanager
async def opened() -> AsyncIterator[Peer]:
    """The agent, with a client of the stub."""
    set_tracing_disabled(True)
    client = AsyncOpenAI(base_url=model(), api_key="none", max_retries=0)
    tool = FunctionTool("shell", "Runs a command.", SCHEMA, _shell, strict_json_schema=False)
    yield Agents(Agent("worker", tools=[tool], model=OpenAIResponsesModel("stub", client)))


if __name__ == "__main__":
    serve(opened)
