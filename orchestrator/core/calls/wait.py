"""Waiting for agents: calls of `subagent_await`."""

from __future__ import annotations

from dataclasses import field
from typing import ClassVar, Literal

from orchestrator.core.forms import LIST
from orchestrator.core.frozen import record
from orchestrator.core.ids import AgentId


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
