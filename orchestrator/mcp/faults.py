"""Faults of an MCP server's connection.

McpFault                the connection cannot be used (any more); the message is for people
  ├─ StartFailed        it never could
  ├─ Misbehaved         the server sent more than it may, or what is no message
  └─ TimedOut           a call was not answered in time
ToolFault               the server answered that the call failed; the connection is fine
"""

from __future__ import annotations


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
