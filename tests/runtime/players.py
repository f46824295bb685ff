"""A model, tools and a supervisor that do what a test says, and remember what was asked of them."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import orjson

from orchestrator.core.calls import ApplyPatch, Call, Exec, PatchWork, StdinWork, UserInputWork, WriteStdin
from orchestrator.core.calls.exec import Lasting
from orchestrator.core.commands import Assessment, CallFinished, ProcessEnd, SetupEnded
from orchestrator.core.decide.call_end import unknown_end
from orchestrator.core.ids import SessionId
from orchestrator.core.state import Process, State
from orchestrator.model.model_client import HttpBudget
from orchestrator.model.prompt import Completed, Item, ItemDone, ModelEvent, Prompt, TextDelta
from orchestrator.protocol import events as ev
from orchestrator.protocol.commands import AddFile, UnknownCommand
from orchestrator.protocol.ids import CallId
from orchestrator.protocol.mcp import Tool as McpTool
from orchestrator.protocol.scalars import Duration
from orchestrator.protocol.wire import written
from orchestrator.tools.tool_context import CallSite, DeltaSink
from tests.runtime.connections import Gate

Cue = ModelEvent | Gate | Exception
USAGE = {
    "input_tokens": 10,
    "cached_input_tokens": 0,
    "output_tokens": 2,
    "reasoning_output_tokens": 0,
    "total_tokens": 12,
}


def calls(call_id: str, name: str = "shell", **arguments: Any) -> ItemDone:
    """The model asks for a call."""
    text = orjson.dumps({"command": ["true"], **arguments}).decode()
    return ItemDone({"type": "function_call", "name": name, "arguments": text, "call_id": call_id})


def message(text: str) -> ItemDone:
    """The model says something."""
    return ItemDone(
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}
    )


def ends(response_id: str = "resp") -> Completed:
    return Completed(response_id, USAGE, None)


class ScriptedModels:
    """Answers each request with the next turn; a request that no turn is left for gets a short goodbye."""

    def __init__(self) -> None:
        self.prompts: list[Prompt] = []
        self.streaming = 0
        self._turns: deque[tuple[Cue, ...]] = deque()

    def will(self, *turns: Sequence[Cue]) -> None:
        """Adds turns; one without an end of its own is completed."""
        self._turns.extend(tuple(turn) for turn in turns)

    def retries(self, provider: str) -> tuple[int, int]:
        return 4, 5

    async def stream(self, provider: str, prompt: Prompt, budget: HttpBudget) -> AsyncIterator[ModelEvent]:
        self.prompts.append(prompt)
        turn = self._turns.popleft() if self._turns else (TextDelta("Bye."), message("Bye."))
        self.streaming += 1
        try:
            for cue in (*turn, *(() if any(isinstance(c, Completed) for c in turn) else (ends(),))):
                match cue:
                    case Gate():
                        await cue.wait()
                    case Exception():
                        raise cue
                    case _:
                        yield cue
        finally:
            self.streaming -= 1

    def outputs(self) -> dict[str, Any]:
        """The output of each call in the last request to the model."""
        return {
            item["call_id"]: item["output"]
            for item in self.prompts[-1].input
            if item["type"].endswith("_output")
        }


class ScriptedTools:
    """Runs calls that wait at gates; `started` counts executions, which is what must not happen twice."""

    def __init__(self) -> None:
        self.started: Counter[str] = Counter()
        self.ended: list[str] = []
        self.killed: list[str] = []
        self.gates: dict[str, Gate] = {}
        self.deaths: dict[str, Gate] = {}
        """The gate that a killed call waits for before it is proved dead."""
        self.outputs: dict[str, str] = {}
        self.deltas: dict[str, list[str]] = {}
        self.verdicts: dict[str, str] = {}
        self.fails: dict[str, Exception] = {}
        self.events: dict[str, ev.EventModel] = {}
        """The event that a call publishes beside its end."""
        self.setup = SetupEnded("done", 1.5)
        """The end of each set-up; the gate `setup` holds it."""
        self.processes: dict[int, Gate] = {}
        """The gate behind which each process ends."""
        self.abandoned: list[str] = []
        self.lasting_deltas: dict[str, DeltaSink] = {}
        """Where each process shows what it says."""
        self._began: dict[str, asyncio.Event] = {}

    def began(self, call_id: str) -> asyncio.Event:
        """Set once the call runs."""
        return self._began.setdefault(call_id, asyncio.Event())

    async def prepare(self, state: State, show: DeltaSink) -> None:
        """Needs nothing."""

    def release(self, session: SessionId) -> None:
        """Held nothing."""

    async def of_servers(self, state: State, server: str | None = None) -> dict[str, McpTool]:
        return {}

    def specs(self, state: State) -> Sequence[Item]:
        return ()

    async def assess(self, call: Call, site: CallSite) -> Assessment:
        arguments = orjson.loads(call.item["arguments"])
        if call.name == "apply_patch":
            return _patch(arguments)
        if call.name == "request_user_input":
            return UserInputWork(tuple(arguments["questions"]))
        if call.name == "write_stdin":
            return WriteStdin(arguments.get("session_id", 1), "", 250, 100)
        return Exec(
            tuple(arguments["command"]),
            "/tmp",
            (UnknownCommand(cmd="true"),),
            key=call.call_id,
            safe=not arguments.get("ask"),
            lasting=Lasting(True, 250, 100) if call.name == "exec_command" else None,
        )

    async def run(self, call: Call, site: CallSite) -> CallFinished:
        self.started[call.call_id] += 1
        self.began(call.call_id).set()
        for chunk in self.deltas.get(call.call_id, ()):
            shown = {"call_id": call.call_id, "stream": "stdout", "chunk": chunk}
            site.deltas(written(ev.ExecCommandOutputDelta.model_validate(shown)))
        try:
            if call.call_id in self.gates:
                await self.gates[call.call_id].wait()
        except asyncio.CancelledError:
            if call.call_id in self.deaths:
                await self.deaths[call.call_id].wait()
            self.killed.append(call.call_id)
            raise
        if call.call_id in self.fails:
            raise self.fails[call.call_id]
        if call.name == "exec_command":
            self.lasting_deltas[call.call_id] = site.lasting_deltas
            return CallFinished(call.call_id, "running", keeps=True)
        if isinstance(call.work, StdinWork):
            (process,) = [one for one in site.state.processes.living if one.number == call.work.number]
            over = ProcessEnd(process.number, unknown_end(process, "bye"))
            return CallFinished(call.call_id, "bye", over=over)
        self.ended.append(call.call_id)
        done = _finished(call, self.outputs.get(call.call_id, f"output of {call.call_id}"))
        told = self.events.get(call.call_id)
        return replace(done, events=(told, *done.events)) if told else done

    async def judge(self, call: Call, claim: str) -> str:
        return self.verdicts.get(call.call_id, "in_doubt")

    async def set_up(self, site: CallSite) -> SetupEnded:
        self.started["setup"] += 1
        self.began("setup").set()
        try:
            if "setup" in self.gates:
                await self.gates["setup"].wait()
        except asyncio.CancelledError:
            self.killed.append("setup")
            raise
        if "setup" in self.fails:
            raise self.fails["setup"]
        return self.setup

    async def follow(self, process: Process, claim: str) -> ProcessEnd:
        try:
            await self.processes.setdefault(process.number, Gate()).wait()
        except asyncio.CancelledError:
            self.killed.append(f"process {process.number}")
            raise
        return ProcessEnd(process.number, unknown_end(process, "bye"), "bye")

    def kill_process(self, number: int, claim: str) -> None:
        """Kills it once: a worker asks at each step until the end is decided."""
        if f"process {number}" not in self.killed:
            self.killed.append(f"process {number}")
        self.processes.setdefault(number, Gate()).open()

    async def abandon(self, claim: str) -> None:
        self.abandoned.append(claim)


def _patch(arguments: Mapping[str, Any]) -> ApplyPatch:
    return ApplyPatch(
        patch="*** Begin Patch\n*** End Patch",
        cwd="/tmp",
        changes={"/tmp/a": AddFile(content="a")},
        summary="Success. Updated the following files:\nA a\n",
        record=[["/tmp/a", None, "hash"]],
    )


def _finished(call: Call, output: str) -> CallFinished:
    if isinstance(call.work, PatchWork):
        patched = ev.PatchApplyEnd(call_id=CallId(call.call_id), stdout="", stderr="", success=True)
        return CallFinished(call.call_id, output, (patched,), applied=True)
    end = ev.ExecCommandEnd(
        call_id=CallId(call.call_id),
        stdout=output,
        stderr="",
        aggregated_output=output,
        exit_code=0,
        duration=Duration(secs=0, nanos=0),
        formatted_output=output,
    )
    return CallFinished(call.call_id, output, (end,))


class FakeSupervisor:
    """Remembers deadlines."""

    def __init__(self) -> None:
        self.deadlines: dict[str, float] = {}

    def extend(self, claim: str, deadline_boottime: float) -> None:
        self.deadlines[claim] = deadline_boottime

    async def kill(self, claim: str) -> None:
        self.deadlines.pop(claim, None)
