"""Files that input items name, read where the session works; an op with one that cannot be read is an error.

What was read goes into the log with the op, so nobody reads a file twice, and every worker goes on with the
same content.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

from orchestrator.core import commands as c
from orchestrator.core import entries as e
from orchestrator.core.decide.draft import Note
from orchestrator.core.frozen import replace
from orchestrator.core.history import Item
from orchestrator.core.images import check_image_url
from orchestrator.mcp.records import PREFIX
from orchestrator.protocol import ops
from orchestrator.protocol.inputs import (
    ImageInput,
    InputItem,
    LocalImageInput,
    MentionInput,
    SkillInput,
    TextInput,
)
from orchestrator.protocol.wire import written
from orchestrator.runtime.library import PATIENCE_S, Library
from orchestrator.runtime.log import log

Servers = Callable[[], Awaitable[Iterable[str]]]
"""Asks for the full names of the tools of the folder's MCP servers."""
APP = "app://"
MOST_TOOLS = 64
MOST_SKILLS = 16
MOST_IMAGE_BYTES = 64 << 20
"""Bytes of the data URLs that one op makes of files."""


async def with_files(
    library: Library, servers: Servers, command: c.Submitted, cwd: Callable[[], str]
) -> c.Submitted | Note:
    """The op with its files read, as seen from the session's folder; or the `error` that answers it."""
    op = command.op
    if not isinstance(op, ops.UserInput | ops.UserTurn | ops.UpdateQueued):
        return command
    if all(isinstance(item, TextInput) for item in op.items):
        return command
    folder = op.cwd if isinstance(op, ops.UserTurn) else cwd()
    reader = _Reader(library, servers, folder)
    read: list[Item] = []
    for place, item in enumerate(op.items):
        try:
            read.append(await reader.read(item))
        except TimeoutError:
            why = f"it did not answer within {PATIENCE_S:g} s; check the mount"
        except (OSError, ValueError) as error:
            why = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
        if len(read) == place:
            text = f"items[{place}]: {_named(item, folder)} cannot be used: {why}; nothing was started"
            return Note((e.error(command.id, text),))
    return replace(command, items=tuple(read))


class _Reader:
    """The reader of one op's items, which counts what it has read."""

    def __init__(self, library: Library, servers: Servers, folder: str) -> None:
        self._library = library
        self._servers = servers
        self._folder = folder
        self._skills = 0
        self._bytes = 0

    async def read(self, item: InputItem) -> Item:
        match item:
            case TextInput():
                return written(item)
            case ImageInput(image_url=url):
                check_image_url(url)
                return written(ImageInput(image_url=url))
            case LocalImageInput():
                return await self._image(Path(self._folder, item.path))
            case SkillInput():
                return await self._skill(item)
            case MentionInput():
                return {
                    **written(MentionInput(name=item.name, path=item.path)),
                    "tools": await self._tools(item),
                }

    async def _image(self, path: Path) -> Item:
        url = await self._library.image(path)
        self._bytes += len(url)
        if self._bytes > MOST_IMAGE_BYTES:
            raise ValueError(f"the images of one op have at most {MOST_IMAGE_BYTES:,} bytes together")
        return {**written(ImageInput(image_url=url)), "path": str(path)}

    async def _tools(self, item: MentionInput) -> list[str]:
        """The tools of the MCP server that an app stands for; none if there is no such server."""
        prefix = f"{PREFIX}{item.path.removeprefix(APP)}__"
        if not item.path.startswith(APP):
            return []
        try:
            async with asyncio.timeout(PATIENCE_S):
                names = await self._servers()
        except Exception as error:
            # Without its tools it is an unknown app: the person is warned, and the rest is done.
            log.warning("the tools of %s could not be listed", item.path, exc_info=error)
            return []
        return [name for name in names if name.startswith(prefix)][:MOST_TOOLS]

    async def _skill(self, item: SkillInput) -> Item:
        self._skills += 1
        if self._skills > MOST_SKILLS:
            raise ValueError(f"at most {MOST_SKILLS} skills can be named at once")
        path = str(Path(self._folder, item.path))
        content = await self._library.skill(self._folder, path)
        return {**written(SkillInput(name=item.name, path=path)), "content": content}


def _named(item: Any, folder: str) -> str:
    match item:
        case LocalImageInput():
            return f"the image {Path(folder, item.path)}"
        case SkillInput():
            return f"the skill {item.name}"
        case _:
            return f"the {item.type}"
