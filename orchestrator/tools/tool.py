"""A tool of the model: its names, its offer, and what becomes of a call of it.

    assess   reads arguments and files, judges words; starts and writes nothing
    run      carries out what was accepted, exactly as it was recorded
    judge    after a crash: what a call that had begun left behind

Which calls may run is decided elsewhere, from the assessment.
"""

from __future__ import annotations

from typing import Literal

from orchestrator.core.calls import Call
from orchestrator.core.commands import Assessment, CallFinished, Immediate
from orchestrator.core.state import State, Task
from orchestrator.core.user_turns import TaskKind
from orchestrator.protocol.wire import JsonObject
from orchestrator.tools.tool_context import CallSite

Judgement = Literal["none", "all", "in_doubt"]
"""Traces of a lost worker's call: none, all that it was to do, or what cannot be told."""


class Tool:
    """A tool; a subclass says what differs from one that is offered to nobody and runs nothing."""

    names: tuple[str, ...]
    """The names under which a model calls it."""
    parallel_safe = False
    """Whether its calls may run together with others of one response."""
    repeatable = False
    """Whether its calls may run again after a crash, because they only read."""
    needs_folder = True
    """Whether its calls look into the session's folder, or run in it: a portable one is made before them."""

    beside: frozenset[TaskKind] = frozenset()
    """The kinds of tasks with a conversation of their own that have the tool, too."""

    def offered(self, state: State) -> JsonObject | None:
        """The tool as the model of this session is offered it; None: it is not."""
        return None

    async def assess(self, call: Call, site: CallSite) -> Assessment:
        """Assesses what a call asks for; raises `BadArguments` with what the model reads instead."""
        raise NotImplementedError

    async def run(self, call: Call, site: CallSite) -> CallFinished:
        """Runs an accepted call to its end; cancelling it kills it and waits for the proof."""
        raise TypeError(f"call {call.call_id} of {call.name} has nothing to run")

    async def judge(self, call: Call, claim: str) -> Judgement:
        """Judges a lost worker's call; what it left lying about is removed, under the claim of who asks."""
        return "in_doubt"


def unsupported(call: Call) -> Immediate:
    """The answer to a call of a tool that there is not, or not in this form."""
    return Immediate(f"unsupported call: {call.name}")


def task_of(state: State) -> Task:
    """The task whose call is assessed or run."""
    assert state.task is not None
    return state.task


# ── specs ─────────────────────────────────────────────────────────────────────────────────────────
# The form in which a model is offered a tool, as the Responses API takes it.


def function(name: str, description: str, properties: JsonObject, required: list[str]) -> JsonObject:
    """A function tool as Codex declares it: not strict, no further properties."""
    return {
        "type": "function",
        "name": name,
        "description": description,
        "strict": False,
        "parameters": {
            "type": "object",
            "properties": properties,
            "required": required,
            "additionalProperties": False,
        },
    }


def function_of_schema(name: str, description: str, schema: JsonObject) -> JsonObject:
    """A function tool with a whole schema for its arguments, which are an object whatever it leaves out."""
    parameters = {"type": "object", **schema}
    return {
        "type": "function",
        "name": name,
        "description": description,
        "strict": False,
        "parameters": parameters,
    }


def string(description: str) -> JsonObject:
    """The schema of a text."""
    return {"type": "string", "description": description}


def integer(description: str) -> JsonObject:
    """The schema of a whole number."""
    return {"type": "integer", "description": description}
