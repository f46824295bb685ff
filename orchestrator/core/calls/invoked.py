"""Calls of tools that events show as calls of MCP servers: of custom tools, and of servers themselves.

A tool of the program's own is shown as one of a server named `custom`; so no server may bear that name.
"""

from __future__ import annotations

from typing import ClassVar

from orchestrator.core.calls.verdict import Remembered, short_keys
from orchestrator.core.settings import TurnSettings
from orchestrator.protocol.events import McpToolCallBegin, McpToolCallEnd
from orchestrator.protocol.ids import CallId
from orchestrator.protocol.mcp import CallToolResult, McpInvocation
from orchestrator.protocol.scalars import Duration, LargeText


class Invoked:
    """The events of such a call, and what an approval for the session remembers of it."""

    __slots__ = ()
    rejected: ClassVar[str] = "tool call rejected by user"
    sandboxed: ClassVar[bool] = False
    keys: tuple[LargeText, ...]

    @property
    def invocation(self) -> McpInvocation:
        """The call as events show it."""
        raise NotImplementedError

    def begin(self, call_id: CallId, *, auto_approved: bool) -> McpToolCallBegin:
        return McpToolCallBegin(call_id=call_id, invocation=self.invocation)

    def end(self, call_id: CallId, result: CallToolResult | str, after_s: float) -> McpToolCallEnd:
        """The end of the call: what the tool returned, or why it returned nothing."""
        return McpToolCallEnd(
            call_id=call_id, invocation=self.invocation, duration=Duration.cut(after_s), result=result
        )

    def broken_off(self, call_id: CallId, text: str, after_s: float = 0.0) -> McpToolCallEnd:
        """The end of a call of which only `text` is known: never started, killed, or in doubt."""
        return self.end(call_id, text, after_s)

    def remembered(self, settings: TurnSettings) -> Remembered:
        return Remembered(short_keys(self.keys))
