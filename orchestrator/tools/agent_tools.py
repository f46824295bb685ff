"""The tools of agents, one of each schema; what a call asks for is assessed in `subagents`."""

from __future__ import annotations

from typing import Any

from orchestrator.core.calls import Call
from orchestrator.core.commands import Assessment
from orchestrator.core.state import State
from orchestrator.protocol.wire import JsonObject
from orchestrator.tools.subagents import AgentCall, assess_agent_call
from orchestrator.tools.tool import Tool, function, unsupported
from orchestrator.tools.tool_context import CallSite

# ── specs ─────────────────────────────────────────────────────────────────────────────────────────
# Specs of the subagent tools for the model.


_AGENT = {"type": "integer", "minimum": 0, "description": "The agent's number; 0 is the root."}


def _text(description: str) -> dict[str, Any]:
    return {"type": "string", "description": description}


def _number(description: str) -> dict[str, Any]:
    return {"type": "number", "description": description}


_MAKING = {
    "label": _text("A short name for people: what it is for."),
    "model": _text("Another model than yours: one good at planning to plan, one good at code to code."),
    "sandbox_mode": _text("Less than you have: read-only or workspace-write. More is refused."),
    "workspace": {
        "type": "string",
        "enum": ["own", "shared"],
        "description": "own: it works in a copy of your folder as it is now, and subagent_merge brings its "
        "changes into yours; for agents that would write the same files. shared: it works in your folder.",
    },
}

SPAWN = function(
    "subagent_spawn",
    "Starts an agent with a blank conversation: for work that stands alone, or to be judged without "
    "prejudice. It sees your prompt and nothing else, so say all that it needs: the goal, the paths, what to "
    "report, what it owns. It works beside you and takes one of few slots until it is done. Its result comes "
    "to you by itself; await it only when you cannot go on without it.",
    {"prompt": _text("What to do, complete in itself."), **_MAKING},
    ["prompt"],
)

FORK = function(
    "subagent_fork",
    "Splits you in two: the new agent knows this whole conversation. The call returns in both; `role` in its "
    "output says which you are. For work that needs what was said here. Without a prompt it waits for a "
    "message.",
    {"prompt": _text("What the child is to do."), **_MAKING},
    [],
)

SEND_MESSAGE = function(
    "subagent_send_message",
    "Writes to any agent of the tree, the root (0) too. It reads the message when its current turn is over; "
    "an agent that is done starts again. Steer with it, or show progress without waiting. With interrupt "
    "its work is stopped first: seldom worth it. Without a prompt it only gets the new label.",
    {
        "agent_id": _AGENT,
        "prompt": _text("The message."),
        "label": _text("A new label."),
        "interrupt": {"type": "boolean", "description": "Stop what it does now; below you only."},
    },
    ["agent_id"],
)

LIST = function(
    "subagent_list",
    "The agents that you made, with status, label and waiting mail. ready: its result is there to read; "
    "idle: you have read it. Look here before you message, await or inspect one.",
    {"all": {"type": "boolean", "description": "The whole tree."}},
    [],
)

AWAIT = function(
    "subagent_await",
    "Waits until an agent has a result or mail for you, and returns all that is there. Waiting costs nothing "
    "and a timeout harms nobody. Leave timeout_s out for 30 minutes, or begin with 300 and go up (600, "
    "1200). An await in your conversation that you did not call brought you mail: read it and act.",
    {
        "timeout_s": _number("300 to 1800 seconds; 0 or absent: 1800."),
        "agent_ids": {
            "type": "array",
            "items": {"type": "integer"},
            "description": "Only these children; default: any.",
        },
    },
    [],
)

LOGS = function(
    "subagent_logs",
    "What an agent did lately, without disturbing it. Use it to decide whether to wait, to write or to "
    "cancel.",
    {
        "agent_id": _AGENT,
        "limit": {"type": "integer", "description": "Events, the newest; default 5."},
        "max_bytes": {"type": "integer", "description": "At most so much JSON."},
        "since_ms": {"type": "integer", "description": "Only later than this Unix millisecond."},
        "before_ms": {"type": "integer", "description": "Only earlier than this Unix millisecond."},
        "cursor": {"type": "integer", "description": "`cursor` of an earlier answer: what came next."},
    },
    ["agent_id"],
)

WATCHDOG = function(
    "subagent_watchdog",
    "Sends a message to an agent again and again, yourself included: on long work it keeps somebody from "
    "stalling unseen. One for each agent; a new one replaces the old.",
    {
        "agent_id": _AGENT,
        "interval_s": _number("Seconds between messages, 30 or more; default 300."),
        "message": _text("Default: a question for status, next step and plan."),
        "cancel": {"type": "boolean", "description": "End it."},
    },
    ["agent_id"],
)

CANCEL = function(
    "subagent_cancel",
    "Stops an agent and everything below it, for good; commands that run are killed. The last resort: a "
    "message with interrupt only redirects. It is over when its status says canceled.",
    {"agent_id": _AGENT, "reason": _text("Why; it is told.")},
    ["agent_id"],
)

PRUNE = function(
    "subagent_prune",
    "Takes finished agents off the list, so that it stays small. Their logs are kept.",
    {
        "agent_ids": {"type": "array", "items": {"type": "integer"}, "description": "Which ones."},
        "all": {"type": "boolean", "description": "All below you."},
        "completed_only": {
            "type": "boolean",
            "description": "Leave those alone that work (default); false stops them first.",
        },
    },
    [],
)

HELPER = function(
    "spawn_subagent",
    "Asks a read-only agent and returns its answer: for finding things out without filling your "
    "conversation. It cannot write or make agents. Ask several at once, in one response, for what does "
    "not depend on one another; do not ask for what two or three files would tell you.",
    {
        "prompt": _text("What to find out, complete in itself."),
        "description": _text("What people read meanwhile, in a few words."),
        "label": _text("A short name: letters, digits, `-` and `_`."),
        "model": _text("Another model than yours."),
    },
    ["description", "prompt"],
)

VARIANTS = function(
    "propose_plan_variants",
    "Has three read-only agents draft a plan each, at once: the smallest one, the most correct one, and the "
    "one that is best to work with. Once for each draft that you put to the person.",
    {"goal": _text("What is to be planned, complete in itself: they see nothing else.")},
    ["goal"],
)

MERGE = function(
    "subagent_merge",
    "Brings what an agent of yours has changed in its folder into yours: all of it, or nothing where both of "
    "you have changed the same lines; then each conflict is named. Wait for its result first. What was "
    "merged before is not merged again.",
    {"agent_id": _AGENT},
    ["agent_id"],
)

OFFERED = (SPAWN, FORK, SEND_MESSAGE, LIST, AWAIT, LOGS, WATCHDOG, CANCEL, PRUNE, HELPER, VARIANTS, MERGE)
NAMES = frozenset(spec["name"] for spec in OFFERED)
PARALLEL_SAFE = frozenset({"spawn_subagent"})
"""Tools whose calls may run together with others of one response."""

BATCHED = frozenset(
    {"subagent_spawn", "subagent_fork", "subagent_await", "spawn_subagent", "propose_plan_variants"}
)
"""Calls that look nothing up which an earlier call of the same response may have changed."""


# ── agent tools ───────────────────────────────────────────────────────────────────────────────────


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
