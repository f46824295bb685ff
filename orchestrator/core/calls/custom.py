"""Custom tools: calls of a tool that the program around Dendro brings along, and only it knows.

Events show such a call as one of an MCP server named `custom`; a request for approval shows the tool's name
and one line of its own as a command. The tool runs in the worker's process: no sandbox confines it.
"""

from __future__ import annotations

from dataclasses import field
from hashlib import sha256
from typing import ClassVar, Literal

import orjson

from orchestrator.core.calls.invoked import Invoked
from orchestrator.core.calls.verdict import Ask, Refuse, Run, Verdict
from orchestrator.core.forms import TEXT, TEXTS
from orchestrator.core.frozen import record, replace
from orchestrator.core.settings import TurnSettings
from orchestrator.protocol.events import ExecApprovalRequest, McpToolCallEnd, Reach
from orchestrator.protocol.ids import CallId
from orchestrator.protocol.mcp import CUSTOM_SERVER, McpInvocation, text_result
from orchestrator.protocol.scalars import LargeText
from orchestrator.protocol.wire import JsonObject


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
