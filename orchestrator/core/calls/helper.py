"""Helpers: calls of `spawn_subagent`, whose output is an agent's answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from orchestrator.core.frozen import record
from orchestrator.core.ids import AgentId
from orchestrator.protocol.agents import SubAgentInvocation, SubAgentResult
from orchestrator.protocol.events import SubAgentToolCallBegin, SubAgentToolCallEnd
from orchestrator.protocol.ids import CallId
from orchestrator.protocol.scalars import Duration
from orchestrator.protocol.wire import JsonObject, JsonValue


@record
class HelperWork:
    """A helper that works, as its asker waits for it."""

    kind: ClassVar[Literal["helper"]] = "helper"
    agent_id: AgentId
    invocation: JsonObject
    begun_ms: int

    @property
    def label(self) -> str:
        return str(self.invocation["label"])

    def begin(self, call_id: CallId) -> SubAgentToolCallBegin:
        return SubAgentToolCallBegin(
            call_id=call_id, invocation=SubAgentInvocation.model_validate(self.invocation)
        )

    def end(
        self,
        call_id: CallId,
        at_ms: int,
        result: SubAgentResult,
        outcome: str,
        content: Mapping[str, JsonValue],
    ) -> SubAgentToolCallEnd:
        """The end of the call; `content` is the helper's completion, if it sent one."""
        elapsed = max(0, at_ms - self.begun_ms)
        return SubAgentToolCallEnd(
            call_id=call_id,
            invocation=SubAgentInvocation.model_validate(self.invocation),
            duration=Duration(secs=elapsed // 1000, nanos=elapsed % 1000 * 1_000_000),
            tokens=content.get("tokens") or None,
            result=result,
            outcome=outcome,
        )
