"""Drafts of a plan from several points of view: calls of `propose_plan_variants`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import ClassVar, Literal

from orchestrator.core.calls.helper import HelperWork
from orchestrator.core.forms import LIST
from orchestrator.core.frozen import record
from orchestrator.core.ids import AgentId
from orchestrator.protocol.ids import CallId
from orchestrator.protocol.wire import JsonObject


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
