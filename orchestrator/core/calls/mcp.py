"""Calls of the tools of MCP servers.

A server is trusted by being configured: only the policy `untrusted` asks about its tools.
What the server does is beyond the sandbox. A call whose worker was lost is in doubt: a server may say that a
tool only reads, and lie.
"""

from __future__ import annotations

from dataclasses import field
from hashlib import sha256
from typing import ClassVar, Literal

import orjson

from orchestrator.core.calls.invoked import Invoked
from orchestrator.core.calls.verdict import Ask, Run, Verdict
from orchestrator.core.forms import TEXT, TEXTS
from orchestrator.core.frozen import record, replace
from orchestrator.core.settings import TurnSettings
from orchestrator.protocol.events import ExecApprovalRequest, Reach
from orchestrator.protocol.ids import CallId
from orchestrator.protocol.mcp import McpInvocation
from orchestrator.protocol.scalars import LargeText
from orchestrator.protocol.wire import JsonObject


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
