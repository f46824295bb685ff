"""Processes of `dendro exec`, as a program starts them."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from tests.acceptance.conversation import PATIENCE_S, Scene, environment
from tests.started import COMMAND, create_started

EXEC = (*COMMAND, "exec", "--experimental-json")


@dataclass(frozen=True, slots=True)
class Done:
    """The lines of a process, and its end."""

    events: list[dict[str, Any]]
    code: int
    stderr: str

    def kinds(self) -> list[str]:
        return [event["type"] for event in self.events]


@asynccontextmanager
async def started(place: Scene, *words: str, **variables: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process in the workspace of a scene; killed if it is left."""
    process = await create_started(
        *EXEC,
        *words,
        cwd=place.setup.workspace,
        env={**environment(place.setup, place.base_url), **variables},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def exec_run(place: Scene, *words: str, stdin: str = "the prompt", **variables: str) -> Done:
    """A run from its prompt to its end."""
    async with started(place, *words, **variables) as process, asyncio.timeout(PATIENCE_S):
        out, err = await process.communicate(stdin.encode())
        assert process.returncode is not None
        return Done([json.loads(line) for line in out.splitlines()], process.returncode, err.decode())
