"""The records of MCP servers, and the ports between them and the rest of a worker. Imports no SDK."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from orchestrator.protocol.items import ToolOutput
from orchestrator.protocol.mcp import CallToolResult, ElicitationAction, McpStartupStatus, Tool
from orchestrator.tables import McpServerSettings


@dataclass(frozen=True, slots=True)
class ServerTool:
    """A tool as its server describes it, cleaned and bounded."""

    server: str
    name: str
    """The server's own name of it."""
    description: str
    parameters: Mapping[str, Any]
    """The schema of its arguments, as a model is offered it."""
    record: Tool
    """The tool as `list_mcp_tools` shows it."""
    read_only: bool = False
    """Whether the server says that it only reads, and the person believes the server."""


@dataclass(frozen=True, slots=True)
class OfferedTool:
    """A tool under the name by which models call it."""

    full_name: str
    tool: ServerTool


@dataclass(frozen=True, slots=True)
class Answer:
    """The end of one call."""

    result: CallToolResult | str
    """For the event; a text says why there is no result."""
    output: ToolOutput
    """For the model."""


@dataclass(frozen=True, slots=True)
class Question:
    """A question of a server to a person, in the middle of a call."""

    server: str
    request_id: int | str
    message: str
    answerable: bool
    """Whether yes or no is an answer; else the server wants a form to be filled in, or a page visited."""


Ask = Callable[[Question], Awaitable[ElicitationAction]]
"""Puts a question to the person, and waits for the decision."""

Report = Callable[[str, McpStartupStatus], None]
"""Receives each state of a server's start."""


@dataclass(frozen=True, slots=True)
class Started:
    """How the servers of a folder have started."""

    ready: tuple[str, ...] = ()
    failed: Mapping[str, str] = field(default_factory=dict)
    """Server → why."""


class Pipes(Protocol):
    """A program that runs, and its pipes."""

    async def read(self) -> bytes:
        """The next part of its standard output; empty when there will be no more."""
        ...

    async def write(self, data: bytes) -> None:
        """Writes to its standard input; raises `OSError` when it does not read any more."""
        ...

    def last_words(self) -> str:
        """Why it ended, or does not answer, as far as it can be told: exit code, end of standard error."""
        ...


StartProgram = Callable[[McpServerSettings, Path], AbstractAsyncContextManager[Pipes]]
"""Starts the program of a server in a folder; at the end of the context no process of it is left.

Raises `OSError` with a text for people if it cannot be started.
"""


class McpTools(Protocol):
    """The MCP servers of a worker as its tools use them."""

    async def start(self, session: str, cwd: Path, report: Report) -> Started:
        """Holds the servers for a session, and starts those of its folder that do not run."""
        ...

    def offered(self, cwd: Path) -> Sequence[OfferedTool]:
        """The tools of the folder's servers, in the order in which models are offered them."""
        ...

    async def up(self, cwd: Path) -> Sequence[OfferedTool]:
        """The same, once the servers that did not run have started."""
        ...

    async def find(self, full_name: str, cwd: Path) -> ServerTool | None:
        """The tool of that name; starts the folder's servers if they do not run."""
        ...

    async def call(
        self, tool: tuple[str, str], arguments: dict[str, Any] | None, cwd: Path, ask: Ask
    ) -> Answer:
        """Calls a server's tool. What goes wrong is in the answer; cancelling tells the server."""
        ...

    def let_go(self, session: str) -> None:
        """Ends the session's hold: servers that nobody holds are closed after a while."""
        ...
