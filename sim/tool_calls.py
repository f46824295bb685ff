"""The tools of a simulation: what they do is the seed's choice, and the ledger knows of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import orjson

from orchestrator.core.calls import (
    ApplyPatch,
    Call,
    ClientToolWork,
    Exec,
    ExecWork,
    Mcp,
    McpWork,
    PatchWork,
    PlanWork,
    QuestionWork,
    StdinWork,
    UserInputWork,
    WriteStdin,
    command_of,
)
from orchestrator.core.calls.approval_policy import Segment
from orchestrator.core.calls.exec import Lasting
from orchestrator.core.commands import Assessment, CallFinished, Immediate, ProcessEnd, SetupEnded
from orchestrator.core.frozen import replace
from orchestrator.core.ids import SessionId
from orchestrator.core.settings import Rules
from orchestrator.core.state import Process, State
from orchestrator.model.prompt import Item
from orchestrator.protocol import events as ev
from orchestrator.protocol.commands import AddFile, UnknownCommand
from orchestrator.protocol.ids import CallId
from orchestrator.protocol.mcp import CallToolResult
from orchestrator.protocol.mcp import Tool as McpTool
from orchestrator.protocol.scalars import Duration, OutputStream
from orchestrator.protocol.wire import written
from orchestrator.tools.agent_tools import NAMES, PARALLEL_SAFE
from orchestrator.tools.arguments import BadArguments
from orchestrator.tools.images import ViewImage
from orchestrator.tools.subagents import AgentCall, Tree, assess_agent_call
from orchestrator.tools.tool_context import AskPerson, CallSite, DeltaSink
from sim.folder_setups import SimSetups
from sim.folders import Folders
from sim.grammar_terms import OTHER_MODEL
from sim.ledger import Ledger, Run, SimSupervisor
from sim.model_script import ASKS, BEYOND, CLIENT_TOOL, TOOL, ModelScript, drawing
from sim.odd_servers import DIED
from sim.processes import SimProcesses
from sim.script_readers import ScriptReaders
from sim.worker_runs import WorkerRuns

READING = frozenset(ViewImage.names)
RULES = Rules(
    parallel_safe=PARALLEL_SAFE | READING | frozenset(ASKS),
    repeatable=READING,
    folder_free=NAMES - {"subagent_merge"} | {"update_plan", "approve_plan", *ASKS},
)
"""The rules of a worker with the product's own tools."""
OWN_MODELS = replace(RULES, plan_model=OTHER_MODEL, review_model=OTHER_MODEL)
"""Those of a worker that asks another model for reviews and plans."""


def _in_a_review(state: State) -> bool:
    """Whether the running task is a review, whose model looks at files and does nothing else."""
    return state.task is not None and state.task.kind == "review"


def _of_client(call: Call, state: State) -> Assessment:
    """A call of a tool that the root's client has brought; agents have none."""
    brought = state.facts.client_tools
    tool = brought.named(call.name) if brought is not None else None
    if brought is None or tool is None or _in_a_review(state):
        return Immediate(f"unsupported call: {call.name}")
    given = call.item["arguments"]
    return ClientToolWork(tool.tool, brought.client, brought.limit_ms, tool.namespace, given)


class SimTools:
    """A worker's tools."""

    def __init__(
        self,
        model: ModelScript,
        ledger: Ledger,
        supervisor: SimSupervisor,
        machine: str,
        starting: Callable[[Call, CallSite], bool],
        folders: Folders,
    ) -> None:
        self._model = model
        self._ledger = ledger
        self._supervisor = supervisor
        self._machine = machine
        self._starting = starting
        self._folders = folders
        self._runs = WorkerRuns(model.loop, model.rng, ledger, supervisor, machine)
        self.processes = SimProcesses(self._runs, model, folders)
        self._scripts = ScriptReaders(ledger, model.rng)
        self._setups = SimSetups(self._runs, model.rng, folders)
        self.session_of: Callable[[str], str] = lambda claim: ""
        """The session of a claim that the worker has."""

    async def prepare(self, state: State, show: DeltaSink) -> None:
        """Needs nothing."""

    def release(self, session: SessionId) -> None:
        """Held nothing."""

    async def set_up(self, site: CallSite) -> SetupEnded:
        return await self._setups.run(site)

    async def follow(self, process: Process, claim: str) -> ProcessEnd:
        return await self.processes.follow(process, claim)

    def kill_process(self, number: int, claim: str) -> None:
        self.processes.kill(number, claim)

    async def abandon(self, claim: str) -> None:
        await self.processes.abandon(claim)

    async def of_servers(self, state: State, server: str | None = None) -> dict[str, McpTool]:
        return {}

    def specs(self, state: State) -> Sequence[Item]:
        shell = {"type": "function", "name": "shell"}
        agents = state.facts.agents and not _in_a_review(state)
        return (shell, {"type": "function", "name": "subagent_spawn"}) if agents else (shell,)

    async def assess(self, call: Call, site: CallSite) -> Assessment:
        with drawing(f"assess {call.call_id}"):
            return await self._assess(call, site)

    async def _assess(self, call: Call, site: CallSite) -> Assessment:
        if self._model.rng.random() < 0.2:
            await asyncio.sleep(self._model.rng.uniform(0.0, 0.2))
        if command_of(call.item) is not None:
            return Exec(("true",), "/sim", (UnknownCommand(cmd="true"),), "", by_person=True)
        arguments = orjson.loads(call.item["arguments"])
        if _in_a_review(site.state) and call.name != "shell":
            return Immediate(f"unsupported call: {call.name}")
        if call.name in NAMES and site.agents is not None:
            return await _of_agents(call, site, site.agents)
        match call.name:
            case "apply_patch":
                names = [f"/sim/{call.call_id}.{n}" for n in range(self._model.rng.choice((1, 2, 3)))]
                changes = {name: AddFile(content="a") for name in names}
                record = [[name, None, "h"] for name in names]
                outside = tuple(names) if arguments.get("outside") else ()
                told = f"Success. {call.call_id}"
                return ApplyPatch("*** Begin Patch", "/sim", changes, told, record, outside)
            case "update_plan":
                return Immediate("Plan updated")
            case "approve_plan":
                steps = [{"step": "do it", "status": "pending"}]
                return PlanWork({"title": call.call_id, "summary": "s", "plan": {"plan": steps}})
            case "ask_user_question":
                shown = {"question": "Which?", "options": [], "multiSelect": False}
                headers = ("Auth", "Store")[: self._model.rng.choice((1, 2))]
                return QuestionWork(tuple({**shown, "header": name} for name in headers))
            case "request_user_input":
                shown = {"header": "Where", "question": "Where?", "isOther": True, "isSecret": False}
                token = {**shown, "id": "token", "isSecret": True}
                asked = [{"id": "place", **shown}, token][: self._model.rng.choice((1, 2, 2))]
                return UserInputWork(tuple(asked))
            case name if name == CLIENT_TOOL:
                return _of_client(call, site.state)
            case "exec_command":
                parsed = (UnknownCommand(cmd="serve"),)
                lasting = Lasting(bool(arguments["tty"]), arguments["yield_ms"], 100)
                return Exec(
                    ("serve",), "/sim", parsed, call.call_id, safe=not arguments["ask"], lasting=lasting
                )
            case "write_stdin":
                # Of a number that the model was told, or of one that it was not.
                word, waits_ms = arguments["types"], arguments.get("yield_ms", 250)
                return WriteStdin(arguments["number"], word and f"{word} {call.call_id}", waits_ms, 100)
            case name if name == TOOL:
                # Some calls are the same ones again: they may have been approved for the session.
                file = {"file": call.call_id if self._model.rng.random() < 0.7 else "again"}
                return Mcp("sim", "touch", file, "/sim", read_only=bool(arguments["reads"]))
            case _:
                parsed = (UnknownCommand(cmd="true"),)
                # Some commands are the same ones again: they may have been approved for the session.
                key = call.call_id if self._model.rng.random() < 0.7 else "again"
                if "script" in arguments:
                    return await self._script(call, arguments, key)
                judged = Exec(("true",), "/sim", parsed, key, safe=not arguments.get("ask"))
                if arguments.get("prefix"):
                    judged = replace(judged, segments=(Segment(("touch", call.call_id)),))
                return replace(judged, **{what: True for what in BEYOND if arguments.get(what)})

    async def _script(self, call: Call, arguments: Mapping[str, Any], key: str) -> Exec:
        """As the product's `shell`, which waits for readers that are late."""
        self._scripts.odds = self._model.odds.readers
        judged = self._scripts.judged(call.call_id, arguments, key)
        await asyncio.sleep(self._scripts.spent_s)
        return replace(judged, escalated=bool(arguments.get("escalated")))

    async def run(self, call: Call, site: CallSite) -> CallFinished:
        with drawing(f"run {call.call_id}"):
            return await self._run(call, site)

    async def _run(self, call: Call, site: CallSite) -> CallFinished:
        model = self._model
        if isinstance(call.work, StdinWork):
            return await self.processes.look(call, call.work, site)
        if isinstance(call.work, ExecWork) and call.work.lasting is not None:
            return await self.processes.start(call, call.work.lasting, site, self._starting)
        begun: list[tuple[Run, asyncio.Future[str]]] = []

        def begin() -> None:
            lost = self._starting(call, site)
            begun.append(self._runs.made(call.call_id, site, files=_files(call), lost=lost))
            self._folders.meets(begun[0][0], call, site)
            self._runs.begin(begun[0][0])

        if not await self._runs.starts(site.claim, begin, begun):
            return finished(call, f"killed {call.call_id}", "killed")
        run, done = begun[0]
        lasts = model.rng.choice((0.0, 0.01, 0.3, 2.0, 7.0, 15.0)) * model.rng.random()
        if model.odds.long_s:
            lasts += model.odds.long_s * model.rng.random()
        for part in range(run.files):
            self._runs.switch(run, after=lasts * (part + 1) / run.files)
        asks = bool(model.odds.elicits) and isinstance(call.work, McpWork)
        asks = asks and model.rng.random() < model.odds.elicits
        dies = (
            bool(model.odds.dies) and isinstance(call.work, McpWork) and model.rng.random() < model.odds.dies
        )
        if not run.files and not asks and not dies:
            self._runs.end(run, "finished", after=lasts)
        for part in range(model.rng.choice((0, 0, 2))):
            chunk = f"{call.call_id}.{part}".encode()
            call_id, stream = CallId(call.call_id), OutputStream.STDOUT
            shown = ev.ExecCommandOutputDelta(call_id=call_id, stream=stream, chunk=chunk)
            site.deltas(written(shown))
        try:
            if dies:
                self._runs.end(run, DIED, after=lasts)
            if asks and site.ask is not None:
                await self._elicits(call, site.ask, until=done if dies else None)
                self._runs.end(run, "finished", after=lasts)
            how = await done
        except asyncio.CancelledError:
            await self._runs.prove_dead(run)
            raise
        confined = (
            how == "finished" and not run.files and isinstance(call.work, ExecWork) and call.work.sandboxed
        )
        run.denied = confined and model.rng.random() < model.odds.denied
        large = "x" * 6000 if how == "finished" and _is_large(call) else ""
        run.output = f"{how} {call.call_id}{large}"
        ended = finished(call, run.output, how)
        asks = run.denied and command_of(call.item) is None
        return replace(ended, sandbox_denied=True) if asks else ended

    async def _elicits(self, call: Call, ask: AskPerson, until: asyncio.Future[str] | None = None) -> None:
        """Asks a person, once or twice; now and then the server takes a question back, or dies first."""
        if until is not None:
            asking: asyncio.Future[Any] = asyncio.ensure_future(self._asks(call, ask))
            waited: set[asyncio.Future[Any]] = {asking, until}
            try:
                await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            finally:
                asking.cancel()
                await asyncio.gather(asking, return_exceptions=True)
            return
        for _ in range(self._model.rng.choice((1, 1, 2))):
            patience_s = self._model.rng.choice((0.5, 3_600.0, 3_600.0))
            with suppress(TimeoutError):
                async with asyncio.timeout(patience_s):
                    await self._asks(call, ask)

    async def _asks(self, call: Call, ask: AskPerson) -> None:
        decision = await ask(CallId(call.call_id), "sim", "May I?")
        self._model.trace.note(self._machine, "hears", call.call_id, decision.value)

    async def judge(self, call: Call, claim: str) -> str:
        self._ledger.saw("started_once")
        if not isinstance(call.work, PatchWork):
            return "in_doubt"
        self._ledger.saw("effects_once")
        session = self.session_of(claim) or self._session(call)
        if self._ledger.written[session, call.call_id]:
            return "all"
        # No entry is made: the next to judge would take it for a session in which the call ran.
        runs = self._ledger.by_call.get((session, call.call_id), ())
        switched = any(run.switched for run in runs)
        return "in_doubt" if switched else "none"

    def _session(self, call: Call) -> str:
        return next((session for session, id in self._ledger.by_call if id == call.call_id), "")


async def _of_agents(call: Call, site: CallSite, tree: Tree) -> Assessment:
    """As the product's toolbox assesses it."""
    try:
        return await assess_agent_call(AgentCall(call, site.state, tree, site.seq, site.head))
    except BadArguments as error:
        return Immediate(str(error))


def _is_large(call: Call) -> bool:
    return command_of(call.item) is None and bool(orjson.loads(call.item["arguments"]).get("large"))


def _files(call: Call) -> int:
    """The number of files that a call writes; a command writes none that is looked at."""
    work = call.work
    return len(work.record) if isinstance(work, PatchWork) and isinstance(work.record, Sequence) else 0


def finished(call: Call, output: str, how: str) -> CallFinished:
    """A call's result as a tool tells it."""
    worked = how == "finished"
    if isinstance(call.work, PatchWork):
        patched = ev.PatchApplyEnd(call_id=CallId(call.call_id), stdout=output, stderr="", success=worked)
        return CallFinished(call.call_id, output, (patched,), applied=worked)
    if isinstance(call.work, McpWork):
        answer = CallToolResult(content=({"type": "text", "text": output},)) if worked else output
        return CallFinished(call.call_id, output, (call.work.end(call.call_id, answer, 0.0),))
    ended = ev.ExecCommandEnd(
        call_id=CallId(call.call_id),
        stdout=output,
        stderr="",
        aggregated_output=output,
        exit_code=0 if worked else -1,
        duration=Duration(secs=0, nanos=0),
        formatted_output=output,
    )
    return CallFinished(call.call_id, output, (ended,))
