"""Drafts of a plan from several points of view: calls of `propose_plan_variants`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import ClassVar, Literal

from orchestrator.core.frozen import record
from orchestrator.core.ids import AgentId
from orchestrator.core.record_json import LIST
from orchestrator.protocol.agents import SubAgentInvocation, SubAgentResult
from orchestrator.protocol.events import SubAgentToolCallBegin, SubAgentToolCallEnd
from orchestrator.protocol.ids import CallId
from orchestrator.protocol.scalars import Duration
from orchestrator.protocol.wire import JsonObject, JsonValue


@record
class VariantsWork:
    """Helpers that draft variants of a plan, as the agent that asked waits for all of them."""

    kind: ClassVar[Literal["variants"]] = "variants"
    agent_ids: tuple[AgentId, ...] = field(metadata=LIST)
    invocations: tuple[JsonObject, ...] = field(metadata=LIST)
    begun_ms: int
    results: Mapping[str, JsonObject] = field(default_factory=dict)
    """The variants that there are, by the number of their helper."""

    def helpers(self, call_id: CallId) -> Iterator[tuple[CallId, HelperWork]]:
        """The helpers whose variants are awaited, each under an id of its own."""
        for place, agent_id in enumerate(self.agent_ids):
            if str(agent_id) not in self.results:
                work = HelperWork(agent_id, self.invocations[place], self.begun_ms)
                yield variant_id(call_id, place), work

    @property
    def variants(self) -> list[JsonObject] | None:
        """All variants in order; None while some are awaited."""
        found = [self.results.get(str(agent_id)) for agent_id in self.agent_ids]
        whole = [each for each in found if each is not None]
        return whole if len(whole) == len(found) else None


def variant_id(call_id: str, place: int) -> CallId:
    """The name of a variant's helper in events."""
    return CallId(f"{call_id}:plan_variant:{place + 1}")


# ── helper ────────────────────────────────────────────────────────────────────────────────────────
# Helpers: calls of `spawn_subagent`, whose output is an agent's answer.


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


# ── wait ──────────────────────────────────────────────────────────────────────────────────────────
# Waiting for agents: calls of `subagent_await`.


@record
class Await:
    """A wait as the model asked for it; no `agent_ids`: for any child."""

    timeout_ms: int
    agent_ids: tuple[AgentId, ...] = ()


@record
class AwaitWork:
    """A wait that goes on; `timer` is the generation of the deadline's."""

    kind: ClassVar[Literal["await"]] = "await"
    agent_ids: tuple[AgentId, ...] = field(metadata=LIST)
    timer: int
    until_ms: int


# ── copy ──────────────────────────────────────────────────────────────────────────────────────────
# Copies of a session's own folder, for agents that are to work in one: taken before they are made.


@record
class CopyWork:
    """A copy that is being taken, for all agents that one response makes; the folder stays as it is."""

    kind: ClassVar[Literal["copy"]] = "copy"
    request: int
    """The number of the model's response."""
