"""A tool of the program's own: it asks a person, shows what it does, and after a crash says what it did.

    python examples/custom_tool.py "buy milk"

The agent is the model stub with a scenario: it notes the words by the program's tool. docs/extending.md
walks through the tool.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from orchestrator import (
    Client,
    CustomTool,
    Opened,
    ReviewDecision,
    SessionId,
    SettingsSources,
    ToolPlace,
    ToolRequest,
    TreeId,
    decide,
    load_settings,
    new_session,
    open_requests_of,
    opened,
    run_turn,
    run_worker,
)
from orchestrator.stub import Scenario, StubConfig, running


class NoteTool(CustomTool):
    """Appends a line to a file of notes."""

    name = "note"
    description = "Keeps a note for the person. One line."
    parameters = {"text": {"type": "string", "description": "The note."}}  # noqa: RUF012
    required = ("text",)

    def __init__(self, notes: Path) -> None:
        self._notes = notes

    async def assess(self, arguments: dict[str, Any], place: ToolPlace) -> str | ToolRequest:
        text = " ".join(str(arguments.get("text", "")).split())
        if not text:
            raise ValueError("text: a note needs words")
        if text in self._lines():
            return "that is noted already"
        return ToolRequest({"text": text}, f"notes {text!r}", ask="it writes to your notes")

    async def run(self, payload: dict[str, Any], place: ToolPlace, write: Callable[[str], None]) -> str:
        with self._notes.open("a") as notes:
            notes.write(payload["text"] + "\n")
        write(f"noted: {payload['text']}\n")
        return f"{len(self._lines())} notes are kept"

    async def judge(self, payload: dict[str, Any]) -> Literal["none", "all", "in_doubt"]:
        return "all" if payload["text"] in self._lines() else "none"

    def _lines(self) -> list[str]:
        return self._notes.read_text().splitlines() if self._notes.exists() else []


async def allow(deployment: Opened, client: Client, session: SessionId) -> None:
    """Allows what the session asks, until its turn is over."""
    async for event in client.follow(session):
        match event.type:
            case "exec_approval_request":
                for asked in await open_requests_of(deployment, TreeId(session)):
                    print("asked:", *event.msg["command"])
                    await decide(client, deployment, asked, ReviewDecision.APPROVED)
            case "mcp_tool_call_end":
                print("ended:", event.msg["result"]["content"][0]["text"])
            case "task_complete" | "turn_aborted":
                return


async def main(text: str, folder: Path) -> None:
    steps: list[dict[str, object]] = [
        {"items": [{"call": "note", "args": {"text": text}}]},
        {"items": [{"text": "It is noted."}]},
    ]
    async with running(StubConfig(Scenario.parse(steps))) as provider:
        environ = {
            **os.environ,
            "DENDRO_HOME": str(folder / "home"),
            "OPENAI_BASE_URL": provider.base_url,
            "OPENAI_API_KEY": "the stub needs none",
        }
        settings = load_settings(SettingsSources(cwd=folder, environ=environ))
        tools = (NoteTool(folder / "notes.txt"),)
        async with opened(settings) as deployment, run_worker(settings, tools=tools):
            client = deployment.client()
            session = await new_session(settings, client)
            answering = asyncio.create_task(allow(deployment, client, session))
            turn = await run_turn(client, session, f"note this: {text}")
            await answering
    print(turn.answer or f"no answer: {turn.aborted or turn.error}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(" ".join(sys.argv[1:]) or "buy milk", Path(folder)))
