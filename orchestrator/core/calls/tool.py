"""Calls of tools that events show as calls of MCP servers: of custom tools, and of servers themselves.

A tool of the program's own is shown as one of a server named `custom`; so no server may bear that name.
"""

from __future__ import annotations

from dataclasses import field
from hashlib import sha256
from typing import ClassVar, Literal

import orjson

from orchestrator.core.calls.verdict import Ask, Refuse, Remembered, Run, Runs, Verdict, short_keys
from orchestrator.core.forms import TEXT, TEXTS
from orchestrator.core.frozen import record, replace
from orchestrator.core.settings import TurnSettings
from orchestrator.protocol.events import ExecApprovalRequest, McpToolCallBegin, McpToolCallEnd, Reach
from orchestrator.protocol.ids import CallId
from orchestrator.protocol.mcp import CUSTOM_SERVER, CallToolResult, McpInvocation, text_result
from orchestrator.protocol.scalars import Duration, LargeText
from orchestrator.protocol.wire import JsonObject


class Invoked(Runs):
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

    def confined(self, asked: Ask) -> bool:
        return False


# ── mcp ───────────────────────────────────────────────────────────────────────────────────────────
# Calls of the tools of MCP servers.
#
# A server is trusted by being configured: only the policy `untrusted` asks about its tools. What the
# server does is beyond the sandbox. A call whose worker was lost is in doubt: a server may say that a
# tool only reads, and lie.


@record
class Mcp:
    """A call of a server's tool."""

    server: str
    tool: str
    arguments: JsonObject | None
    """JSON of at most 64 KiB."""
    cwd: str
    read_only: bool = False
    """Whether the server says that the tool only reads, and the person believes the server."""

    @property
    def key(self) -> str:
        """The key under which `approved_for_session` remembers the call: the tool and all its arguments."""
        data = orjson.dumps(self.arguments, option=orjson.OPT_SORT_KEYS)
        return f"mcp:{self.server}:{self.tool}:{sha256(data).hexdigest()}"

    def judged(self, settings: TurnSettings, approved: frozenset[str]) -> Verdict:
        """The verdict on the call: only the policy `untrusted` asks about it."""
        if settings.approval_policy != "untrusted" or self.read_only or self.key in approved:
            return Run(sandboxed=False)
        return Ask(None, sandboxed=False)

    def work(self, sandboxed: bool) -> McpWork:
        """The call as it is to run; nothing confines it."""
        return McpWork((self.key,), self.server, self.tool, self.arguments, self.cwd)


@record
class McpWork(Invoked):
    """A call of a server's tool that waits for an approval, or runs."""

    kind: ClassVar[Literal["mcp"]] = "mcp"
    keys: tuple[LargeText, ...] = field(metadata=TEXTS)
    server: str
    tool: str
    arguments: JsonObject | None
    cwd: LargeText = field(metadata=TEXT)
    timer: int | None = None
    """The generation of the timer of its approval."""

    def asked(self, timer: int) -> McpWork:
        return replace(self, timer=timer)

    def request(self, call_id: CallId, reach: Reach) -> ExecApprovalRequest:
        shown = orjson.dumps(self.arguments, default=dict).decode()
        return ExecApprovalRequest(
            command=("mcp", self.server, self.tool, shown),
            cwd=self.cwd,
            call_id=call_id,
            reason=reach.told,
            reach=reach,
        )

    @property
    def invocation(self) -> McpInvocation:
        return McpInvocation(server=self.server, tool=self.tool, arguments=self.arguments)

    @property
    def activity(self) -> str:
        """The line that a helper's asker sees while the tool works."""
        return f"uses {self.tool} of {self.server}"


# ── custom ────────────────────────────────────────────────────────────────────────────────────────
# Custom tools: calls of a tool that the program around Dendro brings along, and only it knows.
#
# Events show such a call as one of an MCP server named `custom`; a request for approval shows the tool's
# name and one line of its own as a command. The tool runs in the worker's process: no sandbox confines
# it.


@record
class Custom:
    """A call of a custom tool, as the tool has assessed it."""

    tool: str
    payload: JsonObject
    """The input of the tool's `run`: JSON of at most 64 KiB."""
    summary: str
    """The purpose of the call, in one line."""
    cwd: str
    ask: str | None = None
    """The reason why a person has to approve it; None: it runs at once."""
    repeatable: bool = False
    """Whether it may run again if its worker is lost meanwhile."""

    @property
    def key(self) -> str:
        """The key under which `approved_for_session` remembers the call: the tool and its whole payload."""
        data = orjson.dumps(self.payload, option=orjson.OPT_SORT_KEYS)
        return f"custom:{self.tool}:{sha256(data).hexdigest()}"

    def judged(self, settings: TurnSettings, approved: frozenset[str]) -> Verdict:
        """The verdict on the call: the tool says whether to ask, and nobody is asked under `never`."""
        if self.ask is None or self.key in approved:
            return Run(sandboxed=False)
        if settings.approval_policy == "never":
            return Refuse(f"{self.ask}: the approval policy is never, so nobody is asked: not run")
        return Ask(self.ask, sandboxed=False)

    def work(self, sandboxed: bool) -> CustomWork:
        """The call as it is to run; nothing confines it."""
        return CustomWork(
            (self.key,), self.tool, self.payload, self.summary, self.cwd, repeatable=self.repeatable
        )


@record
class CustomWork(Invoked):
    """A call of a custom tool that waits for an approval, or runs."""

    kind: ClassVar[Literal["custom"]] = "custom"
    keys: tuple[LargeText, ...] = field(metadata=TEXTS)
    tool: str
    payload: JsonObject
    summary: LargeText = field(metadata=TEXT)
    cwd: LargeText = field(metadata=TEXT)
    repeatable: bool = False
    timer: int | None = None
    """The generation of the timer of its approval."""

    def asked(self, timer: int) -> CustomWork:
        return replace(self, timer=timer)

    def request(self, call_id: CallId, reach: Reach) -> ExecApprovalRequest:
        return ExecApprovalRequest(
            command=(self.tool, self.summary), cwd=self.cwd, call_id=call_id, reason=reach.told, reach=reach
        )

    @property
    def invocation(self) -> McpInvocation:
        return McpInvocation(server=CUSTOM_SERVER, tool=self.tool, arguments=self.payload)

    def found_done(self, call_id: CallId) -> McpToolCallEnd:
        """The end of a call whose worker was lost, but of which its tool says that all of it was done."""
        text = self.summary if isinstance(self.summary, str) else ""
        return self.end(call_id, text_result(text), 0.0)

    @property
    def activity(self) -> str:
        """The line that a helper's asker sees while the tool runs."""
        return f"uses {self.tool}"
