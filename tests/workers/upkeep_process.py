"""A real upkeep process, as the command line starts it, and its log read line by line."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.settings import Settings, SettingsSources, load_settings
from tests.started import COMMAND, create_started

_REPOSITORY = Path(__file__).parents[2]
_PATIENCE_S = 60


def environment_for(redis_url: str, home: Path, **settings: str) -> dict[str, str]:
    """The environment that an operator would set."""
    return {
        "HOME": str(home),
        "PATH": os.environ["PATH"],
        "DENDRO_HOME": str(home / "data"),
        "DENDRO_REDIS_URL": redis_url,
        "DENDRO_UPKEEP_SEAL_AFTER": "10",
        **settings,
    }


def settings_of(environ: Mapping[str, str]) -> Settings:
    return load_settings(SettingsSources(_REPOSITORY, environ))


@dataclass
class UpkeepProcess:
    """A process of upkeep; `saw` waits for lines of its log."""

    process: asyncio.subprocess.Process
    lines: list[str] = field(default_factory=list)

    async def saw(self, words: str, times: int = 1) -> None:
        """Returns when the log has had `times` lines with these words."""
        async with asyncio.timeout(_PATIENCE_S):
            while sum(words in line for line in self.lines) < times:
                assert self.process.stderr is not None
                line = (await self.process.stderr.readline()).decode()
                assert line, f"upkeep ended: {''.join(self.lines)}"
                self.lines.append(line)

    async def is_killed(self) -> None:
        self.process.kill()
        await self._ended()

    async def is_told_to_end(self) -> int:
        """SIGTERM; answers the exit code."""
        self.process.terminate()
        return await self._ended()

    async def _ended(self) -> int:
        _, rest = await asyncio.wait_for(self.process.communicate(), _PATIENCE_S)
        self.lines += rest.decode().splitlines(keepends=True)
        assert self.process.returncode is not None
        return self.process.returncode


@asynccontextmanager
async def running_upkeep(environ: Mapping[str, str]) -> AsyncIterator[UpkeepProcess]:
    """A process that is gone when the test is over."""
    process = await create_started(
        *COMMAND, "upkeep", cwd=_REPOSITORY, env=environ, stderr=asyncio.subprocess.PIPE
    )
    try:
        yield UpkeepProcess(process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()
