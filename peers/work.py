"""A model client and a command for peers that bring none: plain HTTP, no retries, no limits."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from peers.wire import folder, model

Item = dict[str, Any]
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"command": {"type": "array", "items": {"type": "string"}}},
    "required": ["command"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "name": "shell", "description": "Runs a command.", "parameters": SCHEMA}


def client() -> Any:
    """A client that keeps its connections."""
    # Here, for a peer with a client of its own has no other one.
    import httpx

    limits = httpx.Limits(max_connections=100, max_keepalive_connections=100)
    return httpx.AsyncClient(base_url=model(), timeout=60.0, trust_env=False, limits=limits)


def said(text: str) -> Item:
    """A person's message."""
    return {"type": "message", "role": "user", "content": text}


async def ask(http: Any, items: list[Item]) -> list[Item]:
    """Asks the model; answers the items of its response."""
    body = {"model": "stub", "input": items, "tools": [TOOL], "stream": True}
    found = []
    async with http.stream("POST", "responses", json=body) as response:
        response.raise_for_status()
        async for line in response.aiter_lines():
            event = json.loads(line[6:]) if line.startswith("data: ") else {}
            if event.get("type") == "response.output_item.done":
                found.append(event["item"])
    return found


def calls(items: list[Item]) -> list[Item]:
    """The calls of a response."""
    return [item for item in items if item["type"] == "function_call"]


async def run(call: Item) -> Item:
    """Runs the command of a call to its end; answers its output."""
    output = await execute(json.loads(call["arguments"])["command"])
    return {"type": "function_call_output", "call_id": call["call_id"], "output": output}


async def execute(command: list[str]) -> str:
    """Runs a command in the peer's folder; answers what it printed."""
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=folder() / "ws",
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    printed, _ = await process.communicate()
    return printed.decode()
