"""The tool `write_stdin`: words to a process that `exec_command` has left running, or a look at it."""

from __future__ import annotations

import asyncio

from pydantic import Field

from orchestrator.core.calls import StdinWork, WriteStdin
from orchestrator.core.commands import Assessment, CallFinished, ProcessEnd
from orchestrator.core.decide.process import no_process
from orchestrator.core.forms import whole
from orchestrator.core.state import State
from orchestrator.core.turn_calls import Call
from orchestrator.protocol.wire import JsonObject
from orchestrator.tools.arguments import Arguments, parsed
from orchestrator.tools.exec.processes import (
    MAX_TOKENS,
    OUTPUT_TOKENS,
    YIELD,
    LiveProcesses,
    look_of,
    process_end,
    within,
)
from orchestrator.tools.site import CallSite
from orchestrator.tools.specs import function, string
from orchestrator.tools.tool import Tool, unsupported

WRITE_STDIN = "write_stdin"
LEAST_YIELD_MS, MOST_YIELD_MS = 250, 30_000
LEAST_POLL_MS, MOST_POLL_MS = 5_000, 300_000
"""Milliseconds that a look without words may wait."""
CHARS = 16_384
"""Characters that one call may type."""
NOT_TYPED = "not typed: what was typed before still waits, since the program does not read its input"

SPEC = function(
    WRITE_STDIN,
    "Types to a command that runs, and returns what it has said since the last look. \\u0003 is Ctrl-C.",
    {
        "session_id": {"type": "number", "description": "The session ID that exec_command returned."},
        "chars": string("What to type; empty or absent: only look. A line ends with \\n."),
        "yield_time_ms": {
            "type": "number",
            "description": f"{YIELD}default {LEAST_YIELD_MS}; without chars {LEAST_POLL_MS} to "
            f"{MOST_POLL_MS}.",
        },
        "max_output_tokens": MAX_TOKENS,
    },
    ["session_id"],
)


class WriteStdinArguments(Arguments):
    session_id: int = Field(ge=0)
    chars: str = Field(default="", max_length=CHARS)
    yield_time_ms: int = Field(default=LEAST_YIELD_MS, ge=0)
    max_output_tokens: int = Field(default=OUTPUT_TOKENS, ge=1)


class WriteStdinTool(Tool):
    """Looks at processes, and types to them."""

    names = (WRITE_STDIN,)
    beside = frozenset({"plan", "review"})

    def __init__(self, processes: LiveProcesses) -> None:
        self._processes = processes

    def offered(self, state: State) -> JsonObject | None:
        return SPEC if state.facts.unified_exec else None

    async def assess(self, call: Call, site: CallSite) -> Assessment:
        if not site.state.facts.unified_exec or call.item["type"] != "function_call":
            return unsupported(call)
        given = parsed(WriteStdinArguments, call.item["arguments"])
        most = MOST_YIELD_MS if given.chars else MOST_POLL_MS
        least = LEAST_YIELD_MS if given.chars else LEAST_POLL_MS
        return WriteStdin(
            given.session_id,
            given.chars,
            within(given.yield_time_ms, least, most),
            min(given.max_output_tokens, OUTPUT_TOKENS),
        )

    async def run(self, call: Call, site: CallSite) -> CallFinished:
        work = call.work
        if not isinstance(work, StdinWork):
            return await super().run(call, site)
        process = self._processes.get(site.claim, work.number)
        if process is None:
            return CallFinished(call.call_id, no_process(work.number, ()))
        began = asyncio.get_running_loop().time()
        typed = process.write(whole(work.chars).encode("utf-8", "replace")) if work.chars else True
        await process.wait(work.yield_ms / 1000)
        seconds, finished = asyncio.get_running_loop().time() - began, process.finished
        if finished is None:
            output = look_of(process, seconds, work.max_tokens, running=work.number)
            return CallFinished(call.call_id, output if typed else f"{NOT_TYPED}\n{output}")
        self._processes.remove(site.claim, work.number)
        output = look_of(process, seconds, work.max_tokens, finished=finished)
        end = process_end(work.started_by, work.number, finished, unseen=process.unseen)
        return CallFinished(call.call_id, output, over=ProcessEnd(work.number, end))
