"""The records of MCP servers, and the ports between them and the rest of a worker. Imports no SDK."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from orchestrator.config_keys import McpServerSettings
from orchestrator.protocol.items import ToolOutput
from orchestrator.protocol.mcp import CallToolResult, ElicitationAction, McpStartupStatus, Tool


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

    def known(self, cwd: Path) -> Sequence[tuple[str, str, Sequence[ServerTool]]]:
        """The folder's servers: name, version, and the tools that were listed last; it starts none."""
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


# ── faults ────────────────────────────────────────────────────────────────────────────────────────
# Faults of an MCP server's connection.
#
# McpFault                the connection cannot be used (any more); the message is for people
# ├─ StartFailed        it never could
# ├─ Misbehaved         the server sent more than it may, or what is no message
# └─ TimedOut           a call was not answered in time
# ToolFault               the server answered that the call failed; the connection is fine


class McpFault(Exception):
    """The connection cannot be used; the message says why."""


class StartFailed(McpFault):
    """The server could not be started, or did not list its tools."""


class Misbehaved(McpFault):
    """The server sent more than it may, or something that is no message."""


class TimedOut(McpFault):
    """The server did not answer a call in time."""


class ToolFault(Exception):
    """The server answered a call with an error."""


# ── names ─────────────────────────────────────────────────────────────────────────────────────────
# Names of MCP tools as models are offered them: `mcp__SERVER__TOOL`.


PREFIX = "mcp__"
LONGEST = 64
_DIGITS = 8
_OTHER = re.compile(r"[^A-Za-z0-9_-]")


def named(tools: Iterable[ServerTool]) -> tuple[OfferedTool, ...]:
    """The tools under their full names, sorted by server and name.

    Of two with one name the second gets a hash in its name. Two with one hash would take work to make: the
    second is left out.
    """
    taken: dict[str, OfferedTool] = {}
    for tool in sorted(tools, key=lambda each: (each.server, each.name)):
        whole = f"{PREFIX}{tool.server}__{tool.name}"
        plain = _OTHER.sub("_", whole)
        name = plain if len(plain) <= LONGEST and plain not in taken else _with_hash(plain, whole)
        taken.setdefault(name, OfferedTool(name, tool))
    return tuple(taken.values())


def _with_hash(plain: str, whole: str) -> str:
    digest = hashlib.sha1(whole.encode("utf-8", "replace"), usedforsecurity=False).hexdigest()
    return f"{plain[: LONGEST - _DIGITS - 1]}_{digest[:_DIGITS]}"


# ── bounds ────────────────────────────────────────────────────────────────────────────────────────
# The most that an MCP server may send: what lies beyond is cut, left out, or ends its connection.


MESSAGE_BYTES = 4 << 20
"""A JSON-RPC message; a longer one ends the connection. Reading it holds the worker's event loop."""

UNREAD_BYTES = 8 << 20
"""Output of a program that was not read yet; a program that writes more is ended."""

NOISE_LINES = 1_000
"""Lines of a program that are no messages (programs print banners); one more ends the connection."""

OPEN_REQUESTS = 32
"""Requests of a server that are not answered yet; one more ends the connection."""

REQUESTS_A_MINUTE = 600
"""Requests of a server within a minute, answered or not; one more ends the connection."""

MESSAGES_A_MINUTE = 60_000
"""Messages of a server of any kind within a minute; one more ends the connection. Each costs some 0.1 ms."""

OPEN_EXCHANGES = 64
"""HTTP responses of a server that have not ended; one more ends the connection."""

TOOLS = 128
"""Tools of one server; further ones are left out."""

PAGES = 32
"""Pages of one list of tools."""

NAME_CHARS = 128
"""A tool's own name; a tool with a longer one is left out."""

DESCRIPTION_CHARS = 4_096
SCHEMA_BYTES = 32 << 10
"""A tool's schema as JSON; a tool with a larger one is left out."""

JSON_DEPTH = 32
"""Levels of a schema or of a structured result."""

OFFERED_BYTES = 512 << 10
"""All tools of all servers as a model is offered them; what comes after it is left out."""

BLOCKS = 256
"""Content blocks of one result."""

RESULT_BYTES = 64 << 10
"""Texts of one result as its event keeps them."""

IMAGES = 16
"""Images of one result."""

QUESTION_CHARS = 4_096
"""Text of a question that a server asks a person."""

ERROR_CHARS = 2_000
"""Text of an error."""

STDERR_BYTES = 2_048
"""The end of a program's standard error, for the text of its failure."""

_REFERENCE = "$blob"
_LARGEST = 1 << 63
_LONGEST_BITS = 4_096


def cut(text: str, most: int) -> str:
    """`text` in at most `most` characters, without control characters and halves of surrogate pairs."""
    clean = "".join(char for char in text[: most + 1] if char >= " " or char in "\n\t")
    clean = clean.encode("utf-8", "replace").decode()
    return clean if len(text) <= most else clean[: most - 1] + "…"


def is_deeper(value: Any, levels: int) -> bool:
    """Whether a JSON value has more levels of arrays and objects than `levels`."""
    layer = [value]
    for _ in range(levels + 1):
        layer = [
            inner
            for each in layer
            if isinstance(each, (dict, list))
            for inner in (each.values() if isinstance(each, dict) else each)
        ]
        if not layer:
            return False
    return True


def plain(value: Any) -> Any:
    """A JSON value that the log can hold, and that cannot be taken for the log's reference to a stored text.

    Numbers beyond 64 bits become texts; halves of surrogate pairs become question marks.
    """
    match value:
        case Mapping():
            return {_key(str(key)): plain(each) for key, each in value.items()}
        case list() | tuple():
            return [plain(each) for each in value]
        case str():
            return value if value.isascii() else value.encode("utf-8", "replace").decode()
        case int() if not -_LARGEST <= value < _LARGEST:
            return str(value)[:ERROR_CHARS] if value.bit_length() < _LONGEST_BITS else "[a very large number]"
        case _:
            return value


def _key(key: str) -> str:
    clean = key if key.isascii() else key.encode("utf-8", "replace").decode()
    return f"{clean} " if clean == _REFERENCE else clean
