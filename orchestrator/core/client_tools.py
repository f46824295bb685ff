"""Tools that the client of a root session brings along: their offer to the model, and their bounds.

Such a client is known by the name that it gives itself in its handshake: calls are put to connections of that
name, and to no other.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict
from typing import Final

import orjson

from orchestrator.core.frozen import record
from orchestrator.protocol.bounds import deeper_than
from orchestrator.protocol.wire import JsonMapping, JsonObject, JsonValue

MOST_TOOLS: Final = 64
MOST_BYTES: Final = 16 << 10
"""Bytes of one tool as the model is offered it: every request of the session carries them."""
MOST_BYTES_TOGETHER: Final = 64 << 10
MOST_DEPTH: Final = 32
"""Levels of a tool's schema."""
MCP_PREFIX: Final = "mcp__"
BETWEEN: Final = "__"
"""Stands between a namespace and a name."""
SEARCH: Final = "tool_search"
"""Finds the tools of a client that are not offered from the beginning."""
TAKEN: Final = frozenset(
    {
        "apply_patch",
        "approve_plan",
        "ask_user_question",
        "container.exec",
        "exec",
        "exec_command",
        "local_shell",
        "propose_plan_variants",
        "request_user_input",
        "shell",
        "spawn_subagent",
        "subagent_await",
        "subagent_cancel",
        "subagent_fork",
        "subagent_list",
        "subagent_logs",
        "subagent_merge",
        "subagent_prune",
        "subagent_send_message",
        "subagent_spawn",
        "subagent_watchdog",
        SEARCH,
        "update_plan",
        "user_shell",
        "view_image",
        "web_search",
        "write_stdin",
    }
)
"""The names of Dendro's own tools."""
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


class BadTool(ValueError):
    """A tool that cannot be offered; the message names the tool, what is wrong and the bound."""


@record
class ClientTool:
    """A tool of a client; `schema` is its arguments' JSON Schema as text, so that the log keeps it whole."""

    tool: str
    description: str
    schema: str
    namespace: str | None = None
    deferred: bool = False
    """Whether the model is offered it only once it has searched for it."""

    @property
    def name(self) -> str:
        """The name under which the model calls it."""
        return self.tool if self.namespace is None else f"{self.namespace}{BETWEEN}{self.tool}"

    def wire(self) -> JsonObject:
        plain: JsonObject = {**asdict(self)}
        if not self.deferred:
            # Workers of earlier versions know no such tools.
            del plain["deferred"]
        return plain


@record
class ClientTools:
    """The tools that one client has brought, and how long a call waits for its answer."""

    client: str
    limit_ms: int
    tools: tuple[ClientTool, ...]

    @classmethod
    def of(cls, wire: JsonMapping) -> ClientTools:
        return cls(wire["client"], wire["limit_ms"], tuple(ClientTool(**tool) for tool in wire["tools"]))

    def wire(self) -> JsonObject:
        tools: list[JsonValue] = [tool.wire() for tool in self.tools]
        return {"client": self.client, "limit_ms": self.limit_ms, "tools": tools}

    def named(self, name: str) -> ClientTool | None:
        """The tool that the model calls so."""
        return next((tool for tool in self.tools if tool.name == name), None)


def client_tool(
    namespace: str | None, name: str, description: str, schema: JsonValue, *, deferred: bool = False
) -> ClientTool:
    """A tool as its client describes it; raises `BadTool`."""
    for what in (name, *((namespace,) if namespace is not None else ())):
        if _NAME.fullmatch(what) is None:
            raise BadTool(f"{what[:80]!r} is no name: take 1 to 64 letters, digits, `_` and `-`")
    if not isinstance(schema, dict) or schema.get("type", "object") != "object":
        raise BadTool(f"the inputSchema of {name} describes no object: its `type` has to be `object`")
    if deeper_than(schema, MOST_DEPTH):
        raise BadTool(f"the inputSchema of {name} is nested deeper than {MOST_DEPTH} levels")
    text = orjson.dumps(schema).decode()
    tool = ClientTool(name, description, text, namespace, deferred)
    _check_name(tool.name)
    if (size := _size(tool)) > MOST_BYTES:
        raise BadTool(f"{tool.name} has {size:,} bytes of description and schema: at most {MOST_BYTES:,}")
    return tool


def _check_name(name: str) -> None:
    if _NAME.fullmatch(name) is None:
        raise BadTool(f"{name[:80]} is too long with its namespace: both have 64 characters at most")
    if name in TAKEN:
        raise BadTool(f"{name} is the name of a built-in tool: give yours another name, or a namespace")
    if name.startswith(MCP_PREFIX):
        raise BadTool(f"{name} begins as tools of MCP servers do ({MCP_PREFIX}): give yours another name")


def _size(tool: ClientTool) -> int:
    return sum(len(text.encode("utf-8", "surrogatepass")) for text in (tool.description, tool.schema))


def client_tools(client: str, limit_ms: int, tools: Sequence[ClientTool]) -> ClientTools | None:
    """All that a client brings, None for nothing; raises `BadTool` for too many, and two of one name."""
    if len(tools) > MOST_TOOLS:
        raise BadTool(f"{len(tools)} tools are brought, at most {MOST_TOOLS} are taken")
    names = [tool.name for tool in tools]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise BadTool(f"{twice} is the name of two tools: give one of them another name")
    if (size := sum(map(_size, tools))) > MOST_BYTES_TOGETHER:
        raise BadTool(
            f"the tools have {size:,} bytes of descriptions and schemas: at most {MOST_BYTES_TOGETHER:,}"
        )
    return ClientTools(client, limit_ms, tuple(tools)) if tools else None
