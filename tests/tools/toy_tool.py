"""A tool that runs, streams and asks; as a program, a worker with it.

python -m tests.tools.toy_tool FOLDER
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from orchestrator import CustomTool, SettingsSources, ToolPlace, ToolRequest, load_settings, run_worker


class Toy(CustomTool):
    """Says words, one after the other; `hold` keeps it running until it is stopped."""

    name = "toy"
    description = "Says words."
    parameters = {  # noqa: RUF012
        "words": {"type": "array", "items": {"type": "string"}, "description": "What to say."},
        "ask": {"type": "boolean", "description": "Ask a person first."},
        "hold": {"type": "boolean", "description": "Go on for ever."},
    }
    required = ("words",)

    async def assess(self, arguments: dict[str, Any], place: ToolPlace) -> str | ToolRequest:
        words = arguments.get("words")
        if not isinstance(words, list):
            raise ValueError("words: a list of words is needed")
        if not words:
            return "nothing to say"
        ask = "it speaks aloud" if arguments.get("ask") else None
        return ToolRequest(arguments, f"says {' '.join(words)}", ask)

    async def run(self, payload: dict[str, Any], place: ToolPlace, write: Callable[[str], None]) -> str:
        for word in payload["words"]:
            write(f"{word}\n")
        if payload.get("hold"):
            await asyncio.Event().wait()
        return f"said {len(payload['words'])} words in {Path(place.cwd).name}"


async def serve(folder: Path) -> None:
    settings = load_settings(SettingsSources(cwd=folder, environ=dict(os.environ)))
    async with run_worker(settings, tools=(Toy(),)):
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1])))
