"""Prompts that a person saved: Markdown files in the home folder, each a prompt by its file's name."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from orchestrator.instructions.skills import split
from orchestrator.protocol.catalog import CustomPrompt
from orchestrator.sandbox.trusted_files import read_regular

FOLDER = "prompts"
MOST_PROMPTS = 200
MOST_BYTES = 64 << 10
MOST_BYTES_TOGETHER = 4 << 20
"""All prompts stand in one event."""
MOST_ENTRIES = 10_000
"""Entries of the folder that are looked at."""


def custom_prompts(home: Path, warn: Callable[[str], None]) -> tuple[CustomPrompt, ...]:
    """The prompts in `home`, by name. `warn` gets a line for each file that is left out for its size."""
    found: list[CustomPrompt] = []
    left = MOST_BYTES_TOGETHER
    for file in _files(home / FOLDER):
        content = _content(file)
        if content is None:
            continue
        size = len(content.encode())
        if size > MOST_BYTES:
            warn(f"the prompt {file} was left out: it has more than {MOST_BYTES:,} bytes")
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


def _files(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for _, entry in zip(range(MOST_ENTRIES), entries, strict=False)]
    except OSError:
        return []
    return [folder / name for name in sorted(names) if name.endswith(".md") and _printable(name)]


def _printable(name: str) -> bool:
    return name.isprintable() and len(name) > len(".md")


def _content(file: Path) -> str | None:
    """The file's text; of one that is too long, a little more than it may have. None for no text file."""
    try:
        return read_regular(file, MOST_BYTES + 4).decode("utf-8")
    except UnicodeDecodeError as error:
        # A long file is cut anywhere.
        return error.object[: error.start].decode("utf-8") if error.start > MOST_BYTES else None
    except OSError:
        return None


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
