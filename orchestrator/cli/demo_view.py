"""How the demo is seen: the tree, drawn again and again, or one line after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Protocol

from rich.console import Console, Group
from rich.live import Live

from orchestrator.broker.errors import Unavailable
from orchestrator.cli.text import shown
from orchestrator.cli.tree_view import drawing, headline
from orchestrator.views.event import Event
from orchestrator.views.event_text import lifecycle_text
from orchestrator.views.tree import TreePicture, TreeReader, said

PAUSE_S = 0.1
"""Between two drawings: more often than that nobody sees."""
LOOK_S = 0.4
"""A line that an agent said is no entry of the tree log, and is seen after this long."""
STYLES = {"error": "bold red", "agent_message": "bold", "agent_reasoning": "dim italic"}


class DemoView(Protocol):
    """What a spectator gets to see."""

    def event(self, who: str, event: Event) -> None:
        """Something that an agent did."""

    def note(self, text: str, style: str = "") -> None:
        """Something that the demo did."""

    async def draw(self, reader: TreeReader) -> None:
        """Keeps the picture of the tree up to date until it is cancelled."""

    async def draw_last(self, reader: TreeReader) -> None:
        """The picture that stays."""


class Lines:
    """For a pipe or a file: every event is a line, with the agent in front."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def event(self, who: str, event: Event) -> None:
        message = event.msg
        if event.type == "subagent_lifecycle":
            self.note(lifecycle_text(message), "blue")
        elif event.type == "exec_command_end" and message["exit_code"] == -1:
            self.note(f"[{who}] in doubt: its worker was lost while this command ran", "yellow")
        elif text := _line(message):
            self.note(f"[{who}] {text}", STYLES.get(event.type, ""))

    def note(self, text: str, style: str = "") -> None:
        if text:
            self._console.print(shown(text, style), soft_wrap=True)

    async def draw(self, reader: TreeReader) -> None:
        """There is nothing to draw on."""

    async def draw_last(self, reader: TreeReader) -> None:
        """Nothing stays but the lines."""


def _line(message: Mapping[str, object]) -> str:
    """Prompts are told when an agent is made, requests for approval when they are answered."""
    hidden = ("user_message", "exec_approval_request")
    return "" if message["type"] in hidden else said(message)


class Picture:
    """For a terminal: the tree as it is now; what the demo did stands above it."""

    def __init__(self, live: Live) -> None:
        self._live = live

    def event(self, who: str, event: Event) -> None:
        """The picture shows it."""

    def note(self, text: str, style: str = "") -> None:
        self._live.console.print(shown(text, style), soft_wrap=True)

    async def draw(self, reader: TreeReader) -> None:
        while True:
            try:
                picture = await self._draw(reader)
                await reader.broker.wait_tree(reader.tree, picture.registry.tree_seq, LOOK_S)
            except Unavailable as error:
                self.note(f"{error}; looking again", "dim")
            await asyncio.sleep(PAUSE_S)

    async def draw_last(self, reader: TreeReader) -> None:
        await self._draw(reader)

    async def _draw(self, reader: TreeReader) -> TreePicture:
        picture = await reader.picture()
        self._live.update(Group(headline(picture), drawing(picture)), refresh=True)
        return picture
