"""The tools of agents, one of each schema; what a call asks for is assessed in `subagents`."""

from __future__ import annotations

from orchestrator.core.commands import Assessment
from orchestrator.core.state import State
from orchestrator.core.turn_calls import Call
from orchestrator.protocol.wire import JsonObject
from orchestrator.tools.site import CallSite
from orchestrator.tools.subagents.assess import AgentCall, assess_agent_call
from orchestrator.tools.subagents.specs import MERGE, OFFERED, PARALLEL_SAFE, VARIANTS
from orchestrator.tools.tool import Tool, unsupported


class AgentTool(Tool):
    """A tool that makes agents, writes to them, waits for them or ends them."""

    needs_folder = False

    def __init__(self, schema: JsonObject) -> None:
        self._schema = schema
        self.names = (schema["name"],)
        self.parallel_safe = schema["name"] in PARALLEL_SAFE

    def offered(self, state: State) -> JsonObject | None:
        return self._schema if state.facts.agents and state.facts.helper_call is None else None

    async def assess(self, call: Call, site: CallSite) -> Assessment:
        if site.agents is None or not site.state.facts.agents:
            return unsupported(call)
        return await assess_agent_call(AgentCall(call, site.state, site.agents, site.seq, site.head))


class VariantsTool(AgentTool):
    """The tool of plan variants: it is offered to planning sessions, and a call of it is served elsewhere."""

    beside = frozenset({"plan"})

    def offered(self, state: State) -> JsonObject | None:
        plans = state.task is not None and state.task.kind == "plan"
        return super().offered(state) if plans else None


class MergeTool(AgentTool):
    """The tool that takes an agent's work over, where agents have folders of their own."""

    needs_folder = True

    def offered(self, state: State) -> JsonObject | None:
        apart = state.facts.portable is not None or state.workspace.given
        return super().offered(state) if apart else None


OWN = {VARIANTS["name"]: VariantsTool, MERGE["name"]: MergeTool}
AGENT_TOOLS = tuple(OWN.get(schema["name"], AgentTool)(schema) for schema in OFFERED)
