"""Files of this machine that sessions use: instructions, skills, saved prompts, images.

Reads block, and a share whose server is gone blocks them for ever: each has a thread and a time limit. What a
simulator puts in the place of a `Library` has no files.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from orchestrator.core.frozen import record
from orchestrator.instructions.prompts import custom_prompts
from orchestrator.instructions.skills import Guide, Instructions
from orchestrator.protocol.catalog import CustomPrompt, SkillsListEntry
from orchestrator.runtime import log
from orchestrator.sandbox.git import in_git_thread
from orchestrator.tools.images import fitting_data_url

PATIENCE_S = 10.0
T = TypeVar("T")


class Library(Protocol):
    """The files of a machine; each method raises `TimeoutError` when they do not answer."""

    @property
    def keeps_history(self) -> bool:
        """Whether prompts are added to the histories that people's sessions share."""
        ...

    async def instructions(self, folder: str, known: Sequence[str]) -> Instructions:
        """The instructions of a folder, without those of the `known` ones."""
        ...

    async def prompts(self) -> tuple[CustomPrompt, ...]:
        """The prompts that the machine's owner saved."""
        ...

    async def skills(self, folder: str, *, anew: bool) -> SkillsListEntry:
        """The skills for a working folder; `anew` looks at every file again."""
        ...

    async def skill(self, folder: str, path: str) -> str:
        """The text of a skill that is listed for a folder; raises `ValueError` or `OSError` for any other."""
        ...

    async def image(self, path: Path) -> str:
        """An image as a data URL; raises `ValueError` or `OSError` for what cannot be sent to a model."""
        ...


@record
class Files:
    """The library of a real machine."""

    home: Path
    guide: Guide
    keeps_history: bool = True
    hidden: tuple[Path, ...] = ()
    """Folders of which no image is read: commands do not see them either."""

    async def instructions(self, folder: str, known: Sequence[str]) -> Instructions:
        return await _read(lambda: self.guide.further(folder, known))

    async def prompts(self) -> tuple[CustomPrompt, ...]:
        return await _read(lambda: custom_prompts(self.home, log.warning))

    async def skills(self, folder: str, *, anew: bool) -> SkillsListEntry:
        return await _read(lambda: self.guide.skills.listed(folder, anew=anew))

    async def skill(self, folder: str, path: str) -> str:
        _, text = await _read(lambda: self.guide.skills.content(folder, path))
        return text

    async def image(self, path: Path) -> str:
        # Whoever may submit names it, a tenant too.
        return await _read(lambda: fitting_data_url(path, self.hidden))


class NoFiles:
    """The library of a machine that has no such files."""

    keeps_history = True

    async def instructions(self, folder: str, known: Sequence[str]) -> Instructions:
        return Instructions()

    async def prompts(self) -> tuple[CustomPrompt, ...]:
        return ()

    async def skills(self, folder: str, *, anew: bool) -> SkillsListEntry:
        return SkillsListEntry(cwd=folder, skills=())

    async def skill(self, folder: str, path: str) -> str:
        raise ValueError(f"{path} is no skill of {folder}: `list_skills` names those that are")

    async def image(self, path: Path) -> str:
        raise FileNotFoundError(2, "No such file or directory", str(path))


async def _read(work: Callable[[], T]) -> T:
    async with asyncio.timeout(PATIENCE_S):
        return await in_git_thread(work)
