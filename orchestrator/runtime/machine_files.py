"""Files of this machine that sessions use: instructions, skills, saved prompts, images.

Reads block, and a share whose server is gone blocks them for ever: each has a thread and a time limit. What a
simulator puts in the place of a `Library` has no files.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from orchestrator.core.frozen import record
from orchestrator.instructions.skills import Guide, Instructions, no_skill, split
from orchestrator.protocol.catalog import CustomPrompt, SkillsListEntry
from orchestrator.runtime import log
from orchestrator.sandbox.git import in_git_thread
from orchestrator.sandbox.trusted_files import read_regular
from orchestrator.tools.images import fitting_data_url

PATIENCE_S = 10.0
T = TypeVar("T")

PROMPTS = "prompts"
MOST_PROMPTS = 200
MOST_PROMPT_BYTES = 64 << 10
MOST_BYTES_TOGETHER = 4 << 20
"""All prompts stand in one event."""
MOST_ENTRIES = 10_000
"""Entries of the folder of prompts that are looked at."""


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
        """The skills for a working folder; `anew` looks at every file again.

        With an empty `folder`, those of the person and of the machine alone; so below.
        """
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
        raise no_skill(path, folder)

    async def image(self, path: Path) -> str:
        raise FileNotFoundError(2, "No such file or directory", str(path))


async def sent_image(content: bytes) -> str:
    """An image as a data URL; raises `ValueError` for what cannot be sent, `TimeoutError` after a time."""
    return await _read(lambda: fitting_data_url(content))


async def _read(work: Callable[[], T]) -> T:
    async with asyncio.timeout(PATIENCE_S):
        return await in_git_thread(work)


# ── saved prompts: Markdown files in the home folder, each a prompt by its file's name ──────────────


def custom_prompts(home: Path, warn: Callable[[str], None]) -> tuple[CustomPrompt, ...]:
    """The prompts in `home`, by name. `warn` gets a line for each file that is left out."""
    found: list[CustomPrompt] = []
    left = MOST_BYTES_TOGETHER
    for file in _prompt_files(home / PROMPTS):
        try:
            content = _prompt_text(file)
        except (PermissionError, UnicodeDecodeError) as error:
            warn(f"the prompt {file} was left out: it cannot be read as a text ({error})")
            continue
        except OSError:
            # It is gone by now, or no file.
            continue
        size = len(content.encode())
        if size > MOST_PROMPT_BYTES:
            warn(f"the prompt {file} was left out: it has more than {MOST_PROMPT_BYTES:,} bytes")
        elif len(found) == MOST_PROMPTS or size > left:
            warn(
                f"the prompt {file} and those behind it were left out: {MOST_PROMPTS} prompts are listed, of "
                f"{MOST_BYTES_TOGETHER:,} bytes together"
            )
            break
        else:
            left -= size
            found.append(_prompt(file, content))
    return tuple(found)


def _prompt_files(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for _, entry in zip(range(MOST_ENTRIES), entries, strict=False)]
    except OSError:
        return []
    return [folder / name for name in sorted(names) if name.endswith(".md") and _printable(name)]


def _printable(name: str) -> bool:
    return name.isprintable() and len(name) > len(".md")


def _prompt_text(file: Path) -> str:
    """The file's text; of one that is too long, a little more than it may have."""
    try:
        return read_regular(file, MOST_PROMPT_BYTES + 4).decode("utf-8")
    except UnicodeDecodeError as error:
        if error.start <= MOST_PROMPT_BYTES:
            raise
        # A long file is cut anywhere.
        return error.object[: error.start].decode("utf-8")


def _prompt(file: Path, text: str) -> CustomPrompt:
    try:
        values, content = split(text)
    except ValueError:
        # What only looks like a front matter is a part of the prompt.
        values, content = None, text
    told = values or {}
    return CustomPrompt(
        name=file.stem,
        path=str(file),
        content=content,
        description=told.get("description"),
        argument_hint=told.get("argument-hint"),
    )
